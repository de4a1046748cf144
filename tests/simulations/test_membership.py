"""The goal of membership inference: targets that clients hold, and as many as are asked for that nobody holds."""

import numpy as np
import pytest

from fedattack.audit.truth import NOBODY
from fedattack.base.errors import DataError
from fedattack.learning import LocalSGD
from simulations.defences import known_defence
from simulations.study import Study
from tests.worlds.reference import DEFAULTS, change, prepare_in

SETTINGS = DEFAULTS | {
    "dataset": "digits",
    "clients": 5,
    "records-per-client": 30,
    "targets": 20,
    "nulls": 500,
    "auxiliary": 100,
    "device": "cpu",
}


def prepared(folder, **changes):
    study = Study.of(change(SETTINGS, changes))
    return study, *prepare_in(folder, study, defence=known_defence(study))


def keys(x):
    return {row.tobytes() for row in x}


def test_targets_are_those_of_each_client_and_as_many_as_are_asked_for_that_nobody_holds(tmp_path):
    study, known, truth = prepared(tmp_path)
    owners = truth.owners
    assert truth.targets == known.targets.fingerprint
    assert (owners == NOBODY).sum() == 500
    for client, part in enumerate(study.division.parts):
        own = known.targets.x[owners == str(client)]
        assert len(own) == 20
        assert keys(own) <= keys(study.data.x_train[part])
    nobody = keys(known.targets.x[owners == NOBODY])
    assert len(nobody) == 500
    held = keys(study.data.x_train[study.division.everyone])
    assert not nobody & held
    assert not nobody & keys(known.auxiliary.x)
    assert nobody & keys(study.data.x_test), "some are of the test split"
    assert nobody & keys(study.data.x_train), "and some of the training split"
    # Members do not stand together.
    assert 0 < np.flatnonzero(owners != NOBODY).mean() - 250 < 100


def test_the_attacker_knows_how_clients_train_its_own_examples_and_their_defence(tmp_path):
    _, known, _ = prepared(tmp_path, defence="dp-gaussian", defence_strength=0.1, local_epochs=3)
    assert len(known.auxiliary) == 100
    assert isinstance(known.training, LocalSGD)
    assert known.training.epochs == 3
    assert known.defence.settings["defence"] == "dp-gaussian"


def test_without_auxiliary_examples_the_attacker_has_none(tmp_path):
    _, known, truth = prepared(tmp_path, auxiliary=0)
    assert known.auxiliary is None
    assert known.defence is None
    assert len(truth.owners) == 600


def test_public_records_are_no_targets_that_nobody_holds(tmp_path):
    """Clients learn from them."""
    study, known, truth = prepared(tmp_path, framework="fedmd", nulls=900, auxiliary=0, public_records=200)
    assert len(known.public) == 200
    nobody = keys(known.targets.x[truth.owners == NOBODY])
    assert not nobody & keys(study.data.x_train[study.division.everyone])
    assert not nobody & keys(known.public)


def test_more_than_there_are_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"nulls = 5000: \d+ examples are left that nobody holds; lower nulls"):
        prepared(tmp_path, nulls=5000)
