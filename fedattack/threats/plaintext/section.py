"""How plaintext is shown: what stands beside the model, what tells clients apart, and what is an example."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import Finding
from fedattack.report.section import Explained, Section, Table, by_guesses
from fedattack.report.words import count_words, shown


def _beside(finding: Finding) -> Table:
    rows = []
    for key in finding.series["beside"]:
        kind = key["kind"] if key["kind"] in ("number", "text", "bytes", "yes or no") else f"{key['numbers']:,} numbers"
        by_example = f"{key['by_example']:,} of {key['replies']:,}" if key["by_example"] else "none"
        replies, values = f"{key['replies']:,}, of {count_words(key['clients'], 'client')}", f"{key['values']:,}"
        rows.append([key["name"], key["type"], kind, replies, values, by_example, _apart(key)])
    return Table(
        "What stands in plaintext beside the model",
        "Of the first run, and not tested. Names that differ in running numbers alone have # in their place. A list "
        "that is as long as the client's examples are many holds a value for each. What is the same in all replies of "
        "a client, and differs between clients, tells them apart whenever they take part, whatever hides their models.",
        ["name", "in replies to", "kind", "replies", "different values", "one value an example", "tells clients apart"],
        rows,
    )


def _apart(key: Mapping[str, Any]) -> str:
    """Say whether a value tells clients apart over rounds."""
    if key["clients"] < 2:
        return "one client sends it"
    if key["values"] == 1:
        return "no, all send the same"
    if not key["constant"]:
        return "no, it changes"
    if key["replies"] == key["clients"]:
        return "not known: each sent it once"
    if key["apart"] == key["clients"]:
        return "yes, each client"
    return f"into {key['apart']:,} groups"


def _vectors(finding: Finding) -> Table:
    rows = []
    for row in finding.series["vectors"]:
        count = f"{row['vectors']:,}"
        rows.append([row["name"], count, shown(row["own"] / row["vectors"]), f"{row['equal']:,} of {count}"])
    return Table(
        "Which of these numbers are training examples",
        "Lists and families of numbers that are as long as an example. Each is compared with all known examples, "
        "whatever its scale and offset. It is one if it equals the example but for these and for rounding.",
        ["name", "vectors", "nearest to an own example", "are an own training example"],
        rows,
    )


def _explain(findings: Sequence[Finding]) -> Explained:
    """Say what stands beside the model, before anything is compared."""
    found, series = by_guesses(findings), findings[0].series
    words = []
    for row in series.get("vectors", ()):
        if row["equal"]:
            vectors = count_words(row["vectors"], "vector")
            words.append(
                f"{row['name']}: {row['equal']:,} of {vectors} beside the model are a training example of the client "
                "that sent them."
            )
    for key in series.get("beside", ()):
        if key["by_example"]:
            words.append(f"{key['name']} is a list with one value for each of the client's examples.")
        elif key["kind"] in ("text", "bytes") and key["clients"] > 1 and _apart(key)[:3] in ("yes", "int"):
            groups = "each client" if key["apart"] == key["clients"] else f"{key['apart']:,} groups of clients"
            words.append(f"The {key['kind']} {key['name']} is the same in all rounds, and names {groups}.")
    return Explained(found.rows, words or ["No list and no text beside the model tells examples or clients."])


SECTION = Section(
    question="Do numbers or texts beside the model give examples away?",
    explained=_explain,
    sentences={
        "own-examples": "Of the vectors beside a client's model, {value} are nearest to an example on which it trained"
        "{interval}{chance}.",
    },
    tables=(("vectors", _vectors), ("beside", _beside)),
)
