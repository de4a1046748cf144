"""Frameworks of the reference system: one file each, which is found by itself, and those of other packages."""

from typing import Any

from fedattack.base.errors import ConfigError
from fedattack.base.registry import Registry, stated_in
from fedattack.runs.settings import OTHER_FRAMEWORKS
from simulations.frameworks.base import Framework

FRAMEWORKS: Registry[Framework[Any]] = Registry(OTHER_FRAMEWORKS, Framework, lambda: stated_in(__name__, "FRAMEWORK"))
"""By name."""


def framework_of(name: str) -> Framework[Any]:
    """Return a framework by its name.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if name not in FRAMEWORKS:
        why = f" ({FRAMEWORKS.left_out[name]})" if name in FRAMEWORKS.left_out else ""
        raise ConfigError(f"framework = {name!r}: expected one of {', '.join(sorted(FRAMEWORKS))}{why}")
    return FRAMEWORKS[name]
