"""Confidence intervals for rates, for medians, and for means over seeds."""

import math
from collections.abc import Sequence
from itertools import chain
from operator import truediv
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedattack.errors import ConfigError, DataError

LEVEL = 0.95
"""Confidence level of every interval in a report, before it is corrected for comparisons."""


def clopper_pearson(successes: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper-Pearson interval of a success rate.

    The limits are quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k). They exist for every real k in [0, n], so a
    fractional count needs no rounding: a tie between m candidates, of which one is right, counts 1/m. For a whole k
    this is the textbook interval; in between, both ends move continuously and monotonically. A credit in [0, 1] has
    at most the variance of a yes-or-no credit of the same mean, so the interval stays conservative.

    Parameters
    ----------
    successes
        Sum of the credits, in [0, n]; whole or fractional.
    n
        Number of trials, at least 1.
    level
        Two-sided confidence level, in (0, 1).

    Returns
    -------
    tuple of float
        Lower and upper end, in [0, 1].

    Raises
    ------
    DataError
        If there is no trial, or the successes are not in [0, n].
    ConfigError
        If the level is not in (0, 1).

    References
    ----------
    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika 26 (1934).
    """
    _check_level(level)
    if n < 1:
        raise DataError(f"clopper_pearson: n is {n}; expected at least 1 trial; pass the number of targets")
    if not 0 <= successes <= n:
        raise DataError(
            f"clopper_pearson: successes is {successes}; expected 0 to n = {n}; sum the credits of the same targets"
        )
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, successes, n - successes + 1)) if successes > 0 else 0.0
    high = float(stats.beta.isf(tail, successes + 1, n - successes)) if successes < n else 1.0
    return low, high


def t_interval(
    values: Sequence[float], level: float = LEVEL, bounds: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Student-t interval of the mean of one value per seed.

    Parameters
    ----------
    values
        One value per seed, at least two.
    level
        Two-sided confidence level, in (0, 1).
    bounds
        Range that the quantity cannot leave, such as (0, 1) for a rate; the interval is clipped to it.

    Returns
    -------
    tuple of float
        Lower and upper end, in the values' units.

    Raises
    ------
    DataError
        If there are fewer than two values, or one is not finite.
    ConfigError
        If the level is not in (0, 1).
    """
    _check_level(level)
    n = len(values)
    if n < 2:
        raise DataError(
            f"t_interval: got {n} value(s); expected at least 2, because one seed says nothing about the spread over "
            "seeds; run more seeds"
        )
    if not all(map(math.isfinite, values)):
        raise DataError("t_interval: a value is not finite; expected one finite number per seed; look at the scores")
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stats.t.isf((1 - level) / 2, n - 1)) * spread / math.sqrt(n)
    low, high = mean - half, mean + half
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return low, high


def rate_interval(
    successes_per_seed: Sequence[float], n_per_seed: Sequence[int], level: float = LEVEL, comparisons: int = 1
) -> tuple[float, float]:
    """Interval of a success rate measured in one or several seeded runs.

    One seed: Clopper-Pearson over its targets. This speaks about this one run, whose models are given.

    Several seeds: at each end the wider of the pooled Clopper-Pearson interval and the t interval over the seeds'
    rates. The targets of one run are attacked through the same models, so they succeed or fail together and the pooled
    binomial alone is too narrow; the t interval sees the spread between runs but, from few seeds that agree by
    accident, can come out narrower than the targets allow.

    Choosing the best of several rounds, clients or thresholds after seeing them inflates the rate. `comparisons` says
    how many there were to choose from; the error probability is divided by it (Bonferroni), so that all of them
    hold at once with probability `level`.

    Parameters
    ----------
    successes_per_seed
        Sum of the credits in each seed; fractional where ties are split (see :func:`clopper_pearson`).
    n_per_seed
        Number of targets in each seed.
    level
        Two-sided confidence level, in (0, 1), before the correction.
    comparisons
        Number of candidates among which this rate was chosen; 1 if it was fixed in advance.

    Returns
    -------
    tuple of float
        Lower and upper end, in [0, 1].

    Raises
    ------
    DataError
        If there is no seed, the two sequences differ in length, or a count is out of range.
    ConfigError
        If the level is not in (0, 1) or `comparisons` is below 1.
    """
    _check_level(level)
    if comparisons < 1:
        raise ConfigError(f"rate_interval: comparisons is {comparisons}; expected at least 1; 1 means no choice")
    if len(successes_per_seed) != len(n_per_seed) or not n_per_seed:
        raise DataError(
            f"rate_interval: got {len(successes_per_seed)} success counts and {len(n_per_seed)} target counts; "
            "expected one of each for every seed, and at least one seed"
        )
    corrected = 1 - (1 - level) / comparisons
    per_seed = list(zip(successes_per_seed, n_per_seed, strict=True))
    for successes, n in per_seed:
        if n < 1 or not 0 <= successes <= n:
            raise DataError(
                f"rate_interval: a seed has {successes} successes of {n} targets; expected at least 1 target and "
                "successes between 0 and their number"
            )
    # Sums of fractional credits can end a rounding error above n.
    total = sum(n_per_seed)
    low, high = clopper_pearson(min(math.fsum(successes_per_seed), total), total, corrected)
    if len(per_seed) == 1:
        return low, high
    over_seeds = t_interval(list(map(truediv, successes_per_seed, n_per_seed)), corrected, bounds=(0.0, 1.0))
    return min(low, over_seeds[0]), max(high, over_seeds[1])


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a number between 0 and 1, such as 0.95")


