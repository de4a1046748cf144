"""User code named by an import path, and paths in files that somebody else may have written."""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedattack.base.errors import ModelError, TrustError, short


@dataclass(frozen=True)
class Asked:
    """What a file asks for: code to import, or a path that leaves its folder. Nobody follows it unless trusted.

    It takes the place of a text. A text that is built in, typed or trusted is a plain ``str``.

    Attributes
    ----------
    what, value, where
        What it would be used as, such as ``model``; the import path ``package.module:function``, or the path; and the
        file that asks for it.
    app
        A folder that code is looked for in last, if it is not empty; see :meth:`follow`.
    """

    what: str
    value: str
    where: str
    app: str = ""

    def __str__(self) -> str:
        return self.value

    def refuse(self) -> TrustError:
        """Return what to raise where somebody is about to follow it."""
        return TrustError(
            f"{self.where} asks for the {short(self.what, 60)} {short(self.value, 80)}, which would be {self._verb} on "
            "this machine; what a folder names is not followed: give it yourself, or trust the folder by --trust"
        )

    @property
    def _verb(self) -> str:
        return "imported and run" if ":" in self.value else "read"

    def describe(self) -> str:
        """Say what following it means, and from where code would come."""
        if ":" not in self.value:
            return f"reads {short(self.value, 120)} ({short(self.what, 60)})"
        return f"imports {short(self.value, 80)} ({short(self.what, 60)}) from {short(self.origin, 120)}"

    @property
    def origin(self) -> str:
        """The file that code would be imported from, or words where there is none."""
        return _origin(self.value, self.app)

    def follow(self) -> str:
        """Return its value, for who trusts it; from now on modules are looked for in ``app``, too."""
        # Last, too: an app must not put a module of its own in the place of one of this package's.
        if self.app and self.app not in sys.path:
            sys.path.append(self.app)
        return self.value


def _origin(spec: str, app: str = "") -> str:
    """Say where a module would be imported from; it and the packages that it is in are looked up and not imported."""
    folders: list[str] = [*sys.path, str(Path.cwd()), *filter(None, [app])]
    name = spec.partition(":")[0]
    found = name
    for depth, part in enumerate(name.split(".")):
        # By folders alone. ``importlib.util.find_spec`` would import the packages around a module, whose code is a
        # stranger's.
        module = importlib.machinery.PathFinder.find_spec(part, folders) if part else None
        if module is None:
            # A package may make its parts known only when it is imported.
            return found if depth else "nowhere: there is no such module"
        folders = list(module.submodule_search_locations or [])
        found = module.origin or ", ".join(folders) or part
    return found


def asked_unless(value: str, *, known: Collection[str], trusted: Collection[str], what: str, where: str) -> str | Asked:
    """Return a text as it is if it is built in or trusted, else as what a file asks for."""
    if value in known or value in trusted:
        return value
    return Asked(what, value, where)


def trust_given(value: str | Asked) -> str:
    """Return a text that the caller gave, trusts, or that is built in.

    Raises
    ------
    TrustError
        If only a file asks for it.
    """
    if isinstance(value, Asked):
        raise value.refuse()
    return value


def import_callable(spec: str | Asked, *, what: str, known: Iterable[str]) -> Callable[..., Any]:
    """Import a function or class named ``package.module:function``, also of the working directory.

    Error messages call it ``what``, such as a model, and also offer the built-in names ``known``.

    Raises
    ------
    TrustError
        If a file asks for it that the caller has not trusted.
    ModelError
        If the path is not of that form, cannot be imported, or does not name something callable.
    """
    spec = trust_given(spec)
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise ModelError(
            f"unknown {what} {short(spec, 80)!r}; expected one of {', '.join(known)}, or package.module:function"
        )
    folder = str(Path.cwd())
    # A script that is installed as a command has its own folder there, and not the one that it is called in.
    if folder not in sys.path:
        sys.path.append(folder)  # at the end, so that no module of the folder hides an installed one
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ModelError(
            f"{what} {spec!r}: cannot import {module_name!r} ({one_line(error)}); install it, or call from its "
            "project's folder"
        ) from error
    function: Callable[..., Any] | None = getattr(module, attribute, None)
    if not callable(function):
        raise ModelError(f"{what} {spec!r}: module {module_name!r} has no function {attribute!r}; check the spelling")
    return function


def one_line(error: BaseException) -> str:
    """Return the type and text of an error without line breaks."""
    return short(f"{type(error).__name__}: {error}")
