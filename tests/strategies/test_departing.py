"""Servers that send other models in their first rounds, and what is read off what comes back."""

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.finding import LEAK
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.base.errors import ConfigError, NeedsError
from fedattack.record import check_record
from fedattack.record.folder import RunFolder
from simulations.departures import make_departure
from simulations.study import Study
from tests.worlds.reference import DEFAULTS, run_preset

SHORT = ["clients=2", "rounds=2", "nulls=100", "auxiliary=200"]


def judged(record):
    """Attack a run and judge it; findings by metric, and the scores."""
    folder = record.path.parent
    # What is read here are single neurons and small ranks: a search over whole batches would take minutes.
    scores = (
        ATTACKS["exact"].with_options({"draws": "1000"}).run(record, read_knowledge(folder / "knowledge"), device="cpu")
    )
    scores.save(folder / "scores" / "exact.npz")
    found = {item.metric: item for item in judge_attacks(open_runs(RunFolder(folder)), setting={}, provenance={})}
    return found, scores


@pytest.fixture(scope="module")
def imprinted(tmp_path_factory):
    return run_preset("imprint", SHORT, 0, tmp_path_factory.mktemp("imprint"))


def test_of_a_batch_of_64_nine_in_ten_are_read_off(imprinted):
    assert imprinted.server == "imprint"
    assert check_record(imprinted.path).whole
    found, _ = judged(imprinted)
    assert (found["recovered"].n, found["recovered"].verdict) == (128, LEAK)
    assert found["recovered"].value >= 0.9
    assert found["recovered"].null["value"] == 0
    assert found["precision"].value == 1
    assert found["psnr"].value > 40


def test_the_honest_server_of_the_same_run_reads_little(tmp_path, imprinted):
    honest = run_preset("imprint", [*SHORT, "server=passive", "departures=0"], 0, tmp_path)
    found, _ = judged(honest)
    assert found["recovered"].value < 0.5
    # After the departure it goes on as if nothing had been.
    for name, array in honest.rounds[0].common.items():
        np.testing.assert_array_equal(imprinted.rounds[1].common[name], array)


def test_behind_sums_each_client_has_neurons_of_its_own(tmp_path):
    changes = [
        "clients=4",
        "records-per-client=32",
        "hidden=800",
        "secagg=true",
        "framework=fedavg",
        "rounds=1",
        "lr=1",
    ]
    record = run_preset("imprint", ["nulls=100", "auxiliary=200", *changes], 0, tmp_path)
    assert record.view == "aggregate"
    alive = np.array([seen.received["fc1.weight"].any(axis=1) for seen in record.rounds[0].observations])
    assert (alive.sum(axis=0) == 1).all()
    found, _ = judged(record)
    assert found["recovered"].value >= 0.7
    assert found["precision"].value > 0.95
    assert found["clients"].value >= 0.95
    # Who takes the common model for everybody's computes nothing.
    with pytest.raises(NeedsError, match="sums of clients that all received one model"):
        ATTACKS["membership-aggregate"].run(record, read_knowledge(tmp_path / "knowledge"), device="cpu")


def test_examples_of_one_class_are_brought_out(tmp_path):
    record = run_preset("fishing", SHORT, 0, tmp_path)
    assert record.server == "fishing"
    study = Study.of(
        DEFAULTS
        | {"server": "fishing", "clients": 2, "records-per-client": 64, "nulls": 100, "auxiliary": 200, "model": "mlp"}
    )
    chosen = make_departure(study).first
    found, scores = judged(record)
    assert found["precision"].value == 1
    x, y = map(np.concatenate, zip(*(study.records_of(client) for client in range(2)), strict=True))
    flat = x.reshape(len(x), -1)
    read = scores.arrays["examples"][scores.arrays["first"] < 2]
    labels = {int(y[np.abs(flat - one).max(axis=1).argmin()]) for one in read}
    assert labels == {chosen}
    assert len(read) >= 0.5 * (y == chosen).sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"server": "imprint", "model": "mlp"}, "needs its own examples"),
        (
            {"server": "imprint", "model": "linear", "nulls": 50, "auxiliary": 50},
            "a ReLU and another fully connected layer after fc1.weight",
        ),
        ({"server": "imprint", "model": "fedmd-cnn-1", "nulls": 50, "auxiliary": 50}, "here it is conv1, Conv2d"),
        ({"server": "fishing", "dataset": "diabetes"}, "needs a classifier"),
        ({"server": "fishing", "secagg": True}, "set secagg=false"),
        ({"departures": 2}, "departures = 2 with server = 'passive'"),
        ({"server": "inconsistent", "secagg": True, "framework": "fedsgd", "batch-size": 0}, "needs secagg = false"),
        ({"server": "isolating", "framework": "fedsgd", "batch-size": 0}, "expected framework = 'fedavg'"),
        ({"server": "fishing", "framework": "fedmd"}, "needs server"),
    ],
)
def test_what_a_model_or_a_framework_does_not_allow_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        make_departure(Study.of(DEFAULTS | changes))
