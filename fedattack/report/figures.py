"""Figures of the report, as SVG text that an HTML page can hold as it is.

Everything is drawn in stand-in colours, which are then replaced by ``currentColor`` and CSS variables, so that one
figure serves a light and a dark page. Series differ in marker and line style as well as in colour. Each figure carries
its numbers in words (``title`` and ``desc``) and as a table.
"""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.report.words import interval, level, shown

_INK = "#010203"
_FIRST = "#010204"
_SECOND = "#010205"
_THIRD = "#010206"
# The fallbacks (Okabe and Ito's colours) serve a figure that was taken out of its page.
_COLOURS = {
    _INK: "currentColor",
    _FIRST: "var(--series-1, #0072b2)",
    _SECOND: "var(--series-2, #d55e00)",
    _THIRD: "var(--series-3, #009e73)",
}
# The page sets smaller text than is laid out for here, so that a wider system font, or the larger text of a narrow
# page, still fits.
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 11.5,
    "grid.alpha": 0.16,
    "grid.color": _INK,
    "grid.linewidth": 0.6,
    "legend.columnspacing": 1.2,
    "legend.fontsize": 11.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.labelcolor": _INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedattack",
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _INK,
    "xtick.major.size": 3,
    "ytick.color": _INK,
    "ytick.major.size": 3,
}
_WIDTH = 420
_CHANCE: dict[str, Any] = {"color": _INK, "linestyle": ":", "linewidth": 1.4, "label": "chance"}
_MOST_CLIENTS = 25


@dataclass(frozen=True)
class Plot:
    """A figure with its words.

    Attributes
    ----------
    title
        What it shows, in a few words.
    svg
        The drawing: an ``svg`` element with an accessible name and description.
    caption
        What to know when reading it.
    header, rows
        The numbers behind it, as texts.
    """

    title: str
    svg: str
    caption: str
    header: list[str]
    rows: list[list[str]]


@matplotlib.rc_context(_STYLE)
def result_strip(finding: Finding, slug: str) -> Plot | None:
    """Value and interval of one finding on a line with chance and the null run; None if there is no value.

    Parameters
    ----------
    finding
        The finding.
    slug
        Name that is unique in the page; ids start with it.
    """
    if finding.value is None:
        return None
    figure, axes = _axes(96)
    scale = _scale(finding.units)
    null = finding.null
    if null is not None and null["low"] is not None and null["high"] is not None:
        axes.barh(
            0,
            scale * (null["high"] - null["low"]),
            left=scale * null["low"],
            height=0.9,
            color=_SECOND,
            alpha=0.6,
            label="null run's interval",
        )
    if finding.chance is not None:
        axes.axvline(scale * finding.chance, **_CHANCE)
    if finding.low is not None and finding.high is not None:
        axes.plot([scale * finding.low, scale * finding.high], [0, 0], color=_FIRST, linewidth=5, alpha=0.45)
    axes.plot(
        scale * finding.value, 0, "o", color=_FIRST, markersize=8, label=f"result with {level(finding.level)} interval"
    )
    if finding.units == PROPORTION:
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_formatter("{x:.0f}%")
    else:
        axes.set_xlabel(finding.units)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside upper left", ncols=3, handletextpad=0.5)
    title = f"{finding.label}: result against chance and null"
    words = (
        f"{shown(finding.value, finding.units)}, {level(finding.level)} interval "
        f"{interval(finding.low, finding.high, finding.units)}; chance {shown(finding.chance, finding.units)}; "
        f"null run {interval(null['low'], null['high'], finding.units) if null else 'absent'}."
    )
    return Plot(title, _svg(figure, slug, title, words), "", [], [])


