"""Figures of property inference: which clients have a property, from sums over changing groups of them.

They follow Figures 2–5 and 7 of the PROLIN paper (Kerkouche, Ács and Fritz, *Client-specific Property Inference against
Secure Aggregation in Federated Learning*).
"""

from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.stats import norm

from fedattack.audit.finding import Finding
from fedattack.report import figures
from fedattack.report.drawing import (
    CHANCE,
    DASHES,
    FIRST,
    INK,
    SECOND,
    SIZE,
    STYLE,
    THIRD,
    Plot,
    draw_lines,
    floats,
    label_rounds,
    looks_of,
    name_rows,
    one_axes,
    one_legend,
    panels,
    short,
    to_svg,
)
from fedattack.report.section import Lists, Section
from fedattack.report.words import interval, level, shown
from fedattack.threats.property.tables import FORMS, PLAINTEXT

_ROUNDS_SEEN = "Rounds that the server has seen"
_MOST_POSTERIORS = 25
# Letters of a client, a target and a seed, each shortened.
_MOST_LETTERS = 44


@matplotlib.rc_context(STYLE)
def f1(finding: Finding, slug: str) -> Plot:
    """F1 score of each method after each number of rounds, as Figures 3–5 of the paper (``series["methods"]``)."""
    series = finding.series["methods"]
    if len(series["rounds"]) < 2:
        return _after_all_rounds(finding, slug)
    return _by_method(
        finding,
        slug,
        series["rounds"],
        _curves(series, "f1"),
        title="F1 score of each method",
        axis="F1 score (%)",
        caption="What each method answers from the rounds so far, compared with the truth. F1 is the harmonic mean of "
        "precision (how many of the named clients have the property) and recall (how many of those that have it are "
        "named).",
        chance=series.get("chance"),
    )


def _after_all_rounds(finding: Finding, slug: str) -> Plot:
    """Draw a row for each method where there is one number of rounds, after which all are the same in all rounds."""
    series = finding.series["methods"]
    methods, measures = list(series["methods"]), ("f1", "precision", "recall")
    looks: Sequence[dict[str, Any]] = (
        {"marker": "D", "color": FIRST, "label": "F1 score"},
        {"marker": "|", "color": INK, "label": "precision", "markersize": 13},
        {"marker": "o", "color": SECOND, "label": "recall", "markersize": 10, "markerfacecolor": "none"},
    )
    figure, axes = one_axes(115 + 26 * len(methods))
    columns = {}
    for measure, look in zip(measures, looks, strict=True):
        columns[measure] = [series["methods"][method].get(measure, [None])[-1] for method in methods]
        style: dict[str, Any] = {"linestyle": "none", "markersize": 6, "markeredgewidth": 1.6, **look}
        axes.plot(_percent(columns[measure]), np.arange(len(methods)), **style)
    if series.get("chance") is not None:
        axes.axvline(100 * series["chance"], **(CHANCE | {"label": "chance (F1)"}))
    name_rows(axes, methods)
    axes.set_xlim(-3, 103)
    axes.set_xlabel("F1 score, precision, recall (%)")
    one_legend(figure, [axes])
    title = f"F1 score, precision and recall after {series['rounds'][-1]} rounds"
    rows = [[method, *map(shown, values)] for method, *values in zip(methods, *columns.values(), strict=True)]
    words = "; ".join(f"{row[0]}: F1 {row[1]}, precision {row[2]}, recall {row[3]}" for row in rows)
    caption = "Precision: how many of the named clients have the property. Recall: how many of those that have it are "
    caption += "named. F1 is the harmonic mean of both."
    svg = to_svg(figure, slug, title, f"Dot chart. {words}. Chance is {shown(series.get('chance'))}.")
    return Plot(title, svg, caption, ["method", *measures], rows)


@matplotlib.rc_context(STYLE)
def precision_and_recall(finding: Finding, slug: str) -> Plot | None:
    """Precision and recall of each method, side by side (``series["methods"]``); None if there are none to draw."""
    series = finding.series["methods"]
    rounds = series["rounds"]
    measures = {"precision": _curves(series, "precision"), "recall": _curves(series, "recall")}
    if len(rounds) < 2 or not all(measures.values()):
        return None
    figure, both = panels(250, 2, 2, shared=True)
    columns: dict[str, Sequence[float | None]] = {}
    for axes, (measure, lines) in zip(both, measures.items(), strict=True):
        draw_lines(axes, rounds, lines, _looks(finding))
        axes.set_title(f"{measure.capitalize()} (%)")
        label_rounds(axes, "", ticks=4)
        for name, values in lines.items():
            columns[f"{name} {measure}"] = values
    figure.supxlabel(_ROUNDS_SEEN, fontsize=SIZE)
    one_legend(figure, both, handlelength=DASHES)
    title = "Precision and recall of each method"
    return Plot(
        title,
        to_svg(figure, slug, title, _after(rounds, columns)),
        "Precision is drawn only if a method named a client.",
        ["rounds seen", *columns],
        _rows(rounds, columns.values()),
    )


