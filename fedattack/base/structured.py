"""Examples of any structure as one array: what a model takes of an example besides one array of numbers.

A model may be called with several tensors: by position, by keyword, in dicts and tuples. Such a batch is one NumPy
array (n,) of a structured type. Each field is one tensor; its name is its *place* in the call:

- ``0``, ``1`` … by position, ``input_ids`` by keyword;
- ``0/pixels`` in a dict, ``0/#1`` in a tuple or a list.

So examples are indexed, hashed, compared and saved as any array is, without pickle, and keep their types. What a model
takes as one array of floating-point numbers by position is that array, without any field.

Sequences may be padded: where there is an ``attention_mask``, what follows its last 1 is no part of the example.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

# Python's whole numbers may be larger than any floating-point number.
_LARGEST_WHOLE = 2**1000

SEPARATOR = "/"
MASK = "attention_mask"
LABELS = ("labels", "label")
"""What a model that computes its own loss calls the labels."""

UNLABELLED = -100
"""The label of a token that has none."""

MOST = 64
"""Tensors that one example may have."""

_ITEM = "#"
_PLACE = re.compile(r"(?:[A-Za-z_]\w*|\d{1,2})(?:/[ -.0-~]+)*", re.ASCII)

T = TypeVar("T")


def places(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """List everything in a call's arguments by its place, but ``None``; a TypeError if a dict's key makes no place."""
    found: dict[str, Any] = {}
    for index, value in enumerate(args):
        _list(str(index), value, found)
    for name, value in kwargs.items():
        _list(name, value, found)
    return found


def _list(place: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str) or not _makes_place(key):
                raise TypeError(f"{place} has the key {key!r}")
            _list(f"{place}{SEPARATOR}{key}", part, found)
    elif type(value) in (list, tuple):
        for index, part in enumerate(value):
            _list(f"{place}{SEPARATOR}{_ITEM}{index}", part, found)
    elif value is not None:
        found[place] = value


def _makes_place(key: str) -> bool:
    return key.isascii() and key.isprintable() and SEPARATOR not in key and not key.startswith(_ITEM) and bool(key)


def arguments(leaves: Mapping[str, T]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call in which each of the leaves is at its place; lists become tuples.

    Examples
    --------
    >>> arguments({"0": 1, "mask": 2, "pair/#0": 3, "pair/#1": 4})
    ([1], {'mask': 2, 'pair': (3, 4)})
    """
    tree: dict[str, Any] = {}
    for place, leaf in leaves.items():
        *way, last = place.split(SEPARATOR)
        node = tree
        for part in way:
            node = node.setdefault(part, {})
        node[last] = leaf
    grown = {name: _grow(node) for name, node in tree.items()}
    positions = [int(name) for name in grown if name.isdigit()]
    args = [grown.pop(str(index), None) for index in range(max(positions, default=-1) + 1)]
    return args, grown


