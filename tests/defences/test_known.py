"""The clients' defence in the hands of an attacker."""

import numpy as np
import pytest

from fedattack.base.errors import ConfigError
from fedattack.defences import NONE, SETTINGS, defence_of
from fedattack.defences.base import Batch
from fedattack.defences.known import known_defence
from fedattack.learning import LocalSGD, build_model, train_private

MODEL = build_model("mlp", input_shape=(5,), classes=3, hidden=4, seed=0)
X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
Y = np.arange(6) % 3
UPDATE = {
    name: np.random.default_rng(1).normal(size=value.shape).astype(np.float32)
    for name, value in MODEL.named_parameters()
}


def applied(settings, seed=2):
    return known_defence({**SETTINGS, **settings})(UPDATE, rng=np.random.default_rng(seed), model=MODEL, x=X, y=Y)


@pytest.mark.parametrize("name", ["sparsify", "soteria", "dp-gaussian"])
def test_it_is_the_defence_itself(name):
    settings = {**SETTINGS, "defence": name, "defence-strength": 0.5}
    expected = defence_of(settings).apply(UPDATE, np.random.default_rng(2), Batch(X, Y, MODEL))
    found = applied(settings)
    assert any((found[part] != UPDATE[part]).any() for part in UPDATE)
    for part, array in expected.items():
        np.testing.assert_array_equal(found[part], array)


def test_without_one_updates_stay_as_they_are_and_an_unknown_one_is_refused():
    for part, array in applied({"defence": NONE}).items():
        np.testing.assert_array_equal(array, UPDATE[part])
    with pytest.raises(ConfigError, match="defence = 'prayer'"):
        applied({"defence": "prayer", "defence-strength": 1.0})


def test_dp_sgd_trains_anew_on_the_same_records():
    training = LocalSGD(2, 3, 0.1)
    settings = {
        "defence": "dp-sgd",
        "noise": 0.7,
        "dp-clip": 0.5,
        "training": training.keywords(),
        "loss": "cross-entropy",
    }
    found = applied(settings)
    own = build_model("mlp", input_shape=(5,), classes=3, hidden=4, seed=0)
    seed = int(np.random.default_rng(2).integers(2**31))
    train_private(own, X, Y, **training.keywords(), noise=0.7, clip=0.5, seed=seed)
    before, after = MODEL.state_dict(), own.state_dict()
    for name, array in found.items():
        np.testing.assert_array_equal(array, (after[name] - before[name]).numpy())
    assert any((found[name] != array).any() for name, array in applied(settings, seed=3).items())
    other = {**training.keywords(), "optimizer": "Adam"}
    with pytest.raises(ConfigError, match="defence dp-sgd: expected clients that train by SGD, got Adam"):
        applied({**settings, "training": other})
