"""Which watch what a thread does belongs to."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fedattack.witness.watch import CallWatch

_lock = threading.Lock()
_watches: list[CallWatch] = []


class _Stack(threading.local):
    """The watches of one thread, the current one last; ``None`` where nobody is to watch."""

    def __init__(self) -> None:
        self.stack: list[CallWatch | None] = []


_local = _Stack()


def current() -> CallWatch | None:
    """Return the watch that this thread's doings belong to."""
    stack = _local.stack
    if stack:
        return stack[-1]
    # A thread that the client started itself: there is no link from it to the thread that did.
    watches = _watches
    if len(watches) == 1:
        return watches[0]
    for watch in watches:
        watch.note("a thread did something that was not watched, because its client is not known")
    return None


def is_watched() -> bool:
    """Say whether what this very thread does is watched already."""
    return _local.stack[-1:] not in ([], [None])


def is_paused() -> bool:
    """Say whether what this thread does is to be noted by nobody."""
    return _local.stack[-1:] == [None]


@contextmanager
def watching(watch: CallWatch) -> Iterator[CallWatch]:
    """Make a watch the current one of this thread, and of threads that are started meanwhile."""
    with _lock:
        _watches.append(watch)
    try:
        with _stack(watch):
            yield watch
    finally:
        # It lies on PyTorch's own stack of modes, and would read what the next client does.
        if watch.local.reader is not None:
            watch.guard("the last step", _end_reading)
        with _lock:
            _watches.remove(watch)


def _end_reading(watch: CallWatch) -> None:
    watch.local.reader.end_reading()


@contextmanager
def pause_watching() -> Iterator[None]:
    """Do something in this thread that nobody watches."""
    with _stack(None):
        yield


@contextmanager
def _stack(watch: CallWatch | None) -> Iterator[None]:
    _local.stack.append(watch)
    try:
        yield
    finally:
        _local.stack.pop()


def _forget() -> None:
    """In a forked process, such as a DataLoader's worker, nobody watches."""
    global _lock
    # Another thread of the parent may have held it while the process was forked: here nobody would let it go.
    _lock = threading.Lock()
    _watches.clear()
    _local.stack = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
