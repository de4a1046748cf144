"""What DP-SGD changes of a study: what clients send, what the auditor knows, and what is refused."""

import math

import numpy as np
import pytest
import torch

from clients.fedavg import FedAvgClient, dump_arrays
from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning import LocalSGD, train_private
from fedattack.privacy import ExampleSampling, noise_for, privacy_spent
from fedattack.report import read_run, write_report
from simulations.defences import privacy_of
from simulations.privacy import noise_of, sampling_of
from simulations.study import Study
from tests.refusals import refused
from tests.worlds.attacked import audit_folder
from tests.worlds.reference import DEFAULTS, by_client, prepare_in, run_on_flower
from tests.worlds.sealed import edit

CONFIG = {**DEFAULTS, "rounds": 2, "lr": 0.1, "momentum": 0.5, "device": "cpu", "dp-noise": 1.2, "dp-clip": 0.7}
TRAINING = LocalSGD(epochs=1, batch_size=64, lr=0.1, momentum=0.5)


def reply(config, client=4, server_round=2):
    study = Study.of(config)
    return study, FedAvgClient(study, client).fit(dump_arrays(study.models.build()), {"server-round": server_round})


def test_a_private_client_trains_by_dp_sgd_and_sends_nothing_that_is_not_private():
    """Its mean loss, which clients send otherwise, is a function of its records without any noise."""
    study, (sent, count, metrics) = reply(CONFIG)
    model = study.models.build()
    names = list(model.state_dict())
    train_private(
        model,
        study.data.x_train[study.division.parts[4]],
        study.data.y_train[study.division.parts[4]],
        epochs=1,
        batch_size=64,
        lr=0.1,
        momentum=0.5,
        noise=1.2,
        clip=0.7,
        seed=study.noise_seed(4, 2),
    )
    for left, right in zip(sent, dump_arrays(model), strict=True):
        np.testing.assert_array_equal(left, right)
    assert list(model.state_dict()) == names
    assert (count, metrics) == (len(study.division.parts[4]), {})


def test_rounds_and_clients_have_noise_of_their_own():
    same = [reply(CONFIG, *which)[1][0] for which in ((4, 1), (4, 1), (4, 2), (5, 1))]
    first, again, *others = [np.concatenate([array.ravel() for array in arrays]) for arrays in same]
    np.testing.assert_array_equal(first, again)
    assert all(np.abs(first - other).max() > 0 for other in others)


def test_without_noise_nothing_changes_bit_for_bit():
    plain = {**CONFIG, "dp-noise": 0.0}
    _, (sent, count, metrics) = reply(plain)
    before = torch.get_rng_state()
    _, (again, same, others) = reply({**plain, "dp-clip": 1e-3, "dp-delta": 0.5})
    assert torch.equal(torch.get_rng_state(), before)
    for left, right in zip(sent, again, strict=True):
        np.testing.assert_array_equal(left, right)
    assert (count, metrics) == (same, others)
    assert list(metrics) == ["train-loss"]
    assert privacy_of(Study.of(plain)) is None


@pytest.mark.slow
def test_the_truth_has_each_client_s_own_epsilon(tmp_path):
    study = Study.of(CONFIG)
    privacy = privacy_of(study)
    known, truth = prepare_in(tmp_path, study, privacy=privacy)
    assert truth.privacy == privacy
    assert privacy.noise == (1.2,) * 10
    for client, part in enumerate(study.division.parts):
        rate, steps = min(64 / len(part), 1.0), math.ceil(len(part) / 64)
        spent = privacy_spent(1.2, ExampleSampling(rate, steps), rounds=2, delta=1e-5)
        assert privacy.epsilon_round[client] == spent.epsilon_round
        assert privacy.epsilon_run[client] == spent.epsilon_run
    assert len(set(privacy.epsilon_run)) > 1
    # The attacker is told nothing of it.
    assert known.training == TRAINING
    assert "privacy" not in (tmp_path / "knowledge" / "knowledge.json").read_text()
    assert not (tmp_path / "knowledge" / "privacy.json").exists()


