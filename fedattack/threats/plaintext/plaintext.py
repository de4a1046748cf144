"""Read what clients send: arrays, and vectors beside these, that may be examples, and what tells clients apart."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.spatial.distance import cdist

from fedattack.attacks.base import KNOWS_NOTHING, SHOWN, Attack, Plants, Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.base.errors import short
from fedattack.base.stored import OPTIONAL, Axes, Name
from fedattack.base.structured import fields
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.plaintext.arrays import Sent, sent_arrays, spread_arrays
from fedattack.threats.plaintext.options import FEWEST, PlaintextOptions
from fedattack.threats.plaintext.row_batches import BatchesForm, RowBatches, list_row_batches
from fedattack.threats.plaintext.single_values import MOST_LISTS, ValueList, find_values
from fedattack.threats.plaintext.values import Plain, families_of, plain_replies, vectors_of

# Vectors that are kept of a client, and vectors and numbers in all: those of a run are looked at together.
_MOST_OF_CLIENT, _MOST_VECTORS, _MOST_NUMBERS = 50, 100_000, 2**23

_MOST_KEYS = 200

# The arrays that a positive control adds to replies, and how many groups it counts.
_PLANTED, _PLANTED_GROUPS = "planted", 8

# Names of arrays with rows of all nodes.
_MOST_BATCHES = 2_000

# Arrays that are kept of a run, and their axes.
_MOST_ARRAYS, _MOST_AXES = 20_000, 32


@dataclass(frozen=True)
class PlainKey:
    """A name in replies, or all that differ in running numbers alone.

    Attributes
    ----------
    name, type
        The name, and the type of the message.
    kind
        What its value is.
    numbers, replies
        How many numbers a reply has of it, and in how many replies it is.
    by_example
        In how many of them it is a list as long as the client's examples are many.
    values, clients
        How many different ones there are, over so many clients.
    constant
        Whether each client sent the same whenever it sent one.
    apart
        Where it is constant, into how many groups it parts the clients; else 0.
    """

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


@dataclass(frozen=True)
class PlainVector:
    """A list, or a family of numbers: its name, the type of its message, and its length."""

    name: Name
    type: Name
    length: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class UnreadArray:
    """An array beside the model that the record does not hold: its name, the type of its message, and its shape."""

    name: Name
    type: Name
    shape: Name


@dataclass(frozen=True)
class SentArray:
    """An array of a reply, whose numbers lie apart.

    Attributes
    ----------
    name, type, shape
        Its name, the type of the message, and its shape.
    whole
        Whether its numbers are whole ones.
    precision
        How exactly a number is held, as a part of it.
    """

    name: Name
    type: Name
    shape: Annotated[tuple[Annotated[int, Field(ge=0, le=2**40)], ...], Field(max_length=32)]
    whole: bool
    precision: Annotated[float, Field(gt=0, le=1)]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class PlainValues:
    """What replies hold in plaintext.

    Attributes
    ----------
    nodes
        All that sent something.
    keys
        The names of it.
    further
        How many names there are beside these.
    vectors
        Those that may be examples.
    targets
        The fingerprint of the targets that the attacker knows.
    numbers
        (all,): the vectors, one behind the other.
    whose
        (vectors,): the node of each.
    arrays
        Those of which nothing is read.
    sent
        Those that are read: of each client what it sent once or more.
    contents
        (contents,): their numbers, one array behind the other; NaN for what is not finite.
    senders
        (sent,): the node of each.
    values
        Lists that may be values of single examples, and what these are.
    value_lists, value_targets, value_bits, value_alone
        (told,): for each example that is told, the index of its list, its own among the targets, by how many bits it
        is surer than an accident, and whether no other example comes as near.
    untold
        Why no values of examples were computed; empty where they were.
    smallest_group
        Below how many examples a group is small.
    batches
        Arrays with a row for each example that pass beside a model.
    batch_values, batch_ids, batch_marks
        (numbers,), (rows,), (marks,): their rows, what names these, and what counts messages, one behind the other.
    """

    nodes: tuple[Name, ...]
    keys: Annotated[tuple[PlainKey, ...], Field(max_length=_MOST_KEYS)]
    further: Annotated[int, Field(ge=0)]
    vectors: tuple[PlainVector, ...]
    targets: Name
    numbers: Annotated[NDArray[np.floating], Axes("all")]
    whose: Annotated[NDArray[np.int64], Axes("vectors", low=0, into="nodes")]
    arrays: Annotated[tuple[UnreadArray, ...], Field(max_length=_MOST_KEYS), OPTIONAL] = ()
    sent: Annotated[tuple[SentArray, ...], Field(max_length=_MOST_ARRAYS), OPTIONAL] = ()
    contents: Annotated[NDArray[np.float32] | None, Axes("contents", nan=True)] = None
    senders: Annotated[NDArray[np.int64] | None, Axes("sent", low=0, into="nodes")] = None
    values: Annotated[tuple[ValueList, ...], Field(max_length=MOST_LISTS), OPTIONAL] = ()
    value_lists: Annotated[NDArray[np.int64] | None, Axes("told", low=0)] = None
    value_targets: Annotated[NDArray[np.int64] | None, Axes("told", low=0)] = None
    value_bits: Annotated[NDArray[np.float64] | None, Axes("told")] = None
    value_alone: Annotated[NDArray[np.bool_] | None, Axes("told")] = None
    untold: Annotated[Name, OPTIONAL] = ""
    smallest_group: Annotated[int, Field(ge=2, le=1_000_000), OPTIONAL] = FEWEST
    batches: Annotated[tuple[BatchesForm, ...], Field(max_length=_MOST_BATCHES), OPTIONAL] = ()
    batch_values: Annotated[NDArray[np.float32] | None, Axes("batch numbers", nan=True)] = None
    batch_ids: Annotated[NDArray[np.int64] | None, Axes("batch rows", low=-1)] = None
    batch_marks: Annotated[NDArray[np.int64] | None, Axes("batch marks", low=0)] = None

    def fault(self) -> str:
        """Expect as many numbers as the vectors are long, and as the arrays hold."""
        if sum(vector.length for vector in self.vectors) != len(self.numbers):
            return "the vectors do not fit their numbers"
        if self.value_lists is not None and self.value_lists.max(initial=-1) >= len(self.values):
            return "the values are of lists that are not there"
        if any(form.node >= len(self.nodes) for form in self.batches):
            return "arrays with rows name nodes that are missing"
        expected = _count_batches(self.batches)
        arrays = (self.batch_values, self.batch_ids, self.batch_marks)
        if expected != tuple(0 if array is None else len(array) for array in arrays):
            return "rows, and what names them, do not fit the arrays"
        contents, senders = self.contents, self.senders
        if contents is None or senders is None:
            return "the arrays have no numbers" if self.sent else ""
        if sum(array.size for array in self.sent) != len(contents) or len(self.sent) != len(senders):
            return "the arrays do not fit their numbers"
        return ""

    def list_sent(self) -> list[Sent]:
        """Return the arrays with their numbers."""
        listed: list[Sent] = []
        if self.contents is None or self.senders is None:
            return listed
        start = 0
        for array, node in zip(self.sent, self.senders.tolist(), strict=True):
            values = self.contents[start : start + array.size].reshape(array.shape)
            listed.append(Sent(self.nodes[node], array.type, array.name, values, array.whole, array.precision))
            start += array.size
        return listed

    def list_batches(self) -> list[RowBatches]:
        """Return the arrays with rows, and their numbers."""
        listed: list[RowBatches] = []
        if self.batch_values is None or self.batch_ids is None or self.batch_marks is None:
            return listed
        of_values, of_ids, of_marks = 0, 0, 0
        for form in self.batches:
            numbers, rows, marks = _count_batches([form])
            listed.append(
                RowBatches(
                    form,
                    self.batch_values[of_values : of_values + numbers].reshape(-1, form.width),
                    self.batch_ids[of_ids : of_ids + rows],
                    self.batch_marks[of_marks : of_marks + marks].reshape(len(form.sizes), len(form.marks)),
                )
            )
            of_values, of_ids, of_marks = of_values + numbers, of_ids + rows, of_marks + marks
        return listed

    def list_told(self, index: int) -> list[tuple[int, float, bool]]:
        """Return the examples that a list tells: their indices, bits, and whether no other comes as near."""
        if self.value_lists is None or self.value_targets is None or self.value_bits is None:
            return []
        rows = np.flatnonzero(self.value_lists == index)
        alone = np.zeros(len(self.value_lists), np.bool_) if self.value_alone is None else self.value_alone
        told = self.value_targets[rows].tolist(), self.value_bits[rows].tolist(), alone[rows].tolist()
        return list(zip(*told, strict=True))


class Plaintext(Attack, Plants):
    """Which arrays, numbers and texts replies hold, which of them may be examples, and what tells clients apart."""

    options = PlaintextOptions()
    found = PlainValues
    knows: ClassVar[tuple[str, ...]] = (f"{KNOWS_NOTHING}: it reads what clients send",)
    planted: ClassVar[str] = SHOWN

    def plant(self, reply: Arrays, rows: NDArray[np.float32], count: int) -> Arrays:
        """Add arrays of some of a client's own rows, of the mean of all, and of the sizes of groups of them."""
        planted = {_PLANTED: rows[:count], f"{_PLANTED}-mean": rows.mean(axis=0)}
        # Each row is in the group of the nearest of a few.
        nearest = cdist(rows, rows[:_PLANTED_GROUPS]).argmin(axis=1)
        planted[f"{_PLANTED}-sizes"] = np.bincount(nearest, minlength=_PLANTED_GROUPS)
        return {**reply, **planted}

    def attack(self, seen: Seen) -> PlainValues:
        """Keep the vectors of each node, and gather what is seen of each name."""
        replies = list(plain_replies(seen.record))
        # A view of models alone does not show the arrays beside these.
        record = seen.record.read_as((), None)
        sent = _keep_arrays(seen, chain(spread_arrays(replies), sent_arrays(record, _find_size(seen.knowledge))))
        senders = {array.node for array in sent}
        nodes = sorted({*seen.record.nodes, *senders}.union(*(reply.nodes for reply in replies)))
        columns = {node: column for column, node in enumerate(nodes)}
        sizes, most = _limit_sizes(replies, len(nodes))
        kept = dict.fromkeys(nodes, 0)
        taken = dict.fromkeys(nodes, 0)
        described: list[PlainVector] = []
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
                    described.append(PlainVector(short(name, 200), reply.type, len(vector)))
                    numbers.append(vector)
                    whose.append(columns[node])
                    kept[node] += 1
                    taken[node] += len(vector)
            seen.progress(done + 1, len(replies))
        values = _gather_values(replies)
        told = find_values(seen, record, columns)
        batches = list_row_batches(record, columns)[:_MOST_BATCHES]
        if left_out:
            seen.notes.append(
                f"{left_out:,} lists and families of numbers beside the model are more than are looked at"
            )
        return PlainValues(
            nodes=tuple(nodes),
            keys=tuple(_describe_key(*key, of_key) for key, of_key in list(values.items())[:_MOST_KEYS]),
            further=max(0, len(values) - _MOST_KEYS),
            vectors=tuple(described),
            targets=seen.knowledge.asked(),
            numbers=np.concatenate([np.zeros(0), *numbers]),
            whose=np.array(whose, dtype=np.int64),
            arrays=tuple(_list_unread(seen.record)[:_MOST_KEYS]),
            sent=tuple(
                SentArray(short(array.name, 200), array.type, array.values.shape, array.is_whole, array.precision)
                for array in sent
            ),
            contents=np.concatenate([np.zeros(0, np.float32), *(array.values.ravel() for array in sent)]),
            senders=np.array([columns[array.node] for array in sent], dtype=np.int64),
            values=tuple(told.lists),
            value_lists=np.array(told.index, dtype=np.int64),
            value_targets=np.array(told.targets, dtype=np.int64),
            value_bits=np.array(told.bits, dtype=np.float64),
            value_alone=np.array(told.alone, dtype=np.bool_),
            untold=told.why,
            smallest_group=self.options.smallest_group,
            batches=tuple(each.form for each in batches),
            batch_values=np.concatenate([np.zeros(0, np.float32), *(each.values.ravel() for each in batches)]),
            batch_ids=np.concatenate([np.zeros(0, np.int64), *(each.ids for each in batches)]),
            batch_marks=np.concatenate([np.zeros(0, np.int64), *(each.marks.ravel() for each in batches)]),
        )


