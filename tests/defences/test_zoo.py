import json
import pickle

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file, save

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.defences.zoo import load_zoo, save_zoo, train_zoo, train_zoo_on_records
from fedattack.learning import build_model
from fedattack.learning.attribute_updates import attribute_updates
from fedattack.learning.pooled_updates import Fit
from tests.defences.updates import planted_updates
from tests.worlds.private import TRAINING, VALUES, draw_records

FIT = Fit(epochs=15)


@pytest.fixture(scope="module")
def zoo():
    updates, labels = planted_updates(200, seed=0)
    return train_zoo(
        updates,
        labels,
        attribute="colour",
        values=("red", "green", "blue"),
        seed=3,
        models=4,
        widths=(8, 16),
        features=20,
        fit=FIT,
    )


def test_a_zoo_predicts_the_attribute_of_other_clients_with_networks_of_several_widths(zoo):
    updates, labels = planted_updates(200, seed=1)
    pooled = zoo.pooling.pool(updates)
    for network in zoo.networks:
        assert (network.logits(pooled).argmax(axis=1) == labels).mean() > 0.6
    assert len(zoo.networks) == 4
    assert {width for network in zoo.networks for width in network.hidden} == {8, 16}
    assert len({network.layers[-1][1].tobytes() for network in zoo.networks}) == 4


