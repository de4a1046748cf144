"""How moved rows are shown: the tables of the model, and the clients one by one."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section
from fedattack.threats.tokens.tables import CLIENTS, TABLES


def _count_exposed(findings: Sequence[Finding]) -> str:
    """Say of how many clients, exactly the rows that they use are named."""
    clients = findings[0].series.get("clients", ())
    if not clients:
        return ""
    exact = sum(row["used"] == row["named"] == row["right"] for row in clients)
    return f"The rows named for {exact} of {len(clients)} clients are exactly those that they use."


SECTION = Section(
    question="Can the server name the words, items or categories that a client holds?",
    strength={"f1": "rows are named with an F1 score of {value}; guessing gives {chance}"},
    exposed=_count_exposed,
    sentences={
        "f1": "The rows named for a client match those that its examples use with an F1 score of "
        "{value}{interval}{chance}.",
        "precision": "The client uses {value} of the rows that are named{interval}{chance}.",
        "recall": "{value} of the rows that a client uses{interval} are named{chance}.",
    },
    tables=(TABLES, CLIENTS),
)
