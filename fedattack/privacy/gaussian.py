"""The privacy of one Gaussian: N(0, 1) against N(μ, 1), with a sampler before it or without."""

from __future__ import annotations

import math
import warnings
from functools import lru_cache


@lru_cache(maxsize=65536)
def epsilon_of(mu: float, delta: float) -> float:
    """Return the tight ε of the Gaussian mechanism (Balle & Wang 2018, Theorem 8).

    Parameters
    ----------
    mu
        How many standard deviations apart two neighbours are. For T rounds it is √T times that of one (Dong et al.
        2022, Corollary 3.3), and the result is exact as well.
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
    return amplify(epsilon_of(mu, delta / rate), rate)


def amplify(epsilon: float, rate: float) -> float:
    """Return ln(1 + q(e^ε − 1)), also where e^ε is too large for a float."""
    if math.isinf(epsilon):
        return math.inf
    return max(0.0, epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon)))
