"""What reached a server in replies, by name: arrays, numbers, lists and texts, and what the whole numbers count."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import RecordError
from fedattack.base.structured import is_finite_number
from fedattack.record import Record
from fedattack.record.format import COUNT_KEYS
from fedattack.record.reader import Observation

MOST_ROWS = 200
"""Names that are listed."""

# Replies of a record whose numbers are looked at; numbers of one array, and in all.
_MOST_REPLIES, _MOST_OF_ONE, _MOST_NUMBERS = 200, 2**14, 2**22

# Fewer numbers are no list of counts.
_FEWEST = 2

# Share of single examples among counts from which on it is said.
_MANY = 0.5

Numbers = NDArray[np.float64]


@dataclass
class _NamedReply:
    """One reply: of which type of message and which node, what it holds, and of how many examples it says it is."""

    type: str
    node: str
    arrays: Mapping[str, NDArray[Any]]
    values: Mapping[str, Any]
    count: float | None


@dataclass
class _NamedValue:
    """What is known of one name in the replies to one type of message."""

    type: str
    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    # Whether the server sends an array of this name, too: then it is a part of a model.
    is_of_model: bool = False
    replies: int = 0
    nodes: set[str] = field(default_factory=set)
    # Replies whose numbers were looked at, and in how many the numbers are as the name of the attribute says.
    looked_at: int = 0
    are_counts: int = 0
    add_up: int = 0
    are_one_an_example: int = 0
    # If they are counts, how many are not 0, and how many are 1.
    filled: int = 0
    single: int = 0

    @property
    def is_counts(self) -> bool:
        """Whether it holds whole numbers that count something, in each reply that was looked at."""
        return 0 < self.looked_at == self.are_counts

    @property
    def is_group_sizes(self) -> bool:
        """Whether these are how many examples each of several groups has."""
        return self.is_counts and self.add_up == self.looked_at and not self.is_one_an_example

    @property
    def is_one_an_example(self) -> bool:
        """Whether there are as many numbers as examples in each reply that was looked at; a bias may be as long."""
        return 0 < self.looked_at == self.are_one_an_example and not self.is_of_model


def reached_of(record: Record) -> dict[str, Any]:
    """Describe what clients' replies hold, as ``reached`` of ``run.schema.json`` does.

    Each name that replies to one type of message have is a row. The row says what whole numbers count, as far as
    the numbers themselves show it.
    """
    found: dict[tuple[str, str], _NamedValue] = {}
    model = {parameter.name: (parameter.shape, parameter.dtype) for parameter in record.parameters}
    left = _MOST_NUMBERS
    for number, reply in enumerate(_list_replies(record)):
        for name in reply.arrays:
            if (reply.type, name) not in found:
                shape, dtype = model.get(name) or _describe_array(reply, name)
                found[reply.type, name] = _NamedValue(
                    reply.type, name, "array", shape, dtype, is_of_model=name in model
                )
            # Each reply counts, also where its numbers are not looked at.
            _count_reply(found[reply.type, name], reply.node)
        for name, value in reply.values.items():
            named = found.setdefault((reply.type, name), _NamedValue(reply.type, name, *_describe_value(value)))
            _count_reply(named, reply.node)
        if number < _MOST_REPLIES and left > 0:
            left -= _look_at(reply, found)
    # Secure aggregation hides single arrays: what the server has are sums of the same names.
    if record.view == "aggregate":
        for parameter in record.parameters:
            named = _NamedValue("train", parameter.name, "array of sums", parameter.shape, parameter.dtype)
            found.setdefault((named.type, named.name), named)
    _add_unrecorded(record, found)
    rows = list(found.values())
    sizes = [named for named in rows if named.is_group_sizes]
    return {
        "rows": [_as_row(named, sizes) for named in rows[:MOST_ROWS]],
        "further": max(0, len(rows) - MOST_ROWS),
    }


def _list_replies(record: Record) -> Iterator[_NamedReply]:
    for round_ in record:
        for seen in round_.observations:
            yield _NamedReply("train", seen.node, _arrays_of(seen), seen.plaintext, seen.count)
    count_keys = _list_count_keys(record)
    for others in record.others:
        if others.way == "reply":
            count = next((others.metrics[name] for name in count_keys if name in others.metrics), None)
            if not is_finite_number(count):
                count = None
            for node in others.nodes:
                # Beside training a record keeps what is alike of several nodes once.
                yield _NamedReply(others.type, node, others.arrays, others.metrics, count)


def _list_count_keys(record: Record) -> list[str]:
    """List the names of example counts: those of this app's trainings, then the usual ones."""
    keys = {seen.count_key: None for round_ in record for seen in round_.observations}
    return [*keys, *(name for name in COUNT_KEYS if name not in keys)]


def _arrays_of(seen: Observation) -> Mapping[str, NDArray[Any]]:
    if seen.status != "ok" or seen.arrays is None:
        return {}
    return seen.arrays


def _describe_array(reply: _NamedReply, name: str) -> tuple[tuple[int, ...] | None, str]:
    array = _read(reply, name)
    if array is None:
        return None, ""
    return array.shape, str(array.dtype)


def _read(reply: _NamedReply, name: str) -> NDArray[Any] | None:
    try:
        return reply.arrays[name]
    except RecordError:
        # Who judges says which file is damaged.
        return None


