"""How good the models were, and how overfitted: what an attack's success is read beside."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks import Knowledge, Targets
from fedattack.attacks.local_models import LocalModels, local_models
from fedattack.audit.truth import NOBODY, Truth
from fedattack.base.errors import NeedsError, RecordError
from fedattack.learning import (
    accuracy_of_models,
    losses_of_models,
    per_record_loss,
    pick_device,
    r2_of_models,
)
from fedattack.learning.importing import trust_given
from fedattack.learning.losses import RecordLoss
from fedattack.record import Observation, Record, Round
from fedattack.record.format import PROTOCOLS, Arrays

# Overfitting needs every client's model, so it is measured at a few rounds and on fewer records than the accuracy.
_OVERFITTING_ROUNDS = 5
_OVERFITTING_RECORDS = 500
# The level is a mean of absolute differences: of clients with fewer targets it would be mostly their noise.
_FEWEST_TARGETS = 10


@dataclass(frozen=True)
class Quality:
    """Per round; ``None`` where a model is unknown.

    Attributes
    ----------
    rounds, accuracy
        Accuracy of the common model after each round on examples that no client holds; of a regression, R². Empty
        where the protocol has no common model.
    overfitting_rounds, overfitting
        Mean over clients of |accuracy on own targets − accuracy on examples that no client holds| of the local models,
        as :func:`fedattack.attacks.local_models.local_models` rebuilds them: the overfitting level of Hu et al. 2023,
        Section 4.6. Clients with fewer than ten targets are left out. Empty where they cannot be rebuilt.
    local
        Whether the accuracy is the mean of the clients' models, in place of a common model that there is not (FedMD);
        overfitting is then about all training examples of a client, and known in every round.
    measure
        What ``accuracy`` is: ``accuracy`` or ``R²``.
    loss
        Mean loss of the common model on the same examples, in the clients' own loss; ``None`` where it is not finite.
        Empty where the protocol has no common model.
    """

    rounds: list[int]
    accuracy: list[float | None]
    overfitting_rounds: list[int]
    overfitting: list[float | None]
    local: bool = False
    measure: str = "accuracy"
    loss: Sequence[float | None] = ()


def quality_of_models(
    model: nn.Module,
    states: Sequence[Arrays],
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """Compute each model's accuracy on examples (n, …) with labels (n,), or R² where these are no integers.

    Raises
    ------
    DataError, ModelError
        As :func:`fedattack.learning.accuracy_of_models`.
    """
    # By the labels' type, as the loss of a regression has no classes to hit.
    measure = {"accuracy": accuracy_of_models, "R²": r2_of_models}[measure_of(y)]
    return np.asarray(measure(model, states, x, y, device=device))


def measure_of(y: NDArray[Any]) -> str:
    """Name the measure of models' quality that suits labels or targets: ``accuracy`` or ``R²``."""
    if np.issubdtype(y.dtype, np.integer):
        return "accuracy"
    return "R²"


