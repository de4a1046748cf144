"""Figures of source inference and of the run, as SVG text that an HTML page can hold as it is."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.report import drawing
from fedattack.report.drawing import CHANCE, FIRST, INK, SECOND, STYLE, THIRD, Plot, floats, one_axes, scale_of, to_svg
from fedattack.report.words import interval, level, shown

_MOST_CLIENTS = 15
# Points; in the legend a wider one would cover its label.
_WIDEST_BUBBLE = 26
_MOST_HOLDERS = 50
# The least rate, in per cent, that logarithmic axes show.
_LEAST = 0.05
_MOST_ROWS = 100


@matplotlib.rc_context(STYLE)
def per_round(finding: Finding, slug: str) -> Plot:
    """Value in each round with its interval, chance and the null run (``series["per_round"]``)."""
    series = finding.series["per_round"]
    rounds, units = series["rounds"], finding.units
    scale = scale_of(units)
    figure, axes = one_axes(270)
    # Scaled to per cent where units are a proportion, with NaN for rounds without a value.
    drawn = {key: scale * floats(series[key]) for key in ("value", "low", "high", "null") if key in series}
    if "low" in drawn and "high" in drawn:
        look: dict[str, Any] = {"color": FIRST, "label": f"{level(finding.level)} interval"}
        if len(rounds) > 1:
            axes.fill_between(rounds, drawn["low"], drawn["high"], alpha=0.22, linewidth=0, **look)
        else:
            axes.vlines(rounds, drawn["low"], drawn["high"], alpha=0.45, linewidth=5, **look)
    axes.plot(rounds, drawn["value"], "-o", color=FIRST, label="result")
    if "chance" in series:
        # Where a round has not all clients, there are fewer to choose from than in all rounds together.
        axes.plot(rounds, scale * floats(series["chance"]), **CHANCE)
    elif finding.chance is not None:
        axes.axhline(scale * finding.chance, **CHANCE)
    if "null" in drawn:
        axes.plot(rounds, drawn["null"], "--s", color=SECOND, markersize=3, linewidth=1.2, label="null run")
    drawing.label_rounds(axes)
    axes.set_ylabel(drawing.quantity("Success rate", units))
    if units == PROPORTION:
        # At least 10 %, so that a chart of zeros has an axis.
        highest = max(np.nanmax(values, initial=10) for values in drawn.values())
        axes.set_ylim(0, min(100, 1.1 * highest))
    drawing.one_legend(figure, [axes])

    columns = [series.get(key, [None] * len(rounds)) for key in ("value", "low", "high", "null")]
    columns.append(series.get("chance", [finding.chance] * len(rounds)))
    rows = []
    for r, value, low, high, null, chance in zip(rounds, *columns, strict=True):
        rows.append([str(r), shown(value, units), interval(low, high, units), shown(null, units), shown(chance, units)])
    title = f"{_subject(finding)}, round by round"
    return Plot(
        title,
        to_svg(figure, slug, title, _rounds_in_words(finding)),
        "Each round is attacked separately, from what the server saw in that round. Only the results show which round "
        "is best.",
        ["round", "result", "interval", "null run", "chance"],
        rows,
    )


def _rounds_in_words(finding: Finding) -> str:
    series, units = finding.series["per_round"], finding.units
    values = {r: value for r, value in zip(series["rounds"], series["value"], strict=True) if value is not None}
    words = f"Line chart over {len(series['rounds'])} rounds. "
    if values:
        best, worst, last = max(values, key=values.__getitem__), min(values, key=values.__getitem__), max(values)
        words += f"Lowest {shown(values[worst], units)} in round {worst}, "
        words += f"highest {shown(values[best], units)} in round {best}, "
        words += f"{shown(values[last], units)} in round {last}. "
    chances = _choose_known(series.get("chance", [finding.chance]))
    # The last known chance stands for all; None if there is none.
    words += f"Chance is {shown([None, *chances][-1], units)}."
    nulls = _choose_known(series.get("null", []))
    if nulls:
        words += f" The null run stays within {interval(min(nulls), max(nulls), units)}."
    return words


@matplotlib.rc_context(STYLE)
def per_client(finding: Finding, slug: str) -> Plot:
    """Bar per client with its interval and its share of the examples (``series["per_client"]``), worst first."""
    clients, units = finding.series["per_client"], finding.units
    top = clients[:_MOST_CLIENTS]
    scale = scale_of(units)
    value, low, high, share = (scale * drawing.column(top, key) for key in ("value", "low", "high", "share"))
    positions = np.arange(len(top))
    figure, axes = one_axes(95 + 21 * len(top))
    axes.barh(positions, value, height=0.62, color=FIRST, alpha=0.6, label="result")
    axes.hlines(positions, low, high, color=INK, linewidth=1.3, label=f"{level(finding.level)} interval")
    if finding.chance is not None:
        axes.axvline(scale * finding.chance, **CHANCE)
    if not np.isnan(share).all():
        axes.plot(share, positions, "D", color=SECOND, markersize=5, linestyle="none", label="share of examples")
    drawing.name_rows(axes, list(map(drawing.short, map(itemgetter("client"), top))))
    axes.set_xlabel(drawing.quantity("Success rate", units))
    axes.set_ylabel("Client, highest rate first")
    if units == PROPORTION:
        axes.set_xlim(0, 100)
    drawing.one_legend(figure, [axes])

    rows = []
    for client in clients[:_MOST_ROWS]:
        result = [shown(client["value"], units), interval(client["low"], client["high"], units)]
        rows.append([client["client"], *result, f"{client['n']:,}", shown(client.get("share"))])
    title = f"{_subject(finding)}, client by client"
    words = f"Bar chart of {len(top)} of {len(clients)} clients, highest rate first. "
    words += "; ".join(f"client {row[0]} {row[1]} ({row[2]})" for row in rows[:5])
    if len(top) > 5:
        name, result, *_ = rows[len(top) - 1]
        words += f"; lowest of these: client {name} {result}"
    caption = ""
    if len(clients) > len(top):
        caption = f"The {len(top)} of {len(clients)} clients with the highest rates. "
    caption += "The targets are each client's own examples. The order comes from the results, so the first "
    caption += "bars are high partly by luck."
    if len(clients) > _MOST_ROWS:
        caption += f" The numbers are those of the first {_MOST_ROWS}."
    header = ["client", "result", "interval", "targets", "share of examples"]
    return Plot(title, to_svg(figure, slug, title, words + "."), caption, header, rows)


@matplotlib.rc_context(STYLE)
def reliability(finding: Finding, slug: str) -> Plot:
    """How often the attack is right when it says how sure it is (``series["reliability"]``)."""
    series = finding.series["reliability"]
    confidence, accuracy = 100 * floats(series["confidence"]), 100 * floats(series["accuracy"])
    count = np.asarray(series["count"], dtype=float)
    # Areas, and not widths, are in proportion to the counts.
    area = 20 + 180 * count / max(count.max(), 1)
    figure, axes = one_axes(300)
    axes.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="perfectly calibrated")
    axes.plot(confidence, accuracy, color=FIRST, linewidth=1)
    label = "targets (area: how many)"
    axes.scatter(confidence, accuracy, s=area, color=FIRST, alpha=0.7, linewidths=0, label=label)
    axes.set_xlim(0, 103)
    axes.set_ylim(0, 106)
    axes.set_xlabel("Stated confidence (%)")
    axes.set_ylabel("Correct (%)")
    # The entry's marker would otherwise be as large as the largest bin.
    drawing.one_legend(figure, [axes], markerscale=0.6)

    rows, sentences = [], []
    for stated, right, n in zip(series["confidence"], series["accuracy"], series["count"], strict=True):
        rows.append([shown(stated), shown(right), f"{n:,}"])
        if n and right is not None:
            sentences.append(f"{shown(stated)} it is right in {shown(right)} of {n:,} targets")
    title = f"{_subject(finding)}: is the attack right as often as it says?"
    svg = to_svg(figure, slug, title, f"Where the attack says {'; '.join(sentences)}.")
    caption = "On the dashed line the attack is right as often as it says."
    if series.get("ece") is not None:
        caption += f" Expected calibration error: {shown(series['ece'])}."
    return Plot(title, svg, caption, ["stated confidence", "correct", "targets"], rows)


def _percent(value: float, _: Any = None) -> str:
    return f"{value:g}%"


@matplotlib.rc_context(STYLE)
def roc(finding: Finding, slug: str, *, title: str, found: str, accused: str, caption: str = "") -> Plot:
    """True-positive against false-positive rate on logarithmic axes (``series["roc"]``), with a band if there is one.

    `found` and `accused` name what the two rates count, such as members and non-members.
    """
    curve = finding.series["roc"]
    rates, value = 100 * floats(curve["fpr"]), 100 * floats(curve["value"])
    figure, axes = one_axes(320)
    if "low" in curve:
        # A logarithmic axis has no 0: the band ends at the least rate that is shown.
        low, high = (100 * floats(curve[key]).clip(_LEAST / 100) for key in ("low", "high"))
        axes.fill_between(rates, low, high, color=FIRST, alpha=0.22, linewidth=0, label=f"{level(finding.level)} band")
    axes.plot(rates, value.clip(_LEAST), color=FIRST, linewidth=2, label="result")
    axes.plot(rates, rates, **CHANCE)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(rates[0], 99), 100)
    axes.set_ylim(_LEAST, 100)
    # Plain per cents in place of powers of ten.
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_percent))
    # Ticks between decades take most of the time of the drawing.
    axes.minorticks_off()
    axes.set_xlabel(drawing.wrap_name(f"False positives: {accused}"))
    axes.set_ylabel(drawing.wrap_name(f"True positives: {found}", 36))
    drawing.one_legend(figure, [axes])

    ends = [curve.get(key, [None] * len(rates)) for key in ("low", "high")]
    rows = []
    for rate, share, below, above in zip(curve["fpr"], curve["value"], *ends, strict=True):
        rows.append([shown(rate), shown(share), interval(below, above)])
    # Every eighth point is enough for who hears the figure read.
    words = "; ".join(f"at {row[0]} false positives {row[1]} of the {found} are found" for row in rows[::8])
    words = f"Curve on logarithmic axes: {words}."
    about = (
        f"How many {found} are found, for each share of {accused} that is wrongly accused. The left end is what a "
        "careful attacker looks at: few accusations, nearly all of them right."
    )
    if "low" in curve:
        about += " The band holds for each point separately."
    header = ["false positives", f"{found} found", "interval"]
    return Plot(title, to_svg(figure, slug, title, words), f"{about} {caption}".strip(), header, rows)


@matplotlib.rc_context(STYLE)
def histogram(finding: Finding, slug: str, *, title: str, axis: str, positive: str, negative: str) -> Plot:
    """Scores of two groups in the same bins, as shares of each group (``series["scores"]``)."""
    scores = finding.series["scores"]
    edges = floats(scores["edges"])
    groups = {positive: floats(scores["positive"]), negative: floats(scores["negative"])}
    # Filled and hollow, so that the two differ without colour too.
    looks: Sequence[dict[str, Any]] = (
        {"color": FIRST, "fill": True, "alpha": 0.45, "linewidth": 0},
        {"color": SECOND, "fill": False, "linewidth": 2},
    )
    figure, axes = one_axes(260)
    shares = []
    for (name, counts), look in zip(groups.items(), looks, strict=True):
        total = max(counts.sum(), 1)
        shares.append(counts / total)
        axes.stairs(100 * counts / total, edges, label=f"{name} ({counts.sum():,.0f})", **look)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(axis)
    axes.set_ylabel("Share of the group (%)")
    drawing.one_legend(figure, [axes])

    # The areas that both histograms share: 1 minus the total variation distance.
    common = shown(float(np.minimum(*shares).sum()))
    rows = []
    for low, high, first, second in zip(edges[:-1], edges[1:], *groups.values(), strict=True):
        rows.append([f"{low:.4g} to {high:.4g}", f"{first:,.0f}", f"{second:,.0f}"])
    words = f"Histograms of {groups[positive].sum():,.0f} {positive} and {groups[negative].sum():,.0f} {negative}, "
    words += f"from {edges[0]:.3g} to {edges[-1]:.3g}. They have {common} of their areas in common."
    caption = f"The two have {common} of their areas in common: at 100% no threshold tells them apart, at 0% one does "
    caption += "without an error. Scores beyond the ends are in the outermost bins."
    return Plot(title, to_svg(figure, slug, title, words), caption, ["score", positive, negative], rows)


@matplotlib.rc_context(STYLE)
def who_holds_what(holdings: Mapping[str, Any], slug: str) -> Plot:
    """Bubble per client and class, its area the number of examples (``run.json``'s ``holdings``)."""
    every, classes = holdings["clients"], holdings["classes"]
    examples = np.asarray(holdings["counts"], dtype=float).reshape(len(every), len(classes))
    # Some of many clients, of every size, in the order in which they stand.
    by_size = np.argsort(examples.sum(axis=1), kind="stable")
    steps = np.linspace(0, len(every) - 1, min(len(every), _MOST_HOLDERS)).round().astype(int)
    drawn = np.sort(by_size[steps])
    clients, counts = np.array(every)[drawn].tolist(), examples[drawn]
    height = int(np.clip(110 + 24 * len(classes), 200, 420))
    figure, axes = one_axes(height)
    _draw_bubbles(axes, counts, min((drawing.WIDTH - 70) / len(clients), (height - 95) / len(classes), _WIDEST_BUBBLE))
    drawing.name_ticks(axes.xaxis, clients)
    drawing.name_ticks(axes.yaxis, classes)
    axes.set_xlim(-0.6, len(clients) - 0.4)
    # Descending limits put the first class at the top, as in a table.
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_xlabel("Client")
    axes.set_ylabel("Class")
    drawing.one_legend(figure, [axes])

    totals = counts.sum(axis=1)
    some = ""
    if len(clients) < len(every):
        some = f" The figure shows {len(clients)} of them, of all sizes."
    most, least = int(totals.argmax()), int(totals.argmin())
    words = (
        f"Bubble chart of {int(examples.sum()):,} training examples of {len(classes)} classes at {len(every)} clients."
        f"{some} Client {clients[most]} holds most, {int(totals[most]):,}; client {clients[least]} holds fewest, "
        f"{int(totals[least]):,}. "
    )
    sentences = []
    for i in np.argsort(-totals)[:5]:
        if totals[i]:
            share = f"{shown(counts[i].max() / totals[i])} of its examples"
            sentences.append(f"Client {clients[i]} holds mainly class {classes[int(counts[i].argmax())]} ({share}).")
    title = "Who holds what"
    svg = to_svg(figure, slug, title, words + " ".join(sentences))
    caption = f"Training examples by client and class, at {len(every)} clients.{some} The server is not told this; the "
    caption += "audit knows it."
    if "seed" in holdings:
        caption += f" Seed {holdings['seed']}."
    header = ["client", *map("class {}".format, classes), "all"]
    numbers = np.column_stack([counts, totals]).astype(int).tolist()
    rows = [[client, *map("{:,}".format, row)] for client, row in zip(clients, numbers, strict=True)]
    return Plot(title, svg, caption, header, rows)


def _draw_bubbles(axes: Axes, counts: NDArray[np.float64], width: float) -> None:
    """Draw a bubble for each count, the largest one almost as wide as `width`, in points."""
    largest = max(counts.max(), 1)
    # matplotlib takes the area of a marker, in points².
    area = (0.92 * width) ** 2 / largest
    look: dict[str, Any] = {"color": FIRST, "alpha": 0.75, "linewidths": 0}
    x, y = np.nonzero(counts)
    axes.scatter(x, y, s=area * counts[x, y], **look)
    # Empty scatters make the legend's entries: sizes of about a quarter and of the largest.
    for records in dict.fromkeys((max(round(largest / 4), 1), round(largest))):
        axes.scatter([], [], s=area * records, label=f"{records:,} examples", **look)


@matplotlib.rc_context(STYLE)
def training(accuracy: Mapping[str, Any], overfitting: Mapping[str, Any] | None, slug: str) -> Plot:
    """Accuracy per round, and the overfitting level where it is known (``run.json``'s curves)."""
    figure, axes = one_axes(270)
    measure = accuracy.get("measure", "accuracy")
    axis, title = f"{_capital(measure)} (%)", "Training"
    curves = [(measure, accuracy, "-o", THIRD)]
    if overfitting is not None:
        curves.append(("overfitting level", overfitting, "--s", SECOND))
        axis, title = f"{axis}, difference (points)", "Training and overfitting"
    header, sentences, captions, columns, lowest = ["round"], [], [], [], 0.0
    for name, curve, style, colour in curves:
        header.append(name)
        means = _draw_curve(axes, name, curve, style, colour)
        rounds = curve["rounds"]
        # The overfitting level may be negative.
        lowest = min(lowest, np.nanmin(100 * floats(means), initial=0))
        columns.append(dict(zip(rounds, means, strict=True)))
        ends = f"{shown(means[0])} in round {rounds[0]}, {shown(means[-1])} in round {rounds[-1]}"
        sentences.append(f"{name} ({curve['what']}): {ends}")
        captions.append(f"{_capital(name)}: {curve['what']}.")
    drawing.label_rounds(axes)
    axes.set_ylabel(axis)
    axes.set_ylim(min(0, 1.2 * lowest), 102)
    several_seeds = max(len(curve["seeds"]) for _, curve, _, _ in curves) > 1
    drawing.one_legend(figure, [axes])
    if several_seeds:
        captions.append("Thin lines are single seeds.")

    rows = []
    # Curves may have been measured in different rounds.
    for r in sorted(set().union(*columns)):
        rows.append([str(r), *(shown(column.get(r)) for column in columns)])
    svg = to_svg(figure, slug, title, f"Line chart. {'; '.join(sentences)}.")
    return Plot(title, svg, " ".join(captions), header, rows)


def _draw_curve(axes: Axes, name: str, curve: Mapping[str, Any], style: str, colour: str) -> list[float | None]:
    """Draw and return the mean of a curve over its seeds; several seeds are drawn too, as thin lines."""
    rounds, seeds = curve["rounds"], list(curve["seeds"].values())
    means = list(map(_mean, zip(*seeds, strict=True)))
    if len(seeds) > 1:
        for values in seeds:
            # The style without its marker: the last character is the marker's.
            axes.plot(rounds, 100 * floats(values), style[:-1], color=colour, linewidth=0.7, alpha=0.6)
        name += f" (mean of {len(seeds)} seeds)"
    axes.plot(rounds, 100 * floats(means), style, color=colour, markersize=3.5, label=name)
    return means


def _mean(values: Sequence[float | None]) -> float | None:
    known = _choose_known(values)
    return fmean(known) if known else None


def _choose_known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _subject(finding: Finding) -> str:
    """Say what a finding is about, without how rounds were put together: "Owner named, all rounds combined"."""
    return finding.label.partition(",")[0]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
