"""Each client's local model, as its server can rebuild it from what the client sent: a table by protocol."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from fedattack.errors import NeedsError, RecordError
from fedattack.learning import check_gradients, gradient_step
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays
from fedattack.threats.knowledge import Knowledge
from fedattack.threats.matching import check_model, fits_model
from fedattack.threats.replies import replied
from fedattack.threats.students import student_models

LocalModels = Callable[[Round], Iterator[tuple[Observation, Arrays]]]
"""Gives the usable replies of a round, each once, with the client's model as a state dict of arrays; one at a time, so
that a record of many clients is never held in memory. It may remember rounds: call it once a round, in their order."""

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
        Seed of the draws of a protocol whose models are rebuilt by training.
    device
        Where to compute.
    notes
        Gets a line for each reply that has to be left out.

    Raises
    ------
    ModelError
        If the record's parameters are not those of the model, or the model does not go with the protocol.
    NeedsError
        If there is no rule for the record's protocol, or the record lacks what the rule needs.
    """
    if record.protocol not in REBUILD:
        raise NeedsError(
            f"{record.path} is of the protocol {record.protocol}, from which no local model is rebuilt; expected one "
            f"of {', '.join(REBUILD)}"
        )
    return REBUILD[record.protocol](record, knowledge, seed, device, notes)


def _sent(record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]) -> LocalModels:
    """FedAvg: the local model is what the client sent."""
    model = _model_of_parameters(record, knowledge)
    return lambda round_: _fitting(round_, model, notes)


def _stepped(record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]) -> LocalModels:
    """FedSGD: the local model is the received one, stepped along the client's own gradient.

    θ_k = θ_{t−1} − η g_k with the server's own η (Hu et al. 2023, Section 3.4 and Algorithm 1, line 6).
    """
    model = _model_of_parameters(record, knowledge)
    check_gradients(model)
    lr = _server_rate(record)

    def of_round(round_: Round) -> Iterator[tuple[Observation, Arrays]]:
        for observation, gradient in _fitting(round_, model, notes):
            received = readable(observation.received)
            where = f"round {round_.number}, client {observation.node} left out"
            if received is None:
                notes.append(f"{where}: what model it was sent is not in the record")
            elif fits_model(model, received, f"{where}: what it was sent", notes):
                yield observation, gradient_step(received, gradient, lr)

    return of_round


REBUILD: Mapping[str, Rebuild] = {"fedavg": _sent, "fedsgd": _stepped, "fedmd": student_models}
"""The rule of each protocol."""


def _server_rate(record: Record) -> float:
    """Return the learning rate with which the server of FedSGD steps."""
    lr = record.facts.get("lr")
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
    except RecordError:
        return None


def _model_of_parameters(record: Record, knowledge: Knowledge) -> nn.Module:
    """Build the model of a record whose arrays go by the model's parameters."""
    if knowledge.model is None:
        raise NeedsError(f"{record.path}: local models are of an architecture, and knowledge/ names no model")
    model = knowledge.model.build()
    check_model(model, record)
    return model


def _fitting(round_: Round, model: nn.Module, notes: list[str]) -> Iterator[tuple[Observation, Arrays]]:
    """Yield the replies whose arrays have the names and shapes of the model's."""
    for observation in filter(replied, round_.observations):
        arrays = dict(observation.arrays or {})
        if fits_model(model, arrays, f"round {round_.number}, client {observation.node} left out", notes):
            yield observation, arrays
