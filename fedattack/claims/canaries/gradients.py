"""Scores of canary examples: what an update has of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, short
from fedattack.claims.canaries.bounds import Scores
from fedattack.claims.canaries.directions import Products
from fedattack.claims.canaries.file import CanaryExamples

SPARSE = 10
"""Entries of a model for each direction that something is held against, at least."""

# Public examples that are taken out of an update at most, and canaries that are looked at together.
_PUBLIC = 150
_TOGETHER = 200
# Numbers of gradients in memory, and those that are taken in at once, in double precision.
_NUMBERS = 2**26
_AT_ONCE = 2**22


@dataclass(frozen=True)
class CanaryUpdate:
    """An update that may show some canaries.

    Attributes
    ----------
    rows
        Which canaries.
    received
        The model that it started from.
    update
        How far it went; finite.
    others
        Of the same round, what other clients sent, which have nothing of these canaries; finite.
    """

    rows: NDArray[np.int64]
    received: Mapping[str, NDArray[Any]]
    update: Mapping[str, NDArray[Any]]
    others: Sequence[Mapping[str, NDArray[Any]]] = ()


class Gradients:
    """Gradients of canary examples, and of public ones, at models of the record.

    Parameters
    ----------
    model
        The architecture, a torch module.
    loss
        What clients minimise.
    examples
        The canaries.
    public
        Examples and labels that no client holds; None if there are none.

    Raises
    ------
    ConfigError
        If public examples have another shape than canaries.
    """

    def __init__(
        self, model: Any, loss: str, examples: CanaryExamples, public: tuple[NDArray[Any], NDArray[Any]] | None
    ) -> None:
        self._model = model
        self._loss = loss
        self._x, self._y = _as_trained(examples.x), _as_trained(examples.y)
        self._canaries = len(examples.y)
        self._names = tuple(name for name, _ in model.named_parameters())
        self._entries = sum(value.numel() for value in model.parameters())
        if public is not None:
            x, y = public[0][:_PUBLIC], public[1][:_PUBLIC]
            if x.shape[1:] != self._x.shape[1:]:
                raise ConfigError(
                    f"canary examples have the shape {self._x.shape[1:]}, and examples of the data {x.shape[1:]}; give "
                    "the canaries of this run"
                )
            self._x = np.concatenate([self._x, x.astype(self._x.dtype)])
            self._y = np.concatenate([self._y, y.astype(self._y.dtype)])

    def scores(self, update: CanaryUpdate) -> Scores:
        """Return the t statistic of each canary's gradient in the regression of what may show it on all gradients.

        It is 0 where a gradient is not finite, is zero, or follows from others.

        Raises
        ------
        ConfigError
            If the examples do not go through the model.
        ModelError
            If the arrays are not those of the model.
        """
        # More directions would leave little of the update.
        most = max(1, self._entries // SPARSE)
        together = min(_TOGETHER, most)
        scores = np.zeros(len(update.rows))
        for start in range(0, len(scores), together):
            part = slice(start, start + together)
            # At a tenth of the model's entries at most, with others and public examples beside.
            scores[part] = self._score_group(update, update.rows[part], most)
        return scores

    def _score_group(self, update: CanaryUpdate, rows: NDArray[np.int64], most: int) -> Scores:
        others = [self._flatten(other) for other in update.others[: most - len(rows)]]
        public = np.arange(self._canaries, len(self._y))[: most - len(rows) - len(others)]
        examples = np.concatenate([rows, public])
        moved = self._flatten(update.update)
        count = len(examples) + len(others)
        products = Products(count)
        # All gradients of a large model do not fit into memory: some entries of all are computed at a time.
        width = max(1, _NUMBERS // count)
        step = max(1, _AT_ONCE // count)
        for start in range(0, self._entries, width):
            end = min(start + width, self._entries)
            gradients = self._compute_gradients(update.received, examples, slice(start, end))
            for first in range(start, end, step):
                last = min(first + step, end)
                beside = [other[None, first:last] for other in others]
                directions = np.concatenate([gradients[:, first - start : last - start], *beside])
                # −moved: a step of SGD moves against the gradient.
                products.add(directions, -moved[first:last])
        return products.scores()[: len(rows)]

    def _compute_gradients(
        self, received: Mapping[str, NDArray[Any]], examples: NDArray[np.int64], entries: slice
    ) -> NDArray[np.float32]:
        from fedattack.learning.example_gradients import example_gradients

        x, y = self._x[examples], self._y[examples]
        try:
            return example_gradients(self._model, received, x, y, loss=self._loss, entries=entries)[1]
        except (RuntimeError, IndexError, TypeError, ValueError) as cause:
            labels = f"labels of type {y.dtype} from {y.min():g} to {y.max():g}"
            raise ConfigError(
                f"canary examples of shape {x.shape[1:]} and type {x.dtype}, with {labels}, do not go through the "
                f"model ({short(str(cause), 120)}); expected examples like those that it was trained on"
            ) from None

    def _flatten(self, update: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        lacking = [name for name in self._names if name not in update]
        if lacking:
            raise ConfigError(
                f"the model has the parameter {lacking[0]}, and no update of the record moves it; give the model that "
                "was trained"
            )
        return np.concatenate([np.asarray(update[name], dtype=np.float32).reshape(-1) for name in self._names])


def _as_trained(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers in the types that models and losses take."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
