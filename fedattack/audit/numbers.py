"""How a number and its interval read, wherever a finding is shown: on the page, in the terminal and in a notebook."""

from fedattack.audit.finding import PROPORTION, in_units

NOTHING = "–"


def count_words(count: float, one: str, several: str = "") -> str:
    """Write how many there are of something: ``1 run``, ``3 runs``."""
    return f"{count} {one}" if count == 1 else f"{count} {several or f'{one}s'}"


def shown(value: float | None, units: str = PROPORTION) -> str:
    """Write a number in its units, or a dash."""
    return NOTHING if value is None else in_units(value, units)


def interval(low: float | None, high: float | None, units: str = PROPORTION) -> str:
    """Write an interval in its units, such as ``55.1–61.0%``; an end that does not exist is named."""
    if low is None or high is None:
        if low is not None:
            return f"≥ {in_units(low, units)}"
        return NOTHING if high is None else f"≤ {in_units(high, units)}"
    if units == PROPORTION:
        return f"{in_units(low).removesuffix('%')}–{in_units(high)}"
    return f"{in_units(low, '')} to {in_units(high, units)}"


def level(value: float) -> str:
    """Write a confidence level, such as ``95%`` or ``99.75%``."""
    return f"{100 * value:.4g}%"
