"""What the figures of all grids have in common."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from fedattack.report import drawing
from fedattack.report.drawing import INK, column


def tell_apart(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Tell more names apart than there are colours: the markers of those that have to share one are hollow."""
    looks, used = drawing.looks_of(names), set()
    for look in looks.values():
        if look["color"] in used:
            look["fillstyle"] = "none"
        used.add(look["color"])
    return looks


def write_alone(svg: str) -> str:
    """Give an SVG a ground of its own: in a page the colours are the page's."""
    return svg.replace("<svg ", '<svg width="760" style="background: white; color: black" ', 1)


def draw_intervals(
    axes: Axes, positions: Any, measured: Sequence[Mapping[str, Any]], scale: float, look: Mapping[str, Any]
) -> None:
    """Draw the intervals of measured numbers."""
    low, high = scale * column(measured, "low"), scale * column(measured, "high")
    axes.vlines(positions, low, high, color=look.get("color", INK), linewidth=4, alpha=0.3)
