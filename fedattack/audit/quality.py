"""How good the models were, and how overfitted: what an attack's success is read beside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks import Knowledge
from fedattack.audit.truth import Truth
from fedattack.errors import RecordError
from fedattack.learning import accuracy_of_models, pick_device, r2_of_models
from fedattack.record import Record, Round
from fedattack.record.format import Arrays

# Overfitting needs every client's model, so it is measured at a few rounds and on fewer records than the accuracy.
_OVERFITTING_ROUNDS = 5
_OVERFITTING_RECORDS = 500


@dataclass(frozen=True)
class Quality:
    """Per round; ``None`` where a model is unknown.

    Attributes
    ----------
    rounds, accuracy
        Accuracy of the common model after each round on records that no client holds; of a regression, R².
    overfitting_rounds, overfitting
        Mean over clients of |accuracy on own targets − accuracy on records that no client holds| of the local models:
        the overfitting level of Hu et al. 2023, Section 4.6.
    measure
        What ``accuracy`` is: ``accuracy`` or ``R²``.
    """

    rounds: list[int]
    accuracy: list[float | None]
    overfitting_rounds: list[int]
    overfitting: list[float | None]
    measure: str = "accuracy"


def quality_of_models(
    model: nn.Module,
    states: Sequence[Arrays],
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """Compute each model's accuracy on records (n, …) with labels (n,), or R² where these are no integers.

    Raises
    ------
    DataError, ModelError
        As :func:`fedattack.learning.accuracy_of_models`.
    """
    measure = accuracy_of_models if measure_of(y) == "accuracy" else r2_of_models
    return np.asarray(measure(model, states, x, y, device=device))


def measure_of(y: NDArray[Any]) -> str:
    """Name the measure of models' quality that suits labels or targets: ``accuracy`` or ``R²``."""
    return "accuracy" if np.issubdtype(y.dtype, np.integer) else "R²"


def measure_quality(
    record: Record,
    knowledge: Knowledge,
    truth: Truth,
    *,
    device: str = "auto",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Quality:
    """Evaluate a record's models on the truth's records.

    Raises
    ------
    ModelError
        If the model does not fit the record.
    """
    if knowledge.model is None:
        return Quality([], [], [], [])
    model, place, (x, y) = knowledge.model.build(), pick_device(device), truth.evaluation
    targets = knowledge.targets
    steps = np.unique(np.linspace(0, len(record) - 1, _OVERFITTING_ROUNDS).round().astype(int)).tolist()
    accuracy: list[float | None] = []
    overfitting: list[float | None] = []
    for position, item in enumerate(record):
        after = _after(item)
        accuracy.append(None if after is None else float(quality_of_models(model, [after], x, y, device=place)[0]))
        if position in steps and targets is not None and record.view == "individual":
            gaps = []
            for seen in item.observations:
                own = np.flatnonzero(truth.owners == truth.nodes.get(seen.node, "?"))
                if seen.status != "ok" or seen.arrays is None or not len(own):
                    continue
                if measure_of(y) == "R²" and len(np.unique(targets.y[own])) < 2:
                    continue
                # A client whose reply has another shape is named in the attack's notes.
                if {n: a.shape for n, a in seen.arrays.items()} != {p.name: p.shape for p in record.parameters}:
                    continue
                state = [seen.arrays]
                held = quality_of_models(model, state, targets.x[own], targets.y[own], device=place)
                unheld = quality_of_models(
                    model, state, x[:_OVERFITTING_RECORDS], y[:_OVERFITTING_RECORDS], device=place
                )
                gaps.append(abs(float(held[0]) - float(unheld[0])))
            overfitting.append(float(np.mean(gaps)) if gaps else None)
        progress(position + 1, len(record))
    numbers = [item.number for item in record]
    return Quality(numbers, accuracy, [numbers[step] for step in steps][: len(overfitting)], overfitting, measure_of(y))


def _after(item: Round) -> Arrays | None:
    """Load the common model after a round, if it is known and whole: it may lie in a damaged neighbour's file."""
    try:
        after = item.after
        return None if after is None else dict(after)
    except RecordError:
        return None
