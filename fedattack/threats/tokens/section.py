"""How moved rows are shown: the tables of the model, and the clients one by one."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section, Table
from fedattack.report.words import shown


def _tables(finding: Finding) -> Table:
    rows = []
    for row in finding.series["tables"]:
        counts = f"{row['rows']:,}", f"{row['used']:,.1f}", f"{row['named']:,.1f}"
        rows.append([row["name"], *counts, shown(row["precision"]), shown(row["recall"]), row["how"]])
    return Table(
        "Tables of the model",
        "Of the first run, means over clients. Precision: named rows that the client uses. Recall: used rows that are "
        "named. The last column says how rows were told that no example moved.",
        ["table", "rows", "used by a client", "named", "precision", "recall", "what was not moved"],
        rows,
    )


def _clients(finding: Finding) -> Table:
    rows = []
    for row in finding.series["clients"]:
        rows.append([row["client"], f"{row['used']:,}", f"{row['named']:,}", f"{row['right']:,}"])
    return Table(
        "What was named of each client",
        "Of the first run and the table with most rows, at most 20 clients.",
        ["client", "rows that it uses", "rows that are named", "both"],
        rows,
    )


def _count_exposed(findings: Sequence[Finding]) -> str:
    """Say of how many clients exactly the rows that they use are named."""
    clients = findings[0].series.get("clients", ())
    if not clients:
        return ""
    exact = sum(row["used"] == row["named"] == row["right"] for row in clients)
    return f"Of {exact} of {len(clients)} clients exactly the rows that they use are named."


SECTION = Section(
    question="Can the server name the words, items or categories that a client holds?",
    strength={"f1": "rows are named with an F1 score of {value}, where guessing gives {chance}"},
    exposed=_count_exposed,
    sentences={
        "f1": "The rows that are named of a client match those that its examples use with an F1 score of "
        "{value}{interval}{chance}.",
        "precision": "Of the rows that are named {value}{interval} are used by the client{chance}.",
        "recall": "Of the rows that a client uses {value}{interval} are named{chance}.",
    },
    tables=(("tables", _tables), ("clients", _clients)),
)
