"""Gradient sparsification (Lin et al. 2017; as a defence Zhu et al. 2019): small entries of the update are set to 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.defences.base import Batch, DefenceKind, Settings, Update, as_float32, in_parts, number

# How many numbers half of the bits of a float32 can be.
_HALF = 2**16


@dataclass(frozen=True)
class Sparsify:
    """Keeps the entries of an update whose magnitude is above a percentile, and sets the others to 0.

    The percentile is that of all entries together, so layers may keep different shares. Exactly round(share · d) of d
    entries are set to 0, the first ones among entries of equal magnitude.

    Parameters
    ----------
    share
        Share of the entries that are set to 0, in [0, 1]; 0.9 is the 90th percentile.
    """

    share: float
    name = "sparsify"
    needs_batch = False

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return the sparse update; nothing is random."""
        kept = as_float32(update)
        pruned = round(self.share * sum([array.size for array in kept.values()]))
        if not pruned:
            return kept
        largest, alike = _largest_pruned([*kept.values()], pruned)
        for array in kept.values():
            for _, values in in_parts(array):
                bits = _magnitudes(values)
                # Among equals the first ones go, as many as are left to prune.
                ties = np.flatnonzero(bits == largest)[:alike]
                alike -= len(ties)
                values[bits < largest] = 0
                values[ties] = 0
        return kept


def _largest_pruned(arrays: Sequence[NDArray[np.float32]], pruned: int) -> tuple[int, int]:
    """Return the largest magnitude among the ``pruned`` smallest, and how many of these have it.

    Magnitudes are counted twice: by the upper half of their bits, and those of the right upper half by the lower one.
    """
    upper, lower = np.zeros(_HALF, dtype=np.int64), np.zeros(_HALF, dtype=np.int64)
    for array in arrays:
        for _, values in in_parts(array):
            # A radix selection: the upper 16 bits first, which bincount can count, and the lower 16 bits below.
            upper += np.bincount(_magnitudes(values) >> 16, minlength=_HALF)
    high, left = _place(upper, pruned)
    for array in arrays:
        for _, values in in_parts(array):
            bits = _magnitudes(values)
            lower += np.bincount(bits[bits >> 16 == high] & (_HALF - 1), minlength=_HALF)
    low, alike = _place(lower, left)
    return high * _HALF + low, alike


def _place(counts: NDArray[np.int64], rank: int) -> tuple[int, int]:
    """Return where the entry of a rank, from 1, is among counted ones; and its rank there."""
    reached = counts.cumsum()
    index = int(np.searchsorted(reached, rank))
    return index, rank - int(reached[index] - counts[index])


def _magnitudes(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return whole numbers that are ordered as magnitudes are: their bits."""
    # Bits of positive floats are ordered as the floats are.
    return np.abs(values).view(np.uint32)


def make(settings: Settings) -> Sparsify:
    """Read ``defence-strength``, the share."""
    return Sparsify(number(settings, "defence-strength", high=1.0))


KIND = DefenceKind("sparsify", make, strength="share that is pruned, up to 1")
