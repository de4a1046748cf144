"""Do independent pieces of an attack side by side: on this machine's cores, or on a Ray cluster that is given."""

import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain
from typing import Any, TypeVar

import joblib
import torch
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits

from fedattack.base.cluster import Pieces, chosen, connect
from fedattack.base.errors import RunError, short
from fedattack.base.machine import end_with_parent, free_memory, usable_cpus

Item = TypeVar("Item")
Result = TypeVar("Result")

SHARE = 0.75
"""Share of the memory that is free which workers may take together; this process holds their results."""

PROCESS = 0.4 * 2**30
"""Bytes that a process takes before it has done anything, most of it torch."""

WORTH_WORKERS = 20.0
"""Seconds of work from which workers are started: starting one takes seconds, most of them for importing torch."""

_KILLED = "a worker of the attack was killed, often for lack of memory"
_LESS = "ask for fewer with the option workers"
_WITHOUT = "workers=1 does without other processes"

# Warnings of workers that were said, each of which is said once.
_WARNED: dict[Any, Any] = {}

_PACE = 1.0
"""Seconds of work that tell how long the rest takes; what is done first takes longer than others."""


def fan_out(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int,
    memory: float,
    carried: float = 0.0,
    count: int | None = None,
    paths: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> Iterator[Result]:
    """Yield ``work(item)`` for each item, in their order.

    Each piece runs on one thread wherever it runs, so that the results do not depend on how many workers there are.

    Parameters
    ----------
    work
        Function that can be pickled.
    items
        Its inputs. They are taken one after another while others are worked on, perhaps by another thread, so that they
        need not fit into memory together.
    workers
        How many processes; 0 for as many as there are cores and free memory for, and none for what is done sooner
        without.
    memory
        Bytes that one piece takes.
    carried
        Bytes of one item, if they are read as they are taken. No more processes are started than for which items fit
        into ``memory`` in this one, which holds two for each.
    count
        About how many items there are, where they have no length.
    paths
        Files that each machine of a cluster must have.
    device
        Where pieces compute. On a GPU they are done one after another here, and on a cluster each has one of its own.

    Raises
    ------
    ConfigError, RunError
        If there is no such cluster, or its machines do not fit; if a process is killed, and then another one that does
        what is left piece by piece, or on a cluster again and again.
    """
    if count is None and isinstance(items, Sized):
        count = len(items)
    rest = iter(items)
    address = chosen()
    # Memory of the CPU is no bound there, and processes would share one GPU.
    on_gpu = torch.device(device).type != "cpu"
    if address:
        yield from _on_cluster(work, rest, address, memory + PROCESS, int(on_gpu), paths)
        return
    if on_gpu:
        workers = 1
    # How many processes fit in memory: each has Python, torch, its work, and a copy of what it carries.
    fit = int(SHARE * free_memory() // (memory + PROCESS + carried))
    # Items that wait for a worker are in memory as well.
    if carried:
        fit = min(fit, int(memory // (2 * carried)))
    processes = workers or max(1, min(usable_cpus(), fit))
    # The first items are done here and timed, unless the caller states how many processes there are.
    if not workers:
        done, seconds = 0, 0.0
        for item in rest:
            started = time.monotonic()
            result = _alone(work, item)
            seconds += time.monotonic() - started
            done += 1
            yield result
            if seconds >= _PACE:
                break
        # Starting workers takes longer than what is left.
        if seconds / max(done, 1) * ((count or 0) - done) < WORTH_WORKERS:
            processes = 1
    if processes == 1:
        for item in rest:
            yield _alone(work, item)
        return
    yield from _parallel(work, rest, processes)


def _parallel(work: Callable[[Item], Result], items: Iterator[Item], count: int) -> Iterator[Result]:
    # Items whose results are not there yet: of a worker that dies they are given to others.
    given: deque[Item] = deque()
    try:
        yield from _in_workers(work, items, given, count, at_once=count)
    except TerminatedWorkerError:
        warnings.warn(f"{_KILLED}; what is left is done one after another", stacklevel=2)
        left = chain([*given], items)
        given.clear()
        try:
            # Again in a worker: what kills that must not kill this process.
            yield from _in_workers(work, left, given, count, at_once=1)
        except TerminatedWorkerError:
            raise RunError(f"{_KILLED}, and so was another one that did one piece at a time; {_LESS}") from None


def _in_workers(
    work: Callable[[Item], Result], items: Iterator[Item], given: deque[Item], count: int, *, at_once: int
) -> Iterator[Result]:
    """Yield results in order; ``given`` has the items that were taken and have none yet."""
    failed: list[Exception] = []

    def give_pieces() -> Iterator[Any]:
        # joblib takes most items in a thread of its own, where an error of theirs would be lost.
        try:
            for item in items:
                given.append(item)
                yield joblib.delayed(_in_worker)(os.getpid(), work, item)
        except Exception as error:
            failed.append(error)

    # It takes as many at first, and one more when one is done.
    pieces = joblib.Parallel(n_jobs=count, return_as="generator", pre_dispatch=at_once)
    try:
        for result, warned in pieces(give_pieces()):
            given.popleft()
            for text, file, line in warned:
                # In the parent's registry, so that each place warns once, whichever worker met it.
                warnings.warn_explicit(text, UserWarning, file, line, registry=_WARNED)
            yield result
    except TerminatedWorkerError:
        raise
    except BrokenProcessPool as cause:
        # joblib's words are general; those of the worker stand in the last line of its traceback.
        why = str(cause.__cause__ or cause).strip('"\n').rpartition("\n")[2]
        raise RunError(f"work or its result cannot be sent between processes: {short(why, 150)}; {_WITHOUT}") from None
    if failed:
        raise failed[0]


def _alone(work: Callable[[Item], Result], item: Item) -> Result:
    with one_thread():
        return work(item)


def _in_worker(parent: int, work: Callable[[Item], Result], item: Item) -> tuple[Result, list[tuple[str, str, int]]]:
    """Do a piece in a worker; what is warned of there is said in the process that asked, as if it had done it."""
    # joblib's workers wait on for minutes when their parent was killed, and what they were given stays on disk.
    end_with_parent(parent)
    with warnings.catch_warnings(record=True) as caught:
        result = _alone(work, item)
    return result, [(f"{each.category.__name__}: {each.message}", each.filename, each.lineno) for each in caught]


def _on_cluster(
    work: Callable[[Item], Result],
    items: Iterator[Item],
    address: str,
    room: float,
    gpus: int,
    paths: Sequence[str],
) -> Iterator[Result]:
    pieces = Pieces(connect(address, paths), _alone, work, items, cpus=1, memory=room, gpus=gpus)
    try:
        yield from pieces.in_order()
    finally:
        pieces.stop()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, and NumPy's linear algebra, compute on one thread."""
    # Processes that each compute on all cores would be slower together than one after the other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
