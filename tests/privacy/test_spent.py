import math

import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from fedattack.base.errors import ConfigError
from fedattack.privacy import ExampleSampling, noise_for, privacy_spent

DELTA = 1e-5
FULL = ExampleSampling(1.0, 1)


def test_a_round_samples_as_the_training_does():
    assert ExampleSampling.of(100, batch_size=10) == ExampleSampling(0.1, 10)
    assert ExampleSampling.of(101, batch_size=10, epochs=3) == ExampleSampling(10 / 101, 33)
    for everything in (0, 100, 999):
        assert ExampleSampling.of(100, batch_size=everything, epochs=2) == ExampleSampling(1.0, 2)


@pytest.mark.parametrize("noise", [0.5, 1.0, 5.0, 30.0])
def test_one_release_of_the_whole_data_is_the_gaussian_mechanism(noise):
    """Its δ at ε is known in closed form (Balle & Wang 2018)."""

    def excess(epsilon: float) -> float:
        half, shift = 1 / (2 * noise), epsilon * noise
        return norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift) - DELTA

    spent = privacy_spent(noise, FULL, rounds=1, delta=DELTA)
    assert spent.epsilon_round == spent.epsilon_run
    assert spent.epsilon_round == pytest.approx(brentq(excess, 0, 100), rel=1e-6)
    assert privacy_spent(noise, FULL, rounds=4, delta=DELTA).epsilon_run == pytest.approx(
        privacy_spent(noise / 2, FULL, rounds=1, delta=DELTA).epsilon_run
    )


@pytest.mark.slow
def test_epsilon_lies_within_the_errors_of_opacus_accountants():
    """By Rényi orders it is an upper bound; by privacy loss variables an estimate with an error that is stated."""
    orders, losses = RDPAccountant(), PRVAccountant()
    sampling = ExampleSampling.of(200, batch_size=20, epochs=2)
    for _ in range(3 * sampling.steps):
        for accountant in (orders, losses):
            accountant.step(noise_multiplier=1.1, sample_rate=0.1)
    spent = privacy_spent(1.1, sampling, rounds=3, delta=DELTA)
    # What it returns is the upper end of its estimate.
    assert losses.get_epsilon(DELTA, eps_error=0.01) - 0.02 < spent.epsilon_run < losses.get_epsilon(DELTA)
    assert 0.8 * orders.get_epsilon(DELTA) < spent.epsilon_run < orders.get_epsilon(DELTA)
    assert spent.epsilon_round < spent.epsilon_run


@pytest.mark.slow
def test_more_noise_and_less_training_spend_less():
    def spent(noise=1.0, rate=0.1, steps=10, rounds=20, delta=DELTA) -> float:
        return privacy_spent(noise, ExampleSampling(rate, steps), rounds=rounds, delta=delta).epsilon_run

    assert spent() > spent(noise=2.0) > spent(noise=4.0)
    assert spent() > spent(rate=0.05)
    assert spent() > spent(steps=5)
    assert spent() > spent(rounds=10)
    assert spent() > spent(delta=1e-3)


@pytest.mark.parametrize("noise", [0.0, 1e-200])
def test_without_noise_there_is_no_guarantee(noise):
    spent = privacy_spent(noise, ExampleSampling(0.1, 10), rounds=5, delta=DELTA)
    assert math.isinf(spent.epsilon_round)
    assert math.isinf(spent.epsilon_run)


@pytest.mark.parametrize("noise", [1e-4, 1e-3, 0.03, 0.3, 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.3, 0.999, 1.0])
def test_epsilon_is_never_missing_and_never_warns(noise, rate, recwarn):
    spent = privacy_spent(noise, ExampleSampling(rate, 1), rounds=10, delta=DELTA)
    assert 0 <= spent.epsilon_round <= spent.epsilon_run < math.inf
    assert not recwarn.list


@pytest.mark.parametrize("epsilon", [0.001, 0.05, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("sampling", [FULL, ExampleSampling(0.1, 10)])
@pytest.mark.slow
def test_the_noise_for_a_budget_spends_it_and_no_more(epsilon, sampling):
    noise = noise_for(epsilon, sampling, rounds=20, delta=DELTA)
    assert 0.99 * epsilon < privacy_spent(noise, sampling, rounds=20, delta=DELTA).epsilon_run <= epsilon


def test_budgets_that_cannot_be_met_are_refused():
    with pytest.raises(ConfigError, match=r"no noise keeps 200 steps .* within ε = 1e-09 at δ = 1e-14; raise") as no:
        noise_for(1e-9, ExampleSampling(0.1, 10), rounds=20, delta=1e-14)
    assert "\n" not in str(no.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: privacy_spent(-1.0, FULL, rounds=1, delta=DELTA), "noise multiplier .* got -1.0"),
        (lambda: privacy_spent(math.nan, FULL, rounds=1, delta=DELTA), "got nan"),
        (lambda: privacy_spent(math.inf, FULL, rounds=1, delta=DELTA), "got inf"),
        (lambda: privacy_spent(1.0, FULL, rounds=0, delta=DELTA), "at least 1 round; got 1e-05 and 0"),
        (lambda: privacy_spent(1.0, FULL, rounds=1, delta=0.0), "δ between 0 and 1"),
        (lambda: privacy_spent(1.0, FULL, rounds=1, delta=1.0), "δ between 0 and 1"),
        (lambda: noise_for(0.0, FULL, rounds=1, delta=DELTA), "ε must be above 0 and at most 100000, .*; got 0.0"),
        (lambda: noise_for(math.inf, FULL, rounds=1, delta=DELTA), "got inf"),
        (lambda: ExampleSampling(0.0, 1), r"rate in \(0, 1\] and at least 1 step; got 0.0 and 1"),
        (lambda: ExampleSampling(1.1, 1), "got 1.1"),
        (lambda: ExampleSampling(0.5, 0), "got 0.5 and 0"),
    ],
)
def test_numbers_out_of_range_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
