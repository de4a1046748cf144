"""How counts of labels are shown: the rules beside each other, and the clients one by one."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section
from fedattack.report.words import shown
from fedattack.threats.labels.tables import CLIENTS, RULES


def _name_exposed(findings: Sequence[Finding]) -> str:
    """Name the client whose labels are counted best."""
    clients = findings[0].series.get("clients", ())
    if len(clients) < 2:
        return ""
    best = max(clients, key=lambda row: row["right"])
    alike = sum(row["right"] == best["right"] for row in clients)
    if alike > 1:
        return f"{shown(best['right'])} of the labels of each of {alike} clients are counted right."
    return f"Client {best['client']}: {shown(best['right'])} of its labels are counted right."


SECTION = Section(
    question="Can the server count which labels a client holds?",
    strength={"right": "{value} of a client's labels are counted right, {gain} more than by guessing"},
    exposed=_name_exposed,
    sentences={
        "right": "{value} of a client's labels{interval} are counted right{chance}.",
        "present": "{value} of the labels that a client holds{interval} are named{chance}.",
    },
    tables=(RULES, CLIENTS),
    less_is_worse=("mean-error",),
)
