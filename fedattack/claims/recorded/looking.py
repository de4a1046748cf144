"""Look at the entries of the arrays of an update, and bound how large the noise in them can be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.recorded.draws import Draws

SHARES = (0.01, 0.1, 0.5)
"""Shares of the entries by size at which ranks are looked at: a few large entries do not hide how small most are."""

TESTS = 1 + len(SHARES)
"""Number of tests of the scale of the noise in one array."""

# Entries that are computed with at once, and of which ranks are taken at most.
_BLOCK = 1 << 20
_RANKED = 1 << 18
# The smallest ones of few entries can be anything.
_LEAST_RANK = 8


@dataclass(frozen=True)
class ArrayLook:
    """What one array of an update looks like.

    Attributes
    ----------
    size
        Number of entries.
    square, slack
        Sums over entries: of squares, and of squares of what rounding may have taken.
    finite
        Whether all entries are numbers.
    bound
        The most that the scale of noise in it can be, in units of the update.
    """

    size: int
    square: float
    slack: float
    finite: bool
    bound: float

    @property
    def moved(self) -> bool:
        """Whether any entry differs from what the client had received."""
        return self.square > 0


def look(
    sent: NDArray[Any], received: NDArray[Any] | None, draws: Draws, error: float, *, slack: float = 0.0
) -> ArrayLook:
    """Look at sent − received, or at what was sent where ``received`` is None.

    Noise is added in real numbers, and then rounded to the array's type: an entry may have lost as much as a unit in
    the last place of what was sent.

    Parameters
    ----------
    sent, received
        Arrays of floats, of the same shape.
    draws
        The kind of noise that is claimed.
    error
        Probability of each of :data:`TESTS` tests that the bound is wrong.
    slack
        What else an entry may have lost.
    """
    sent = sent.reshape(-1)
    received = None if received is None else received.reshape(-1)
    # The coarsest type on the way decides how much rounding may have taken.
    coarse = float(np.finfo(sent.dtype).eps)
    if received is not None:
        coarse = max(coarse, float(np.finfo(received.dtype).eps))
    stride = max(1, math.ceil(sent.size / _RANKED))
    total = square = lost = 0.0
    pieces = []
    for start in range(0, sent.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        with np.errstate(invalid="ignore", over="ignore"):
            update, rounded = _read_entries(sent[block], None if received is None else received[block], coarse, slack)
            largest = np.abs(update) + rounded
            # A power of 2 for Gaussian noise, 1 for Laplace: sums whose least value is known.
            total += float(largest @ largest) if draws.power == 2 else float(largest.sum())
            square += float(update @ update)
            lost += float(rounded @ rounded)
        # Every entry of the whole array whose index is a multiple of the stride.
        pieces.append(largest[-start % stride :: stride])
    # Infinities and NaN in a sent array would make any bound wrong.
    finite = math.isfinite(square) and math.isfinite(total)
    bound = math.inf
    if finite:
        # If the noise had scale b, the sum would hardly be below b^power times the least sum.
        by_length = (total / draws.least_sum(sent.size, error)) ** (1 / draws.power)
        bound = min(by_length, _bound_by_ranks(np.concatenate(pieces), draws, error))
    return ArrayLook(sent.size, square, lost, finite, bound)


def _read_entries(
    sent: NDArray[Any], received: NDArray[Any] | None, coarse: float, slack: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the update, and what rounding may have taken from each entry."""
    update = sent.astype(np.float64)
    largest = np.abs(update)
    if received is not None:
        before = received.astype(np.float64)
        update -= before
        np.maximum(largest, np.abs(before), out=largest)
    return update, coarse * largest + slack


def _bound_by_ranks(entries: NDArray[np.float64], draws: Draws, error: float) -> float:
    """Bound the scale of the noise by absolute values of certain ranks; the entries are sorted in part."""
    bounds = [math.inf]
    for share in SHARES:
        rank = rank_of(share, entries.size)
        if rank >= _LEAST_RANK:
            # Sorted only as far as this rank needs; later ranks go on from there.
            entries.partition(rank - 1)
            bounds.append(float(entries[rank - 1]) / draws.least_at(rank, entries.size, error))
    return min(bounds)


def rank_of(share: float, size: int) -> int:
    """Return the rank, from 1, of a share of so many entries."""
    return max(1, math.ceil(share * size))


class UpdateLook(dict[str, ArrayLook]):
    """What the arrays of one update, or of one mean, look like, by name."""

    @property
    def where(self) -> str:
        """The array with the least noise."""
        return min(self, key=lambda name: self[name].bound)

    @property
    def bound(self) -> float:
        """The most noise in that array."""
        return self[self.where].bound

    @property
    def square(self) -> float:
        """The square of the update's length."""
        return sum(array.square for array in self.values())

    @property
    def slack(self) -> float:
        """The square of the length of what rounding may have taken."""
        return sum(array.slack for array in self.values())

    @property
    def size(self) -> int:
        """How many entries were looked at."""
        return sum(array.size for array in self.values())
