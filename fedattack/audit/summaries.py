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

SCORE_BINS = 24
"""Classes of equal width into which scores are sorted."""

# Share of all scores that may lie beyond the edges of a histogram, so that a few far away do not hide the others.
_BEYOND = 0.01


def null_of(draws: Sequence[float], n: int) -> Null:
    """Sum up a null's draws: their mean, the interval that holds 95 % of them, and how many targets."""
    low, high = np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    mean = fmean(draws)
    return {"value": mean, "low": min(float(low), mean), "high": max(float(high), mean), "n": n}


def null_rate(successes_per_seed: Sequence[float], n_per_seed: Sequence[int], comparisons: int = 1) -> Null | None:
    """Sum up how often a null succeeded, as :func:`~fedattack.audit.intervals.rate_interval` does.

    ``None`` where a seed has no null targets, or there is no seed.
    """
    if not n_per_seed or not all(n_per_seed):
        return None
    low, high = rate_interval(successes_per_seed, n_per_seed, comparisons=comparisons)
    n = sum(n_per_seed)
    return {"value": sum(successes_per_seed) / n, "low": low, "high": high, "n": n}


def histogram(with_it: NDArray[np.float64], without: NDArray[np.float64]) -> dict[str, Any]:
    """Sort the scores (n,), (m,) of what is sought, and of what is not, into bins that both share.

    There are :data:`SCORE_BINS` of equal width between ``edges``; ``positive`` and ``negative`` count the scores in
    each. A hundredth of all scores may lie beyond the edges, and count in the outermost bins. Empty where a group is,
    or where no score is finite.
    """
    both = np.concatenate([with_it, without])
    finite = both[np.isfinite(both)]
    if not len(finite) or not len(with_it) or not len(without):
        return {}
    low, high = np.quantile(finite, (_BEYOND / 2, 1 - _BEYOND / 2)).tolist()
    if high <= low:
        high = low + 1
    edges = np.linspace(low, high, SCORE_BINS + 1)
    counts = {"edges": edges.tolist()}
    for name, scores in (("positive", with_it), ("negative", without)):
        places = np.searchsorted(edges, scores, side="right") - 1
        counts[name] = np.bincount(places.clip(0, SCORE_BINS - 1), minlength=SCORE_BINS).tolist()
    return counts


def reliability(sure: NDArray[np.float64], right: NDArray[Any]) -> dict[str, Any]:
    """Hold stated confidence (n,) in 0 … 1 against success (n,).

    Returned are mean ``confidence``, ``accuracy`` and ``count`` of each of :data:`BINS` bins that has answers, and the
    expected calibration error ``ece``.
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
