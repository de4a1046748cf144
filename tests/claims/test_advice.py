import math
import re

import pytest
from dp_accounting import get_sigma_gaussian

from fedattack.claims import compute_epsilon, make_claim
from fedattack.claims.advice import Given, multiplier_for, open_of, steps_of
from fedattack.claims.check import check_claim
from fedattack.defences.guarantee import list_hazards
from tests.report import claims


def claim(**values):
    return make_claim("claim.toml", **{"mechanism": "gaussian", "epsilon": 4.0, "delta": 1e-5, "rounds": 10, **values})


@pytest.mark.parametrize(
    ("values", "distance"),
    [
        # How many noise multipliers of 1 two neighbours are apart in the whole run, worked out by hand.
        ({"clip": 1.0, "noise_multiplier": 0.1}, 2 * math.sqrt(10)),
        ({"clip": 3.0, "noise_multiplier": 0.1, "epsilon_of": "message"}, 2),
        ({"clip": 1.0}, 2 * math.sqrt(10)),
        ({"mechanism": "flower-localdp", "clip": 2.0, "sensitivity": 1e-4}, 2 * math.sqrt(10)),
        ({"mechanism": "dp-sgd", "clip": 1.0, "steps": 7, "noise_multiplier": 0.3}, math.sqrt(70)),
        (
            {"mechanism": "central-gaussian", "clip": 1.0, "clients": 8, "largest_share": 0.25, "weights": "examples"},
            2 * math.sqrt(10),
        ),
    ],
)
def test_the_noise_that_is_advised_is_enough_and_hardly_more(values, distance):
    exact = distance * get_sigma_gaussian(epsilon=4.0, delta=1e-5)
    assert exact <= multiplier_for(claim(**values)) <= 1.01 * exact


@pytest.mark.parametrize(
    "values",
    [
        {"mechanism": "laplace", "clip": 1.0, "sigma": 1.0},
        {"mechanism": "dp-sgd", "clip": 1.0, "noise_multiplier": 0.3, "sampling": 0.01},
        {"mechanism": "central-gaussian", "clip": 1.0, "noise_multiplier": 1.0, "trusted_server": False},
        {"mechanism": "central-gaussian", "clip": 1.0, "noise_multiplier": 1.0, "weights": "examples"},
    ],
)
def test_where_no_noise_is_enough_or_a_search_takes_long_none_is_advised(values):
    assert multiplier_for(claim(**values)) is None
    steps = steps_of(check_claim(claim(**values)), Given())
    assert not any(step.what.startswith("Make the noise larger:") for step in steps)


def test_noise_of_a_server_that_is_not_trusted_is_no_remedy():
    answer = check_claim(claim(mechanism="central-gaussian", noise_multiplier=9.0, clients=2, trusted_server=False))
    assert steps_of(answer, Given())[0].what.startswith("Let clients add the noise")


def test_the_sensitivity_that_is_advised_gives_that_noise():
    said = claims.platform().claim
    (step, *_) = steps_of(claims.platform(), Given())
    sigma, sensitivity = 2.24, 4.62
    assert f"σ = {sigma}" in step.what
    assert f"sensitivity is {sensitivity}." in step.why
    mended = said.model_copy(update={"sensitivity": sensitivity})
    assert mended.deviation == pytest.approx(sigma, rel=0.01)
    assert compute_epsilon(mended).run.high <= said.epsilon


@pytest.mark.parametrize(
    ("key", "name", "values"),
    [
        ("noise_multiplier", "noise-multiplier", {"noise_multiplier": 0.1}),
        ("sigma", "σ", {"mechanism": "central-gaussian", "clip": 2.0, "sigma": 0.1, "clients": 9}),
        ("sigma", "σ", {"clip": 2.0, "sigma": 0.1}),
    ],
)
def test_a_claim_is_mended_in_the_units_that_it_has(key, name, values):
    (step, *_) = steps_of(check_claim(claim(**values)), Given())
    amount = re.fullmatch(f"Make the noise larger: {name} = (.*) in place of 0.1", step.what)[1]
    mended = {**values, key: float(amount)}
    assert check_claim(claim(**mended)).verdict == "consistent"


def test_a_small_excess_may_be_stated():
    answer = check_claim(claim(clip=1.0, noise_multiplier=4.0, epsilon=4.0))
    steps = steps_of(answer, Given(claim="my claim.toml"))
    value = answer.findings[0].value
    assert f"Or state what holds: ε = {value:.3g} for the run of 10 rounds" in [step.what for step in steps]
    assert steps[2].command == "fedattack claim --claim 'my claim.toml'"
    large = steps_of(check_claim(claim(clip=1.0, noise_multiplier=0.1)), Given())
    assert not any("state what holds" in step.what for step in large)


def test_what_a_configured_number_explains_is_not_searched_for():
    whats = [step.what for step in steps_of(claims.platform(), Given(claim="claim.toml"))]
    assert "Ask what the named clients run" in whats
    assert "Mend the mechanism" not in whats
    answer = check_claim(claim(clip=1.0, noise_multiplier=40.0))
    wrong = claims.finding("measured", 50.0, "contradicted", "it is 50 or more")
    answer = type(answer)(answer.claim, (*answer.findings, wrong), answer.sentence)
    assert steps_of(answer, Given())[0].what == "Mend the mechanism"


def test_checks_that_are_missing_are_named_with_their_commands():
    answer = check_claim(claim(clip=1.0, noise_multiplier=40.0))
    commands = [step.command for step in steps_of(answer, Given(mechanism="privacy:mod"))]
    assert commands == [
        "fedattack claim DIR --mechanism privacy:mod",
        "fedattack claim --mechanism privacy:mod",
    ]
    assert [each.what for each in open_of(answer)] == [
        "What a record of the run shows",
        "What a test of the mechanism shows",
        "What canaries in the run show",
        *(hazard.what for hazard in list_hazards(own_noise=False)),
    ]


def test_a_missing_number_is_asked_for_first():
    steps = steps_of(check_claim(claim(clip=1.0)), Given())
    assert steps[0].what == "Complete the claim"
    assert "lacks sigma" in steps[0].why


def test_a_claim_that_was_checked_in_every_way_is_guarded():
    answer = check_claim(claim(clip=1.0, noise_multiplier=40.0))
    more = [claims.finding(kind, 0.1, "consistent", "no more") for kind in ("recorded", "measured")]
    answer = type(answer)(answer.claim, (*answer.findings, *more), answer.sentence)
    (step,) = steps_of(answer, Given("runs/first", "claim.toml", "privacy:mod"))
    assert step.command == (
        "fedattack claim runs/first --claim claim.toml --mechanism privacy:mod --fail-if 'claim.verdict != consistent'"
    )
