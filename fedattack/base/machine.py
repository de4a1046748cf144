"""What this machine, or the container that this process is in, has for work: CPUs, and memory and its bounds."""

import ctypes
import mmap
import os
import re
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError

MEMORY = 2 * 2**30
"""Bytes that the work of one process may hold, beside the examples and what Python and torch take (0.4 GiB)."""

LEAST = 64 * 10**6
"""Bytes below which no work is worth starting."""

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}

_GROUPS = Path("/sys/fs/cgroup")
_MMAP_THRESHOLD = -3
_LARGE = 4 * 2**20

# Files of drivers in Linux: of NVIDIA, of its small boards, of Windows' subsystem, of AMD.
_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvmap", "/dev/dxg", "/dev/kfd")

# How often a process looks whether its parent is still there.
_LOOK_SECONDS = 0.5


def usable_cpus() -> int:
    """Count the CPUs of this process; ``PYTHON_CPU_COUNT`` says another number, as for Python from 3.13 on."""
    # As cgroups or a batch system restrict it, which os.cpu_count() does not see.
    stated = os.environ.get("PYTHON_CPU_COUNT", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def may_have_gpu() -> bool:
    """Whether PyTorch may find a GPU here, as far as that is seen without importing it."""
    return not sys.platform.startswith("linux") or any(map(os.path.exists, _GPUS))


def count_processor_seconds() -> float:
    """Return the processor time that this process and all that it started have taken since they began."""
    import psutil  # an observed server and a client do without it

    ours = os.times()
    total = ours.user + ours.system + ours.children_user + ours.children_system
    # Those that still run are not among the system's count of children.
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = child.cpu_times()
            total += times.user + times.system
    return total


def free_memory(groups: Path = _GROUPS) -> float:
    """Return how many bytes are free, by a container's bounds in Linux' ``groups``, too; caches of files are free."""
    import psutil  # an observed server and a client do without it

    free = float(psutil.virtual_memory().available)
    # cgroups of version 2, and of version 1.
    bounds = (
        (groups, "memory.max", "memory.current"),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    for folder, most, taken in bounds:
        try:
            inactive = re.search(
                r"^(?:total_)?inactive_file ([0-9]+)$", (folder / "memory.stat").read_text(), re.MULTILINE
            )
            # Caches of files count as used, but the system gives them back on demand.
            used = int((folder / taken).read_text())
            if inactive:
                used -= int(inactive[1])
            free = min(free, int((folder / most).read_text()) - used)
        except (OSError, ValueError):
            # There is no such group, or it has no bound: that is called max.
            continue
    return max(free, 0.0)


def read_size(text: str) -> int:
    """Read a size such as ``2GiB`` or ``300MB`` in bytes; a ConfigError if it is none, or less than 64 MB."""
    match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError("expected a size such as 2GiB or 300MB")
    size = int(float(match[1]) * _UNITS[match[2]])
    if size < LEAST:
        raise ConfigError("expected a size of at least 64MB")
    return size


def shown_size(size: float) -> str:
    """Return a number of bytes for people."""
    if size >= 2**30:
        return f"{size / 2**30:.2g} GiB"
    return f"{size / 10**6:.0f} MB"


def let_go(array: NDArray[Any]) -> None:
    """Give back the memory in which the system keeps what was read of an array on disk; others stay as they are."""
    base: Any = array
    while isinstance(base, np.ndarray | memoryview):
        # Views of views: at the end is what owns the memory.
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        # The pages are read again from the file when they are needed.
        base.madvise(mmap.MADV_DONTNEED)


@cache
def end_with_parent(parent: int) -> None:
    """End this process soon after the one that started it, ``parent``, is gone, however that ended.

    It does nothing where this process is ``parent`` itself, as where there are no processes and work is done in turn.
    """
    if os.getpid() == parent:
        return

    def watch() -> None:
        # Orphans get another parent, such as init.
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="fedattack-parent", daemon=True).start()


def give_back_large_blocks() -> None:
    """Make the C library give each large block back to the system as soon as it is freed, where it is glibc.

    Otherwise it keeps such blocks for later, and a process takes up to a third more than it holds.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        # Blocks above the threshold are mapped, and unmapped when they are freed.
        mallopt(_MMAP_THRESHOLD, _LARGE)
