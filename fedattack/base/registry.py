"""What is found by itself: what modules of this package state, and what other packages that are installed add.

Another package adds to a registry by an entry point of the registry's group. Threats, datasets, defences and frameworks
are found so.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Generic, Protocol, TypeVar


class RegistryItem(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str:
        """By what it is called."""


N = TypeVar("N", bound=RegistryItem)


class Registry(Mapping[str, N], Generic[N]):
    """By name, what is of one kind; nothing is searched for before somebody asks.

    Parameters
    ----------
    group
        Of the entry points by which other packages add theirs. Each leads to one of the kind, or to a tuple of them.
    built_in
        Gives this package's own.
    find_fault
        Says what is wrong with one of another package beside those that are there; empty if nothing is.
    """

    def __init__(
        self,
        group: str,
        kind: type[N],
        built_in: Callable[[], Iterable[N]],
        find_fault: Callable[[N, Mapping[str, N]], str] = lambda one, others: "",
    ) -> None:
        self.group, self._kind, self._built_in, self._find_fault = group, kind, built_in, find_fault

    def __getitem__(self, name: str) -> N:
        return self._found[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found[0])

    def __len__(self) -> int:
        return len(self._found[0])

    @property
    def left_out(self) -> dict[str, str]:
        """Why something of another package is left out, by the name of its entry point."""
        return self._found[1]

    @cached_property
    def _found(self) -> tuple[dict[str, N], dict[str, str]]:
        found = {item.name: item for item in self._built_in()}
        broken: dict[str, str] = {}
        for name, entry in installed_in(self.group).items():
            try:
                # An entry point may lead to one item, or to a tuple of some.
                for item in _as_tuple(entry.load()):
                    if fault := self._fault(item, found):
                        broken[name] = f"{entry.value} {fault}"
                    else:
                        found[item.name] = item
            except Exception as cause:  # another package may fail in any way
                broken[name] = f"{entry.value} cannot be imported: {cause}"
        return found, broken

    def _fault(self, item: Any, others: Mapping[str, N]) -> str:
        if not isinstance(item, self._kind):
            return f"is no {self._kind.__module__}.{self._kind.__qualname__}"
        fault = self._find_fault(item, others)
        if not fault and item.name in others:
            return f"has the name {item.name!r}, which is taken"
        return fault


def stated_in(package: str, attribute: str) -> Iterator[Any]:
    """Yield what the modules of a package state in an attribute; those that lack it state nothing."""
    for module in iter_modules(import_module(package).__path__):
        yield from _as_tuple(getattr(import_module(f"{package}.{module.name}"), attribute, ()))


def _as_tuple(stated: Any) -> tuple[Any, ...]:
    return stated if isinstance(stated, tuple) else (stated,)


def installed_in(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group, by name; a second one of a name has what it leads to behind it."""
    entries: dict[str, EntryPoint] = {}
    # Sorted by value: which of two has the name does not depend on the order of installation.
    for entry in sorted(_entry_points(), key=lambda entry: (entry.name, entry.value)):
        if entry.group == group:
            name = entry.name
            if name in entries:
                name += f" ({entry.value})"
            entries[name] = entry
    return entries


@cache
def _entry_points() -> set[EntryPoint]:
    """Find the entry points of installed packages that are about fedattack.

    A notebook and ``python -m`` look for packages in the working directory first. It may be a folder that somebody
    handed over, so that what calls itself a package there is none.
    """
    # What stands in the current folder is no installed package: it may come from a stranger.
    paths = [path for path in sys.path if path and not _is_here(path)]
    entries: set[EntryPoint] = set()  # a package that is installed twice counts once
    for distribution in distributions(path=paths):
        for entry in distribution.entry_points:
            if entry.group.startswith("fedattack."):
                entries.add(entry)
    return entries


def _is_here(path: str) -> bool:
    try:
        return Path(path).samefile(os.curdir)
    except OSError:  # one of the two is gone
        return False
