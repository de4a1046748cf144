"""Import what takes seconds to import in less of them, or meanwhile."""

import atexit
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, which takes a fifth of the time: modules stay, and next to nothing is garbage.

    Afterwards only full collections look at what is there.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _age_objects()
        gc.enable()


def _age_objects() -> None:
    """Put all objects into the oldest generation, without looking at any.

    Otherwise the next collection of each younger generation would look at all that was imported.
    """
    # Whoever froze objects, such as a server that is about to fork, wants them to stay so.
    if gc.get_freeze_count() == 0:
        gc.freeze()
        # What is no longer frozen is in the oldest generation, wherever it was before.
        gc.unfreeze()


def end_without_collections() -> None:
    """Let this process end without collections, which take a second: what is left goes with the process."""
    atexit.register(_freeze_objects)


def _freeze_objects() -> None:
    # Libraries that are bound by nanobind, such as Triton, would list what is not collected as leaked.
    if not any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type)):
        gc.freeze()


@contextmanager
def importing_beside(load: Callable[[], object]) -> Iterator[None]:
    """Call what imports modules in a thread beside what is done within, which should wait rather than import.

    What fails there fails again, and is told, where it is needed.
    """

    def work() -> None:
        with suppress(Exception), importing():
            load()

    thread = threading.Thread(target=work, name="fedattack-imports", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # A process must not end while a library begins in it.
        thread.join()
