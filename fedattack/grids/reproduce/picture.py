"""A reproduction's results as one picture that stands by itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedattack.grids.reproduce.page import cell_text, done_cells, grouped
from fedattack.grids.reproduce.spec import Drawing, Number, Reproduction, shown
from fedattack.report import drawing
from fedattack.report.drawing import INK, column, floats

Entry = Mapping[str, Any]
Looks = Mapping[str, Mapping[str, Any]]

# Positions whose largest is this many times the smallest are drawn on a logarithmic axis.
_WIDE = 20


@matplotlib.rc_context(drawing.STYLE)
def to_picture(what: Reproduction, results: Mapping[str, Any]) -> str:
    """Draw results as SVG on a white ground; empty where there is nothing to draw yet."""
    figure, y = what.figure, what.numbers[what.figure.y]
    drawn = _keep_known(done_cells(results), y)
    if not drawn:
        return ""
    by_panel = grouped(drawn, lambda entry: " · ".join(_name_value(name, entry) for name in figure.panels))
    columns = min(len(by_panel), 2)
    canvas, grid = drawing.panels(90 + 190 * -(-len(by_panel) // columns), len(by_panel), columns)
    if figure.lines:
        looks = tell_apart(grouped(drawn, lambda entry: _label(entry, [figure.lines])))
    else:
        looks = tell_apart(_list_unlined(what))
    for axes, (title, entries) in zip(grid, by_panel.items(), strict=True):
        _KINDS[figure.kind](axes, what, entries, looks)
        axes.set_title(title)
        axes.set_ylabel(drawing.quantity("Success in each round" if figure.kind == "rounds" else y.title, y.units))
        chance = entries[0]["numbers"][y.name]["chance"]
        if chance is not None:
            axes.axhline(y.scale * chance, **drawing.CHANCE)
    top = max(axes.get_ylim()[1] for axes in grid)
    for axes in grid:
        axes.set_ylim(0, top)
    drawing.one_legend(canvas, grid, handlelength=drawing.DASHES)
    words = "; ".join(f"{_label(entry, entry['place'])}: {cell_text(y, entry['numbers'][y.name])}" for entry in drawn)
    return standing_alone(drawing.to_svg(canvas, what.name, what.title, f"{y.title}. {words}."))


def standing_alone(svg: str) -> str:
    """Give an SVG a ground of its own: in a page the colours are the page's."""
    return svg.replace("<svg ", '<svg width="760" style="background: white; color: black" ', 1)


def _keep_known(entries: Iterable[Entry], number: Number) -> list[Entry]:
    """Return the cells that have a number."""
    return [entry for entry in entries if entry["numbers"][number.name]["value"] is not None]


def _list_unlined(what: Reproduction) -> dict[str, Number]:
    """Return by title the numbers that curves without lines draw in each panel."""
    numbers = map(what.numbers.__getitem__, (what.figure.y, *what.figure.beside))
    return {number.title: number for number in numbers}


def _label(entry: Entry, columns: Iterable[str]) -> str:
    """Name a cell by its values in some columns."""
    return " · ".join(shown(entry["place"][name]) for name in columns)


def _name_value(name: str, entry: Entry) -> str:
    """Name a cell's value in a column for a title, in which a number alone would say nothing."""
    text = shown(entry["place"][name])
    return f"{name} {text}" if text.replace(".", "").isdigit() else text


