"""Runs whose noise is known, from their record to the findings."""

import numpy as np
import pytest

from fedattack.base.errors import RecordError
from fedattack.claims import make_claim
from fedattack.claims.advice import Given, steps_of
from fedattack.claims.check import check_claim
from fedattack.claims.finding import CONSISTENT, CONTRADICTED, UNCHECKED
from fedattack.claims.recorded.findings import recorded_epsilon
from fedattack.claims.words import answer_lines
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Exchange, RecordWriter, Reply
from fedattack.record.nodes import note_node
from fedattack.report.claim_words import readable, short_of
from tests.claims.recorded.runs import LAYERS, Run, laplace, seen, write_run

DELTA = 1e-5
NODES = [str(100 + client) for client in range(10)]
GAUSSIAN = {"mechanism": "gaussian", "sigma": 0.1, "clip": 1.0}
STEP = {
    "mechanism": "dp-sgd",
    "noise_multiplier": 1.0,
    "clip": 1.0,
    "steps": 2,
    "learning_rate": 0.1,
    "batch_size": 32.0,
}


def claim(**values):
    return make_claim("claim.toml", **{"epsilon": 1000.0, "delta": DELTA, "rounds": 3, **values})


@pytest.fixture
def check(tmp_path):
    def checked(run, **values):
        write_run(tmp_path / "record", run)
        return check_claim(claim(**values), record=tmp_path / "record")

    return checked


def test_an_honest_run_is_consistent(check):
    answer = check(Run(LAYERS), **GAUSSIAN)
    recorded, missing = seen(answer)
    configured = answer.findings[0]
    assert answer.verdict == recorded.verdict == missing.verdict == CONSISTENT
    assert 0.9 * configured.run.low < recorded.value < configured.run.high
    assert recorded.message.low < configured.message.high
    assert missing.value == 0
    assert missing.clients == ()
    assert [client["node"] for client in answer.recorded["clients"]] == NODES
    assert answer.recorded["clients"][0]["noise_at_most"] == pytest.approx(0.1, rel=0.05)
    assert {test["name"]: test["error_rate"] for test in answer.recorded["tests"]} == {"noise": 0.025, "norms": 0.01}


@pytest.mark.parametrize(
    ("fault", "named", "said"),
    [
        ({"others": {3: {"": 0.0}}}, ("103",), "at most σ = 0.00"),
        ({"others": {3: {"": 0.01}}}, ("103",), "at most σ = 0.01"),
        ({"others": {3: {"second": 0.0}}}, ("103",), "in second.weight"),
        ({"unclipped": (5,), "norm": 20.0}, ("105",), "it is not clipped"),
    ],
    ids=["none", "a tenth", "half of the layers", "not clipped"],
)
def test_who_adds_too_little_noise_is_named(check, fault, named, said):
    answer = check(Run(LAYERS, **fault), **GAUSSIAN)
    _, missing = seen(answer)
    assert answer.verdict == missing.verdict == CONTRADICTED
    assert missing.clients == named
    assert missing.value == len(named)
    assert said in missing.reason
    (first,) = (client for client in answer.recorded["clients"] if client["node"] == named[0])
    assert said.removeprefix("at most ") in first["faults"][0]


def test_laplace(check):
    _, missing = seen(check(Run(LAYERS, draw=laplace), mechanism="laplace", sigma=0.1, clip=1.0))
    assert missing.verdict == CONSISTENT


def test_laplace_that_is_missing(check):
    others = Run(LAYERS, draw=laplace, others={3: {"": 0.0}})
    _, missing = seen(check(others, mechanism="laplace", sigma=0.1, clip=1.0))
    assert missing.clients == ("103",)
    assert "b = 0.00" in missing.reason


def test_the_platform_is_contradicted_by_its_updates_own_size(check):
    """Noise far below the entries: nobody sees whether it is there, and so little is no privacy."""
    answer = check(Run(LAYERS, sigma=4.845e-5), mechanism="flower-localdp", clip=1.0, sensitivity=1e-4, epsilon=10.0)
    recorded, missing = seen(answer)
    assert recorded.verdict == CONTRADICTED
    assert recorded.value > 1e4
    assert missing.verdict == UNCHECKED
    assert "would not be noticed" in missing.reason
    assert "no ε below 10^" in answer.sentence


