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
        return f"Of {whole} of {len(clients)} clients all examples were read off."
    most = max(clients, key=lambda row: row["read"] / row["examples"])
    return f"Client {most['client']}: {most['read']:,} of its {most['examples']:,} examples were read off."


SECTION = Section(
    question="Can the server read training examples off exactly?",
    strength={"recovered": "{value} of the training examples were read off exactly, where guessing gives {chance}"},
    exposed=_name_exposed,
    sentences={
        "recovered": "Of the clients' training examples {value}{interval} were read off exactly{chance}.",
        "precision": "Of what was read off {value}{interval} are training examples{chance}.",
        "clients": "Of the examples read off sums {value}{interval} were traced to their client{chance}.",
        "linked": "Of the examples read off sums {value}{interval} are grouped with others of the same client{chance}.",
    },
    tables=(RULES, CLIENTS, ROUNDS, UPDATES),
)
