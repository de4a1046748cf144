"""Confidence intervals for rates, for medians, and for means over seeds."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedattack.audit.over_runs import RATE_SCALE, mean_rate, mean_value
from fedattack.base.errors import ConfigError, DataError

LEVEL = 0.95
"""Confidence level of every interval in a report, before it is corrected for comparisons."""


def clopper_pearson(successes: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Clopper-Pearson interval of a success rate, in [0, 1].

    The limits are quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k), which exist for every real k in [0, n]: a tie
    between m candidates, of which one is right, counts 1/m. A credit in [0, 1] has at most the variance of a yes-or-no
    credit of the same mean, so the interval stays conservative.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika
    26 (1934).

    Raises
    ------
    DataError
        If there is no trial, or the successes are not in [0, n].
    ConfigError
        If the level is not in (0, 1).
    """
    _check_level(level)
    if n < 1:
        raise DataError(f"clopper_pearson: n is {n}; expected at least 1 trial; pass the number of targets")
    if not 0 <= successes <= n:
        raise DataError(
            f"clopper_pearson: successes is {successes}; expected 0 to n = {n}; sum the credits of the same targets"
        )
    tail = (1 - level) / 2
    low, high = 0.0, 1.0
    if successes > 0:
        # Without a success the lower end is 0: the beta distribution is then not defined.
        low = float(stats.beta.ppf(tail, successes, n - successes + 1))
    if successes < n:
        # isf of the tail is more exact than ppf of 1 − tail.
        high = float(stats.beta.isf(tail, successes + 1, n - successes))
    return low, high


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; expected a number between 0 and 1, such as 0.95")


def t_interval(
    values: Sequence[float], level: float = LEVEL, bounds: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Student-t interval of the mean of one value per seed, at least two, clipped to `bounds`.

    From two or three seeds it is wide, and near a bound it misses the mean more often than stated.

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
    # fsum has no rounding error that grows with the number of seeds.
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stats.t.isf((1 - level) / 2, n - 1)) * spread / math.sqrt(n)
    low, high = mean - half, mean + half
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return low, high


def these_runs(successes_per_seed: Sequence[float], n_per_seed: Sequence[int]) -> tuple[float, float]:
    """Interval of a success rate given the models of these very runs, in [0, 1].

    Clopper-Pearson over the targets of all runs. It says nothing of other runs: see :func:`rate_interval`.

    Raises
    ------
    DataError
        If there is no seed, the two sequences differ in length, or a count is out of range.
    """
    _check_counts("these_runs", successes_per_seed, n_per_seed)
    return _pool(successes_per_seed, n_per_seed, LEVEL)


def here_of(successes_per_seed: Sequence[float], n_per_seed: Sequence[int]) -> tuple[float, float] | None:
    """Return :func:`these_runs` where there are several, since one run's interval is that of :func:`rate_interval`."""
    if len(n_per_seed) < 2:
        return None
    return these_runs(successes_per_seed, n_per_seed)


def rate_interval(
    successes_per_seed: Sequence[float], n_per_seed: Sequence[int], comparisons: int = 1
) -> tuple[float, float]:
    """Interval of the mean success rate over runs like these, in [0, 1].

    One seed: :func:`these_runs`, because one run says nothing of how much runs differ.

    Several seeds: the targets of one run are attacked through the same models, so they succeed or fail together. A
    hierarchical model has a rate for each run, and a prior on how much the rates differ
    (:func:`fedattack.audit.over_runs.mean_rate`). The interval is never narrower than :func:`these_runs`.

    The study in ``tests/benchmarks/calibration`` measures how often it holds the mean rate, for standard deviations
    between runs up to 0.1. It is too narrow where runs are of two kinds and all of these are of one.

    Choosing the best of several rounds, clients or thresholds after seeing them inflates the rate. The error
    probability is divided by the number of `comparisons` (Bonferroni), so that all of them hold at once.

    Raises
    ------
    DataError
        As :func:`these_runs`.
    ConfigError
        If `comparisons` is below 1.
    """
    _check_counts("rate_interval", successes_per_seed, n_per_seed)
    if comparisons < 1:
        raise ConfigError(f"rate_interval: comparisons is {comparisons}; expected at least 1; 1 means no choice")
    # Bonferroni: each of so many intervals has its share of the error.
    corrected = 1 - (1 - LEVEL) / comparisons
    low, high = _pool(successes_per_seed, n_per_seed, corrected)
    if len(n_per_seed) == 1:
        return low, high
    over_runs = mean_rate(np.asarray(successes_per_seed, float), np.asarray(n_per_seed, float), corrected)
    # The wider of both at each end: few runs tell little of how much runs differ.
    return min(low, over_runs[0]), max(high, over_runs[1])


