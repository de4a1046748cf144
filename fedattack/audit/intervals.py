"""Confidence intervals for rates and for means over seeds."""

import math
from collections.abc import Sequence

from scipy import stats

from fedattack.errors import ConfigError, DataError


def clopper_pearson(successes: float, n: int, level: float = 0.95) -> tuple[float, float]:
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
    values: Sequence[float], level: float = 0.95, bounds: tuple[float, float] | None = None
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
    if not all(math.isfinite(value) for value in values):
        raise DataError("t_interval: a value is not finite; expected one finite number per seed; look at the scores")
    mean = math.fsum(values) / n
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stats.t.isf((1 - level) / 2, n - 1)) * spread / math.sqrt(n)
    low, high = mean - half, mean + half
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return low, high


def rate_interval(
    successes_per_seed: Sequence[float], n_per_seed: Sequence[int], level: float = 0.95, comparisons: int = 1
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
    over_seeds = t_interval([successes / n for successes, n in per_seed], corrected, bounds=(0.0, 1.0))
    return min(low, over_seeds[0]), max(high, over_seeds[1])


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a number between 0 and 1, such as 0.95")
