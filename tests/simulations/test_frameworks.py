"""The frameworks of the reference system: which settings go with which, and that each runs on Flower."""

import numpy as np
import pytest

import clients.app
from clients.fedavg import FedAvgClient
from clients.fedmd import FedMDClient
from clients.fedsgd import FedSGDClient
from clients.fedxgb import FedXgbClient
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.base.errors import ConfigError
from fedattack.record import check_record
from fedattack.record.signature import make_key
from simulations.frameworks import FRAMEWORKS
from simulations.study import Study
from tests.refusals import refused
from tests.worlds.reference import DEFAULTS, by_client, prepare_by_command, run_here, run_on_flower

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
    with refused(ConfigError, message):
        Study.of(FEDSGD | changes)


def test_a_model_that_has_more_than_gradients_is_refused_before_the_training(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        prepare_by_command(tmp_path, FEDSGD | {"model": "tests.clients.test_clients:normed"})
    assert stop.value.code == 2
    assert "normalises by the batch" in capsys.readouterr().err


KINDS = {
    "fedsgd": FEDSGD,
    "fedmd": DEFAULTS
    | {"framework": "fedmd", "partition": "dirichlet-balanced", "batch-size": 16, "public-records": 60}
    | {"clients": 3, "rounds": 3, "device": "cpu", "targets": 5},
    "isolating": DEFAULTS
    | {"server": "isolating", "victims": 1, "dataset": "diabetes", "sensitive": "sex", "batch-size": 0, "lr": 0.05}
    | {"clients": 5, "records-per-client": 30, "rounds": 3, "device": "cpu"},
}


@pytest.mark.flower
@pytest.mark.parametrize("kind", ["fedsgd", *(pytest.param(kind, marks=pytest.mark.long) for kind in [*KINDS][1:])])
@pytest.mark.slow
def test_on_flower_and_ray_a_run_is_what_it_is_in_this_process(kind, tmp_path, monkeypatch):
    """The app as `flwr run` bundles it. Ray's workers serve any client in any round; a FedMD client's model comes along
    in its state. And the record is signed."""
    here = run_here(tmp_path / "here", KINDS[kind])
    signer = make_key(tmp_path / "recorder.pem")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDATTACK_SIGNING_KEY", "recorder.pem")
    there = run_on_flower(tmp_path / "there", KINDS[kind])
    assert (there.protocol, there.server) == (here.protocol, here.server)
    assert there.signer == signer
    assert check_record(there.path).whole
    for one, other in zip(by_client(here), by_client(there), strict=True):
        assert one.keys() == other.keys() == set(map(str, range(KINDS[kind]["clients"])))
        for client, seen in one.items():
            assert seen.num_examples == other[client].num_examples
            for mine, theirs in ((seen.arrays, other[client].arrays), (seen.received, other[client].received)):
                for name, array in (mine or {}).items():
                    assert np.linalg.norm(theirs[name] - array) <= 1e-3 * np.linalg.norm(array) + 1e-6
    for name, array in (here.final or {}).items():
        np.testing.assert_allclose(there.final[name], array, rtol=1e-3, atol=1e-4)


def test_the_attack_runs_over_what_the_app_records(tmp_path):
    record = run_here(tmp_path, FEDSGD)
    scores = ATTACKS["sia"].run(record, read_knowledge(tmp_path / "knowledge"), device="cpu")
    assert scores.arrays["losses"].shape == (2, 120, 3)
    assert np.isfinite(scores.arrays["losses"]).all()
    assert not scores.notes
