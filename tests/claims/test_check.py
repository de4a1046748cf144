import json
import math

import pytest

from fedattack.base.errors import ConfigError, ModelError
from fedattack.claims import make_claim
from fedattack.claims.check import check_claim, load_mechanism
from fedattack.claims.figures import bounds_in_figures, equation
from fedattack.claims.finding import CONSISTENT, CONTRADICTED, ERROR, UNCHECKED
from fedattack.claims.measured import Trial
from fedattack.claims.tester import LEVEL
from fedattack.claims.words import answer_lines
from fedattack.privacy import Epsilon
from tests.claims import known
from tests.claims.recorded.runs import SMALL, Run, write_run

DELTA = 1e-5


def claim(**values):
    return make_claim("claim.toml", **{"mechanism": "gaussian", "epsilon": 10.0, "delta": DELTA, "rounds": 1, **values})


def by_name(answer):
    return {finding.name: finding for finding in answer.findings}


@pytest.mark.slow
def test_the_platform_is_contradicted_twice():
    answer = check_claim(None, known.platform, Trial(draws=2000))
    assert answer.verdict == CONTRADICTED
    found = by_name(answer)
    assert [finding.verdict for finding in answer.findings] == [CONTRADICTED] * 2
    assert found["claim.epsilon-configured"].value > 1e8
    assert found["claim.epsilon-measured"].value > 1e8
    assert "20,000 times below 2" in found["claim.epsilon-configured"].notes[0]
    assert "ε = 10" in answer.sentence
    assert "1,600 of 1,600 tries. At 95 %, ε of one message is 10^" in answer.sentence
    assert "or more if the noise is Gaussian, as it looks; counting alone shows 5." in answer.sentence
    json.dumps(answer.to_dict(), allow_nan=False)


def test_a_contradiction_breaks_the_guarantee_or_weakens_it():
    said = []
    for sigma in (9.69, 2.4, 0.01):
        answer = check_claim(claim(clip=1.0, sensitivity=2.0, epsilon=2.0, sigma=sigma))
        (finding,) = answer.to_dict()["findings"]
        said.append((finding["verdict"], finding["consequence"]))
    assert said == [
        (CONSISTENT, ""),
        (CONTRADICTED, "weakens the guarantee"),
        (CONTRADICTED, "breaks the guarantee"),
    ]


def notes_of(**values):
    """What explains the configured number of Flower's mod at ε = 10."""
    return check_claim(claim(mechanism="flower-localdp", clip=1.0, **values)).findings[0].notes


def test_the_stated_sensitivity_is_spoken_of_in_the_scope_that_is_claimed():
    _, run = notes_of(sensitivity=1e-4, rounds=5)
    assert run.startswith("even with the sensitivity that is stated, ε of the run of 5 rounds is 29.6: ")
    _, message = notes_of(sensitivity=1e-4, epsilon_of="message")
    assert "ε of one message is 10.4: the classical formula is for one message" in message


def test_a_sensitivity_that_clipping_allows_for_is_not_blamed():
    assert notes_of(sensitivity=4.62, rounds=5) == ()
    assert notes_of(sensitivity=2.0) == ("the classical formula is for one message, and is proved for ε up to 1",)


@pytest.mark.slow
def test_the_same_mod_with_honest_numbers_is_consistent():
    answer = check_claim(None, known.honest, Trial(draws=2000))
    assert answer.verdict == CONSISTENT
    found = by_name(answer)
    assert found["claim.epsilon-measured"].value < found["claim.epsilon-configured"].value < 0.9


def test_the_epsilon_of_a_message_quoted_for_the_run():
    answer = check_claim(claim(noise_multiplier=2.0, epsilon=4.4, rounds=50))
    (finding,) = answer.findings
    assert finding.verdict == CONTRADICTED
    assert "claimed for a run of 50 rounds" in finding.notes[0]
    fine = check_claim(claim(noise_multiplier=2.0, epsilon=4.4, rounds=50, epsilon_of="message"))
    assert fine.verdict == CONSISTENT


