"""What all grids have in common when they are shown: which cells are there, and the look of figures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedattack.grids.engine import DONE
from fedattack.report import drawing
from fedattack.report.drawing import INK, column
from fedattack.report.words import level

Results = Mapping[str, Any]


def list_commands(results: Results) -> list[str]:
    """Return the command that makes all, and that of the first cell."""
    commands = [results["command"]]
    for cell in list_done(results)[:1]:
        commands.append(cell["command"])
    return commands


def list_done(results: Results, *, done: bool = True) -> list[Any]:
    """Return the cells that were run and judged, or the others."""
    return [cell for cell in results["cells"] if (cell["state"] == DONE) == done]


def name_levels(measured: Iterable[Results]) -> str:
    """Name the levels of the intervals of measured numbers; empty where there is no interval."""
    levels = {level(each["level"]) for each in measured if each.get("low") is not None}
    return " and ".join(sorted(levels))


def tell_apart(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Tell more names apart than there are colours: the markers of those that have to share one are hollow."""
    looks, used = drawing.looks_of(names), set()
    # Colours repeat after five names.
    for look in looks.values():
        if look["color"] in used:
            look["fillstyle"] = "none"
        used.add(look["color"])
    return looks


def finish_picture(canvas: Figure, grid: Sequence[Axes], name: str, title: str, words: str) -> str:
    """Return a picture that stands by itself: with a legend, and a ground of its own, which in a page is the page's."""
    drawing.one_legend(canvas, grid, handlelength=drawing.DASHES)
    svg = drawing.to_svg(canvas, name, title, words)
    # By itself it needs a size and a ground; in a page both are the page's.
    return svg.replace("<svg ", '<svg width="760" style="background: white; color: black" ', 1)


def draw_intervals(
    axes: Axes, positions: Any, measured: Sequence[Mapping[str, Any]], scale: float, look: Mapping[str, Any]
) -> None:
    """Draw the intervals of measured numbers."""
    low, high = scale * column(measured, "low"), scale * column(measured, "high")
    axes.vlines(positions, low, high, color=look.get("color", INK), linewidth=4, alpha=0.3)
