"""How sequences are shown: the clients one by one."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import PageTable, Section
from fedattack.report.words import shown


def _clients(finding: Finding) -> PageTable:
    rows = []
    for row in finding.series["clients"]:
        counts = f"{row['sequences']:,}", f"{row['tokens']:,}", f"{row['found']:,}"
        scores = shown(row["exact"]), shown(row["rouge1"]), shown(row["rouge2"])
        rows.append([row["client"], *counts, *scores, f"{row['rank']:,} of {row['width']:,}"])
    return PageTable(
        "What was found of each client",
        "Of the first run, at most 20 clients. ROUGE-1 and ROUGE-2 are F1 scores of tokens and of neighbouring pairs. "
        "The last column says how much of the layers' inputs the gradient spans: near the whole, nothing is told.",
        ["client", "sequences", "their tokens", "found", "exact", "ROUGE-1", "ROUGE-2", "span"],
        rows,
    )


def _count_exposed(findings: Sequence[Finding]) -> str:
    """Say of how many clients every sequence is found."""
    clients = findings[0].series.get("clients", ())
    if not clients:
        return ""
    exact = sum(row["exact"] == 1 for row in clients)
    return f"Of {exact} of {len(clients)} clients every sequence is found, token by token."


SECTION = Section(
    question="Can the server read the sequences of tokens that a client trained on?",
    strength={"exact": "{value} of a client's sequences are found exactly, where guessing gives {chance}"},
    exposed=_count_exposed,
    sentences={
        "exact": "Of a client's sequences {value}{interval} are found exactly{chance}.",
        "rouge1": "The best sequence found has the tokens of the true one with a ROUGE-1 of {value}{interval}{chance}.",
        "rouge2": "It has its pairs of neighbouring tokens with a ROUGE-2 of {value}{interval}{chance}.",
    },
    tables=(("clients", _clients),),
)
