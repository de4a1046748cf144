"""Shards: what each client trains on, in one file, for processes that then need not load and divide all data.

Flower starts many processes, and the libraries that read and divide data take each of them seconds to import.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from fedattack.base.files import make_private, open_private
from fedattack.runs.settings import StudySettings
from simulations.architectures import Task

Records = tuple[NDArray[np.float32], NDArray[Any]]
"""Examples (n, …), and their labels or targets (n,)."""


@dataclass(frozen=True)
class Shards:
    """Clients' examples in a file, one client after another, of which client i has ``sizes[i]``."""

    file: str
    task: Task
    sizes: list[int]

    def records_of(self, client: int) -> Records:
        """Read one client's examples and no others."""
        start = sum(self.sizes[:client])
        rows = slice(start, start + self.sizes[client])
        with safe_open(self.file, framework="numpy") as arrays:
            return np.array(arrays.get_slice("x")[rows]), np.array(arrays.get_slice("y")[rows])


def write_shards(settings: StudySettings, task: Task, shards: Sequence[Records]) -> None:
    """Write each client's examples to the file that the settings name."""
    xs, ys = zip(*shards, strict=True)
    contents = {"about": asdict(task), "sizes": list(map(len, ys))}
    arrays = {"x": np.concatenate(xs), "y": np.concatenate(ys)}
    file = Path(settings.dealt)
    make_private(file.parent)
    open_private(file, "wb").close()
    save_file(arrays, file, metadata={"study": _identity(settings), "told": json.dumps(contents)})


def read_shards(settings: StudySettings) -> Shards | None:
    """Find what was dealt for this very study, if anything was: on a client's own machine there is no such file."""
    if not os.access(settings.dealt, os.R_OK):
        return None
    with safe_open(settings.dealt, framework="numpy") as arrays:
        metadata = arrays.metadata()
    if metadata["study"] != _identity(settings):
        return None
    contents = json.loads(metadata["told"])
    about = contents["about"]
    task = Task(about["name"], tuple(about["input_shape"]), about["classes"], about["task"])
    return Shards(settings.dealt, task, contents["sizes"])


def _identity(settings: StudySettings) -> str:
    return json.dumps(settings.study, sort_keys=True)
