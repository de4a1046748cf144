"""A reproduction's results as one picture that stands by itself."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from fedattack.report.drawing import (
    CHANCE,
    DASHES,
    FIRST,
    INK,
    SECOND,
    STYLE,
    floats,
    label_rounds,
    looks_of,
    one_legend,
    panels,
    quantity,
    to_svg,
)
from fedattack.reproduce.page import cell_text
from fedattack.reproduce.spec import Number, Reproduction, shown

Entry = Mapping[str, Any]

# From this ratio of the largest place to the smallest on, places are drawn on a logarithmic axis.
_WIDE = 20


@matplotlib.rc_context(STYLE)
def to_picture(what: Reproduction, results: Mapping[str, Any]) -> str:
    """Draw results as SVG on a white ground; empty where there is nothing to draw yet."""
    figure = what.figure
    numbers = {number.name: number for number in what.numbers}
    y = numbers[figure.y]
    done = [entry for entry in results["cells"] if entry["state"] == "done"]
    drawn = [entry for entry in done if entry["numbers"][y.name]["value"] is not None]
    if not drawn:
        return ""
    by_panel: dict[str, list[Entry]] = {}
    for entry in drawn:
        by_panel.setdefault(" · ".join(_named(column, entry) for column in figure.panels), []).append(entry)
    columns = min(len(by_panel), 2)
    canvas, grid = panels(90 + 190 * -(-len(by_panel) // columns), len(by_panel), columns)
    named = [shown(entry["place"][figure.lines]) for entry in drawn] if figure.lines else []
    looks = tell_apart(named or [numbers[name].title for name in (figure.y, *figure.beside)])
    for axes, (title, entries) in zip(grid, by_panel.items(), strict=True):
        _KINDS[figure.kind](axes, what, y, numbers.get(figure.x), entries, looks)
        axes.set_title(title)
        axes.set_ylabel(quantity("each round" if figure.kind == "rounds" else y.title, y.units))
        chance = entries[0]["numbers"][y.name]["chance"]
        if chance is not None:
            axes.axhline(y.scale * chance, **CHANCE)
    top = max(axes.get_ylim()[1] for axes in grid)
    for axes in grid:
        axes.set_ylim(0, top)
    one_legend(canvas, grid, handlelength=DASHES)
    words = "; ".join(
        f"{' · '.join(shown(value) for value in entry['place'].values())}: {cell_text(y, entry['numbers'][y.name])}"
        for entry in drawn
    )
    return standing_alone(to_svg(canvas, what.name, what.title, f"{y.title}. {words}."))


def standing_alone(drawing: str) -> str:
    """Give an SVG a ground of its own: in a page the colours are the page's."""
    return drawing.replace("<svg ", '<svg width="840" style="background: white; color: black" ', 1)


def _named(column: str, entry: Entry) -> str:
    """Name a cell's place in a column for a title, in which a number alone would say nothing."""
    text = shown(entry["place"][column])
    return f"{column} {text}" if text.replace(".", "").isdigit() else text


def tell_apart(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Tell more names apart than there are colours: the markers of those that have to share one are hollow."""
    looks, used = looks_of(names), set()
    for look in looks.values():
        if look["color"] in used:
            look["fillstyle"] = "none"
        used.add(look["color"])
    return looks


def _points(
    axes: Axes, what: Reproduction, y: Number, x: Number | None, entries: Sequence[Entry], looks: Mapping[str, Any]
) -> None:
    """Draw ours and the paper's side by side, cell by cell."""
    places = np.arange(len(entries))
    found = [entry["numbers"][y.name] for entry in entries]
    _ours(axes, places - 0.12, y, found, {"color": FIRST, "marker": "o", "linestyle": "none", "label": "ours"})
    paper = [item["paper"] or {"mean": None, "sd": None} for item in found]
    mean = y.scale * floats([item["mean"] for item in paper])
    if not np.isnan(mean).all():
        sd = np.nan_to_num(y.scale * floats([item["sd"] for item in paper]))
        axes.errorbar(places + 0.12, mean, sd, color=SECOND, fmt="s", label="paper ± sd", elinewidth=1)
    rest = [column for column in what.columns if column not in what.figure.panels]
    axes.set_xticks(
        places, [" · ".join(shown(entry["place"][column]) for column in rest) for entry in entries], rotation=60
    )
    axes.set_xlim(-0.5, len(entries) - 0.5)
    axes.set_xlabel(" · ".join(rest))


def _curves(
    axes: Axes, what: Reproduction, y: Number, x: Number | None, entries: Sequence[Entry], looks: Mapping[str, Any]
) -> None:
    """Draw a number, or several, against another one, or against a column of numbers."""
    figure = what.figure
    several = {number.title: number for number in what.numbers if number.name in figure.beside}
    for name, look in looks.items():
        drawn = several.get(name, y)
        own = [entry for entry in entries if not figure.lines or shown(entry["place"][figure.lines]) == name]
        own = [entry for entry in own if entry["numbers"][drawn.name]["value"] is not None]
        if x is None:
            own.sort(key=lambda entry: float(entry["place"][figure.x]), reverse=figure.inverse)
            places = floats([float(entry["place"][figure.x]) for entry in own])
        else:
            own = [entry for entry in own if entry["numbers"][x.name]["value"] is not None]
            places = x.scale * floats([entry["numbers"][x.name]["value"] for entry in own])
        if own:
            # Points of two measured numbers have no order in which they could be joined.
            style = {"linestyle": "none"} if x is not None else {}
            found = [entry["numbers"][drawn.name] for entry in own]
            _ours(axes, 1 / places if figure.inverse else places, drawn, found, look | style)
    if figure.inverse:
        axes.set_xscale("log")
    if x is None:
        ticks = sorted({float(entry["place"][figure.x]) for entry in entries})
        ticks = [1 / tick for tick in ticks] if figure.inverse else ticks
        if ticks[0] > 0 and ticks[-1] > _WIDE * ticks[0]:
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel(quantity(x.title, x.units) if x is not None else f"1/{figure.x}" if figure.inverse else figure.x)


def _rounds(
    axes: Axes, what: Reproduction, y: Number, x: Number | None, entries: Sequence[Entry], looks: Mapping[str, Any]
) -> None:
    """Draw a rate per round, with the band of its interval."""
    for entry in entries:
        series, look = entry["per_round"], looks[shown(entry["place"][what.figure.lines])]
        low, high = (y.scale * floats(series[end]) for end in ("low", "high"))
        axes.fill_between(series["rounds"], low, high, color=look["color"], alpha=0.18, linewidth=0)
        axes.plot(series["rounds"], y.scale * floats(series["value"]), **look, markevery=max(len(low) // 8, 1))
    label_rounds(axes)


def _ours(axes: Axes, places: Any, y: Number, found: Sequence[Entry], look: Mapping[str, Any]) -> None:
    value, low, high = (y.scale * floats([item[key] for item in found]) for key in ("value", "low", "high"))
    axes.vlines(places, low, high, color=look.get("color", INK), linewidth=4, alpha=0.3)
    axes.plot(places, value, **look)


_KINDS: Mapping[str, Callable[..., None]] = {"points": _points, "curves": _curves, "rounds": _rounds}