def _check_counts(name: str, successes: Sequence[float], sizes: Sequence[int]) -> None:
    if len(successes) != len(sizes) or not len(sizes):
        raise DataError(
            f"{name}: got {len(successes)} success counts and {len(sizes)} target counts; "
            "expected one of each for every seed, and at least one seed"
        )
    for hits, n in zip(successes, sizes, strict=True):
        if n < 1 or not 0 <= hits <= n:
            raise DataError(
                f"{name}: a seed has {hits} successes of {n} targets; expected at least 1 target and "
                "successes between 0 and their number"
            )


def _pool(successes: Sequence[float], sizes: Sequence[int], level: float) -> tuple[float, float]:
    # Sums of fractional credits can end a rounding error above n.
    total = sum(sizes)
    return clopper_pearson(min(math.fsum(successes), total), total, level)


def mean_interval(
    values: Sequence[float], these: tuple[float, float], bounds: tuple[float, float] = (0.0, 1.0)
) -> tuple[float, float]:
    """Interval of the mean over runs like these of a bounded statistic, such as an AUC, a TPR or a difference of rates.

    `values` has one for each seed; `these` is the interval given these runs, such as DeLong's over all seeds' scores.
    It says how much the statistic varies within a run: as much as a rate of so many targets that Wilson's interval is
    as wide. The rest is the model of :func:`rate_interval`, with the same share of these targets in each run. The
    interval is never narrower than `these`; for one seed it is `these`.

    Raises
    ------
    DataError
        If there is no seed, or a value or an end of `these` is not within the bounds.
    """
    least, most = bounds
    given = [*values, *these]
    if not len(values) or not all(least <= value <= most for value in given) or these[0] > these[1]:
        raise DataError(
            f"mean_interval: got the values {list(values)} and the interval {these}; expected one value per seed, and "
            f"the interval's lower and upper end, all from {least} to {most}; look at the scores, or state the bounds"
        )
    if len(values) == 1:
        return these
    # Onto [0, 1], where the model of rates holds.
    rates = (np.asarray(values, float) - least) / (most - least)
    width = (these[1] - these[0]) / (most - least)
    # The precision that the interval has, in numbers of targets, shared evenly among the runs.
    n = np.full(len(rates), max(_wilson_n(float(rates.mean()), width) / len(rates), 1.0))
    low, high = mean_rate(rates * n, n, LEVEL, RATE_SCALE / (most - least))
    return min(these[0], least + low * (most - least)), max(these[1], least + high * (most - least))


def _wilson_n(rate: float, width: float) -> float:
    """Return of how many targets a rate has a Wilson interval of that width, by solving for n."""
    z2 = float(stats.norm.isf((1 - LEVEL) / 2)) ** 2
    variance, width = rate * (1 - rate), max(width, 1e-4)
    middle = 2 * z2 * variance
    root = math.sqrt(max(middle**2 + width**2 * z2 * (z2 - 4 * z2 * variance), 0.0))
    return (middle + root) / width**2 - z2


def paired_interval(
    only_first: Sequence[int], only_second: Sequence[int], n_per_seed: Sequence[int]
) -> tuple[float, float]:
    """Interval in [−1, 1] of the difference of two success rates on the same targets, in one or several seeded runs.

    Counted are, for each seed, the targets on which the first alone, and the second alone, succeeded. One seed: Tango's
    score interval over its targets. Several seeds: the mean difference over runs like these, by :func:`mean_interval`.

    Tango, "Equivalence test and confidence interval for the difference in proportions for the paired-sample design",
    Statistics in Medicine 17 (1998).

    Raises
    ------
    DataError
        If there is no seed, the sequences differ in length, or a count is out of range.
    """
    seeds = list(zip(only_first, only_second, n_per_seed, strict=False))
    if not seeds or not len(only_first) == len(only_second) == len(n_per_seed):
        raise DataError("paired_interval: expected two counts and a number of targets for each seed, and a seed")
    for first, second, n in seeds:
        if n < 1 or min(first, second) < 0 or first + second > n:
            raise DataError(
                f"paired_interval: {first} and {second} successes of one alone do not fit into {n} targets; expected "
                "counts of disjoint targets"
            )
    low, high = _tango(sum(only_first), sum(only_second), sum(n_per_seed))
    if len(seeds) == 1:
        return low, high
    return mean_interval([(first - second) / n for first, second, n in seeds], (low, high), bounds=(-1.0, 1.0))


