"""How source inference is shown: whose example, from which rounds, and which examples gave their owner away."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import LEAK, NO_EVIDENCE, TOO_FEW, Finding
from fedattack.report import figures
from fedattack.report.drawing import Plot
from fedattack.report.section import PER_CLIENT, PER_ROUND, POPULATIONS, RELIABILITY, Explained, PageTable, Section
from fedattack.report.words import level, shown
from fedattack.threats.source.tables import COMBINING, FORMS, MOST_EXPOSED

# Labels and site explain a success if no more than this is left of it, and no more than this share of the gain over
# guessing.
_SMALL, _SMALL_SHARE = 0.05, 0.25


def _targets(finding: Finding) -> PageTable:
    return PageTable(
        "Targets",
        "Targets of one client are the main measure, and targets of nobody its null run; those of several clients "
        "are judged separately. No answer about a client that was never seen can be right or wrong.",
        ["examples that", "targets"],
        [[kind, f"{count:,}"] for kind, count in finding.series["targets"].items()],
    )


def _show_explanation(finding: Finding) -> PageTable:
    explained = finding.series["explained"]
    rows = [[part["part"], f"{100 * part['value']:+.1f}"] for part in explained["parts"]]
    rows.append(["together", f"{100 * explained['value']:.1f}"])
    return PageTable(
        "What the success is made of",
        "In percentage points; each part shows what it adds to the one before. Labels: examples of the same label that "
        "nobody "
        "holds. Site: examples of the same client on which it did not train; without such examples, site and examples "
        f"cannot be told apart. Computed on the {explained['n']:,} targets that have all these counterparts.",
        ["part", "points"],
        rows,
    )


def roc(finding: Finding, slug: str) -> Plot:
    """How many holders are found among all pairs of a target and a client (``series["roc"]``)."""
    return figures.roc(
        finding,
        slug,
        title="How many holders are found at each rate of false alarms",
        found="holders",
        accused="other clients",
        caption="For each pair of an example and a client, the attack is asked whether that client holds it.",
    )


def scores(finding: Finding, slug: str) -> Plot:
    """How sure the server is of holders and of other clients (``series["scores"]``)."""
    return figures.histogram(
        finding,
        slug,
        title="How sure the server is of the holder, and of other clients",
        axis="Stated probability that the client holds the example",
        positive="holders",
        negative="other clients",
    )


def _shows_nothing(finding: Finding) -> bool:
    """Whether the attack is not above guessing on the targets of a finding, so that there is nothing to explain."""
    return finding.low is not None and finding.chance is not None and finding.low <= finding.chance


def _explain(findings: Sequence[Finding]) -> Explained:
    """Take the success apart: what labels alone give, and labels and site together."""
    headline = findings[0]
    explained = headline.series.get("explained")
    words = []
    by_metric = {finding.metric: finding for finding in findings}
    rows = []
    hardest = None
    for metric, name in (("asr-beyond-labels", "labels alone"), ("asr-beyond-site", "labels and site")):
        finding = by_metric.get(metric)
        if finding is not None and finding.value is not None and finding.null is not None:
            rows.append((name, finding.null["value"]))
            hardest = finding, name
    if hardest is None:
        if explained is not None:
            words.append(_say_parts(explained))
        words.append(
            "It is not known whether labels and sites explain it: there are no held-out examples to compare with."
        )
        return Explained(rows, words)
    finding, name = hardest
    words += _say_sets(headline, finding, explained)
    left = _find_left(finding)
    is_explained = headline.verdict == LEAK and finding.verdict == NO_EVIDENCE and _is_small(left, finding, explained)
    if is_explained:
        # Where the hardest null is above the success, nothing is left.
        explains = f"{name} explain all but at most {_points(max(0.0, left[1]))} points of it"
        words.insert(
            0,
            f"{explains[:1].upper()}{explains[1:]} ({level(finding.level)} interval): the server learns who holds "
            "which kind of example, but hardly which one.",
        )
        return Explained(rows, words, short=explains)
    decided = _say_beyond(headline, finding, name, left)
    if decided:
        # Whether it is decided stands before the parts, which are numbers without intervals.
        words.insert(0, decided)
    return Explained(rows, words)


def _find_left(hardest: Finding) -> tuple[float, float]:
    """Return the interval of what the success has more than the hardest null, of the intervals of both.

    It is that of a difference of two independent numbers (Zou and Donner 2008, "Construction of confidence limits about
    effect measures", Statistics in Medicine 27); infinite where an interval is not known.
    """
    null = hardest.null
    if null is None or hardest.value is None or None in (hardest.low, hardest.high, null["low"], null["high"]):
        return -math.inf, math.inf
    value, low, high = hardest.value, hardest.low or 0.0, hardest.high or 0.0
    null_low, null_high = null["low"] or 0.0, null["high"] or 0.0
    left = value - null["value"]
    below = math.hypot(value - low, null_high - null["value"])
    above = math.hypot(high - value, null["value"] - null_low)
    return left - below, left + above


def _is_small(left: tuple[float, float], hardest: Finding, explained: Mapping[str, Any] | None) -> bool:
    """Whether what is left is surely little, in points and beside the gain over guessing, and the parts agree."""
    if hardest.value is None or hardest.chance is None:
        return False
    most = min(_SMALL, _SMALL_SHARE * (hardest.value - hardest.chance))
    part = 0.0
    if explained is not None:
        part = explained["parts"][-1]["value"]
    return max(left[1], part) <= most


def _points(difference: float) -> str:
    # A minus sign in place of a hyphen.
    return f"{100 * difference:.1f}".replace("-", "−")


def _say_parts(explained: Mapping[str, Any]) -> str:
    parts = [f"{part['part']} {_points(part['value'])}" for part in explained["parts"]]
    compared = (
        f"It is {shown(explained['value'])} on the {explained['n']:,} targets that have counterparts: similar "
        f"examples that nobody "
        "trained on"
    )
    return f"{compared}. Its parts in points: {', '.join(parts)}."


def _say_sets(headline: Finding, hardest: Finding, explained: Mapping[str, Any] | None) -> list[str]:
    """Say what the success is made of, and of which targets this and the test are."""
    words = []
    if explained is not None:
        words.append(_say_parts(explained))
    if hardest.n >= headline.n:
        return words
    tested = f"The test gives each client the weight of its examples, which counts as {hardest.n:,} targets"
    if hardest.value is not None:
        tested += f": there it is {shown(hardest.value)}"
    return [*words, f"{tested}."]


def _say_beyond(headline: Finding, hardest: Finding, name: str, left: tuple[float, float]) -> str:
    """Say whether the success is more than what the hardest null gives; empty where there is nothing to explain."""
    if hardest.verdict == LEAK:
        return f"The server traces single examples, beyond what {name} give."
    if headline.verdict != LEAK:
        return ""
    if _shows_nothing(hardest):
        return (
            f"It cannot be told whether it is more than {name}: on these targets the attack itself is no better than "
            "guessing."
        )
    if hardest.verdict == TOO_FEW:
        return f"It cannot be told whether it is more than {name}: there are too few targets."
    if hardest.verdict == NO_EVIDENCE:
        if not (math.isfinite(left[0]) and math.isfinite(left[1])) or hardest.value is None or hardest.null is None:
            return f"It is not decided whether single examples add to what {name} give: how much is not known."
        what = "Single examples"
        if name == "labels alone":
            what = "Sites or single examples"
        return (
            f"{what} may add {_points(hardest.value - hardest.null['value'])} points to what {name} give "
            f"({_points(left[0])} to {_points(left[1])}): not decided."
        )
    return ""


SECTION = Section(
    question="Can the server tell which client holds an example?",
    strength={
        "asr": "{times} times as often as guessing",
        "asr-last-round": "{times} times as often as guessing",
    },
    explained=_explain,
    sentences={
        "asr": "Given an example from the training data, the server named the client that holds it in {value} of cases"
        "{interval}{chance}.",
        "asr-shared": "Given an example that several clients hold, the server named one of them in {value} of cases"
        "{interval}{chance}.",
        "asr-last-round": "Given an example from the training data, the server named the client that holds it in "
        "{value} of cases from what it saw in the last round{interval}{chance}.",
    },
    figures=(PER_ROUND, PER_CLIENT, RELIABILITY, ("roc", roc), ("scores", scores)),
    tables=(
        POPULATIONS,
        ("explained", _show_explanation),
        COMBINING,
        ("targets", _targets),
        MOST_EXPOSED,
    ),
    forms=FORMS,
)