def measure_quality(
    record: Record,
    knowledge: Knowledge,
    truth: Truth,
    *,
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Quality:
    """Evaluate a record's models on the truth's examples.

    Raises
    ------
    ModelError
        If the model does not fit the record.
    """
    if not PROTOCOLS[record.protocol].sends_model:
        return _noted_quality(record, truth)
    if knowledge.model is None or not len(truth.evaluation[1]):
        return Quality([], [], [], [])
    model, on, (x, y) = knowledge.model.build(), pick_device(device), truth.evaluation
    loss = per_record_loss(trust_given(knowledge.model.loss))
    predicts = knowledge.model.predicts
    models_of = _local_models(record, knowledge, on)
    # Evenly spaced rounds, among them the first and the last; each once in a short record.
    steps = np.unique(np.linspace(0, len(record) - 1, _OVERFITTING_ROUNDS).round().astype(int)).tolist()
    accuracy: list[float | None] = []
    losses: list[float | None] = []
    overfitting: list[float | None] = []
    for index, round_ in enumerate(record):
        after = _after(round_)
        right = mean_loss = None
        if after is not None:
            # The loss needs no predictions of classes, so that a model of any output has one.
            mean_loss = _mean_loss(model, after, x, y, loss, on)
            if predicts:
                right = float(quality_of_models(model, [after], x, y, device=on)[0])
        accuracy.append(right)
        losses.append(mean_loss)
        if index in steps and knowledge.targets is not None and models_of is not None:
            overfitting.append(_overfitting(model, models_of(round_), knowledge.targets, truth, on))
        progress(index + 1, len(record))
    numbers = [round_.number for round_ in record]
    return Quality(
        rounds=numbers[: len(accuracy)],
        accuracy=accuracy,
        overfitting_rounds=[numbers[step] for step in steps][: len(overfitting)],
        overfitting=overfitting,
        measure=measure_of(y),
        loss=losses,
    )


def _overfitting(
    model: nn.Module,
    states: Iterable[tuple[Observation, Arrays]],
    targets: Targets,
    truth: Truth,
    device: torch.device,
) -> float | None:
    """Average how much better local models are on their clients' own targets than on examples that nobody holds."""
    x, y = truth.evaluation
    unheld_x, unheld_y = x[:_OVERFITTING_RECORDS], y[:_OVERFITTING_RECORDS]
    gaps = []
    for observation, state in states:
        rows = np.flatnonzero(truth.owners == truth.nodes.get(observation.node, "?"))
        if len(rows) < _FEWEST_TARGETS:
            continue
        # R² needs labels that differ.
        if measure_of(y) == "R²" and len(np.unique(targets.y[rows])) < 2:
            continue
        of_held = quality_of_models(model, [state], targets.x[rows], targets.y[rows], device=device)
        of_unheld = quality_of_models(model, [state], unheld_x, unheld_y, device=device)
        gaps.append(abs(float(of_held[0]) - float(of_unheld[0])))
    if not gaps:
        return None
    return float(np.mean(gaps))


def _mean_loss(
    model: nn.Module, state: Arrays, x: NDArray[Any], y: NDArray[Any], loss: RecordLoss, device: torch.device
) -> float | None:
    mean = float(losses_of_models(model, [state], x, y, loss, device=device).mean())
    # A model that diverged has no loss to draw.
    if not math.isfinite(mean):
        return None
    return mean


def _local_models(record: Record, knowledge: Knowledge, device: torch.device) -> LocalModels | None:
    """Rebuild the clients' models, if the record shows single clients and says what it takes."""
    if record.view != "individual" or knowledge.model is None or not knowledge.model.predicts:
        return None
    try:
        # A client whose reply cannot be used is named in the attack's notes.
        return local_models(record, knowledge, seed=record.seed or 0, device=device, notes=[])
    except NeedsError:
        return None


def training_accuracy(record: Record, knowledge: Knowledge, truth: Truth, *, device: str = "auto") -> float | None:
    """Evaluate the common model after the last round on the target records that clients hold.

    None if there is no such model or example. Targets are drawn from the training examples, as many from each client.
    """
    targets, rows = knowledge.targets, np.flatnonzero(truth.owners != NOBODY)
    if targets is None or not len(rows) or not len(record) or not PROTOCOLS[record.protocol].sends_model:
        return None
    after = _after(record.rounds[-1])
    if after is None or knowledge.model is None or not knowledge.model.predicts:
        return None
    model, on = knowledge.model.build(), pick_device(device)
    return float(quality_of_models(model, [after], targets.x[rows], targets.y[rows], device=on)[0])


def _noted_quality(record: Record, truth: Truth) -> Quality:
    """Take the quality from what the clients noted, whose models never leave them (Hu et al. 2023, Table IV)."""
    rounds: list[int] = []
    accuracy: list[float | None] = []
    overfitting: list[float | None] = []
    for round_ in record:
        if round_.number in truth.accuracy:
            # A note is a pair: accuracy on the client's own examples, and on those of nobody.
            own, unheld = np.array(list(truth.accuracy[round_.number].values())).T
            rounds.append(round_.number)
            accuracy.append(float(np.mean(unheld)))
            overfitting.append(float(np.mean(np.abs(own - unheld))))
    return Quality(rounds, accuracy, rounds, overfitting, local=True)


def _after(item: Round) -> Arrays | None:
    """Load the common model after a round, if it is known and whole: it may lie in a damaged neighbour's file."""
    try:
        after = item.after
        # Arrays of a round lie on disk until they are read: `dict` reads them here, where damage is caught.
        return after and dict(after)
    except RecordError:
        return None
