"""How private attributes are shown: by round, by stated confidence, and which value was mistaken for which."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedattack.audit.finding import Finding, list_words
from fedattack.report.drawing import (
    CHANCE,
    FIRST,
    INK,
    SIZE,
    STYLE,
    Plot,
    floats,
    label_rounds,
    one_legend,
    panels,
    to_svg,
    wrap_name,
)
from fedattack.report.section import Explained, Lists, PageTable, Section, by_guesses
from fedattack.report.words import level, shown
from fedattack.threats.group.tables import FORMS

# Letters on a line of a small panel's title.
_MOST_LETTERS = 26


@matplotlib.rc_context(STYLE)
def by_round(findings: Sequence[Finding], slug: str) -> Plot:
    """How often each adversary is right, round by round: a panel each, of the same axes (``series["per_round"]``)."""
    figure, grid = _small(findings)
    rows = []
    for axes, finding in zip(grid, findings, strict=True):
        series = finding.series["per_round"]
        value, low, high = (100 * floats(series.get(key, series["value"])) for key in ("value", "low", "high"))
        interval_of = f"{level(finding.level)} interval"
        axes.vlines(series["rounds"], low, high, color=FIRST, linewidth=4, alpha=0.3, label=interval_of)
        axes.plot(series["rounds"], value, "-o", color=FIRST, label="result")
        if finding.chance is not None:
            axes.axhline(100 * finding.chance, **CHANCE)
        label_rounds(axes, "", ticks=4)
        for number, share in zip(series["rounds"], series["value"], strict=True):
            rows.append([finding.label, str(number), shown(share)])
    grid[0].set_ylim(-4, 104)
    figure.supxlabel("Round", fontsize=SIZE)
    figure.supylabel("Named rightly (%)", fontsize=SIZE)
    one_legend(figure, grid)
    ends = []
    for finding in findings:
        share = finding.series["per_round"]["value"]
        ends.append(f"{finding.label}: {shown(share[0])} in the first round, {shown(share[-1])} in the last")
    title = "How often each adversary is right, round by round"
    return Plot(
        title,
        to_svg(figure, slug, title, f"{len(findings)} small line charts. {'; '.join(ends)}."),
        "Each round is attacked separately. All panels have the same axes.",
        ["adversary", "round", "named rightly"],
        rows,
    )


@matplotlib.rc_context(STYLE)
def by_confidence(findings: Sequence[Finding], slug: str) -> Plot:
    """How often each adversary is right when it says how sure it is: a panel each (``series["reliability"]``)."""
    figure, grid = _small(findings)
    rows = []
    for axes, finding in zip(grid, findings, strict=True):
        series = finding.series["reliability"]
        confidence, accuracy = 100 * floats(series["confidence"]), 100 * floats(series["accuracy"])
        axes.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="perfectly calibrated")
        axes.plot(confidence, accuracy, "o-", color=FIRST, linewidth=1, markersize=5, label="answers")
        for stated, right, n in zip(series["confidence"], series["accuracy"], series["count"], strict=True):
            rows.append([finding.label, shown(stated), shown(right), f"{n:,}"])
    grid[0].set_xlim(-4, 104)
    grid[0].set_ylim(-4, 106)
    figure.supxlabel("Stated confidence (%)", fontsize=SIZE)
    figure.supylabel("Named rightly (%)", fontsize=SIZE)
    one_legend(figure, grid)
    errors = [f"{finding.label} {shown(finding.series['reliability'].get('ece'))}" for finding in findings]
    title = "Is each adversary right as often as it says?"
    return Plot(
        title,
        to_svg(figure, slug, title, f"{len(findings)} small charts. Expected calibration errors: {'; '.join(errors)}."),
        "On the dashed line an adversary is right as often as it says.",
        ["adversary", "stated confidence", "named rightly", "answers"],
        rows,
    )


def _small(findings: Sequence[Finding]) -> tuple[Figure, list[Axes]]:
    """Make a small panel for each finding, in two columns, all of the same axes."""
    columns = min(len(findings), 2)
    lines = -(-len(findings) // columns)
    figure, grid = panels(80 + 120 * lines, len(findings), columns, shared=True)
    for axes, finding in zip(grid, findings, strict=True):
        axes.set_title(wrap_name(finding.label.replace(" named by ", ": "), _MOST_LETTERS))
    return figure, grid


def _confusion(finding: Finding) -> PageTable | None:
    # One of many adversaries, the headline's, is enough; the files for reviewers have all.
    if not finding.headline:
        return None
    values, counts = finding.series["confusion"]["values"], finding.series["confusion"]["counts"]
    return PageTable(
        f"{finding.label}: which value was mistaken for which",
        "A row is the value that clients have, a column the value that the server named. The server names one value "
        "for each reply, so a client counts once for each of its rounds.",
        ["clients have", *map("named {}".format, values)],
        [[value, *map("{:,}".format, row)] for value, row in zip(values, counts, strict=True)],
    )


def _lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    if "confusion" not in series:
        return
    values, counts = series["confusion"]["values"], series["confusion"]["counts"]
    yield "confusion", {"values": values, "counts": counts}
    for number, row in enumerate(counts):
        yield "confusion", {"values": values, f"counts[{number}]": row}


def _explain_attribute(findings: Sequence[Finding]) -> Explained:
    """Say which attribute was asked for, and what its values are."""
    explained = by_guesses(findings)
    confusion = findings[0].series.get("confusion")
    if confusion is None:
        return explained
    attribute = findings[0].label.partition(" named by")[0]
    values = list_words(confusion["values"], "or")
    return replace(explained, words=[f"{attribute} of a client's examples: {values}. Each client has one."])


SECTION = Section(
    question="Can the server tell what a client's examples have in common?",
    explained=_explain_attribute,
    together=(("per_round", by_round), ("reliability", by_confidence)),
    tables=(("confusion", _confusion),),
    forms=FORMS,
    lists=_lists,
)
