"""What scores of members and of non-members come to: rates, areas, and the ε that they imply, each with an interval."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc
from scipy.stats import beta, binom, norm

from fedattack.audit.intervals import LEVEL, clopper_pearson

Floats = NDArray[np.float64]

# By what an error is divided to be left out.
_NEGLIGIBLE = 1000

POINTS = 25
"""Points of a ROC curve."""

_LEAST_RATE = 1e-4

# Each halves the range in which the end of an interval is sought.
_HALVINGS = 30


@dataclass(frozen=True)
class Estimate:
    """A number, and the interval that holds it with the level that was asked for."""

    value: float
    low: float
    high: float


def tpr_at(members: Floats, others: Floats, fpr: float, level: float = LEVEL) -> Estimate:
    """Estimate the true-positive rate at a false-positive rate in (0, 1).

    The threshold is known from the non-members (m,) alone, so that it is uncertain, too. J of them are above the
    threshold whose false-positive rate is ``fpr``, where J is Binomial(m, ``fpr``). Given J, the threshold is between
    two of the non-members' scores. The lower end takes the members (n,) above the larger one, the upper end those above
    the smaller one. Each end is a quantile of Clopper-Pearson's beta distributions, mixed by the probabilities of J.
    With few non-members there may be no larger one, or no smaller one: the end is then 0 or 1. Ties with the threshold
    count as "no".
    """
    tail = (1 - level) / 2
    count = len(others)
    # J, how many non-members lie above the true threshold, is binomial; all but a negligible tail of it is summed over.
    possible = np.arange(binom.ppf(tail / _NEGLIGIBLE, count, fpr), binom.isf(tail / _NEGLIGIBLE, count, fpr) + 1)
    possible = possible.astype(np.int64)
    shares = binom.pmf(possible, count, fpr)
    # Infinity on both sides stands for a threshold beyond all non-members.
    thresholds = np.concatenate([[np.inf], np.sort(others)[::-1], [-np.inf]])
    hits = len(members) - np.searchsorted(np.sort(members), thresholds, side="right")
    value = tpr_value_at(members, others, fpr)
    low = _quantile_of_mixture(shares, hits[possible], len(members) - hits[possible] + 1, tail)
    # The upper end mirrors the lower one: misses take the part of hits.
    high = 1 - _quantile_of_mixture(shares, len(members) - hits[possible + 1], hits[possible + 1] + 1, tail)
    return Estimate(value, min(low, value), max(high, value))


def _quantile_of_mixture(shares: Floats, first: NDArray[np.int64], second: NDArray[np.int64], tail: float) -> float:
    """Return where the mixture of Beta(first, second) reaches ``tail``; Beta(0, …) is all at 0."""
    # The mixture has no quantile in closed form; its distribution function rises, so that bisection finds it.
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # The distribution function of Beta, without the checks of scipy.stats.
        reached = np.where(first > 0, betainc(np.maximum(first, 1), second, middle), 1.0)
        if shares @ reached < tail:
            low = middle
        else:
            high = middle
    return low


def tpr_value_at(members: Floats, others: Floats, fpr: float) -> float:
    """Return the value of :func:`tpr_at` alone, without its interval."""
    # int rounds down: at most the stated share of non-members lies strictly above.
    threshold = np.sort(others)[::-1][int(fpr * len(others))]
    return float((members > threshold).mean())


def curve(members: Floats, others: Floats, *, band: bool) -> dict[str, list[float]]:
    """Return the ROC curve at :data:`POINTS` false-positive rates that are evenly spaced on a logarithmic axis.

    These are ``fpr`` and ``value``. A band, ``low`` and ``high``, holds only where scores are independent of each
    other.
    """
    rates = np.geomspace(min(max(1 / len(others), _LEAST_RATE), 0.5), 0.99, POINTS)
    points: dict[str, list[float]] = {"fpr": rates.tolist(), "value": []}
    if not band:
        thresholds = np.sort(others)[::-1][(rates * len(others)).astype(np.int64)]
        below = np.searchsorted(np.sort(members), thresholds, side="right")
        points["value"] = (1 - below / len(members)).tolist()
        return points
    points |= {"low": [], "high": []}
    for rate in rates:
        for key, number in vars(tpr_at(members, others, float(rate))).items():
            points[key].append(number)
    return points


def area(members: Floats, others: Floats, level: float = LEVEL) -> Estimate:
    """Estimate the area under the ROC curve, ties counting half, with DeLong's interval on the logit scale.

    DeLong et al. 1988, "Comparing the areas under two or more correlated receiver operating characteristic curves".
    Where all members are above all non-members, or below, the interval is that of the smaller group's rate.
    """
    below = _placements(members, others)
    value = float(below.mean())
    # DeLong's variance is 0 there, and its logit infinite.
    if value in (0.0, 1.0) or min(len(members), len(others)) < 2:
        few = min(len(members), len(others))
        # As if each of the smaller group was one trial that went the same way.
        low, high = clopper_pearson(value * few, few, level)
        return Estimate(value, low, high)
    above = 1 - _placements(others, members)
    # DeLong et al. (1988): the variance of the placements of both groups.
    error = math.sqrt(below.var(ddof=1) / len(members) + above.var(ddof=1) / len(others))
    centre = math.log(value / (1 - value))
    # The delta method: the logit's derivative is 1/(value (1 − value)).
    half = float(norm.isf((1 - level) / 2)) * error / (value * (1 - value))
    return Estimate(value, 1 / (1 + math.exp(half - centre)), 1 / (1 + math.exp(-half - centre)))


def area_value(members: Floats, others: Floats) -> float:
    """Return the value of :func:`area` alone, without its interval."""
    return float(_placements(members, others).mean())


def _placements(scores: Floats, among: Floats) -> Floats:
    """Return for each score the share of ``among`` that is smaller, ties counting half."""
    ordered = np.sort(among)
    counts = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    return np.asarray(counts / (2 * len(ordered)))


def balanced_accuracy(members: Floats, others: Floats, rng: np.random.Generator) -> tuple[float, int]:
    """Return how many answers are right, and of how many, at thresholds that the other half of the scores chose.

    Members and non-members count alike: the larger group is cut to the smaller one's size.
    """
    count = min(len(members), len(others))
    members, others = rng.permutation(members)[:count], rng.permutation(others)[:count]
    right = 0
    # Cross-fitting: each half is judged by the threshold of the other half, so that the choice costs nothing.
    for test, fit in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        threshold = _best_threshold(members[fit], others[fit])
        right += int((members[test] > threshold).sum() + (others[test] <= threshold).sum())
    return float(right), 2 * count


def _best_threshold(members: Floats, others: Floats) -> float:
    thresholds, hits, alarms = _errors(members, others)
    if not len(thresholds):
        return 0.0
    return float(thresholds[np.argmax(hits - alarms)])


def epsilon_implied(
    members: Floats, others: Floats, rng: np.random.Generator, *, delta: float = 0.0, level: float = LEVEL
) -> Estimate:
    """Estimate the ε below which no mechanism lets an attack tell members from non-members as these scores do.

    Under (ε, δ)-differential privacy TPR ≤ e^ε FPR + δ, and likewise with "yes" and "no" exchanged (Kairouz et al.
    2015). One half of the scores (n,), (m,), four of each at least, chooses the threshold and the side, the other half
    measures there, so that the choice costs nothing. The lower end holds with one-sided confidence 1 − (1 − level)/2:
    Clopper-Pearson bounds of both rates, each with half of that error. 0 where nothing is implied.
    """
    # Shuffled, as every second score is taken.
    members, others = rng.permutation(members), rng.permutation(others)
    # Half of the scores chooses, the other half is judged: the interval need not pay for the choice.
    side, threshold = epsilon_rule(members[::2], others[::2], delta=delta, level=level)
    return epsilon_at(side, threshold, members[1::2], others[1::2], delta=delta, level=level)


def epsilon_rule(members: Floats, others: Floats, *, delta: float = 0.0, level: float = LEVEL) -> tuple[int, float]:
    """Choose where :func:`epsilon_at` is to look: 1 to take members for "yes", −1 non-members; and a threshold."""
    best = (-math.inf, 0, 0.0)
    for side in (1, -1):
        yes, no = _sides(side, members, others)
        thresholds, hits, alarms = _errors(yes, no)
        lows = _epsilons(hits, alarms, len(yes), len(no), delta, level)
        position = int(np.argmax(lows))
        best = max(best, (float(lows[position]), side, float(thresholds[position])))
    return best[1], best[2]


def epsilon_at(
    side: int, threshold: float, members: Floats, others: Floats, *, delta: float = 0.0, level: float = LEVEL
) -> Estimate:
    """Estimate ε at a side and a threshold that other scores chose (:func:`epsilon_rule`)."""
    # Side −1 asks the mirrored question: a low score says "non-member".
    yes, no = _sides(side, members, others)
    hits, alarms = np.array([(yes > threshold).sum()]), np.array([(no > threshold).sum()])
    low = float(_epsilons(hits, alarms, len(yes), len(no), delta, level)[0])
    rate = (float(hits[0]) + 0.5) / (len(yes) + 1)
    # Half a success is added, so that no rate is 0.
    false_rate = (float(alarms[0]) + 0.5) / (len(no) + 1)
    value = 0.0  # where nobody is accused, nothing is implied
    if hits[0]:
        # (ε, δ)-DP bounds TPR by exp(ε) FPR + δ; this solves for ε.
        value = max(0.0, low, math.log(max(rate - delta, 1e-300) / false_rate))
    high = _upper(int(hits[0]), int(alarms[0]), len(yes), len(no), level)
    return Estimate(value, low, max(value, high))


def _sides(side: int, members: Floats, others: Floats) -> tuple[Floats, Floats]:
    if side > 0:
        return members, others
    return -others, -members


def _errors(members: Floats, others: Floats) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Return thresholds, and how many members and non-members are above each."""
    # Each score is a threshold, since nothing changes between two of them.
    thresholds = np.unique(np.concatenate([members, others]))
    hits = len(members) - np.searchsorted(np.sort(members), thresholds, side="right")
    alarms = len(others) - np.searchsorted(np.sort(others), thresholds, side="right")
    return thresholds, hits, alarms


def _epsilons(
    hits: NDArray[np.int64], alarms: NDArray[np.int64], members: int, others: int, delta: float, level: float
) -> Floats:
    """Return the lower end of ε for each pair of counts, 0 where nothing is implied."""
    # Two one-sided bounds share the error, and two tails of each.
    side = (1 - level) / 4
    # Clopper-Pearson for arrays: the lower end of TPR, the upper end of FPR.
    lowest = np.where(hits > 0, beta.ppf(side, np.maximum(hits, 1), members - hits + 1), 0.0) - delta
    highest = np.where(alarms < others, beta.isf(side, alarms + 1, np.maximum(others - alarms, 1)), 1.0)
    # No ratio below 1 implies a privacy loss.
    return np.asarray(np.log(np.maximum(lowest / highest, 1.0)))


def _upper(hits: int, alarms: int, members: int, others: int, level: float) -> float:
    """Return the upper end of ε at the threshold; no rate counts as smaller than one in ten times as many examples."""
    highest = clopper_pearson(hits, members, (1 + level) / 2)[1]
    # A lower end of 0 would make ε infinite, whatever was found.
    lowest = max(clopper_pearson(alarms, others, (1 + level) / 2)[0], 0.1 / others)
    return max(0.0, math.log(highest / lowest))
