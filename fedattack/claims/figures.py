"""How an ε is written."""

from __future__ import annotations

import math
from typing import Any

from fedattack.privacy import Epsilon

_LARGE = 1e4
# Bounds that are so close, as a share of the upper one, are one number.
_CLOSE = 0.01


def in_figures(epsilon: float) -> str:
    """Write an ε with three or four digits, or as a power of ten that it reaches."""
    if math.isinf(epsilon):
        return "infinity"
    if epsilon < 1000:
        return f"{epsilon:.3g}"
    if epsilon < _LARGE:
        return f"{epsilon:,.0f}"
    # Rounded down: a bound must not be written larger than it is.
    return f"10^{math.floor(math.log10(epsilon))}"


def bounds_in_figures(bounds: Epsilon) -> str:
    """Write what is known of an ε, for a table: ``2.03``, ``≥ 10^8``, ``1.68–84``, ``≥ 3.88``."""
    if math.isinf(bounds.low):
        return "infinite"
    # A power of ten is rounded down, so that it is a lower bound, too.
    if bounds.low >= _LARGE or math.isinf(bounds.high):
        return f"≥ {in_figures(bounds.low)}"
    if bounds.high - bounds.low <= _CLOSE * bounds.high:
        return in_figures(bounds.high)
    return f"{in_figures(bounds.low)}–{in_figures(bounds.high)}"


def equation(bounds: Epsilon) -> str:
    """Write what is known of an ε, for a sentence: ``ε = 2.03``, ``ε ≥ 10^8``, ``an ε between 1.68 and 84``."""
    figures = bounds_in_figures(bounds)
    if "–" in figures:
        return f"an ε between {in_figures(bounds.low)} and {in_figures(bounds.high)}"
    return f"ε {figures}" if figures[0] == "≥" else f"ε = {figures}"


def plain(value: Any) -> Any:
    """Copy into what JSON can hold; an infinite number is the text ``infinity``."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(plain, value))
    # JSON has no infinity.
    return "infinity" if value == math.inf else value