def test_the_platform_with_a_client_that_forgot_the_mod(check):
    run = Run(LAYERS, sigma=4.845e-5, others={2: {"": 0.0}}, unclipped=(2,))
    _, missing = seen(check(run, mechanism="flower-localdp", clip=1.0, sensitivity=1e-4, epsilon=10.0))
    assert missing.clients == ("102",)


def test_a_step_of_dp_sgd(check):
    answer = check(Run(LAYERS, sigma=0.1 / 32), **STEP)
    recorded, missing = seen(answer)
    assert recorded.verdict == CONSISTENT
    assert 0 < recorded.value < answer.findings[0].value
    assert missing.verdict == UNCHECKED
    assert "all steps" in recorded.assumes[1]


def test_a_client_of_dp_sgd_without_noise(check):
    run = Run(LAYERS, sigma=1 / 32, norm=0.1, others={4: {"": 0.0}})
    _, missing = seen(check(run, **{**STEP, "learning_rate": 1.0}))
    assert missing.clients == ("104",)


def test_dp_sgd_needs_its_learning_rate(check):
    values = {key: value for key, value in STEP.items() if key != "learning_rate"}
    for finding in seen(check(Run(LAYERS), **values)):
        assert finding.verdict == UNCHECKED
        assert "learning-rate and batch-size" in finding.reason


@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e308])
def test_a_step_that_is_no_number_is_not_told(check, rate):
    recorded, missing = seen(check(Run(LAYERS, rounds=1), **{**STEP, "learning_rate": rate, "clip": 1e10}))
    for finding in (recorded, missing):
        assert finding.verdict == UNCHECKED
        assert "learning-rate and batch-size" in finding.reason


def test_gradients_are_updates(check):
    run = Run(LAYERS, protocol="fedsgd", others={3: {"": 0.0}})
    _, missing = seen(check(run, **GAUSSIAN))
    assert missing.clients == ("103",)


@pytest.mark.parametrize("aggregate", [False, True], ids=["replies", "sums"])
@pytest.mark.parametrize("mechanism", ["central-gaussian", "central-adaptive"])
def test_a_record_does_not_tell_the_noise_of_a_server(check, aggregate, mechanism):
    """Whoever adds none, or all of it: nothing is said about clients, who add none."""
    run = Run(LAYERS, sigma=0.0, central=0.1, aggregate=aggregate)
    answer = check(run, mechanism=mechanism, noise_multiplier=1.0, clip=1.0, clients=10)
    for finding in seen(answer):
        assert finding.verdict == UNCHECKED
        assert finding.value is None
        assert finding.reason.startswith("the server adds the noise, and a record only shows noise that clients add")
    assert answer.recorded["clients"] == []
    assert answer.recorded["noise_claimed"] is None


def test_sums_name_nobody(check):
    answer = check(Run(LAYERS, aggregate=True), **GAUSSIAN)
    recorded, missing = seen(answer)
    assert recorded.verdict == missing.verdict == CONSISTENT
    assert recorded.value < answer.findings[0].run.low
    assert "no client can be named" in answer.recorded["notes"][0]


def test_sums_with_too_little_noise(check):
    run = Run(LAYERS, aggregate=True, others={client: {"": 0.0} for client in range(5)}, counts=[100] * 10)
    _, missing = seen(check(run, **GAUSSIAN))
    assert missing.verdict == CONTRADICTED
    assert missing.clients == ()


def write(path, common, replies, protocol="fedavg", rounds=1):
    writer = RecordWriter(path, protocol=protocol)
    for number in range(1, rounds + 1):
        writer.write(Exchange(number, common, [Reply(str(n), "ok", arrays, 10) for n, arrays in enumerate(replies)]))
    writer.close()
    return path


