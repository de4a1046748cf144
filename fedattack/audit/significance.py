"""Could it be an accident? Tests of single findings, and one correction over all findings of a report.

A test exchanges what is alike where there is nothing to find, and asks how often that finds as much. It speaks of these
very runs, whose models are given. Two exchanges serve most findings:

- *who is who* among the clients of a run: all targets of a client stay together, since they succeed or fail together;
- *within cells*, such as the targets of one label: they are alike for a model that did not learn them.

A report has many findings. :func:`correct_findings` corrects for all of them together, so that a report on nothing
shows a leak in at most one of twenty runs.
"""

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedattack.audit.finding import BELOW_ERROR, ERROR, LEAK, NO_EVIDENCE, TOO_FEW, Finding, p_in_words
from fedattack.base.errors import DataError
from fedattack.base.reasons import Reason

DRAWS = 9_999
"""Exchanges that a test draws."""

HEADLINES = 0.9
"""Part of the error that goes to the headlines, which were fixed in advance. The other findings share the rest."""

# With so few arrangements p is one of few numbers, and so many draws of each tell which.
_FEW = 120
# Each arrangement comes up about 400 times, enough to tell its share from the next one.
_OF_EACH = 400

# Draws after which a test ends whose p is plainly no evidence, and the share of them that says so.
_FIRST = 199
_PLAINLY = 0.25

# The share of draws as small as the observed one that says the same of the other side.
_PLAINLY_NOT_BELOW = 0.1

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

Draw = Callable[[np.random.Generator, int], Floats]
"""Returns the statistic (count,) of so many exchanges, each drawn by itself."""


@dataclass(frozen=True)
class Significance:
    """How likely so much is by accident.

    Attributes
    ----------
    p
        One-sided: the share of exchanges with a statistic as large as the observed one, which counts as one of them.
    least
        The smallest p that these data could have given. Above :data:`~fedattack.audit.finding.ERROR` there are too few
        of them to tell.
    how
        What was exchanged, in words.
    below
        The same as `p` of the other side: the share of exchanges with a statistic as small as the observed one. It is
        exact where it is at most :data:`~fedattack.audit.finding.BELOW_ERROR`; 1 where it was not looked at.
    """

    p: float
    least: float
    how: str
    below: float = 1.0


def significance_of(
    observed: float,
    draw: Draw,
    rng: np.random.Generator,
    how: str,
    *,
    arrangements: float = math.inf,
    draws: int = DRAWS,
    at_once: int = 1_000,
) -> Significance:
    """Hold a statistic, larger for a worse leak, against what exchanges give.

    The p-value is (1 + exceedances)/(1 + draws), which is valid for any number of draws (Phipson and Smyth 2010,
    "Permutation p-values should never be zero"). The drawing ends early where p is plainly above :data:`ERROR`. Of few
    arrangements p is one of few shares; the draws then decide which one. Whether the statistic is far too small is then
    asked of further draws, which change neither `rng` nor p.

    Parameters
    ----------
    how
        What is exchanged, in words.
    arrangements
        How many different exchanges there are.
    draws, at_once
        How many are drawn, and how many together: memory grows with the latter.

    Raises
    ------
    DataError
        If the statistic is no finite number.
    """
    if not math.isfinite(observed):
        raise DataError(f"{how}: the statistic of a test is {observed}; expected a finite number")
    few = arrangements <= _FEW
    # With few arrangements p is a multiple of 1/arrangements, which more draws pin down.
    if few:
        draws = max(draws, _OF_EACH * int(arrangements))
    # Sums in another order differ by rounding: what equals the observed one but for that counts as equal.
    margin = 1e-9 * max(1.0, abs(observed))
    bar, ceiling = observed - margin, observed + margin
    count = exceeded = undercut = 0
    while count < draws:
        size = _size_of_draw(count, draws, at_once)
        drawn = draw(rng, size)
        # What is no number counts as large: it is no evidence. On the other side it counts as small.
        exceeded += int((~(drawn < bar)).sum())
        undercut += int((~(drawn > ceiling)).sum())
        count += size
        # Stopped early only where the answer is "no evidence": the error of a leak does not change.
        if exceeded > _PLAINLY * count:
            break
    least = least_p(arrangements, draws)
    # The observed arrangement is one of them: p is never 0.
    p = _share_of(exceeded, count)
    if few and count == draws:
        # The nearest multiple of 1/arrangements.
        p = round(exceeded / count * arrangements) / arrangements
    # The caller's generator stays where p left it: what is asked of the other side must not change later draws.
    further = deepcopy(rng)
    while count < draws and undercut <= _PLAINLY_NOT_BELOW * count and _share_of(undercut, draws) <= BELOW_ERROR:
        size = _size_of_draw(count, draws, at_once)
        undercut += int((~(draw(further, size) > ceiling)).sum())
        count += size
    below = _share_of(undercut, count)
    if few and count == draws:
        below = round(undercut / count * arrangements) / arrangements
    # No p is below what the arrangements allow.
    return Significance(max(p, least), least, how, max(below, least))


