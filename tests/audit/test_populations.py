"""Parts of the population and the surest answers: rates against counts by hand, intervals that pay for all parts."""

import numpy as np
import pytest

from fedattack.audit.intervals import rate_interval
from fedattack.audit.populations import RatedTargets, rate_populations, rate_surest
from fedattack.audit.truth import ClientAttribute, Truth


@pytest.fixture
def truth():
    return Truth(
        clients=("a", "b"),
        classes=("cat", "dog"),
        counts=np.ones((2, 2), np.int64),
        owners=np.array(["a", "b"]),
        evaluation=None,
        nodes={},
        targets="",
        private={"site": ClientAttribute((1, 0), ("east", "west"))},
    )


def test_each_label_and_each_group_has_its_own_rate_with_an_interval_for_all(truth):
    credit = np.array([1.0, 0.5, 0.0, 1.0])
    answers = RatedTargets.by_label(truth, credit, ["a", "a", "b", "b"], np.array([0, 0, 1, 0]))
    found = {(entry["kind"], entry["name"]): entry for entry in rate_populations([answers, answers])}
    assert {key: (entry["value"], entry["n"]) for key, entry in found.items()} == {
        ("label", "cat"): (2.5 / 3, 6),
        ("label", "dog"): (0.0, 2),
        ("site", "west"): (0.75, 4),
        ("site", "east"): (0.5, 4),
    }
    entry = found["site", "west"]
    assert (entry["low"], entry["high"]) == rate_interval([1.5, 1.5], [2, 2], comparisons=4)


def test_one_part_alone_and_a_regression_part_nothing(truth):
    plain = Truth(**{**vars(truth), "private": {}})
    credit, clients = np.ones(3), ["a", "a", "b"]
    assert rate_populations([RatedTargets.by_label(plain, credit, clients, np.zeros(3, np.int64))]) == []
    assert rate_populations([RatedTargets.by_label(plain, credit, clients, np.zeros(3, np.float32))]) == []
    assert rate_populations([RatedTargets.by_label(plain, credit[:0], [], np.zeros(0, np.int64))]) == []


def test_labels_without_names_go_by_their_numbers(truth):
    answers = RatedTargets.by_label(truth, np.ones(2), ["a", "a"], np.array([3, 7]))
    assert answers.parts["label"].tolist() == ["3", "7"]


def test_the_surest_tenth_is_chosen_by_confidence_alone():
    sure = np.arange(100.0)
    right = (sure >= 94).astype(float)
    found = rate_surest([(sure, right)], seed=0, chance=0.5)
    assert (found["value"], found["n"], found["chance"]) == (0.6, 10, 0.5)
    assert found["low"] < 0.6 < found["high"]
    assert rate_surest([(sure[:49], right[:49])], seed=0, chance=0.5) == {}
    assert rate_surest([], seed=0, chance=0.5) == {}


def test_among_equally_sure_answers_none_is_preferred():
    right = np.repeat([1.0, 0.0], 500)
    values = [rate_surest([(np.zeros(1000), right)], seed=seed, chance=0.5)["value"] for seed in range(40)]
    assert abs(np.mean(values) - 0.5) < 0.03
