"""A reproduction's results as one picture that stands by itself."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedattack.grids.cell import Number, group_by, write_value
from fedattack.grids.measure import write_measured
from fedattack.grids.page import Results, draw_intervals, finish_picture, list_done, tell_apart
from fedattack.grids.reproduce.spec import Drawing, Reproduction
from fedattack.report import drawing
from fedattack.report.drawing import column, floats

Looks = Mapping[str, Mapping[str, Any]]

# Positions whose largest is this many times the smallest are drawn on a logarithmic axis.
_WIDE = 20


@matplotlib.rc_context(drawing.STYLE)
def draw_results(spec: Reproduction, results: Results) -> str:
    """Draw results as SVG on a white ground; empty where there is nothing to draw yet."""
    figure, y = spec.figure, spec.numbers[spec.figure.y]
    drawn = _keep_known(list_done(results), y)
    if not drawn:
        return ""
    by_panel = group_by(drawn, lambda entry: " · ".join(_name_value(name, entry) for name in figure.panels))
    columns = min(len(by_panel), 2)
    canvas, grid = drawing.panels(90 + 190 * -(-len(by_panel) // columns), len(by_panel), columns)
    names: Iterable[str] = _list_unlined(spec)
    if figure.lines:
        # Lines that carry a column's values share looks over all panels.
        names = group_by(drawn, lambda entry: _label(entry, [figure.lines]))
    looks = tell_apart(names)
    for axes, (title, entries) in zip(grid, by_panel.items(), strict=True):
        axes.set_title(title)
        axes.set_ylabel(drawing.quantity("Success in each round" if figure.kind == "rounds" else y.title, y.units))
        _KINDS[figure.kind](axes, spec, entries, looks)
        chance = entries[0]["numbers"][y.name]["chance"]
        if chance is not None:
            axes.axhline(y.scale * chance, **drawing.CHANCE)
    # One height for all panels, so that they can be compared.
    top = max(axes.get_ylim()[1] for axes in grid)
    for axes in grid:
        axes.set_ylim(0, top)
    sentences = []
    for entry in drawn:
        sentences.append(f"{_label(entry, entry['place'])}: {write_measured(y, entry['numbers'][y.name])}")
    return finish_picture(canvas, grid, spec.name, spec.title, f"{y.title}. {'; '.join(sentences)}.")


def _keep_known(entries: Iterable[Results], number: Number) -> list[Results]:
    return [entry for entry in entries if entry["numbers"][number.name]["value"] is not None]


def _list_unlined(spec: Reproduction) -> dict[str, Number]:
    """Return by title the numbers that curves without lines draw in each panel."""
    return {spec.numbers[name].title: spec.numbers[name] for name in (spec.figure.y, *spec.figure.beside)}


def _label(entry: Results, columns: Iterable[str]) -> str:
    return " · ".join(write_value(entry["place"][name]) for name in columns)


def _name_value(name: str, entry: Results) -> str:
    """Name a cell's value in a column for a title, in which a number alone would say nothing."""
    text = write_value(entry["place"][name])
    return f"{name} {text}" if text.replace(".", "").isdigit() else text


def _draw_points(axes: Axes, spec: Reproduction, entries: Sequence[Results], looks: Looks) -> None:
    """Draw ours and the paper's side by side, cell by cell."""
    y, positions = spec.numbers[spec.figure.y], np.arange(len(entries))
    look = {"color": drawing.FIRST, "marker": "o", "linestyle": "none", "label": "ours"}
    # Side by side, as ours and the paper's may be equal.
    _draw_ours(axes, positions - 0.12, y, entries, look)
    mean = _values(entries, y, "paper", "mean")
    if not np.isnan(mean).all():
        sd = np.nan_to_num(_values(entries, y, "paper", "sd"))
        axes.errorbar(positions + 0.12, mean, sd, color=drawing.SECOND, fmt="s", label="paper ± sd", elinewidth=1)
    rest = [name for name in spec.columns if name not in spec.figure.panels]
    axes.set_xticks(positions, [_label(entry, rest) for entry in entries], rotation=60)
    axes.set_xlim(-0.5, len(entries) - 0.5)
    axes.set_xlabel(" · ".join(rest))


def _draw_curves(axes: Axes, spec: Reproduction, entries: Sequence[Results], looks: Looks) -> None:
    """Draw a number, or several, against another one, or against a column of numbers."""
    figure, beside, x = spec.figure, _list_unlined(spec), spec.numbers.get(spec.figure.x)
    for name, look in looks.items():
        number, line = spec.numbers[figure.y], list(entries)
        if figure.lines:
            line = [entry for entry in entries if _label(entry, [figure.lines]) == name]
        else:
            number = beside[name]
        line = _keep_known(line, number)
        if x is None:
            line.sort(key=lambda entry: float(entry["place"][figure.x]), reverse=figure.inverse)
            positions = _positions(line, figure)
        else:
            line = _keep_known(line, x)
            positions = _values(line, x, "value")
            # Points of two measured numbers have no order in which they could be joined.
            look = {**look, "linestyle": "none"}
        if line:
            _draw_ours(axes, positions, number, line, look)
    if x is None:
        _set_ticks(axes, figure, np.unique(_positions(entries, figure)))
    else:
        axes.set_xlabel(drawing.quantity(x.title, x.units))


def _set_ticks(axes: Axes, figure: Drawing, ticks: Any) -> None:
    """Set a tick at each of a column's values, and a logarithmic axis where they are far apart."""
    if figure.inverse or (ticks[0] > 0 and ticks[-1] > _WIDE * ticks[0]):
        axes.set_xscale("log")
    axes.set_xticks(ticks, list(map("{:g}".format, ticks)))
    axes.minorticks_off()
    axes.set_xlabel(f"1/{figure.x}" if figure.inverse else figure.x)


def _positions(entries: Sequence[Results], figure: Drawing) -> Any:
    """Return the cells' values in the column that is the axis, or their inverses."""
    positions = np.array([entry["place"][figure.x] for entry in entries], dtype=float)
    return 1 / positions if figure.inverse else positions


def _values(entries: Iterable[Results], number: Number, *keys: str) -> Any:
    """Return what these keys lead to of a measured number of the cells, as it is drawn; NaN where there is none."""
    return number.scale * column(entries, "numbers", number.name, *keys)


def _draw_rounds(axes: Axes, spec: Reproduction, entries: Sequence[Results], looks: Looks) -> None:
    y = spec.numbers[spec.figure.y]
    for entry in entries:
        series, look = entry["per_round"], looks[_label(entry, [spec.figure.lines])]
        low, high = y.scale * floats(series["low"]), y.scale * floats(series["high"])
        axes.fill_between(series["rounds"], low, high, color=look["color"], alpha=0.18, linewidth=0)
        # About eight markers a line.
        axes.plot(series["rounds"], y.scale * floats(series["value"]), **look, markevery=max(len(low) // 8, 1))
    drawing.label_rounds(axes)


def _draw_ours(axes: Axes, positions: Any, number: Number, entries: Sequence[Results], look: Mapping[str, Any]) -> None:
    measured = [entry["numbers"][number.name] for entry in entries]
    draw_intervals(axes, positions, measured, number.scale, look)
    axes.plot(positions, number.scale * column(measured, "value"), **look)


_KINDS: Mapping[str, Callable[..., None]] = {"points": _draw_points, "curves": _draw_curves, "rounds": _draw_rounds}
