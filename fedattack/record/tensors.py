"""Write a safetensors file without copying the arrays, and hash what was written on the way."""

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedattack.base.files import atomic_file
from fedattack.record.format import Arrays

# The format's names of NumPy's types; an array of any other type cannot be kept.
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
}

MAX_HEADER = 100_000_000
"""Bytes of the longest table of arrays that the safetensors library reads."""


def write_tensors(path: Path, tensors: Arrays, *, sha256: bool = False) -> dict[str, Any]:
    """Write ``tensors`` to ``path``, whole or not at all; returns what the index says of the file.

    These are its size in ``bytes`` and its checksum ``xxh3``; with ``sha256`` also the SHA-256, which takes four times
    as long and which nobody can forge.

    The safetensors library copies every array three times, partly while it holds Python's global lock, and the file
    would then have to be read again for its checksum. The file is the library's format, and the library reads it.

    Raises
    ------
    OSError
        If the disk is full or the folder cannot be written; the partial file is removed first.
    ValueError
        If the names of the arrays are longer than the format has room for.
    """
    # Wide types first, so that every array starts at a multiple of its width.
    ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize))
    header: dict[str, Any] = {}
    offset = 0
    for name, array in ordered.items():
        end = offset + array.nbytes
        header[name] = {"dtype": DTYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    # The format wants the table's length to be a multiple of 8, filled with spaces.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise ValueError(f"the names of {len(header)} arrays take {len(text):,} bytes, and a file has room for fewer")
    digests: dict[str, Any] = {"xxh3": xxhash.xxh3_128()}
    if sha256:
        digests["sha256"] = hashlib.sha256()
    with atomic_file(path) as file:
        parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little") + text]
        parts += map(raw_bytes, ordered.values())
        # `writelines` gives the arrays' own memory to the kernel, without a copy of the file in memory.
        file.writelines(parts)
        file.flush()
        # Hashed while the system writes what was flushed.
        for part in parts:
            for digest in digests.values():
                digest.update(part)
        os.fsync(file.fileno())
    return {"bytes": 8 + len(text) + offset, **{name: digest.hexdigest() for name, digest in digests.items()}}


def raw_bytes(array: NDArray[Any]) -> memoryview:
    """View an array's bytes in C order and little endian; copies only an array that is neither."""
    plain = np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C")
    # A view as bytes: `data` of other types has an itemsize that hashing refuses.
    return plain.reshape(-1).view(np.uint8).data


def checksum(arrays: Iterable[NDArray[Any]]) -> str:
    """Hash the bytes of some arrays, one after the other."""
    digest = xxhash.xxh3_128()
    for array in arrays:
        digest.update(raw_bytes(array))
    return digest.hexdigest()
