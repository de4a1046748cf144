"""What attackers of runs want to know: one file a goal, which is found by itself."""

from importlib import import_module
from pkgutil import iter_modules

from simulations.goals.base import Goal
from simulations.run_settings import RunSettings


def _find() -> dict[str | None, Goal]:
    goals: dict[str | None, Goal] = {}
    for entry in iter_modules(__path__):
        goal = getattr(import_module(f"{__name__}.{entry.name}"), "GOAL", None)
        if goal is not None:
            goals[goal.chosen_by] = goal
    return goals


GOALS = _find()
"""By the setting that chooses each."""


def goal_of(settings: RunSettings) -> Goal:
    """Return the goal that the settings choose."""
    for field, goal in GOALS.items():
        if field and getattr(settings, field):
            return goal
    return GOALS[None]
