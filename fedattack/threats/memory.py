"""How much memory an attack may take: the sizes of :mod:`fedattack.memory`, and how a process gives memory back."""

import ctypes
import os

from fedattack.memory import LEAST, MEMORY, read_size, shown_size

__all__ = ["LEAST", "MEMORY", "give_back_large_blocks", "read_size", "shown_size"]

_MMAP_THRESHOLD = -3
_LARGE = 4 * 2**20


def give_back_large_blocks() -> None:
    """Make the C library give each large block back to the system as soon as it is freed, where it is glibc.

    Otherwise it keeps such blocks for later, and a process takes up to a third more than it holds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
