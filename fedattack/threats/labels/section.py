"""How counts of labels are shown: the rules beside each other, and the clients one by one."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section, Table
from fedattack.report.words import shown

_NAMES = {
    "solved": "solved for the mixture of labels",
    "llg-plus": "LLG with impact and offset",
    "llg": "LLG",
    "idlg": "iDLG, label by label",
}


def _rules(finding: Finding) -> Table:
    rows = []
    for row in finding.series["rules"]:
        rows.append([_NAMES[row["rule"]], shown(row["right"]), shown(row["present"]), f"{row['error']:.2f}"])
    return Table(
        "Rules on the same updates",
        "The first rule counts for the findings. It was fixed before the run. Means over all clients; the error is in "
        "examples of a label.",
        ["rule", "counted right", "labels there and named", "mean absolute error"],
        rows,
    )


def _clients(finding: Finding) -> Table:
    rows = []
    for row in finding.series["clients"]:
        named = f"{row['named']:,} of {row['there']:,}"
        right, error = shown(row["right"]), f"{row['error']:.2f}"
        rows.append([row["client"], f"{row['examples']:,}", right, error, named, f"{row['wrong']:,}"])
    return Table(
        "What was counted of each client",
        "Of the first run, at most 20 clients. A label is named if it is counted at least once.",
        ["client", "examples", "counted right", "mean absolute error", "labels there and named", "named and not there"],
        rows,
    )


def _name_exposed(findings: Sequence[Finding]) -> str:
    """Name the client whose labels are counted best."""
    clients = findings[0].series.get("clients", ())
    if len(clients) < 2:
        return ""
    best = max(clients, key=lambda row: row["right"])
    alike = sum(row["right"] == best["right"] for row in clients)
    if alike > 1:
        return f"Of {alike} clients {shown(best['right'])} of the labels are counted right."
    return f"Client {best['client']}: {shown(best['right'])} of its labels are counted right."


SECTION = Section(
    question="Can the server count which labels a client holds?",
    strength={"right": "{value} of a client's labels are counted right, where guessing gives {chance}"},
    exposed=_name_exposed,
    sentences={
        "right": "Of a client's labels {value}{interval} are counted right{chance}.",
        "present": "Of the labels that a client holds {value}{interval} are named{chance}.",
    },
    tables=(("rules", _rules), ("clients", _clients)),
    less_is_worse=("mean-error",),
)
