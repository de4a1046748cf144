"""How a number and its interval read, wherever a finding is shown: on the page, in the terminal and in a notebook."""

from collections.abc import Mapping
from typing import Any

PROPORTION = "proportion"
"""Units of a rate in [0, 1]; people are shown it in per cent."""

AUC = "AUC"
"""Units of an area under a ROC curve."""

NOTHING = "–"


def in_units(value: float, units: str = PROPORTION) -> str:
    """Write a number as people read it: ``0.581`` as a proportion is ``58.1%``.

    A proportion that is not quite 0 or 1 is given enough decimals not to read as 0% or 100%, unless it takes more than
    four.
    """
    # g drops trailing zeros; the units may be empty.
    if units != PROPORTION:
        return f"{value:.3g} {units}".rstrip()
    percent = 100 * value
    # Exactly none and all have no decimals.
    if percent in (0, 100):
        return f"{percent:.0f}%"
    # As many decimals as it takes that a number next to 0 or 1 is not written as 0% or 100%.
    for decimals in range(1, 5):
        text = f"{percent:.{decimals}f}"
        if float(text) not in (0, 100):
            return f"{text}%"
    return f"{round(percent)}%"


def count_words(count: float, one: str, several: str = "") -> str:
    """Write how many there are of something: ``1 run``, ``3 runs``."""
    if count == 1:
        return f"{count} {one}"
    return f"{count} {several or f'{one}s'}"


def shown(value: float | None, units: str = PROPORTION) -> str:
    """Write a number in its units, or a dash."""
    if value is None:
        return NOTHING
    return in_units(value, units)


def interval(low: float | None, high: float | None, units: str = PROPORTION) -> str:
    """Write an interval in its units, such as ``55.1–61.0%``; an end that does not exist is named."""
    if low is None and high is None:
        return NOTHING
    if high is None:
        return f"≥ {shown(low, units)}"
    if low is None:
        return f"≤ {in_units(high, units)}"
    if units == PROPORTION:
        # One sign for both ends.
        return f"{in_units(low).removesuffix('%')}–{in_units(high)}"
    return f"{in_units(low, '')} to {in_units(high, units)}"


def with_interval(measured: Mapping[str, Any] | None, units: str = PROPORTION) -> str:
    """Write a ``value`` with its interval from ``low`` to ``high`` in brackets, or a dash."""
    if measured is None:
        return NOTHING
    ends = interval(measured["low"], measured["high"], units)
    return f"{shown(measured['value'], units)} ({ends})".removesuffix(f" ({NOTHING})")


def level(value: float) -> str:
    """Write a confidence level, such as ``95%`` or ``99.75%``."""
    return f"{100 * value:.4g}%"
