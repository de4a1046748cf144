"""How much memory the work of a process may take: one default, and how sizes are read and shown."""

import mmap
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import ConfigError

MEMORY = 2 * 2**30
"""Bytes that the work of one process may hold, beside the examples and what Python and torch take (0.4 GiB)."""

LEAST = 64 * 10**6
"""Bytes below which no work is worth starting."""

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def read_size(text: str) -> int:
    """Read a size such as ``2GiB`` or ``300MB``; returns bytes.

    Raises
    ------
    ConfigError
        If it is none, or less than 64 MB.
    """
    found = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError("expected a size such as 2GiB or 300MB")
    size = int(float(found[1]) * _UNITS[found[2]])
    if size < LEAST:
        raise ConfigError("expected a size of at least 64MB")
    return size


def shown_size(size: float) -> str:
    """Return a number of bytes for people."""
    return f"{size / 2**30:.2g} GiB" if size >= 2**30 else f"{size / 10**6:.0f} MB"


def let_go(array: NDArray[Any]) -> None:
    """Give back the memory in which the system keeps what was read of an array on disk; others stay as they are."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)
