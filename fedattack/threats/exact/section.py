"""How examples that were read off are shown: the rules, the rounds, the clients, and what became of whole batches."""

from collections.abc import Sequence

from fedattack.audit.finding import Finding
from fedattack.report.section import PageTable, Section
from fedattack.report.words import shown


def _rules(finding: Finding) -> PageTable:
    rows = []
    for row in finding.series["rules"]:
        error = f"{row['error']:.0e}" if row["right"] else "–"
        rows.append([row["rule"], f"{row['named']:,}", f"{row['right']:,}", error])
    return PageTable(
        "How examples were told from mixtures",
        "Over all runs. The largest error of those that are right is a part of the feature's span.",
        ["rule", "read off", "of these training examples", "largest error"],
        rows,
    )


def _clients(finding: Finding) -> PageTable:
    rows = [[row["client"], f"{row['examples']:,}", f"{row['read']:,}"] for row in finding.series["clients"]]
    return PageTable(
        "What was read off of each client",
        "Of the first run, at most 20 clients.",
        ["client", "examples", "read off exactly"],
        rows,
    )


def _rounds(finding: Finding) -> PageTable:
    rows = [[f"{row['round']:,}", shown(row["share"])] for row in finding.series["rounds"]]
    return PageTable(
        "After how many rounds",
        "Of the first run: the part of all examples that was read off by then.",
        ["after round", "read off"],
        rows,
    )


def _updates(finding: Finding) -> PageTable:
    rows = []
    for row in finding.series["updates"]:
        rows.append([f"{row['round']:,}", row["client"], f"{row['batch']:,}", f"{row['found']:,}", row["why"] or "–"])
    return PageTable(
        "Whole batches",
        "Of the first run, at most 20 updates: whether the batch was taken apart, and why not.",
        ["round", "client", "examples", "found", "why not"],
        rows,
    )


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
    tables=(("rules", _rules), ("clients", _clients), ("rounds", _rounds), ("updates", _updates)),
)
