"""FedXgb: clients grow trees on their own examples, and the server joins them."""

import json

import numpy as np
import pytest
import xgboost

from fedattack.attacks import read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base import extra
from fedattack.base.errors import ConfigError
from fedattack.record import check_record
from fedattack.threats.trees.booster import read_booster
from simulations.prepare import prepare_run
from simulations.study import Study
from tests.refusals import refused
from tests.threats.trees.world import judged
from tests.worlds.reference import DEFAULTS, run_app, run_preset

CONFIG = DEFAULTS | {
    "framework": "fedxgb",
    "dataset": "diabetes",
    "clients": 3,
    "rounds": 3,
    "batch-size": 0,
    "lr": 0.3,
    "tree-depth": 4,
    "seed": 5,
    "device": "cpu",
}


def trees_of(data):
    """Return the trees of a model as plain JSON."""
    return json.loads(bytes(data))["learner"]["gradient_booster"]["model"]["trees"]


def grown(study, client, common, number):
    """Grow a client's trees by a plain loop."""
    x, y = study.records_of(client)
    options = {"objective": "reg:squarederror", "eta": 0.3, "max_depth": 4, "tree_method": "hist", "nthread": 1}
    options["seed"] = study.client_seed(client, number)
    own = xgboost.DMatrix(x, label=y)
    if common is None:
        return trees_of(xgboost.train(options, own, num_boost_round=1).save_raw("json"))
    booster = xgboost.Booster(options, model_file=bytearray(common))
    booster.update(own, booster.num_boosted_rounds())
    return trees_of(booster.save_raw("json"))[-1:]


def thresholds_of(trees):
    return [tree["split_conditions"] for tree in trees]


def test_clients_grow_what_a_plain_loop_grows_and_the_server_joins_it(tmp_path):
    study = Study.of(CONFIG)
    record = run_app(tmp_path, CONFIG)
    assert check_record(record.path).whole
    assert record.parameters[0].name == "0"
    common, joined = None, []
    for round_ in record:
        received = bytes(round_.common["0"])
        assert bool(received) == (round_.number > 1)
        if received:
            assert sorted(thresholds_of(trees_of(received))) == sorted(thresholds_of(joined))
            common = received
        assert len(round_.observations) == 3
        plain = [grown(study, client, common, round_.number) for client in range(3)]
        sent = [trees_of(reply.arrays["0"]) for reply in round_.observations]
        assert sorted(map(thresholds_of, sent), key=str) == sorted(map(thresholds_of, plain), key=str)
        for one in sent:
            joined += one
    assert len(read_booster(common, "here").trees) == 3 * 2


@pytest.mark.slow
def test_the_preset_shows_that_columns_leak(tmp_path):
    run_preset("trees", ["rounds=6"], 0, tmp_path)
    found = judged(tmp_path)
    assert found["columns"].verdict == "leak"
    assert found["rows"].n == 5


def test_two_classes_are_trained_and_more_are_refused_in_one_line(tmp_path):
    folders = {name: str(tmp_path / name) for name in ("knowledge", "truth")}
    with refused(ConfigError, "takes numbers or two classes, and digits has 10"):
        prepare_run(CONFIG | folders | {"dataset": "digits"})
    record = run_app(tmp_path, CONFIG | {"dataset": "breast-cancer", "rounds": 1})
    (round_,) = record
    assert read_booster(bytes(round_.observations[0].arrays["0"]), "here").objective == "binary:logistic"


def test_without_xgboost_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(extra, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"framework = 'fedxgb' needs a package .* \(xgboost\); install it: pip install"
    ):
        prepare_run(CONFIG | {name: str(tmp_path / name) for name in ("knowledge", "truth")})


@pytest.mark.parametrize(
    "changes", [{"defence": "sparsify"}, {"secagg": True}, {"batch-size": 8}, {"server": "imprint"}]
)
def test_settings_that_trees_do_not_know_are_refused(changes):
    with pytest.raises(ConfigError, match="framework = 'fedxgb' needs"):
        Study.of(CONFIG | changes)


def test_an_attacker_knows_no_model_and_the_truth_has_the_tables(tmp_path):
    prepare_run(CONFIG | {name: str(tmp_path / name) for name in ("knowledge", "truth")})
    known, truth = read_knowledge(tmp_path / "knowledge"), read_truth(tmp_path / "truth")
    assert (known.model, known.training) == (None, None)
    study = Study.of(CONFIG)
    x, owners = truth.answers["trees"]["x"], truth.answers["trees"]["owners"]
    for client in range(3):
        np.testing.assert_array_equal(x[owners == str(client)], study.records_of(client)[0])