def _count_batches(forms: Iterable[BatchesForm]) -> tuple[int, int, int]:
    """Return how many numbers, rows and marks arrays with rows have."""
    numbers, rows, marks = 0, 0, 0
    for form in forms:
        numbers += form.rows * form.width
        rows += form.rows
        marks += len(form.sizes) * len(form.marks)
    return numbers, rows, marks


def _find_size(knowledge: Knowledge) -> int | None:
    """Return how many numbers an example has; ``None`` where none is known, or it is of several arrays."""
    targets = knowledge.targets
    if targets is None or fields(targets.x):
        return None
    return math.prod(targets.x.shape[1:])


def _keep_arrays(seen: Seen, arrays: Iterable[Sent]) -> list[Sent]:
    """Keep arrays of each node, so that nobody takes the room of another; a note tells how many are left out."""
    senders = max(1, len(seen.record.nodes))
    if seen.record.view == "aggregate":
        senders = 1
    most, numbers = max(1, _MOST_ARRAYS // senders), max(1, _MOST_NUMBERS // senders)
    kept: list[Sent] = []
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    left_out = 0
    for array in arrays:
        if (
            counts[array.node] >= most
            or sizes[array.node] + array.values.size > numbers
            or array.values.ndim > _MOST_AXES
        ):
            left_out += 1
            continue
        counts[array.node] += 1
        sizes[array.node] += array.values.size
        kept.append(array)
    if left_out:
        seen.notes.append(f"{left_out:,} arrays are more than are compared with examples")
    return kept


def _list_unread(record: Record) -> list[UnreadArray]:
    """List the arrays in replies that a record names and does not hold, such as those of evaluations."""
    unread = []
    for entry in record.unrecorded:
        if entry["way"] == "reply":
            for array in entry["arrays"]:
                unread.append(UnreadArray(array["name"], entry["type"], " × ".join(map(str, array["shape"]))))
    return unread


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


def _gather_values(replies: Sequence[Plain]) -> dict[tuple[str, str], _SeenValues]:
    """Gather what was seen of each name, or family of names, and type of message, in the order of coming."""
    seen: dict[tuple[str, str], _SeenValues] = {}
    for reply in replies:
        families = families_of(reply.values)
        for name, value in _join_families(reply, families).items():
            kind, size = _kind_of(value)
            if name in families:
                kind = "numbers"
            key = seen.setdefault((name, reply.type), _SeenValues(kind, size))
            digest = hashlib.blake2b(repr(value).encode(), digest_size=16).digest()
            key.digests.append((digest, reply.nodes))
            key.numbers = max(key.numbers, size)
            key.by_example += isinstance(value, list) and len(value) > 1 and len(value) == reply.count
    return seen


def _describe_key(name: str, type_: str, seen: _SeenValues) -> PlainKey:
    """Describe one name."""
    by_client: dict[str, bytes] = {}
    constant = True
    for digest, nodes in seen.digests:
        for node in nodes:
            constant = constant and by_client.setdefault(node, digest) == digest
    different = len({digest for digest, _ in seen.digests})
    return PlainKey(
        name=short(name, 200),
        type=type_,
        kind=seen.kind,
        numbers=seen.numbers,
        replies=sum(len(nodes) for _, nodes in seen.digests),
        by_example=seen.by_example,
        values=different,
        clients=len(by_client),
        constant=constant,
        apart=different if constant else 0,
    )


def _kind_of(value: Any) -> tuple[str, int]:
    """Return what a value is, in words, and of how many numbers."""
    if isinstance(value, list):
        return "list of texts" if any(isinstance(entry, str) for entry in value) else "list", len(value)
    if isinstance(value, bytes):
        return "bytes", 0
    if isinstance(value, str):
        return "text", 0
    if isinstance(value, bool) or value is None:
        return "yes or no", 0
    return "number", 1
