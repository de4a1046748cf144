"""Do independent pieces of an attack side by side: on this machine's cores, or on a Ray cluster that is given."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

import joblib
import torch

from fedattack.errors import ConfigError, RunError, short

Item = TypeVar("Item")
Result = TypeVar("Result")

MEMORY = 3.0 * 2**30
"""Bytes that all workers may take together."""

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
        How many processes; 0 for as many as there are cores and memory for, and none for what is done sooner without.
    memory
        Bytes that one piece takes.
    ray
        Address of a Ray cluster, or ``auto``; empty for this machine's cores.
    process, worth_workers
        See :data:`PROCESS` and :data:`WORTH_WORKERS`.

    Raises
    ------
    ConfigError
        If there is no such cluster.
    RunError
        If a process that does a piece is killed.
    """
    rest = list(items)
    if ray:
        yield from _on_ray(work, rest, ray)
        return
    count = workers or max(1, min(os.cpu_count() or 1, int(MEMORY // (memory + process))))
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


def _on_ray(work: Callable[[Item], Result], items: Sequence[Item], address: str) -> Iterator[Result]:
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if host:
            # Ray itself goes on asking for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(address=address, ignore_reinit_error=True, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as cause:
        raise ConfigError(
            f"option ray={address}: no Ray cluster answers there ({cause}); start one with `ray start --head`"
        ) from None
    piece: Any = ray.remote(_alone)
    shared = ray.put(work)
    waiting = [piece.remote(shared, item) for item in items]
    for reference in waiting:
        try:
            result = ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            # Its own text is the traceback of a process elsewhere.
            raise error.cause from None
        except ray.exceptions.RayError as error:
            # Ray lists all processes of the machine where one took too much memory.
            name = type(error).__name__
            raise RunError(
                f"Ray lost a piece of the attack, often for lack of memory: {name}: {short(str(error), 150)}"
            ) from None
        yield result


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
