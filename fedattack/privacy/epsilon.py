"""The ε of noise, between two bounds: what it is at least, and what it is at most.

- Gaussian noise without a sampler is exact: Balle & Wang (2018) for one release, μ·√T for T (Dong et al. 2022).
- With a Poisson sampler, bounds from above and below by privacy loss distributions (dp-accounting).
- With a sampler of fixed size, from above by Rényi orders (Wang et al. 2019), from below by one pair of data sets.
- With batches that are shuffled, from above as without a sampler: a unit is in one step of each epoch. From below by
  the step that stands out most (:func:`shuffled_epsilon`).
- With a sampler that nobody knows, from above as without one, from below by one step.
- Laplace noise on an update that is clipped in L2: see :func:`laplace_epsilon`.

Noise is taken to be drawn in real numbers, and by a seed that the adversary does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError
from fedattack.privacy.gaussian import epsilon_of, sampled_epsilon

# The grid of a privacy loss distribution: its first step, how many steps there may be to the largest ε, how often it is
# made finer, and the share of ε by which the last time may still change it.
_COARSEST = 4e-3
_GRID = 2**17
_REFINED = 5
_ERROR = 1e-3
# Where ε is no number that anybody claims, the cheap bounds are told.
_ABSURD = 500.0
# The largest sum of an epoch is told in so many bins, to so many deviations beyond what is likely, and no mass is zero.
_BINS = 2001
_TAIL = 8.0
_LEAST_MASS = 1e-300
_FINEST = 1e-9
# More epochs take long, and a bound for so many holds for them.
_MOST_EPOCHS = 10_000
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
class _Steps:
    """A step that is repeated: noise of σ = z·C, a unit that weighs C at most, and a sampler."""

    multiplier: float
    rate: float
    method: Literal["poisson", "fixed-size"] | None
    relation: str
    delta: float

    @property
    def mu(self) -> float:
        """How many standard deviations apart neighbours are, if they take part."""
        if not self.multiplier:
            return math.inf
        return _factor_of(self.relation) / self.multiplier


def _factor_of(relation: str) -> float:
    """Return how many times the clipping norm neighbours are apart at most."""
    if relation == "replace":
        return 2.0
    return 1.0


def with_count(multiplier: float, count_noise: float, relation: str) -> float:
    """Return the noise multiplier of an update and of the bit beside it, which says whether it was clipped.

    A bit is 0 or 1, so that one client moves the count by 1, to which noise of ``count_noise`` is added. (Andrew et al.
    2021, Theorem 1, have bits of ±½ and move it by ½.) Both shifts together are one of the length √(1/z² + 1/σ_b²).
    """
    if not multiplier or not count_noise:
        return 0.0
    factor = _factor_of(relation)
    length = math.hypot(factor / multiplier, 1 / count_noise)
    return factor / length


@lru_cache(maxsize=4096)
def gaussian_epsilon(
    multiplier: float,
    relation: str,
    count: int,
    delta: float,
    *,
    rate: float = 1.0,
    method: Literal["poisson", "fixed-size"] | None = "poisson",
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
        The sampler's; which units it drew is taken to stay unknown. None: any sampler with this rate.

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
    if method is None:
        return Epsilon(least, whole)
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


@lru_cache(maxsize=4096)
def shuffled_epsilon(multiplier: float, relation: str, epochs: int, delta: float, *, rate: float) -> Epsilon:
    """Bound the ε of Gaussian noise on batches that are shuffled anew in each epoch.

    Parameters
    ----------
    multiplier, relation, delta
        As for :func:`gaussian_epsilon`.
    epochs
        In each of them a unit is in one batch at most.
    rate
        The share of units in a batch.

    Returns
    -------
    Epsilon
        From above, as if the order were known: the other steps do not depend on the unit. From below, it is not known.
    """
    steps = _Steps(multiplier, rate, None, relation, delta)
    whole = epsilon_of(steps.mu * math.sqrt(epochs), delta)
    if rate == 1.0 or math.isinf(whole) or not whole:
        return Epsilon(whole, whole)
    least = _sampled_once(steps)
    # Fewer epochs tell less, and where ε is absurd a grid for all of them would be too.
    fewer = min(epochs, _MOST_EPOCHS)
    if whole > _ABSURD:
        fewer = min(fewer, max(1, math.floor(epochs * _ABSURD / whole / 2)))
    most = epsilon_of(steps.mu * math.sqrt(fewer), delta)
    if most <= _ABSURD:
        least = max(least, _largest_step(steps, fewer, most))
    return Epsilon(min(least, whole), whole)


def _largest_step(steps: _Steps, epochs: int, most: float) -> float:
    """Return a lower bound on ε for batches in an unknown order, by the largest sum of each epoch.

    All other units weigh C against the direction in which the unit weighs C, so that its batch stands out by 2C. Where
    it is missing, its batch is one of zeros more, and stands out by C; where another is in its place, none does.
    """
    from dp_accounting.pld import privacy_loss_distribution as losses

    with_it, without = 2 / steps.multiplier, 1 / steps.multiplier
    if steps.relation == "replace":
        without = 0.0
    edges = np.linspace(-_TAIL, with_it + _TAIL, _BINS)
    interval = max(min(1e-3, 5e-3 * most / epochs), most / _GRID, _FINEST)
    found = 0.0
    for one, other in ((with_it, without), (without, with_it)):
        # The masses are exact. Whatever is lost by bins and by rounding down makes the bound lower.
        upper, lower = (dict(enumerate(_log_masses(edges, shift, steps.rate))) for shift in (one, other))
        single = losses.from_two_probability_mass_functions(
            lower, upper, pessimistic_estimate=False, value_discretization_interval=interval
        )
        found = max(found, float(single.self_compose(epochs).get_epsilon_for_delta(steps.delta)))
    return found


def _log_masses(edges: NDArray[np.float64], shift: float, rate: float) -> NDArray[np.float64]:
    """Return the logarithms of how likely the largest of an epoch's sums lies in each bin, if one is shifted."""
    from scipy.special import log_ndtr

    batches = math.floor(1 / rate * (1 + 1e-9))
    # What is left of the last batch may be dropped, and the unit with it.
    taken = min(1.0, batches * rate)
    below = taken * np.exp(log_ndtr(edges - shift) + (batches - 1) * log_ndtr(edges))
    below += (1 - taken) * np.exp(batches * log_ndtr(edges))
    above = -taken * np.expm1(log_ndtr(edges - shift) + (batches - 1) * log_ndtr(edges))
    above -= (1 - taken) * np.expm1(batches * log_ndtr(edges))
    # Differences of what is small keep their digits.
    masses = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    whole: NDArray[np.float64] = np.concatenate([below[:1], masses, above[-1:]])
    logarithms: NDArray[np.float64] = np.log(np.maximum(whole, _LEAST_MASS))
    return logarithms


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
    if not multiplier:
        return NONE
    ratio = _factor_of(relation) / multiplier
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
