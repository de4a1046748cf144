"""The ε that a claim's numbers really give, between two bounds, each with what it assumes.

Noise is taken to be drawn in real numbers, and by a seed that the adversary does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedattack.claims.claim import DP_SGD, UPDATE, Claim
from fedattack.claims.gaussian import epsilon_of, sampled_epsilon
from fedattack.errors import ConfigError

# The grid of a privacy loss distribution: its first step, how many steps there may be to the largest ε, how often it is
# made finer, and the share of ε by which the last time may still change it.
_COARSEST = 4e-3
_GRID = 2**17
_REFINED = 5
_ERROR = 1e-3
# Where ε is no number that anybody claims, the cheap bounds are told.
_ABSURD = 500.0
# Entries that a difference is spread over at most to find a lower bound for Laplace: more make hardly a difference.
_SPREAD = 64


@dataclass(frozen=True)
class Epsilon:
    """What ε is at least and at most; infinite where there is no guarantee, and 0 where nothing is known from below."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ConfigError(f"bounds of ε: expected two numbers of at least 0 in order; got {self.low}, {self.high}")


NONE = Epsilon(math.inf, math.inf)
"""No guarantee at all."""


@dataclass(frozen=True)
class Configured:
    """What arithmetic says of a claim.

    Attributes
    ----------
    message, run
        ε of one message (or released model), and of all rounds; None if the claim lacks what they follow from.
    stated
        ε of what is claimed, a message or the run, if the unit moved a message by no more than the sensitivity that the
        claim states; None if it states none, or the noise is not that of an update.
    assumes
        What the numbers rest on, a sentence each.
    lacks
        Why there are none; empty if there are.
    """

    message: Epsilon | None
    run: Epsilon | None
    stated: float | None
    assumes: tuple[str, ...]
    lacks: str = ""


@dataclass(frozen=True)
class _Steps:
    """A step that is repeated: noise of σ = z·C, a unit that weighs C at most, and a sampler."""

    multiplier: float
    rate: float
    method: Literal["poisson", "fixed-size"]
    relation: str
    delta: float

    @property
    def mu(self) -> float:
        """How many standard deviations apart neighbours are, if they take part."""
        factor = 2.0 if self.relation == "replace" else 1.0
        return factor / self.multiplier if self.multiplier else math.inf


def configured(claim: Claim) -> Configured:
    """Work out the ε of what a claim configures.

    - Gaussian noise without a sampler is exact: Balle & Wang (2018) for one message, μ·√T for T (Dong et al. 2022).
    - With a Poisson sampler, bounds from above and below by privacy loss distributions (dp-accounting).
    - With a sampler of fixed size, from above by Rényi orders (Wang et al. 2019), from below by one pair of data sets.
    - Laplace noise on an update that is clipped in L2: see :func:`laplace_epsilon`.

    Returns
    -------
    Configured
    """
    assumes = _assumptions(claim)
    stated = _stated(claim)
    if claim.central and claim.trusted_server is False:
        reason = "the server sees each update before it adds the noise: towards it there is no guarantee"
        return Configured(NONE, NONE, stated, (reason,))
    if claim.multiplier is None:
        return Configured(None, None, stated, assumes, _lacking(claim))
    message, run = claim.steps, claim.steps * claim.rounds
    return Configured(_claimed(claim, message), _claimed(claim, run), stated, assumes)


def _claimed(claim: Claim, count: int) -> Epsilon:
    if claim.mechanism == "laplace":
        return laplace_epsilon(_multiplier(claim), claim.relation, count, claim.delta, claim.entries)
    low, high = (
        gaussian_epsilon(
            multiplier,
            claim.relation,
            count,
            claim.delta,
            rate=claim.sampling,
            method=claim.sampling_method,
        )
        for multiplier in _multipliers(claim)
    )
    return Epsilon(low.low, high.high)


def _multiplier(claim: Claim) -> float:
    if claim.multiplier is None:
        raise ConfigError("the claim has no noise multiplier")
    return claim.multiplier


def _multipliers(claim: Claim) -> tuple[float, float]:
    """Return the largest and the smallest noise multiplier that the claim allows for."""
    multiplier = _multiplier(claim)
    if not claim.central:
        return multiplier, multiplier
    best, worst = 1.0, 1.0
    if claim.largest_share is not None and claim.clients is not None:
        best = worst = claim.largest_share * claim.clients
    elif claim.weights == "examples":
        worst = math.inf if claim.clients is None else float(claim.clients)
    most, least = multiplier / best, multiplier * claim.clip_falls / worst
    if claim.count_noise is not None:
        most, least = (with_count(each, claim.count_noise, claim.relation) for each in (most, least))
    return most, least