@matplotlib.rc_context(_STYLE)
def per_round(finding: Finding, slug: str) -> Plot:
    """Value in each round with its interval, chance and the null run (``series["per_round"]``)."""
    series = finding.series["per_round"]
    rounds = series["rounds"]
    scale = _scale(finding.units)
    drawn = {key: scale * _floats(series[key]) for key in ("value", "low", "high", "null") if key in series}
    figure, axes = _axes(270)
    has_interval = "low" in drawn and "high" in drawn
    if has_interval and len(rounds) > 1:
        axes.fill_between(
            rounds,
            drawn["low"],
            drawn["high"],
            color=_FIRST,
            alpha=0.22,
            linewidth=0,
            label=f"{level(finding.level)} interval",
        )
    elif has_interval:
        axes.vlines(
            rounds,
            drawn["low"],
            drawn["high"],
            color=_FIRST,
            alpha=0.45,
            linewidth=5,
            label=f"{level(finding.level)} interval",
        )
    axes.plot(rounds, drawn["value"], "-o", color=_FIRST, label="result")
    if finding.chance is not None:
        axes.axhline(scale * finding.chance, **_CHANCE)
    if "null" in drawn:
        axes.plot(rounds, drawn["null"], "--s", color=_SECOND, markersize=3, linewidth=1.2, label="null run")
    _rounds(axes)
    axes.set_ylabel(_quantity("Success rate", finding.units))
    if finding.units == PROPORTION:
        axes.set_ylim(0, min(100, 1.1 * max(np.nanmax(values, initial=10) for values in drawn.values())))
    figure.legend(loc="outside upper left", ncols=4)

    columns = [series.get(key, [None] * len(rounds)) for key in ("value", "low", "high", "null")]
    title = f"{finding.label}: each round by itself"
    values = {r: v for r, v in zip(rounds, series["value"], strict=True) if v is not None}
    words = f"Line chart over {len(rounds)} rounds. "
    if values:
        best, worst = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
        words += (
            f"Lowest {shown(values[worst], finding.units)} in round {worst}, "
            f"highest {shown(values[best], finding.units)} in round {best}, "
            f"{shown(values[max(values)], finding.units)} in round {max(values)}. "
        )
    words += f"Chance is {shown(finding.chance, finding.units)}."
    nulls = [v for v in series.get("null", []) if v is not None]
    if nulls:
        words += f" The null run stays within {interval(min(nulls), max(nulls), finding.units)}."
    return Plot(
        title,
        _svg(figure, slug, title, words),
        "Each round is attacked by itself, from what the server saw in that round. Which round is best is only known "
        "after the fact.",
        ["round", "result", "interval", "null run"],
        [
            [
                str(r),
                shown(value, finding.units),
                interval(low, high, finding.units),
                shown(null, finding.units),
            ]
            for r, value, low, high, null in zip(rounds, *columns, strict=True)
        ],
    )


