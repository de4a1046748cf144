import json
from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedattack.attacks import Knowledge, Targets, read_knowledge, read_targets, write_knowledge
from fedattack.errors import DataError
from fedattack.learning import LocalSGD
from tests.federation import CLASSES, FEATURES, MODEL

X = np.zeros((4, FEATURES), dtype=np.float32)
Y = np.array([0, 1, 2, 1])


def test_knowledge_survives_the_disk(tmp_path):
    write_knowledge(tmp_path, Knowledge(model=MODEL, targets=Targets(X, Y), prior="examples"))
    again = read_knowledge(tmp_path)
    assert again.model == MODEL
    assert again.prior == "examples"
    np.testing.assert_array_equal(again.targets.x, X)
    np.testing.assert_array_equal(again.targets.y, Y)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "expected the arrays x and y"),
        ({"x": X[:3], "y": Y}, "as many labels as records"),
        ({"x": X[:0], "y": Y[:0]}, "at least one"),
        ({"x": np.full_like(X, np.nan), "y": Y}, "not finite"),
        ({"x": X[:, :3], "y": Y}, r"records have shape \(3,\), but the model takes"),
        ({"x": X, "y": Y + CLASSES}, f"integer labels in 0 … {CLASSES - 1}"),
        ({"x": X, "y": Y - 1}, "integer labels"),
        ({"x": X, "y": Y + 0.5}, "integer labels"),
        ({"x": X, "y": np.float64(1)}, "as many labels as records"),
        ({"x": X, "y": np.array(["a"] * 4)}, "not finite numbers"),
        ({"x": X, "y": np.full(4, np.nan)}, "not finite numbers"),
    ],
)
def test_targets_that_do_not_fit_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "targets.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_targets(tmp_path / "targets.npz", MODEL)


def test_pickled_targets_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "targets.npz", x=np.array([{"a": 1}, None], dtype=object), y=np.array([0, 1]))
    with pytest.raises(DataError, match="plain arrays"):
        read_targets(tmp_path / "targets.npz", MODEL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prior": "wishful"}, "prior is 'wishful'"),
        ({"model": {"spec": "mlp"}}, "lacks or misstates"),
        ({"model": {**vars(MODEL), "loss": "hinge"}}, "loss is 'hinge'"),
        ({"training": {"epochs": 1}}, "lacks or misstates"),
        ({"property": "ascent", "positive_share": 1.5}, "positive_share is 1.5"),
    ],
)
def test_knowledge_that_is_misstated_is_refused(tmp_path, change, message):
    write_knowledge(tmp_path, Knowledge(model=MODEL, targets=Targets(X, Y)))
    value = json.loads((tmp_path / "knowledge.json").read_text())
    (tmp_path / "knowledge.json").write_text(json.dumps({**value, **change}))
    with pytest.raises(DataError, match=message):
        read_knowledge(tmp_path)


def test_broken_json_is_one_line(tmp_path):
    (tmp_path / "knowledge.json").write_text("{")
    with pytest.raises(DataError) as problem:
        read_knowledge(tmp_path)
    assert "\n" not in str(problem.value)


def test_what_prolin_must_know_survives_the_disk(tmp_path):
    known = Knowledge(
        model=MODEL,
        auxiliary=Targets(X, Y),
        training=LocalSGD(epochs=2, batch_size=5, lr=0.1, momentum=0.9),
        property="membership",
        positive_share=0.2,
    )
    write_knowledge(tmp_path, known)
    again = read_knowledge(tmp_path)
    assert (again.training, again.property, again.positive_share) == (known.training, "membership", 0.2)
    np.testing.assert_array_equal(again.auxiliary.x, X)
    assert again.targets is None


def test_dropout_survives_the_disk_and_files_from_before_have_none(tmp_path):
    write_knowledge(tmp_path, Knowledge(model=replace(MODEL, dropout=0.4), targets=Targets(X, Y)))
    again = read_knowledge(tmp_path)
    assert again.model.dropout == 0.4
    assert [part.p for part in again.model.build().modules() if isinstance(part, nn.Dropout)] == [0.4]
    value = json.loads((tmp_path / "knowledge.json").read_text())
    del value["model"]["dropout"]
    (tmp_path / "knowledge.json").write_text(json.dumps(value))
    assert read_knowledge(tmp_path).model == MODEL


def test_public_records_survive_the_disk(tmp_path):
    write_knowledge(tmp_path, Knowledge(model=MODEL, public=X))
    again = read_knowledge(tmp_path)
    assert again.targets is None
    np.testing.assert_array_equal(again.public, X)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "expected the arrays x"),
        ({"x": X[:0]}, "at least one public record"),
        ({"x": Y}, "at least one public record"),
        ({"x": X * np.nan}, "not finite"),
        ({"x": X[:, :5]}, r"public records have shape \(5,\), but the model takes"),
    ],
)
def test_public_records_that_do_not_fit_are_refused(tmp_path, arrays, message):
    write_knowledge(tmp_path, Knowledge(model=MODEL, public=X))
    np.savez(tmp_path / "public.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_knowledge(tmp_path)
