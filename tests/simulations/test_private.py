"""Runs about private attributes, and the model zoos that are trained before a run."""

from pathlib import Path

import numpy as np
import pytest

from fedattack.attacks import read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, DataError
from fedattack.defences.zoo import load_zoo
from fedattack.runs.presets import load_preset, resolve_settings
from simulations.goals.private_attribute import values_of_clients
from simulations.study import Study
from tests.worlds.reference import DEFAULTS, prepare_by_command

PRESET = {**DEFAULTS, **resolve_settings(load_preset("private-attribute"), []), "device": "cpu"}
QUICK = {"recup-zoo-models": 2, "recup-models": 2, "recup-zoo-width": 128, "recup-zoo-epochs": 1, "rounds": 2}
RECUP = {"defence": "recup", "defence-strength": 0.01, **QUICK}


def prepared(tmp_path: Path, config) -> Path:
    """Prepare a run; returns its folder."""
    prepare_by_command(tmp_path, config, ("knowledge", "truth", "zoo"))
    return tmp_path


def test_clients_hold_records_of_one_value_each_that_the_attacker_does_not_have():
    study = Study.of(PRESET)
    colours = study.data.private["colour"].train
    held = values_of_clients(study, "colour")
    assert np.bincount(held).tolist() == [10, 10, 10]
    for part, value in zip(study.division.parts, held, strict=True):
        assert len(part) == 10
        assert (colours[part] == value).all()
    assert not {*np.concatenate(study.division.parts)} & {*study.division.auxiliary}


def test_several_attributes_divide_clients_by_their_combinations():
    study = Study.of(PRESET | {"private": "colour,thickness", "partition": "column:colour,thickness"})
    pairs = {*zip(values_of_clients(study, "colour"), values_of_clients(study, "thickness"), strict=True)}
    assert len(pairs) == 6
    only = Study.of(PRESET | {"private": "thickness"})
    with pytest.raises(DataError, match=r"examples of client 0 have several of its values.*partition=column:thickness"):
        values_of_clients(only, "thickness")


def test_the_attacker_knows_the_attributes_of_its_own_records_and_the_truth_those_of_the_clients(tmp_path):
    folder = prepared(tmp_path, PRESET)
    study, known = Study.of(PRESET), read_knowledge(folder / "knowledge")
    rows = study.division.auxiliary
    np.testing.assert_array_equal(known.attributes["colour"].codes, study.data.private["colour"].train[rows])
    np.testing.assert_array_equal(known.auxiliary.x, study.data.x_train[rows])
    assert known.attributes["colour"].values == ("red", "green", "blue")
    assert known.defence is None
    private = read_truth(folder / "truth").private
    assert private["colour"].values == tuple(values_of_clients(study, "colour"))
    assert not (folder / "zoo").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"private": "hair"}, "private = 'hair': colour-digits has the private attributes colour, thickness"),
        ({"dataset": "digits", "partition": "iid"}, "digits has the private attributes none"),
        ({"sensitive": "1"}, "private together with property or sensitive"),
        ({"server": "isolating"}, "private together with server = 'isolating': expected 'passive' or 'inconsistent'"),
        ({"records-per-client": 0}, "leaves no examples to the attacker"),
        ({"framework": "fedmd"}, "framework = 'fedmd' needs private = \"\""),
    ],
)
def test_what_contradicts_itself_is_refused(changes, message):
    with pytest.raises((ConfigError, DataError), match=message):
        _ = Study.of(PRESET | changes).private_columns


def test_the_zoo_is_trained_before_the_run_and_known_to_the_attacker(tmp_path):
    folder = prepared(tmp_path, PRESET | RECUP)
    zoo = load_zoo(folder / "zoo" / "colour")
    assert zoo.values == ("red", "green", "blue")
    assert len(zoo.networks) == 2
    names = [name for name, _ in Study.of(PRESET).models.build().named_parameters()]
    assert [name for name, _ in zoo.pooling.shapes] == names
    defend = read_knowledge(folder / "knowledge").defence.build()
    update = {name: np.full(shape, 0.1, np.float32) for name, shape in zoo.pooling.shapes}
    sent = defend(update, rng=np.random.default_rng(0), model=None, x=None, y=None)
    far = max(float(np.abs(sent[name].astype(np.float64) - update[name]).max()) for name in update)
    assert 0 < far <= 0.01


@pytest.mark.parametrize(
    ("preset", "attributes"),
    [
        ("quickstart", ["label"]),
        ("sia-fedsgd", ["label"]),
        ("prolin-ascent", ["label"]),
        ("ara-cos", ["symmetry error"]),
        ("inversion", ["label"]),
    ],
)
@pytest.mark.slow
def test_elsewhere_a_zoo_is_of_the_sensitive_column_or_of_the_label(tmp_path, preset, attributes):
    config = {**DEFAULTS, **resolve_settings(load_preset(preset), []), "device": "cpu"} | RECUP
    prepared(tmp_path, config)
    assert [path.name for path in (tmp_path / "zoo").iterdir()] == attributes


def test_zoos_that_cannot_be_trained_are_refused_in_one_line(tmp_path, capsys):
    for changes, message in (
        ({"recup-attributes": "hair"}, "recup-attributes = 'hair': hair can be protected without a zoo"),
        ({"framework": "fedmd", "private": ""}, "no zoo is trained before a run of framework"),
        ({"recup-zoo": str(tmp_path / "none")}, "expected recup-zoo, a folder with a model zoo for each attribute"),
    ):
        with pytest.raises(SystemExit) as stop:
            prepared(tmp_path, PRESET | RECUP | changes)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