@matplotlib.rc_context(STYLE)
def stability(finding: Finding, slug: str) -> Plot | None:
    """Share of the decisions that are already the final ones (``series["stability"]``); None of one window."""
    series = finding.series["stability"]
    if len(series["rounds"]) < 2:
        return None
    return _by_method(
        finding,
        slug,
        series["rounds"],
        series["methods"],
        title="How soon decisions are final",
        axis="Decisions as at the end (%)",
        caption="Share of the clients about which a method says what it will say after the last round, right or wrong.",
    )


@matplotlib.rc_context(STYLE)
def overlap(finding: Finding, slug: str) -> Plot:
    """Overlap coefficient and accuracy of each round's detector, as Figure 7 of the paper (``series["overlap"]``)."""
    series = finding.series["overlap"]
    rounds = series["rounds"]
    columns = {key: series[key] for key in ("overlap", "low", "high", "accuracy")}
    checked = dict(zip(series["checked_rounds"], series["checked_accuracy"], strict=True))
    figure, axes = one_axes(280)
    every = max(len(rounds) // 12, 1)
    low, high = _percent(columns["low"]), _percent(columns["high"])
    axes.fill_between(rounds, low, high, color=FIRST, alpha=0.22, linewidth=0, label="range of the overlap")
    axes.plot(rounds, _percent(columns["overlap"]), "-o", color=FIRST, markevery=every, label="overlap (median)")
    accuracy = _percent(columns["accuracy"])
    axes.plot(rounds, accuracy, "--s", color=SECOND, markevery=every, label="accuracy, unseen examples")
    fresh, label = list(checked.values()), "accuracy, fresh exact updates"
    axes.plot(list(checked), _percent(fresh), "D", color=THIRD, markersize=6.5, label=label)
    words = f"Line chart over {len(rounds)} rounds. Overlap: {_first_and_last(rounds, columns['overlap'])}."
    words += f" Accuracy on unseen auxiliary records: {_first_and_last(rounds, columns['accuracy'])}."
    words += f" Accuracy on fresh exact updates: {_first_and_last(list(checked), fresh)}."
    caption = (
        "The overlap (OVL) is the area that the feature's two densities, with and without the property, have in "
        "common: at 0% every update reveals itself, at 100% none does. A detector's weight is one minus its "
        "overlap. Accuracy on fresh exact updates is the harder test: updates of unseen examples, made just as the "
        "clients make theirs."
    )
    label_rounds(axes)
    axes.set_ylabel("Overlap, accuracy (%)")
    axes.set_ylim(-4, 104)
    one_legend(figure, [axes], handlelength=2.4)
    rows = []
    for number, middle, least, most, accurate in zip(rounds, *columns.values(), strict=True):
        row = [str(number), shown(middle), interval(least, most), shown(accurate), shown(checked.get(number))]
        rows.append(row)
    title = "Detector of each round"
    header = ["round", "overlap", "range", "accuracy", "accuracy, fresh exact updates"]
    return Plot(title, to_svg(figure, slug, title, words), caption, header, rows)


@matplotlib.rc_context(STYLE)
def distributions(finding: Finding, slug: str) -> Plot:
    """Densities of the feature with and without the property, as Figure 2 (``series["distributions"]``)."""
    shots = finding.series["distributions"]
    columns = min(len(shots), 2)
    figure, grid = panels(75 + 145 * -(-len(shots) // columns), len(shots), columns)
    for axes, shot in zip(grid, shots, strict=True):
        _draw_densities(axes, shot)
    one_legend(figure, grid)
    figure.supxlabel("Feature of an update", fontsize=SIZE)

    title = "Feature with and without the property"
    words, rows = [], []
    for shot in shots:
        plus, minus, area = shot["plus"], shot["minus"], shown(shot["overlap"])
        words.append(
            f"round {shot['round']}: mean {plus['mean']:.3g} with the property and {minus['mean']:.3g} without, "
            f"overlap {area}"
        )
        moments = map("{:.4g}".format, (plus["mean"], plus["sd"], minus["mean"], minus["sd"]))
        rows.append([str(shot["round"]), area, *moments])
    return Plot(
        title,
        to_svg(figure, slug, title, f"Densities of the detector's feature. {'; '.join(words)}."),
        "Bars are shadow updates of unseen examples, lines the normal densities that the attack works with. The grey "
        "area is their overlap (OVL).",
        ["round", "overlap", "with: mean", "sd", "without: mean", "sd"],
        rows,
    )


def _draw_densities(axes: Axes, shot: Mapping[str, Any]) -> None:
    reach = [*shot["plus_sample"], *shot["minus_sample"]]
    for side in (shot["plus"], shot["minus"]):
        reach += [side["mean"] - 4 * side["sd"], side["mean"] + 4 * side["sd"]]
    low, high = min(reach), max(reach)
    span = high - low or 1
    x = np.linspace(low - 0.02 * span, high + 0.02 * span, 600)
    curves = []
    for side, colour, style, name in (("plus", FIRST, "-", "with"), ("minus", SECOND, "--", "without")):
        sample, mean, sd = shot[f"{side}_sample"], shot[side]["mean"], shot[side]["sd"]
        if sample:
            axes.hist(sample, bins=20, density=True, histtype="stepfilled", color=colour, alpha=0.3)
        # A feature without any spread would be an infinitely narrow line.
        curve = norm.pdf(x, mean, max(sd, 0.005 * span))
        axes.plot(x, curve, style, color=colour, label=f"{name} the property")
        curves.append(curve)
    axes.fill_between(x, np.minimum(*curves), color=INK, alpha=0.35, linewidth=0, label="overlap")
    axes.set_title(f"Round {shot['round']}: OVL {shown(shot['overlap'])}")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))


@matplotlib.rc_context(STYLE)
def posteriors(finding: Finding, slug: str) -> Plot:
    """Posterior of each client with its interval, most suspicious first (``series["posteriors"]``)."""
    answers = sorted(finding.series["posteriors"], key=itemgetter("posterior"), reverse=True)
    top = answers[:_MOST_POSTERIORS]
    parts = ["client"]
    for part in ("target", "seed"):
        if len({answer[part] for answer in answers}) > 1:
            parts.append(part)
    figure, axes = one_axes(105 + 17 * max(len(top), 1))
    _draw_posteriors(axes, top, f"{level(finding.level)} interval")
    name_rows(axes, [_name_of(answer, parts) for answer in top], _MOST_LETTERS)
    axes.set_ylabel(f"{' · '.join(parts).capitalize()}, most suspicious first")
    one_legend(figure, [axes])

    title = "Posterior of each client"
    words = f"Dot chart of the {len(top)} most suspicious of {len(answers)} listed. "
    words += "; ".join(map(_in_words, top[:5]))
    caption = ""
    if len(answers) > len(top):
        caption += f"The {len(top)} most suspicious of {len(answers)} listed. "
    return Plot(
        title,
        to_svg(figure, slug, title, words.rstrip("; ") + "."),
        caption + "How sure the server can be that a client has the property. Only the audit knows who really has it.",
        ["client", "target", "seed", "posterior", "interval", "has the property", "rounds with it"],
        list(map(_posterior_row, answers)),
    )


def _draw_posteriors(axes: Axes, answers: Sequence[Mapping[str, Any]], label: str) -> None:
    rows = np.arange(len(answers))
    value, low, high = _column(answers, "posterior"), _column(answers, "low"), _column(answers, "high")
    positive = np.array([answer["positive"] for answer in answers], dtype=bool)
    axes.hlines(rows, low, high, color=INK, linewidth=1.3, alpha=0.6, label=label)
    # Filled and hollow, so that the two differ without colour too.
    for chosen, marker, colour, filled, name in (
        (positive, "D", SECOND, SECOND, "has the property"),
        (~positive, "o", FIRST, "none", "does not have it"),
    ):
        looks: dict[str, Any] = {"markerfacecolor": filled, "markeredgewidth": 1.5, "markersize": 5.5}
        axes.plot(value[chosen], rows[chosen], marker, color=colour, label=name, **looks)
    axes.set_xlim(-3, 103)
    axes.set_xlabel("Posterior probability of the property (%)")


def _column(answers: Sequence[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    return _percent([answer[key] for answer in answers])


def _name_of(answer: Mapping[str, Any], parts: Sequence[str]) -> str:
    return " · ".join(short(str(answer[part])) for part in parts)


def _in_words(answer: Mapping[str, Any]) -> str:
    has = "has" if answer["positive"] else "does not have"
    limits = interval(answer["low"], answer["high"])
    return f"client {answer['client']} {shown(answer['posterior'])} ({limits}), {has} the property"


def _posterior_row(answer: Mapping[str, Any]) -> list[str]:
    return [
        answer["client"],
        answer["target"],
        str(answer["seed"]),
        shown(answer["posterior"]),
        interval(answer["low"], answer["high"]),
        "yes" if answer["positive"] else "no",
        f"{answer['rounds']:,}",
    ]


def roc(finding: Finding, slug: str) -> Plot:
    """How many clients with the property are found (``series["roc"]``)."""
    return figures.roc(
        finding,
        slug,
        title="How many clients with the property are found at each rate of false alarms",
        found="clients with it",
        accused="clients without it",
        caption="By PROLIN's scores after all rounds.",
    )


def scores(finding: Finding, slug: str) -> Plot:
    """PROLIN's scores with and without the property (``series["scores"]``)."""
    return figures.histogram(
        finding,
        slug,
        title="Scores of clients with and without the property",
        axis="PROLIN's score after all rounds",
        positive="with the property",
        negative="without the property",
    )


def _by_method(
    finding: Finding,
    slug: str,
    rounds: Sequence[int],
    lines: Mapping[str, Sequence[float | None]],
    *,
    title: str,
    axis: str,
    caption: str,
    chance: float | None = None,
) -> Plot:
    """Draw one line for each method over the rounds that the server has seen."""
    figure, axes = one_axes(280)
    draw_lines(axes, rounds, lines, _looks(finding))
    words = _after(rounds, lines)
    if chance is not None:
        axes.axhline(100 * chance, **CHANCE)
        words += f" Chance is {shown(chance)}."
    label_rounds(axes, _ROUNDS_SEEN)
    axes.set_ylabel(axis)
    one_legend(figure, [axes], handlelength=DASHES)
    return Plot(
        title, to_svg(figure, slug, title, words), caption, ["rounds seen", *lines], _rows(rounds, lines.values())
    )


def _curves(series: Mapping[str, Any], measure: str) -> dict[str, Sequence[float | None]]:
    """Return one measure of each method that has it."""
    return {name: method[measure] for name, method in series["methods"].items() if measure in method}


def _percent(values: Sequence[float | None]) -> NDArray[np.float64]:
    return 100 * floats(values)


def _looks(finding: Finding) -> dict[str, dict[str, Any]]:
    """Give methods the same looks in all figures of a finding."""
    methods: list[str] = []
    for key in ("methods", "stability"):
        methods += finding.series.get(key, {}).get("methods", {})
    return looks_of(methods)


def _after(rounds: Sequence[int], lines: Mapping[str, Sequence[float | None]]) -> str:
    ends = "; ".join(f"{name} {shown(values[-1])}" for name, values in lines.items())
    return f"Line chart from {rounds[0]} to {rounds[-1]} rounds. After {rounds[-1]} rounds: {ends}."


def _first_and_last(rounds: Sequence[int], values: Sequence[float | None]) -> str:
    return f"{shown(values[0])} in round {rounds[0]}, {shown(values[-1])} in round {rounds[-1]}"


def _rows(rounds: Sequence[int], columns: Any) -> list[list[str]]:
    return [[str(r), *map(shown, values)] for r, *values in zip(rounds, *columns, strict=True)]


def _lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    overlap_of = series.get("overlap", {})
    for keys in (("rounds", "overlap", "low", "high", "accuracy"), ("checked_rounds", "checked_accuracy")):
        yield "overlap", {key: overlap_of.get(key) for key in keys}
    if "methods" in series:
        rounds = series["methods"]["rounds"]
        for method, measures in series["methods"]["methods"].items():
            lists = {f"{method} {key}": values for key, values in measures.items()}
            yield "methods", {"rounds": rounds, **lists}
    if "stability" in series:
        yield "stability", {"rounds": series["stability"]["rounds"], **series["stability"]["methods"]}


_MOST_NAMED = 5
_SURE = 0.5


def _name_clients(findings: Sequence[Finding]) -> str:
    """Name the clients of which the server is surest."""
    if "posteriors" not in findings[0].series:
        return ""
    entries = []
    for entry in findings[0].series["posteriors"]:
        if entry["posterior"] > _SURE:
            entries.append(entry)
    if not entries:
        return "The server is sure of no client."
    entries.sort(key=lambda entry: -entry["posterior"])
    named = []
    for entry in entries[:_MOST_NAMED]:
        right = "right" if entry["positive"] else "wrong"
        named.append(f"{entry['client']} ({shown(entry['posterior'])} sure, {right})")
    more = f"; {len(entries) - _MOST_NAMED} more" if len(entries) > _MOST_NAMED else ""
    return f"Clients that the server names: {', '.join(named)}{more}."


SECTION = Section(
    question="Can the server tell which clients have the property, from sums alone?",
    strength={"f1": "its answer scores {value} in F1; naming everybody scores {chance}"},
    exposed=_name_clients,
    sentences={
        "f1": "From sums alone, the server named the clients with the property with an F1 score of {value}"
        "{interval}{chance}.",
        "false-alarms": "From sums alone, the server wrongly named {value} of the clients without the "
        "property{interval}{chance}.",
    },
    figures=(
        ("methods", f1),
        ("methods", precision_and_recall),
        ("posteriors", posteriors),
        ("scores", scores),
        ("roc", roc),
        ("overlap", overlap),
        ("distributions", distributions),
        ("stability", stability),
    ),
    tables=(PLAINTEXT,),
    forms=FORMS,
    lists=_lists,
)