def test_a_zoo_on_disk_is_the_zoo_that_was_saved(zoo, tmp_path):
    save_zoo(zoo, tmp_path / "zoos" / "colour")
    back = load_zoo(tmp_path / "zoos" / "colour")
    assert (back.attribute, back.values, back.pooling) == (zoo.attribute, zoo.values, zoo.pooling)
    assert len(back.networks) == len(zoo.networks)
    for one, other in zip(back.networks, zoo.networks, strict=True):
        for ours, theirs in zip(one.layers, other.layers, strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
            np.testing.assert_array_equal(ours[1], theirs[1])


def test_a_zoo_refuses_updates_of_other_shapes(zoo):
    updates, _ = planted_updates(1, seed=0)
    with pytest.raises(ModelError, match=r"w has shape \(3, 20\), expected \(20, 3\)"):
        zoo.pooling.pool([updates[0] | {"w": updates[0]["w"].T}])


def test_no_zoo_is_made_of_nothing():
    updates, labels = planted_updates(10, seed=0)
    with pytest.raises(ConfigError, match="at least one model"):
        train_zoo(updates, labels, attribute="a", values=("x", "y", "z"), seed=0, models=0)
    with pytest.raises(DataError, match="expected at least one update; got none"):
        train_zoo([], labels, attribute="a", values=("x", "y", "z"), seed=0)


def described(folder, **changes):
    path = folder / "zoo.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def put(folder, data):
    (folder / "zoo.safetensors").write_bytes(data)
    described(folder, xxh3=xxhash.xxh3_128(data).hexdigest())


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


FAULTS = {
    "no description": (lambda folder: (folder / "zoo.json").unlink(), "is not there"),
    "no tensors": (lambda folder: (folder / "zoo.safetensors").unlink(), "is not there"),
    "no JSON": (lambda folder: (folder / "zoo.json").write_text("{"), "cannot be read as JSON"),
    "a list": (lambda folder: (folder / "zoo.json").write_text("[]"), "describes no model zoo"),
    "another format": (lambda folder: described(folder, format=2), "expected format 1, got 2"),
    "no window": (lambda folder: described(folder, window=0), "at least 1, got 0"),
    "a huge shape": (lambda folder: described(folder, parameters=[{"name": "w", "shape": [10**9, 10**9]}]), "expected"),
    "no entries": (lambda folder: described(folder, parameters=[{"name": "w", "shape": [0]}]), "with entries"),
    "four layers": (lambda folder: described(folder, hidden=[[8, 8, 8]]), "expected 2 hidden widths"),
    "no networks": (lambda folder: described(folder, hidden=[]), "one network"),
    "one network fewer": (lambda folder: described(folder, hidden=[[8, 8]]), "zoo.safetensors"),
    "one value": (lambda folder: described(folder, values=["red"]), "two values"),
    "another file": (lambda folder: (folder / "zoo.safetensors").write_bytes(b"x"), "checksum"),
    "a pickle": (lambda folder: put(folder, pickle.dumps(Bomb())), "not a safetensors file"),
    "NaN": (
        lambda folder: put(
            folder, save({k: v * np.float32("nan") for k, v in load_file(folder / "zoo.safetensors").items()})
        ),
        "expected finite float32",
    ),
    "float64": (
        lambda folder: put(
            folder, save({k: v.astype(np.float64) for k, v in load_file(folder / "zoo.safetensors").items()})
        ),
        "expected finite float32.*float64",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_files_that_are_not_to_be_trusted_are_refused_in_one_line(zoo, tmp_path, fault):
    save_zoo(zoo, tmp_path)
    spoil, match = FAULTS[fault]
    spoil(tmp_path)
    with pytest.raises(DataError, match=match) as caught:
        load_zoo(tmp_path)
    assert "\n" not in str(caught.value)
    assert "zoo" in str(caught.value)


def test_a_zoo_trained_on_records_predicts_updates_of_other_records_at_every_stage_of_the_training():
    """Its small federation is trained, so that it has seen updates of a model that has learnt."""
    model = build_model("linear", input_shape=(6,), classes=3, seed=0)
    start = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    rng = np.random.default_rng(0)
    codes = rng.integers(3, size=240)
    x, y = draw_records(codes, rng, 5.0)

    def zoo_for(**changes):
        options = {"records": 4, "rounds": 6, "seed": 1, "clients": 120, "models": 3, "widths": (32,), "fit": FIT}
        return train_zoo_on_records(
            model, start, x, y, codes, TRAINING, attribute="level", values=VALUES, **{**options, **changes}
        )

    zoo = zoo_for()
    others = draw_records(codes, np.random.default_rng(1), 5.0)
    moved = {name: value + np.float32(0.5) for name, value in start.items()}
    for state in (start, moved):
        asked = attribute_updates(model, state, *others, codes, TRAINING, clients=90, records=4, seed=2)
        pooled = zoo.pooling.pool([*asked])
        for network in zoo.networks:
            assert (network.logits(pooled).argmax(axis=1) == asked.values).mean() > 0.8
    again, turned = zoo_for(), zoo_for(gradients=True)
    assert again.networks[0].layers[0][0].tobytes() == zoo.networks[0].layers[0][0].tobytes()
    asked = attribute_updates(model, start, *others, codes, TRAINING, clients=90, records=4, seed=2)
    gradients = [{name: -move / np.float32(TRAINING.lr) for name, move in update.items()} for update in asked]
    pooled = turned.pooling.pool(gradients)
    assert (turned.networks[0].logits(pooled).argmax(axis=1) == asked.values).mean() > 0.8


def test_values_of_too_few_records_are_left_out_of_a_zoo_s_training():
    rng = np.random.default_rng(0)
    codes = np.array([0] * 30 + [1] * 30 + [2])
    x, y = draw_records(codes, rng, 5.0)
    model = build_model("linear", input_shape=(6,), classes=3, seed=0)
    start = {name: value.detach().numpy().copy() for name, value in model.named_parameters()}
    zoo = train_zoo_on_records(
        model,
        start,
        x,
        y,
        codes,
        TRAINING,
        attribute="level",
        values=VALUES,
        records=10,
        rounds=1,
        seed=0,
        clients=40,
        models=1,
        widths=(8,),
        fit=FIT,
    )
    own = attribute_updates(model, start, x[:60], y[:60], codes[:60], TRAINING, clients=40, records=10, seed=3)
    found = zoo.networks[0].logits(zoo.pooling.pool([*own])).argmax(axis=1)
    assert (found == own.values).mean() > 0.8
    assert 2 not in found
