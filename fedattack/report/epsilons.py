"""What is known of one ε on one logarithmic axis: points, ranges, and arrows where there is a bound on one side."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from fedattack.report.drawing import CHANCE, FIRST, FOURTH, INK, SECOND, STYLE, THIRD, Plot, name_rows, one_axes, to_svg

_COLOURS = (FIRST, SECOND, THIRD, FOURTH)
_MARKERS = ("o", "s", "^", "X")
# Beyond it there is nothing to compare: e^ε has more digits than this page has letters.
_MOST = 1e12
_LEAST = 1e-6
# Ends of a range that are closer, as a factor, are drawn as a point.
_CLOSE = 1.1
# The claim stands in the left part, so that its label has room at its right.
_LEFT_PART = 0.45
# Length of an arrow, as a share of the axis.
_ARROW = 0.13
_MOST_TICKS = 6
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Row:
    """One number beside the claim.

    Attributes
    ----------
    name
        What it is, in a word or two.
    said
        The number as people write it, or why there is none.
    low, high
        Bounds on ε; `high` is infinite where there is none. None where nothing is known.
    estimate
        A number between them, for which no bound stands.
    """

    name: str
    said: str
    low: float | None = None
    high: float | None = None
    estimate: float | None = None


@matplotlib.rc_context(STYLE)
def epsilon_axis(declared: float, rows: Sequence[Row], scope: str, slug: str) -> Plot:
    """Draw a claim, and what was found beside it.

    Parameters
    ----------
    declared
        The ε that is claimed, above 0.
    rows
        What was found, from above to below.
    scope
        What ε speaks of, such as ``the run of 5 rounds``.
    slug
        What ids in the drawing start with; unique in the page.
    """
    figure, axes = one_axes(62 + 25 * (len(rows) + 1))
    left, right = limits(declared, rows)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    claimed = min(max(declared, left), right)
    # All that is above the claim is shaded.
    axes.axvspan(claimed, right, color=SECOND, alpha=0.09, linewidth=0)
    axes.axvline(claimed, **CHANCE)
    axes.annotate(
        "above the claim",
        (claimed, 1),
        xycoords=("data", "axes fraction"),
        xytext=(3, 3),
        textcoords="offset points",
    )
    axes.plot(claimed, 0, "D", color=INK, markersize=6.5)
    for height, row in enumerate(rows, 1):
        _draw(axes, height, row, (left, right))
    name_rows(axes, ["claimed", *(row.name for row in rows)])
    _say_values(axes, [f"{declared:g}", *(row.said for row in rows)])
    _name_decades(axes, left, right)
    axes.set_xlabel(f"ε of {scope}")
    title = f"ε of {scope}: what is claimed and what was found"
    header = ["", f"ε of {scope}"]
    numbers = [["claimed", f"{declared:g}"], *([row.name, row.said] for row in rows)]
    words = "; ".join(" ".join(cells) for cells in numbers)
    caption = "Further right is less private. A mark with an arrow is a lower bound: ε is as much, or more."
    if any(row.low is not None and row.low >= right for row in rows):
        caption += " Two arrowheads: beyond the axis."
    if any(row.estimate for row in rows):
        caption += " A hollow mark: an estimate, which is no bound."
    return Plot(title, to_svg(figure, slug, title, f"{words}."), caption, header, numbers)


def limits(declared: float, rows: Sequence[Row]) -> tuple[float, float]:
    """Choose whole decades that hold all that is finite, with the claim in the left part."""
    ends = [declared]
    for row in rows:
        ends += [end for end in (row.low, row.high, row.estimate) if end and math.isfinite(end)]
    ends = [min(max(end, _LEAST), _MOST) for end in ends]
    # Some room at both sides: at least 0.3 of a decade at the left, 0.7 at the right.
    left = math.floor(math.log10(min(ends)) - 0.3)
    right = math.ceil(math.log10(max(ends)) + 0.7)
    decades = math.log10(min(max(declared, _LEAST), _MOST)) - left
    # The claim at 45 % of the axis at most.
    right = max(right, math.ceil(left + decades / _LEFT_PART))
    return 10.0**left, 10.0**right


def _draw(axes: Axes, height: int, row: Row, ends: tuple[float, float]) -> None:
    left, right = ends
    if row.low is None or row.high is None:
        return
    look: dict[str, Any] = {
        "color": _COLOURS[(height - 1) % len(_COLOURS)],
        "marker": _MARKERS[(height - 1) % len(_MARKERS)],
    }
    low, high = max(row.low, left), min(row.high, right)
    if low >= right:
        # Two arrows at the edge: it lies beyond.
        beyond = [left * (right / left) ** share for share in (0.93, 0.98)]
        axes.plot(beyond, [height, height], ">", color=look["color"], markersize=8)
    elif math.isinf(row.high):
        if row.low > 0:
            arrow = {"arrowstyle": "-|>", "color": look["color"], "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
            # One to the end would seem to say that ε lies above the claim.
            end = min(right, low * (right / left) ** _ARROW)
            axes.annotate("", (end, height), xytext=(low, height), arrowprops=arrow)
            axes.plot(low, height, markersize=7.5, **look)
    elif high > low * _CLOSE:
        axes.plot([low, high], [height, height], color=look["color"], linewidth=5, alpha=0.4)
        axes.plot([low, high], [height, height], linestyle="none", markersize=6, **look)
    else:
        axes.plot(high, height, markersize=7.5, **look)
    if row.estimate is not None and row.estimate > 0:
        axes.plot(min(row.estimate, right), height, "D", color=INK, markerfacecolor="none", markersize=6)


def _say_values(axes: Axes, said: Sequence[str]) -> None:
    """Write each row's number at its right, where a table has it."""
    # A second axis at the right has no ticks but these texts.
    beside = axes.twinx()
    name_rows(beside, said, letters=14)
    beside.set_ylim(axes.get_ylim())
    for side in ("top", "bottom", "left", "right"):
        beside.spines[side].set_visible(False)


def _name_decades(axes: Axes, left: float, right: float) -> None:
    first, last = round(math.log10(left)), round(math.log10(right))
    # At most six ticks: whole decades in equal steps.
    step = -(-(last - first) // (_MOST_TICKS - 1))
    decades = range(first, last + 1, step)
    axes.xaxis.set_major_locator(FixedLocator([10.0**decade for decade in decades]))
    axes.xaxis.set_major_formatter(NullFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels(list(map(_decade, decades)))


def _decade(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 3 else raise_powers(f"10^{power}")


def raise_powers(text: str) -> str:
    """Write powers as people do: ``10^9`` becomes ``10⁹``."""
    return re.sub(r"10\^(-?[0-9]+)", lambda power: f"10{power[1].translate(_SUPERSCRIPTS)}", text)