def _grow(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    parts = {name: _grow(part) for name, part in node.items()}
    if all(name.startswith(_ITEM) for name in parts):
        return tuple(parts.values())
    return parts


def pack(leaves: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Make one array (n,) of arrays (n, …) by their places; a ValueError if there is none, or not of one length."""
    lengths = {len(leaf) for leaf in leaves.values()}
    if len(lengths) != 1 or len(leaves) > MOST:
        raise ValueError(f"expected 1 to {MOST} arrays of one length, got {len(leaves)} of {sorted(lengths)}")
    fields = [(place, leaf.dtype.newbyteorder("="), leaf.shape[1:]) for place, leaf in leaves.items()]
    packed = np.zeros(lengths.pop(), np.dtype(fields))
    for place, leaf in leaves.items():
        packed[place] = leaf
    return packed


def fields(x: NDArray[Any]) -> tuple[str, ...]:
    """Return the places of what an example holds; none where it is one array."""
    return x.dtype.names or ()


def leaves_of(x: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the arrays (n, …) by their places; one array is the first argument."""
    if not fields(x):
        return {"0": x}
    # One example that lies among others counts as contiguous, although torch does not take it so.
    return {place: np.array(x[place], order="C") for place in fields(x)}


def without(x: NDArray[Any], place: str | None) -> NDArray[Any]:
    """Return examples without what stands at a place; one array of floating-point numbers where that is all."""
    leaves = leaves_of(x)
    leaves.pop(place or "", None)
    if [*leaves] == ["0"] and leaves["0"].dtype.kind == "f" and leaves["0"].ndim > 1:
        return leaves["0"]
    return pack(leaves)


def fault(x: NDArray[Any]) -> str:
    """Say what is wrong with examples that somebody handed over; empty if nothing is."""
    if not fields(x):
        if x.dtype.kind not in "biuf":
            return f"values that are no numbers (dtype {x.dtype})"
        # A few bytes of these may be any number of examples.
        if x.shape[:1] != (0,) and not x.size:
            return "examples without any number"
        return ""
    if x.ndim != 1 or len(fields(x)) > MOST:
        return f"an array of {x.ndim} axes with {len(fields(x))} fields; expected one axis and at most {MOST}"
    for place in fields(x):
        base = x.dtype[place].base
        # Torch takes numbers in this machine's own order of bytes, of at most 8.
        if base.kind not in "biuf" or not base.isnative or base.itemsize > 8 or not _PLACE.fullmatch(place):
            return f"a field {place!r} of {base}; expected numbers by name"
        if 0 in x.dtype[place].shape:
            return f"a field {place!r} without any number"
        if any(other.startswith(f"{place}{SEPARATOR}") for other in fields(x)):
            return f"a field {place!r}, and others within it"
    return ""


def finite(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Say of each example whether all its numbers are finite."""
    kept = np.ones(len(x), dtype=np.bool_)
    for leaf in leaves_of(x).values():
        kept &= np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
    return kept


def flat(x: NDArray[Any]) -> NDArray[Any]:
    """Return all numbers of each example in a row, (n, numbers)."""
    return np.concatenate([leaf.reshape(len(x), -1) for leaf in leaves_of(x).values()], axis=1)


def searchable(x: NDArray[Any]) -> NDArray[Any]:
    """Return the floating-point numbers of each example, which a gradient could move: in a row, (n, numbers).

    One array is returned as it is, (n, …). What holds ids and masks alone has none.
    """
    if not fields(x):
        return x
    parts = [np.zeros((len(x), 0), np.float32)]
    for place in list_searchable(x):
        parts.append(np.asarray(x[place], np.float32).reshape(len(x), -1))
    return np.concatenate(parts, axis=1)


def list_searchable(x: NDArray[Any]) -> list[str]:
    """List the places of the floating-point numbers in an example of several arrays, but for labels and masks."""
    found = []
    for place in fields(x):
        if x.dtype[place].base.kind == "f" and place.split(SEPARATOR)[-1] not in (MASK, *LABELS):
            found.append(place)
    return found


def contents(x: NDArray[Any]) -> Iterator[bytes]:
    """Give the bytes of each example, without padding, and as float32 and int64: what two of it have in common."""
    leaves = {}
    for place, leaf in sorted(leaves_of(x).items()):
        if leaf.dtype.kind == "f":
            leaves[place] = np.ascontiguousarray(leaf, dtype=np.float32)
        else:
            leaves[place] = np.ascontiguousarray(leaf, dtype=np.int64)
    width, lengths = _width(x.dtype), _lengths(x)
    for row in range(len(x)):
        parts = []
        for leaf in leaves.values():
            padded = width is not None and leaf.shape[1:2] == (width,)
            values = leaf[row]
            if padded:
                values = values[: lengths[row]]
            parts.append(values.tobytes())
        yield b"".join(parts)


def alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Say whether examples of two arrays (…,) of structured type can stand in one: they differ in padding at most."""
    return one.dtype == other.dtype or (fields(one) != () and _form(one.dtype) == _form(other.dtype))


def stack_examples(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Put examples together, each of no axis or all of one shape; sequences are padded to the longest."""
    widest = max(rows, key=lambda row: _width(row.dtype) or 0)
    if all(row.dtype == widest.dtype for row in rows):
        return np.stack(rows)
    padding = _padding(rows, widest.dtype)
    together = np.zeros(len(rows), widest.dtype)
    for place, value in padding.items():
        together[place] = value
    for index, row in enumerate(rows):
        for place in fields(widest):
            if place in padding:
                together[place][index, : row.dtype[place].shape[0]] = row[place]
            else:
                together[place][index] = row[place]
    return together


def padded_alike(one: NDArray[Any], other: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both arrays (n,), (m,) of examples with their sequences padded to the longest of either.

    Raises a ValueError if examples of the two cannot stand in one array.
    """
    if not fields(one) and not fields(other):
        return one, other
    if not alike(one, other):
        kinds = [", ".join(fields(x)) or str(x.dtype) for x in (one, other)]
        raise ValueError(f"expected examples of one structure; got {' and '.join(kinds)}")
    rows = [examples[row, ...] for examples in (one, other) for row in range(len(examples))]
    together = stack_examples(rows)
    return together[: len(one)], together[len(one) :]


def _padding(rows: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return by field what sequences are padded with: as the model's own batches are, if one shows it."""
    width = _width(dtype)
    found: dict[str, Any] = {}
    sequences = [place for place in dtype.names or () if dtype[place].shape[:1] == (width,)]
    for row in rows:
        if not _lengths(row[None])[0] < row.dtype[sequences[0]].shape[0]:
            continue
        for place in sequences:
            found.setdefault(place, row[place][-1])
    defaults = {}
    for place in sequences:
        defaults[place] = 0
        if place in LABELS:
            defaults[place] = UNLABELLED
    return defaults | found


def _mask(dtype: np.dtype[Any]) -> str | None:
    for place in dtype.names or ():
        if place.split(SEPARATOR)[-1] == MASK and len(dtype[place].shape) == 1:
            return place
    return None


def _width(dtype: np.dtype[Any]) -> int | None:
    """Return how long the sequences are padded to, if there are any."""
    mask = _mask(dtype)
    if mask is None:
        return None
    return int(dtype[mask].shape[0])


def _lengths(x: NDArray[Any]) -> NDArray[np.int64]:
    """Return up to where each sequence is attended to; zeros where nothing is padded."""
    mask = _mask(x.dtype)
    if mask is None:
        return np.zeros(len(x), np.int64)
    attended = x[mask] != 0
    last = attended.shape[1] - np.argmax(attended[:, ::-1], axis=1)
    return np.asarray(np.where(attended.any(axis=1), last, attended.shape[1]))


def _form(dtype: np.dtype[Any]) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
    """Return the fields of a type, with 0 where sequences are padded."""
    width = _width(dtype)
    form = []
    for place in dtype.names or ():
        base, shape = dtype[place].base, dtype[place].shape
        if width is not None and shape[:1] == (width,):
            shape = (0, *shape[1:])
        form.append((place, base, shape))
    return form


def is_finite_number(value: Any) -> bool:
    """Say whether a value that somebody else sent is a finite number, and none that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) <= _LARGEST_WHOLE
