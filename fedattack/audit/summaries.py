"""What the judges of different attacks sum up alike: nulls, of draws or of counts, and how well confidence is kept."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import Null
from fedattack.audit.intervals import LEVEL, rate_interval

BINS = 10
"""Classes of equal width into which confidence is sorted."""


def null_of(draws: Sequence[float], n: int, level: float = LEVEL) -> Null:
    """Sum up a null's draws: their mean, the interval that holds the share ``level`` of them, and how many targets."""
    low, high = np.quantile(draws, ((1 - level) / 2, (1 + level) / 2))
    mean = fmean(draws)
    return {"value": mean, "low": min(float(low), mean), "high": max(float(high), mean), "n": n}


def null_rate(successes_per_seed: Sequence[float], n_per_seed: Sequence[int], comparisons: int = 1) -> Null | None:
    """Sum up how often a null succeeded, as :func:`~fedattack.audit.intervals.rate_interval` does.

    Returns
    -------
    Null or None
        ``None`` where a seed has no null targets, or there is no seed.
    """
    if not n_per_seed or not all(n_per_seed):
        return None
    low, high = rate_interval(successes_per_seed, n_per_seed, comparisons=comparisons)
    n = sum(n_per_seed)
    return {"value": sum(successes_per_seed) / n, "low": low, "high": high, "n": n}


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
