"""ε against dp-accounting, against closed forms, and against bounds that hold whatever the method."""

import math

import pytest
from dp_accounting import NeighboringRelation, dp_event, pld, rdp
from scipy import optimize, stats

from fedattack.base.errors import ConfigError
from fedattack.privacy import Epsilon, gaussian_epsilon, laplace_epsilon
from fedattack.privacy.gaussian import amplify, epsilon_of, sampled_epsilon

DELTA = 1e-5


def test_one_message_is_that_of_balle_and_wang():
    def excess(epsilon: float, mu: float) -> float:
        part = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(part) - DELTA

    for mu in (0.3, 1.0, 4.0):
        assert epsilon_of(mu, DELTA) == pytest.approx(optimize.brentq(excess, 0, 100, args=(mu,)), rel=1e-6)
    assert epsilon_of(0.0, DELTA) == 0
    assert epsilon_of(math.inf, DELTA) == math.inf
    assert epsilon_of(1e-9, DELTA) == 0


@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.slow
def test_one_sampled_step_is_that_of_the_privacy_loss_distribution(rate):
    exact = sampled_epsilon(1 / 0.8, rate, DELTA)
    loss = pld.privacy_loss_distribution.from_gaussian_mechanism(0.8, sampling_prob=rate)
    assert exact == pytest.approx(loss.get_epsilon_for_delta(DELTA), rel=1e-4)
    assert sampled_epsilon(1.0, DELTA / 2, DELTA) == 0
    assert amplify(1e9, 0.5) == pytest.approx(1e9 - math.log(2))
    assert amplify(math.inf, 0.5) == math.inf


@pytest.mark.slow
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


def test_bounds_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigError):
        Epsilon(2.0, 1.0)
    with pytest.raises(ConfigError):
        Epsilon(math.nan, 1.0)