def _tango(b: int, c: int, n: int) -> tuple[float, float]:
    """Invert the score test of p12 − p21 = δ, with b and c counts of discordant pairs."""
    z = float(stats.norm.isf((1 - LEVEL) / 2))

    def score(delta: float) -> float:
        # The likeliest p21 under the hypothesis, a root of a quadratic equation.
        middle = -b - c + (2 * n - b + c) * delta
        root = math.sqrt(max(middle**2 + 8 * n * c * delta * (1 - delta), 0.0))
        p21 = max((root - middle) / (4 * n), 0.0)
        variance = n * (2 * p21 + delta * (1 - delta))
        # No variance is left at the ends, δ = ±1: these are excluded.
        if variance <= 0:
            return math.inf
        return (b - c - n * delta) / math.sqrt(variance)

    estimate, edge = (b - c) / n, 1e-9
    ends = []
    for side, sign in ((-1.0, 1.0), (1.0, -1.0)):
        # The score falls from plus to minus infinity as δ rises, so that one bisection finds each end.
        inner, outer = estimate, side
        for _ in range(200):
            middle = (inner + outer) / 2
            if sign * score(middle) < z:
                inner = middle
            else:
                outer = middle
            if abs(outer - inner) < edge:
                break
        # An end at ±1 was never left by the bisection, and stays exact.
        if abs(outer) < 1:
            outer = (inner + outer) / 2
        ends.append(outer)
    return min(ends[0], estimate), max(ends[1], estimate)


def median_interval(
    values_per_seed: Sequence[Sequence[float] | NDArray[np.float64]],
    bounds: tuple[float, float] = (-math.inf, math.inf),
) -> tuple[float, float] | tuple[None, None]:
    """Interval of a median over the examples of one or several seeded runs; ``None`` of fewer than six examples.

    One seed: between two order statistics, of which the k-th lowest and the k-th highest enclose the median with at
    least the level, whatever the distribution (k from the binomial with probability one half).

    Several seeds: the mean over runs like these of the run's median. Each run's median is known to within its order
    statistics; the prior on how much medians differ has a scale of half the standard deviation of a run's examples
    (:func:`fedattack.audit.over_runs.mean_value`). The interval is never narrower than that over all seeds' examples,
    and that over runs is clipped to `bounds`.
    """
    seeds = [np.asarray(values, float) for values in values_per_seed if len(values)]
    if not seeds:
        return None, None
    pooled = np.sort(np.concatenate(seeds))
    # Order statistics: the ranks between which a median lies follow a binomial distribution with p = 1/2.
    rank = int(stats.binom.ppf((1 - LEVEL) / 2, len(pooled), 0.5))
    if rank < 1:
        return None, None
    low, high = float(pooled[rank - 1]), float(pooled[-rank])
    if len(seeds) > 1:
        over_runs = np.clip(_mean_median(seeds), *bounds).tolist()
        low, high = min(low, over_runs[0]), max(high, over_runs[1])
    return low, high


def _mean_median(seeds: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    medians = np.array([np.median(values) for values in seeds])
    # Around their own medians, all runs show one spread within runs.
    around = np.concatenate([values - middle for values, middle in zip(seeds, medians, strict=True)])
    spread = float(np.sqrt(np.mean(around**2)))
    if spread == 0:
        return t_interval(medians.tolist())
    return mean_value(medians, np.array([_median_error(values, spread) for values in seeds]), spread / 2, LEVEL)


def _median_error(values: NDArray[np.float64], spread: float) -> float:
    """Return a median's standard error: from the two order statistics that are one such error from it."""
    n = len(values)
    # The rank of a sample's median has a standard deviation of √n/2.
    step = math.sqrt(n) / 2
    low, high = np.interp([(n - 1) / 2 - step, (n - 1) / 2 + step], np.arange(n), np.sort(values))
    # Few values, or many ties, can put both at the same place.
    return max(float(high - low) / 2, spread / n)
