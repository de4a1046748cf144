"""Put hooks into the loaded frameworks; a framework that the app does not import gets none."""

import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_SOURCES = {
    "torch": "fedattack.witness.torch_source",
    "sklearn": "fedattack.witness.sklearn_source",
    "opacus": "fedattack.witness.opacus_source",
    "xgboost": "fedattack.witness.xgboost_source",
}


def find_loaded() -> set[str]:
    """Return which of the frameworks are loaded."""
    return {name for name in _SOURCES if name in sys.modules}


def install() -> list[str]:
    """Put hooks into the loaded frameworks, unless they have them; return what could not be hooked, and why.

    The hooks stay, and do nothing if nobody watches. Compiled functions depend on the hooks: if these came and went,
    they would be compiled again and again.
    """
    failed = []
    # In an order that is the same in each process.
    for name in sorted(find_loaded()):
        try:
            importlib.import_module(_SOURCES[name]).install()
        except Exception as cause:  # the run must go on
            failed.append(f"{name} cannot be watched ({type(cause).__name__})")
    return failed


def watch_imports() -> None:
    """Put hooks into the loaded frameworks, and into PyTorch once it is imported, before a project makes a model."""
    install()
    if "torch" not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def remove() -> None:
    """Take the hooks out again."""
    _forget_imports()
    for name in find_loaded():
        importlib.import_module(_SOURCES[name]).remove()


def _forget_imports() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]


class _Finder(MetaPathFinder):
    """Finds PyTorch as all others do, and has it hooked when it is whole."""

    def __init__(self) -> None:
        self._asks = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch" or self._asks:
            return None
        self._asks = True
        try:
            # All finders are asked, of which this one now says None.
            spec = find_spec(name)
        finally:
            self._asks = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec, spec.loader)
        return spec


class _Loader(Loader):
    """Loads a module as its own loader does, and puts hooks in afterwards."""

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        self._spec, self._loader = spec, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module is not to know of this.
        _forget_imports()
        self._spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        # Whatever fails here, the project's import must not.
        with suppress(Exception):
            install()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