def _size_of_draw(count: int, draws: int, at_once: int) -> int:
    """Return how many exchanges are drawn next, after so many of all; the first are few."""
    if not count:
        at_once = min(at_once, _FIRST)
    return min(at_once, draws - count)


def _share_of(found: int, count: int) -> float:
    """Return the share of draws, of which the observed one is one more."""
    return (1 + found) / (1 + count)


def least_p(arrangements: float, draws: int = DRAWS) -> float:
    """Return the smallest p that a test with so many different exchanges, of which so many are drawn, can give."""
    # The larger bound counts: of arrangements, or of draws.
    return max(1 / arrangements, 1 / (draws + 1))


def count_of(logarithm: float) -> float:
    """Return the whole number that has this logarithm; infinite where it is very large."""
    if logarithm >= 50:
        return math.inf
    return round(math.exp(logarithm))


def exchange_within(cells: Rows, rng: np.random.Generator, count: int, places: Rows | None = None) -> Rows:
    """Draw exchanges of positions (n,) within cells; `places` (m,) are the positions that are asked about, or all.

    In the returned (count, m), position ``places[i]`` is taken by what stands at ``[draw, i]``, which is of the same
    cell.
    """
    # Positions of the same cell lie together.
    by_cell = np.argsort(cells, kind="stable")
    # Cells as 0 … k − 1, so that their number fits into the high bits.
    ranks = np.unique(cells, return_inverse=True)[1].astype(np.int64)
    # Cell, random number and position in one number: sorting these is several times as fast as sorting positions.
    bits = len(cells).bit_length()
    # The random part takes what is left of 63 bits: cell above it, position below.
    drawn = rng.integers(1 << (63 - 2 * bits), size=(count, len(cells))) << bits
    drawn += (ranks << (63 - bits)) + np.arange(len(cells))
    # Within a cell positions now stand in random order, cell after cell.
    drawn.sort(axis=1)
    # The inverse of a permutation: where in the sorted order each position lies.
    asked = np.argsort(by_cell)
    if places is not None:
        asked = asked[places]
    # The low bits hold the position that came there.
    return np.take(drawn, asked, axis=1) & ((1 << bits) - 1)


def arrangements_within(cells: Rows, kinds: Rows | NDArray[np.bool_]) -> float:
    """Count the ways to deal to each cell's positions what it has of each kind; infinite where there are very many."""
    _, sizes = np.unique(cells, return_counts=True)
    _, parts = np.unique(np.stack([cells, kinds]), axis=1, return_counts=True)
    # A multinomial coefficient for each cell, multiplied over all, by logarithms.
    return count_of(float(gammaln(sizes + 1).sum() - gammaln(parts + 1).sum()))


