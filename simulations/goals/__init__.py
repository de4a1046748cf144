"""What attackers of runs want to know: one file a goal, which is found by itself."""

from fedattack.base.registry import stated_in
from fedattack.runs.settings import RunSettings
from simulations.goals.base import Goal

GOALS: dict[str | None, Goal] = {goal.chosen_by: goal for goal in stated_in(__name__, "GOAL")}
"""By the setting that chooses each."""


def goal_of(settings: RunSettings) -> Goal:
    """Return the goal that the settings choose."""
    for field, goal in GOALS.items():
        if field and getattr(settings, field):
            return goal
    return GOALS[None]
