"""A Flower app that claims differential privacy, set up in several ways: run, observed, and held against its claim."""

import json
import math
import tomllib

import pytest
from dp_accounting import get_epsilon_gaussian

from fedattack.claims.check import check_claim, load_mechanism
from fedattack.claims.claim import read_claim
from fedattack.claims.measured import Trial
from fedattack.record import Record
from tests.apps.projects import ROOT
from tests.claims.apps.__main__ import check
from tests.claims.apps.cases import CASES, FORGETS, on_path
from tests.worlds.local_grid import FIRST_NODE

THREE_WAYS = ("claim.epsilon-configured", "claim.epsilon-recorded", "claim.epsilon-measured")


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_arithmetic_decides_all_but_the_clinic_that_forgets(case):
    expected = "consistent" if case.name == "forgotten" else case.verdict
    assert check_claim(read_claim(case.claim_file)).verdict == expected


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_claims_have_the_numbers_of_their_app(case, tmp_path):
    where = case.app(tmp_path, tmp_path / "record")
    config = tomllib.loads((where / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    claim = read_claim(case.claim_file)
    assert claim.rounds == config["num-server-rounds"]
    if case.privacy == "opacus":
        assert (claim.batch_size, claim.learning_rate) == (config["batch-size"], config["learning-rate"])
        assert claim.sampling == claim.batch_size / config["examples"]


def test_the_guide_shows_the_claims_of_the_clinics():
    guide = (ROOT / "fedattack" / "claims" / "README.md").read_text(encoding="utf-8")
    for name in ("platform", "honest"):
        lines = CASES[name].claim_file.read_text().splitlines()
        shown = "\n".join(line for line in lines if not line.startswith("#"))
        assert f"```toml\n{shown}\n```" in guide


def verdicts_of(answer):
    return {finding.name: finding.verdict for finding in answer.findings}


@pytest.mark.slow
def test_the_platform_is_contradicted_three_ways(tmp_path):
    case = CASES["platform"]
    where = case.play(tmp_path)
    with on_path(where):
        mod = load_mechanism(f"clinics.privacy:{case.mechanism}")
        answer = check_claim(read_claim(case.claim_file), mod, Trial(2000), record=tmp_path / "run")
    found = verdicts_of(answer)
    assert [found[name] for name in THREE_WAYS] == ["contradicted"] * 3
    assert answer.claim.mechanism == "flower-localdp"
    assert not answer.notes


def test_the_same_app_with_honest_numbers_is_consistent(tmp_path):
    case = CASES["honest"]
    case.play(tmp_path)
    answer = check_claim(read_claim(case.claim_file), record=tmp_path / "run")
    looked_at = ("claim.epsilon-configured", "claim.epsilon-recorded", "claim.noise-missing")
    assert verdicts_of(answer) == dict.fromkeys(looked_at, "consistent")
    # Flower's classical σ for a sensitivity of 2 at ε = 1, over five rounds.
    sigma = 2 * math.sqrt(2 * math.log(1.25 / 1e-5))
    epsilon = {finding.name: finding.value for finding in answer.findings}["claim.epsilon-configured"]
    assert epsilon == pytest.approx(get_epsilon_gaussian(sigma / (2 * math.sqrt(5)), 1e-5), rel=1e-3)


def test_the_clinic_that_forgets_is_named(tmp_path):
    case = CASES["forgotten"]
    case.play(tmp_path)
    answer = check_claim(read_claim(case.claim_file), record=tmp_path / "run")
    (missing,) = (finding for finding in answer.findings if finding.name == "claim.noise-missing")
    assert missing.clients == (str(FIRST_NODE + FORGETS),)
    assert answer.verdict == "contradicted"


@pytest.mark.long
@pytest.mark.flower
@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_apps_are_run_and_asked_by_their_owners(case, tmp_path):
    """An honest run is contradicted once in twenty times at most, so that it has a second try."""
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        where = case.observe(folder)
        answer = json.loads(check(case, folder, where, "--json", "--draws", "2000"))
        if answer["verdict"] == case.verdict:
            break
    found = {finding["name"]: finding for finding in answer["findings"]}
    assert answer["verdict"] == case.verdict, answer["sentence"]
    assert (folder / "run" / "claim.html").is_file()
    if case.name == "platform":
        assert [found[name]["verdict"] for name in THREE_WAYS] == ["contradicted"] * 3
    if case.name == "forgotten":
        sizes = {seen.node: seen.num_examples for seen in Record(folder / "run" / "record").rounds[0].observations}
        assert 80 + 10 * FORGETS in {sizes[node] for node in found["claim.noise-missing"]["clients"]}
