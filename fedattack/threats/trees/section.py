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
    return f"For the most exposed client, {shown(most)} of the values in its table appear as thresholds in its trees."


SECTION = Section(
    question="Can the server read a client's table from the trees that it sends?",
    exposed=_name_exposed,
    sentences={
        "columns": "{value} of a client's values{interval} appear as thresholds in its own trees{chance}.",
        "rows": "{value} of a client's rows{interval} are recovered whole{chance}.",
        "values": "{value} of the values in a client's rows{interval} are recovered{chance}.",
        "linked": "A client that sees only the common model assigns {value} of its later trees{interval} to the "
        "client that made them{chance}.",
    },
    tables=(CLIENTS, COLUMNS),
)
