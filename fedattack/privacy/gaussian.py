"""The privacy of one Gaussian: N(0, 1) against N(μ, 1), with a sampler before it or without."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

# Deviations that are so close are taken for the same; above this, ε is told as infinite.
_EQUAL = 1e-6
_ABSURD = 1e6
# A Gaussian that is so narrow is a point.
_POINT = 1e-100


@lru_cache(maxsize=65536)
def epsilon_of(mu: float, delta: float) -> float:
    """Return the tight ε of the Gaussian mechanism (Balle & Wang 2018, Theorem 8).

    Parameters
    ----------
    mu
        How many standard deviations apart two neighbours are. Of T rounds it is √T times that of one (Dong et al. 2022,
        Corollary 3.3), and the result is exact as well.
    delta
        δ, in (0, 1).
    """
    from dp_accounting import get_epsilon_gaussian

    if mu <= 0:
        return 0.0
    if math.isinf(mu * mu):  # ε is about μ²/2
        return math.inf
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # log of 0 at the end of its search
        return float(get_epsilon_gaussian(1 / mu, delta))


def sampled_epsilon(mu: float, rate: float, delta: float) -> float:
    """Return the tight ε of one Gaussian that a unit takes part in with probability ``rate``, and else adds zeros to.

    Both directions, of adding and of removing, are within it (Balle et al. 2018, Theorem 8): ε' = ln(1 + q(e^ε − 1)) at
    δ' = qδ.
    """
    if delta >= rate:
        return 0.0
    return amplified(epsilon_of(mu, delta / rate), rate)


def amplified(epsilon: float, rate: float) -> float:
    """Return ln(1 + q(e^ε − 1)), also where e^ε is too large for a float."""
    if math.isinf(epsilon):
        return math.inf
    return max(0.0, epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon)))


def epsilon_between(mu: float, deviation: float, delta: float) -> float:
    """Return the ε at which N(μ, s²) and N(0, 1) are (ε, δ)-indistinguishable, in both directions.

    The privacy loss of either is a quadratic of the score, so that its tails are those of two Gaussians. With s = 1 it
    is :func:`epsilon_of`. As an estimate of ε, from the mean and deviation of canaries' scores, it is that of Andrew et
    al. (2024). With s = 0 it is infinite, because N(0, 1) never hits a point.
    """
    from scipy import optimize

    if abs(deviation - 1) < _EQUAL:
        return epsilon_of(abs(mu), delta)
    if deviation < _POINT:
        return math.inf

    def excess(epsilon: float) -> float:
        return max(_hockey_stick(mu, deviation, epsilon, here) for here in (True, False)) - delta

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        if high > _ABSURD:
            return math.inf
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-9))


def _hockey_stick(mu: float, deviation: float, epsilon: float, first: bool) -> float:
    """Return sup_S P(S) − e^ε Q(S), where P is the Gaussian with μ and s, or else the standard one."""
    own, other = (mu, deviation), (0.0, 1.0)
    if not first:
        own, other = other, own
    # ln p(x)/q(x) − ε = a x² + b x + c, with the sign turned where P is the standard one.
    sign = 1 if first else -1
    a = sign * (1 - deviation**-2) / 2
    b = sign * mu / deviation**2
    c = sign * (-math.log(deviation) - (mu / deviation) ** 2 / 2) - epsilon
    square = b * b - 4 * a * c
    if square <= 0:
        # The loss is above ε everywhere, or nowhere.
        return 1 - math.exp(epsilon) if a > 0 else 0.0
    low, high = sorted(((-b - math.sqrt(square)) / (2 * a), (-b + math.sqrt(square)) / (2 * a)))
    if a > 0:
        logs = [(_below(own, low), _below(other, low)), (_above(own, high), _above(other, high))]
    else:
        logs = [(_between(own, low, high), _between(other, low, high))]
    total = 0.0
    for ours, theirs in logs:
        total += math.exp(ours) - math.exp(min(epsilon + theirs, 700.0))
    return total


def _below(law: tuple[float, float], place: float) -> float:
    """Return the log of the probability that a Gaussian of this mean and deviation is below a place."""
    from scipy import special

    mean, deviation = law
    return float(special.log_ndtr((place - mean) / deviation))


def _above(law: tuple[float, float], place: float) -> float:
    mean, deviation = law
    return _below((-mean, deviation), -place)


def _between(law: tuple[float, float], low: float, high: float) -> float:
    """Return the log of a Gaussian's probability of an interval, by its nearer tail."""
    upper = law[0] < (low + high) / 2
    near, far = (_above(law, low), _above(law, high)) if upper else (_below(law, high), _below(law, low))
    return near + math.log1p(-math.exp(min(far - near, -1e-300)))
