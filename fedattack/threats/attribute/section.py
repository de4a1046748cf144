"""How attribute inference is shown: which column, and every way to fill it in on the same examples."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import Finding, in_units, list_words
from fedattack.report import figures
from fedattack.report.drawing import (
    CHANCE,
    FIRST,
    INK,
    SECOND,
    STYLE,
    Plot,
    floats,
    name_rows,
    one_axes,
    one_legend,
    short,
    to_svg,
)
from fedattack.report.section import PER_CLIENT, POPULATIONS, RELIABILITY, Explained, PageTable, Section
from fedattack.report.words import interval, level, shown
from fedattack.threats.attribute.tables import FORMS, METHODS, TOLERANCE

# Letters of a column or a value that stand in a title.
_MOST_LETTERS = 24


@matplotlib.rc_context(STYLE)
def accuracies(finding: Finding, slug: str) -> Plot:
    """Accuracy of each method and baseline with its interval, and its balanced accuracy (``series["attributes"]``)."""
    series = finding.series["attributes"]
    rows = series["methods"]
    heights = np.arange(len(rows))
    value, balanced = _percents(rows, "accuracy"), _percents(rows, "balanced")
    figure, axes = one_axes(105 + 27 * len(rows))
    low, high = _percents(rows, "low"), _percents(rows, "high")
    axes.hlines(heights, low, high, color=INK, linewidth=1.3, alpha=0.6, label=f"{level(finding.level)} interval")
    guess = np.array([row["baseline"] for row in rows], dtype=bool)
    points: dict[str, Any] = {"markeredgewidth": 1.5, "markersize": 6.5}
    # Filled and hollow, so that the two differ without colour too.
    axes.plot(value[~guess], heights[~guess], "D", color=SECOND, markerfacecolor=SECOND, label="attack", **points)
    axes.plot(
        value[guess], heights[guess], "o", color=FIRST, markerfacecolor="none", label="guess without updates", **points
    )
    axes.plot(balanced, heights, "|", color=INK, markersize=11, markeredgewidth=1.6, label="balanced accuracy")
    axes.axvline(100 * series["random"], **(CHANCE | {"label": "at random"}))
    name_rows(axes, [row["method"] for row in rows])
    axes.set_xlim(-3, 103)
    axes.set_xlabel("Values recovered (%)")
    one_legend(figure, [axes])

    table, sentences = [], []
    for row in rows:
        method, kind = row["method"], " (guess without updates)" if row["baseline"] else ""
        accuracy, spread = shown(row["accuracy"]), interval(row["low"], row["high"])
        table.append([method, accuracy, spread, shown(row["balanced"])])
        sentences.append(f"{method}{kind} {accuracy} ({spread}), balanced {shown(row['balanced'])}")
    title = f"How often {series['column']} was filled in right"
    return Plot(
        title,
        to_svg(figure, slug, title, f"Dot chart. {'; '.join(sentences)}."),
        f"The values are {list_words(_some(series['values']), 'and')}. All methods fill in the same examples. "
        "If one value is common, naming it for everybody is often right, but its balanced accuracy (the mean share "
        "recovered over all values) is that of a random value.",
        ["method", "accuracy", "interval", "balanced accuracy"],
        table,
    )


def _percents(rows: list[dict[str, Any]], key: str) -> NDArray[np.float64]:
    return 100 * floats([row[key] for row in rows])


def _attributes(finding: Finding) -> PageTable:
    series = finding.series["attributes"]
    imputed = f" Imputed by: {', '.join(series['imputed_by'])}." if series["imputed_by"] else ""
    return PageTable(
        f"Every way to fill in {series['column']}, on the same examples",
        f"The values are {', '.join(series['values'])}; at random {shown(series['random'])} would be right. The "
        f"excess, in points, is over the best baseline ({series['best_baseline']}), with its paired interval.{imputed}",
        [column.title.format(rare=series["rarest"]) for column in METHODS.page_columns],
        METHODS.texts(series["methods"]),
    )


def roc(finding: Finding, slug: str) -> Plot:
    """How many examples of the rarest value are found (``series["roc"]``)."""
    column, value = _rarest(finding)
    return figures.roc(
        finding,
        slug,
        title=f"How many examples with {column} {value} {_method(finding)} finds at each rate of false alarms",
        found=f"examples with {value}",
        accused="examples of another value",
        caption=f"The score is how sure the attack is about {column} {value}, the rarest value.",
    )


def scores(finding: Finding, slug: str) -> Plot:
    """How sure the attack is of the rarest value where it is true, and where it is not (``series["scores"]``)."""
    column, value = _rarest(finding)
    return figures.histogram(
        finding,
        slug,
        title=f"How sure {_method(finding)} is of {column} {value}, by what is true",
        axis=f"Stated probability of {value}",
        positive=f"{column} is {value}",
        negative="another value",
    )


def _method(finding: Finding) -> str:
    """Return the method that a finding is about, as its label names it."""
    return finding.label.rpartition(" recovered by ")[2]


def _rarest(finding: Finding) -> tuple[str, str]:
    asked = finding.series["asked"]
    return short(asked["column"], _MOST_LETTERS), short(asked.get("rarest", "the rarest value"), _MOST_LETTERS)


def excess(finding: Finding) -> str:
    """Say what was asked for, and how much more often than by the best guess it was right; or how much less often."""
    asked = finding.series.get("asked")
    text = "What the server filled in from clients' updates"
    if asked:
        text = f"The server filled in the column {asked['column']} ({list_words(_some(asked['values']), 'or')}) of "
        text += "clients' examples. What it filled in from their updates"
    if finding.value is None:
        return f"{text} was not judged."
    way = "less" if finding.value < 0 else "more"
    text += f" was right {way} often by {in_units(abs(finding.value), finding.units)}"
    if finding.low is not None and finding.high is not None:
        text += f" ({level(finding.level)} interval {_ends(finding.low, finding.high)})"
    return f"{text} than the best guess without any update."


def near(finding: Finding) -> str:
    """Say which column of numbers was asked for, and how many more were met than by the best guess without updates."""
    column = finding.series.get("column", {})
    text = f"The server estimated the numbers of {column.get('name', 'a column')} of clients' examples."
    if finding.value is None:
        return f"{text} It was not judged how near they are."
    way = "fewer" if finding.value < 0 else "more"
    text += f" From the updates it met {way} of them within {TOLERANCE} standard deviations, by "
    return f"{text}{in_units(abs(finding.value), finding.units)}, than the best estimate without any update."


def _some(values: Sequence[str]) -> list[str]:
    most = 6
    return list(values) if len(values) <= most else [*values[: most - 1], f"{len(values) - most + 1} others"]


def _ends(low: float, high: float) -> str:
    """Write the ends of an excess as people do: both less, both more, or from less to more."""
    if low < 0 < high:
        return f"{in_units(-low, '')} less to {in_units(high, '')} more"
    ends = sorted((abs(low), abs(high)))
    return f"{in_units(ends[0], '')} to {in_units(ends[1], '')}"


def _explains(findings: Sequence[Finding]) -> Explained:
    """Name what the column can be filled in with: the best guess without any update, beside the attack."""
    attributes = findings[0].series.get("attributes")
    if attributes is None:
        return Explained()
    by_method = {row["method"]: row for row in attributes["methods"]}
    best = attributes["best_baseline"]
    if best not in by_method:
        return Explained()
    right, at_random = shown(by_method[best]["accuracy"]), shown(attributes["random"])
    words = f"The best guess without any update ({best}) is right for {right}, a random value for {at_random}."
    for finding in findings:
        if finding.metric == "accuracy" and finding.value is not None:
            words = f"The attack is right for {shown(finding.value)} of the examples. {words}"
    return Explained(words=[words])


SECTION = Section(
    question="Can the server fill in a column that it lacks?",
    strength={
        "excess": "right {more} often than the best guess without updates, by {size}",
        "near": "met {more} often than by the best estimate without updates, by {size}",
    },
    explained=_explains,
    sentences={"excess": excess, "near": near},
    figures=(("attributes", accuracies), PER_CLIENT, RELIABILITY, ("scores", scores), ("roc", roc)),
    tables=(POPULATIONS, ("attributes", _attributes)),
    forms=FORMS,
)
