"""Arrays with a row for each example that pass beside a model, message by message, as in vertical and split learning.

A message may hold all rows of a party's table, or a mini-batch of them. Whoever asks which row is which example goes by
what stands beside them: numbers that name each row, or numbers that count batches; else by their order alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedattack.base.errors import RecordError
from fedattack.base.stored import Name
from fedattack.record import Record

# Rows of an array at most, and numbers of one.
_MOST_ROWS, _MOST_NUMBERS = 2**16, 2**24

# Messages of one name at most, and of these those whose rows are kept: the first and the last ones, by their numbers.
_MOST_MESSAGES, _KEPT_NUMBERS = 2**12, 2**18

# Names of numbers that are kept with each message.
_MOST_MARKS = 3

# How what names rows is often called; other lists are looked at after these.
_USUAL = re.compile(r"id|ind|row|key|place", re.IGNORECASE)

NO_ID = -1
"""Stands for a row that no number names."""

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BatchesForm:
    """What is written of the arrays of one name.

    Attributes
    ----------
    name, type
        Its name, and the type of its messages.
    is_sent
        Whether the server sends it; else it gets it.
    node
        The index of the node.
    width
        How many numbers a row has that is kept; of what a node is sent it is one, its norm.
    sizes
        How many rows each message has.
    kept
        Which messages have their rows kept, ascending.
    marks
        The names of whole numbers that stand in each message, or in those before it.
    """

    name: Name
    type: Name
    is_sent: bool
    node: Annotated[int, Field(ge=0)]
    width: Annotated[int, Field(ge=1, le=_MOST_NUMBERS)]
    sizes: Annotated[tuple[Annotated[int, Field(ge=1, le=_MOST_ROWS)], ...], Field(max_length=_MOST_MESSAGES)]
    kept: Annotated[tuple[Annotated[int, Field(ge=0, lt=_MOST_MESSAGES)], ...], Field(max_length=_MOST_MESSAGES)]
    marks: Annotated[tuple[Name, ...], Field(max_length=_MOST_MARKS)]

    @property
    def rows(self) -> int:
        """How many rows are kept."""
        return sum(self.sizes[index] for index in self.kept)

    def fault(self) -> str:
        """Expect messages that are there, each once."""
        if any(index >= len(self.sizes) for index in self.kept) or len({*self.kept}) < len(self.kept):
            return "rows name messages that are missing"
        return ""


@dataclass(frozen=True, eq=False)
class RowBatches:
    """The arrays of one name that pass between one node and the server.

    Attributes
    ----------
    form
        What they are.
    values
        (rows, width): the rows that are kept; of what a node is sent the norms.
    ids
        (rows,): which number names each, :data:`NO_ID` where none does.
    marks
        (messages, names): numbers that stand in each message.
    """

    form: BatchesForm
    values: NDArray[np.float32]
    ids: Ints
    marks: Ints

    def list_kept(self) -> Iterator[tuple[int, NDArray[np.float32], Ints]]:
        """Yield the messages whose rows are kept: the index of each, its rows, and what names these."""
        start = 0
        for index in self.form.kept:
            end = start + self.form.sizes[index]
            yield index, self.values[start:end], self.ids[start:end]
            start = end


@dataclass(frozen=True)
class _Message:
    """What passes between the server and a node at once."""

    node: str
    type: str
    is_sent: bool
    arrays: Mapping[str, NDArray[Any]]
    values: Mapping[str, Any]


@dataclass
class _Growing:
    """Arrays of one name, while messages are read."""

    blocks: list[NDArray[np.float32]] = field(default_factory=list)
    ids: list[Ints] = field(default_factory=list)
    marks: list[Mapping[str, int]] = field(default_factory=list)


def list_row_batches(record: Record, columns: Mapping[str, int]) -> list[RowBatches]:
    """List the arrays with rows that pass beside a model; ``columns`` has the index of each node."""
    growing: dict[tuple[str, str, bool, str, int], _Growing] = {}
    # What the latest messages of a node say of their rows: a gradient comes after the embedding that it is of.
    last_ids: dict[str, dict[int, Ints]] = {}
    last_marks: dict[str, dict[str, int]] = {}
    for message in _list_messages(record):
        ids = last_ids.setdefault(message.node, {})
        ids.update(_find_ids(message))
        marks = last_marks.setdefault(message.node, {})
        marks.update(_find_marks(message.values))
        for name, array in message.arrays.items():
            if not _has_rows(array) or message.node not in columns:
                continue
            width = 1 if message.is_sent else array.shape[1]
            key = message.node, message.type, message.is_sent, name, width
            one = growing.setdefault(key, _Growing())
            if len(one.blocks) < _MOST_MESSAGES:
                one.blocks.append(_norms_of(array) if message.is_sent else array.astype(np.float32))
                one.ids.append(ids.get(len(array), np.full(len(array), NO_ID)))
                one.marks.append(dict(marks))
    return [
        _finish(BatchesForm(name[:200], type_[:200], is_sent, columns[node], width, (), (), ()), one)
        for (node, type_, is_sent, name, width), one in growing.items()
    ]


def _finish(form: BatchesForm, one: _Growing) -> RowBatches:
    """Keep the rows of the first and the last messages, and the numbers that count messages."""
    sizes = tuple(map(len, one.blocks))
    kept: set[int] = set()
    for indices in (range(len(sizes)), range(len(sizes) - 1, -1, -1)):
        left = _KEPT_NUMBERS // 2
        for index in indices:
            # The first one stays, however large it is.
            if kept and left < sizes[index] * form.width:
                break
            left -= sizes[index] * form.width
            kept.add(index)
    names = [name for name in one.marks[0] if all(name in marks for marks in one.marks)]
    # What is the same in all messages counts none.
    names = [name for name in names if len({marks[name] for marks in one.marks}) > 1][:_MOST_MARKS]
    chosen = sorted(kept)
    return RowBatches(
        replace(form, sizes=sizes, kept=tuple(chosen), marks=tuple(names)),
        np.concatenate([one.blocks[index] for index in chosen]).reshape(-1, form.width),
        np.concatenate([one.ids[index] for index in chosen]),
        np.array([[marks[name] for name in names] for marks in one.marks], np.int64).reshape(len(sizes), len(names)),
    )


def _list_messages(record: Record) -> Iterator[_Message]:
    """Yield all messages in their order, those of training without the arrays of a model, which come and go."""
    for round_ in record.lines:
        for others in round_.others:
            for node in others.nodes:
                yield _Message(node, others.type, others.way == "sent", others.arrays, others.metrics)
        for reply in round_.observations:
            if reply.status != "ok":
                continue
            try:
                received, sent = dict(reply.received or {}), dict(reply.arrays or {})
            except RecordError:
                # Who judges says which file is damaged.
                continue
            only = {name: array for name, array in received.items() if name not in sent}
            yield _Message(reply.node, "train", True, only, {})
            back = {name: array for name, array in sent.items() if name not in received}
            yield _Message(reply.node, "train", False, back, reply.plaintext)
    for others in record.others_after:
        for node in others.nodes:
            yield _Message(node, others.type, others.way == "sent", others.arrays, others.metrics)


def _find_ids(message: _Message) -> dict[int, Ints]:
    """Return lists of different whole numbers, one for each length."""
    lists: dict[str, Any] = {name: value for name, value in message.values.items() if isinstance(value, list)}
    for name, array in message.arrays.items():
        if array.dtype.kind in "iu" and array.ndim in (1, 2) and array.size == len(array):
            lists[name] = array.reshape(-1)
    found: dict[int, Ints] = {}
    for name in sorted(lists, key=lambda name: _USUAL.search(name.rpartition(".")[2]) is None):
        ids = _read_ids(lists[name])
        if ids is not None:
            found.setdefault(len(ids), ids)
    return found


def _read_ids(values: Sequence[Any] | NDArray[Any]) -> Ints | None:
    """Return whole numbers of 0 or more that are all different; ``None`` for anything else."""
    if not 2 <= len(values) <= _MOST_ROWS:
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    if array.dtype.kind not in "iu" or array.ndim != 1 or array.min() < 0 or array.max() > 2**53:
        return None
    return array.astype(np.int64) if len(np.unique(array)) == len(array) else None


def _find_marks(values: Mapping[str, Any]) -> dict[str, int]:
    """Return single whole numbers of 0 or more, by their names."""
    marks = {}
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53:
            marks[name] = value
    return marks


def _has_rows(array: NDArray[np.generic]) -> bool:
    """Say whether an array may have a row of numbers for each example."""
    is_table = array.dtype.kind == "f" and array.ndim == 2 and array.size > 0
    return is_table and len(array) <= _MOST_ROWS and array.size <= _MOST_NUMBERS


def _norms_of(array: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return the norm of each row, (rows, 1).

    Li et al. 2022, "Label leakage and protection in two-party split learning": where one of two classes is rare, a
    model is less sure of its examples, and the gradients of their embeddings are longer.
    """
    norms = np.linalg.norm(np.nan_to_num(array.astype(np.float64)), axis=1, keepdims=True)
    return np.asarray(np.minimum(norms, np.finfo(np.float32).max), dtype=np.float32)
