"""Whether scores have the shape of a Gaussian, and how far apart two such samples are at least."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The tests of shape fail by accident so rarely.
SHAPE_ERROR = 1e-3
# √n times the largest distance between a Gaussian fitted to Gaussian draws and these: once in a thousand times above.
_LILLIEFORS = 1.24
# D'Agostino & Pearson's test wants that many.
_LEAST = 20

Scores = NDArray[np.float64]


def is_normal(scores: Scores) -> bool:
    """Test skewness and kurtosis (D'Agostino & Pearson, from 20 scores on), and the distribution (Lilliefors)."""
    from scipy import special, stats

    n = len(scores)
    if n >= _LEAST and stats.normaltest(scores).pvalue < SHAPE_ERROR:
        return False
    fitted = special.ndtr((np.sort(scores) - scores.mean()) / scores.std(ddof=1))
    steps = np.arange(n + 1) / n
    distance = max(float((steps[1:] - fitted).max()), float((fitted - steps[:-1]).max()))
    return distance * math.sqrt(n) < _LILLIEFORS


def shift_at_least(left: Scores, right: Scores, error: float) -> float | None:
    """Bound from below how many standard deviations apart two Gaussians of the same variance are.

    Parameters
    ----------
    left, right
        Independent draws of both, (n,) and (m,); ``left`` is the higher one.
    error
        How often the bound may be above the truth.

    Returns
    -------
    float or None
        None if the scores fail a test of the shape, or all are the same.
    """
    from scipy import stats

    if not np.ptp(left) or not np.ptp(right):
        return None
    n, m = len(left), len(right)
    first, second = float(left.var(ddof=1)), float(right.var(ddof=1))
    limit = float(stats.norm.isf(SHAPE_ERROR / 2)) * math.sqrt(2 / (n - 1) + 2 / (m - 1))
    if abs(math.log(first / second)) > limit or not (is_normal(left) and is_normal(right)):
        return None
    pooled = ((n - 1) * first + (m - 1) * second) / (n + m - 2)
    apart = float(left.mean() - right.mean()) / math.sqrt(pooled)
    # (d − μ)² = q²·(1/n + 1/m + μ²/(2(n + m))) for the smaller μ: the standard error is that at μ.
    square = float(stats.norm.isf(error)) ** 2
    a = 1 - square / (2 * (n + m))
    b, c = -2 * apart, apart**2 - square * (1 / n + 1 / m)
    root = (-b - math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a)
    return max(0.0, root)