@matplotlib.rc_context(_STYLE)
def per_client(finding: Finding, slug: str) -> Plot:
    """Bar per client with its interval and its share of the records (``series["per_client"]``), worst first."""
    clients = finding.series["per_client"]
    top = clients[:_MOST_CLIENTS]
    scale = _scale(finding.units)
    value, low, high, share = (
        scale * _floats([client.get(key) for client in top]) for key in ("value", "low", "high", "share")
    )
    places = np.arange(len(top))
    figure, axes = _axes(95 + 21 * len(top))
    axes.barh(places, value, height=0.62, color=_FIRST, alpha=0.6, label="result")
    axes.hlines(places, low, high, color=_INK, linewidth=1.3, label=f"{level(finding.level)} interval")
    if finding.chance is not None:
        axes.axvline(scale * finding.chance, **_CHANCE)
    if not np.isnan(share).all():
        axes.plot(share, places, "D", color=_SECOND, markersize=5, linestyle="none", label="share of records")
    axes.set_yticks(places, [_short(client["client"]) for client in top])
    axes.set_ylim(len(top) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(_quantity("Success rate", finding.units))
    axes.set_ylabel("Client, most exposed first")
    if finding.units == PROPORTION:
        axes.set_xlim(0, 100)
    figure.legend(loc="outside upper left", ncols=4, handletextpad=0.5, columnspacing=1)

    title = f"{finding.label}: each client"
    words = f"Bar chart of {len(top)} of {len(clients)} clients, most exposed first. " + "; ".join(
        f"client {client['client']} {shown(client['value'], finding.units)} "
        f"({interval(client['low'], client['high'], finding.units)})"
        for client in top[:5]
    )
    if len(top) > 5:
        words += f"; least exposed of these: client {top[-1]['client']} {shown(top[-1]['value'], finding.units)}"
    return Plot(
        title,
        _svg(figure, slug, title, words + "."),
        (f"The {len(top)} most exposed of {len(clients)} clients. " if len(clients) > len(top) else "")
        + "Each client's own records as targets. The order was found by looking at the results, so the first bars are "
        "high partly by luck.",
        ["client", "result", "interval", "targets", "share of records"],
        [
            [
                client["client"],
                shown(client["value"], finding.units),
                interval(client["low"], client["high"], finding.units),
                f"{client['n']:,}",
                shown(client.get("share")),
            ]
            for client in clients
        ],
    )


@matplotlib.rc_context(_STYLE)
def reliability(finding: Finding, slug: str) -> Plot:
    """How often the attack is right when it says how sure it is (``series["reliability"]``)."""
    series = finding.series["reliability"]
    confidence, accuracy = 100 * _floats(series["confidence"]), 100 * _floats(series["accuracy"])
    count = np.asarray(series["count"], dtype=float)
    figure, axes = _axes(300)
    axes.plot([0, 100], [0, 100], color=_INK, linestyle="--", linewidth=1, label="perfectly calibrated")
    axes.plot(confidence, accuracy, color=_FIRST, linewidth=1)
    axes.scatter(
        confidence,
        accuracy,
        s=20 + 180 * count / max(count.max(), 1),
        color=_FIRST,
        alpha=0.7,
        linewidths=0,
        label="targets (area: how many)",
    )
    axes.set_xlim(0, 103)
    axes.set_ylim(0, 106)
    axes.set_xlabel("Stated confidence (%)")
    axes.set_ylabel("Correct (%)")
    # The entry's marker would otherwise be as large as the largest bin.
    figure.legend(loc="outside upper left", ncols=2, markerscale=0.6)

    title = f"{finding.label}: stated confidence against success"
    ece = series.get("ece")
    bins = list(zip(series["confidence"], series["accuracy"], series["count"], strict=True))
    words = "Where the attack says " + "; ".join(
        f"{shown(said)} it is right in {shown(right)} of {n:,} targets"
        for said, right, n in bins
        if n and right is not None
    )
    return Plot(
        title,
        _svg(figure, slug, title, words + "."),
        "On the dashed line the attacker knows how sure to be."
        + (f" Expected calibration error: {shown(ece)}." if ece is not None else ""),
        ["stated confidence", "correct", "targets"],
        [[shown(said), shown(right), f"{n:,}"] for said, right, n in bins],
    )


@matplotlib.rc_context(_STYLE)
def who_holds_what(holdings: Mapping[str, Any], slug: str) -> Plot:
    """Bubble per client and class, its area the number of records (``run.json``'s ``holdings``)."""
    clients, classes = holdings["clients"], holdings["classes"]
    counts = np.asarray(holdings["counts"], dtype=float).reshape(len(clients), len(classes))
    height = int(np.clip(110 + 24 * len(classes), 200, 420))
    figure, axes = _axes(height)
    cell = min((_WIDTH - 70) / len(clients), (height - 95) / len(classes))
    largest = max(counts.max(), 1)
    area = (0.92 * cell) ** 2 / largest
    x, y = np.nonzero(counts)
    axes.scatter(x, y, s=area * counts[x, y], color=_FIRST, alpha=0.75, linewidths=0)
    for records in dict.fromkeys((max(round(largest / 4), 1), round(largest))):
        axes.scatter([], [], s=area * records, color=_FIRST, alpha=0.75, linewidths=0, label=f"{records:,} records")
    _name_ticks(axes.xaxis, clients)
    _name_ticks(axes.yaxis, classes)
    axes.set_xlim(-0.6, len(clients) - 0.4)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_xlabel("Client")
    axes.set_ylabel("Class")
    figure.legend(loc="outside upper left", ncols=2, handletextpad=0.6)

    totals = counts.sum(axis=1)
    title = "Who holds what"
    most, least = int(totals.argmax()), int(totals.argmin())
    words = (
        f"Bubble chart of {int(counts.sum()):,} training records of {len(classes)} classes at {len(clients)} clients. "
        f"Client {clients[most]} holds most, {int(totals[most]):,}; client {clients[least]} holds fewest, "
        f"{int(totals[least]):,}. "
        + " ".join(
            f"Client {clients[i]} holds mainly class {classes[int(counts[i].argmax())]} "
            f"({shown(counts[i].max() / totals[i])} of its records)."
            for i in np.argsort(-totals)[:5]
            if totals[i]
        )
    )
    seed = f" Seed {holdings['seed']}." if "seed" in holdings else ""
    return Plot(
        title,
        _svg(figure, slug, title, words),
        f"Training records by client and class. The server is not told this; the audit knows it.{seed}",
        ["client", *(f"class {name}" for name in classes), "all"],
        [[clients[i], *(f"{int(c):,}" for c in counts[i]), f"{int(totals[i]):,}"] for i in range(len(clients))],
    )


@matplotlib.rc_context(_STYLE)
def training(accuracy: Mapping[str, Any], overfitting: Mapping[str, Any] | None, slug: str) -> Plot:
    """Accuracy per round, and the overfitting level where it is known (``run.json``'s curves)."""
    figure, axes = _axes(270)
    curves = [("accuracy", accuracy, "-o", _THIRD)]
    if overfitting is not None:
        curves.append(("overfitting level", overfitting, "--s", _SECOND))
    words, header = [], ["round"]
    cells: dict[int, list[str]] = {r: [str(r)] for _, curve, _, _ in curves for r in curve["rounds"]}
    lowest = 0.0
    for name, curve, style, colour in curves:
        seeds = list(curve["seeds"].values())
        means = [_mean(values) for values in zip(*seeds, strict=True)]
        if len(seeds) > 1:
            for values in seeds:
                axes.plot(curve["rounds"], 100 * _floats(values), style[:-1], color=colour, linewidth=0.7, alpha=0.6)
        drawn = 100 * _floats(means)
        lowest = min(lowest, np.nanmin(drawn, initial=0))
        axes.plot(
            curve["rounds"],
            drawn,
            style,
            color=colour,
            markersize=3.5,
            label=name + (f" (mean of {len(seeds)} seeds)" if len(seeds) > 1 else ""),
        )
        header.append(name)
        by_round = dict(zip(curve["rounds"], means, strict=True))
        for r, row in cells.items():
            row.append(shown(by_round.get(r)))
        words.append(
            f"{name} ({curve['what']}): {shown(means[0])} in round {curve['rounds'][0]}, "
            f"{shown(means[-1])} in round {curve['rounds'][-1]}"
        )
    _rounds(axes)
    axes.set_ylabel("Accuracy (%)" if overfitting is None else "Accuracy (%), difference (points)")
    axes.set_ylim(min(0, 1.2 * lowest), 102)
    figure.legend(loc="outside upper left", ncols=1 if max(len(c["seeds"]) for _, c, _, _ in curves) > 1 else 2)

    title = "Training" if overfitting is None else "Training and overfitting"
    caption = " ".join(f"{name.capitalize()}: {curve['what']}." for name, curve, _, _ in curves)
    if any(len(curve["seeds"]) > 1 for _, curve, _, _ in curves):
        caption += " Thin lines are single seeds."
    return Plot(
        title,
        _svg(figure, slug, title, "Line chart. " + "; ".join(words) + "."),
        caption,
        header,
        [cells[r] for r in sorted(cells)],
    )


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH / 72, height / 72), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _scale(units: str) -> float:
    return 100 if units == PROPORTION else 1


