"""Each client's local model, as its server can rebuild it from what the client sent: a table by protocol."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from fedattack.errors import ModelError, NeedsError, RecordError
from fedattack.learning import check_gradients, check_parameters, gradient_step
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays
from fedattack.threats.knowledge import Knowledge
from fedattack.threats.matching import check_model
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
    return lambda item: _fitting(item, model, notes)


def _stepped(record: Record, knowledge: Knowledge, seed: int, device: torch.device, notes: list[str]) -> LocalModels:
    """FedSGD: the local model is the received one, stepped along the client's own gradient.

    θ_k = θ_{t−1} − η g_k with the server's own η (Hu et al. 2023, Section 3.4 and Algorithm 1, line 6).
    """
    model = _model_of_parameters(record, knowledge)
    check_gradients(model)
    lr = record.facts.get("lr")
    if not isinstance(lr, int | float) or isinstance(lr, bool) or not (math.isfinite(lr) and lr > 0):
        found = "there is none" if lr is None else f"it is {lr!r}"
        raise NeedsError(
            f"{record.path}: a gradient becomes a local model by the server's learning rate, expected as the positive "
            f"number 'lr' among the record's facts, and {found}; state facts={{'lr': …}} where the run is observed"
        )

    def of_round(item: Round) -> Iterator[tuple[Observation, Arrays]]:
        for seen, gradient in _fitting(item, model, notes):
            try:
                before = None if seen.received is None else dict(seen.received)
            except RecordError:  # it may lie in a damaged neighbour's file
                before = None
            if before is None:
                notes.append(
                    f"round {item.number}, client {seen.node} left out: what model it was sent is not in the record"
                )
                continue
            try:
                check_parameters(model, {name: array.shape for name, array in before.items()})
            except ModelError as cause:
                notes.append(f"round {item.number}, client {seen.node} left out: what it was sent: {cause}")
                continue
            yield seen, gradient_step(before, gradient, lr)

    return of_round


REBUILD: Mapping[str, Rebuild] = {"fedavg": _sent, "fedsgd": _stepped, "fedmd": student_models}
"""The rule of each protocol."""


def _model_of_parameters(record: Record, knowledge: Knowledge) -> nn.Module:
    """Build the model of a record whose arrays go by the model's parameters."""
    if knowledge.model is None:
        raise NeedsError(f"{record.path}: local models are of an architecture, and knowledge/ names no model")
    model = knowledge.model.build()
    check_model(model, record)
    return model


def _fitting(item: Round, model: nn.Module, notes: list[str]) -> Iterator[tuple[Observation, Arrays]]:
    """Go through the replies whose arrays have the names and shapes of the model's."""
    for seen in item.observations:
        if seen.status != "ok" or seen.arrays is None:
            continue
        arrays = dict(seen.arrays)
        try:
            check_parameters(model, {name: array.shape for name, array in arrays.items()})
        except ModelError as cause:
            notes.append(f"round {item.number}, client {seen.node} left out: {cause}")
            continue
        yield seen, arrays
