"""Figure of attribute inference: every way to fill in a column, attack or guess, on the same examples."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import Finding
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
    to_svg,
)
from fedattack.report.remedies import remedies_beside
from fedattack.report.section import PER_CLIENT, RELIABILITY, Explained, Section, Table, forms_beside
from fedattack.report.words import interval, level, shown


@matplotlib.rc_context(STYLE)
def accuracies(finding: Finding, slug: str) -> Plot:
    """Accuracy of each method and baseline with its interval, and its balanced accuracy (``series["attributes"]``)."""
    series = finding.series["attributes"]
    rows = series["methods"]
    heights = np.arange(len(rows))
    value, balanced = _percents(rows, "accuracy"), _percents(rows, "balanced")
    figure, axes = one_axes(105 + 24 * len(rows))
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
        "All on the same examples. Where one value is common, naming it for everybody is often right, but its balanced "
        "accuracy, the mean over the values of how many of their examples are recovered, is that of a value at random.",
        ["method", "accuracy", "interval", "balanced accuracy"],
        table,
    )


def _percents(rows: list[dict[str, Any]], key: str) -> NDArray[np.float64]:
    return 100 * floats([row[key] for row in rows])


def _attributes(finding: Finding) -> Table:
    series = finding.series["attributes"]
    rare = series["rarest"]
    imputed = f" Imputed by: {', '.join(series['imputed_by'])}." if series["imputed_by"] else ""
    rows = []
    for row in series["methods"]:
        rows.append(
            [
                row["method"] + (" (baseline)" if row["baseline"] else ""),
                shown(row["accuracy"]),
                interval(row["low"], row["high"]),
                shown(row["balanced"]),
                shown(row["rare_recall"]),
                shown(row["excess"], ""),
                interval(row["excess_low"], row["excess_high"], ""),
            ]
        )
    return Table(
        f"Every way to fill in {series['column']}, on the same examples",
        f"The values are {', '.join(series['values'])}; at random {shown(series['random'])} would be right. The "
        f"excess, in points, is over the best baseline ({series['best_baseline']}), with its paired interval.{imputed}",
        ["method", "accuracy", "interval", "balanced accuracy", f"recall of {rare}", "excess", "interval"],
        rows,
    )


def _explains(findings: Sequence[Finding]) -> Explained:
    """Name what the column can be filled in with: the best guess without any update, beside the attack."""
    attributes = findings[0].series.get("attributes")
    if attributes is None:
        return Explained()
    by_method = {row["method"]: row for row in attributes["methods"]}
    best = attributes["best_baseline"]
    words = [
        f"The column is {attributes['column']}, with the values {', '.join(attributes['values'])}.",
        f"The best guess without any update ({best}) is right for {shown(by_method[best]['accuracy'])}, a value at "
        f"random for {shown(attributes['random'])}.",
    ]
    return Explained(words=words)


SECTION = Section(
    question="Can the server fill in a column that it lacks?",
    strength={"excess": "right {more} often than the best guess without updates, by {size}"},
    explained=_explains,
    remedies=remedies_beside(__file__),
    sentences={
        "excess": "What the server filled in from clients' updates was right {more} often than the best guess without "
        "any update, by {size}{interval}.",
    },
    figures=(("attributes", accuracies), PER_CLIENT, RELIABILITY),
    tables=(("attributes", _attributes),),
    forms=forms_beside(__file__),
)
