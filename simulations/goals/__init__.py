"""What attackers of runs want to know: one file a goal, which is found by itself."""

from importlib import import_module
from pkgutil import iter_modules

from fedattack.runs.settings import RunSettings
from simulations.goals.base import Goal


def _find() -> dict[str | None, Goal]:
    modules = [import_module(f"{__name__}.{entry.name}") for entry in iter_modules(__path__)]
    return {module.GOAL.chosen_by: module.GOAL for module in modules if hasattr(module, "GOAL")}


GOALS = _find()
"""By the setting that chooses each."""


def goal_of(settings: RunSettings) -> Goal:
    """Return the goal that the settings choose."""
    for field, goal in GOALS.items():
        if field and getattr(settings, field):
            return goal
    return GOALS[None]
