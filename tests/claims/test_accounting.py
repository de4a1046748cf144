"""ε against dp-accounting, against closed forms, and against bounds that hold whatever the method."""

import math

import pytest
from dp_accounting import NeighboringRelation, dp_event, get_epsilon_gaussian, pld, rdp
from scipy import optimize, stats

from fedattack.claims import configured, make_claim
from fedattack.claims.accounting import Epsilon, gaussian_epsilon, laplace_epsilon, with_count
from fedattack.claims.gaussian import amplified, epsilon_of, sampled_epsilon
from fedattack.errors import ConfigError

DELTA = 1e-5


def claim(**values):
    return make_claim("claim", **{"mechanism": "gaussian", "epsilon": 10.0, "delta": DELTA, "rounds": 1, **values})


def test_one_message_is_that_of_balle_and_wang():
    def excess(epsilon: float, mu: float) -> float:
        part = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(part) - DELTA

    for mu in (0.3, 1.0, 4.0):
        assert epsilon_of(mu, DELTA) == pytest.approx(optimize.brentq(excess, 0, 100, args=(mu,)), rel=1e-6)
    assert epsilon_of(0.0, DELTA) == 0
    assert epsilon_of(math.inf, DELTA) == math.inf
    assert epsilon_of(1e-9, DELTA) == 0


def test_the_platform_whose_sensitivity_is_below_its_norm():
    """σ = 4.845e-5 while two clipped updates are 2 apart."""
    found = configured(claim(mechanism="flower-localdp", clip=1.0, sensitivity=1e-4, rounds=5))
    mu = 2 / 4.844805262605389e-05
    assert found.message.low == found.message.high > 1e8
    # Far out ε is μ²/2 + μ times a normal quantile.
    assert found.message.low == pytest.approx(mu**2 / 2 + mu * stats.norm.isf(DELTA), rel=1e-6)
    assert found.stated == pytest.approx(get_epsilon_gaussian(0.4844805 / math.sqrt(5), DELTA), rel=1e-4)
    message = claim(mechanism="flower-localdp", clip=1.0, sensitivity=1e-4, epsilon_of="message")
    assert configured(message).stated == pytest.approx(10.39, rel=1e-3)
    assert found.run.low > 4.9 * found.message.low


def test_rounds_are_composed_exactly():
    found = configured(claim(noise_multiplier=4.0, rounds=9))
    assert found.run.low == found.run.high == pytest.approx(get_epsilon_gaussian(4 / (2 * 3), DELTA))
    removed = configured(claim(noise_multiplier=4.0, rounds=9, neighbours="add-remove"))
    assert removed.run.high == pytest.approx(get_epsilon_gaussian(4 / 3, DELTA))


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_one_sampled_step_is_that_of_the_privacy_loss_distribution(rate):
    exact = sampled_epsilon(1 / 0.8, rate, DELTA)
    loss = pld.privacy_loss_distribution.from_gaussian_mechanism(0.8, sampling_prob=rate)
    assert exact == pytest.approx(loss.get_epsilon_for_delta(DELTA), rel=1e-4)
    assert sampled_epsilon(1.0, DELTA / 2, DELTA) == 0
    assert amplified(1e9, 0.5) == pytest.approx(1e9 - math.log(2))
    assert amplified(math.inf, 0.5) == math.inf


@pytest.mark.parametrize(("relation", "name"), [("add-remove", "ADD_OR_REMOVE_ONE"), ("replace", "REPLACE_ONE")])
def test_dp_sgd_is_that_of_dp_accounting(relation, name):
    found = configured(
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


def test_a_fixed_size_costs_more_than_coins_as_far_as_is_known():
    coins = gaussian_epsilon(1.0, "replace", 100, DELTA, rate=0.05)
    fixed = gaussian_epsilon(1.0, "replace", 100, DELTA, rate=0.05, method="fixed-size")
    whole = gaussian_epsilon(1.0, "replace", 100, DELTA)
    assert fixed.low == pytest.approx(coins.low)
    assert coins.high < fixed.high < whole.high
    accountant = rdp.RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    # The noise in units of 2C, by which replacing moves the sum.
    event = dp_event.SampledWithoutReplacementDpEvent(1000, 50, dp_event.GaussianDpEvent(0.5))
    accountant.compose(event, 100)
    assert fixed.high == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)


