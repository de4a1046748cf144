"""ε against dp-accounting, against closed forms, and against bounds that hold whatever the method."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, get_epsilon_gaussian, pld, rdp
from scipy import stats

from fedattack.claims import compute_epsilon, make_claim
from fedattack.privacy.epsilon import shuffled_epsilon, with_count
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
        claim(
            mechanism="dp-sgd",
            noise_multiplier=1.0,
            sampling=0.01,
            sampling_method="poisson",
            steps=100,
            rounds=10,
            neighbours=relation,
        )
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
    equal = compute_epsilon(claim(mechanism="central-gaussian", noise_multiplier=2.0, clients=10, weights="equal"))
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
    adaptive = {"mechanism": "central-adaptive", "noise_multiplier": 1.0, "weights": "equal"}
    found = compute_epsilon(claim(**adaptive, count_noise=5.0, clip_falls=0.9))
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
    sampled = {"sampling": 0.5, "sampling_method": "poisson", "steps": 1}
    words = " ".join(compute_epsilon(claim(mechanism="dp-sgd", noise_multiplier=1.0, rounds=2, **sampled)).assumes)
    for part in ("C away", "independently", "all of 2 rounds", "no buffer", 'neighbours = "replace"'):
        assert part in words


def spent(event, count=1, relation="ADD_OR_REMOVE_ONE"):
    """What dp-accounting says of so many of an event."""
    accountant = pld.PLDAccountant(NeighboringRelation[relation])
    accountant.compose(event, count)
    return accountant.get_epsilon(DELTA)


SHUFFLED = {
    "mechanism": "dp-sgd",
    "noise_multiplier": 1.0,
    "clip": 1.0,
    "sampling": 0.2,
    "sampling_method": "shuffled",
    "steps": 5,
    "epochs": 1,
    "rounds": 3,
}


def test_shuffled_batches_have_no_amplification_by_sampling():
    """Each example is in one batch of an epoch: a Gaussian mechanism an epoch, 4.38 a round and 8.39 for three."""
    found = compute_epsilon(claim(**SHUFFLED))
    assert found.message.high == pytest.approx(spent(dp_event.GaussianDpEvent(1.0)), rel=2e-3)
    assert found.run.high == pytest.approx(spent(dp_event.GaussianDpEvent(1.0), 3), rel=2e-3)
    assert (round(found.message.high, 2), round(found.run.high, 2)) == (4.38, 8.39)
    assert 8.1 < found.run.low < found.run.high
    poisson = spent(dp_event.PoissonSampledDpEvent(0.2, dp_event.GaussianDpEvent(1.0)), 15)
    assert poisson == pytest.approx(5.86, abs=0.01)
    in_order = compute_epsilon(claim(**SHUFFLED | {"sampling_method": "in-order"}))
    assert in_order.run.low == in_order.run.high == found.run.high
    replaced = compute_epsilon(claim(**SHUFFLED, neighbours="replace"))
    assert replaced.run.high == pytest.approx(epsilon_of(2 * math.sqrt(3), DELTA))
    assert found.run.high < replaced.run.low < replaced.run.high


@pytest.mark.parametrize(("relation", "without"), [("add-remove", 1.0), ("replace", 0.0)])
@pytest.mark.parametrize("multiplier", [0.7, 2.0])
def test_of_shuffled_batches_no_bound_from_below_is_above_the_divergence_that_a_pair_has(relation, without, multiplier):
    """Two batches, one of which has 2C more or C more; δ by the densities on a grid, the slow and obvious way."""
    x = np.linspace(-9, 9 + 2 / multiplier, 1501)
    first, second = np.meshgrid(x, x)

    def density(shift):
        both = stats.norm.pdf(first - shift) * stats.norm.pdf(second)
        return (both + stats.norm.pdf(first) * stats.norm.pdf(second - shift)) / 2 * (x[1] - x[0]) ** 2

    with_it, other = density(2 / multiplier), density(without / multiplier)
    found = shuffled_epsilon(multiplier, relation, 1, DELTA, rate=0.5)
    assert 0 < found.low <= found.high

    def delta(epsilon):
        ways = ((with_it, other), (other, with_it))
        return max(np.maximum(one - math.exp(epsilon) * two, 0).sum() for one, two in ways)

    assert delta(found.low) >= DELTA * (1 - 1e-3)
    assert delta(found.high) <= DELTA * (1 + 1e-3)


@pytest.mark.parametrize("epochs", [1, 7, 3000, 2**40])
@pytest.mark.parametrize("multiplier", [1e-12, 0.3, 5.0, 1e12])
@pytest.mark.parametrize("rate", [1.0, 0.3, 1e-15])
def test_bounds_of_shuffled_batches_are_in_order(epochs, multiplier, rate):
    for relation in ("add-remove", "replace"):
        found = shuffled_epsilon(multiplier, relation, epochs, DELTA, rate=rate)
        assert 0 <= found.low <= found.high
        if rate == 1:
            assert found.low == found.high


def test_what_nobody_said_makes_no_epsilon_smaller():
    """Without a key the upper bound is no lower than with any value of it, and the reason names the key."""
    sgd = {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "sampling": 0.2, "steps": 5, "rounds": 3}
    unknown = compute_epsilon(claim(**sgd))
    assert "sampling-method" in unknown.unknown[0]
    assert unknown.run.high == pytest.approx(epsilon_of(math.sqrt(15), DELTA))
    for method in ("poisson", "fixed-size"):
        known = compute_epsilon(claim(**sgd, sampling_method=method))
        assert known.run.high < unknown.run.high
        assert known.run.low >= unknown.run.low
    nobody = compute_epsilon(claim(**sgd, sampling_method="unknown"))
    assert (nobody.run.low, nobody.run.high) == (0, unknown.run.high)
    assert "lacks steps" in compute_epsilon(claim(**{key: sgd[key] for key in sgd if key != "steps"})).lacks
    message = {key: sgd[key] for key in sgd if key != "rounds"}
    found = compute_epsilon(make_claim("claim", **message, epsilon=8.0, delta=DELTA, epsilon_of="message"))
    assert found.message is not None
    assert found.run is None

    central = {"mechanism": "central-gaussian", "noise_multiplier": 2.0, "clients": 10}
    unequal = compute_epsilon(claim(**central))
    assert unequal.run == compute_epsilon(claim(**central, weights="examples")).run
    assert "weights" in unequal.unknown[0]
    adaptive = central | {"mechanism": "central-adaptive", "weights": "equal"}
    for keys in ({}, {"clip_falls": 1.0}, {"count_noise": 5.0}):
        found = compute_epsilon(claim(**adaptive, **keys))
        assert found.run.high == math.inf
        assert found.run.low < math.inf
        assert found.unknown
    assert compute_epsilon(claim(**adaptive, clip_falls=1.0, count_noise=0.0)).run.low == math.inf


@pytest.mark.parametrize("method", ["poisson", "shuffled", "in-order", "unknown"])
def test_batches_that_made_no_step_leave_no_bound_from_above(method):
    values = SHUFFLED | {"sampling_method": method, "skipped": 1}
    if method not in ("shuffled", "in-order"):
        del values["epochs"]
    found = compute_epsilon(claim(**values))
    assert found.message.high == found.run.high == math.inf
    whole = compute_epsilon(claim(**values | {"skipped": 0}))
    assert found.run.low == whole.run.low <= whole.run.high < math.inf
    assert "made no step: 1; no noise hides" in found.unknown[-1]
