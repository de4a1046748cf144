"""What clients send, as run.json says it: as witnesses saw it, and where these do not tell, as the record shows it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedattack.attacks.reply_kinds import UNKNOWN, find_kinds
from fedattack.record import Record

Row = Mapping[str, Any]

# What witnesses call arrays of which they do not say what they are.
_UNTOLD = (UNKNOWN, "no floats")


def sent_of(record: Record, witnessed: Sequence[Row] = (), unread: str = "") -> dict[str, Any]:
    """Describe each array of clients' replies, as ``sent`` of ``run.schema.json`` does.

    Parameters
    ----------
    record
        As it came.
    witnessed
        Rows of the same form, as the clients' own processes saw it; what they say counts first.
    unread
        Which arrays no attack can read; empty if none.
    """
    shown = find_kinds(record)
    rows = [*_tell(witnessed, shown), *_list_unwitnessed(witnessed, shown)]
    return {"arrays": [dict(row) for row in rows], "unread": unread}


def _list_unwitnessed(witnessed: Sequence[Row], shown: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of arrays that no witness names."""
    # Of several records of arrays in a reply, the record's names have the keys of these, and witnesses' have not.
    names = {row["array"] for row in shown} | {row["array"].partition(".")[2] for row in shown}
    there = {row["array"] for row in witnessed}
    # Arrays without names may have got some in the record: each stands for one of its shape.
    unnamed = [row for row in witnessed if row["array"] not in names and row["kind"] != "not sent"]
    others = Counter(tuple(row["shape"]) for row in unnamed)
    for row in shown:
        shape = tuple(row["shape"])
        if there & {row["array"], row["array"].partition(".")[2]}:
            continue
        if others[shape]:
            others[shape] -= 1
            continue
        yield row


def _tell(witnessed: Sequence[Row], shown: Sequence[Row]) -> Iterator[Row]:
    """Yield witnesses' rows; those that do not say what an array is, with the record's word for it."""
    kinds = {(row["array"], tuple(row["shape"])): row["kind"] for row in shown}
    for row in witnessed:
        kind = kinds.get((row["array"], tuple(row["shape"])), UNKNOWN)
        if row["kind"] in _UNTOLD and kind != UNKNOWN:
            row = {**row, "kind": kind}
        yield row
