"""What the judges of different attacks sum up alike: the spread of a null's draws, and how well confidence is kept."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import Null
from fedattack.audit.intervals import LEVEL

BINS = 10
"""Classes of equal width into which confidence is sorted."""


def null_of(draws: Sequence[float], n: int, level: float = LEVEL) -> Null:
    """Sum up a null's draws: their mean, the interval that holds the share ``level`` of them, and how many targets."""
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2))
    mean = fmean(draws)
    return {"value": mean, "low": min(float(low), mean), "high": max(float(high), mean), "n": n}


def reliability(sure: NDArray[np.float64], right: NDArray[Any]) -> dict[str, Any]:
    """Hold stated confidence against success.

    Parameters
    ----------
    sure
        (n,): how sure each answer was, in 0 … 1.
    right
        (n,): whether it was right, or which part of it was.

    Returns
    -------
    dict
        Mean ``confidence``, ``accuracy`` and ``count`` of each of :data:`BINS` bins that has answers, and the expected
        calibration error ``ece``.
    """
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    confidence, accuracy, count = [], [], []
    for index in np.unique(bins):
        inside = bins == index
        confidence.append(float(sure[inside].mean()))
        accuracy.append(float(right[inside].mean()))
        count.append(int(inside.sum()))
    error = 0.0
    for size, stated, correct in zip(count, confidence, accuracy, strict=True):
        error += size * abs(stated - correct)
    return {"confidence": confidence, "accuracy": accuracy, "count": count, "ece": error / len(sure)}