def exchange_clients(clients: int, rng: np.random.Generator, count: int) -> Rows:
    """Draw who is who: (count, clients), in each row all clients once."""
    # Sorting random numbers gives a uniform permutation for each row.
    return np.argsort(rng.random((count, clients)), axis=1)


def correct_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Correct all findings of a report together, and take back what does not hold then.

    By Holm's method with weights: headlines, which were fixed in advance, share :data:`HEADLINES` of the error, and the
    other findings the rest. What a finding is shown by goes on to those that are left. The chance that any finding of a
    report is a leak by accident is then at most :data:`ERROR`, however they depend on each other.

    Holm 1979, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6,
    Section 5.

    What is certain (:attr:`~fedattack.audit.finding.Finding.is_certain`) is shown first, by no test: it stays as it is,
    and the others have its part of the error.
    """
    # What could not have been a leak whatever came out takes nothing from the others.
    tested = [each for each in findings if each.p is not None and each.verdict != TOO_FEW]
    ps = []
    for each in tested:
        # What is certain needs no test, but takes its place in the order.
        ps.append(0.0 if each.is_certain else each.p or 0.0)
    weights = share_error([each.headline for each in tested])
    corrected = iter(enumerate(adjust(ps, weights)))
    final = []
    for finding in findings:
        if finding.p is None or finding.verdict == TOO_FEW:
            final.append(finding)
            continue
        index, p = next(corrected)
        if finding.is_certain:
            final.append(finding)
            continue
        best = p
        if p > ERROR:
            # Could this finding have been a leak, had its p been the least, and all others as they are?
            best = adjust([*ps[:index], finding.p_least or 0.0, *ps[index + 1 :]], weights)[index]
        final.append(_correct_finding(finding, p, best, len(tested)))
    return final


def _correct_finding(finding: Finding, p: float, best: float, count: int) -> Finding:
    """Correct one of so many findings: ``p`` is what was found, corrected, and ``best`` the least that could be."""
    verdict, grounds = finding.verdict, []
    if count > 1 and verdict == LEAK:
        corrected = f"corrected for all {count} tested findings {p_in_words(p)}"
        if p > ERROR:
            verdict = NO_EVIDENCE
            corrected += ", which is not enough"
        grounds.append(Reason(corrected))
    if best > ERROR:
        verdict = TOO_FEW
        grounds.append(Reason(_say_too_few(finding.p_least or 0.0, best, count)))
    return finding.with_grounds(*grounds, p_adjusted=p, verdict=verdict)


def _say_too_few(least: float, best: float, count: int) -> str:
    """Say why no result could have been a leak: how few arrangements there are, or how many findings are tested."""
    cause = f"its test gives at best {p_in_words(least)}"
    # More arrangements than draws do not make p larger.
    if least > least_p(math.inf):
        cause = f"what is exchanged has only {round(1 / least):,} arrangements, so {cause}"
    if count == 1:
        return cause
    return f"{cause}, and corrected for {count} tested findings at best {p_in_words(best)}"


def adjust(ps: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values (n,): each finding is a leak whose own is at most the error of them all.

    Weights (n,) are above 0, and larger for what was to be found first.
    """
    # Weighted Holm: by p over weight, the least first.
    order = sorted(range(len(ps)), key=lambda index: ps[index] / weights[index])
    left = math.fsum(weights)
    highest = 0.0
    corrected = [1.0] * len(ps)
    for index in order:
        # Adjusted values never fall along the order.
        highest = max(highest, min(1.0, ps[index] / weights[index] * left))
        corrected[index] = highest
        # A step-down: the weights of those before have been spent.
        left -= weights[index]
    return corrected


def share_error(headlines: Sequence[bool]) -> list[float]:
    """Share the error: one number for each finding, of which the ratios count."""
    first = sum(headlines)
    others = len(headlines) - first
    if not first or not others:
        return [1.0] * len(headlines)
    # Within each group all share alike.
    shares: list[float] = np.where(headlines, HEADLINES / first, (1 - HEADLINES) / others).tolist()
    return shares
