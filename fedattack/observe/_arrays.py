"""Read Flower's arrays without copying them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedattack.untrusted import view_npy

# The key under which Flower sends an empty list of legacy parameters.
_EMPTY = "_empty"


def view_bytes(data: bytes) -> NDArray[Any]:
    """Interpret what a client sent as a read-only array on the same memory.

    Flower's bytes are immutable and replaced rather than changed, also by strategies that edit replies in place, so
    that a view is as safe as a copy and costs nothing. Bytes that are no ``.npy`` file, such as the trees that some
    strategies exchange, become an array of bytes.

    Raises
    ------
    ValueError
        If they are a damaged array, or hold Python objects.
    """
    return view_npy(data) if data.startswith(npy.MAGIC_PREFIX) else np.frombuffer(data, dtype=np.uint8)


def view_array(array: Array) -> NDArray[Any]:
    """View a Flower array; one of an unknown serialisation becomes its bytes."""
    if array.stype not in ("", "numpy.ndarray"):
        return np.frombuffer(array.data, dtype=np.uint8)
    return view_bytes(array.data)


def view_records(records: Mapping[str, ArrayRecord], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """View all arrays of a message by name; names of several records are prefixed by the record's key."""
    prefix = "{key}." if len(records) > 1 else ""
    found = {
        prefix.format(key=key) + name: view_array(array)
        for key, record in records.items()
        for name, array in record.items()
        if name != _EMPTY
    }
    return rename(found, names)


def rename(arrays: Mapping[str, NDArray[Any]], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """Give nameless legacy arrays (``"0"``, ``"1"`` …) the names that the user stated, if the numbers agree."""
    if names is None or len(names) != len(arrays):
        return dict(arrays)
    return dict(zip(names, arrays.values(), strict=True))


def view_tensors(tensors: Iterable[bytes], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """View legacy ``Parameters.tensors``."""
    return rename({str(index): view_bytes(data) for index, data in enumerate(tensors)}, names)
