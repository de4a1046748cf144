"""What DP-SGD costs: ε of a client's messages by Opacus' accountant, and the noise that keeps to a budget.

The accountant is the one by Rényi orders (Mironov 2017; Mironov et al. 2019): its ε is an upper bound whatever the
setting. The one by privacy loss distributions (PRV) is about a tenth tighter, but a numerical estimate up to an error,
and several times slower.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache

from fedattack.errors import ConfigError

# Opacus stops at order 63, where no ε below 0.1 can be stated at δ = 1e-5 however large the noise; beyond 1024 its
# binomial coefficients overflow.
_HIGH_ORDERS = (64, 80, 96, 128, 192, 256, 384, 512, 768, 1024)

_LEAST_NOISE = 1e-3
"""Below it a single step has an ε of half a million, and Opacus' series need not end."""

_MOST_EPSILON = 1e5

_MOST_NOISE = 1e6
"""Where Opacus' search for a noise multiplier gives up."""


@dataclass(frozen=True)
class Sampling:
    """How a client draws its examples in a round.

    Attributes
    ----------
    rate
        Probability with which a step takes an example, independently of other examples and steps.
    steps
        Steps a round.
    """

    rate: float
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1 or self.steps < 1:
            raise ConfigError(
                f"privacy accounting: expected a sampling rate in (0, 1] and at least 1 step; got {self.rate} and "
                f"{self.steps}"
            )

    @classmethod
    def of(cls, records: int, *, batch_size: int, epochs: int = 1) -> Sampling:
        """Give the sampling of :func:`train_private` for so many examples: rate b/n, and E·⌈n/b⌉ steps a round."""
        if not 0 < batch_size < records:
            return cls(1.0, epochs)
        return cls(batch_size / records, epochs * math.ceil(records / batch_size))


@dataclass(frozen=True)
class PrivacySpent:
    """The (ε, δ) guarantee for any one example of a client.

    With or without the example, the probability of what a server sees of the client differs by no more than a factor
    e^ε, but for δ. How many examples the client has is taken as known: a missing example has a gradient of 0. Drawing
    batches adds to the guarantee only towards those who do not learn which examples were drawn.

    Attributes
    ----------
    epsilon_round, epsilon_run
        Of one round's message, and of all together. Infinite where there is no guarantee worth the name.
    delta
        The probability with which they may fail.
    """

    epsilon_round: float
    epsilon_run: float
    delta: float


def privacy_spent(noise: float, sampling: Sampling, *, rounds: int, delta: float) -> PrivacySpent:
    """Account for a client's DP-SGD.

    Parameters
    ----------
    noise
        σ, the noise multiplier; without noise there is no guarantee.
    sampling
        Of one round. A full gradient, as of FedSGD, is ``Sampling(1.0, 1)``.
    rounds
        In how many the client takes part, at most.
    delta
        δ, in (0, 1).

    Returns
    -------
    PrivacySpent

    Raises
    ------
    ConfigError
        If a number is out of its range.
    """
    check_noise(noise)
    _check(rounds, delta)
    return PrivacySpent(
        _epsilon(noise, sampling.rate, sampling.steps, delta),
        _epsilon(noise, sampling.rate, sampling.steps * rounds, delta),
        delta,
    )


@lru_cache(maxsize=4096)
def noise_for(epsilon: float, sampling: Sampling, *, rounds: int, delta: float) -> float:
    """Find the noise multiplier with which a client's whole run spends ``epsilon`` at most, and hardly less.

    Parameters
    ----------
    epsilon
        The budget of all rounds together, above 0 and at most 1e5.
    sampling, rounds, delta
        As for :func:`privacy_spent`.

    Returns
    -------
    float
        σ; the run spends between 99 % and 100 % of the budget.

    Raises
    ------
    ConfigError
        If a number is out of its range, or no noise meets the budget.
    """
    from opacus.accountants.utils import get_noise_multiplier

    _check(rounds, delta)
    if not 0 < epsilon <= _MOST_EPSILON:
        raise ConfigError(
            f"privacy budget: ε must be above 0 and at most {_MOST_EPSILON:g}, beyond which it guarantees nothing; got "
            f"{epsilon}"
        )
    steps = sampling.steps * rounds
    # With so much noise the highest orders are the best, and the series of fractional orders would take seconds.
    least = _epsilon(_MOST_NOISE, sampling.rate, steps, delta, high_orders_alone=True)
    if least >= epsilon:
        raise ConfigError(
            f"privacy budget: no noise keeps {steps} steps at sampling rate {sampling.rate:.3g} within ε = {epsilon:g} "
            f"at δ = {delta:g}; the least that can be stated is ε = {least:.2g}; raise ε or δ, or train less"
        )
    with _without_advice_on_orders():
        noise = get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=sampling.rate,
            steps=steps,
            epsilon_tolerance=epsilon / 1000,
            alphas=_orders(every=4),  # half the time, and at most a little more noise than is needed
        )
    return float(noise)


def check_noise(noise: float) -> None:
    """Refuse a noise multiplier that is none.

    Raises
    ------
    ConfigError
        If it is negative or not finite.
    """
    if not (noise >= 0 and math.isfinite(noise)):
        raise ConfigError(f"DP-SGD: the noise multiplier must be a finite number of at least 0; got {noise}")


def _check(rounds: int, delta: float) -> None:
    if not 0 < delta < 1 or rounds < 1:
        raise ConfigError(
            f"privacy accounting: expected δ between 0 and 1, and at least 1 round; got {delta} and {rounds}"
        )


@lru_cache(maxsize=4096)
def _epsilon(noise: float, rate: float, steps: int, delta: float, high_orders_alone: bool = False) -> float:
    from opacus.accountants import RDPAccountant

    if noise < _LEAST_NOISE:
        return math.inf
    accountant = RDPAccountant()
    accountant.history = [(noise, rate, steps)]
    orders = [*_HIGH_ORDERS] if high_orders_alone else _orders()
    with _without_advice_on_orders():
        return float(accountant.get_epsilon(delta, alphas=orders))


def _orders(every: int = 1) -> list[float]:
    from opacus.accountants import RDPAccountant

    orders = RDPAccountant.DEFAULT_ALPHAS
    return [*orders[:20], *orders[20::every], *_HIGH_ORDERS]


def _without_advice_on_orders() -> warnings.catch_warnings:
    """Ignore the advice to try other orders: at either end the bound is looser than it could be, and still holds."""
    return warnings.catch_warnings(action="ignore", category=UserWarning)
