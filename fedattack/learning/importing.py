"""User code named by an import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedattack.errors import ModelError


def import_callable(spec: str, *, what: str, known: Iterable[str]) -> Callable[..., Any]:
    """Import a function or class named ``package.module:function``.

    Parameters
    ----------
    spec : str
        The import path; modules are also looked for in the working directory.
    what : str
        What is looked for, as error messages call it (``model``, ``loss``).
    known : iterable of str
        The built-in names, which error messages offer as well.

    Returns
    -------
    callable

    Raises
    ------
    ModelError
        If the path is not of that form, cannot be imported, or does not name something callable.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise ModelError(f"unknown {what} {spec!r}; expected one of {', '.join(known)}, or package.module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # at the end, so that no module of the folder stands in for an installed one
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # importing runs the user's code, which may raise anything
        raise ModelError(
            f"{what} {spec!r}: cannot import {module_name!r} ({one_line(error)}); install it, or call from its "
            "project's folder"
        ) from error
    found = getattr(found, attribute, None)
    if not callable(found):
        raise ModelError(f"{what} {spec!r}: module {module_name!r} has no function {attribute!r}; check the spelling")
    result: Callable[..., Any] = found
    return result


def one_line(error: BaseException) -> str:
    """Return the type and text of an error without line breaks."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
