"""How membership inference is shown: the ROC on logarithmic axes, and the attacks beside each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.ticker import FuncFormatter

from fedattack.audit.finding import Finding
from fedattack.report.drawing import CHANCE, FIRST, STYLE, Plot, floats, one_axes, one_legend, to_svg
from fedattack.report.remedies import remedies_beside
from fedattack.report.section import PER_CLIENT, PER_ROUND, RELIABILITY, Explained, Lists, Section, Table, forms_beside
from fedattack.report.words import interval, level, shown, stopped

_LEAST = 0.05
_WITHOUT_MODEL = "examples alone, without any model"


def _percent(value: float, _: Any = None) -> str:
    return f"{value:g}%"


@matplotlib.rc_context(STYLE)
def roc(finding: Finding, slug: str) -> Plot:
    """True-positive against false-positive rate on logarithmic axes, with a band (``series["roc"]``)."""
    curve = finding.series["roc"]
    rates = 100 * floats(curve["fpr"])
    value, low, high = (100 * floats(curve[key]).clip(_LEAST / 100) for key in ("value", "low", "high"))
    figure, axes = one_axes(330)
    axes.fill_between(rates, low, high, color=FIRST, alpha=0.22, linewidth=0, label=f"{level(finding.level)} band")
    axes.plot(rates, value, color=FIRST, linewidth=2, label="result")
    axes.plot(rates, rates, **CHANCE)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(rates[0], 100)
    axes.set_ylim(_LEAST, 100)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_percent))
    axes.set_xlabel("False-positive rate: non-members accused")
    axes.set_ylabel("True-positive rate: members found")
    one_legend(figure, [axes])

    points = list(zip(curve["fpr"], curve["value"], curve["low"], curve["high"], strict=True))
    rows = [[shown(rate), shown(found), interval(below, above)] for rate, found, below, above in points]
    title = f"{finding.label}: the whole ROC curve"
    words = "; ".join(f"at {row[0]} false positives {row[1]} of the members are found" for row in rows[::8])
    return Plot(
        title,
        to_svg(figure, slug, title, f"Curve on logarithmic axes: {words}."),
        "How many members are found, for each share of non-members that is wrongly accused. The left end is what a "
        "careful attacker looks at: few accusations, nearly all of them right. Each point of the band holds by itself.",
        ["false positives", "members found", "interval"],
        rows,
    )


def _methods(finding: Finding) -> Table:
    rows = []
    for row in finding.series["membership_methods"]:
        texts = [row["method"]]
        for key in ("tpr_1pct", "tpr_01pct"):
            texts += [shown(row[key]["value"]), interval(row[key]["low"], row[key]["high"])]
        area = row["auc"]
        texts.append(f"{area['value']:.3f} ({area['low']:.3f} to {area['high']:.3f})")
        rows.append(texts)
    return Table(
        "How else could the server ask?",
        "The same members and non-members, told apart in other ways. The headline's method was fixed in advance.",
        ["method", "found at 1% false positives", "interval", "at 0.1%", "interval", "area under the curve"],
        rows,
    )


def _targets(finding: Finding) -> Table:
    counts = finding.series["membership_targets"]
    return Table(
        "Targets",
        "Members are targets that one seen client holds. Targets that several clients hold are left out.",
        ["targets that", "how many"],
        [[kind, f"{count:,}"] for kind, count in counts.items()],
    )


def _lists(series: Mapping[str, Any]) -> Iterator[Lists]:
    yield "roc", series.get("roc", {})


def _explains(findings: Sequence[Finding]) -> Explained:
    """Name what explains a result: whose data the non-members are, and what examples tell without any model."""
    words = [stopped(findings[0].reason.partition(":")[0])]
    for finding in findings:
        alone = finding.baselines.get(_WITHOUT_MODEL)
        if finding.metric == "auc" and alone is not None:
            words.append(
                f"Without any model, examples alone tell members apart with an area of {alone:.2f} (nothing: 0.5)."
            )
    return Explained(words=words)


SECTION = Section(
    question="Can the server tell on which examples a client trained?",
    strength={
        "tpr-at-1pct-fpr": "{times} times as many members found as by guessing, at 1% false accusations",
    },
    explained=_explains,
    remedies=remedies_beside(__file__),
    sentences={
        "tpr-at-1pct-fpr": "Of the examples on which a client trained, the server found {value}{interval}, while it "
        "accused 1% of the examples on which it did not{chance}.",
        "tpr-at-0.1pct-fpr": "Of the examples on which a client trained, the server found {value}{interval}, while it "
        "accused 0.1% of the examples on which it did not{chance}.",
    },
    figures=(("roc", roc), PER_ROUND, PER_CLIENT, RELIABILITY),
    tables=(("membership_methods", _methods), ("membership_targets", _targets)),
    forms=forms_beside(__file__),
    lists=_lists,
    more_is_worse=("auc", "epsilon-implied"),
)
