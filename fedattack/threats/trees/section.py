"""How trees are shown: what was read of each client, and of each column."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import PageTable, Section
from fedattack.report.words import shown


def _clients(finding: Finding) -> PageTable:
    rows = []
    for row in finding.series["clients"]:
        counts = f"{row['trees']:,}", f"{row['rows']:,}", f"{row['read']:,}"
        rows.append([row["client"], *counts, *(shown(row[f"{name}_met"]) for name in ("rows", "values", "columns"))])
    return PageTable(
        "What was read of each client",
        "Of the first run, at most 20 clients. Rows are whole rows within the tolerance. Values of columns are those "
        "that stand in a tree as a threshold.",
        ["client", "trees", "rows that are known", "rows put together", "rows", "values of rows", "values of columns"],
        rows,
    )


def _columns(finding: Finding) -> PageTable:
    rows = []
    for row in finding.series["columns"]:
        rows.append([str(row["column"]), f"{row['thresholds']:,.1f}", shown(row["met"])])
    return PageTable(
        "What was read of each column",
        "Of the first run, at most 20 columns, means over clients: the different thresholds, and the share of a "
        "client's values that stand among its own.",
        ["column", "thresholds", "values that are one"],
        rows,
    )


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
    tables=(("clients", _clients), ("columns", _columns)),
)