def test_a_frozen_array_tells_nothing(tmp_path):
    rng = np.random.default_rng(0)
    zeros = {"frozen": np.ones(500, np.float32), "head": np.zeros(500, np.float32)}
    replies = [{**zeros, "head": rng.normal(0, 0.1, 500).astype(np.float32)} for _ in range(3)]
    answer = check_claim(claim(**GAUSSIAN), record=write(tmp_path / "r", zeros, replies))
    assert seen(answer)[1].verdict == CONSISTENT
    assert "frozen: no client changed it" in answer.recorded["notes"][0]


def test_an_array_that_one_client_alone_leaves_as_it_is(tmp_path):
    rng = np.random.default_rng(0)
    zeros = {"head": np.zeros(500, np.float32)}
    replies = [{"head": rng.normal(0, 0.1, 500).astype(np.float32)} for _ in range(3)]
    answer = check_claim(claim(**GAUSSIAN), record=write(tmp_path / "r", zeros, [*replies, zeros]))
    assert seen(answer)[1].clients == ("3",)


def test_what_is_no_noise_of_real_numbers(tmp_path):
    rng = np.random.default_rng(0)
    before = {"a": np.zeros(500, np.float32), "n": np.int64([3]), "bn.running_var": np.full(300, 0.01, np.float32)}
    replies = []
    for _ in range(3):
        var = np.maximum(0.01 + rng.normal(0, 0.1, 300), 0).astype(np.float32)
        replies.append({"a": rng.normal(0, 0.1, 500).astype(np.float32), "n": np.int64([7]), "bn.running_var": var})
    answer = check_claim(claim(**GAUSSIAN), record=write(tmp_path / "r", before, replies))
    assert seen(answer)[1].verdict == CONSISTENT
    notes = " ".join(answer.recorded["notes"])
    assert "n (int64) changes" in notes
    assert "bn.running_var: zeros may be negative values" in notes


def test_one_client_and_one_round(tmp_path):
    sent = {"a": np.random.default_rng(0).normal(0, 0.1, 500).astype(np.float32)}
    path = write(tmp_path / "r", {"a": np.zeros(500, np.float32)}, [sent])
    answer = check_claim(claim(**GAUSSIAN), record=path)
    assert seen(answer)[1].verdict == CONSISTENT
    assert "by the record of a round" in seen(answer)[0].reason


def test_a_client_that_got_another_model_is_held_against_that(tmp_path):
    rng = np.random.default_rng(0)
    common, other = {"a": np.zeros(500, np.float32)}, {"a": np.full(500, 7.0, np.float32)}
    sent = {"a": (7 + rng.normal(0, 0.1, 500)).astype(np.float32)}
    late = Reply("1", "late", {"a": np.zeros(500, np.float32)}, 10, of_round=0)
    writer = RecordWriter(tmp_path / "r", server="isolating")
    writer.write(Exchange(1, common, [Reply("0", "ok", sent, 10, received=other), late]))
    writer.close()
    answer = check_claim(claim(**GAUSSIAN), record=tmp_path / "r")
    assert seen(answer)[1].reason == "client 1 cannot be examined: it came late (round 1)"
    assert answer.recorded["clients"][0]["norm_most"] < 5
    assert "1 late replies are left out" in answer.recorded["notes"]


def test_sums_of_clients_that_were_sent_different_models_tell_no_noise(tmp_path):
    common = {"a": np.zeros(500, np.float32)}
    writer = RecordWriter(tmp_path / "r", view="aggregate", server="imprint")
    writer.write(Exchange(1, common, [Reply("0", "ok", None, 10)], aggregate={"a": np.ones(500)}))
    writer.close()
    answer = check_claim(claim(**GAUSSIAN), record=tmp_path / "r")
    assert "sent clients different models" in seen(answer)[1].reason


