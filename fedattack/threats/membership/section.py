"""How membership inference is shown: the ROC, the scores, and the attacks beside each other."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.base.reasons import ABOUT, find_reason
from fedattack.report import figures
from fedattack.report.drawing import Plot
from fedattack.report.section import PER_CLIENT, PER_ROUND, POPULATIONS, RELIABILITY, Explained, PageTable, Section
from fedattack.report.words import end_sentence
from fedattack.threats.membership.tables import FORMS, METHODS

_WITHOUT_MODEL = "examples alone, without any model"


def roc(finding: Finding, slug: str) -> Plot:
    """How many members are found (``series["roc"]``)."""
    title = "How many members are found at each rate of false alarms"
    return figures.roc(finding, slug, title=title, found="members", accused="non-members")


def scores(finding: Finding, slug: str) -> Plot:
    """Scores of members and of non-members (``series["scores"]``)."""
    words = {"positive": "members", "negative": "non-members"}
    return figures.histogram(finding, slug, title="Scores of members and non-members", axis="Score", **words)


def _targets(finding: Finding) -> PageTable:
    counts = finding.series["membership_targets"]
    return PageTable(
        "Targets",
        "Members are targets that one seen client holds. Targets that several clients hold are left out.",
        ["targets that", "how many"],
        [[kind, f"{count:,}"] for kind, count in counts.items()],
    )


def _explains(findings: Sequence[Finding]) -> Explained:
    """Name what explains a result: whose data the non-members are, and what examples tell without any model."""
    words = []
    if whose := find_reason(findings[0].grounds, ABOUT):
        words.append(end_sentence(whose))
    for finding in findings:
        alone = finding.baselines.get(_WITHOUT_MODEL)
        if finding.metric == "auc" and alone is not None:
            words.append(
                f"Without any model, the examples alone tell members apart with an area of {alone:.2f} (guessing: 0.5)."
            )
    return Explained(words=words)


SECTION = Section(
    question="Can the server tell on which examples a client trained?",
    strength={
        "tpr-at-1pct-fpr": "{times} times as many members found as by guessing, at 1% false accusations",
    },
    explained=_explains,
    sentences={
        "tpr-at-1pct-fpr": "The server found {value} of the examples on which a client trained{interval}, while it "
        "accused 1% of the examples on which it did not{chance}.",
        "tpr-at-0.1pct-fpr": "The server found {value} of the examples on which a client trained{interval}, while it "
        "accused 0.1% of the examples on which it did not{chance}.",
    },
    figures=(("roc", roc), ("scores", scores), PER_ROUND, PER_CLIENT, RELIABILITY),
    tables=(POPULATIONS, METHODS, ("membership_targets", _targets)),
    forms=FORMS,
    more_is_worse=("auc", "epsilon-implied"),
)
