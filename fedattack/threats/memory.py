"""How much memory an attack may take: one default, and how sizes are read and shown."""

import ctypes
import os
import re

from fedattack.errors import ConfigError

MEMORY = 2 * 2**30
"""Bytes that the work of one process may hold, beside the examples and what Python and torch take (0.4 GiB)."""

LEAST = 64 * 10**6
"""Bytes below which no attack is worth starting."""

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


_MMAP_THRESHOLD = -3
_LARGE = 4 * 2**20


def give_back_large_blocks() -> None:
    """Make the C library give each large block back to the system as soon as it is freed, where it is glibc.

    Otherwise it keeps such blocks for later, and a process takes up to a third more than it holds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
