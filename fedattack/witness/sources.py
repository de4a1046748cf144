"""Put the hooks into the frameworks that are loaded; one that the app does not import stays out."""

import importlib
import sys

from fedattack.errors import short

_SOURCES = {"torch": "fedattack.witness.torch_source", "sklearn": "fedattack.witness.sklearn_source"}


def loaded() -> set[str]:
    """Return which of the frameworks are loaded."""
    return {name for name in _SOURCES if name in sys.modules}


def install() -> list[str]:
    """Put hooks into what is loaded, unless they are there; return what could not be hooked, and why.

    The hooks stay, and do nothing where nobody watches. Compiled functions depend on which hooks there are: if these
    came and went, they would be compiled again and again.
    """
    failed = []
    for name in sorted(loaded()):
        try:
            importlib.import_module(_SOURCES[name]).install()
        except Exception as cause:  # the run must go on
            failed.append(f"{name} cannot be watched ({short(f'{type(cause).__name__}: {cause}', 120)})")
    return failed


def remove() -> None:
    """Take the hooks out again."""
    for name in loaded():
        importlib.import_module(_SOURCES[name]).remove()
