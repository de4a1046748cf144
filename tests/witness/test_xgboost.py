"""What XGBoost trains and evaluates on is seen, each example once, however many trees are added."""

import numpy as np
import pytest

from fedattack.witness.current import watching
from fedattack.witness.watch import CallWatch

xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")


@pytest.fixture
def source():
    from fedattack.witness import xgboost_source

    xgboost_source.install()
    yield xgboost_source
    xgboost_source.remove()


def data(count=20, seed=0):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(count, 4)).astype(np.float32), draw.integers(2, size=count)


def test_training_and_evaluation_are_seen(source):
    (x, y), (other, labels) = data(), data(8, 1)
    x[0, 1] = 0
    own, beside = xgboost.DMatrix(x, label=y), xgboost.DMatrix(other, label=labels)
    with watching(CallWatch()) as watch:
        booster = xgboost.train({"objective": "binary:logistic", "nthread": 1}, own, num_boost_round=3)
        booster.update(dtrain=own, iteration=3)
        booster.eval_set(evals=[(own, "train"), (beside, "valid")])
        watch.end(without_steps=False)
    assert not watch.notes
    trained, evaluated = watch.stated.batches.trained.seen(), watch.stated.batches.evaluated.seen()
    assert (trained.total, evaluated.total) == (20, 8)
    np.testing.assert_array_equal(np.sort(trained.x, axis=0), np.sort(x, axis=0))
    assert sorted(trained.y.tolist()) == sorted(y.tolist())


def test_trees_beside_another_model_are_none_of_what_is_shared(source):
    x, y = data()
    with watching(CallWatch(received=lambda: [[np.zeros(3, np.float32)]])) as watch:
        xgboost.train({"nthread": 1}, xgboost.DMatrix(x, label=y), num_boost_round=1)
    assert watch.stated is None


def test_a_matrix_of_quantiles_is_told(source):
    x, y = data()
    with watching(CallWatch()) as watch:
        xgboost.train({"nthread": 1}, xgboost.QuantileDMatrix(x, label=y), num_boost_round=1)
    assert any("a QuantileDMatrix only holds quantiles" in note for note in watch.notes)


def test_nothing_is_noted_where_nobody_watches(source):
    x, y = data()
    assert xgboost.train({"nthread": 1}, xgboost.DMatrix(x, label=y), num_boost_round=1).num_boosted_rounds() == 1
