"""By how much of the mean of the replies a server moves its model.

Noise that is added to the mean before such a step is as much smaller or larger as the step. The movement m of the model
is explained by least squares over all entries: m = c·(a + n) + β·m', with the mean a of this round, noise n, and the
last movement m' (momentum). Of m' the part that the last mean a' made and the rest stand apart, since a server that
adds the same noise again repeats the rest alone.

The step is c. By Frisch and Waugh (1933) it is the coefficient of a in a regression of m on a alone, after everything
that a' and the rest explain has been taken out of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.recorded.testimony import Expected

SURE = 4.5
"""Standard errors by which a coefficient is off at most: more are rarer than once in 100,000 times."""

# A step that is so close to 1 makes less of a difference than how people round σ.
_CLOSE_TO_ONE = 5e-3
# If so little of the mean is not as the last movement, nothing tells the two apart.
_ALONG = 1e-9
# Columns of the regression: movement and mean; beside them the last mean, and the rest of the last movement.
_COLUMNS = 4
_MAIN = slice(0, 2)
_BESIDE = slice(2, _COLUMNS)


@dataclass(frozen=True)
class ServerStep:
    """By how much of the mean the model moves.

    Attributes
    ----------
    size, error
        The coefficient of the mean, and its standard error; infinite if nothing tells the coefficient.
    left
        The sum of squares that the fit leaves of the movement.
    """

    size: float = 0.0
    error: float = math.inf
    left: float = math.inf

    @property
    def is_not_one(self) -> bool:
        """Whether it is plainly not 1."""
        return abs(self.size - 1) > _CLOSE_TO_ONE + SURE * self.error

    @property
    def least(self) -> float:
        """The smallest one that fits, from 0 to 1."""
        return min(1.0, max(0.0, self.size + _CLOSE_TO_ONE - SURE * self.error))

    def doubt(self, expected: Expected, bound: float) -> str:
        """Say why the size of the noise tells nothing; empty if it does.

        Parameters
        ----------
        expected
            What the claim says of the noise in the mean.
        bound
            The most that the model has beside the mean.
        """
        if self.is_not_one:
            return (
                f"it moves the model by {self.size:.3g} times the mean of the replies, and not by 1: how large the "
                "noise was before that step is not known"
            )
        before_step = bound / max(self.least, 1e-300)
        if not expected.too_small(bound) or expected.too_small(before_step):
            return ""
        return (
            f"noise of {bound:.3g} at most is left, where {expected.scale:.3g} is claimed, and the replies do not rule "
            f"out that the server moves by {bound / (expected.scale or 1):.2g} times the mean, which would explain it"
        )


def difference(after: NDArray[Any], before: NDArray[Any]) -> NDArray[np.float32]:
    """Return how far an array moved."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(after.astype(np.float64) - before, dtype=np.float32)


@dataclass
class Movement:
    """How far a round's mean and its server moved the model, array by array, in float32."""

    means: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    moves: dict[str, NDArray[np.float32]] = field(default_factory=dict)


class Regression:
    """Products of a round's movement, its mean, and the last round's mean and rest, summed over arrays.

    Parameters
    ----------
    last
        The movement in the round before; None if it is not known.

    Attributes
    ----------
    now
        The movement in this round.
    """

    def __init__(self, last: Movement | None = None) -> None:
        self.now = Movement()
        self._last = last or Movement()
        self._products = np.zeros((_COLUMNS, _COLUMNS))
        self._size = 0

    def add(self, name: str, by_mean: NDArray[Any], moved: NDArray[np.float32]) -> None:
        """Take one array: how far the mean moves the model, and how far the server did."""
        by_mean = by_mean.ravel().astype(np.float32)
        moved = moved.ravel()
        columns = [moved, by_mean]
        if name in self._last.means:
            columns += [self._last.means[name], self._last.moves[name] - self._last.means[name]]
        exact = [column.astype(np.float64) for column in columns]
        for row, first in enumerate(exact):
            for column, second in enumerate(exact):
                self._products[row, column] += float(np.vdot(first, second))
        self._size += moved.size
        self.now.means[name] = by_mean
        self.now.moves[name] = moved

    def step(self) -> ServerStep:
        """Explain the movement by the mean, across what explains it beside the mean."""
        lengths = np.sqrt(np.diag(self._products))
        movement, mean = lengths[_MAIN].tolist()
        if not np.isfinite(lengths).all() or not movement or not mean:
            return ServerStep()
        scales = np.where(lengths > 0, lengths, 1.0)
        across = _take_out_beside(self._products / np.outer(scales, scales))
        (moved, product), (_, of_mean) = across.tolist()
        if of_mean < _ALONG:
            return ServerStep()
        # Columns were scaled to length 1: the ratio scales the coefficient back.
        ratio = movement / mean
        left = max(0.0, moved - product**2 / of_mean)
        error = ratio * math.sqrt(left / of_mean / max(1, self._size - 3))
        return ServerStep(ratio * product / of_mean, error, left * float(self._products[0, 0]))


def _take_out_beside(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the products of movement and mean, after what the other columns explain is taken out of both."""
    inverse = np.linalg.pinv(products[_BESIDE, _BESIDE], rcond=_ALONG, hermitian=True)
    return np.asarray(products[_MAIN, _MAIN] - products[_MAIN, _BESIDE] @ inverse @ products[_BESIDE, _MAIN])
