"""What the runs at hand tell of runs like them: a mean over runs that differ, from a handful of them.

Both functions here integrate over how much runs may differ. That is what two or three runs cannot tell by themselves.
The prior of the standard deviation between runs is the positive half of Student's t with three degrees of freedom:
three quarters of its mass are below 1.4 scales, and its tail is heavy, so that runs that differ more are believed
(Gelman 2006, "Prior distributions for variance parameters in hierarchical models", Bayesian Analysis 1). The study in
``tests/benchmarks/calibration`` measures how often the intervals hold. The scales expect standard deviations of a
rate up to 0.1. Where runs differ by more, the intervals hold less often than stated.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betaln, gammaln
from scipy.stats import norm

Floats = NDArray[np.float64]

RATE_SCALE = 0.1
"""Scale of the prior of the standard deviation between the rates of runs; half of the prior is below 0.076."""

_MEANS = 120
# Standard deviation between runs, as a share of the largest that the mean rate allows: sqrt(mean (1 - mean)).
# The cell of the last ends at 1.
_SHARES = np.geomspace(0.003, 0.89, 26)
_STEP = math.log(_SHARES[1] / _SHARES[0])


def mean_rate(successes: Floats, n: Floats, level: float, scale: float = RATE_SCALE) -> tuple[float, float]:
    """Return the central credible interval of the mean rate over runs like these.

    The model: a run's rate is drawn from a beta distribution, and its successes (runs,), whole or fractional, of n
    (runs,) from a binomial at that rate. The mean of the beta has Jeffreys' prior, its standard deviation half of a t
    of this scale. The posterior is summed on a grid.
    """
    # arcsin(sqrt) spreads the mean so that Jeffreys' prior is flat.
    angles, widths = _angles(successes.sum(), n.sum())
    means = np.sin(angles) ** 2
    # (means, shares): the standard deviation between runs for each mean.
    sd = np.sqrt(means * (1 - means))[:, None] * _SHARES
    prior = sd * _half_t(sd / scale)  # one factor sd, as the shares are evenly spaced by their logarithm
    # All of the prior that is below the smallest share, where it is even.
    prior[:, 0] *= 1 / _STEP + 0.5
    prior /= prior.sum(axis=1, keepdims=True)
    # Shifted by the largest before `exp`, so that nothing underflows to 0 everywhere.
    logs = _log_likelihood(means, successes, n)
    posterior = (np.exp(logs - logs.max()) * prior).sum(axis=1) * widths
    # The posterior's distribution function at the edges of the cells.
    below = np.concatenate([[0.0], np.cumsum(posterior)]) / posterior.sum()
    edges = np.concatenate([[0.0], np.cumsum(widths)])
    ends = np.interp([(1 - level) / 2, (1 + level) / 2], below, edges)
    low, high = np.sin(np.minimum(ends, math.pi / 2)) ** 2
    return float(low), float(high)


def _half_t(ratio: Floats) -> Floats:
    """Return the density of the prior, but for a constant, at a ratio of standard deviation to scale."""
    # Student's t with three degrees of freedom: half of it is below 0.76 scales.
    return np.asarray((1 + ratio**2 / 3) ** -2)


def _angles(successes: float, n: float) -> tuple[Floats, Floats]:
    """Return points and widths of cells for arcsin(sqrt(mean)), on which Jeffreys' prior is even.

    Cells are narrow around the pooled rate, and grow with the distance from it.
    """
    centre = math.asin(math.sqrt((successes + 0.5) / (n + 1)))
    # The standard error of arcsin(sqrt(rate)): 1/(2 √n), whatever the rate.
    unit = 0.5 / math.sqrt(n + 1)
    # sinh spaces the edges closely about the centre, and widely far from it.
    edges = np.linspace(math.asinh(-centre / unit), math.asinh((math.pi / 2 - centre) / unit), _MEANS + 1)
    edges = centre + unit * np.sinh(edges)
    edges[0], edges[-1] = 0.0, math.pi / 2
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


def _log_likelihood(means: Floats, successes: Floats, n: Floats) -> Floats:
    """Return the log of the beta-binomial likelihood, (means, shares), but for a constant."""
    # A beta distribution with variance s² m (1 − m) has parameters that sum up to 1/s² − 1.
    total = 1 / _SHARES**2 - 1
    yes, no = means[:, None] * total, (1 - means)[:, None] * total
    logs = np.zeros_like(yes)
    # Runs with the same counts are computed once.
    pairs, counts = np.unique(np.stack([successes, n], axis=1), axis=0, return_counts=True)
    for (hits, size), count in zip(pairs, counts, strict=True):
        # The likelihood of each run: B(yes + hits, no + misses) / B(yes, no); the denominator follows below.
        logs += count * (gammaln(yes + hits) + gammaln(no + size - hits) - gammaln(total + size))
    return np.asarray(logs - len(n) * betaln(yes, no))


def mean_value(values: Floats, errors: Floats, scale: float, level: float) -> tuple[float, float]:
    """Return the central credible interval of the mean of a quantity over runs like these.

    The model: a run's own value is normal around the mean, and was measured (runs,), at least twice, with a normal
    error (runs,) above 0. The mean has a flat prior, the standard deviation between runs half of a t of this scale,
    which is in the values' units.
    """
    widest = max(scale, float(np.ptp(values)))
    # From no difference at all to one far beyond what the values show.
    sds = np.geomspace(1e-3 * float(errors.min()), 1e3 * widest, 200)
    # (sds, runs): the precision of each value about the mean, given how much runs differ.
    weights = 1 / (sds[:, None] ** 2 + errors**2)
    totals = weights.sum(axis=1)
    centres = (weights * values).sum(axis=1) / totals
    # The mean is integrated out under a flat prior: that leaves half the logarithm of its variance.
    logs = 0.5 * (np.log(weights).sum(axis=1) - np.log(totals))
    logs -= 0.5 * (weights * (values - centres[:, None]) ** 2).sum(axis=1)
    # Points are spaced evenly by their logarithm, so that each stands for a width in proportion to itself.
    shares = np.exp(logs - logs.max()) * sds * _half_t(sds / scale)
    shares /= shares.sum()
    spreads = totals**-0.5

    # The posterior is a mixture of normal distributions, one for each standard deviation between runs.
    def excess(end: float, tail: float) -> float:
        return float((shares * norm.cdf((end - centres) / spreads)).sum()) - tail

    # brentq needs ends with opposite signs: 40 standard deviations hold all that a float can show.
    reach = 40 * float(spreads.max())
    edges = float(centres.min()) - reach, float(centres.max()) + reach
    low = brentq(excess, *edges, args=((1 - level) / 2,))
    high = brentq(excess, *edges, args=((1 + level) / 2,))
    return float(low), float(high)