@pytest.mark.slow
def test_a_budget_gives_each_client_the_noise_that_it_needs():
    config = {**CONFIG, "dp-noise": 0.0, "dp-epsilon": 3.0, "clients": 3, "local-epochs": 2}
    study = Study.of(config)
    privacy = privacy_of(study)
    assert all(2.97 < epsilon <= 3.0 for epsilon in privacy.epsilon_run)
    for client, part in enumerate(study.division.parts):
        sampling = sampling_of(study.settings, len(part))
        assert (
            privacy.noise[client]
            == noise_of(study.settings, len(part))
            == noise_for(3.0, sampling, rounds=2, delta=1e-5)
        )
    smallest = min(study.division.parts, key=len)
    assert noise_of(study.settings, len(smallest)) == max(privacy.noise)
    sent, other = reply(config, 1)[1][0], reply({**config, "dp-epsilon": 0.5}, 1)[1][0]
    assert any(np.abs(left - right).max() > 0 for left, right in zip(sent, other, strict=True))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dp-epsilon": 1.0}, ConfigError, "dp-noise = 1.2 and dp-epsilon = 1: expected one of them"),
        ({"dp-noise": 0.0, "dp-epsilon": 1e-9, "dp-delta": 1e-14}, ConfigError, "no noise keeps .* within ε = 1e-09"),
        ({"defence": "sparsify"}, ConfigError, "together with defence = 'sparsify': expected one defence"),
        (
            {"defence": "dp-sgd", "defence-strength": 1.0},
            ConfigError,
            "dp-noise = 1.2 and defence-strength = 1 of defence = 'dp-sgd': expected one of them",
        ),
        ({"model": "tests.clients.test_clients:normed"}, ModelError, "DP-SGD cannot train this model: BatchNorm"),
        ({"dp-noise": math.inf}, ConfigError, "dp-noise = inf: expected a number"),
    ],
)
def test_what_cannot_be_private_is_refused_in_one_line(changes, error, message):
    config = {**CONFIG, **changes}
    with refused(error, message):
        privacy_of(Study.of(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": [1.0]}, "expected σ and ε of each of 10 clients"),
        ({"epsilon_run": None}, "epsilon_run: input should be a valid list"),
        ({"delta": "small"}, "delta: input should be a valid number"),
        ({"mechanism": "hope"}, "mechanism: input should be 'dp-sgd', 'dp-gaussian'"),
    ],
)
@pytest.mark.slow
def test_a_truth_that_misstates_it_is_refused(tmp_path, change, message):
    study = Study.of(CONFIG)
    prepare_in(tmp_path, study, privacy=privacy_of(study))
    edit(tmp_path / "truth" / "privacy.json", change)
    edit(tmp_path / "truth" / "holdings.json", {})
    with pytest.raises(DataError, match=message):
        read_truth(tmp_path / "truth")


@pytest.mark.long
@pytest.mark.flower
def test_a_private_run_on_flower_is_audited_with_its_epsilon(tmp_path):
    config = {**CONFIG, "targets": 20}
    study, record = Study.of(config), run_on_flower(tmp_path, config)
    privacy = privacy_of(study)
    names = list(study.models.build().state_dict())
    first = by_client(record)[0]
    assert len(first) == 10
    for client, seen in first.items():
        assert list(seen.arrays) == names
        assert not seen.metrics
        _, (sent, count, _) = reply(config, int(client), 1)
        assert seen.num_examples == count
        for left, right in zip(seen.arrays.values(), sent, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-6)
    ATTACKS["sia"].run(record, read_knowledge(tmp_path / "knowledge"), device="cpu").save(
        tmp_path / "scores" / "sia.npz"
    )
    audit_folder(tmp_path, device="cpu")
    run = read_run(tmp_path)
    assert run["observed"]["in_plaintext"] == ["num-examples"]
    assert run["privacy"]["noise"] == {"low": 1.2, "high": 1.2}
    for name, values in (("epsilon_round", privacy.epsilon_round), ("epsilon_run", privacy.epsilon_run)):
        assert run["privacy"][name] == {"low": min(values), "high": max(values)}
    assert "ε of the whole run" in write_report(tmp_path).read_text()
