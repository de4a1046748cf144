"""ε against dp-accounting, against closed forms, and against bounds that hold whatever the method."""

import math

import pytest
from dp_accounting import NeighboringRelation, dp_event, get_epsilon_gaussian, pld, rdp
from scipy import stats

from fedattack.claims import compute_epsilon, make_claim
from fedattack.privacy.epsilon import with_count
from fedattack.privacy.gaussian import epsilon_of

DELTA = 1e-5


def claim(**values):
    return make_claim("claim", **{"mechanism": "gaussian", "epsilon": 10.0, "delta": DELTA, "rounds": 1, **values})


def test_the_platform_whose_sensitivity_is_below_its_norm():
    """σ = 4.845e-5 while two clipped updates are 2 apart."""
    found = compute_epsilon(claim(mechanism="flower-localdp", clip=1.0, sensitivity=1e-4, rounds=5))
    mu = 2 / 4.844805262605389e-05
    assert found.message.low == found.message.high > 1e8
    # Far out ε is μ²/2 + μ times a normal quantile.
    assert found.message.low == pytest.approx(mu**2 / 2 + mu * stats.norm.isf(DELTA), rel=1e-6)
    assert found.stated == pytest.approx(get_epsilon_gaussian(0.4844805 / math.sqrt(5), DELTA), rel=1e-4)
    message = claim(mechanism="flower-localdp", clip=1.0, sensitivity=1e-4, epsilon_of="message")
    assert compute_epsilon(message).stated == pytest.approx(10.39, rel=1e-3)
    assert found.run.low > 4.9 * found.message.low


def test_rounds_are_composed_exactly():
    found = compute_epsilon(claim(noise_multiplier=4.0, rounds=9))
    assert found.run.low == found.run.high == pytest.approx(get_epsilon_gaussian(4 / (2 * 3), DELTA))
    removed = compute_epsilon(claim(noise_multiplier=4.0, rounds=9, neighbours="add-remove"))
    assert removed.run.high == pytest.approx(get_epsilon_gaussian(4 / 3, DELTA))


@pytest.mark.parametrize(("relation", "name"), [("add-remove", "ADD_OR_REMOVE_ONE"), ("replace", "REPLACE_ONE")])
def test_dp_sgd_is_that_of_dp_accounting(relation, name):
    found = compute_epsilon(
        claim(mechanism="dp-sgd", noise_multiplier=1.0, sampling=0.01, steps=100, rounds=10, neighbours=relation)
    )
    accountant = pld.PLDAccountant(NeighboringRelation[name])
    accountant.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)
    exact = accountant.get_epsilon(DELTA)
    assert found.run.low <= exact * (1 + 1e-4)
    assert found.run.high == pytest.approx(exact, rel=2e-3)
    assert found.run.low == pytest.approx(exact, rel=5e-3)
    assert found.message.high < found.run.low
    orders = rdp.RdpAccountant()
    orders.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000)
    if relation == "add-remove":
        assert found.run.high < orders.get_epsilon(DELTA)


def test_weights_move_a_mean_by_more():
    equal = compute_epsilon(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10))
    assert equal.message.high == pytest.approx(epsilon_of(0.5, DELTA))
    half = {"weights": "examples", "largest_share": 0.5}
    weighted = compute_epsilon(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10, **half))
    assert weighted.message.low == weighted.message.high == pytest.approx(epsilon_of(2.5, DELTA))
    unknown = compute_epsilon(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10, weights="examples"))
    assert unknown.message.low == equal.message.low
    assert unknown.message.high == pytest.approx(epsilon_of(5.0, DELTA))


def test_a_bit_and_an_update_are_one_shift():
    """Both are Gaussians in one more dimension; the norm that falls leaves less noise."""
    z = with_count(1.0, 5.0, "add-remove")
    assert 1 / z**2 == pytest.approx(1 + 1 / 25)
    z = with_count(1.0, 5.0, "replace")
    assert (2 / z) ** 2 == pytest.approx(4 + 1 / 25)
    assert with_count(0.0, 5.0, "replace") == 0
    found = compute_epsilon(claim(mechanism="central-adaptive", noise_multiplier=1.0, count_noise=5.0, clip_falls=0.9))
    assert found.message.low == pytest.approx(epsilon_of(math.sqrt(1.04), DELTA))
    assert found.message.high == pytest.approx(epsilon_of(math.sqrt(1 / 0.81 + 0.04), DELTA))


def test_what_is_lacking_is_said():
    assert "lacks sigma or noise-multiplier" in compute_epsilon(claim()).lacks
    assert "lacks clip" in compute_epsilon(claim(sigma=1.0)).lacks
    assert "lacks clients" in compute_epsilon(claim(mechanism="central-gaussian", sigma=1.0, clip=1.0)).lacks
    assert compute_epsilon(claim()).message is None


def test_a_server_that_is_not_trusted_sees_what_comes_before_its_noise():
    found = compute_epsilon(claim(mechanism="central-gaussian", noise_multiplier=2.0, trusted_server=False))
    assert found.run.low == math.inf
    assert "sees each update" in found.assumes[0]


def test_assumptions_are_said():
    words = " ".join(compute_epsilon(claim(mechanism="dp-sgd", noise_multiplier=1.0, sampling=0.5, rounds=2)).assumes)
    for part in ("C away", "coin", "all of 2 rounds", "no buffer"):
        assert part in words
