"""Models of trees are data that anybody may have written: each fault ends in one line."""

import copy
import json

import numpy as np
import pytest

from fedattack.base.errors import DataError
from fedattack.threats.trees import booster
from fedattack.threats.trees.booster import read_booster
from tests.threats.trees.world import as_json, grow

X = np.array([[1.0, 5.0], [2.0, 7.0], [3.0, 6.0], [4.0, 8.0]], dtype=np.float32)
TREE = grow(X, np.array([1.0, -2, 3, 5]), 2)


def read(change=lambda tree, model: None):
    model = copy.deepcopy(as_json([TREE], 2, 0.5))
    change(model["learner"]["gradient_booster"]["model"]["trees"][0], model)
    return read_booster(json.dumps(model).encode(), "round 1, client a")


def test_a_model_is_read():
    found = read()
    assert (found.features, found.base_score, found.objective) == (2, 0.5, "reg:squarederror")
    assert found.trees[0].cover[0] == 4


def put(name, place, value):
    def change(tree, model):
        tree[name][place] = value

    return change


def parameter(name, value):
    def change(tree, model):
        model["learner"]["learner_model_param"][name] = value

    return change


def chain(tree, model):
    """A chain of more levels than are read."""
    count = 2 * booster.MOST_DEPTH + 5
    tree["left_children"] = [node + 1 if node % 2 == 0 and node + 2 < count else -1 for node in range(count)]
    tree["right_children"] = [node + 2 if node % 2 == 0 and node + 2 < count else -1 for node in range(count)]
    for name in ("split_indices", "split_conditions", "split_type", "sum_hessian", "base_weights"):
        tree[name] = [0] * count


FAULTS = {
    "cycle": (put("left_children", 0, 0), "a node has one child, or one outside 1"),
    "two parents": (put("left_children", 0, TREE["right_children"][0]), "has two parents, or is its own descendant"),
    "outside": (put("right_children", 0, 99), "a node has one child, or one outside 1"),
    "one child": (put("left_children", 0, -1), "a node has one child, or one outside 1"),
    "huge": (put("left_children", 0, 10**30), "left_children"),
    "column": (put("split_indices", 0, 7), "splits by a column outside 0 … 1"),
    "infinite": (put("split_conditions", 0, 1e300), "split_conditions holds a number that is not finite"),
    "text": (put("sum_hessian", 0, "x"), "sum_hessian.0: input should be a valid number"),
    "negative": (put("sum_hessian", 0, -1.0), "sum_hessian: expected 0 or more"),
    "length": (lambda tree, _: tree["base_weights"].append(0.0), "base_weights has"),
    "empty": (lambda tree, _: [values.clear() for values in tree.values()], "it has no node"),
    "missing": (lambda tree, _: tree.pop("sum_hessian"), "sum_hessian is missing"),
    "no learner": (lambda _, model: model.pop("learner"), "learner is missing"),
    "linear": (lambda _, model: model["learner"]["gradient_booster"].pop("model"), "model is missing"),
    "several outputs": (parameter("base_score", "[1,2]"), "base_score: expected one number, got '1,2'"),
    "columns": (parameter("num_feature", "0"), "num_feature: expected 1 to"),
    "many columns": (parameter("num_feature", "1e9"), "num_feature: expected 1 to"),
    "deep": (chain, "it has more than 64 levels"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line(fault):
    change, words = FAULTS[fault]
    with pytest.raises(DataError) as refusal:
        read(change)
    line = str(refusal.value)
    assert line.startswith("round 1, client a")
    assert words in line
    assert "\n" not in line
    assert len(line) < 500


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "got nothing"),
        (b"{L\x00\x00", "got XGBoost's binary format UBJSON"),
        (b"\x00" * 50, "got 50 other bytes"),
        (b"[" * 100_000, "got 100,000 other bytes"),
        (b'{"learner": NaN}', "got 16 other bytes"),
        (b"[1, 2]", "expected"),
    ],
)
def test_other_bytes_are_told(data, words):
    with pytest.raises(DataError) as refusal:
        read_booster(data, "here")
    assert words in str(refusal.value) or "valid dictionary" in str(refusal.value)


def test_sizes_are_bounded(monkeypatch):
    for name, least, words in (
        ("MOST_BYTES", 10, "expected at most 10"),
        ("MOST_NODES", 3, "nodes"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(booster, name, least)
            with pytest.raises(DataError, match=words):
                read()
