import json
import pickle

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file, save

from fedattack.defences.zoo import load_zoo, save_zoo, train_zoo
from fedattack.errors import ConfigError, DataError, ModelError
from fedattack.learning.pooled_updates import Fit
from tests.defences.updates import planted_updates

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
    pooled = zoo.pooling.pooled(updates)
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
        zoo.pooling.pooled([updates[0] | {"w": updates[0]["w"].T}])


def test_no_zoo_is_made_of_nothing():
    updates, labels = planted_updates(10, seed=0)
    with pytest.raises(ConfigError, match="at least one model"):
        train_zoo(updates, labels, attribute="a", values=("x", "y", "z"), seed=0, models=0)
    with pytest.raises(DataError, match="expected 0 whole numbers"):
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
    "no tensors": (lambda folder: (folder / "zoo.safetensors").unlink(), "cannot be read"),
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
    "a pickle": (lambda folder: put(folder, pickle.dumps(Bomb())), "no safetensors file"),
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
