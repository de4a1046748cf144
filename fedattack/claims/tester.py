"""A lower bound on ε by play: two updates that are hard to tell apart, thousands of times, and how often they are told.

**The updates.** A mechanism that clips to C and adds noise is worst at two updates of norm C that point away from each
other (``replace``), or at one of norm C beside zeros (``add-remove``). Which direction does not matter if the noise is
the same in all entries. For others it does, so that several pairs are tried: one entry of each array (an array without
noise), all entries alike (choices of entries, as in sparsifying), a large update beside a tiny one (noise that follows
the update), and updates of a thousand times the norm (no clipping, or noise before clipping).

**The score.** The position along the line between both; or Fisher's, which weighs entries by what their noise lets
through; or the length. Pair, score and thresholds are chosen on draws that are not used again.

**The bound**, at 95 % in all, is the higher of two at 97.5 % each:

- by counting: Clopper & Pearson (1934) on both error rates at the threshold, ε ≥ ln((TPR − δ) / FPR) (Kairouz et al.
  2015), which assumes nothing;
- by shape, if the scores pass tests of it: two Gaussians of the same variance, μ apart (Gaussian DP, Dong et al. 2022);
  or where the mechanism draws by itself whether the update takes part, a Gaussian beside a mixture with that rate
  (Nasr et al. 2023, who invert the trade-off of the mechanism in the same way).

The shape says more, because δ = 1e-5 is a matter of tails that ten thousand draws do not reach. It is an assumption
about these tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.claims.mechanisms import Mechanism, Vector
from fedattack.claims.mixture import mixture_shift
from fedattack.claims.shape import is_normal, shift_at_least
from fedattack.privacy import gaussian_epsilon

LEVEL = 0.95
"""Confidence of the bound."""

_FAR = 1000.0
"""How many times the norm C those updates have that a mechanism has to clip."""

# Draws of each update: to choose pair and score, a pair; to choose thresholds; the rest is for the bound.
_SHARE_PAIR = 1 / 100
_SHARE_THRESHOLD = 1 / 20
LEAST_DRAWS = 2000
# Above so many standard errors another pair or score than the first is taken.
_PREFERRED = 4.0
_THRESHOLDS = 60
# A mechanism without state passes for one with state by accident so rarely; and that many standard errors.
_DRIFT = 1e-5
_TOGETHER = 5
_OWN_SEED = (
    "the mechanism uses its own random generator, so the seed does not reproduce these numbers; it does for a "
    "function f(update, rng)"
)
# √n times the largest distance between a mixture that is fitted in part and its draws: rarely above.
_KOLMOGOROV = 1.95

Score = Callable[[Vector], NDArray[np.float64]]


@dataclass(frozen=True)
class ScopedBound:
    """A lower bound on ε at :data:`LEVEL`, in three scopes.

    Attributes
    ----------
    draw
        Of one draw of the mechanism.
    message, run
        Of all draws of a message, and of a run.
    """

    draw: float
    message: float
    run: float


@dataclass(frozen=True)
class Measured:
    """What the test found.

    Attributes
    ----------
    bound
        The higher one of both.
    method
        Where it comes from: ``counting``, ``gaussian`` or ``sampled gaussian``.
    counting
        The bound by counting alone.
    ceiling
        The highest that counting can give for one draw with so many draws.
    mu
        The lower bound on how many standard deviations apart the scores are; None without a shape.
    told, tries
        How often a threshold in the middle told which update it was, of the draws that no choice was made on.
    draws
        All draws of both updates, those for choices included.
    pair, score
        Which updates were played, and by what they were told apart.
    notes
        What a reader should know besides, a sentence each.
    """

    bound: ScopedBound
    method: Literal["counting", "gaussian", "sampled gaussian"]
    counting: float
    ceiling: float
    mu: float | None
    told: int
    tries: int
    draws: int
    pair: str
    score: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Play:
    """How a mechanism is tested.

    Attributes
    ----------
    clip
        C.
    relation
        ``replace`` or ``add-remove``.
    delta
        δ.
    draws
        Of both updates together, at least :data:`LEAST_DRAWS`.
    clipped
        Whether updates come clipped already, so that none is longer than C.
    inside
        The rate with which the mechanism itself draws whether the update takes part; 1 if it does not draw.
    rate
        The rate with which somebody else does before it, which the bound takes for granted.
    message, run
        Draws in a message, and in a run.

    Raises
    ------
    ConfigError
        If there are too few draws, or the sampling does not go with the rest.
    """

    clip: float = 1.0
    relation: str = "replace"
    delta: float = 1e-5
    draws: int = 10_000
    clipped: bool = False
    inside: float = 1.0
    rate: float = 1.0
    message: int = 1
    run: int = 1

    def __post_init__(self) -> None:
        if self.draws < LEAST_DRAWS:
            raise ConfigError(f"draws = {self.draws}: expected {LEAST_DRAWS} or more, for choices and for the bound")
        if self.inside < 1 and self.rate < 1:
            raise ConfigError("a mechanism that samples by itself is not sampled again before it")
        if min(self.inside, self.rate) < 1 and self.relation != "add-remove":
            # What is sent without the unit has to be known, and is what is sent for zeros.
            raise ConfigError('a mechanism with a sampler is tested for neighbours = "add-remove"')


@dataclass(frozen=True)
class _Pair:
    name: str
    left: Vector
    right: Vector

    @property
    def direction(self) -> Vector:
        line = self.left - self.right
        return line / float(np.linalg.norm(line))


@dataclass(frozen=True)
class _Scored:
    """Scores of both updates; those of the left one are higher on the whole."""

    left: NDArray[np.float64]
    right: NDArray[np.float64]

    @property
    def apart(self) -> float:
        """Distance of the means in standard deviations; infinite if nothing varies and they differ."""
        distance = float(self.left.mean() - self.right.mean())
        variance = float(self.left.var(ddof=1) + self.right.var(ddof=1)) / 2
        if not distance:
            return 0.0
        # Rounding varies a little where there is no noise.
        scale = math.sqrt(variance)
        if scale <= 1e-12 * abs(distance):
            return math.inf
        return distance / scale


def measure(mechanism: Mechanism, play: Play, *, seed: int = 0) -> Measured:
    """Bound the ε of a mechanism from below.

    Parameters
    ----------
    mechanism
        See :func:`fedattack.claims.mechanisms.mechanism_of`.
    play
        How it is tested.
    seed
        Decides all draws of a mechanism that takes its randomness from generators.

    Returns
    -------
    Measured

    Raises
    ------
    ConfigError
        If the mechanism fails, is not repeatable, or is another one from draw to draw.
    """
    rng = np.random.default_rng(seed)
    pairs = _list_pairs(mechanism.size, play)
    repeatable = mechanism.check(pairs[0].left, seed)
    pair, name, score = _choose_pair(mechanism, pairs, play, rng)
    pilot = _draw_scores(mechanism, pair, score, round(play.draws * _SHARE_THRESHOLD), rng)
    sign = 1.0 if pilot.apart >= 0 else -1.0
    pilot = _Scored(sign * pilot.left, sign * pilot.right)
    rest = play.draws // 2 - len(pilot.left) - len(pairs) * _count_pair_draws(play)
    found = _draw_scores(mechanism, pair, score, rest, rng)
    found = _Scored(sign * found.left, sign * found.right)
    _check_steady(mechanism, found)
    measured = _judge_scores(pilot, found, play, pair.name, name)
    if not repeatable:
        measured = replace(measured, notes=(*measured.notes, _OWN_SEED))
    return measured


def _list_pairs(size: int, play: Play) -> list[_Pair]:
    first, second = np.zeros(size), np.zeros(size)
    first[0] = second[-1] = play.clip
    # √size entries of equal size have the norm C.
    spread = np.full(size, play.clip / math.sqrt(size))
    at_first = "one entry of the first array"
    if play.relation == "replace":
        pairs = [
            _Pair(at_first, first, -first),
            _Pair("one entry of the last array", second, -second),
            _Pair("all entries alike", spread, -spread),
            # A mechanism that normalises, in place of clipping, tells these apart by their direction alone.
            _Pair("a large update and a tiny one", first, first * 1e-6),
        ]
        far = _Pair(f"one entry, {_FAR:g} times the norm", _FAR * first, -_FAR * first)
    else:
        # As good as zeros, of which Flower's clipping makes a division by zero.
        nothing = np.full(size, 1e-12 * play.clip)
        pairs = [
            _Pair(at_first, first, nothing),
            _Pair("one entry of the last array", second, nothing),
            _Pair("all entries alike", spread, nothing),
        ]
        far = _Pair(f"one entry, {_FAR:g} times the norm", _FAR * first, nothing)
    if not play.clipped:
        pairs.append(far)
    return pairs


def _count_pair_draws(play: Play) -> int:
    return round(play.draws * _SHARE_PAIR)


def _draw_scores(mechanism: Mechanism, pair: _Pair, score: Score, count: int, rng: np.random.Generator) -> _Scored:
    left = score(mechanism.draws(pair.left, count, rng))
    return _Scored(left, score(mechanism.draws(pair.right, count, rng)))


def _choose_pair(
    mechanism: Mechanism, pairs: list[_Pair], play: Play, rng: np.random.Generator
) -> tuple[_Pair, str, Score]:
    """Choose pair and score: the first of all, unless another one is plainly better."""
    count = _count_pair_draws(play)
    best: tuple[_Pair, str, Score] | None = None
    apart = 0.0
    for pair in pairs:
        # In the same order each time: the left update, then the right one.
        left, right = mechanism.draws(pair.left, count, rng), mechanism.draws(pair.right, count, rng)
        half = count // 2
        for name, score in _list_scores(pair, left[:half], right[:half]):
            # Fisher's was fitted to the first half.
            other = abs(_Scored(score(left[half:]), score(right[half:])).apart)
            if best is None or other > apart + _PREFERRED * _compute_error(apart, half):
                best, apart = (pair, name, score), other
    if best is None:
        raise AssertionError("there are pairs")
    return best


def _compute_error(apart: float, count: int) -> float:
    """Return the standard error of a distance in standard deviations between two means of so many."""
    if not math.isfinite(apart):
        return 0.0
    return math.sqrt(2 / count + apart**2 / (4 * count))


def _list_scores(pair: _Pair, left: Vector, right: Vector) -> list[tuple[str, Score]]:
    direction = pair.direction
    weights = _weigh_entries(left, right)

    def along(sent: Vector) -> NDArray[np.float64]:
        return sent @ direction

    def weigh(sent: Vector) -> NDArray[np.float64]:
        return sent @ weights

    def length(sent: Vector) -> NDArray[np.float64]:
        return np.asarray(np.linalg.norm(sent, axis=1))

    return [("the position between both", along), ("entries weighed by their noise", weigh), ("the length", length)]


def _weigh_entries(left: Vector, right: Vector) -> Vector:
    """Weigh the entries whose means plainly differ by the distance over the variance."""
    # Fisher's discriminant for independent entries.
    distance = left.mean(axis=0) - right.mean(axis=0)
    variance = (left.var(axis=0, ddof=1) + right.var(axis=0, ddof=1)) / 2
    # Entries without any noise would weigh infinitely.
    least = 1e-20 * max(float(np.abs(distance).max()) ** 2, 1e-300)
    variance = np.maximum(variance, least)
    plain = np.abs(distance) > _PREFERRED * np.sqrt(2 * variance / len(left))
    weights = np.where(plain, distance / variance, 0.0)
    length = float(np.linalg.norm(weights))
    if length:
        weights /= length
    return weights


def _check_steady(mechanism: Mechanism, found: _Scored) -> None:
    """Refuse a mechanism whose draws drift, or hang together."""
    from scipy import stats

    for scores in (found.left, found.right):
        if not np.ptp(scores):
            continue
        half = len(scores) // 2
        # Kolmogorov and Smirnov between the first and the second half.
        drift = stats.ks_2samp(scores[:half], scores[half:]).pvalue
        centred = scores - scores.mean()
        # The correlation of neighbours, times √n: about standard normal where draws are independent.
        together = float(centred[1:] @ centred[:-1] / (centred @ centred)) * math.sqrt(len(scores))
        if drift < _DRIFT or abs(together) > _TOGETHER:
            raise ConfigError(
                f"{mechanism.name} keeps state between calls: for one and the same update, what it sends changes from "
                "call to call; test it with its state put back in each call"
            )


def _judge_scores(pilot: _Scored, found: _Scored, play: Play, pair: str, score: str) -> Measured:
    high_is_left, threshold = _choose_threshold(pilot, play.delta)
    n = len(found.left)
    left, right = int((found.left > threshold).sum()), int((found.right > threshold).sum())
    # An alarm is true if it names the update that it is for.
    true, false = (left, right) if high_is_left else (n - right, n - left)
    counting = _bound_by_counting(_bound_below(true, n), _bound_above(false, n), play)
    middle = float(np.median(pilot.left) + np.median(pilot.right)) / 2
    told_apart = int((found.left > middle).sum() + (found.right <= middle).sum())
    notes = []
    if not np.ptp(found.left) and not np.ptp(found.right):
        notes.append(
            "each of both updates gave the same in every call: there is no noise, or its seed is fixed, as in a "
            "simulation"
        )
    method: Literal["counting", "gaussian", "sampled gaussian"] = "counting"
    bound, mu = counting, _bound_shift(found, play)
    if mu is not None:
        shaped = _bound_by_shape(mu, play)
        if shaped.draw >= counting.draw:
            bound, method = shaped, "sampled gaussian"
            if play.inside == 1:
                method = "gaussian"
    return Measured(
        bound=bound,
        method=method,
        counting=counting.draw,
        ceiling=composed_rates(_bound_below(n, n), _bound_above(0, n), 1, play.delta),
        mu=mu,
        told=told_apart,
        tries=2 * n,
        draws=play.draws,
        pair=pair,
        score=score,
        notes=tuple(notes),
    )


def _bound_below(k: int, n: int) -> float:
    from scipy import stats

    if k == 0:
        return 0.0
    # A quarter of 5 %: two one-sided bounds for counting, which has half of the error.
    return float(stats.beta.ppf((1 - LEVEL) / 4, k, n - k + 1))


def _bound_above(k: int, n: int) -> float:
    from scipy import stats

    if k == n:
        return 1.0
    return float(stats.beta.ppf(1 - (1 - LEVEL) / 4, k + 1, n - k))


def _choose_threshold(pilot: _Scored, delta: float) -> tuple[bool, float]:
    """Choose the side and the threshold with the highest bound on these draws."""
    from scipy import stats

    n = len(pilot.left)
    tail = (1 - LEVEL) / 4
    both = np.concatenate([pilot.left, pilot.right])
    # Quantiles of both together, so that thresholds lie where scores are.
    thresholds = np.unique(np.quantile(both, np.linspace(0, 1, _THRESHOLDS + 2)[1:-1]))
    best = (-math.inf, True, float(thresholds[0]))
    # Mirrored for the other side: low scores name the right update.
    for high_is_left, ours, others in ((True, pilot.left, pilot.right), (False, -pilot.right, -pilot.left)):
        cuts = thresholds if high_is_left else -thresholds[::-1]
        true = (ours[:, None] > cuts).sum(axis=0)
        false = (others[:, None] > cuts).sum(axis=0)
        least = np.nan_to_num(stats.beta.ppf(tail, true, n - true + 1)) - delta
        most = np.nan_to_num(stats.beta.ppf(1 - tail, false + 1, n - false), nan=1.0)
        value = np.where(least > 0, np.log(np.maximum(least, 1e-300) / most), -math.inf)
        index = int(value.argmax())
        if value[index] > best[0]:
            best = (float(value[index]), high_is_left, float(cuts[index]))
    _, high_is_left, threshold = best
    if not high_is_left:
        threshold = -threshold
    return high_is_left, threshold


def _bound_by_counting(true: float, false: float, play: Play) -> ScopedBound:
    # Who takes part with a rate alone is told as often as the others in the rest.
    true = (1 - play.rate) * false + play.rate * true
    return ScopedBound(*(composed_rates(true, false, count, play.delta) for count in (1, play.message, play.run)))


def composed_rates(true: float, false: float, count: int, delta: float) -> float:
    """Return the ε that telling apart at these rates shows, after ``count`` times, by how often it said yes.

    A lower bound on the rate of true alarms, and an upper one on that of false alarms, give a lower bound on ε.
    """
    from scipy import stats

    if true <= false:
        return 0.0
    yes = np.arange(1, count + 1)
    # P(at least k of n right) bounds TPR of the rule "say yes from k alarms on".
    hits = stats.binom.sf(yes - 1, count, true) - delta
    alarms = stats.binom.logsf(yes - 1, count, false)
    possible = hits > 0
    if not possible.any():
        return 0.0
    return max(0.0, float((np.log(hits[possible]) - alarms[possible]).max()))


def _bound_by_shape(mu: float, play: Play) -> ScopedBound:
    if not mu:
        return ScopedBound(0.0, 0.0, 0.0)
    multiplier = 1 / mu
    if play.relation == "replace":
        # Neighbours that replace each other are 2C apart: the same μ means twice the multiplier.
        multiplier = 2 / mu
    values = [
        gaussian_epsilon(multiplier, play.relation, count, play.delta, rate=play.rate * play.inside).low
        for count in (1, play.message, play.run)
    ]
    return ScopedBound(*values)


def _bound_shift(found: _Scored, play: Play) -> float | None:
    """Return a lower bound at 97.5 % on the distance in standard deviations; None if the shape is another one."""
    from scipy import stats

    error = (1 - LEVEL) / 2
    # With a sampler inside, the left draws are a mixture.
    if play.inside == 1:
        return shift_at_least(found.left, found.right, error)
    if not np.ptp(found.right) or not np.ptp(found.left) or not is_normal(found.right):
        return None
    return mixture_shift(found.left, found.right, play.inside, float(stats.norm.isf(error)), _KOLMOGOROV)
