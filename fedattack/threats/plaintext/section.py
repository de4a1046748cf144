"""How plaintext is shown: what stands beside the model, what tells clients apart, and what is an example."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedattack.audit.finding import Finding, list_words
from fedattack.report.section import Explained, PageTable, Section, by_guesses
from fedattack.report.words import count_words, shown

_TEXTS = "list of texts"

# Kinds of values that are no list.
_SCALARS = ("number", "text", "bytes", "yes or no")


def _beside(finding: Finding) -> PageTable:
    rows = []
    for key in finding.series["beside"]:
        kind = key["kind"]
        if kind == _TEXTS:
            kind = f"{key['numbers']:,} texts"
        elif kind not in _SCALARS:
            kind = f"{key['numbers']:,} numbers"
        by_example = f"{key['by_example']:,} of {key['replies']:,}" if key["by_example"] else "none"
        replies, values = f"{key['replies']:,}, of {count_words(key['clients'], 'client')}", f"{key['values']:,}"
        rows.append([key["name"], key["type"], kind, replies, values, by_example, _apart(key)])
    return PageTable(
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


def _vectors(finding: Finding) -> PageTable:
    rows = []
    for row in finding.series["vectors"]:
        count = f"{row['vectors']:,}"
        rows.append([row["name"], count, shown(row["own"] / row["vectors"]), f"{row['equal']:,} of {count}"])
    return PageTable(
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
    examples = set()
    for row in series.get("vectors", ()):
        if row["equal"]:
            vectors = count_words(row["vectors"], "vector")
            examples.add(row["name"])
            words.append(
                f"{row['name']}: {row['equal']:,} of {vectors} beside the model are a training example of the client "
                "that sent them."
            )
    for key in series.get("beside", ()):
        if key["name"] not in examples and (said := _say_what_it_tells(key)):
            words.append(said)
    for array in series.get("unread", ()):
        words.append(
            f"Replies to {array['type']} hold the array {array['name']} ({array['shape']}), which no attack reads."
        )
    return Explained(found.rows, words or [_say_that_nothing_tells(series.get("beside", ()))])


def _say_what_it_tells(key: Mapping[str, Any]) -> str:
    """Say what one name tells of examples or clients; empty if nothing was seen that it tells."""
    if key["by_example"]:
        return f"{key['name']} is a list with one value for each of the client's examples."
    if key["kind"] in ("number", "yes or no") or key["clients"] < 2 or key["values"] == 1:
        return ""
    # A text is somebody's own words, also where it changes.
    has_words = key["kind"] in ("text", "bytes", _TEXTS)
    if _apart(key)[:3] in ("yes", "int"):
        groups = "each client" if key["apart"] == key["clients"] else f"{key['apart']:,} groups of clients"
        if key["kind"] in ("text", "bytes"):
            return f"The {key['kind']} {key['name']} is the same in all rounds, and names {groups}."
        return f"The list {key['name']} is the same in all rounds, and names {groups}."
    if has_words:
        return (
            f"The {key['kind']} {key['name']} has {key['values']:,} different values in {key['replies']:,} replies of "
            f"{key['clients']:,} clients."
        )
    return ""


def _say_that_nothing_tells(beside: Sequence[Mapping[str, Any]]) -> str:
    """Say what lists and texts stand beside the model where none was seen to tell anything."""
    names = [key["name"] for key in beside if key["kind"] not in ("number", "yes or no")]
    if not names:
        return "No list and no text stands beside the model."
    return f"Beside the model stands {list_words(names, 'and')}; that none of it tells anything was not shown."


SECTION = Section(
    question="Do numbers or texts beside the model give examples away?",
    explained=_explain,
    sentences={
        "own-examples": "Of the vectors beside a client's model, {value} are nearest to an example on which it trained"
        "{interval}{chance}.",
    },
    tables=(("vectors", _vectors), ("beside", _beside)),
)
