"""How trees are shown: what was read of each client, and of each column."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section
from fedattack.report.words import shown
from fedattack.threats.trees.tables import CLIENTS, COLUMNS


def _name_exposed(findings: Sequence[Finding]) -> str:
    """Say of how many clients thresholds give values away."""
    clients = findings[0].series.get("clients", ())
    if not clients:
        return ""
    most = max(row["columns_met"] for row in clients)
    return f"Of the most exposed client, {shown(most)} of the values of its table stand in its trees as thresholds."


SECTION = Section(
    question="Can the server read a client's table off the trees that it sends?",
    exposed=_name_exposed,
    sentences={
        "columns": "Of a client's values {value}{interval} stand in its own trees as thresholds{chance}.",
        "rows": "Of a client's rows {value}{interval} are read whole{chance}.",
        "values": "Of the values of a client's rows {value}{interval} are read{chance}.",
        "linked": "Who sees the common model alone puts {value}{interval} of its later trees to the client that made "
        "them{chance}.",
    },
    tables=(CLIENTS, COLUMNS),
)