def test_rounding_of_secagg_is_allowed_for(tmp_path):
    """Values on a grid of 0.1: noise of 0.01 cannot be seen in them, nor be missed."""
    told = {
        "kind": "mean",
        "weight": "num-examples",
        "by": "secagg+",
        "max_weight": 10.0,
        "clipping": 8.0,
        "steps": 160,
    }
    writer = RecordWriter(tmp_path / "r", view="aggregate", aggregation=told)
    common = {"a": np.zeros(500, np.float32)}
    mean = {"a": np.where(np.arange(500) == 0, 0.1, 0.0).astype(np.float32)}
    writer.write(Exchange(1, common, [Reply("0", "ok", None, 10)], aggregate=mean))
    writer.close()
    answer = check_claim(claim(mechanism="gaussian", sigma=0.01, clip=1.0), record=tmp_path / "r")
    assert seen(answer)[1].verdict == UNCHECKED
    assert answer.recorded["server"]["noise_at_most"] > 0.01


@pytest.mark.parametrize(
    ("protocol", "common", "said"),
    [
        ("fedavg", None, "no round of the record has both a reply and the model that it started from"),
        ("fedmd", {"predictions": np.zeros((5, 2), np.float32)}, "replies of fedmd are predictions"),
    ],
)
def test_records_that_show_nothing(tmp_path, protocol, common, said):
    sent = {"predictions" if protocol == "fedmd" else "a": np.ones((5, 2), np.float32)}
    path = write(tmp_path / "r", common, [sent], protocol)
    answer = check_claim(claim(**GAUSSIAN), record=path)
    for finding in seen(answer):
        assert finding.verdict == UNCHECKED
        assert said in finding.reason


def test_gradients_and_differences_are_not_taken_for_models(tmp_path):
    path = write(tmp_path / "r", {"a": np.zeros((5, 2), np.float32)}, [{"a": np.ones((5, 2), np.float32)}], "fedavg")
    for finding in seen(check_claim(claim(**GAUSSIAN), record=path, sends_models=False)):
        assert finding.verdict == UNCHECKED
        assert "clients send gradients or differences, and no models" in finding.reason
    assert any(finding.verdict != UNCHECKED for finding in seen(check_claim(claim(**GAUSSIAN), record=path)))


def test_no_record(tmp_path):
    with pytest.raises(RecordError, match="holds no record"):
        check_claim(claim(**GAUSSIAN), record=tmp_path)


def test_a_claim_without_noise_or_norm(check):
    recorded, missing = seen(check(Run(LAYERS), mechanism="gaussian", clip=1.0))
    assert recorded.verdict == CONSISTENT
    assert missing.verdict == UNCHECKED
    assert "it lacks sigma" in missing.reason


def test_sigma_without_a_norm(check):
    recorded, missing = seen(check(Run(LAYERS), mechanism="gaussian", sigma=0.1))
    assert recorded.verdict == UNCHECKED
    assert "lacks clip" in recorded.reason
    assert missing.verdict == CONSISTENT


def test_noise_that_all_lack_is_said_once_and_names_clients_as_the_auditor_does(tmp_path):
    write_run(tmp_path / "record", Run(LAYERS, sigma=1e-6))
    for number in (2, 10):
        note_node(tmp_path / "truth", node=f"{100 + number - 1}", client=str(number))
    answer = check_claim(claim(**GAUSSIAN), record=tmp_path)
    _, missing = seen(answer)
    assert missing.reason.startswith("no client sent the claimed noise: at most σ = ")
    assert missing.reason.count("is claimed") == 1
    assert missing.reason.endswith("Clients: 2, 10, 100, 102, 103, 104, 105, 106, 107, 108")
    names = {client["node"]: client["name"] for client in answer.recorded["clients"]}
    assert (names["101"], names["109"], names["103"]) == ("2", "10", "103")
    (file, _) = sorted((tmp_path / "truth" / "nodes").iterdir())
    file.write_text("{")
    damaged = check_claim(claim(**GAUSSIAN), record=tmp_path)
    assert seen(damaged)[1].clients == tuple(str(100 + number) for number in range(10))
    assert any("clients are called by their nodes" in note for note in damaged.recorded["notes"])


