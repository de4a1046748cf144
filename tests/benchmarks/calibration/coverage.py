"""How often 95 % intervals hold the truth: drawn runs that differ, of which the mean over all runs is known."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq
from scipy.special import expit

from fedattack.audit.intervals import (
    clopper_pearson,
    mean_interval,
    median_interval,
    paired_interval,
    rate_interval,
    these_runs,
)
from fedattack.audit.roc import Estimate, area, tpr_at

Floats = NDArray[np.float64]
Ends = tuple[float, float]

LEVEL = 0.95
WANTED = (0.93, 0.98)
BETA, LOGIT, TWO = "beta", "logit-normal", "two points"
UNEQUAL = (50, 100, 1000)
FPR = 0.1

HARDLY = "conservative: runs differ less than so few of them can show"
WHOLE = "conservative: counts are whole, so that few coverages are possible"
THRESHOLD = "conservative: so is the interval of these runs, which allows for an estimated threshold"
RARE = "too low: the runs that differ most are rare, and mostly none is among these"
ALIKE = "too low: runs are of two kinds, and often all of these are of one"
STRONG = "too low: runs differ more than the prior expects of so few"


@dataclass(frozen=True)
class Setting:
    """Runs whose rates have a mean and a standard deviation; ``n`` is targets a run, or of several runs in turn."""

    shape: str
    mean: float
    sd: float
    runs: int
    n: int | tuple[int, ...]

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.resize(np.atleast_1d(self.n), self.runs)


def settings(short: bool = False) -> Iterator[Setting]:
    """Yield the settings that can be; a short list has one of each kind of difficulty."""
    if short:
        grid = product((BETA, LOGIT), (0.01, 0.1, 0.5, 0.99), (0.0, 0.02, 0.1), (2, 3, 10), (100,))
    else:
        grid = product(
            (BETA, LOGIT, TWO),
            (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99),
            (0.0, 0.01, 0.02, 0.05, 0.1),
            (2, 3, 5, 10),
            (50, 100, 1000, UNEQUAL),
        )
    for shape, mean, sd, runs, n in grid:
        # Without differences all shapes are one. Beyond 0.6 of the largest sd, nearly all runs have a rate of 0 or 1.
        if (sd > 0 or shape == BETA) and sd < 0.6 * math.sqrt(mean * (1 - mean)):
            yield Setting(shape, mean, sd, runs, n)


def draw_rates(setting: Setting, size: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Draw the rates of runs."""
    mean, sd = setting.mean, setting.sd
    if sd == 0:
        return np.full(size, mean)
    if setting.shape == BETA:
        total = mean * (1 - mean) / sd**2 - 1
        return rng.beta(mean * total, (1 - mean) * total, size)
    if setting.shape == LOGIT:
        centre, spread = _logit_normal(mean, sd)
        return np.asarray(expit(centre + spread * rng.standard_normal(size)))
    low, high = mean - sd, mean + sd
    if low < 0:
        low, high = 0.0, mean + sd**2 / mean
    elif high > 1:
        low, high = mean - sd**2 / (1 - mean), 1.0
    return np.where(rng.random(size) < (mean - low) / (high - low), high, low)


@cache
def _logit_normal(mean: float, sd: float) -> tuple[float, float]:
    """Return location and scale of the logit, of which the rate has that mean and standard deviation."""
    points = stats.norm.ppf((np.arange(4_000) + 0.5) / 4_000)

    def centre(spread: float) -> float:
        return float(brentq(lambda at: expit(at + spread * points).mean() - mean, -60, 60))

    spread = float(brentq(lambda s: expit(centre(s) + s * points).std() - sd, 1e-4, 12))
    return centre(spread), spread


def rows(repetitions: int, seed: int, short: bool = False) -> list[dict[str, Any]]:
    """Measure how often each kind of interval holds the truth.

    Parameters
    ----------
    repetitions
        Draws for each row.
    seed
        Of all draws.
    short
        Whether to measure a few settings of each kind only.

    Returns
    -------
    list of dict
        - ``statement``: the kind of interval.
        - ``shape``, ``runs``: how runs were drawn, and how many.
        - ``setting``: all that was drawn, in words.
        - ``coverage``: the share of draws of which the interval holds the truth.
        - ``coverage_low``, ``coverage_high``: the 95 % Clopper-Pearson interval of that share.
        - ``width``: the median width.
        - ``t_coverage``, ``t_width``: the same of Student's t over the runs; None for one run.
        - ``note``: why the coverage is surely not 93–98 %; empty if it may be.
    """
    rng = np.random.default_rng(seed)
    found = []
    for setting in settings(short):
        found += _rate_rows(setting, repetitions, rng)
    for maker in (_pair_rows, _area_rows, _median_rows):
        found += maker(repetitions, rng, short)
    return found