def paired_interval(
    only_first: Sequence[int], only_second: Sequence[int], n_per_seed: Sequence[int], level: float = LEVEL
) -> tuple[float, float]:
    """Interval of the difference of two success rates on the same targets, in one or several seeded runs.

    One seed: Tango's score interval over its targets, which, like McNemar's test, looks at the targets on which the two
    disagree, and which also holds where there are few or none of them.

    Several seeds: at each end the wider of the pooled score interval and the t interval over the seeds' differences,
    for the reasons given at :func:`rate_interval`.

    Parameters
    ----------
    only_first, only_second
        Targets in each seed on which the first alone, and the second alone, succeeded.
    n_per_seed
        Number of targets in each seed.
    level
        Two-sided confidence level, in (0, 1).

    Returns
    -------
    tuple of float
        Lower and upper end of first minus second, in [−1, 1].

    Raises
    ------
    DataError
        If there is no seed, the sequences differ in length, or a count is out of range.
    ConfigError
        If the level is not in (0, 1).

    References
    ----------
    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17 (1998).
    """
    _check_level(level)
    seeds = list(zip(only_first, only_second, n_per_seed, strict=False))
    if not seeds or not len(only_first) == len(only_second) == len(n_per_seed):
        raise DataError("paired_interval: expected two counts and a number of targets for each seed, and a seed")
    for first, second, n in seeds:
        if n < 1 or min(first, second) < 0 or first + second > n:
            raise DataError(
                f"paired_interval: {first} and {second} successes of one alone do not fit into {n} targets; expected "
                "counts of disjoint targets"
            )
    low, high = _tango(sum(only_first), sum(only_second), sum(n_per_seed), level)
    if len(seeds) == 1:
        return low, high
    over_seeds = t_interval([(first - second) / n for first, second, n in seeds], level, bounds=(-1.0, 1.0))
    return min(low, over_seeds[0]), max(high, over_seeds[1])


def _tango(b: int, c: int, n: int, level: float) -> tuple[float, float]:
    """Invert the score test of p12 − p21 = δ, with b and c counts of discordant pairs."""
    z = float(stats.norm.isf((1 - level) / 2))

    def score(delta: float) -> float:
        # The likeliest p21 under the hypothesis, a root of a quadratic equation.
        middle = -b - c + (2 * n - b + c) * delta
        root = math.sqrt(max(middle**2 + 8 * n * c * delta * (1 - delta), 0.0))
        p21 = max((root - middle) / (4 * n), 0.0)
        variance = n * (2 * p21 + delta * (1 - delta))
        return math.inf if variance <= 0 else (b - c - n * delta) / math.sqrt(variance)

    estimate, edge = (b - c) / n, 1e-9
    ends = []
    for side, sign in ((-1.0, 1.0), (1.0, -1.0)):
        # The score falls from plus to minus infinity as δ rises, so that one bisection finds each end.
        inner, outer = estimate, side
        for _ in range(200):
            middle = (inner + outer) / 2
            inner, outer = (middle, outer) if sign * score(middle) < z else (inner, middle)
            if abs(outer - inner) < edge:
                break
        ends.append(outer if abs(outer) == 1 else (inner + outer) / 2)
    return min(ends[0], estimate), max(ends[1], estimate)


def median_interval(
    values_per_seed: Sequence[Sequence[float] | NDArray[np.float64]], level: float = LEVEL
) -> tuple[float, float] | tuple[None, None]:
    """Interval of a median over the targets of one or several seeded runs.

    One seed: between two order statistics, of which the k-th lowest and the k-th highest enclose the median with at
    least the level, whatever the distribution (k from the binomial with probability one half).

    Several seeds: at each end the wider of the pooled interval and the t interval over the seeds' medians, for the
    reasons given at :func:`rate_interval`.

    Parameters
    ----------
    values_per_seed
        The targets' values, for each seed.
    level
        Two-sided confidence level, in (0, 1).

    Returns
    -------
    tuple
        Both ends; ``None`` where there are too few values for the level, fewer than six at 95%.
    """
    _check_level(level)
    pooled = sorted(chain.from_iterable(values_per_seed))
    rank = int(stats.binom.ppf((1 - level) / 2, len(pooled), 0.5)) if pooled else 0
    if rank < 1:
        return None, None
    low, high = float(pooled[rank - 1]), float(pooled[-rank])
    if len(values_per_seed) > 1:
        seeds = t_interval(list(map(median, values_per_seed)), level)
        low, high = min(low, seeds[0]), max(high, seeds[1])
    return low, high