def with_count(multiplier: float, count_noise: float, relation: str) -> float:
    """Return the noise multiplier of an update and of the bit beside it, which says whether it was clipped.

    A bit is 0 or 1, so that one client moves the count by 1, to which noise of ``count_noise`` is added. (Andrew et al.
    2021, Theorem 1, have bits of ±½ and move it by ½.) Both shifts together are one of the length √(1/z² + 1/σ_b²).
    """
    if not multiplier:
        return 0.0
    factor = 2.0 if relation == "replace" else 1.0
    length = math.hypot(factor / multiplier, 1 / count_noise)
    return factor / length


def gaussian_epsilon(
    multiplier: float,
    relation: str,
    count: int,
    delta: float,
    *,
    rate: float = 1.0,
    method: Literal["poisson", "fixed-size"] = "poisson",
) -> Epsilon:
    """Bound the ε of Gaussian noise.

    Parameters
    ----------
    multiplier
        z = σ / C, where C is the most that a unit weighs.
    relation
        ``add-remove``: neighbours are C apart; ``replace``: they are 2C apart.
    count
        How often, by the same unit.
    delta
        δ of all together.
    rate, method
        The sampler's; which units it drew is taken to stay unknown.

    Returns
    -------
    Epsilon
        Without a sampler both bounds are the same.
    """
    steps = _Steps(multiplier, rate, method, relation, delta)
    whole = epsilon_of(steps.mu * math.sqrt(count), delta)
    if rate == 1.0 or math.isinf(whole):
        return Epsilon(whole, whole)
    least = _sampled_once(steps)
    if count == 1 and method == "poisson" and relation == "add-remove":
        return Epsilon(least, least)
    if epsilon_of(steps.mu, delta) > _ABSURD:
        return Epsilon(least, whole)
    try:
        loss, error = _by_loss(steps, count, whole)
    except OverflowError:  # more steps, and rarer ones, than a grid can hold
        return Epsilon(least, whole)
    high = loss
    if method == "fixed-size":
        high = _fixed_size(steps, count)
    # A pair of data sets that differ in one unit, and are zeros elsewhere, is the same for both samplers.
    high = min(high, whole)
    return Epsilon(min(max(least, loss - error), high), high)


def _sampled_once(steps: _Steps) -> float:
    """From below, since a unit may also be replaced by zeros, and more steps tell no less."""
    single = 1 / steps.multiplier
    return sampled_epsilon(single, steps.rate, steps.delta)


def _by_loss(steps: _Steps, count: int, most: float) -> tuple[float, float]:
    """Return ε by a privacy loss distribution, and how far it may be too high.

    Connected dots are an upper bound (Doroshenko et al. 2022), whose error falls with the square of the grid's step. So
    the grid is made finer until little changes, and the last change is more than what is left.
    """
    interval = max(_COARSEST, most / _GRID)
    epsilon, error = _on_grid(steps, count, interval), math.inf
    for _ in range(_REFINED):
        interval /= 4
        finer = _on_grid(steps, count, interval)
        epsilon, error = finer, max(0.0, epsilon - finer)
        if error <= _ERROR * epsilon:
            break
    return epsilon, error


def _on_grid(steps: _Steps, count: int, interval: float) -> float:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as losses

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    if steps.relation == "replace":
        relation = NeighboringRelation.REPLACE_ONE
    single = losses.from_gaussian_mechanism(
        steps.multiplier,
        sampling_prob=steps.rate,
        value_discretization_interval=interval,
        neighboring_relation=relation,
    )
    return float(single.self_compose(count).get_epsilon_for_delta(steps.delta))


def _fixed_size(steps: _Steps, count: int) -> float:
    """Return an upper bound by Rényi orders (Wang et al. 2019), for a unit that is another one, or zeros."""
    from dp_accounting import NeighboringRelation, dp_event, rdp

    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    # This event takes noise in units of how far neighbours are apart.
    gaussian = dp_event.GaussianDpEvent(1 / steps.mu)
    whole = 10**9
    accountant.compose(dp_event.SampledWithoutReplacementDpEvent(whole, round(steps.rate * whole), gaussian), count)
    return float(accountant.get_epsilon(steps.delta))


