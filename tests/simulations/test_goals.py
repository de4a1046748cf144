"""Goals are found by themselves, and settings choose among them."""

import inspect
from dataclasses import fields

import pytest

from fedattack.audit.truth import write_truth
from fedattack.runs.settings import RunSettings
from simulations.goals import goal_of
from simulations.goals.attribute import GOAL as ATTRIBUTE
from simulations.goals.base import TrueAnswer
from simulations.goals.membership import GOAL as MEMBERSHIP
from simulations.goals.private_attribute import GOAL as PRIVATE_ATTRIBUTE
from simulations.goals.property import GOAL as PROPERTY
from simulations.goals.source import GOAL as SOURCE
from tests.worlds.reference import DEFAULTS


@pytest.mark.parametrize(
    ("changes", "goal"),
    [
        ({}, SOURCE),
        ({"server": "isolating"}, SOURCE),
        ({"property": "ascent"}, PROPERTY),
        ({"sensitive": "declared"}, ATTRIBUTE),
        ({"private": "colour"}, PRIVATE_ATTRIBUTE),
        ({"nulls": 100}, MEMBERSHIP),
    ],
)
def test_the_settings_choose_the_goal(changes, goal):
    assert goal_of(RunSettings.of(DEFAULTS | changes)) is goal


def test_an_answer_is_what_can_be_written_of_the_truth_for_a_threat_of_somebody_else_s_too():
    names = {field.name for field in fields(TrueAnswer)}
    assert names <= {*inspect.signature(write_truth).parameters}
    assert "answers" in names
