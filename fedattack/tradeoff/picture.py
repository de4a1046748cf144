"""Figures of a trade-off study: each attack's success against learning loss, a line for each defence.

Cui et al. 2023, Figures 2–5 and 8–13, in our data.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from fedattack.audit.finding import PROPORTION
from fedattack.defences import NONE
from fedattack.report.drawing import (
    CHANCE,
    DASHES,
    INK,
    STYLE,
    Plot,
    floats,
    one_axes,
    one_legend,
    panels,
    scale_of,
    to_svg,
)
from fedattack.report.words import NOTHING, interval, shown
from fedattack.reproduce.picture import standing_alone, tell_apart
from fedattack.reproduce.spec import shown as shown_value
from fedattack.tradeoff.analysis import is_wide

Results = Mapping[str, Any]
_X = "Learning loss"
# As long may a panel's title be, in letters.
_TITLE = 28
# What guesses give is told from chance, and from each other.
_DASHES = [(0, (8, 3)), (0, (4, 2, 1, 2)), (0, (2, 4))]


@matplotlib.rc_context(STYLE)
def to_picture(results: Results, columns: int = 2) -> str:
    """Draw all attacks as one SVG on a white ground, so many in a row; empty where there is nothing to draw yet."""
    drawn = _drawn(results)
    if not drawn:
        return ""
    columns = min(len(drawn), columns)
    lines = -(-len(drawn) // columns)
    canvas, grid = panels(90 + 165 * lines, len(drawn), columns)
    looks = _looks(results)
    for axes, number in zip(grid, drawn, strict=True):
        _draw(axes, results, number, looks)
        # Three or more panels in a row are narrow for a name.
        axes.set_title(_short(number["name"]), fontsize="small" if columns > 2 else "medium")
    canvas.supxlabel(_X, fontsize=11.5)
    one_legend(canvas, grid, handlelength=DASHES)
    title, words = results["title"], " ".join(f"{number['name']}: {_words(results, number)}" for number in drawn)
    return standing_alone(to_svg(canvas, f"tradeoff-{results['tradeoff']}", title, words))


@matplotlib.rc_context(STYLE)
def to_plots(results: Results) -> list[Plot]:
    """Draw each attack for the HTML page."""
    plots, looks = [], _looks(results)
    for place, number in enumerate(_drawn(results)):
        figure, axes = one_axes(320)
        _draw(axes, results, number, looks)
        axes.set_xlabel(_X)
        one_legend(figure, [axes], handlelength=DASHES)
        cells = _cells(results, number)
        plots.append(
            Plot(
                f"{number['title']} ({number['name']})",
                to_svg(figure, f"attack-{place}", number["title"], _words(results, number)),
                "Lines go from no defence over the strengths of each; bars are intervals. Where a defence buys more "
                + ("at the same loss, its line is higher." if number["less_is_worse"] else "its line is lower."),
                ["defence", "strength", "learning loss", "success", "interval", "null"],
                [_row(cell, number) for cell in cells],
            )
        )
    return plots


def _drawn(results: Results) -> list[Mapping[str, Any]]:
    return [number for number in results["numbers"] if _cells(results, number)]


def _cells(results: Results, number: Mapping[str, Any]) -> list[Results]:
    """Cells that have both the attack's success and a learning loss."""
    return [
        cell
        for cell in results["cells"]
        if cell["state"] == "done"
        and cell["loss"]["value"] is not None
        and cell["attacks"].get(number["name"], {}).get("value") is not None
    ]


def _looks(results: Results) -> dict[str, dict[str, Any]]:
    looks = tell_apart([cell["defence"] for cell in results["cells"] if cell["defence"] != NONE])
    # Those that share a colour with another one are thin as well as hollow, because lines cross.
    return {name: look | ({"linewidth": 1} if "fillstyle" in look else {}) for name, look in looks.items()}


def _short(name: str) -> str:
    """Leave out the attack where its metric fills a panel's width."""
    return name if len(name) <= _TITLE else name.partition(".")[2]


def _draw(axes: Axes, results: Results, number: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> None:
    cells, scale = _cells(results, number), scale_of(number["units"])
    start = [cell for cell in cells if cell["defence"] == NONE]
    for name, look in looks.items():
        own = [cell for cell in cells if cell["defence"] == name]
        if own:
            _line(axes, [*start, *own], number["name"], scale, {**look, "markevery": slice(len(start), None)})
            _bars(axes, own, number["name"], scale, look["color"])
    if start:
        _line(
            axes, start, number["name"], scale, {"color": INK, "marker": "*", "markersize": 10, "label": "no defence"}
        )
        _bars(axes, start, number["name"], scale, INK)
    _references(axes, cells[0]["attacks"][number["name"]], scale)
    nulls = [cell["attacks"][number["name"]]["null"] for cell in cells]
    if any(nulls):
        losses = floats([cell["loss"]["value"] for cell in cells])
        values = scale * floats([null["value"] if null else None for null in nulls])
        axes.plot(losses, values, linestyle="none", marker="x", color=INK, alpha=0.45, label="null")
    if is_wide([cell["loss"]["value"] for cell in cells]):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    if number["units"] == PROPORTION:
        axes.set_ylim(bottom=0)
    limit = results["guessing"]
    if limit is not None and any(cell["loss"]["value"] > limit for cell in cells):
        axes.axvline(limit, color=INK, linewidth=0.8, alpha=0.6, label="loss of guessing")
    axes.set_ylabel(
        "Success (%)" if number["units"] == PROPORTION else number["units"] or number["name"].partition(".")[2].upper()
    )


def _references(axes: Axes, found: Mapping[str, Any], scale: float) -> None:
    """Draw chance, or where there is neither chance nor a null, what guesses give."""
    if found["chance"] is not None:
        axes.axhline(scale * found["chance"], **CHANCE)
    elif not found["null"]:
        for (name, value), dashes in zip(found["baselines"].items(), cycle(_DASHES), strict=False):
            axes.axhline(scale * value, color=INK, linewidth=1, linestyle=dashes, label=name)


def _line(axes: Axes, cells: Sequence[Results], name: str, scale: float, look: Mapping[str, Any]) -> None:
    losses = floats([cell["loss"]["value"] for cell in cells])
    axes.plot(losses, scale * floats([cell["attacks"][name]["value"] for cell in cells]), **look)


def _bars(axes: Axes, cells: Sequence[Results], name: str, scale: float, colour: str) -> None:
    found = [cell["attacks"][name] for cell in cells]
    low, high = (scale * floats([item[end] for item in found]) for end in ("low", "high"))
    losses = floats([cell["loss"]["value"] for cell in cells])
    axes.vlines(losses, low, high, color=colour, linewidth=4, alpha=0.3)


def _row(cell: Results, number: Mapping[str, Any]) -> list[str]:
    found, units = cell["attacks"][number["name"]], number["units"]
    return [
        cell["defence"],
        shown_value(cell["strength"]),
        f"{cell['loss']['value']:.3g}",
        shown(found["value"], units),
        interval(found["low"], found["high"], units),
        shown(found["null"]["value"], units) if found["null"] else NOTHING,
    ]


def _words(results: Results, number: Mapping[str, Any]) -> str:
    told = [
        f"{cell['defence']} {shown_value(cell['strength'])}: loss {cell['loss']['value']:.3g}, success "
        f"{shown(cell['attacks'][number['name']]['value'], number['units'])}"
        for cell in _cells(results, number)
    ]
    return "; ".join(told) + "."
