"""Gradient sparsification (Lin et al. 2017; as a defence Zhu et al. 2019): small entries of the update are set to 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.defences.base import Batch, DefenceKind, Settings, Update, as_float32, number


@dataclass(frozen=True)
class Sparsify:
    """Keeps the entries of an update whose magnitude is above a percentile, and sets the others to 0.

    The percentile is that of all entries together, so that the layers may be kept in different shares. Of d entries
    exactly round(share · d) are set to 0, also where several are of the same magnitude.

    Parameters
    ----------
    share
        Of the entries that are set to 0, in [0, 1]; 0.9 is the 90th percentile.
    """

    share: float
    name = "sparsify"
    needs_batch = False

    def apply(
        self, update: Update, rng: np.random.Generator, batch: Batch | None = None
    ) -> dict[str, NDArray[np.float32]]:
        """Return the sparse update; nothing is random."""
        kept = as_float32(update)
        sizes = [array.size for array in kept.values()]
        pruned = round(self.share * sum(sizes))
        if not pruned:
            return kept
        flat = np.concatenate([array.ravel() for array in kept.values()])
        smallest = np.argpartition(np.abs(flat), pruned - 1)[:pruned]
        flat[smallest] = 0
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        for (name, array), part in zip(kept.items(), parts, strict=True):
            kept[name] = part.reshape(array.shape)
        return kept


def make(settings: Settings) -> Sparsify:
    """Read ``defence-strength``, the share."""
    return Sparsify(number(settings, "defence-strength", high=1.0))


KIND = DefenceKind("sparsify", make)
