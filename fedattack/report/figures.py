"""Figures of source inference and of the run, as SVG text that an HTML page can hold as it is."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.report.drawing import (
    CHANCE,
    FIRST,
    INK,
    SECOND,
    STYLE,
    THIRD,
    WIDTH,
    Plot,
    floats,
    label_rounds,
    name_ticks,
    one_axes,
    quantity,
    scale_of,
    short,
    to_svg,
)
from fedattack.report.words import interval, level, shown

_MOST_CLIENTS = 25
# Points; in the legend a wider one would cover its label.
_WIDEST_BUBBLE = 26
_MOST_HOLDERS = 50
_MOST_ROWS = 100


@matplotlib.rc_context(STYLE)
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
    figure, axes = one_axes(96)
    scale = scale_of(finding.units)
    null = finding.null
    if null is not None and null["low"] is not None and null["high"] is not None:
        axes.barh(
            0,
            scale * (null["high"] - null["low"]),
            left=scale * null["low"],
            height=0.9,
            color=SECOND,
            alpha=0.6,
            label="null run's interval",
        )
    if finding.chance is not None:
        axes.axvline(scale * finding.chance, **CHANCE)
    label = "result"
    if finding.low is not None and finding.high is not None:
        axes.plot([scale * finding.low, scale * finding.high], [0, 0], color=FIRST, linewidth=5, alpha=0.45)
        label = f"result with {level(finding.level)} interval"
    axes.plot(scale * finding.value, 0, "o", color=FIRST, markersize=8, label=label)
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
    return Plot(title, to_svg(figure, slug, title, words), "", [], [])


@matplotlib.rc_context(STYLE)
def per_round(finding: Finding, slug: str) -> Plot:
    """Value in each round with its interval, chance and the null run (``series["per_round"]``)."""
    series = finding.series["per_round"]
    rounds = series["rounds"]
    scale = scale_of(finding.units)
    drawn = {key: scale * floats(series[key]) for key in ("value", "low", "high", "null") if key in series}
    figure, axes = one_axes(270)
    has_interval = "low" in drawn and "high" in drawn
    if has_interval and len(rounds) > 1:
        axes.fill_between(
            rounds,
            drawn["low"],
            drawn["high"],
            color=FIRST,
            alpha=0.22,
            linewidth=0,
            label=f"{level(finding.level)} interval",
        )
    elif has_interval:
        axes.vlines(
            rounds,
            drawn["low"],
            drawn["high"],
            color=FIRST,
            alpha=0.45,
            linewidth=5,
            label=f"{level(finding.level)} interval",
        )
    axes.plot(rounds, drawn["value"], "-o", color=FIRST, label="result")
    if "chance" in series:
        # Where not all clients are seen in a round, there are fewer to choose from than in all rounds together.
        axes.plot(rounds, scale * floats(series["chance"]), **CHANCE)
    elif finding.chance is not None:
        axes.axhline(scale * finding.chance, **CHANCE)
    if "null" in drawn:
        axes.plot(rounds, drawn["null"], "--s", color=SECOND, markersize=3, linewidth=1.2, label="null run")
    label_rounds(axes)
    axes.set_ylabel(quantity("Success rate", finding.units))
    if finding.units == PROPORTION:
        axes.set_ylim(0, min(100, 1.1 * max(np.nanmax(values, initial=10) for values in drawn.values())))
    figure.legend(loc="outside upper left", ncols=4)

    columns = [series.get(key, [None] * len(rounds)) for key in ("value", "low", "high", "null")]
    columns.append(series.get("chance", [finding.chance] * len(rounds)))
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
    guessed = [v for v in series.get("chance", [finding.chance]) if v is not None] or [None]
    words += f"Chance is {shown(guessed[-1], finding.units)}."
    nulls = [v for v in series.get("null", []) if v is not None]
    if nulls:
        words += f" The null run stays within {interval(min(nulls), max(nulls), finding.units)}."
    return Plot(
        title,
        to_svg(figure, slug, title, words),
        "Each round is attacked by itself, from what the server saw in that round. Which round is best is only known "
        "after the fact.",
        ["round", "result", "interval", "null run", "chance"],
        [
            [
                str(r),
                shown(value, finding.units),
                interval(low, high, finding.units),
                shown(null, finding.units),
                shown(chance, finding.units),
            ]
            for r, value, low, high, null, chance in zip(rounds, *columns, strict=True)
        ],
    )


@matplotlib.rc_context(STYLE)
def per_client(finding: Finding, slug: str) -> Plot:
    """Bar per client with its interval and its share of the records (``series["per_client"]``), worst first."""
    clients = finding.series["per_client"]
    top = clients[:_MOST_CLIENTS]
    scale = scale_of(finding.units)
    value, low, high, share = (
        scale * floats([client.get(key) for client in top]) for key in ("value", "low", "high", "share")
    )
    places = np.arange(len(top))
    figure, axes = one_axes(95 + 21 * len(top))
    axes.barh(places, value, height=0.62, color=FIRST, alpha=0.6, label="result")
    axes.hlines(places, low, high, color=INK, linewidth=1.3, label=f"{level(finding.level)} interval")
    if finding.chance is not None:
        axes.axvline(scale * finding.chance, **CHANCE)
    if not np.isnan(share).all():
        axes.plot(share, places, "D", color=SECOND, markersize=5, linestyle="none", label="share of records")
    axes.set_yticks(places, [short(client["client"]) for client in top])
    axes.set_ylim(len(top) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(quantity("Success rate", finding.units))
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
        to_svg(figure, slug, title, words + "."),
        (f"The {len(top)} most exposed of {len(clients)} clients. " if len(clients) > len(top) else "")
        + "Each client's own records as targets. The order was found by looking at the results, so the first bars are "
        "high partly by luck."
        + (f" The numbers are those of the first {_MOST_ROWS}." if len(clients) > _MOST_ROWS else ""),
        ["client", "result", "interval", "targets", "share of records"],
        [
            [
                client["client"],
                shown(client["value"], finding.units),
                interval(client["low"], client["high"], finding.units),
                f"{client['n']:,}",
                shown(client.get("share")),
            ]
            for client in clients[:_MOST_ROWS]
        ],
    )


@matplotlib.rc_context(STYLE)
def reliability(finding: Finding, slug: str) -> Plot:
    """How often the attack is right when it says how sure it is (``series["reliability"]``)."""
    series = finding.series["reliability"]
    confidence, accuracy = 100 * floats(series["confidence"]), 100 * floats(series["accuracy"])
    count = np.asarray(series["count"], dtype=float)
    figure, axes = one_axes(300)
    axes.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="perfectly calibrated")
    axes.plot(confidence, accuracy, color=FIRST, linewidth=1)
    axes.scatter(
        confidence,
        accuracy,
        s=20 + 180 * count / max(count.max(), 1),
        color=FIRST,
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
        to_svg(figure, slug, title, words + "."),
        "On the dashed line the attacker knows how sure to be."
        + (f" Expected calibration error: {shown(ece)}." if ece is not None else ""),
        ["stated confidence", "correct", "targets"],
        [[shown(said), shown(right), f"{n:,}"] for said, right, n in bins],
    )


@matplotlib.rc_context(STYLE)
def who_holds_what(holdings: Mapping[str, Any], slug: str) -> Plot:
    """Bubble per client and class, its area the number of records (``run.json``'s ``holdings``)."""
    every, classes = holdings["clients"], holdings["classes"]
    held = np.asarray(holdings["counts"], dtype=float).reshape(len(every), len(classes))
    # Of many clients some of every size, in the order in which they stand.
    by_size = np.argsort(held.sum(axis=1), kind="stable")
    drawn = np.sort(by_size[np.linspace(0, len(every) - 1, min(len(every), _MOST_HOLDERS)).round().astype(int)])
    clients, counts = [every[i] for i in drawn], held[drawn]
    height = int(np.clip(110 + 24 * len(classes), 200, 420))
    figure, axes = one_axes(height)
    cell = min((WIDTH - 70) / len(clients), (height - 95) / len(classes), _WIDEST_BUBBLE)
    largest = max(counts.max(), 1)
    area = (0.92 * cell) ** 2 / largest
    x, y = np.nonzero(counts)
    axes.scatter(x, y, s=area * counts[x, y], color=FIRST, alpha=0.75, linewidths=0)
    for records in dict.fromkeys((max(round(largest / 4), 1), round(largest))):
        axes.scatter([], [], s=area * records, color=FIRST, alpha=0.75, linewidths=0, label=f"{records:,} records")
    name_ticks(axes.xaxis, clients)
    name_ticks(axes.yaxis, classes)
    axes.set_xlim(-0.6, len(clients) - 0.4)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.set_xlabel("Client")
    axes.set_ylabel("Class")
    figure.legend(loc="outside upper left", ncols=2, handletextpad=0.6)

    totals = counts.sum(axis=1)
    some = f" The figure shows {len(clients)} of them, of all sizes." if len(clients) < len(every) else ""
    title = "Who holds what"
    most, least = int(totals.argmax()), int(totals.argmin())
    words = (
        f"Bubble chart of {int(held.sum()):,} training records of {len(classes)} classes at {len(every)} clients."
        f"{some} "
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
        to_svg(figure, slug, title, words),
        f"Training records by client and class, at {len(every)} clients.{some} The server is not told this; the audit "
        f"knows it.{seed}",
        ["client", *(f"class {name}" for name in classes), "all"],
        [[clients[i], *(f"{int(c):,}" for c in counts[i]), f"{int(totals[i]):,}"] for i in range(len(clients))],
    )


@matplotlib.rc_context(STYLE)
def training(accuracy: Mapping[str, Any], overfitting: Mapping[str, Any] | None, slug: str) -> Plot:
    """Accuracy per round, and the overfitting level where it is known (``run.json``'s curves)."""
    figure, axes = one_axes(270)
    measure = accuracy.get("measure", "accuracy")
    curves = [(measure, accuracy, "-o", THIRD)]
    if overfitting is not None:
        curves.append(("overfitting level", overfitting, "--s", SECOND))
    words, header = [], ["round"]
    cells: dict[int, list[str]] = {r: [str(r)] for _, curve, _, _ in curves for r in curve["rounds"]}
    lowest = 0.0
    for name, curve, style, colour in curves:
        seeds = list(curve["seeds"].values())
        means = [_mean(values) for values in zip(*seeds, strict=True)]
        if len(seeds) > 1:
            for values in seeds:
                axes.plot(curve["rounds"], 100 * floats(values), style[:-1], color=colour, linewidth=0.7, alpha=0.6)
        drawn = 100 * floats(means)
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
    label_rounds(axes)
    axis = f"{measure[:1].upper()}{measure[1:]} (%)"
    axes.set_ylabel(axis if overfitting is None else f"{axis}, difference (points)")
    axes.set_ylim(min(0, 1.2 * lowest), 102)
    figure.legend(loc="outside upper left", ncols=1 if max(len(c["seeds"]) for _, c, _, _ in curves) > 1 else 2)

    title = "Training" if overfitting is None else "Training and overfitting"
    caption = " ".join(f"{name[:1].upper()}{name[1:]}: {curve['what']}." for name, curve, _, _ in curves)
    if any(len(curve["seeds"]) > 1 for _, curve, _, _ in curves):
        caption += " Thin lines are single seeds."
    return Plot(
        title,
        to_svg(figure, slug, title, "Line chart. " + "; ".join(words) + "."),
        caption,
        header,
        [cells[r] for r in sorted(cells)],
    )


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return fmean(there) if there else None
