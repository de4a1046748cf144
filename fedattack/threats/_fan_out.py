"""Do independent pieces of an attack side by side: on this machine's cores, or on a Ray cluster that is given."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import joblib
import torch

from fedattack.cluster import Pieces, chosen, connect
from fedattack.errors import RunError
from fedattack.machine import free_memory, usable_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

SHARE = 0.75
"""Share of the memory that is free which workers may take together; this process holds their results."""

PROCESS = 0.4 * 2**30
"""Bytes that a process takes before it has done anything, most of it torch."""

WORTH_WORKERS = 20.0
"""Seconds of work from which workers are started: starting one takes seconds, most of them for importing torch."""


def fan_out(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    workers: int,
    memory: float,
    ray: str = "",
    gpus: int = 0,
    process: float = PROCESS,
    worth_workers: float = WORTH_WORKERS,
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in their order.

    Each piece runs on one thread wherever it runs, so that the results do not depend on how many workers there are.

    Parameters
    ----------
    work
        Function that can be pickled.
    items
        Its inputs.
    workers
        How many processes; 0 for as many as there are cores and free memory for, and none for what is done sooner
        without.
    memory
        Bytes that one piece takes.
    ray
        Address of a Ray cluster, or ``auto``; empty for the one that the caller of the command chose, if any, and else
        this machine's cores.
    gpus
        How many a piece takes, on a cluster.
    process, worth_workers
        See :data:`PROCESS` and :data:`WORTH_WORKERS`.

    Raises
    ------
    ConfigError
        If there is no such cluster, or its machines do not fit.
    RunError
        If a process that does a piece is killed; on a cluster, if that happens again and again.
    """
    rest = list(items)
    address = ray or chosen()
    if address and rest:
        yield from _on_cluster(work, rest, address, memory + process, gpus)
        return
    count = workers or max(1, min(usable_cpus(), int(SHARE * free_memory() // (memory + process))))
    if not workers and rest:
        started = time.monotonic()
        first = _alone(work, rest.pop(0))
        if (time.monotonic() - started) * len(rest) < worth_workers:
            count = 1
        yield first
    if count == 1:
        for item in rest:
            yield _alone(work, item)
        return
    yield from _parallel(work, rest, count)


def _parallel(work: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[Result]:
    pieces = joblib.Parallel(n_jobs=count, return_as="generator")
    try:
        yield from pieces(joblib.delayed(_alone)(work, item) for item in items)
    except BrokenProcessPool:
        raise RunError(
            "a worker of the attack was killed, often for lack of memory; ask for fewer with the option workers"
        ) from None


def _alone(work: Callable[[Item], Result], item: Item) -> Result:
    with one_thread():
        return work(item)


def _on_cluster(
    work: Callable[[Item], Result], items: Sequence[Item], address: str, room: float, gpus: int
) -> Iterator[Result]:
    pieces = Pieces(connect(address), _alone, work, items, cpus=1, memory=room, gpus=gpus)
    try:
        yield from pieces.in_order()
    finally:
        pieces.stop()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
