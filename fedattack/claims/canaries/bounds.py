"""Lower bounds on ε from the scores of canaries: by their shape, by their ranks, and by guesses of coins.

The bounds of one kind of canaries share the error of 5 % (Bonferroni), so that the highest of them counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

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
# How many guesses are tried, as shares of all coins; fixed before any score is seen, too.
# Few show most of weak canaries, all show most of those that nothing hides, and
# 70 % of strong ones, of which a few in the middle are mistaken.
_GUESSED = (0.1, 0.35, 0.7, 1.0)
# The smallest rate of false alarms that is told apart from 0, as a logarithm.
_SMALLEST = -690.0
# So few scores say nothing about their shape, and so few degrees of freedom are no Gaussian.
_FEW = 8
_FREEDOM = 200


@dataclass(frozen=True)
class KnownNull:
    """Scores of directions that nobody sent: exactly Student's t, with so many degrees of freedom.

    See :meth:`fedattack.claims.canaries.directions.Products.scores`.
    """

    freedom: int

    shape_error: ClassVar[float] = _ERROR
    rank_error: ClassVar[float] = _ERROR

    def is_enough_for(self, count: int) -> bool:
        """Whether so many scores can be held against it: any number, since it is known."""
        # Whatever the degrees of freedom, they are known.
        return True

    def find_shift(self, scores: Scores) -> float | None:
        """Bound from below by how many standard deviations canaries are above the null; None for another shape.

        The null has a variance of 1. Canaries may have a larger one, such as where not all take part in all rounds:
        then ε is higher than that of the shift alone. A smaller one is refused.
        """
        from scipy import stats

        n = len(scores)
        if n < _FEW or self.freedom < _FREEDOM or not np.ptp(scores):
            return None
        variance = float(scores.var(ddof=1))
        # Too small a variance, or another shape, is no Gaussian, and bounds nothing.
        if (n - 1) * variance < stats.chi2.ppf(SHAPE_ERROR, n - 1) or not is_normal(scores):
            return None
        error = self.shape_error
        # A variance of 1 is what the null has; a larger one is estimated, and needs Student's t.
        quantile = float(stats.norm.isf(error)) if variance <= 1 else float(stats.t.isf(error, n - 1))
        return max(0.0, float(scores.mean()) - quantile * math.sqrt(max(variance, 1.0) / n))

    def bound_tail(self, threshold: float) -> float | None:
        """Return the logarithm of how often chance is above a threshold."""
        from scipy import stats

        return max(float(stats.t.logsf(threshold, self.freedom)), _SMALLEST)

    def estimate_shift(self, scores: Scores) -> float:
        """Estimate by how many standard deviations canaries are above the null."""
        return float(scores.mean())


@dataclass(frozen=True)
class SampledNull:
    """Scores (m,) of examples that were left out, which are taken as draws of a Gaussian."""

    outside: Scores

    # Bounds by guesses have the other half of the error. A rank makes two statements: on those in, and on those out.
    shape_error: ClassVar[float] = _ERROR / 2
    rank_error: ClassVar[float] = _ERROR / 4

    def is_enough_for(self, count: int) -> bool:
        """Whether so many scores can be held against it."""
        return min(count, len(self.outside)) >= _FEW

    def find_shift(self, scores: Scores) -> float | None:
        """Bound from below by how many standard deviations canaries are above those out; None for another shape."""
        if not self.is_enough_for(len(scores)):
            return None
        return shift_above(scores, self.outside, self.shape_error)

    def bound_tail(self, threshold: float) -> float | None:
        """Bound the logarithm of how often those out are above a threshold; None if they are no Gaussian."""
        from scipy import stats

        least = place_at_least(threshold, self.outside, self.rank_error / len(_RANKS))
        return None if least is None else float(stats.norm.logsf(least))

    def estimate_shift(self, scores: Scores) -> float:
        """Estimate by how many standard deviations canaries are above those out; 0 if these are too few to say."""
        if min(len(scores), len(self.outside)) < 2 or not np.ptp(self.outside):
            return 0.0
        return float(scores.mean() - self.outside.mean()) / float(self.outside.std(ddof=1))


Null = KnownNull | SampledNull


@dataclass(frozen=True)
class CanaryScores:
    """How clearly each canary is seen in a run.

    Attributes
    ----------
    inside
        Of canaries that took part.
    outside
        Of examples that were left out, or of directions that nobody sent.
    null
        What ``inside`` is held against.
    coins
        Of canary examples: all scores in turn, and which of them a fair coin put in.
    rounds
        Of the record that count.
    cost
        What the canaries cost the model; None if that is not known.
    left_out
        Names of updates that are not finite.
    """

    inside: Scores
    outside: Scores
    null: Null
    coins: tuple[Scores, NDArray[np.bool_]] | None = None
    rounds: int = 1
    cost: Mapping[str, float] | None = None
    left_out: Sequence[str] = ()


def bound_by_shape(scores: Scores, null: Null, delta: float) -> float:
    """Bound ε by how far canaries that took part are above the null, if both look Gaussian; −∞ if they do not."""
    shift = null.find_shift(scores)
    return -math.inf if shift is None else epsilon_of(shift, delta)


def bound_by_ranks(scores: Scores, null: Null, delta: float) -> float:
    """Bound ε by how often canaries are above a threshold, and how often chance is; −∞ if that is not known.

    The threshold is one of the scores themselves, by its rank. The share above it, of the distribution that these are
    drawn from, is at least a Beta quantile, whatever the distribution. So (share − δ) / chance ≤ e^ε. The ranks share
    the error.

    Parameters
    ----------
    scores
        Of the canaries that took part, (n,), taken as independent draws.
    null
        Scores of those that did not.
    delta
        δ.
    """
    best = -math.inf
    if not null.is_enough_for(len(scores)):
        return best
    for threshold, least in _list_thresholds(scores, null.rank_error):
        chance = null.bound_tail(threshold)
        if chance is not None:
            best = max(best, 0.0)
            if least > delta:
                best = max(best, math.log(least - delta) - chance)
    return best


def _list_thresholds(scores: Scores, error: float) -> Iterator[tuple[float, float]]:
    """Yield scores by rank, and what share of their distribution is above them at least."""
    from scipy import stats

    n = len(scores)
    ordered = np.sort(scores)
    for share in _RANKS:
        # The k-th largest score, at least the first.
        rank = max(1, math.ceil(share * n))
        # Clopper-Pearson: above the rank-th of n scores lies at least so much of their distribution.
        yield float(ordered[rank - 1]), float(stats.beta.ppf(error / len(_RANKS), n - rank + 1, rank))


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

    # Theorem 5.2 of Steinke et al. (2023): a guess of an (ε, 0)-DP mechanism is right with e^ε/(1 + e^ε) at most.
    rate = float(special.expit(epsilon))
    usual = float(stats.binom.sf(right - 1, guesses, rate))
    lower = np.arange(1, right + 1)
    # How likely right − i to right − 1 are, in all, for each i.
    near = np.cumsum(stats.binom.pmf(right - lower, guesses, rate))
    most = float((near / lower).max()) if right else 0.0
    # δ adds at most 2 m δ times the largest mean of the probabilities near the count, with m coins.
    return min(1.0, usual + 2 * coins * delta * most)


def bound_by_guesses(coins: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return the largest ε that so many right guesses refute; 0 if they refute none."""
    from scipy import optimize

    def excess(epsilon: float) -> float:
        return p_value(coins, guesses, right, epsilon, delta) - error

    if not guesses or excess(0.0) >= 0:
        return 0.0
    high = 1.0
    # excess grows with ε: doubling finds an upper end for the root.
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
    # Guessed in: the highest scores; guessed out: the lowest.
    right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
    return 2 * half, right


def bound_by_extremes(scores: Scores, included: NDArray[np.bool_], delta: float) -> tuple[float, float]:
    """Bound ε by guesses from the extremes of the scores, under Theorem 5.2 of Steinke et al. (2023).

    The theorem bounds how often so many guesses are right, if the run is (ε, δ)-DP and coins are fair. Several numbers
    of guesses share half of the error (Bonferroni); the bound by shape has the other half.

    Returns
    -------
    float, float
        The bound, and the highest one that so many coins could show.
    """
    bound, ceiling = 0.0, 0.0
    error = _ERROR / len(_GUESSED)
    for share in _GUESSED:
        guesses, right = count_right_guesses(scores, included, share)
        bound = max(bound, bound_by_guesses(len(scores), guesses, right, delta, error))
        # What all guesses being right would show: more is not to be had from so many coins.
        ceiling = max(ceiling, bound_by_guesses(len(scores), guesses, guesses, delta, error))
    return bound, ceiling
