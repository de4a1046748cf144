"""What an audit of an app is to do, as its caller says it; nothing here imports torch, so that the app starts soon."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.apps.app import App
from fedattack.apps.questions import Questions
from fedattack.learning.stated import LOSS_NAMES, MODEL_NAMES

if TYPE_CHECKING:
    from fedattack.attacks import Attack


@dataclass(frozen=True)
class Order:
    """What an audit is to do: how the app is run, what is asked besides, and how attacks are made.

    ``on`` is one of :data:`fedattack.runs.runtimes.RUNTIMES`, and of no effect where the caller gave the command that
    runs the app. ``options`` of attacks are as they were given; ``make`` returns attacks by their names, with these.
    Unless there is a ``full_control``, positive controls take no longer than the app's own run, or half a minute.
    """

    out: Path
    asked: Questions
    options: Mapping[str, str]
    make: Callable[[Sequence[str]], "Sequence[Attack]"]
    device: str = "auto"
    seeds: Sequence[int] = (0,)
    on: str = "simulation"
    command: str = ""
    full_control: bool = False


@contextmanager
def importable(app: App) -> Iterator[None]:
    """Let the app's own modules be imported, as they are when it runs; nothing is written beside them."""
    # In front, as Python puts the folder of a script.
    sys.path.insert(0, str(app.folder))
    # No __pycache__ in its owner's folder.
    writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_nothing
        # The app's modules may have changed the list, too.
        with suppress(ValueError):
            sys.path.remove(str(app.folder))


def check_named(model: str | None, loss: str | None) -> None:
    """Look whether the model and the loss that the caller names are there, before a run that takes minutes.

    Raises
    ------
    ModelError
        If one of them cannot be imported.
    """
    # Built-in names need no import.
    for kind, name, known in (("model", model, MODEL_NAMES), ("loss", loss, LOSS_NAMES)):
        if name is not None and name not in known:
            from fedattack.learning.importing import import_callable

            import_callable(name, what=kind, known=known)
