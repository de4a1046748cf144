"""How sequences are shown: the clients one by one."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import Section
from fedattack.threats.sequences.tables import CLIENTS


def _count_exposed(findings: Sequence[Finding]) -> str:
    """Say of how many clients every sequence is found."""
    clients = findings[0].series.get("clients", ())
    if not clients:
        return ""
    exact = sum(row["exact"] == 1 for row in clients)
    return f"Every sequence of {exact} of {len(clients)} clients is found, token by token."


SECTION = Section(
    question="Can the server read the sequences of tokens that a client trained on?",
    strength={"exact": "{value} of a client's sequences are found exactly; guessing gives {chance}"},
    exposed=_count_exposed,
    sentences={
        "exact": "{value} of a client's sequences{interval} are found exactly{chance}.",
        "rouge1": "The best sequence found has the tokens of the true one with a ROUGE-1 of {value}{interval}{chance}.",
        "rouge2": "It has its pairs of neighbouring tokens with a ROUGE-2 of {value}{interval}{chance}.",
    },
    tables=(CLIENTS,),
)
