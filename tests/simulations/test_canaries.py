"""Central noise, canary clients and canary examples as settings of the reference system."""

import json
import subprocess
import sys

import numpy as np
import pytest

from clients.app import kind_of
from clients.canary import CanaryClient
from clients.fedavg import FedAvgClient, dump_arrays
from fedattack.attacks import read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError
from fedattack.claims import compute_epsilon
from fedattack.claims.canaries import CANARIES, measure_canaries, read_canaries, read_examples
from fedattack.claims.canaries.directions import move_arrays
from fedattack.record import Record
from fedattack.runs.settings import nodes_of
from simulations.canaries import canaries_of
from simulations.claims import central_claim, central_notes
from simulations.prepare import prepare_run
from simulations.study import Study
from tests.worlds import reference
from tests.worlds.reference import change

DEFAULTS = reference.DEFAULTS | {"device": "cpu"}


def study(**changes):
    return Study.of(change(DEFAULTS, changes))


def folders(tmp_path):
    return {name: str(tmp_path / name) for name in ("truth", "knowledge")}


def test_canaries_are_nodes_after_the_clients_who_hold_what_they_held_without():
    ours, plain = study(canaries=3), study()
    assert ours.settings.nodes == 13 == nodes_of(DEFAULTS | {"canaries": 3})
    assert nodes_of(DEFAULTS | {"canaries": 0}) == 10
    assert [kind_of(ours, client) for client in (0, 9, 10, 12)] == [FedAvgClient] * 2 + [CanaryClient] * 2
    for client in range(10):
        assert np.array_equal(ours.records_of(client)[0], plain.records_of(client)[0])


def test_a_canary_client_sends_its_direction():
    ours = study(canaries=3, central_clip=0.5)
    start = dump_arrays(ours.models.build())
    client = CanaryClient(ours, 11)
    sent, count, metrics = client.fit([array.copy() for array in start], {"server-round": 1})
    seed = canaries_of(ours.settings).seed
    expected = move_arrays({str(place): array for place, array in enumerate(start)}, seed, 1, 0.5)
    for got, wanted in zip(sent, expected.values(), strict=True):
        assert np.array_equal(got, wanted)
    assert count == round(np.mean(ours.sizes))
    # All clients send the same metrics, or Flower refuses the round.
    assert metrics.keys() == {"train-loss"}
    assert CanaryClient(study(canaries=3, dp_noise=1.0), 11).fit(start, {})[2] == {}


def test_canaries_are_as_long_as_updates_may_be():
    assert canaries_of(study(canaries=3, central_clip=0.5).settings).clip == 0.5
    local = study(canaries=3, defence="dp-gaussian", defence_strength=1.0, defence_clip=2.0)
    assert canaries_of(local.settings).clip == 2.0


def test_examples_are_added_by_coins():
    ours, plain = study(canary_examples=60), study()
    added = []
    for client in range(10):
        x, y = ours.records_of(client)
        own = plain.records_of(client)[1]
        assert np.array_equal(y[: len(own)], own)
        assert x.dtype == np.float32
        added.append(len(y) - len(own))
    assert 15 < sum(added) < 45
    assert ours.sizes == [size + more for size, more in zip(plain.sizes, added, strict=True)]
    assert np.array_equal(study(canary_examples=60).records_of(0)[0], ours.records_of(0)[0])
    assert not np.array_equal(study(canary_examples=60, seed=1).canary_examples.x, ours.canary_examples.x)


def test_who_the_canaries_are_stands_in_the_truth(tmp_path):
    noisy = {"defence": "dp-gaussian", "defence-strength": 1.0}
    prepare_run(DEFAULTS | folders(tmp_path) | {"canaries": 4, "central-noise": 2.0} | noisy)
    canaries = read_canaries(tmp_path / "truth" / CANARIES)
    assert (canaries.kind, canaries.count, canaries.clip) == ("client", 4, 1.0)
    truth = read_truth(tmp_path / "truth")
    assert list(truth.clients) == [str(client) for client in range(10)]
    assert len(truth.counts) == len(truth.privacy.noise) == 10
    assert min(truth.privacy.epsilon_run) > 0
    assert list(truth.canaries) == [str(canary) for canary in range(10, 14)]
    assert read_knowledge(tmp_path / "knowledge").canaries == truth.canaries
    assert "central noise: ε = " in truth.notes[-1]


def test_the_coins_stand_in_the_truth(tmp_path):
    config = DEFAULTS | folders(tmp_path) | {"canary-examples": 20}
    prepare_run(config)
    examples = read_examples(tmp_path / "truth")
    assert np.array_equal(examples.included, Study.of(config).canary_examples.included)
    assert read_canaries(tmp_path / "truth" / CANARIES).kind == "example"


def test_central_noise_claims_what_arithmetic_says():
    settings = study(central_noise=2.0, canaries=10, rounds=4).settings
    claim = central_claim(settings)
    assert (claim.clients, claim.multiplier, claim.rounds) == (20, 2.0, 4)
    # Four rounds of z = 2 are one of z = 1.
    assert compute_epsilon(claim).run.high == pytest.approx(4.3772, rel=1e-3)
    assert "ε = 4.38" in central_notes(settings)[0]
    assert central_notes(study().settings) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"canaries": 1}, "canaries = 1: expected 2 or more"),
        ({"canaries": 2001}, "canaries = 2001: expected at most 1000"),
        ({"canary_examples": 1}, "canary-examples = 1: expected 2 or more"),
        ({"canaries": 2, "canary_examples": 2}, "expected one of them"),
        ({"central_noise": 1.0, "secagg": True}, "central-noise and secagg"),
        ({"canaries": 2, "property": "ascent"}, "set one off"),
        ({"central_noise": 1.0, "server": "isolating"}, "set one off"),
        ({"canaries": 2, "framework": "fedmd"}, "needs canaries = 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, fault):
    with pytest.raises(ConfigError, match=fault):
        study(**changes)


def test_examples_need_classes():
    with pytest.raises(ConfigError, match="expected data with classes"):
        _ = study(dataset="diabetes", canary_examples=4).canary_examples


@pytest.mark.flower
@pytest.mark.long
def test_a_real_run_is_told_by_its_canaries(tmp_path):
    """Of noise as claimed, the bound is below; the run goes through attacks and report as any other."""
    out = tmp_path / "run"
    settings = ("canaries=10", "central-noise=1.0", "clients=4", "rounds=2", "targets=20")
    words = ["audit", "quickstart", "--out", str(out), "--seeds", "1"]
    for setting in settings:
        words += ["--set", setting]
    subprocess.run([sys.executable, "-m", "fedattack", *words], check=True)
    run = study(canaries=10, central_noise=1.0, clients=4, rounds=2).settings
    canaries = read_canaries(out / "truth" / CANARIES)
    assert canaries == canaries_of(run)
    found = measure_canaries(Record(out / "record"), canaries, central_claim(run))
    assert 0 < found.bound_run < 1.1 * found.accountant
    assert np.mean(found.scores["in"]) > 0.7
    asr = json.loads((out / "findings.json").read_text())[0]
    assert asr["chance"] == pytest.approx(1 / 4)
    assert any(note.startswith("10 canaries took part") for note in json.loads((out / "run.json").read_text())["notes"])