def tell_apart(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Tell more names apart than there are colours: the markers of those that have to share one are hollow."""
    looks, used = drawing.looks_of(names), set()
    for look in looks.values():
        if look["color"] in used:
            look["fillstyle"] = "none"
        used.add(look["color"])
    return looks


def _points(axes: Axes, what: Reproduction, entries: Sequence[Entry], looks: Looks) -> None:
    """Draw ours and the paper's side by side, cell by cell."""
    y, positions = what.numbers[what.figure.y], np.arange(len(entries))
    look = {"color": drawing.FIRST, "marker": "o", "linestyle": "none", "label": "ours"}
    _draw_ours(axes, positions - 0.12, y, entries, look)
    mean = _values(entries, y, "paper", "mean")
    if not np.isnan(mean).all():
        sd = np.nan_to_num(_values(entries, y, "paper", "sd"))
        axes.errorbar(positions + 0.12, mean, sd, color=drawing.SECOND, fmt="s", label="paper ± sd", elinewidth=1)
    rest = [name for name in what.columns if name not in what.figure.panels]
    axes.set_xticks(positions, [_label(entry, rest) for entry in entries], rotation=60)
    axes.set_xlim(-0.5, len(entries) - 0.5)
    axes.set_xlabel(" · ".join(rest))


def _curves(axes: Axes, what: Reproduction, entries: Sequence[Entry], looks: Looks) -> None:
    """Draw a number, or several, against another one, or against a column of numbers."""
    figure, beside = what.figure, _list_unlined(what)
    x = what.numbers.get(figure.x)
    lines = grouped(entries, lambda entry: _label(entry, [figure.lines])) if figure.lines else {}
    for name, look in looks.items():
        number = beside.get(name, what.numbers[figure.y])
        line = _keep_known(lines.get(name, []) if figure.lines else entries, number)
        if x is None:
            line.sort(key=lambda entry: float(entry["place"][figure.x]), reverse=figure.inverse)
            positions = _positions(line, figure)
        else:
            line = _keep_known(line, x)
            positions = _values(line, x)
            # Points of two measured numbers have no order in which they could be joined.
            look = {**look, "linestyle": "none"}
        if line:
            _draw_ours(axes, positions, number, line, look)
    if figure.inverse:
        axes.set_xscale("log")
    if x is None:
        _set_ticks(axes, figure, np.unique(_positions(entries, figure)))
    else:
        axes.set_xlabel(drawing.quantity(x.title, x.units))


def _set_ticks(axes: Axes, figure: Drawing, ticks: Any) -> None:
    """Set a tick at each of a column's values, and a logarithmic axis where they are far apart."""
    if ticks[0] > 0 and ticks[-1] > _WIDE * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, list(map("{:g}".format, ticks)))
    axes.minorticks_off()
    axes.set_xlabel(f"1/{figure.x}" if figure.inverse else figure.x)


def _positions(entries: Sequence[Entry], figure: Drawing) -> Any:
    """Return the cells' values in the column that is the axis, or their inverses."""
    positions = np.array([entry["place"][figure.x] for entry in entries], dtype=float)
    return 1 / positions if figure.inverse else positions


def _values(entries: Iterable[Entry], number: Number, *keys: str) -> Any:
    """Return a measured number of the cells, or the end of its interval, as it is drawn; NaN where there is none."""
    return number.scale * column(entries, "numbers", number.name, *(keys or ["value"]))


def _rounds(axes: Axes, what: Reproduction, entries: Sequence[Entry], looks: Looks) -> None:
    """Draw a rate per round, with the band of its interval."""
    y = what.numbers[what.figure.y]
    for entry in entries:
        series, look = entry["per_round"], looks[_label(entry, [what.figure.lines])]
        low, high = y.scale * floats(series["low"]), y.scale * floats(series["high"])
        axes.fill_between(series["rounds"], low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.plot(series["rounds"], y.scale * floats(series["value"]), **look, markevery=max(len(low) // 8, 1))
    drawing.label_rounds(axes)


def _draw_ours(axes: Axes, positions: Any, number: Number, entries: Sequence[Entry], look: Mapping[str, Any]) -> None:
    low, high = _values(entries, number, "low"), _values(entries, number, "high")
    axes.vlines(positions, low, high, color=look.get("color", INK), linewidth=4, alpha=0.3)
    axes.plot(positions, _values(entries, number), **look)


_KINDS: Mapping[str, Callable[..., None]] = {"points": _points, "curves": _curves, "rounds": _rounds}