def _describe_value(value: Any) -> tuple[str, tuple[int, ...] | None]:
    """Return what a value in plaintext is, in words, and of a list how long it is."""
    if isinstance(value, list):
        kind = "list of texts" if any(isinstance(each, str) for each in value) else "list"
        return kind, (len(value),)
    if isinstance(value, bytes):
        return "bytes", (len(value),)
    if isinstance(value, str):
        return "text", None
    # A bool is an int in Python: it must be asked for first.
    if isinstance(value, bool) or value is None:
        return "yes or no", None
    return "number", None


def _count_reply(value: _NamedValue, node: str) -> None:
    value.replies += 1
    value.nodes.add(node)


def _look_at(reply: _NamedReply, found: Mapping[tuple[str, str], _NamedValue]) -> int:
    """Look what the numbers of a reply count; returns how many there were."""
    seen = 0
    for name in (*reply.arrays, *reply.values):
        value = found[reply.type, name]
        # What was no list of counts once is none.
        if value.looked_at and not (value.is_counts or value.is_one_an_example):
            continue
        numbers = _read_numbers(reply, name, value)
        if numbers is not None:
            seen += numbers.size
            _look_at_numbers(value, numbers, reply.count)
    return seen


def _read_numbers(reply: _NamedReply, name: str, named: _NamedValue) -> Numbers | None:
    """Return the numbers of an array of one axis or of a list, if there are not too many."""
    if name in reply.values:
        return _flatten(reply.values[name])
    if named.shape is None or len(named.shape) != 1 or math.prod(named.shape) > _MOST_OF_ONE:
        return None
    array = _read(reply, name)
    # f, i, u: floats and integers; texts and objects count nothing.
    if array is None or array.ndim != 1 or array.size > _MOST_OF_ONE or array.dtype.kind not in "fiu":
        return None
    return array.astype(np.float64)


def _flatten(value: Any) -> Numbers | None:
    if not isinstance(value, list) or not _FEWEST <= len(value) <= _MOST_OF_ONE:
        return None
    if not all(map(is_finite_number, value)):
        return None
    return np.array(value, dtype=np.float64)


def _look_at_numbers(value: _NamedValue, numbers: Numbers, count: float | None) -> None:
    value.looked_at += 1
    value.are_one_an_example += len(numbers) == count
    # rint of infinity is infinity: finite numbers are asked for, too.
    is_whole = bool((np.isfinite(numbers) & (numbers >= 0) & (numbers == np.rint(numbers))).all())
    # All zeros count nothing.
    if not is_whole or len(numbers) < _FEWEST or not numbers.any():
        return
    value.are_counts += 1
    value.add_up += numbers.sum() == count
    value.filled += int(np.count_nonzero(numbers))
    value.single += int(np.count_nonzero(numbers == 1))


def _add_unrecorded(record: Record, found: dict[tuple[str, str], _NamedValue]) -> None:
    """Add what the record names and does not hold, such as arrays in replies to evaluations."""
    counts: dict[str, set[float]] = {}
    count_keys = _list_count_keys(record)
    for others in record.others:
        if others.way == "reply":
            given = {others.metrics[name] for name in count_keys if is_finite_number(others.metrics.get(name))}
            counts.setdefault(others.type, set()).update(given)
    for entry in record.unrecorded:
        if entry["way"] != "reply":
            continue
        for array in entry["arrays"]:
            shape = tuple(array["shape"])
            value = _NamedValue(entry["type"], array["name"], "array", shape, array["dtype"], replies=entry["messages"])
            # As long as a count of examples that such replies state: likely a value for each example.
            if shape and shape[0] in counts.get(entry["type"], ()):
                value.looked_at = value.are_one_an_example = 1
            found.setdefault((value.type, value.name), value)
        for name in entry["metrics"]:
            value = _NamedValue(entry["type"], name, "value", replies=entry["messages"])
            found.setdefault((value.type, value.name), value)


def _as_row(value: _NamedValue, sizes: Sequence[_NamedValue]) -> dict[str, Any]:
    row: dict[str, Any] = {"type": value.type, "name": value.name, "kind": value.kind}
    if value.shape is not None:
        row["shape"] = list(value.shape)
    if value.dtype:
        row["dtype"] = value.dtype
    row |= {"replies": value.replies, "clients": len(value.nodes), "holds": _say_what_it_holds(value, sizes)}
    return row


def _say_what_it_holds(value: _NamedValue, sizes: Sequence[_NamedValue]) -> str:
    """Say what the numbers of a name are, as far as they show it; empty where they show nothing.

    `sizes` are the names that hold sizes of groups.
    """
    replies = f"{value.looked_at:,} replies that were looked at"
    if value.is_group_sizes:
        return (
            f"whole numbers that add up to the client's number of examples: group sizes; {value.single:,} of "
            f"{value.filled:,} groups in {replies} have a single example"
        )
    if value.is_one_an_example:
        return "as many values as the client has examples: one for each example"
    if value.is_counts and value.kind == "list" and value.single >= _MANY * value.filled:
        return (
            f"whole numbers; {value.single:,} of {value.filled:,} that are not 0 in {replies} are 1: if these numbers "
            "count examples, each 1 is a single example"
        )
    for other in sizes:
        if value.type != other.type or value.kind != "array" or not value.shape or not other.shape:
            continue
        # Beside group sizes an array with as many rows likely holds a statistic of each group.
        if value.shape[0] == other.shape[0]:
            return (
                f"a row for each group of {other.name}: if a group has a single example, a mean over it is that "
                "example itself"
            )
    return ""
