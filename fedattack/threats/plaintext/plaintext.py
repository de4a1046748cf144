"""Read what stands in plaintext beside the model: vectors that may be examples, and what tells clients apart."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

# Vectors that are kept of a client, and vectors and numbers in all: those of a run are looked at together.
_MOST_OF_CLIENT, _MOST_VECTORS, _MOST_NUMBERS = 50, 100_000, 2**23

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


class Plaintext(Attack):
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

    options = PlaintextOptions()
    form: ClassVar[Form] = Form(
        TypeAdapter(_PlaintextFacts),
        {"numbers": ArrayForm("f", ("all",)), "whose": ArrayForm("i", ("vectors",), low=0)},
        {"vectors": "vectors"},
    )
    knows: ClassVar[tuple[str, ...]] = ("nothing, to read what stands in plaintext",)

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        replies = list(plain_replies(record))
        nodes = sorted({*record.nodes}.union(*(reply.nodes for reply in replies)))
        columns = {node: column for column, node in enumerate(nodes)}
        sizes, most = _limit_sizes(replies, len(nodes))
        kept = dict.fromkeys(nodes, 0)
        taken = dict.fromkeys(nodes, 0)
        entries: list[dict[str, Any]] = []
        numbers: list[NDArray[np.float64]] = []
        whose: list[int] = []
        left_out = 0
        for done, reply in enumerate(replies):
            vectors = vectors_of(reply.values)
            for node in reply.nodes:
                for name, vector in vectors.items():
                    if kept[node] >= most or taken[node] + len(vector) > sizes:
                        left_out += 1
                        continue
                    entries.append({"name": short(name, 200), "type": reply.type, "length": len(vector)})
                    numbers.append(vector)
                    whose.append(columns[node])
                    kept[node] += 1
                    taken[node] += len(vector)
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
                "keys": [_key_of(name, type_, seen) for (name, type_), seen in list(keys.items())[:_MOST_KEYS]],
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


def _limit_sizes(replies: Sequence[Plain], nodes: int) -> tuple[int, int]:
    """Return how many numbers, and how many vectors, of each client are kept, so that nobody takes those of others."""
    most = max(1, min(_MOST_OF_CLIENT, _MOST_VECTORS // max(nodes, 1)))
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for reply in replies:
        lengths = list(map(len, vectors_of(reply.values).values()))
        for node in reply.nodes:
            new = lengths[: most - counts[node]]
            counts[node] += len(new)
            sizes[node] += sum(new)
    if sizes.total() <= _MOST_NUMBERS:
        return _MOST_NUMBERS, most
    return _MOST_NUMBERS // nodes, most


@dataclass
class _SeenValues:
    """What was seen of one name: how its values look, and for those that are alike a digest and their nodes."""

    kind: str
    numbers: int
    digests: list[tuple[bytes, tuple[str, ...]]] = field(default_factory=list)
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


def _keys_of(replies: Sequence[Plain]) -> dict[tuple[str, str], _SeenValues]:
    """Gather what was seen of each name, or family of names, and type of message, in the order of coming."""
    found: dict[tuple[str, str], _SeenValues] = {}
    for reply in replies:
        families = families_of(reply.values)
        for name, value in _join_families(reply, families).items():
            kind, size = _kind_of(value)
            if name in families:
                kind = "numbers"
            key = found.setdefault((name, reply.type), _SeenValues(kind, size))
            digest = hashlib.blake2b(repr(value).encode(), digest_size=16).digest()
            key.digests.append((digest, reply.nodes))
            key.numbers = max(key.numbers, size)
            key.by_example += isinstance(value, list) and len(value) > 1 and len(value) == reply.count
    return found


def _key_of(name: str, type_: str, seen: _SeenValues) -> dict[str, Any]:
    """Describe one name."""
    by_client: dict[str, bytes] = {}
    constant = True
    for digest, nodes in seen.digests:
        for node in nodes:
            constant = constant and by_client.setdefault(node, digest) == digest
    different = len({digest for digest, _ in seen.digests})
    return {
        "name": short(name, 200),
        "type": type_,
        "kind": seen.kind,
        "numbers": seen.numbers,
        "replies": sum(len(nodes) for _, nodes in seen.digests),
        "by_example": seen.by_example,
        "values": different,
        "clients": len(by_client),
        "constant": constant,
        "apart": different if constant else 0,
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
