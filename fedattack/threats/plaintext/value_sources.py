"""Rows of numbers in replies that may be values of single examples, and what examples give, to look for in these."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedattack.base.structured import is_finite_number
from fedattack.record import Observation, Record, Round
from fedattack.threats.plaintext.values import families_of

OF_CLIENT, OF_SERVER = "the model that the client sends", "a model that the server sends"
"""Under which model examples give values."""

# Rows of one name that a node sends in a reply, and numbers of these.
_MOST_ROWS, _MOST_NUMBERS = 2**16, 2**20

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rows:
    """Numbers of one reply that may be values of examples, a row for each.

    Attributes
    ----------
    node, type, name
        Whose reply it is, to which type of message, and under which name they stand.
    seq
        Index of the round; of a message beside training that of the round before which it stands.
    values
        (rows, width).
    precision
        How exactly a number is held, as a part of it.
    by_example
        Whether there are as many rows as the reply says that there are examples.
    """

    node: str
    type: str
    name: str
    seq: int
    values: Floats
    precision: float
    by_example: bool


@dataclass(frozen=True, eq=False)
class Given:
    """What known examples give under one model.

    Attributes
    ----------
    what, model
        What the values are, and under which model.
    ways
        How many models of this kind the sender may have had.
    values, errors
        (examples, width): the values, and how far apart two computations of them may be.
    """

    what: str
    model: str
    ways: int
    values: Floats
    errors: Floats


class Computes(Protocol):
    """Computes what known examples give."""

    def give(self, rows: Rows) -> Iterator[Given]:
        """Yield what examples give that may stand in rows, of a width that fits, under models that the sender had."""


def list_rows(record: Record) -> Iterator[Rows]:
    """Yield what may be values of examples in replies: lists, families of numbers, single numbers, and arrays.

    Arrays that have the name of one that clients were sent are a model's. Whole numbers are counts.
    """
    count_keys: set[str] = set()
    for round_ in record:
        for reply in round_.observations:
            count_keys.add(reply.count_key)
            if reply.status == "ok":
                yield from _rows_of_numbers(reply.node, "train", round_.seq, reply.metrics, reply.count)
                yield from _rows_of_arrays(reply.node, "train", round_.seq, _list_beside(reply, round_), reply.count)
    for others in record.others:
        if others.way == "reply":
            count = next((others.metrics[name] for name in sorted(count_keys) if name in others.metrics), None)
            for node in others.nodes:
                yield from _rows_of_numbers(node, others.type, others.line, others.metrics, count)
                yield from _rows_of_arrays(node, others.type, others.line, others.arrays, count)


def _list_beside(reply: Observation, round_: Round) -> dict[str, NDArray[Any]]:
    """Read the arrays of a reply that are none of the model that it answers."""
    models = {*(reply.received or {}), *(round_.common or {})}
    return {name: (reply.arrays or {})[name] for name in reply.arrays or {} if name not in models}


def _rows_of_numbers(node: str, type_: str, seq: int, values: Mapping[str, Any], count: Any) -> Iterator[Rows]:
    families = families_of(values)
    members = {name for names in families.values() for name in names}
    tables: dict[str, Any] = {}
    for stem, names in families.items():
        tables[stem] = [float(values[name]) for name in names]
    for name, value in values.items():
        if name not in members:
            tables[name] = [value] if is_finite_number(value) else value
    for name, table in tables.items():
        if isinstance(table, list) and table:
            array = _as_table(table)
            if array is not None:
                yield from _make_rows(node, type_, name, seq, array, float(np.finfo(np.float32).eps), count)


def _as_table(values: list[Any]) -> Floats | None:
    """Return a list of numbers, or of lists of as many numbers each, as a table; ``None`` for another one."""
    widths = {len(value) if isinstance(value, list) else 0 for value in values}
    if len(widths) != 1 or len(values) > _MOST_ROWS:
        return None
    rows = values if widths != {0} else [[value] for value in values]
    if not all(is_finite_number(number) for row in rows for number in row):
        return None
    return np.array(rows, dtype=np.float64)


def _rows_of_arrays(node: str, type_: str, seq: int, arrays: Mapping[str, NDArray[Any]], count: Any) -> Iterator[Rows]:
    for name, array in arrays.items():
        if array.dtype.kind == "f" and array.size and array.size <= _MOST_NUMBERS:
            table = array.reshape(len(array) if array.ndim else 1, -1).astype(np.float64)
            precision = max(float(np.finfo(array.dtype).eps), float(np.finfo(np.float32).eps))
            yield from _make_rows(node, type_, name, seq, table, precision, count)


def _make_rows(
    node: str, type_: str, name: str, seq: int, table: Floats, precision: float, count: Any
) -> Iterator[Rows]:
    """Yield a table, unless all its numbers are whole ones, as counts and labels are."""
    by_example = len(table) > 1 and len(table) == count
    if len(distinct_rows(table)):
        yield Rows(node, type_, name, seq, table[:_MOST_ROWS], precision, by_example)


def distinct_rows(table: Floats) -> Floats:
    """Return the rows that are finite and not whole numbers, each once."""
    finite = table[np.isfinite(table).all(axis=1)]
    kept = finite[(finite != np.rint(finite)).any(axis=1)]
    # Sorting one row would take most of the time.
    return kept if len(kept) < 2 else np.asarray(np.unique(kept, axis=0))