def test_several_seeds_share_the_error(tmp_path):
    for seed in (0, 1):
        run = Run(LAYERS, others={3: {"": 0.0}} if seed else None)
        write_run(tmp_path / "record" / f"seed-{seed}", run, seed)
    answer = check_claim(claim(**GAUSSIAN), record=tmp_path)
    _, missing = seen(answer)
    assert missing.clients == ("103",)
    assert missing.reason.startswith("client 103 of seed-1 did not send the claimed noise: at most σ = ")
    assert len(answer.recorded["clients"]) == 20
    assert answer.recorded["rounds"] == 6


def test_epsilon_of_messages_with_more_and_less_noise():
    said = claim(mechanism="gaussian", sigma=1.0, clip=1.0)
    message, run = recorded_epsilon(said, [[2.0, 4.0], [3.0]])
    assert message == pytest.approx(epsilon_of(2 / 2.0, DELTA))
    assert run == pytest.approx(epsilon_of(2 * np.hypot(1 / 2.0, 1 / 4.0), DELTA))
    assert recorded_epsilon(said, [[0.0]]) == (np.inf, np.inf)
    sampled = claim(mechanism="dp-sgd", clip=1.0, noise_multiplier=1.0, sampling=0.1)
    once, often = recorded_epsilon(sampled, [[1.0, 2.0], [1.5]])
    assert once > 0
    assert once <= often < recorded_epsilon(claim(mechanism="dp-sgd", clip=1.0), [[1.0, 2.0]])[1]


def test_who_adds_more_noise_than_claimed_is_not_accused(check):
    """An update that is too long for the claimed noise, and fits clipping with more noise."""
    answer = check(Run(LAYERS, others={3: {"": 0.2}}), **GAUSSIAN)
    _, missing = seen(answer)
    assert missing.verdict == UNCHECKED
    assert "client 103 cannot be examined: an update of norm" in missing.reason
    assert "more noise than claimed would explain it" in missing.reason
    (norms,) = (test for test in answer.recorded["tests"] if test["name"] == "norms")
    assert norms["failed"] == 0


MORE_ROUNDS = {"mechanism": "gaussian", "sigma": 10.0, "clip": 1.0, "epsilon": 1.35}


def test_more_rounds_than_claimed_are_no_missing_noise(check):
    """ε is 1.32 for three rounds and 1.75 for five."""
    answer = check(Run(LAYERS, rounds=5, sigma=10.0), **MORE_ROUNDS)
    recorded, _ = seen(answer)
    assert [finding.verdict for finding in answer.findings] == [CONSISTENT, CONTRADICTED, CONSISTENT]
    assert recorded.rounds == 5
    assert recorded.reason.startswith("the claim is about 3 rounds, but a client of the record takes part in 5")
    assert "ε of the run of 5 rounds is 1.71 or more" in recorded.reason
    assert "or more after 3), and 1.35 is claimed" in recorded.reason
    said = "The claim is about 3 rounds, but a client of the record takes part in 5. The record allows no ε below"
    assert said in answer.sentence
    assert "so little noise" not in recorded.reason
    whats = [step.what for step in steps_of(answer, Given())]
    assert whats[0] == "Claim the rounds that are run, rounds = 5, or stop after 3"
    assert "Find out where the noise is lost" not in whats
    assert "by the record of 5 rounds, and 1.35 is claimed for 3 rounds" in short_of(
        readable({**answer.to_dict(), "scope": "the run of 3 rounds"})
    )


def test_as_many_rounds_as_claimed_or_fewer_are_no_mismatch(check):
    recorded, _ = seen(check(Run(LAYERS, rounds=2, sigma=10.0), **MORE_ROUNDS))
    assert recorded.verdict == CONSISTENT
    assert recorded.rounds is None


def test_a_record_without_a_whole_round_is_not_checked_and_cannot_err(tmp_path):
    RecordWriter(tmp_path / "r")
    answer = check_claim(claim(**GAUSSIAN), record=tmp_path / "r")
    assert [finding.verdict for finding in seen(answer)] == [UNCHECKED] * 2
    assert answer.sentence.endswith("The record was not checked: it has no whole round.")
    assert answer.error_rate == 0
    assert "contradicted by accident" not in answer_lines(answer)[0]
