"""Canaries through `fedattack claim`."""

import json

import numpy as np
import pytest

from fedattack.claims import make_claim
from fedattack.claims.canaries import Canaries, CanaryResult, write_canaries
from fedattack.claims.canaries.measure import canary_finding, canary_sentence
from tests.claims.canaries.worlds import CLIP, DELTA, central_claim, central_run

CANARIES = Canaries(count=20, seed=3, clip=CLIP)
CLAIM = f"""
mechanism = "central-gaussian"
epsilon = 12
delta = {DELTA}
clip = {CLIP}
noise-multiplier = 1.5
clients = 30
rounds = 5
trusted-server = true
"""


@pytest.fixture
def run(tmp_path):
    """Make a run folder with canaries in its truth, and a claim; the noise is a share of what is claimed."""

    def made(share=1.0):
        folder = tmp_path / "run"
        central_run(folder / "record", noise=1.5 * share, canaries=CANARIES)
        (folder / "truth").mkdir()
        write_canaries(folder / "truth" / "canaries.toml", CANARIES)
        (folder / "claim.toml").write_text(CLAIM)
        return folder

    return made


def test_those_of_the_truth_are_measured(call, run):
    folder = run()
    code, out, _ = call("claim", folder, "--claim", folder / "claim.toml", "--json")
    value = json.loads(out)
    found = value["findings"][-1]
    assert (code, found["name"], found["verdict"]) == (0, "claim.epsilon-canaries", "consistent")
    assert 1 < found["value"] < 12
    assert value["canaries"]["count"] == 20
    page = (folder / "claim.html").read_text()
    assert "Scores of the canaries" in page
    assert "their share of the replies" in page


def test_too_little_noise_is_seen(call, run):
    folder = run(share=0.1)
    words = ("claim", folder, "--claim", folder / "claim.toml", "--fail-if", "claim.epsilon-canaries > 12")
    code, out, _ = call(*words)
    assert code == 3
    assert "claim.epsilon-canaries: contradicted" in out
    assert "The canaries in the run were detected. At 95 %, ε of the run of" in out


def test_a_record_by_itself_needs_to_be_told_of_them(call, run, tmp_path):
    folder = run()
    record, file = folder / "record", folder / "truth" / "canaries.toml"
    words = ("claim", record, "--claim", folder / "claim.toml", "--json")
    assert json.loads(call(*words)[1])["canaries"] is None
    assert json.loads(call(*words, "--canaries", file)[1])["canaries"]["count"] == 20
    code, _, err = call("claim", "--claim", folder / "claim.toml", "--canaries", file)
    assert code == 2
    assert "give also DIR, the run's record" in err


def test_examples_without_a_model_are_refused(call, run):
    folder = run()
    write_canaries(folder / "truth" / "canaries.toml", Canaries(kind="example", count=20, seed=3))
    (folder / "claim.toml").write_text(
        'mechanism = "dp-sgd"\nepsilon = 5\ndelta = 1e-5\nclip = 1.0\nnoise-multiplier = 1.0\nrounds = 5\n'
    )
    code, _, err = call("claim", folder, "--claim", folder / "claim.toml")
    assert code == 2
    assert "names no model" in err


def test_a_message_of_which_nothing_is_known_cannot_be_checked():
    result = CanaryResult("client", 20, None, 3.0, 4.0, 0.95, None, None, {"in": [], "out": []})
    claim = central_claim(1.5, 30, 5, epsilon_of="message")
    finding = canary_finding(claim, result)
    assert finding.verdict == "cannot be checked"
    assert canary_sentence(claim, finding, result).startswith("The canaries cannot show it")
    finding = canary_finding(
        make_claim("here", **(claim.model_dump(exclude_unset=True) | {"epsilon_of": "run"})), result
    )
    assert finding.verdict == "consistent"
    assert np.isinf(finding.high)


@pytest.mark.parametrize(
    ("by_order", "said"),
    [
        (None, "ε of the run of 5 rounds is 3 or more."),
        (0.5, "is 3 or more if their scores are Gaussian, as they look; their order alone shows 0.5."),
    ],
)
def test_the_sentence_says_what_the_bound_rests_on(by_order, said):
    result = CanaryResult("client", 20, None, 3.0, 4.0, 0.95, None, None, {"in": [], "out": []}, by_order=by_order)
    claim = central_claim(1.5, 30, 5)
    sentence = canary_sentence(claim, canary_finding(claim, result), result)
    assert sentence.startswith("The canaries in the run were detected. At 95 %, ")
    assert sentence.endswith(said)