@pytest.mark.slow
def test_what_the_mechanism_has_counts_and_not_what_is_said_of_it():
    said = claim(sigma=3.0, clip=1.0, epsilon=0.5, rounds=7)
    answer = check_claim(said, known.own_mod, Trial(draws=2000))
    assert answer.claim.deviation == 2.0
    assert answer.claim.rounds == 7
    assert answer.claim.epsilon == 0.5
    assert answer.notes == ("the claim says sigma = 3, and the mechanism has 2, which counts",)
    assert answer.verdict == CONTRADICTED
    platform = check_claim(claim(sigma=2.0, clip=1.0, epsilon=4.4), known.platform, Trial(draws=2000))
    assert platform.claim.deviation == pytest.approx(4.845e-5, rel=1e-3)
    assert platform.claim.epsilon == 4.4


def test_bounds_on_both_sides_of_the_claim_decide_nothing():
    answer = check_claim(
        claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10, weights="examples", epsilon=3.0)
    )
    (finding,) = answer.findings
    assert finding.verdict == answer.verdict == UNCHECKED
    assert "no closer bounds are known" in finding.reason
    assert bounds_in_figures(finding.run) == "1.99–33.1"


def test_the_answer_says_which_neighbours_its_numbers_are_of():
    dictionary = check_claim(claim(noise_multiplier=2.0)).to_dict()["claim"]
    assert (dictionary["unit"], dictionary["neighbours"]) == ("client", "replace")
    removed = check_claim(claim(noise_multiplier=2.0, neighbours="add-remove")).to_dict()["claim"]
    assert removed["neighbours"] == "add-remove"


def test_rounding_of_sigma_is_forgiven():
    exact = check_claim(claim(noise_multiplier=2.0)).findings[0].value
    assert check_claim(claim(noise_multiplier=2.0, epsilon=exact / 1.005)).verdict == CONSISTENT
    assert check_claim(claim(noise_multiplier=2.0, epsilon=exact / 1.02)).verdict == CONTRADICTED


def test_what_so_few_draws_cannot_show_is_no_consistency():
    answer = check_claim(claim(clip=1.0), known.bare)
    found = by_name(answer)["claim.epsilon-measured"]
    assert found.verdict == UNCHECKED
    assert "10,000 draws show no more than 6.8" in found.reason
    assert "--draws 291000" in found.reason
    assert by_name(answer)["claim.epsilon-configured"].verdict == UNCHECKED
    assert answer.verdict == UNCHECKED


def test_a_test_alone_confirms_nothing():
    answer = check_claim(claim(clip=1.0), known.gaussian)
    assert [finding.verdict for finding in answer.findings] == [UNCHECKED, CONSISTENT]
    assert answer.verdict == UNCHECKED


@pytest.mark.slow
def test_a_mod_without_noise_is_tested_all_the_same():
    answer = check_claim(claim(noise_multiplier=2.0, clip=1.0, epsilon=5.0), known.clipping_alone, Trial(draws=2000))
    assert "clips but adds no noise" in answer.notes[0]
    assert answer.findings[0].verdict == CONSISTENT
    assert answer.verdict == CONTRADICTED


@pytest.mark.parametrize("neighbours", ["add-remove", "replace"])
def test_a_step_of_dp_sgd_is_played_beside_zeros(neighbours):
    """With a multiplier of 2, sampled at 0.1 before it: far below the ε of an unsampled step."""
    sampled = {"sampling": 0.1, "sampling_method": "poisson", "steps": 1}
    said = claim(mechanism="dp-sgd", clip=1.0, noise_multiplier=2.0, neighbours=neighbours, **sampled)
    answer = check_claim(said, known.gaussian)
    found = by_name(answer)
    assert 0 < found["claim.epsilon-measured"].value < found["claim.epsilon-configured"].value < 1
    assert answer.verdict == CONSISTENT
    assert "before the mechanism" in found["claim.epsilon-measured"].assumes[-1]


