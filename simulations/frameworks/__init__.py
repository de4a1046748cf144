"""Frameworks of the reference system: one file each, which is found by itself."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from fedattack.base.errors import ConfigError
from simulations.frameworks.base import Framework


def _find() -> dict[str, Framework]:
    modules = [import_module(f"{__name__}.{entry.name}") for entry in iter_modules(__path__)]
    return {module.FRAMEWORK.name: module.FRAMEWORK for module in modules if hasattr(module, "FRAMEWORK")}


FRAMEWORKS: Mapping[str, Framework] = _find()
"""By name."""


def framework_of(name: str) -> Framework:
    """Return a framework by its name.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if name not in FRAMEWORKS:
        raise ConfigError(f"framework = {name!r}: expected one of {', '.join(sorted(FRAMEWORKS))}")
    return FRAMEWORKS[name]
