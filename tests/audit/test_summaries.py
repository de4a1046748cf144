import numpy as np
import pytest

from fedattack.audit.intervals import rate_interval
from fedattack.audit.summaries import (
    null_of,
    null_rate,
    part_by_client,
    part_by_label,
    rate_populations,
    rate_surest,
    reliability,
)
from fedattack.audit.truth import ClientAttribute, Truth


def test_a_null_is_the_mean_of_its_draws_with_the_middle_of_them():
    found = null_of([float(value) for value in range(101)], 7)
    assert found == {"value": 50.0, "low": pytest.approx(2.5), "high": pytest.approx(97.5), "n": 7}


def test_the_interval_of_a_null_holds_its_mean():
    found = null_of([0.0] * 99 + [1.0], 3)
    assert (found["value"], found["low"], found["high"]) == (0.01, 0.0, 0.01)


def test_a_null_s_rate_pools_the_seeds_and_is_none_where_one_has_no_targets():
    found = null_rate([3.0, 6.0], [10, 20], 4)
    low, high = rate_interval([3.0, 6.0], [10, 20], comparisons=4)
    assert found == {"value": pytest.approx(0.3), "low": low, "high": high, "n": 30}
    assert null_rate([3.0, 0.0], [10, 0]) is None
    assert null_rate([], []) is None


def test_reliability_is_that_of_bins_worked_out_by_hand():
    found = reliability(np.array([0.12, 0.18, 0.95, 1.0]), np.array([0.0, 0.5, 1.0, 1.0]))
    assert found["confidence"] == pytest.approx([0.15, 0.975])
    assert found["accuracy"] == [0.25, 1.0]
    assert found["count"] == [2, 2]
    assert found["ece"] == pytest.approx((2 * 0.1 + 2 * 0.025) / 4)


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
    parts = part_by_label(truth, np.array([0, 0, 1, 0])) | part_by_client(truth, ["a", "a", "b", "b"])
    answers = credit, parts
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
    for labels in (np.zeros(3, np.int64), np.zeros(3, np.float32), np.zeros(0, np.int64)):
        assert rate_populations([(np.ones(len(labels)), part_by_label(truth, labels))]) == []


def test_labels_without_names_go_by_their_numbers(truth):
    assert part_by_label(truth, np.array([3, 7]))["label"].tolist() == ["3", "7"]


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
