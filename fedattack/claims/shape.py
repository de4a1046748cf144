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
# The noncentral t distribution is computed for values up to this.
_LARGEST = 1e3

Scores = NDArray[np.float64]


def is_normal(scores: Scores) -> bool:
    """Test skewness and kurtosis (D'Agostino & Pearson, from 20 scores on), and the distribution (Lilliefors)."""
    from scipy import special, stats

    n = len(scores)
    # On few scores this test's own approximation does not hold.
    if n >= _LEAST and stats.normaltest(scores).pvalue < SHAPE_ERROR:
        return False
    fitted = special.ndtr((np.sort(scores) - scores.mean()) / scores.std(ddof=1))
    steps = np.arange(n + 1) / n
    # Both sides of each step of the empirical distribution.
    distance = max(float((steps[1:] - fitted).max()), float((fitted - steps[:-1]).max()))
    return distance * math.sqrt(n) < _LILLIEFORS


def shift_above(left: Scores, right: Scores, error: float) -> float | None:
    """Bound from below by how many deviations of ``right`` a Gaussian ``left`` is above it, whose own may be larger.

    Where it is larger, two Gaussians that are so far apart are told apart more easily at the small δ of a claim than
    two of the same deviation. So the bound is that of the same.

    Parameters and what is returned are as for :func:`shift_at_least`; a smaller deviation is another shape.
    """
    from scipy import stats

    if not np.ptp(left) or not np.ptp(right):
        return None
    n, m = len(left), len(right)
    ratio = float(left.var(ddof=1) / right.var(ddof=1))
    # The logarithm of a ratio of variances is about normal, with variance 2/(n − 1) + 2/(m − 1).
    limit = float(stats.norm.isf(SHAPE_ERROR)) * math.sqrt(2 / (n - 1) + 2 / (m - 1))
    if math.log(ratio) < -limit or not (is_normal(left) and is_normal(right)):
        return None
    # A larger deviation is estimated from few scores, too: so much further away is Student's tail than the normal one.
    wider = (float(stats.t.isf(error, n - 1)) / float(stats.norm.isf(error))) ** 2
    # In deviations of the right side, whose distribution is the null.
    apart = float(left.mean() - right.mean()) / float(right.std(ddof=1))
    return max(0.0, _bound_distance(apart, max(wider * ratio, 1.0) / n + 1 / m, m - 1, error))


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
    # Both deviations are one: the pooled estimate has more degrees of freedom.
    pooled = ((n - 1) * first + (m - 1) * second) / (n + m - 2)
    apart = float(left.mean() - right.mean()) / math.sqrt(pooled)
    return max(0.0, _bound_distance(apart, 1 / n + 1 / m, n + m - 2, error))


def place_at_least(threshold: float, scores: Scores, error: float) -> float | None:
    """Bound from below how many deviations a fixed place is above the mean of a Gaussian; None for another shape."""
    if not np.ptp(scores) or not is_normal(scores):
        return None
    m = len(scores)
    return _bound_distance((threshold - float(scores.mean())) / float(scores.std(ddof=1)), 1 / m, m - 1, error)


def _bound_distance(apart: float, variance: float, freedom: int, error: float) -> float:
    """Bound from below a distance that was measured in an estimated deviation.

    For a distance μ in deviations, the measured one is (μ + √a·Z) / S. Z is standard normal, and a the variance. S² is
    a χ² over its degrees of freedom. So what is measured, over √a, has the noncentral t distribution of μ / √a (Johnson
    & Welch 1940). The bound is the μ at which so much is exceeded as rarely as the error says.
    """
    from scipy import special

    # Beside so large a distance the error of the means is nothing, and a larger one makes the bound no higher.
    scale = max(math.sqrt(variance), abs(apart) / _LARGEST)
    # The noncentral t distribution, solved for its noncentrality: which distance makes this one hardly too large?
    return scale * float(special.nctdtrinc(freedom, 1 - error, apart / scale))