def _row(
    group: tuple[str, str, int],
    setting: str,
    truth: float,
    ends: Sequence[Ends],
    values: Floats | None,
    note: Callable[[float], str],
) -> dict[str, Any]:
    """Sum up one row; ``group`` is statement, shape and runs, ``values`` is (repetitions, runs), for Student's t."""
    statement, shape, runs = group
    covered, width = _covered(truth, ends)
    t_coverage = t_width = None
    if values is not None:
        # As t_interval, of all repetitions at once.
        half = stats.t.isf((1 - LEVEL) / 2, runs - 1) * values.std(axis=1, ddof=1) / math.sqrt(runs)
        centre = values.mean(axis=1)
        t_coverage, t_width = _covered(truth, np.stack([centre - half, centre + half], axis=1))
    low, high = clopper_pearson(round(covered * len(ends)), len(ends))
    outside = high < WANTED[0] or low > WANTED[1]
    return {
        "statement": statement,
        "shape": shape,
        "runs": runs,
        "setting": setting,
        "coverage": covered,
        "coverage_low": low,
        "coverage_high": high,
        "width": width,
        "t_coverage": t_coverage,
        "t_width": t_width,
        "note": note(covered) if outside else "",
    }


def _covered(truth: float, ends: Sequence[Ends] | Floats) -> tuple[float, float]:
    array = np.asarray(ends)
    holds = (array[:, 0] <= truth + 1e-12) & (array[:, 1] >= truth - 1e-12)
    return float(holds.mean()), float(np.median(array[:, 1] - array[:, 0]))