def test_numbers_that_nobody_claims_take_no_time():
    found = gaussian_epsilon(1e-3, "add-remove", 10_000, DELTA, rate=0.01)
    assert 1e5 < found.low <= found.high
    assert gaussian_epsilon(0.0, "replace", 1, DELTA, rate=0.5) == Epsilon(math.inf, math.inf)


def test_more_steps_than_a_grid_holds_leave_the_plain_bounds():
    spent = gaussian_epsilon(1.0, "add-remove", 10**14, DELTA, rate=1e-14)
    assert spent.low <= 1e-5
    assert spent.high == pytest.approx(epsilon_of(1e7, DELTA))


def test_laplace_of_one_entry_is_pure():
    found = laplace_epsilon(2.0, "add-remove", 1, DELTA, 1)
    assert found.high == pytest.approx(0.5)
    assert found.low == pytest.approx(0.5 + 2 * math.log1p(-DELTA), rel=1e-3)
    assert laplace_epsilon(0.0, "replace", 1, DELTA, None).low == math.inf


def test_laplace_of_many_entries_lies_between_its_bounds():
    few, many = (laplace_epsilon(1.0, "replace", 1, DELTA, entries) for entries in (1, 10_000))
    assert few.high < many.low < many.high
    unknown = laplace_epsilon(1.0, "replace", 1, DELTA, None)
    assert unknown.low == pytest.approx(few.low)
    assert unknown.high == many.high
    # Spread over many entries it is nearly a Gaussian of the same scale.
    assert many.low == pytest.approx(epsilon_of(2.0, DELTA), rel=0.15)


def test_weights_move_a_mean_by_more():
    equal = configured(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10))
    assert equal.message.high == pytest.approx(epsilon_of(0.5, DELTA))
    half = {"weights": "examples", "largest_share": 0.5}
    weighted = configured(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10, **half))
    assert weighted.message.low == weighted.message.high == pytest.approx(epsilon_of(2.5, DELTA))
    unknown = configured(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10, weights="examples"))
    assert unknown.message.low == equal.message.low
    assert unknown.message.high == pytest.approx(epsilon_of(5.0, DELTA))


def test_a_bit_and_an_update_are_one_shift():
    """Both are Gaussians in one more dimension; the norm that falls leaves less noise."""
    z = with_count(1.0, 5.0, "add-remove")
    assert 1 / z**2 == pytest.approx(1 + 1 / 25)
    z = with_count(1.0, 5.0, "replace")
    assert (2 / z) ** 2 == pytest.approx(4 + 1 / 25)
    assert with_count(0.0, 5.0, "replace") == 0
    found = configured(claim(mechanism="central-adaptive", noise_multiplier=1.0, count_noise=5.0, clip_falls=0.9))
    assert found.message.low == pytest.approx(epsilon_of(math.sqrt(1.04), DELTA))
    assert found.message.high == pytest.approx(epsilon_of(math.sqrt(1 / 0.81 + 0.04), DELTA))


def test_what_is_lacking_is_said():
    assert "lacks sigma or noise-multiplier" in configured(claim()).lacks
    assert "lacks clip" in configured(claim(sigma=1.0)).lacks
    assert "lacks clients" in configured(claim(mechanism="central-gaussian", sigma=1.0, clip=1.0)).lacks
    assert configured(claim()).message is None


def test_a_server_that_is_not_trusted_sees_what_comes_before_its_noise():
    found = configured(claim(mechanism="central-gaussian", noise_multiplier=2.0, trusted_server=False))
    assert found.run.low == math.inf
    assert "sees each update" in found.assumes[0]


def test_assumptions_are_said():
    words = " ".join(configured(claim(mechanism="dp-sgd", noise_multiplier=1.0, sampling=0.5, rounds=2)).assumes)
    for part in ("C away", "coin", "all of 2 rounds", "no buffer"):
        assert part in words


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigError):
        Epsilon(2.0, 1.0)
    with pytest.raises(ConfigError):
        Epsilon(math.nan, 1.0)
