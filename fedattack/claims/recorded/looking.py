"""Look at the entries of one array of an update: its length, its ranks, and its first entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.recorded.draws import Draws

SHARES = (0.01, 0.1, 0.5)
"""Of the entries by size, at which their ranks are looked at: a few large entries do not hide how small most are."""

TESTS = 1 + len(SHARES)
"""Of the scale of the noise in one array."""

# Entries that are computed with at once, and of which ranks are taken at most.
_BLOCK = 1 << 20
_RANKED = 1 << 18
# The smallest ones of few entries can be anything.
_LEAST_RANK = 8


@dataclass(frozen=True)
class Head:
    """First entries of an array of an update.

    Attributes
    ----------
    values
        (length,) float32.
    slack
        Length of what rounding may have taken from them.
    """

    values: NDArray[np.float32]
    slack: float


@dataclass(frozen=True)
class ArrayLook:
    """What one array of an update looks like.

    Attributes
    ----------
    size
        Number of entries.
    total
        Sum of the powers of |u|, each with what rounding may have taken from it.
    ranked
        Number of entries whose ranks are known, spread evenly.
    at
        |u| at the ranks of :data:`SHARES`, with the same allowance.
    square, slack
        Sums of squares of the entries, and of the allowances.
    head
        Its first entries.
    """

    size: int
    total: float
    ranked: int
    at: tuple[float, ...]
    square: float
    slack: float
    head: Head

    @property
    def finite(self) -> bool:
        """Whether all entries are numbers."""
        return math.isfinite(self.square) and math.isfinite(self.total)

    @property
    def moved(self) -> bool:
        """Whether any entry differs from what the client had received."""
        return self.square > 0


def look(
    sent: NDArray[Any], received: NDArray[Any] | None, draws: Draws, keep: int, *, slack: float = 0.0
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
    keep
        Entries of the head.
    slack
        What else an entry may have lost.
    """
    sent = sent.reshape(-1)
    received = None if received is None else received.reshape(-1)
    coarse = float(np.finfo(sent.dtype).eps)
    if received is not None:
        coarse = max(coarse, float(np.finfo(received.dtype).eps))
    stride = max(1, math.ceil(sent.size / _RANKED))
    total = square = lost = 0.0
    pieces = []
    for start in range(0, sent.size, _BLOCK):
        part = slice(start, start + _BLOCK)
        with np.errstate(invalid="ignore", over="ignore"):
            update, rounded = _read_entries(sent[part], None if received is None else received[part], coarse, slack)
            largest = np.abs(update) + rounded
            total += float(largest @ largest) if draws.power == 2 else float(largest.sum())
            square += float(update @ update)
            lost += float(rounded @ rounded)
        pieces.append(largest[-start % stride :: stride])
    keep = min(keep, sent.size)
    with np.errstate(invalid="ignore", over="ignore"):
        first, rough = _read_entries(sent[:keep], None if received is None else received[:keep], coarse, slack)
        head = Head(first.astype(np.float32), float(np.linalg.norm(rough)))
    ranked = np.concatenate(pieces)
    ranks = [rank_of(share, ranked.size) - 1 for share in SHARES]
    ranked.partition(sorted(set(ranks)))
    at = tuple(float(ranked[rank]) for rank in ranks)
    return ArrayLook(sent.size, total, ranked.size, at, square, lost, head)


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


def rank_of(share: float, size: int) -> int:
    """Return the rank, from 1, of a share of so many entries."""
    return max(1, math.ceil(share * size))


def scale_at_most(array: ArrayLook, draws: Draws, error: float) -> float:
    """Bound the scale of the noise in an array from above.

    Parameters
    ----------
    array
        What it looks like.
    draws
        The kind of noise.
    error
        Probability of each of :data:`TESTS` tests that it is wrong.

    Returns
    -------
    float
        In units of the update.
    """
    bounds: list[float] = [(array.total / draws.least_sum(array.size, error)) ** (1 / draws.power)]
    for share, value in zip(SHARES, array.at, strict=True):
        rank = rank_of(share, array.ranked)
        if rank >= _LEAST_RANK:
            bounds.append(value / draws.least_at(rank, array.ranked, error))
    return min(bounds)
