"""How examples that were read off are shown: the rules, the rounds, the clients, and what became of whole batches."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section
from fedattack.threats.exact.tables import CLIENTS, ROUNDS, RULES, UPDATES


def _name_exposed(findings: Sequence[Finding]) -> str:
    """Say of how many clients all examples were read off, or name the one of which most were."""
    clients = findings[0].series.get("clients", ())
    if not clients:
        return ""
    whole = sum(row["read"] == row["examples"] for row in clients)
    if whole:
        return f"All examples of {whole} of {len(clients)} clients were recovered."
    most = max(clients, key=lambda row: row["read"] / row["examples"])
    return f"Client {most['client']}: {most['read']:,} of its {most['examples']:,} examples were recovered."


SECTION = Section(
    question="Can the server recover training examples exactly?",
    strength={"recovered": "{value} of the training examples were recovered exactly; guessing gives {chance}"},
    exposed=_name_exposed,
    sentences={
        "recovered": "{value} of the clients' training examples{interval} were recovered exactly{chance}.",
        "precision": "{value} of what was recovered{interval} are training examples{chance}.",
        "clients": "{value} of the examples recovered from sums{interval} were traced to their client{chance}.",
        "linked": "{value} of the examples recovered from sums{interval} are grouped with others of the same "
        "client{chance}.",
    },
    tables=(RULES, CLIENTS, ROUNDS, UPDATES),
)
