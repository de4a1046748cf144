import json

import pytest

from fedattack.attacks import Knowledge, write_knowledge
from fedattack.attacks.knowledge import Sends
from fedattack.audit.gate import CLAIM_VERDICTS, WHOLE_CLAIM
from fedattack.claims.finding import VERDICTS, WHOLE
from tests.claims.known import PLATFORM_CLAIM
from tests.claims.recorded.runs import LAYERS, Run, write_run

PLATFORM = PLATFORM_CLAIM.format(rounds=5)


@pytest.fixture
def claim_file(tmp_path):
    path = tmp_path / "claim.toml"
    path.write_text(PLATFORM)
    return str(path)


def test_arithmetic_alone_needs_no_code(call, claim_file):
    code, out, _ = call("claim", "--claim", claim_file)
    assert code == 0
    assert "Contradicted. The run claims ε = 10" in out
    assert "claim.epsilon-configured" in out
    assert "≥ 10^9" in out


def test_nothing_is_said_of_a_number_that_does_not_exist(call, tmp_path):
    path = tmp_path / "claim.toml"
    path.write_text('mechanism = "gaussian"\nclip = 1.0\nepsilon = 2.0\ndelta = 1e-5\nrounds = 5\n')
    code, out, _ = call("claim", "--claim", path)
    assert code == 0
    assert "Cannot be checked." in out
    assert "Arithmetic cannot be wrong" not in out
    assert "assumed" not in out


def test_nothing_is_trusted_where_no_code_is_imported(call, claim_file, tmp_path, monkeypatch):
    def refuse(*words):
        raise AssertionError("it would say that code is imported")

    monkeypatch.setattr("fedattack.cli.commands.claim.trust_knowledge", refuse)
    write_run(tmp_path / "record", Run(LAYERS, rounds=1))
    assert call("claim", tmp_path, "--claim", claim_file)[0] == 0


@pytest.mark.slow
def test_a_mechanism_is_tested(call, claim_file):
    code, out, _ = call(
        "claim", "--claim", claim_file, "--mechanism", "tests.claims.known:platform", "--draws", "2000", "--json"
    )
    value = json.loads(out)
    assert code == 0
    assert value["verdict"] == "contradicted"
    assert [finding["verdict"] for finding in value["findings"]] == ["contradicted"] * 2
    assert value["measured"]["told"] == value["measured"]["tries"]
    assert value["claim"]["epsilon"] == 10


def test_a_record_is_looked_at(call, claim_file, tmp_path):
    run = Run(LAYERS, rounds=2, sigma=4.845e-5, others={2: {"": 0.0}}, unclipped=(2,))
    write_run(tmp_path / "record", run)
    words = ("claim", tmp_path, "--claim", claim_file)
    code, out, _ = call(*words)
    assert code == 0
    assert "client 102: an update of norm" in out
    assert "claim.epsilon-recorded" in out
    value = json.loads(call(*words, "--json")[1])
    assert {client["node"]: bool(client["faults"]) for client in value["recorded"]["clients"]}["102"]
    assert call(*words, "--fail-if", "claim.noise-missing > 0")[0] == 3
    assert call(*words, "--fail-if", "claim.noise-missing > 1")[0] == 0
    assert call(*words, "--fail-if", "claim.epsilon-recorded > 1000")[0] == 3


def test_of_clients_that_send_gradients_nothing_is_read_off_a_record(call, claim_file, tmp_path):
    write_run(tmp_path / "record", Run(LAYERS, rounds=2, sigma=4.845e-5))
    words = ("claim", tmp_path, "--claim", claim_file, "--json")
    assert json.loads(call(*words)[1])["recorded"]["clients"]
    write_knowledge(tmp_path / "knowledge", Knowledge(sends=Sends(factors={"101": -0.1})))
    value = json.loads(call(*words)[1])
    reasons = {finding["reason"] for finding in value["findings"] if finding["verdict"] == "cannot be checked"}
    assert any("clients send gradients or differences, and no models" in reason for reason in reasons)
    assert not any(client["faults"] for client in value["recorded"]["clients"])


@pytest.mark.parametrize(
    ("condition", "code"),
    [(" > 10", 3), (" > 1e12", 0), (".low > 10", 3), (".verdict == contradicted", 3), (".verdict == consistent", 0)],
)
def test_a_pipeline_can_fail_on_it(call, claim_file, condition, code):
    words = ("claim", "--claim", claim_file, "--fail-if", f"claim.epsilon-configured{condition}")
    assert call(*words)[0] == code


@pytest.mark.parametrize(
    ("condition", "honest", "wrong", "open_"),
    [("== contradicted", 0, 3, 0), ("!= consistent", 0, 3, 3), ("== 'cannot be checked'", 0, 0, 3)],
)
def test_a_pipeline_can_fail_on_the_whole_claim(call, tmp_path, condition, honest, wrong, open_):
    for noise, code in (("sigma = 9.69\n", honest), ("sigma = 0.1\n", wrong), ("", open_)):
        path = tmp_path / "claim.toml"
        path.write_text(f'mechanism = "gaussian"\nclip = 1.0\nepsilon = 2\ndelta = 1e-5\nrounds = 5\n{noise}')
        assert call("claim", "--claim", path, "--fail-if", f"claim.verdict {condition}")[0] == code


@pytest.mark.parametrize(
    "condition", ["claim", "verdict == leak", "sia.asr > 0.3", "claim.verdict.low > 1", "claim.epsilon-configured > x"]
)
def test_a_condition_that_is_none_is_answered_by_those_of_claims(call, claim_file, condition):
    code, _, err = call("claim", "--claim", claim_file, "--fail-if", condition)
    assert code == 2
    assert '"claim.verdict == contradicted"' in err
    assert "leak" not in err.replace("verdict == leak", "")
    assert "sia.asr" not in err.replace("sia.asr > 0.3", "")


def test_a_condition_on_what_cannot_be_checked_names_one_that_decides(call, claim_file, tmp_path):
    write_run(tmp_path / "record", Run(LAYERS, rounds=2, sigma=4.845e-5))
    words = ("claim", tmp_path, "--claim", claim_file, "--fail-if", "claim.noise-missing > 0")
    code, _, err = call(*words)
    assert code == 2
    assert 'ask for "claim.verdict == contradicted", which always decides' in err


def test_a_condition_on_what_was_not_measured_is_no_pass(call, claim_file):
    code, _, err = call("claim", "--claim", claim_file, "--fail-if", "claim.epsilon-measured > 10")
    assert code == 2
    assert "there is no finding claim.epsilon-measured" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "or DIR, the folder of a run"),
        (("--claim", "nowhere.toml"), "nowhere.toml is not there"),
        (("nowhere",), "nowhere"),
        (("--mechanism", "known"), "expected module:function"),
        (("--mechanism", "tests.claims.known:gaussian"), "there is no claim to check"),
    ],
)
def test_bad_input(call, words, said):
    code, _, err = call("claim", *words)
    assert code == 2
    assert said in err.replace("\n", " ")


def test_gates_know_the_verdicts_of_claims():
    assert CLAIM_VERDICTS == VERDICTS
    assert WHOLE_CLAIM == WHOLE
