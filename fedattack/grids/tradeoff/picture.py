"""Figures of a trade-off study: each attack's success against learning loss, a line for each defence.

Cui et al. 2023, Figures 2–5 and 8–13, in our data.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from fedattack.audit.finding import PROPORTION
from fedattack.defences import NONE
from fedattack.grids.cell import group_by, write_value
from fedattack.grids.page import Results, draw_intervals, finish_picture, tell_apart
from fedattack.grids.tradeoff.analysis import attacks_of, is_wide, losses_of, measured_cells
from fedattack.report import drawing
from fedattack.report.drawing import INK, Plot, column, floats
from fedattack.report.words import interval, shown

_X = "Learning loss"
# A panel has room for a title of so many letters.
_TITLE = 28
# Dashes that tell guesses from chance, and from each other.
_DASHES = [(0, (8, 3)), (0, (4, 2, 1, 2)), (0, (2, 4))]


@matplotlib.rc_context(drawing.STYLE)
def draw_results(results: Results) -> str:
    """Draw all attacks as one SVG on a white ground; empty where there is nothing to draw yet."""
    drawn = _list_drawn(results)
    if not drawn:
        return ""
    columns = min(len(drawn), 2)
    # Rounded up.
    lines = -(-len(drawn) // columns)
    canvas, grid = drawing.panels(90 + 165 * lines, len(drawn), columns)
    looks = _choose_looks(results)
    for axes, number in zip(grid, drawn, strict=True):
        _draw(axes, results, number, looks)
        axes.set_title(_shorten(number["name"]))
    canvas.supxlabel(_X, fontsize=drawing.SIZE)
    words = " ".join(f"{number['name']}: {_describe(results, number)}" for number in drawn)
    return finish_picture(canvas, grid, f"tradeoff-{results['tradeoff']}", results["title"], words)


@matplotlib.rc_context(drawing.STYLE)
def list_plots(results: Results) -> list[Plot]:
    """Draw each attack for the HTML page."""
    plots, looks = [], _choose_looks(results)
    for i, number in enumerate(_list_drawn(results)):
        figure, axes = drawing.one_axes(320)
        _draw(axes, results, number, looks)
        axes.set_xlabel(_X)
        drawing.one_legend(figure, [axes], handlelength=drawing.DASHES)
        svg = drawing.to_svg(figure, f"attack-{i}", number["title"], _describe(results, number))
        better = "at the same loss, its line is higher" if number["less_is_worse"] else "its line is lower"
        caption = "Lines go from no defence over the strengths of each; bars are intervals. "
        caption += f"Where a defence buys more {better}."
        header = ["defence", "strength", "learning loss", "success", "interval", "null"]
        rows = [_write_row(cell, number) for cell in measured_cells(results, number)]
        plots.append(Plot(f"{number['title']} ({number['name']})", svg, caption, header, rows))
    return plots


def _list_drawn(results: Results) -> list[Results]:
    return [number for number in results["numbers"] if measured_cells(results, number)]


def _choose_looks(results: Results) -> dict[str, dict[str, Any]]:
    defences = group_by(results["cells"], lambda cell: cell["defence"])
    defences.pop(NONE, None)
    looks = tell_apart(defences)
    for look in looks.values():
        # Those that share a colour with another one are thin as well as hollow, because lines cross.
        if "fillstyle" in look:
            look["linewidth"] = 1
    return looks


def _shorten(name: str) -> str:
    """Leave out the attack where its metric fills a panel's width."""
    return name if len(name) <= _TITLE else name.partition(".")[2]


def _draw(axes: Axes, results: Results, number: Results, looks: Mapping[str, Mapping[str, Any]]) -> None:
    cells, scale = measured_cells(results, number), drawing.scale_of(number["units"])
    losses, attacks = losses_of(cells), attacks_of(cells, number)
    by_defence = group_by(cells, lambda cell: cell["defence"])
    undefended = by_defence.pop(NONE, [])
    for name, look in looks.items():
        if name in by_defence:
            _draw_line(axes, undefended, by_defence[name], number, look)
    if undefended:
        look = {"color": INK, "marker": "*", "markersize": 10, "label": "no defence"}
        _draw_line(axes, [], undefended, number, look)
    _draw_guesses(axes, attacks[0], scale)
    # One null for each cell, at its own loss.
    nulls = scale * column(attacks, "null", "value")
    if not np.isnan(nulls).all():
        axes.plot(floats(losses), nulls, linestyle="none", marker="x", color=INK, alpha=0.45, label="null")
    _scale_axes(axes, number, losses)
    limit = results["guessing"]
    if limit is not None and max(losses) > limit:
        axes.axvline(limit, color=INK, linewidth=0.8, alpha=0.6, label="loss of guessing")


def _scale_axes(axes: Axes, number: Results, losses: Sequence[float]) -> None:
    if is_wide(losses):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
    if number["units"] == PROPORTION:
        axes.set_ylim(bottom=0)
        axes.set_ylabel("Success (%)")
    else:
        axes.set_ylabel(number["units"] or number["name"].partition(".")[2].upper())


def _draw_guesses(axes: Axes, attack: Mapping[str, Any], scale: float) -> None:
    """Draw chance, or where there is neither chance nor a null, what guesses give."""
    if attack["chance"] is not None:
        axes.axhline(scale * attack["chance"], **drawing.CHANCE)
    elif not attack["null"]:
        for (name, value), dashes in zip(attack["baselines"].items(), cycle(_DASHES), strict=False):
            axes.axhline(scale * value, color=INK, linewidth=1, linestyle=dashes, label=name)


def _draw_line(
    axes: Axes, start: Sequence[Results], cells: Sequence[Results], number: Results, look: Mapping[str, Any]
) -> None:
    """Draw a line through `start` to `cells`, and the intervals of the latter."""
    scale = drawing.scale_of(number["units"])
    line, attacks = [*start, *cells], attacks_of(cells, number)
    values = scale * column(attacks_of(line, number), "value")
    # The shared start is drawn without a marker of the line's own.
    axes.plot(floats(losses_of(line)), values, **look, markevery=slice(len(start), None))
    draw_intervals(axes, floats(losses_of(cells)), attacks, scale, look)


def _write_row(cell: Results, number: Results) -> list[str]:
    attack, units = cell["attacks"][number["name"]], number["units"]
    return [
        cell["defence"],
        write_value(cell["strength"]),
        f"{cell['loss']['value']:.3g}",
        shown(attack["value"], units),
        interval(attack["low"], attack["high"], units),
        shown((attack["null"] or {}).get("value"), units),
    ]


def _describe(results: Results, number: Results) -> str:
    sentences = []
    for cell in measured_cells(results, number):
        defence, strength, loss, success, *_ = _write_row(cell, number)
        sentences.append(f"{defence} {strength}: loss {loss}, success {success}")
    return "; ".join(sentences) + "."
