"""The frameworks of the reference system: which settings go with which, and that each runs on Flower."""

import json
import sys

import numpy as np
import pytest

import clients.app
import simulations.prepare
from clients.fedavg import FedAvgClient
from clients.fedmd import FedMDClient
from clients.fedsgd import FedSGDClient
from clients.fedxgb import FedXgbClient
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.base.errors import ConfigError
from fedattack.record import Record, check_record
from fedattack.record.signature import make_key
from fedattack.runs.app import app_folder
from fedattack.runs.settings import load_settings
from fedattack.runs.simulator import Simulator
from simulations.frameworks import FRAMEWORKS
from simulations.study import Study
from tests.worlds.reference import run_app

DEFAULTS = {name: setting.default for name, setting in load_settings().items()}
FEDSGD = DEFAULTS | {"framework": "fedsgd", "batch-size": 0, "clients": 3, "rounds": 2, "device": "cpu", "targets": 20}


def test_every_framework_has_clients_and_a_server():
    assert {name: framework.load_client() for name, framework in FRAMEWORKS.items()} == {
        "fedavg": FedAvgClient,
        "fedmd": FedMDClient,
        "fedsgd": FedSGDClient,
        "fedxgb": FedXgbClient,
    }
    for name, framework in FRAMEWORKS.items():
        study = Study.of(DEFAULTS | {"framework": name} | framework.fixed)
        assert study.framework is framework
        assert clients.app.kind_of(study, 0) is framework.load_client()
        assert callable(framework.serve)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"framework": "fedprox"},
            "framework = 'fedprox': did you mean fedxgb\\? expected one of fedavg, fedsgd, fedmd",
        ),
        ({"property": "ascent"}, 'framework = \'fedsgd\' needs property = "", got "ascent"; change it, or take'),
        ({"secagg": True}, "framework = 'fedsgd' needs secagg = false, got true"),
        ({"local-epochs": 2}, "framework = 'fedsgd' needs local-epochs = 1, got 2"),
        ({"batch-size": 64}, "framework = 'fedsgd' needs batch-size = 0, got 64"),
        ({"momentum": 0.9}, "framework = 'fedsgd' needs momentum = 0.0, got 0.9"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_in_one_line(changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        Study.of(FEDSGD | changes)
    assert "\n" not in str(caught.value)


def test_a_model_that_has_more_than_gradients_is_refused_before_the_training(tmp_path, monkeypatch, capsys):
    folders = {"knowledge": str(tmp_path / "knowledge"), "truth": str(tmp_path / "truth")}
    config = FEDSGD | {"model": "tests.clients.test_clients:normed"} | folders
    (tmp_path / "configs.json").write_text(json.dumps([config]))
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "configs.json")])
    with pytest.raises(SystemExit) as stop:
        simulations.prepare.main()
    assert stop.value.code == 2
    assert "normalises by the batch" in capsys.readouterr().err


@pytest.mark.flower
@pytest.mark.slow
def test_fedsgd_runs_on_flower_and_ray(tmp_path, monkeypatch):
    """The app as `flwr run` bundles it: the same gradients as in this process, and a signed record."""
    here = run_app(tmp_path / "here", FEDSGD)
    signer = make_key(tmp_path / "recorder.pem")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDATTACK_SIGNING_KEY", "recorder.pem")
    config = FEDSGD | {name: str(tmp_path / name) for name in ("record", "truth", "knowledge")}
    (tmp_path / "configs.json").write_text(json.dumps([config]))
    with Simulator(app_folder(), supernodes=3, log=tmp_path / "flower.log") as simulator:
        assert simulator.run(config) is None
    record = Record(tmp_path / "record")
    assert record.protocol == "fedsgd"
    assert record.signer == signer
    assert check_record(record.path).whole
    clients_of = {folder: read_nodes(tmp_path / folder) for folder in ("here/truth", "truth")}
    for left, right in zip(record, here, strict=True):
        expected = {clients_of["here/truth"][seen.node]: seen for seen in right.observations}
        for seen in left.observations:
            other = expected.pop(clients_of["truth"][seen.node])
            assert seen.num_examples == other.num_examples
            for name, array in other.arrays.items():
                assert np.linalg.norm(seen.arrays[name] - array) < 1e-3 * np.linalg.norm(array)
        assert not expected
    for name, array in here.final.items():
        np.testing.assert_allclose(record.final[name], array, rtol=1e-4, atol=1e-6)


def test_the_attack_runs_over_what_the_app_records(tmp_path):
    folders = {name: str(tmp_path / name) for name in ("knowledge", "truth")}
    plan = Study.of(FEDSGD | folders)
    simulations.prepare.prepare(plan, knowledge=tmp_path / "knowledge", truth=tmp_path / "truth")
    record = run_app(tmp_path, FEDSGD)
    scores = ATTACKS["sia"].run(record, read_knowledge(tmp_path / "knowledge"), device="cpu")
    assert scores.arrays["losses"].shape == (2, 120, 3)
    assert np.isfinite(scores.arrays["losses"]).all()
    assert not scores.notes


def read_nodes(truth) -> dict[str, str]:
    """Which client each node is."""
    notes = [json.loads(path.read_text()) for path in (truth / "nodes").iterdir()]
    return {note["node"]: note["client"] for note in notes}