def _quantity(rate: str, units: str) -> str:
    return f"{rate} (%)" if units == PROPORTION else f"Result ({units})" if units else "Result"


def _floats(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None


def _short(name: str) -> str:
    # Node ids differ in their last digits at least as often as in their first.
    return name if len(name) <= 12 else f"{name[:5]}…{name[-6:]}"


def _rounds(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axes.set_xlabel("Round")


def _name_ticks(axis: Axis, names: Sequence[str]) -> None:
    """Name as many places as there is room for."""
    step = -(-len(names) // 20)
    upright = isinstance(axis, XAxis) and max(map(len, names)) > 3
    axis.set_ticks(range(0, len(names), step), [_short(name) for name in names[::step]], rotation=90 if upright else 0)


def _svg(figure: Figure, slug: str, title: str, words: str) -> str:
    """Drawing as text that fits into an HTML page beside others like it."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # Text stays text, so a character that matplotlib's font lacks is drawn by the browser's.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314 matplotlib's own output
    # A style element inside an inline SVG would apply to the whole page.
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)
    used = set(re.findall(r"#(\w+)", " ".join(_references(root))))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        attributes = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
        element.attrib.clear()
        for name, value in attributes.items():
            if name == "id":
                if value in used:
                    element.set(name, f"{slug}-{value}")
            elif name == "style":
                element.set(name, _style(value))
            elif name in ("href", "clip-path"):
                element.set(name, value.replace("#", f"#{slug}-"))
            else:
                element.set(name, value)
    view_box = root.get("viewBox", "")
    root.attrib.clear()
    for name, value in {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": view_box,
        "class": "plot",
        "role": "img",
        "aria-labelledby": f"{slug}-title",
        "aria-describedby": f"{slug}-desc",
        "font-family": "sans-serif",
        "font-size": "10.5",
        "stroke-linejoin": "round",
    }.items():
        root.set(name, value)
    for place, (tag, text) in enumerate((("title", title), ("desc", words))):
        element = ElementTree.Element(tag, id=f"{slug}-{tag}")
        element.text = text
        root.insert(place, element)
    return ElementTree.tostring(root, encoding="unicode")


def _references(root: ElementTree.Element) -> list[str]:
    return [
        value
        for element in root.iter()
        for name, value in element.attrib.items()
        if name.endswith("href") or (name != "id" and "url(#" in value)
    ]


def _style(style: str) -> str:
    """Style without fonts, which are the page's, and with the page's colours."""
    kept = [part for part in style.split("; ") if not part.startswith(("font-size", "font-family", "font:"))]
    text = "; ".join(kept)
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    return text
