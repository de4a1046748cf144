"""How plaintext is shown: what stands beside the model, what tells clients apart, and what is an example."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fedattack.audit.finding import Finding, list_words
from fedattack.report.section import Explained, Section, by_guesses
from fedattack.report.words import count_words
from fedattack.threats.plaintext.counting import CLASSES, LABELS
from fedattack.threats.plaintext.tables import BESIDE, CONTENTS, GROUPS, TEXTS, UNREAD, VALUE_LISTS, VECTORS, say_apart

# Names whose contents are said in words; the table has all.
_MOST_SAID = 8

# In which form items stand there, in words.
_FORMS = {"scaled": ", except for their scale", "in part": ", some of their columns", "in any order": ", in any order"}


def _explain(findings: Sequence[Finding]) -> Explained:
    """Say what stands beside the model, before anything is compared."""
    found, series = by_guesses(findings), findings[0].series
    words = []
    examples = set()
    shown: Mapping[str, Any] = next((finding.series for finding in findings if "contents" in finding.series), {})
    for row in shown.get("contents", ())[:_MOST_SAID]:
        words.append(_say_content(row))
        examples.add(row["name"])
    counted: Mapping[str, Any] = next((finding.series for finding in findings if "groups" in finding.series), {})
    for row in counted.get("groups", ())[:_MOST_SAID]:
        words.append(_say_groups(row))
        examples.add(row["name"])
    judged: Mapping[str, Any] = next((finding.series for finding in findings if "values" in finding.series), {})
    for row in judged.get("values", ())[:_MOST_SAID]:
        words += _say_values(row)
        examples.add(row["name"])
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
    if not words:
        words.append(_say_that_nothing_tells(series.get("beside", ())))
    rows = [*shown.get("contents", ()), *map(_as_content, counted.get("groups", ()))]
    certain = _say_what_is_certain(findings, rows, judged.get("values", ()))
    return Explained(found.rows, words, certain=certain)


def _say_what_is_certain(
    findings: Sequence[Finding], contents: Iterable[Mapping[str, Any]], values: Iterable[Mapping[str, Any]]
) -> str:
    """Count what is certain by its kinds; empty where none of that stands among the contents and the values."""
    certain: Counter[str] = Counter()
    whole = []
    for row in contents:
        if row["certain"]:
            certain[row["kind"]] += row["certain"]
        elif row["found"] == row["items"] and not row["others"]:
            whole.append(f"all {row['found']:,} {row['kind']}" if row["found"] > 1 else f"the {row['kind']}")
    for row in values:
        if row["certain"]:
            certain[row["what"]] += row["certain"]
    if not certain:
        return ""
    kinds = [_count_kind(count, kind) for kind, count in certain.items()]
    # Each finding counts the clients of which something of its own is certain.
    clients = max(finding.read_off["clients"] for finding in findings if finding.read_off is not None)
    words = f"{list_words(kinds, 'and')}, of {count_words(clients, 'client')}"
    if len(findings[0].seeds) > 1:
        words += f" in {len(findings[0].seeds)} runs"
    words += ", are certain" if certain.total() > 1 else ", is certain"
    if whole:
        words += f"; {list_words(whole, 'and')} of the senders also appear there"
    return words


def _count_kind(count: int, kind: str) -> str:
    """Write how many of a kind there are: ``16 means by class``; of labels, which lie in lists, how many lists."""
    if kind in (LABELS, CLASSES):
        kind = f"lists of {kind}"
    return f"{count:,} {kind}" if count > 1 else f"one of the {kind}"


def _say_content(row: Mapping[str, Any]) -> str:
    """Say what stands under one name."""
    certain = ""
    if row["certain"]:
        certain = f"; {row['certain']:,} of these are certain"
    form = _FORMS.get(row["how"], "")
    clients = count_words(row["clients"], "client")
    found = f"{row['found']:,} of {row['items']:,} {row['kind']}"
    return f"{row['name']} holds {found} of {clients}{form}{certain}."


def _say_groups(row: Mapping[str, Any]) -> str:
    """Say what sizes of groups stand under one name."""
    single = f", of which {row['single']:,} have one example" if row["single"] else ""
    certain = "; it is certain that these are such sizes" if row["certain"] else ""
    return (
        f"{row['name']} holds sizes of groups, which add up to the number of examples of {row['clients']:,} of "
        f"{count_words(row['senders'], 'client')}: {row['small']:,} of {row['groups']:,} groups have fewer than "
        f"{row['least']:,} examples{single}{certain}."
    )


def _as_content(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write a row of sizes of groups as one of contents, as far as that is said first."""
    certain = row["small"] if row["certain"] else 0
    return {"kind": f"groups of fewer than {row['least']:,} examples", "certain": certain, "found": 0, "items": 1}


def _say_values(row: Mapping[str, Any]) -> Iterator[str]:
    """Say what a list of values of single examples tells."""
    count = ", one for each of a client's examples" if row["by_example"] else ""
    if row["what"]:
        certain = ""
        if row["certain"]:
            certain = f"; {row['certain']:,} of these are certain"
        clients = count_words(row["clients"], "client")
        yield (
            f"{row['name']} holds {row['what']}{count}: those of {row['found']:,} of {row['items']:,} known examples "
            f"of {clients}{certain}."
        )
    elif row["by_example"]:
        yield f"{row['name']} holds values{count}, and it was not found out what they are: {row['why']}."
    if row["labelled"]:
        yield (
            f"The largest number of a row of {row['name']} is that of the example's label in {row['right']:,} of "
            f"{row['labelled']:,} rows."
        )
    if row["far"]:
        values = count_words(row["far"], "value")
        yield f"{row['name']} holds {values} far above the others: an unusual example can be recognised by it."


def _say_what_it_tells(key: Mapping[str, Any]) -> str:
    """Say what one name tells of examples or clients; empty if nothing was seen that it tells."""
    if key["by_example"]:
        return f"{key['name']} is a list with one value for each of the client's examples."
    if key["kind"] in ("number", "yes or no") or key["clients"] < 2 or key["values"] == 1:
        return ""
    # A text is somebody's own words, also where it changes.
    has_words = key["kind"] in ("text", "bytes", TEXTS)
    if say_apart(key)[:3] in ("yes", "int"):
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
        return "Clients send no list and no text beside the model."
    return f"Clients send {list_words(names, 'and')} beside the model. It was not shown that this reveals nothing."


SECTION = Section(
    question="Do the numbers that clients send reveal examples or statistics?",
    explained=_explain,
    sentences={
        "own-examples": "{value} of the vectors beside a client's model are nearest to an example on which it trained"
        "{interval}{chance}.",
        "given-away": "{value} of a client's own known examples appear in what it sends under one name"
        "{interval}{chance}.",
        "statistics": "{value} of one kind of statistics, counts or labels of a client's own examples appear in what "
        "it sends under one name{interval}{chance}.",
        "small-groups": "{value} of the groups of a client's examples whose sizes it sends have few examples"
        "{interval}{chance}.",
        "columns": "{value} of the variance of a party's columns are explained by a linear image of what it sends "
        "for each example, where the attacker knows the examples of half of the rows{interval}{chance}.",
        "gradient-labels": "The norms of the gradients that a party is sent tell two classes apart with {value}"
        "{interval}{chance}.",
        "single-values": "{value} of a client's own known examples have a loss, a prediction or an embedding in what "
        "it sends under one name{interval}{chance}.",
    },
    tables=(CONTENTS, GROUPS, VALUE_LISTS, VECTORS, BESIDE),
    forms={"unread": UNREAD.form},
)
