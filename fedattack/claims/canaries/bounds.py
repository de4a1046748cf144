"""Lower bounds on ε from the scores of canaries: of clients against a null that is known, of examples by guesses."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.shape import SHAPE_ERROR, is_normal, place_at_least, shift_above
from fedattack.claims.tester import LEVEL
from fedattack.privacy.gaussian import epsilon_of

Scores = NDArray[np.float64]

# How often each of the two bounds that share the error may be too high.
_ERROR = (1 - LEVEL) / 2

# At which shares of the sorted scores there is a threshold; fixed before any score is seen.
_RANKS = (0.25, 0.5, 0.9)
# The smallest rate of false alarms that is told apart from 0, as a logarithm.
_SMALLEST = -690.0
# So few scores say nothing about their shape, and so few degrees of freedom are no Gaussian.
_FEW = 8
_FREEDOM = 200


def bound_by_ranks(scores: Scores, freedom: int, delta: float) -> float:
    """Bound ε by how often canaries are above a threshold, and how often chance is.

    The threshold is one of the scores themselves, by its rank. Of the distribution that these are draws of, the share
    above it is at least a Beta quantile, whatever the distribution. The share of those who did not take part that is
    above it is known: see :meth:`fedattack.claims.canaries.directions.Products.scores`. So (share − δ) / chance ≤ e^ε.
    The ranks share the error.

    Parameters
    ----------
    scores
        Of the canaries that took part, (n,), taken as independent draws.
    freedom
        Degrees of freedom of the null.
    delta
        δ.
    """
    from scipy import stats

    best = 0.0
    for threshold, least in _list_thresholds(scores, _ERROR):
        if least > delta:
            chance = max(float(stats.t.logsf(threshold, freedom)), _SMALLEST)
            best = max(best, math.log(least - delta) - chance)
    return best


def _list_thresholds(scores: Scores, error: float) -> Iterator[tuple[float, float]]:
    """Yield scores by rank, and what share of their distribution is above them at least."""
    from scipy import stats

    n = len(scores)
    ordered = np.sort(scores)
    for share in _RANKS:
        rank = max(1, math.ceil(share * n))
        yield float(ordered[rank - 1]), float(stats.beta.ppf(error / len(_RANKS), n - rank + 1, rank))


def bound_by_two_samples(inside: Scores, outside: Scores, delta: float) -> float:
    """Bound ε by scores of canaries that were in and of others that were out, of which those out look Gaussian.

    It is the higher of two bounds that share the error. One takes those in as a Gaussian, too. The other takes a
    threshold among them by its rank, as :func:`bound_by_ranks` does, and the tail of the Gaussian of those out.

    Returns
    -------
    float
        −∞ if those out are no Gaussian, or too few to say.
    """
    from scipy import stats

    best = -math.inf
    if min(len(inside), len(outside)) < _FEW:
        return best
    shift = shift_above(inside, outside, _ERROR / 2)
    if shift is not None:
        best = epsilon_of(shift, delta)
    for threshold, least in _list_thresholds(inside, _ERROR / 4):
        # Two statements for each rank: on the share of those in, and on the place of the threshold.
        place = place_at_least(threshold, outside, _ERROR / 4 / len(_RANKS))
        if place is not None:
            best = max(best, 0.0)
            if least > delta:
                best = max(best, math.log(least - delta) - float(stats.norm.logsf(place)))
    return best


def shift_from_null(scores: Scores, freedom: int) -> float | None:
    """Bound from below by how many standard deviations canaries are above the null; None if the shape is another one.

    The null has a variance of 1. Canaries may have a larger one, such as where not all take part in all rounds: then ε
    is higher than that of the shift alone. A smaller one is refused.
    """
    from scipy import stats

    n = len(scores)
    if n < _FEW or freedom < _FREEDOM or not np.ptp(scores):
        return None
    variance = float(scores.var(ddof=1))
    if (n - 1) * variance < stats.chi2.ppf(SHAPE_ERROR, n - 1) or not is_normal(scores):
        return None
    quantile = float(stats.norm.isf(_ERROR)) if variance <= 1 else float(stats.t.isf(_ERROR, n - 1))
    return max(0.0, float(scores.mean()) - quantile * math.sqrt(max(variance, 1.0) / n))


def epsilon_per_round(shift: float, count: int, delta: float) -> float:
    """Return the ε of one of ``count`` rounds that are together told apart by a shift (Dong et al. 2022)."""
    return epsilon_of(shift / math.sqrt(count), delta)


def p_value(coins: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return how likely so many right guesses are at most, if a mechanism is (ε, δ)-DP.

    That is Theorem 5.2 of Steinke et al. (2023).

    Parameters
    ----------
    coins
        Examples that were each included by a fair coin of their own.
    guesses
        On how many of these a guess was made.
    right
        How many of the guesses were right.
    epsilon, delta
        What is tested, for adding or removing one example.
    """
    from scipy import special, stats

    rate = float(special.expit(epsilon))
    usual = float(stats.binom.sf(right - 1, guesses, rate))
    lower = np.arange(1, right + 1)
    # How likely right − i to right − 1 are, in all, for each i.
    near = np.cumsum(stats.binom.pmf(right - lower, guesses, rate))
    most = float((near / lower).max()) if right else 0.0
    return min(1.0, usual + 2 * coins * delta * most)


def bound_by_guesses(coins: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return the largest ε that so many right guesses refute; 0 if they refute none."""
    from scipy import optimize

    def excess(epsilon: float) -> float:
        return p_value(coins, guesses, right, epsilon, delta) - error

    if not guesses or excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))


def count_right_guesses(scores: Scores, included: NDArray[np.bool_], share: float) -> tuple[int, int]:
    """Guess by the extremes: half of so large a share, those with the highest scores, are in, the lowest half are out.

    Returns
    -------
    int, int
        How many guesses there are, and how many of them are right.
    """
    half = max(1, round(share * len(scores) / 2))
    half = min(half, len(scores) // 2)
    order = np.argsort(scores, kind="stable")
    right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
    return 2 * half, right