def laplace_epsilon(multiplier: float, relation: str, count: int, delta: float, entries: int | None) -> Epsilon:
    """Bound the ε of Laplace noise in every entry of an update that is clipped in L2.

    From above: the sum over entries is ½(Δ/b)²-zCDP (Bun & Steinke 2016, Proposition 3.3), hence no more than a
    Gaussian of σ = b at Rényi orders; and pure DP by the L1 norm, Δ·√entries / b. From below: the difference stands in
    one entry, or is spread over some.

    Parameters
    ----------
    multiplier
        b / C.
    relation, count, delta
        As for :func:`gaussian_epsilon`.
    entries
        Numbers in an update, if known.
    """
    factor = 2.0 if relation == "replace" else 1.0
    if not multiplier:
        return NONE
    ratio = factor / multiplier
    high = _by_orders(ratio * math.sqrt(count), delta)
    low = max(0.0, ratio + 2 * math.log1p(-delta))
    spreads = [1]
    if entries is not None:
        high = min(high, ratio * math.sqrt(entries) * count)
        spreads.append(min(entries, _SPREAD))
    if ratio < _ABSURD:
        for spread in spreads:
            low = max(low, _laplace_from_below(ratio / math.sqrt(spread), spread * count, delta))
    return Epsilon(min(low, high), high)


def _by_orders(ratio: float, delta: float) -> float:
    """Return the ε of a Gaussian by Rényi orders, which holds for all that has no larger divergences."""
    from dp_accounting import dp_event, rdp

    accountant = rdp.RdpAccountant()
    accountant.compose(dp_event.GaussianDpEvent(1 / ratio))
    return float(accountant.get_epsilon(delta))


def _laplace_from_below(ratio: float, count: int, delta: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution as losses

    most = ratio * count
    # Rounding down loses a step of the grid with each draw.
    interval = max(min(1e-3, 5e-3 * most / count), most / _GRID)
    single = losses.from_laplace_mechanism(
        1 / ratio, pessimistic_estimate=False, value_discretization_interval=interval, use_connect_dots=False
    )
    return float(single.self_compose(count).get_epsilon_for_delta(delta))


def _stated(claim: Claim) -> float | None:
    if claim.sensitivity is None or claim.mechanism not in UPDATE or claim.deviation is None:
        return None
    if not claim.deviation:
        return math.inf
    ratio = claim.sensitivity / claim.deviation
    count = claim.rounds if claim.epsilon_of == "run" else 1
    if claim.mechanism == "laplace":
        # By δ, a run has less than the sum.
        return ratio if count == 1 else None
    return epsilon_of(ratio * math.sqrt(count), claim.delta)


def _lacking(claim: Claim) -> str:
    if claim.deviation is None and claim.noise_multiplier is None:
        return "the claim says nothing of the noise: it lacks sigma or noise-multiplier"
    if claim.clip is None:
        return "the claim has sigma and lacks clip, so that nothing bounds how far one unit moves"
    return "the claim has sigma and lacks clients, the number of replies that the mean is over"


def _assumptions(claim: Claim) -> tuple[str, ...]:
    tests: list[tuple[bool, str]] = [
        (True, _distance(claim)),
        (True, "whatever is sent is clipped and gets noise: no buffer, no integer, no metric goes beside it"),
        (True, "the seed of the noise is not known, and no two draws are the same"),
        (claim.rounds > 1, f"the unit takes part in all of {claim.rounds} rounds"),
        (claim.central, "those who see the updates are trusted, the server among them"),
        (claim.central and claim.weights == "equal", "all clients weigh the same in the mean, and none drops out"),
        (
            claim.weights == "examples" and claim.largest_share is None,
            "of the weights only the number of clients is known: at best all weigh the same, at worst one has them all",
        ),
        (
            claim.count_noise is not None,
            "a client's bit moves the count of clipped updates by 1",
        ),
        (
            claim.clip_falls < 1,
            f"the clipping norm falls to no less than {claim.clip_falls:.3g} of itself between clipping and noise",
        ),
        (claim.sampling < 1, _sampler(claim)),
        (
            claim.mechanism == "laplace" and claim.entries is None,
            "how many entries an update has is not known: the bounds hold for any number",
        ),
    ]
    return tuple(text for holds, text in tests if holds)


def _distance(claim: Claim) -> str:
    what = "an example's gradient" if claim.mechanism == DP_SGD else "an update"
    if claim.relation == "replace":
        return f"{what} of norm C may be replaced by any other, which is 2C away at most"
    return f"{what} of norm C may be missing, which is as zeros, C away; how many there are is known"


def _sampler(claim: Claim) -> str:
    drawn = "examples" if claim.mechanism == DP_SGD else "clients"
    how = "each by a coin of its own" if claim.sampling_method == "poisson" else "a fixed number of them"
    return f"{drawn} are drawn {how}, at random and anew in each step, and which is not known"
