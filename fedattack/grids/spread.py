"""Make cells on the machines of a Ray cluster: each in a folder there, whose files come back through Ray."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.cluster import Cluster, Pieces, connect
from fedattack.base.errors import FedAttackError, RunError
from fedattack.base.files import make_private, open_private
from fedattack.grids.cell import Job, Request
from fedattack.runs.private import guarded_folder
from fedattack.runs.settings import leads_out, nodes_of
from fedattack.runs.watch import Watch

Files = Mapping[str, NDArray[np.uint8]]

# What Flower takes beside its clients, and each client: most of it is torch.
_FLOWER, _CLIENT = 2 * 2**30, 2**30


@dataclass(frozen=True)
class Packed:
    """A cell that was made elsewhere: its files by path, and how long it took."""

    files: Files
    minutes: float

    def write(self, folder: Path) -> None:
        """Write the files into a new folder."""
        make_private(folder)
        for name, content in self.files.items():
            path = folder / name
            # The cluster's machines are trusted with work, not with this machine's files.
            if not path.resolve().is_relative_to(folder.resolve()):
                raise RunError(f"a machine of the cluster sent the file {name!r}, which leads out of the cell's folder")
            make_private(path.parent)
            with open_private(path, "wb") as file:
                file.write(content.data)


def make_on_cluster(
    jobs: Sequence[Job], audit: Callable[[Job, str, Watch], None], request: Request
) -> Iterator[tuple[Job, Callable[[], float]]]:
    """Make cells on a cluster; yields each when it ends, with what puts it into its folder or raises why it cannot."""
    paths: set[str] = set()
    for job in jobs:
        # Absolute paths must be there on all machines.
        paths.update(filter(lambda path: path.startswith("/"), leads_out(job.settings)))
    cluster = connect(request.cluster, sorted(paths))
    cpus = _choose_cpus(cluster, jobs)
    room = _FLOWER + cpus * _CLIENT + request.bytes_of_memory
    gpus = int(request.device.startswith("cuda"))
    shared = (audit, request.device, request.keep_records, cpus)
    pieces = Pieces(cluster, _make, shared, jobs, cpus=cpus, memory=room, gpus=gpus)
    try:
        for index, made in pieces.as_they_end():
            yield jobs[index], partial(_unpack, made, jobs[index].folder)
    finally:
        pieces.stop()


def _unpack(made: Packed | FedAttackError, folder: Path) -> float:
    """Put what came from elsewhere into its folder; returns how many minutes it took."""
    if isinstance(made, FedAttackError):
        raise made
    made.write(folder)
    return made.minutes


def _choose_cpus(cluster: Cluster, jobs: Sequence[Job]) -> int:
    """Give a cell a CPU for each client that trains at the same time, where the smallest machine has so many."""
    clients = max(nodes_of(job.settings) for job in jobs)
    # Pieces of one size: the cell with most clients decides.
    return max(1, min(clients, min(cluster.cpus, default=1)))


def _make(shared: tuple[Callable[[Job, str, Watch], None], str, bool, int], job: Job) -> Packed:
    """Make a cell on this machine, of which nothing is left behind."""
    audit, device, keep_records, cpus = shared
    # Flower's clients, and the attacks' workers, take no more than Ray gave.
    os.environ["PYTHON_CPU_COUNT"] = str(cpus)
    started = time.monotonic()
    with guarded_folder(Path(gettempdir()), "fedattack-") as scratch:
        here = replace(job, folder=scratch / job.folder.name)
        try:
            audit(here, device, Watch())
        except FedAttackError as problem:
            # Whoever reads it does not know this folder.
            raise type(problem)(str(problem).replace(str(scratch), str(job.folder.parent))) from None
        files = _map_files(here.folder, keep_records)
        return Packed(files, (time.monotonic() - started) / 60)


def _map_files(folder: Path, keep_records: bool) -> Files:
    """Map files into memory; they may be larger than it, and be removed meanwhile."""
    files: dict[str, NDArray[Any]] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or (name.parts[0] == "record" and not keep_records):
            continue
        files[str(name)] = np.empty(0, dtype=np.uint8)
        if path.stat().st_size:
            # Ray copies arrays of the plain kind alone without pickling them.
            files[str(name)] = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    return files