def _rate_rows(setting: Setting, repetitions: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    rates = draw_rates(setting, (repetitions, setting.runs), rng)
    hits = rng.binomial(setting.sizes, rates)
    sizes = setting.sizes.tolist()
    ends = _once(lambda counts: rate_interval(counts, sizes), hits)
    shape = setting.shape if setting.sd else "alike"
    words = f"{shape}, mean {setting.mean:g}, sd {setting.sd:g}, {setting.runs} runs of {setting.n}"

    def note(coverage: float) -> str:
        if coverage > WANTED[1]:
            return HARDLY
        if setting.shape == TWO:
            return ALIKE
        return RARE if min(setting.mean, 1 - setting.mean) <= 0.1 else STRONG

    found = [_row(("runs like these", shape, setting.runs), words, setting.mean, ends, hits / setting.sizes, note)]
    if not setting.sd:
        these = _once(lambda counts: these_runs(counts, sizes), hits)
        found.append(_row(("these runs", shape, setting.runs), words, setting.mean, these, None, lambda _: WHOLE))
    return found


def _once(interval: Callable[[list[int]], Ends], counts: NDArray[np.int64]) -> list[Ends]:
    """Return the interval of each row of counts, and compute those of equal rows once."""
    different, where = np.unique(counts, axis=0, return_inverse=True)
    ends = [interval(row) for row in different.tolist()]
    return [ends[index] for index in where.ravel()]


def _general_note(runs: int, coverage: float) -> str:
    if coverage > WANTED[1]:
        return HARDLY if runs > 1 else WHOLE
    return STRONG


def _threshold_note(runs: int, coverage: float) -> str:
    return THRESHOLD if coverage > WANTED[1] else _general_note(runs, coverage)


def _pair_rows(repetitions: int, rng: np.random.Generator, short: bool) -> list[dict[str, Any]]:
    """Draw targets, a share of which is solved by one of two methods alone; which of them, differs between runs."""
    found = []
    grid: Sequence[tuple[float, ...]] = [(0.2, 0.05, 0.05)]
    if not short:
        grid = list(product((0.02, 0.2, 0.5), (0.0, 0.05), (0.0, 0.01, 0.05, 0.1)))
    for share, mean, sd in grid:
        if abs(mean) + sd > share:
            continue
        for runs, n in product((1,) if sd == 0 else (), (100, 1000)):
            found.append(_pair_row(share, mean, sd, runs, n, repetitions, rng))
        for runs, n in product((3,) if short else (2, 3, 5, 10), (100,) if short else (100, 1000)):
            found.append(_pair_row(share, mean, sd, runs, n, repetitions, rng))
    return found


def _pair_row(
    share: float, mean: float, sd: float, runs: int, n: int, repetitions: int, rng: np.random.Generator
) -> dict[str, Any]:
    # Among the targets of one alone, the first's share has mean (1 + mean / share) / 2.
    scaled = Setting(BETA, (1 + mean / share) / 2, sd / share / 2, runs, n)
    firsts = draw_rates(scaled, (repetitions, runs), rng)
    alone = rng.binomial(n, share, (repetitions, runs))
    first = rng.binomial(alone, firsts)
    pairs = zip(first.tolist(), (alone - first).tolist(), strict=True)
    ends = [paired_interval(wins, losses, [n] * runs) for wins, losses in pairs]
    words = f"{share:.0%} solved by one alone, mean {mean:g}, sd {sd:g}, {runs} runs of {n}"
    values = (2 * first - alone) / n if runs > 1 else None
    return _row(("difference of paired rates", BETA, runs), words, mean, ends, values, partial(_general_note, runs))


def _area_rows(repetitions: int, rng: np.random.Generator, short: bool) -> list[dict[str, Any]]:
    """Draw normal scores, of which the members' are shifted, run by run by another amount."""
    found = []
    grid = [(1.0, 0.1, 3, 100)]
    if not short:
        grid = list(product((0.0, 1.0, 3.0), (0.0, 0.1, 0.3), (2, 3, 5, 10), (50, 200)))
    for shift, sd, runs, n in grid:
        shifts = shift + sd * rng.standard_normal((repetitions, runs))
        ends: dict[str, list[Ends]] = {"AUC": [], "TPR": []}
        values: dict[str, list[list[float]]] = {"AUC": [], "TPR": []}
        for row in shifts:
            members = row[:, None] + rng.standard_normal((runs, n))
            others = rng.standard_normal((runs, n))
            for name, measure in (("AUC", area), ("TPR", _tpr)):
                pooled = measure(members.ravel(), others.ravel())
                by_run = [measure(*scores).value for scores in zip(members, others, strict=True)]
                values[name].append(by_run)
                ends[name].append(mean_interval(by_run, (pooled.low, pooled.high)))
        truths = {
            "AUC": stats.norm.cdf(shift / math.sqrt(2 + sd**2)),
            "TPR": stats.norm.cdf((shift - stats.norm.isf(FPR)) / math.sqrt(1 + sd**2)),
        }
        words = f"shift {shift:g} ± {sd:g}, {runs} runs of {n} members and non-members"
        for name, truth in truths.items():
            note = partial(_threshold_note if name == "TPR" else _general_note, runs)
            found.append(
                _row((name, "normal scores", runs), words, float(truth), ends[name], np.array(values[name]), note)
            )
    return found


def _tpr(members: Floats, others: Floats) -> Estimate:
    return tpr_at(members, others, FPR)


def _median_rows(repetitions: int, rng: np.random.Generator, short: bool) -> list[dict[str, Any]]:
    """Draw examples with exponential values, in runs that are shifted."""
    found = []
    grid = [(0.0, 1, 30), (0.25, 3, 30)]
    if not short:
        grid = list(product((0.0, 0.1, 0.25, 0.5, 1.0), (1, 2, 3, 5, 10), (10, 30, 100)))
    for sd, runs, n in grid:
        if sd and runs == 1:
            continue
        ends, values = [], []
        for _ in range(repetitions):
            of_example = rng.exponential(size=(runs, n)) + sd * rng.standard_normal((runs, 1))
            ends.append(median_interval(list(of_example)))
            values.append(np.median(of_example, axis=1))
        words = f"exponential, runs' sd {sd:g}, {runs} runs of {n} examples"
        truth = math.log(2)
        table = np.array(values) if runs > 1 else None
        found.append(_row(("median", "exponential", runs), words, truth, ends, table, partial(_general_note, runs)))
    return found


def summary(measured: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum up rows of the same statement, shape and number of runs.

    Returns
    -------
    list of dict
        ``rows``; ``least``: the least coverage, and ``where`` it is; ``median``: the median coverage; ``low``,
        ``high``: how many rows are surely below 93 % and above 98 %; ``width_to_t``: the median ratio of the width to
        that of Student's t, over the rows where that is not 0; None for one run.
    """
    groups: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in measured:
        groups.setdefault((row["statement"], row["shape"], row["runs"]), []).append(row)
    found = []
    for (statement, shape, runs), members in groups.items():
        coverages = [row["coverage"] for row in members]
        least = members[int(np.argmin(coverages))]
        ratios = [row["width"] / row["t_width"] for row in members if row["t_width"]]
        found.append(
            {
                "statement": statement,
                "shape": shape,
                "runs": runs,
                "rows": len(members),
                "least": least["coverage"],
                "where": least["setting"],
                "median": float(np.median(coverages)),
                "low": sum(row["coverage_high"] < WANTED[0] for row in members),
                "high": sum(row["coverage_low"] > WANTED[1] for row in members),
                "width_to_t": float(np.median(ratios)) if ratios else None,
            }
        )
    return found


def study(repetitions: int, seed: int, short: bool = False) -> dict[str, Any]:
    """Measure :func:`rows`; keep of 2,000 rows a ``summary``, and those that are ``surely_below_93`` %."""
    measured = rows(repetitions, seed, short)
    low = [row for row in measured if row["coverage_high"] < WANTED[0]]
    return {"rows": len(measured), "summary": summary(measured), "surely_below_93": low}