def test_a_bound_that_counting_can_show():
    shown = check_claim(claim(clip=1.0, epsilon=6.0), known.bare)
    assert by_name(shown)["claim.epsilon-measured"].verdict == CONTRADICTED
    assert "At 95 %, ε of the run is 6.82 or more by counting alone." in shown.sentence
    none = check_claim(claim(clip=1.0, epsilon=40.0), known.bare)
    assert "no number of draws" in by_name(none)["claim.epsilon-measured"].reason


def test_the_draws_that_are_asked_for_do():
    answer = check_claim(claim(clip=1.0), known.bare_at_once, Trial(draws=291_000))
    assert by_name(answer)["claim.epsilon-measured"].verdict == CONTRADICTED


def test_nothing_bounds_epsilon():
    answer = check_claim(claim(mechanism="central-gaussian", noise_multiplier=2.0, trusted_server=False))
    assert answer.verdict == CONTRADICTED
    assert "guarantees nothing" in answer.sentence
    assert answer.to_dict()["findings"][0]["value"] == "infinity"


def test_checks_that_rest_on_chance_add_up_and_the_answer_says_so(tmp_path):
    arithmetic = check_claim(claim(sigma=2.0, clip=1.0))
    assert arithmetic.error_rate == 0
    assert "uses only the claim, and no run" in answer_lines(arithmetic)[0]
    write_run(tmp_path / "record", Run(SMALL, sigma=2.0))
    both = check_claim(claim(sigma=2.0, clip=1.0), known.gaussian, record=tmp_path)
    assert both.to_dict()["error_rate"] == 0.1
    assert "in at most 10% of runs: 5% by the record, 5% by the test of the mechanism." in answer_lines(both)[0]
    assert sum(test["error_rate"] for test in both.recorded["tests"]) <= ERROR == pytest.approx(1 - LEVEL)
    wrong = check_claim(claim(sigma=0.1, clip=1.0), known.gaussian)
    assert "cannot be wrong by accident" in answer_lines(wrong)[0]
    assert wrong.error_rate == 0


def test_claims_that_cannot_be_tested():
    with pytest.raises(ConfigError, match="there is no claim to check"):
        check_claim(None, known.gaussian)
    with pytest.raises(ConfigError, match="there is no claim to check"):
        check_claim(None)
    with pytest.raises(ConfigError, match="no sampling below 1"):
        check_claim(claim(sigma=1.0, clip=1.0), known.gaussian, Trial(sampled=True))
    with pytest.raises(ConfigError, match="needs clip"):
        check_claim(claim(sigma=1.0), known.gaussian)


def test_a_mechanism_is_imported_by_name():
    assert load_mechanism("tests.claims.known:platform") is known.platform
    assert load_mechanism("tests.claims.known:own_defence") == known.own_defence()
    with pytest.raises(ConfigError, match="expected module:function"):
        load_mechanism("known")
    with pytest.raises(ModelError, match="cannot import"):
        load_mechanism("nowhere_to_be_found:f")


def test_numbers_as_people_write_them():
    assert bounds_in_figures(Epsilon(2.032, 2.033)) == "2.03"
    assert bounds_in_figures(Epsilon(8.5e8, 8.5e8)) == "≥ 10^8"
    assert bounds_in_figures(Epsilon(1.68, 84.0)) == "1.68–84"
    assert bounds_in_figures(Epsilon(0.0, math.inf)) == "≥ 0"
    assert bounds_in_figures(Epsilon(math.inf, math.inf)) == "infinite"
    assert equation(Epsilon(1.68, 84.0)) == "an ε between 1.68 and 84"
    assert equation(Epsilon(8.5e8, math.inf)) == "ε ≥ 10^8"
    assert equation(Epsilon(2.0, 2.0)) == "ε = 2"
