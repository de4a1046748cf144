"""Read the arrays of replies as they are: what may hold examples, statistics of them, or labels."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedattack.record import Record
from fedattack.threats.plaintext.spread import join_values, stack_arrays
from fedattack.threats.plaintext.values import Plain

SUM = "the sum"
"""What goes by the name of a node where the server sees sums alone."""

SMALL = 2**16
"""Numbers of an array that is read whatever its shape: class counts, means and prototypes are small."""

# float32 is what examples are known in: what is finer is compared with as few digits.
_FINEST = float(np.finfo(np.float32).eps)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sent:
    """An array of a reply.

    Attributes
    ----------
    node
        Whose it is; :data:`SUM` of what the server sees as a sum.
    type
        Of the message that is replied to: ``train``, or Flower's type of another one.
    name, values
        Its name, and its numbers in their shape; float32, with NaN for what is not finite.
    is_whole
        Whether its numbers are of a type of whole numbers, or all are whole.
    precision
        How exactly its type holds a number, as a part of this.
    """

    node: str
    type: str
    name: str
    values: NDArray[np.float32]
    is_whole: bool
    precision: float


def sent_arrays(record: Record, size: int | None) -> Iterator[Sent]:
    """Yield the arrays of replies that may hold something of examples, each that a node sent several times once.

    Parameters
    ----------
    size
        Numbers of an example; ``None`` where no example is known. Larger arrays than :data:`SMALL` are read if they
        hold rows of that many numbers.
    """
    seen: dict[tuple[str, str], list[bytes]] = {}
    for round_ in record:
        for reply in round_.observations:
            if reply.status == "ok" and reply.arrays:
                yield from _list_new(reply.node, "train", reply.arrays, reply.received or {}, size, seen)
        if record.view == "aggregate" and round_.aggregate:
            yield from _list_new(SUM, "train", round_.aggregate, round_.common or {}, size, seen)
    for others in record.others:
        if others.way == "reply" and others.arrays:
            for node in others.nodes:
                yield from _list_new(node, others.type, others.arrays, {}, size, seen)


def spread_arrays(replies: Iterable[Plain]) -> Iterator[Sent]:
    """Yield numbers and lists that belong together as arrays, each that a node sent several times once."""
    seen: set[tuple[str, str, bytes]] = set()
    for reply in replies:
        # The number of examples is none of a row.
        values = {name: value for name, value in reply.values.items() if value != reply.count}
        for name, array in join_values(values):
            contents = digest_of(array.tobytes())
            for node in reply.nodes:
                if (node, name, contents) not in seen:
                    seen.add((node, name, contents))
                    yield make_sent(node, reply.type, name, array)


def _list_new(
    node: str,
    type_: str,
    arrays: Mapping[str, NDArray[Any]],
    received: Mapping[str, NDArray[Any]],
    size: int | None,
    seen: dict[tuple[str, str], list[bytes]],
) -> Iterator[Sent]:
    """Yield the arrays of one reply that are neither as they were received nor as they were sent before."""
    kept: dict[str, Sent] = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not array.size or not _may_hold(array.shape, size):
            continue
        contents = array.tobytes()
        before = seen.setdefault((node, name), [])
        is_echo = name in received and received[name].dtype == array.dtype and received[name].tobytes() == contents
        digest = digest_of(contents)
        if is_echo or digest in before:
            continue
        before.append(digest)
        kept[name] = make_sent(node, type_, name, array)
        yield kept[name]
    # The arrays of a model are no numbers of one table.
    beside = {name: array for name, array in arrays.items() if name in kept and name not in received}
    for stem, joined in stack_arrays(beside):
        yield make_sent(node, type_, stem, joined)
    if size is not None:
        yield from _join_sparse(node, type_, kept, size)


def digest_of(contents: bytes) -> bytes:
    """Return 16 bytes that stand for these contents: no accident gives them to others."""
    return bytes(xxhash.xxh3_128_digest(contents))


def make_sent(node: str, type_: str, name: str, array: NDArray[Any]) -> Sent:
    """Take an array as one that a node sent, and say what its numbers are."""
    precision = _FINEST
    if array.dtype.kind == "f":
        precision = max(_FINEST, float(np.finfo(array.dtype).eps))
    with np.errstate(over="ignore", invalid="ignore"):
        values = array.astype(np.float32)
    values[~np.isfinite(values)] = np.nan
    is_whole = array.dtype.kind in "iu" or bool((values == np.rint(values)).all())
    return Sent(node, type_, name, values, is_whole, precision)


def _may_hold(shape: tuple[int, ...], size: int | None) -> bool:
    """Say whether an array is small, or holds rows of so many numbers: along axes, or one after another."""
    count = int(np.prod(shape))
    if count <= SMALL:
        return True
    return size is not None and count % size == 0 and (len(shape) == 1 or _has_rows(shape, size))


def _has_rows(shape: tuple[int, ...], size: int) -> bool:
    return size in shape or any(int(np.prod(shape[axis:])) == size for axis in range(len(shape)))


def rows_of(values: NDArray[Any], shape: tuple[int, ...]) -> list[Floats]:
    """Read an array as rows as long as an example, in each way that its shape allows: several of (rows, numbers).

    Parameters
    ----------
    shape
        Of an example.
    """
    size = int(np.prod(shape))
    if size < 2 or values.size % size or not values.size:
        return []
    ways = []
    of = values.shape
    if values.ndim == 1 or any(int(np.prod(of[axis:])) == size for axis in range(values.ndim)):
        ways.append(values.reshape(-1, size))
    # Images may come with their channels last.
    if len(shape) == 3 and of[-3:] == (*shape[1:], shape[0]) and of[-3:] != shape:
        ways.append(np.moveaxis(values, -1, -3).reshape(-1, size))
    for axis in range(values.ndim - 1):
        if of[axis] == size:
            ways.append(np.moveaxis(values, axis, -1).reshape(-1, size))
    return [way.astype(np.float64) for way in ways]


def _join_sparse(node: str, type_: str, arrays: Mapping[str, Sent], size: int) -> Iterator[Sent]:
    """Yield rows that a reply holds as indices and values: one alone, or several whose ends are a third array (CSR)."""
    flat = {name: sent for name, sent in arrays.items() if sent.values.ndim == 1 and np.isfinite(sent.values).all()}
    whole = {name: sent for name, sent in flat.items() if sent.is_whole and sent.values.min() >= 0}
    for name, indices in whole.items():
        columns = indices.values.astype(np.int64)
        if columns.max() >= size:
            continue
        for other, numbers in flat.items():
            if other == name or len(numbers.values) != len(columns):
                continue
            starts = _find_starts(whole, (name, other), columns)
            rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
            dense = np.zeros((len(starts) - 1, size), np.float32)
            if dense.size <= SMALL * size and len({*zip(rows.tolist(), columns.tolist(), strict=True)}) == len(columns):
                dense[rows, columns] = numbers.values
                yield Sent(node, type_, f"{other} at {name}", dense, False, numbers.precision)


def _find_starts(whole: Mapping[str, Sent], taken: tuple[str, str], columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where rows begin, (rows + 1,): by an array that ascends from 0 to the number of values, else one row."""
    for name, sent in whole.items():
        starts = sent.values.astype(np.int64)
        ascends = starts[0] == 0 and starts[-1] == len(columns) and (np.diff(starts) >= 0).all()
        if name not in taken and len(starts) > 1 and ascends:
            return starts
    return np.array([0, len(columns)])
