"""Each client's local model, as its server can rebuild it from what the client sent: a table by protocol."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import nn

from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.matching import check_model, fits_model
from fedattack.attacks.replies import replied
from fedattack.attacks.students import TEACHERS, students_of, usable_predictions
from fedattack.base.errors import NeedsError, RecordError
from fedattack.learning import check_gradients, gradient_step
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays

Item = TypeVar("Item")

Rebuilding = Callable[[int, Sequence[Arrays]], Sequence[Arrays]]
"""Makes local models, as state dicts of arrays, of what is known of some replies of the round at a position."""


def as_known(seq: int, known: Sequence[Arrays]) -> Sequence[Arrays]:
    """Return what is known of replies, which are the local models already."""
    return known


@dataclass(frozen=True)
class LocalModels:
    """Gives the usable replies of a round, each once, with the client's model as a state dict of arrays.

    They come one at a time, so that a record of many clients is never held in memory. Whoever rebuilds models in
    another process takes the two steps apart.

    Attributes
    ----------
    usable
        Gives the usable replies of a round, with what their models are rebuilt of.
    rebuild, together
        Makes the models of it, of so many replies at a time; can be pickled.
    """

    usable: Callable[[Round], Iterator[tuple[Observation, Arrays]]]
    rebuild: Rebuilding = as_known
    together: int = 1

    def __call__(self, round_: Round) -> Iterator[tuple[Observation, Arrays]]:
        """Yield the usable replies of a round with their models."""
        # Students are trained many at a time; the other protocols rebuild one after the other.
        for group in _batch(self.usable(round_), self.together):
            models = self.rebuild(round_.seq, [known for _, known in group])
            yield from zip([observation for observation, _ in group], models, strict=True)


Rebuild = Callable[[Record, Knowledge, int, torch.device, list[str]], LocalModels]
"""Makes the :data:`LocalModels` of a record; takes the arguments of :func:`local_models`."""


def local_models(
    record: Record, knowledge: Knowledge, *, seed: int, device: torch.device, notes: list[str]
) -> LocalModels:
    """Rebuild the local models of a record's clients, a round at a time.

    Parameters
    ----------
    record
        In the individual view.
    knowledge
        With a model: the architecture of what is rebuilt.
    seed
        Of the draws of a protocol whose models are rebuilt by training.
    notes
        Gets a line for each reply that has to be left out.

    Raises
    ------
    ModelError, NeedsError
        If the record's parameters are not those of the model, or the model does not go with the protocol; if there is
        no rule for the record's protocol, or the record lacks what the rule needs.
    """
    if record.protocol not in REBUILD:
        raise NeedsError(
            f"{record.path} has the protocol {record.protocol}, from which no local model is rebuilt; expected one "
            f"of {', '.join(REBUILD)}"
        )
    return REBUILD[record.protocol](record, knowledge, seed, device, notes)


def _take_sent(record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]) -> LocalModels:
    """FedAvg: the local model is what the client sent."""
    model = _model_of_parameters(record, knowledge)
    return LocalModels(lambda round_: _fitting(round_, model, notes))


def _step_along(record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]) -> LocalModels:
    """FedSGD: the local model is the received one, stepped along the client's own gradient.

    θ_k = θ_{t−1} − η g_k with the server's own η (Hu et al. 2023, Section 3.4 and Algorithm 1, line 6).
    """
    model = _model_of_parameters(record, knowledge)
    # FedSGD's replies must be gradients of parameters alone: no step moves a buffer.
    check_gradients(model)
    lr = _server_rate(record)

    def of_round(round_: Round) -> Iterator[tuple[Observation, Arrays]]:
        for observation, gradient in _fitting(round_, model, notes):
            received = readable(observation.received)
            where = f"round {round_.number}, client {observation.node} left out"
            if received is None:
                notes.append(f"{where}: the record does not hold the model that it was sent")
            elif fits_model(model, received, f"{where}: what it was sent", notes):
                yield observation, gradient_step(received, gradient, lr)

    return LocalModels(of_round)


def _distil(record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]) -> LocalModels:
    """FedMD: a student of what the client predicted stands for its model."""
    students = students_of(record, knowledge, seed, device)
    return LocalModels(usable_predictions(students, notes), students, TEACHERS)


REBUILD: Mapping[str, Rebuild] = {"fedavg": _take_sent, "fedsgd": _step_along, "fedmd": _distil}
"""The rule of each protocol."""


def _batch(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of so many items; ``itertools.batched`` is of Python 3.12."""
    rest = iter(items)
    while group := list(islice(rest, size)):
        yield group


def _server_rate(record: Record) -> float:
    """Return the learning rate with which the server of FedSGD steps."""
    lr = record.facts.get("lr")
    # Facts are of anybody's making; a bool is an int.
    if isinstance(lr, int | float) and not isinstance(lr, bool) and math.isfinite(lr) and lr > 0:
        return lr
    got = "there is none" if lr is None else f"it is {lr!r}"
    raise NeedsError(
        f"{record.path}: a gradient becomes a local model by the server's learning rate, expected as the positive "
        f"number 'lr' among the record's facts, and {got}; state facts={{'lr': …}} where the run is observed"
    )


def readable(arrays: Arrays | None) -> Arrays | None:
    """Read a model that the server sent; ``None`` if it cannot be read, as from a damaged neighbour's file."""
    try:
        return None if arrays is None else dict(arrays)
    # The round's model may be a mean of replies in the file of another round, which is damaged.
    except RecordError:
        return None


def _model_of_parameters(record: Record, knowledge: Knowledge) -> nn.Module:
    """Build the model of a record whose arrays go by the model's parameters."""
    if knowledge.model is None:
        raise NeedsError(f"{record.path}: rebuilding local models takes an architecture, and knowledge/ names no model")
    model = knowledge.model.build()
    check_model(model, record)
    return model


def _fitting(round_: Round, model: nn.Module, notes: list[str]) -> Iterator[tuple[Observation, Arrays]]:
    """Yield the replies whose arrays have the names and shapes of the model's."""
    for observation in filter(replied, round_.observations):
        arrays = dict(observation.arrays or {})
        if fits_model(model, arrays, f"round {round_.number}, client {observation.node} left out", notes):
            yield observation, arrays
