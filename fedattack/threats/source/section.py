"""How source inference is shown: whose example, from which rounds, and which examples gave their owner away."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import LEAK, NO_EVIDENCE, TOO_FEW, Finding
from fedattack.report import figures
from fedattack.report.drawing import Plot
from fedattack.report.section import PER_CLIENT, PER_ROUND, POPULATIONS, RELIABILITY, Explained, Section, Table
from fedattack.report.words import NOTHING, interval, level, shown

_MOST_EXPOSED = 10

# How the sentence begins that says that there is nothing beyond the hardest null.
_NOT_SHOWN = "More than"


def _combining(finding: Finding) -> Table:
    return Table(
        "Does combining rounds help?",
        "The same targets, named from one round or from all. A single round has fewer clients to choose from where not "
        "all take part in it, which its chance says; targets count where their owner was seen.",
        ["named from", "result", f"{level(finding.level)} interval", "chance", "× chance", "null run", "targets"],
        list(map(_combining_row, finding.series["combining"])),
    )


def _combining_row(way: Mapping[str, Any]) -> list[str]:
    chance, null = way["chance"], way["null"]
    return [
        way["way"],
        shown(way["value"]),
        interval(way["low"], way["high"]),
        shown(chance),
        shown(way["value"] / chance, "") if chance else NOTHING,
        shown(null["value"] if null else None),
        f"{way['n']:,}",
    ]


def _targets(finding: Finding) -> Table:
    return Table(
        "Targets",
        "Those that one client holds are the main measure, those that nobody holds its null run; those that several "
        "hold are judged apart. No answer about a client that was never seen can be right or wrong.",
        ["examples that", "targets"],
        [[kind, f"{count:,}"] for kind, count in finding.series["targets"].items()],
    )


def _show_exposed(finding: Finding) -> Table:
    listed = finding.series["most_exposed"]
    rows = []
    for target in listed[:_MOST_EXPOSED]:
        right = "yes" if target["right"] else "no"
        rows.append([str(target["record"]), target["client"], right, shown(target["posterior"])])
    return Table(
        f"{finding.label}: most exposed examples",
        f"Of whose owner the server was most sure, right or wrong; the first {len(rows)} of {len(listed)} listed.",
        ["record", "client named", "right", "confidence"],
        rows,
    )


def _show_explanation(finding: Finding) -> Table:
    explained = finding.series["explained"]
    rows = [[part["part"], f"{100 * part['value']:+.1f}"] for part in explained["parts"]]
    rows.append(["together", f"{100 * explained['value']:.1f}"])
    return Table(
        "What the success is made of",
        "In points of per cent, each part beyond the one before it. Labels: examples of the same label that nobody "
        "holds. Site: examples of the same client on which it did not train; without such examples, site and examples "
        f"cannot be told apart. From the {explained['n']:,} targets that have all of these beside them.",
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
        caption="Each pair of an example and a client is asked by itself whether that client holds it.",
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
    words = []
    if "explained" in headline.series:
        words.append(_say_parts(headline.series["explained"]))
    by_metric = {finding.metric: finding for finding in findings}
    rows = []
    hardest = None
    for metric, name in (("asr-beyond-labels", "labels alone"), ("asr-beyond-site", "labels and site")):
        finding = by_metric.get(metric)
        if finding is not None and finding.value is not None and finding.null is not None:
            rows.append((name, finding.null["value"]))
            hardest = finding, name
    if hardest is None:
        words.append(
            "Labels and sites may explain all of it: there are no examples that tell them from single examples."
        )
        return Explained(rows, words)
    finding, name = hardest
    if finding.n < headline.n:
        asked = f"{finding.n:,} of {headline.n:,}"
        words.append(f"Whether {name} explain it is decided on the {asked} targets that have counterparts.")
    decided = _say_beyond(headline, finding, name)
    if decided:
        words.append(decided)
    short = ""
    if decided.startswith(_NOT_SHOWN):
        short = f"{name} explain it"
    return Explained(rows, words, short=short)


def _say_parts(explained: Mapping[str, Any]) -> str:
    parts = [f"{part['part']} {100 * part['value']:.1f}" for part in explained["parts"]]
    compared = f"On the {explained['n']:,} targets that have all counterparts it is {shown(explained['value'])}"
    return f"{compared}. In points: {', '.join(parts)}."


def _say_beyond(headline: Finding, hardest: Finding, name: str) -> str:
    """Say whether the success is more than what the hardest null gives; empty where there is nothing to explain."""
    if hardest.verdict == LEAK:
        return f"Single examples are traced, beyond {name}."
    if headline.verdict != LEAK:
        return ""
    if _shows_nothing(hardest):
        return (
            f"Whether it is more than {name} cannot be told: on these targets the attack itself is no better than "
            "guessing."
        )
    if hardest.verdict == TOO_FEW:
        return f"Whether it is more than {name} cannot be told: there are too few targets."
    if hardest.verdict == NO_EVIDENCE:
        return f"{_NOT_SHOWN} {name} is not shown: the server learns who holds which kind of example, not which one."
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
        ("combining", _combining),
        ("targets", _targets),
        ("most_exposed", _show_exposed),
    ),
)
