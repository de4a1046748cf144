"""Rows of the table of lists that may be values of single examples, over all runs."""

from collections.abc import Sequence
from typing import Any

from fedattack.threats.plaintext.case import PlaintextCase

_NOT_MET = "no known example gives such values under the models that the client sent or was sent"


def list_value_rows(cases: Sequence[PlaintextCase]) -> list[dict[str, Any]]:
    """Return a row for each name and type of message, those first that tell most."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for case in cases:
        for entry in case.found.values:
            row = rows.setdefault((entry.name, entry.type), _start_row(entry.name, entry.type))
            row["rows"] = max(row["rows"], entry.rows)
            row["by_example"] = row["by_example"] or entry.by_example
            row["far"] = max(row["far"], entry.far)
            row["right"] += entry.right
            row["labelled"] += entry.labelled
            row["clients"] += 1
            if entry.what:
                row["what"] = f"{entry.what} under {entry.model}"
            row["why"] = case.found.untold
        contents = case.values
        if contents is None:
            continue
        for matches, sure in zip(contents.matches, contents.certain, strict=True):
            row = rows[matches.name, matches.type]
            row["found"] += len(matches.own)
            row["items"] += contents.sizes[matches.kind, matches.sender]
            row["certain"] += len(sure)
            row["others"] += sum(len(items) for holder, items in matches.items.items() if holder != matches.sender)
    for row in rows.values():
        if row["what"]:
            row["why"] = ""
        elif not row["why"]:
            row["why"] = _NOT_MET
    return sorted(rows.values(), key=lambda row: (-row["certain"], -row["found"], -row["by_example"]))


def _start_row(name: str, type_: str) -> dict[str, Any]:
    counts = dict.fromkeys(("rows", "far", "right", "labelled", "clients", "found", "items", "certain", "others"), 0)
    return {"name": name, "type": type_, "what": "", "why": "", "by_example": False, **counts}
