"""What noise of scale 1 does at least and at most, whatever it is added to.

An update is u = s + n: what the client computed, and the noise. The noise is drawn after s is known, and independent of
it. A Gaussian and a Laplace density are symmetric, and the sets where they are high are convex. So s + n lies in a
convex set around 0 no more often than n alone, if the set is symmetric (Anderson 1955). Hence sums of |u|, sums of
squares, ranks of |u| and lengths of projections are in distribution at least as large as those of the noise alone.

All functions take the probability ``error`` with which noise does go beyond what they return.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Protocol


class Draws(Protocol):
    """A kind of noise, of scale 1."""

    @property
    def word(self) -> str:
        """How people call its scale."""

    @property
    def power(self) -> int:
        """Of the entries, whose sum tells most about the scale."""

    def least_sum(self, size: int, error: float) -> float:
        """Return what the sum of the powers of so many entries hardly falls below."""

    def least_at(self, rank: int, size: int, error: float) -> float:
        """Return what the absolute value of this rank, counted from the smallest, hardly falls below."""

    def least_across(self, size: int, error: float) -> float:
        """Return what the square of the length across one given direction hardly falls below."""

    def most_square(self, size: int, clip: float, error: float) -> float:
        """Return what the square of the length hardly exceeds, of noise on something of length ``clip``."""


class GaussianDraws:
    """Gaussian noise of deviation 1."""

    word = "σ"
    power = 2

    def least_sum(self, size: int, error: float) -> float:
        """Return a quantile of χ² with ``size`` degrees of freedom."""
        return _chi_square_quantile(size, error)

    def least_at(self, rank: int, size: int, error: float) -> float:
        """Return a quantile of the half-normal distribution, at a share that follows a Beta."""
        from scipy import special

        return math.sqrt(2) * float(special.erfinv(_share_quantile(rank, size, error)))

    def least_across(self, size: int, error: float) -> float:
        """Return a quantile of χ² with one degree of freedom less."""
        return _chi_square_quantile(size - 1, error) if size > 1 else 0.0

    def most_square(self, size: int, clip: float, error: float) -> float:
        """Bound ‖s + n‖² = ‖n‖² + 2 s·n + ‖s‖², where s·n is Gaussian with deviation ‖s‖."""
        from scipy import special, stats

        squares = 2 * float(special.gammainccinv(size / 2, error / 2))
        return squares + 2 * clip * float(stats.norm.isf(error / 2)) + clip**2


class LaplaceDraws:
    """Laplace noise of scale 1: |n| is exponential, with mean 1."""

    word = "b"
    power = 1

    def least_sum(self, size: int, error: float) -> float:
        """Return a quantile of a Gamma, as the sum of |n| is one."""
        return _gamma_quantile(size, error)

    def least_at(self, rank: int, size: int, error: float) -> float:
        """Return a quantile of the exponential distribution, at a share that follows a Beta."""
        return -math.log1p(-_share_quantile(rank, size, error))

    def least_across(self, size: int, error: float) -> float:
        """Bound ‖n‖² by (Σ|n|)² / size, and the part along the direction by its moments at 1/2 (Chernoff)."""
        along = 2 * math.log(16 / (3 * error))
        return max(0.0, _gamma_quantile(size, error / 2) ** 2 / size - along**2)

    def most_square(self, size: int, clip: float, error: float) -> float:
        """Cut squares where hardly any lies, and bound their sum by the variance (Bernstein)."""
        third = error / 3
        largest = math.log(size / third) ** 2
        tail = math.log(1 / third)
        # E n² = 2, E n⁴ = 24.
        above = tail * largest / 3 + math.sqrt((tail * largest / 3) ** 2 + 48 * size * tail)
        return 2 * size + above + 4 * clip * math.log(4 / (3 * third)) + clip**2


@lru_cache(maxsize=65536)
def _chi_square_quantile(degrees: int, error: float) -> float:
    from scipy import special

    return 2 * float(special.gammaincinv(degrees / 2, error))


@lru_cache(maxsize=65536)
def _gamma_quantile(size: int, error: float) -> float:
    from scipy import special

    return float(special.gammaincinv(size, error))


@lru_cache(maxsize=65536)
def _share_quantile(rank: int, size: int, error: float) -> float:
    from scipy import special

    return float(special.betaincinv(rank, size - rank + 1, error))
