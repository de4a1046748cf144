"""Read Flower's arrays without copying them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedattack.base.untrusted import view_npy

# The key under which Flower sends an empty list of legacy parameters.
_EMPTY = "_empty"


def view_bytes(data: bytes) -> NDArray[Any]:
    """Interpret what a client sent as a read-only array on the same memory.

    A view is as safe as a copy and costs nothing: Flower's bytes are immutable, and strategies that edit replies in
    place replace them. Bytes that are no ``.npy`` file, such as the trees that some strategies exchange, become an
    array of bytes.

    Raises
    ------
    ValueError
        If they are a damaged array, or hold Python objects.
    """
    if data.startswith(npy.MAGIC_PREFIX):
        return view_npy(data)
    return np.frombuffer(data, dtype=np.uint8)


def view_array(array: Array) -> NDArray[Any]:
    """View a Flower array; one of an unknown serialisation becomes its bytes.

    Raises
    ------
    ValueError
        As :func:`view_bytes` does.
    """
    # Flower writes arrays by ``numpy.save`` and says so. Mods may put other bytes in their place, such as ciphertexts.
    if array.stype not in ("", "numpy.ndarray"):
        return np.frombuffer(array.data, dtype=np.uint8)
    return view_bytes(array.data)


def view_records(records: Mapping[str, ArrayRecord], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """View all arrays of a message by name; names of several records are prefixed by the record's key.

    Raises
    ------
    ValueError
        As :func:`view_bytes` does.
    """
    arrays = {}
    for key, record in records.items():
        # The name that a model's own parameter has, where there is one model: an attack loads it so.
        prefix = f"{key}." if len(records) > 1 else ""
        for name, array in record.items():
            if name != _EMPTY:
                arrays[prefix + name] = view_array(array)
    return rename(arrays, names)


def rename(arrays: Mapping[str, NDArray[Any]], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """Give nameless legacy arrays (``"0"``, ``"1"`` …) the names that the user stated, if the numbers agree."""
    if names is None or len(names) != len(arrays):
        return dict(arrays)
    return dict(zip(names, arrays.values(), strict=True))


def view_tensors(tensors: Iterable[bytes], names: Sequence[str] | None) -> dict[str, NDArray[Any]]:
    """View legacy ``Parameters.tensors``.

    Raises
    ------
    ValueError
        As :func:`view_bytes` does.
    """
    return rename({str(index): view_bytes(data) for index, data in enumerate(tensors)}, names)
