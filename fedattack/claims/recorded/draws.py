"""What noise of scale 1 does at least and at most, whatever it is added to.

An update is u = s + n: what the client computed, and the noise. The noise is drawn after s is known, and independent of
it. A Gaussian and a Laplace density are symmetric, and the sets where they are high are convex. So s + n lies in a
convex set around 0 no more often than n alone, if the set is symmetric (Anderson 1955). Hence sums of |u|, sums of
squares and ranks of |u| are in distribution at least as large as those of the noise alone.

All functions take the probability ``error`` with which noise does go beyond what they return.
"""

from __future__ import annotations

import math
from functools import lru_cache


class GaussianDraws:
    """Gaussian noise of deviation 1; ``word`` is what people call its scale, ``power`` is that of :meth:`least_sum`."""

    word = "σ"
    power = 2

    def least_sum(self, size: int, error: float) -> float:
        """Return what the sum of the squares of so many entries hardly falls below."""
        # A quantile of χ² with `size` degrees of freedom, which is twice a Gamma of half of them.
        return 2 * _gamma_quantile(size / 2, error)

    def least_at(self, rank: int, size: int, error: float) -> float:
        """Return what the absolute value of this rank, counted from the smallest, hardly falls below."""
        # A quantile of the half-normal distribution, at a share that follows a Beta.
        from scipy import special

        return math.sqrt(2) * float(special.erfinv(_share_quantile(rank, size, error)))

    def most_square(self, size: int, clip: float, error: float) -> float:
        """Return what the square of the length hardly exceeds, of noise on something of length ``clip``."""
        from scipy import special, stats

        # ‖s + n‖² = ‖n‖² + 2 s·n + ‖s‖², where s·n is Gaussian with deviation ‖s‖.
        squares = 2 * float(special.gammainccinv(size / 2, error / 2))
        return squares + 2 * clip * float(stats.norm.isf(error / 2)) + clip**2


class LaplaceDraws:
    """Laplace noise of scale 1: |n| is exponential, with mean 1."""

    word = "b"
    power = 1

    def least_sum(self, size: int, error: float) -> float:
        """Return what the sum of the absolute values of so many entries hardly falls below."""
        return _gamma_quantile(size, error)

    def least_at(self, rank: int, size: int, error: float) -> float:
        """Return what the absolute value of this rank, counted from the smallest, hardly falls below."""
        # A quantile of the exponential distribution, at a share that follows a Beta.
        return -math.log1p(-_share_quantile(rank, size, error))

    def most_square(self, size: int, clip: float, error: float) -> float:
        """Return what the square of the length hardly exceeds, of noise on something of length ``clip``."""
        # Squares are cut where hardly any lies, and their sum is bounded by the variance (Bernstein).
        third = error / 3
        largest = math.log(size / third) ** 2
        tail = math.log(1 / third)
        # E n² = 2, E n⁴ = 24.
        above = tail * largest / 3 + math.sqrt((tail * largest / 3) ** 2 + 48 * size * tail)
        return 2 * size + above + 4 * clip * math.log(4 / (3 * third)) + clip**2


Draws = GaussianDraws | LaplaceDraws


@lru_cache(maxsize=65536)
def _gamma_quantile(size: float, error: float) -> float:
    from scipy import special

    return float(special.gammaincinv(size, error))


@lru_cache(maxsize=65536)
def _share_quantile(rank: int, size: int, error: float) -> float:
    from scipy import special

    return float(special.betaincinv(rank, size - rank + 1, error))
