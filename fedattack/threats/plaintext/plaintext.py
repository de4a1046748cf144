"""Read what stands in plaintext beside the model: vectors that may be examples, and what tells clients apart."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.attacks.base import Attack, Progress, Scores
from fedattack.attacks.form import ArrayForm, Form, Name
from fedattack.attacks.knowledge import Knowledge
from fedattack.base.errors import short
from fedattack.record import Record
from fedattack.threats.plaintext.options import PlaintextOptions
from fedattack.threats.plaintext.values import Plain, families_of, plain_replies, vectors_of

# Vectors that are kept of a client, and numbers in all: those of a run are looked at together.
_MOST_OF_CLIENT, _MOST_NUMBERS = 50, 2**24

_MOST_KEYS = 200


class _Key(TypedDict):
    name: Name
    type: Name
    kind: Name
    numbers: Annotated[int, Field(ge=0)]
    replies: Annotated[int, Field(ge=1)]
    by_example: Annotated[int, Field(ge=0)]
    values: Annotated[int, Field(ge=1)]
    clients: Annotated[int, Field(ge=1)]
    constant: bool
    apart: Annotated[int, Field(ge=0)]


class _Vector(TypedDict):
    name: Name
    type: Name
    length: Annotated[int, Field(ge=1)]


class _UnreadArray(TypedDict):
    name: Name
    type: Name
    shape: Name


class _PlaintextFacts(TypedDict):
    nodes: list[Name]
    keys: Annotated[list[_Key], Field(max_length=_MOST_KEYS)]
    vectors: list[_Vector]
    targets: Name
    further: Annotated[int, Field(ge=0)]
    arrays: NotRequired[Annotated[list[_UnreadArray], Field(max_length=_MOST_KEYS)]]


@dataclass(frozen=True)
class Plaintext(PlaintextOptions, Attack):
    """Which numbers and texts replies hold, which vectors among them may be examples, and what tells clients apart.

    Scores hold ``numbers`` (all,), the vectors one behind the other, and ``whose`` (vectors,), the index of each one's
    node. The fact ``vectors`` has their names and lengths, ``keys`` a row for each name, or for all that differ in
    running numbers alone:

    - its ``kind``, how many ``numbers`` a reply has of it, and in how many ``replies`` it is;
    - ``by_example``: in how many of them it is a list as long as the client's examples are many;
    - ``values``: how many different ones there are, over all ``clients``;
    - ``constant``: whether each client sent the same whenever it sent one;
    - ``apart``: where it is constant, into how many groups it parts the clients.

    The fact ``arrays`` names those beside the model that the record does not hold, so that nothing is read of them.
    """

    form: ClassVar[Form] = Form(
        TypeAdapter(_PlaintextFacts),
        {"numbers": ArrayForm("f", ("all",)), "whose": ArrayForm("i", ("vectors",), low=0)},
        {"vectors": "vectors"},
    )
    knows: ClassVar[tuple[str, ...]] = ("nothing, to read what stands in plaintext",)

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        replies = list(plain_replies(record))
        nodes = sorted({*record.nodes, *(reply.node for reply in replies)})
        columns = {node: column for column, node in enumerate(nodes)}
        entries: list[dict[str, Any]] = []
        numbers: list[NDArray[np.float64]] = []
        whose: list[int] = []
        kept = dict.fromkeys(nodes, 0)
        total = left_out = 0
        for done, reply in enumerate(replies):
            for name, vector in vectors_of(reply.values).items():
                if kept[reply.node] >= _MOST_OF_CLIENT or total + len(vector) > _MOST_NUMBERS:
                    left_out += 1
                    continue
                entries.append({"name": short(name, 200), "type": reply.type, "length": len(vector)})
                numbers.append(vector)
                whose.append(columns[reply.node])
                kept[reply.node] += 1
                total += len(vector)
            progress(done + 1, len(replies))
        keys = _keys_of(replies)
        notes = []
        if left_out:
            notes.append(f"{left_out:,} lists and families of numbers beside the model are more than are looked at")
        return Scores(
            attack=self.name,
            arrays={
                "numbers": np.concatenate([np.zeros(0), *numbers]),
                "whose": np.array(whose, dtype=np.int64),
            },
            facts={
                "nodes": nodes,
                "keys": keys[:_MOST_KEYS],
                "further": max(0, len(keys) - _MOST_KEYS),
                "vectors": entries,
                "arrays": _list_unread(record)[:_MOST_KEYS],
                "targets": knowledge.asked(),
            },
            notes=tuple(notes),
        )


def _list_unread(record: Record) -> list[dict[str, str]]:
    """List the arrays in replies that a record names and does not hold, such as those of evaluations."""
    found = []
    for entry in record.unrecorded:
        if entry["way"] == "reply":
            for array in entry["arrays"]:
                shape = " × ".join(map(str, array["shape"]))
                found.append({"name": array["name"], "type": entry["type"], "shape": shape})
    return found


@dataclass
class _SeenValues:
    """What was seen of one name: its values by client, and how they look."""

    kind: str
    numbers: int
    by_client: dict[str, list[Hashable]]
    replies: int = 0
    by_example: int = 0


def _join_families(reply: Plain, families: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the values of a reply, with one list in the place of each family of numbers."""
    values: dict[str, Any] = {}
    members: set[str] = set()
    for stem, names in families.items():
        values[stem] = [reply.values[name] for name in names]
        members.update(names)
    for name, value in reply.values.items():
        if name not in members:
            values[name] = value
    return values


def _keys_of(replies: Sequence[Plain]) -> list[dict[str, Any]]:
    """Describe each name, or family of names, in the order in which they first came."""
    seen: dict[tuple[str, str], _SeenValues] = {}
    for reply in replies:
        families = families_of(reply.values)
        for name, value in _join_families(reply, families).items():
            kind, size = _kind_of(value)
            if name in families:
                kind = "numbers"
            key = seen.setdefault((name, reply.type), _SeenValues(kind, size, {}))
            key.by_client.setdefault(reply.node, []).append(repr(value))
            key.replies += 1
            key.numbers = max(key.numbers, size)
            key.by_example += isinstance(value, list) and len(value) > 1 and len(value) == reply.count
    return [_key_of(name, type_, of_name) for (name, type_), of_name in seen.items()]


def _key_of(name: str, type_: str, seen: _SeenValues) -> dict[str, Any]:
    different: set[Hashable] = set()
    constant = True
    for values in seen.by_client.values():
        of_client = {*values}
        different |= of_client
        constant = constant and len(of_client) == 1
    return {
        "name": short(name, 200),
        "type": type_,
        "kind": seen.kind,
        "numbers": seen.numbers,
        "replies": seen.replies,
        "by_example": seen.by_example,
        "values": len(different),
        "clients": len(seen.by_client),
        "constant": constant,
        "apart": len(different) if constant else 0,
    }


def _kind_of(value: Any) -> tuple[str, int]:
    """Return what a value is, in words, and of how many numbers."""
    if isinstance(value, list):
        return "list of texts" if any(isinstance(each, str) for each in value) else "list", len(value)
    if isinstance(value, bytes):
        return "bytes", 0
    if isinstance(value, str):
        return "text", 0
    if isinstance(value, bool) or value is None:
        return "yes or no", 0
    return "number", 1
