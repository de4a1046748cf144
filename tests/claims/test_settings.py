import pytest

from fedattack.base.errors import ConfigError
from fedattack.claims import compute_epsilon
from fedattack.claims.check import check_claim
from fedattack.claims.settings import claim_of_run, claimed_besides
from fedattack.defences.guarantee import update_privacy
from fedattack.privacy import ExampleSampling, privacy_spent
from fedattack.record.folder import write_study
from tests.claims.recorded.runs import LAYERS, Run, laplace, write_run

SETTINGS = {
    "defence": "none",
    "defence-strength": 0.0,
    "defence-clip": 1.0,
    "dp-noise": 0.0,
    "dp-epsilon": 0.0,
    "dp-clip": 1.0,
    "dp-delta": 1e-5,
    "central-noise": 0.0,
    "canaries": 0,
    "rounds": 3,
    "lr": 0.5,
    "batch-size": 64,
    "local-epochs": 2,
}


@pytest.fixture
def folder(tmp_path):
    def written(run=Run(LAYERS), **settings):  # noqa: B008
        write_run(tmp_path / "record", run)
        write_study(tmp_path, {"settings": {**SETTINGS, **settings}})
        return tmp_path

    return written


@pytest.mark.parametrize(
    ("defence", "mechanism"), [("dp-gaussian", "gaussian"), ("flower-localdp", "gaussian"), ("dp-laplace", "laplace")]
)
def test_noise_on_the_update(folder, defence, mechanism):
    settings = {"defence": defence, "defence-strength": 0.1}
    run = Run(LAYERS, draw=laplace) if mechanism == "laplace" else Run(LAYERS)
    made = folder(run, **settings)
    claim = claim_of_run(made)
    assert (claim.mechanism, claim.sigma, claim.clip, claim.rounds, claim.delta) == (mechanism, 0.1, 1.0, 3, 1e-5)
    spent = update_privacy({**SETTINGS, **settings}, rounds=3).epsilon_run
    assert spent <= claim.epsilon == pytest.approx(spent, rel=0.01)
    assert compute_epsilon(claim).run.high == spent, "the report and the claim's page say one ε"
    answer = check_claim(None, record=made)
    assert answer.verdict == "consistent"
    assert "read from the settings" in answer.notes[0]


@pytest.mark.parametrize("settings", [{"dp-noise": 1.5}, {"defence": "dp-sgd", "defence-strength": 1.5}])
def test_dp_sgd_speaks_of_the_client_that_spends_most(folder, settings):
    made = folder(Run(LAYERS, counts=[100, 50, *[200] * 8]), **settings)
    claim = claim_of_run(made)
    spent = [
        (privacy_spent(1.5, each, rounds=3, delta=1e-5).epsilon_run, each)
        for each in (ExampleSampling.of(size, batch_size=64, epochs=2) for size in (50, 100, 200))
    ]
    epsilon, sampling = max(spent, key=lambda pair: pair[0])
    assert epsilon <= claim.epsilon == pytest.approx(epsilon, rel=0.01)
    assert compute_epsilon(claim).run.high == epsilon, "the report and the claim's page say one ε"
    assert (claim.sampling, claim.steps) == (sampling.rate, sampling.steps)
    assert (claim.batch_size, claim.learning_rate, claim.noise_multiplier) == (64, 0.5, 1.5)


def test_gradients_are_divided_by_all_examples(folder):
    made = folder(Run(LAYERS, protocol="fedsgd", counts=[100, 50, *[200] * 8]), **{"dp-noise": 1.5})
    claim = claim_of_run(made)
    assert (claim.batch_size, claim.sampling, claim.steps) == (200, 1.0, 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "defence = 'none' claims no ε; give --claim"),
        ({"defence": "sparsify", "defence-strength": 0.5}, "defence = 'sparsify' claims no ε"),
        ({"defence": "dp-gaussian", "defence-strength": 0.1, "defence-clip": 0.0}, "claims no ε"),
        ({"dp-epsilon": 3.0}, "each client has noise of its own"),
    ],
)
def test_runs_that_claim_nothing(folder, settings, said):
    with pytest.raises(ConfigError, match=said):
        claim_of_run(folder(**settings))


CENTRAL = {"central-noise": 1.0, "central-clip": 1.0, "clients": 10, "canaries": 0, "fraction": 1.0}
UPDATES = {"defence": "dp-gaussian", "defence-strength": 0.1}
STEPS = {"dp-noise": 1.5}


@pytest.mark.parametrize(("besides", "said"), [(STEPS, "DP-SGD by the clients"), (UPDATES, "noise on each client's")])
def test_what_clients_claim_beside_the_noise_of_the_server_is_said(folder, besides, said):
    made = folder(Run(LAYERS, sigma=0.1, central=0.1), **CENTRAL, **besides)
    answer = check_claim(None, record=made)
    assert answer.claim.mechanism == "central-gaussian"
    assert said in answer.notes[1]
    assert "too, which is not checked here; to check it give --claim" in answer.notes[1]


def test_a_server_that_adds_noise_alone_claims_nothing_besides(folder):
    assert claimed_besides(folder(**CENTRAL)) == ""


@pytest.mark.parametrize(
    ("settings", "lacks", "said"),
    [
        (CENTRAL, "fraction", "fraction is missing"),
        (UPDATES, "defence-clip", "defence-clip is missing"),
        (STEPS, "lr", "lr is missing"),
        ({"defence": 3}, "", "defence: input should be a valid string, got 3"),
        ({**UPDATES, "defence-clip": True}, "", "defence-clip: input should be a valid number"),
        ({**UPDATES, "rounds": "3"}, "", "rounds: input should be a valid integer"),
        ({**UPDATES, "dp-delta": 2.0}, "", "dp-delta: input should be less than 1"),
        ({**UPDATES, "defence-strength": 1e300}, "", "value error, expected 0, or from 1e-40 to 1e+40, got 1e+300"),
        ({**CENTRAL, "central-noise": 1e9}, "", "expected noise of an ε above 0 and finite, got noise of ε = 0"),
        ({**CENTRAL, "clients": 2**53, "canaries": 2**53}, "", "clients: input should be less than or equal to"),
        ({**STEPS, "lr": 0.0}, "", "lr: input should be greater than 0"),
    ],
)
def test_settings_that_nobody_can_claim_by(folder, settings, lacks, said):
    made = folder(Run(LAYERS, rounds=1, clients=1), **settings)
    study = {key: value for key, value in {**SETTINGS, **settings}.items() if key != lacks}
    write_study(made, {"settings": study})
    with pytest.raises(ConfigError) as caught:
        check_claim(None, record=made)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text


def test_counts_of_no_whole_example(folder):
    made = folder(Run(LAYERS, rounds=1, clients=2, counts=[0.25, 64]), **STEPS)
    assert claim_of_run(made).batch_size == 64


def test_a_claim_that_lies_in_the_folder_is_named_and_not_read(tmp_path):
    made = tmp_path / "my run"
    write_run(made / "record", Run(LAYERS, rounds=1, clients=1))
    (made / "claim.toml").write_text("no claim")
    with pytest.raises(ConfigError, match=f"does not state a claim; give --claim '{made}/claim.toml'$"):
        claim_of_run(made)


def test_a_record_of_somewhere_else(tmp_path):
    write_run(tmp_path / "record", Run(LAYERS))
    with pytest.raises(ConfigError, match="does not state a claim; give --claim"):
        claim_of_run(tmp_path)
