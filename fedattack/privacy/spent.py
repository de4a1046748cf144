"""What a client's DP-SGD costs: ε of its messages, and the noise that keeps to a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from fedattack.base.errors import ConfigError
from fedattack.privacy.epsilon import gaussian_epsilon

_MOST_EPSILON = 1e5

# Between these noise multipliers the one that keeps to a budget is sought, to so much of itself.
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
_CLOSE = 2e-3


@dataclass(frozen=True)
class ExampleSampling:
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
    def of(cls, records: int, *, batch_size: int, epochs: int = 1) -> ExampleSampling:
        """Give a round's sampling for so many examples, as :func:`fedattack.learning.train_private` draws them.

        The rate is b/n, and there are E·⌈n/b⌉ steps.
        """
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


def privacy_spent(noise: float, sampling: ExampleSampling, *, rounds: int, delta: float) -> PrivacySpent:
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
def noise_for(epsilon: float, sampling: ExampleSampling, *, rounds: int, delta: float) -> float:
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
    _check(rounds, delta)
    if not 0 < epsilon <= _MOST_EPSILON:
        raise ConfigError(
            f"privacy budget: ε must be above 0 and at most {_MOST_EPSILON:g}, beyond which it guarantees nothing; got "
            f"{epsilon}"
        )
    steps = sampling.steps * rounds

    def spent(noise: float) -> float:
        return _epsilon(noise, sampling.rate, steps, delta)

    high = 1.0
    while spent(high) > epsilon:
        high *= 2
        if high > _MOST_NOISE:
            raise ConfigError(
                f"privacy budget: no noise keeps {steps} steps at sampling rate {sampling.rate:.3g} within ε = "
                f"{epsilon:g} at δ = {delta:g}; raise ε or δ, or train less"
            )
    low = high / 2
    while spent(low) <= epsilon and low > _LEAST_NOISE:
        high, low = low, low / 2
    # By halves of the logarithm. Whatever rounding does, the upper end is one that was found to keep to the budget.
    while high / low > 1 + _CLOSE:
        middle = math.sqrt(low * high)
        if spent(middle) > epsilon:
            low = middle
        else:
            high = middle
    return high


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


def _epsilon(noise: float, rate: float, steps: int, delta: float) -> float:
    """Return an upper bound, at most a thousandth above the exact ε; without a sampler the exact one."""
    return gaussian_epsilon(noise, "add-remove", steps, delta, rate=rate).high
