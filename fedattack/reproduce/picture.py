"""A reproduction's results as one picture that stands by itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedattack.report import drawing
from fedattack.report.drawing import INK, column, floats
from fedattack.reproduce.page import cell_text, done_cells
from fedattack.reproduce.spec import Drawing, Number, Reproduction, shown

Entry = Mapping[str, Any]

# Positions whose largest is this many times the smallest are drawn on a logarithmic axis.
_WIDE = 20
_NO_PAPER: Mapping[str, None] = {}


@matplotlib.rc_context(drawing.STYLE)
def to_picture(what: Reproduction, results: Mapping[str, Any]) -> str:
    """Draw results as SVG on a white ground; empty where there is nothing to draw yet."""
    figure = what.figure
    numbers = {number.name: number for number in what.numbers}
    y = numbers[figure.y]
    drawn = [entry for entry in done_cells(results) if _has(entry, y)]
    if not drawn:
        return ""
    by_panel: dict[str, list[Entry]] = {}
    for entry in drawn:
        title = " · ".join(_named(name, entry) for name in figure.panels)
        by_panel.setdefault(title, []).append(entry)
    columns = min(len(by_panel), 2)
    canvas, grid = drawing.panels(90 + 190 * -(-len(by_panel) // columns), len(by_panel), columns)
    if figure.lines:
        looks = tell_apart([_label(entry, [figure.lines]) for entry in drawn])
    else:
        looks = tell_apart([numbers[name].title for name in (figure.y, *figure.beside)])
    for axes, (title, entries) in zip(grid, by_panel.items(), strict=True):
        _KINDS[figure.kind](axes, what, y, numbers.get(figure.x), entries, looks)
        axes.set_title(title)
        axes.set_ylabel(drawing.quantity("each round" if figure.kind == "rounds" else y.title, y.units))
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
    return svg.replace("<svg ", '<svg width="840" style="background: white; color: black" ', 1)


def _has(entry: Entry, number: Number) -> bool:
    return entry["numbers"][number.name]["value"] is not None


def _label(entry: Entry, columns: Iterable[str]) -> str:
    """Name a cell by its values in some columns."""
    return " · ".join(shown(entry["place"][name]) for name in columns)


def _named(name: str, entry: Entry) -> str:
    """Name a cell's value in a column for a title, in which a number alone would say nothing."""
    text = shown(entry["place"][name])
    return f"{name} {text}" if text.replace(".", "").isdigit() else text


def tell_apart(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Tell more names apart than there are colours: the markers of those that have to share one are hollow."""
    looks, used = drawing.looks_of(names), set()
    for look in looks.values():
        if look["color"] in used:
            look["fillstyle"] = "none"
        used.add(look["color"])
    return looks


def _points(
    axes: Axes, what: Reproduction, y: Number, x: Number | None, entries: Sequence[Entry], looks: Mapping[str, Any]
) -> None:
    """Draw ours and the paper's side by side, cell by cell."""
    positions = np.arange(len(entries))
    look = {"color": drawing.FIRST, "marker": "o", "linestyle": "none", "label": "ours"}
    _draw_ours(axes, positions - 0.12, y, entries, look)
    papers = [entry["numbers"][y.name]["paper"] or _NO_PAPER for entry in entries]
    mean = y.scale * column(papers, "mean")
    if not np.isnan(mean).all():
        sd = np.nan_to_num(y.scale * column(papers, "sd"))
        axes.errorbar(positions + 0.12, mean, sd, color=drawing.SECOND, fmt="s", label="paper ± sd", elinewidth=1)
    rest = [name for name in what.columns if name not in what.figure.panels]
    axes.set_xticks(positions, [_label(entry, rest) for entry in entries], rotation=60)
    axes.set_xlim(-0.5, len(entries) - 0.5)
    axes.set_xlabel(" · ".join(rest))


def _curves(
    axes: Axes, what: Reproduction, y: Number, x: Number | None, entries: Sequence[Entry], looks: Mapping[str, Any]
) -> None:
    """Draw a number, or several, against another one, or against a column of numbers."""
    figure = what.figure
    beside = {number.title: number for number in what.numbers if number.name in figure.beside}
    for name, look in looks.items():
        number = beside.get(name, y)
        line = [entry for entry in entries if _has(entry, number)]
        if figure.lines:
            line = [entry for entry in line if _label(entry, [figure.lines]) == name]
        if x is None:
            line.sort(key=lambda entry: float(entry["place"][figure.x]), reverse=figure.inverse)
            positions = _positions(line, figure)
        else:
            line = [entry for entry in line if _has(entry, x)]
            positions = _values(line, x)
            # Points of two measured numbers have no order in which they could be joined.
            look = {**look, "linestyle": "none"}
        if line:
            _draw_ours(axes, 1 / positions if figure.inverse else positions, number, line, look)
    if figure.inverse:
        axes.set_xscale("log")
    if x is not None:
        axes.set_xlabel(drawing.quantity(x.title, x.units))
        return
    ticks = np.unique(_positions(entries, figure))
    if figure.inverse:
        ticks = 1 / ticks
    if ticks[0] > 0 and ticks[-1] > _WIDE * ticks[0]:
        axes.set_xscale("log")
    axes.set_xticks(ticks, list(map("{:g}".format, ticks)))
    axes.minorticks_off()
    axes.set_xlabel(f"1/{figure.x}" if figure.inverse else figure.x)


def _positions(entries: Sequence[Entry], figure: Drawing) -> Any:
    """Return the cells' values in the column that is the axis."""
    return floats([float(entry["place"][figure.x]) for entry in entries])


def _values(entries: Sequence[Entry], number: Number, key: str = "value") -> Any:
    """Return a measured number of the cells, or the end of its interval, as it is drawn."""
    return number.scale * column([entry["numbers"][number.name] for entry in entries], key)


def _rounds(
    axes: Axes, what: Reproduction, y: Number, x: Number | None, entries: Sequence[Entry], looks: Mapping[str, Any]
) -> None:
    """Draw a rate per round, with the band of its interval."""
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
