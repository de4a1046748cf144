"""What this machine, or the container that this process is in, has for work: CPUs and memory."""

import os
import re
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """Count the CPUs of this process; ``PYTHON_CPU_COUNT`` says another number, as for Python from 3.13 on."""
    stated = os.environ.get("PYTHON_CPU_COUNT", "")
    if stated.isdecimal() and int(stated):
        return int(stated)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory(groups: Path = _GROUPS) -> float:
    """Return how many bytes are free. What the system holds of files for later is free.

    Parameters
    ----------
    groups
        Where Linux says what bounds a container has.
    """
    free = float(psutil.virtual_memory().available)
    bounds = (
        (groups, "memory.max", "memory.current"),
        (groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    for folder, most, taken in bounds:
        try:
            held = re.search(r"^(?:total_)?inactive_file ([0-9]+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
            used = int((folder / taken).read_text()) - (int(held[1]) if held else 0)
            free = min(free, int((folder / most).read_text()) - used)
        except (OSError, ValueError):
            # There is no such group, or it has no bound: that is called max.
            continue
    return max(free, 0.0)
