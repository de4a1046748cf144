import math

import numpy as np
import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from fedattack.errors import ConfigError
from fedattack.learning import Sampling, noise_for, privacy_spent

DELTA = 1e-5
FULL = Sampling(1.0, 1)


def test_a_round_samples_as_the_training_does():
    assert Sampling.of(100, batch_size=10) == Sampling(0.1, 10)
    assert Sampling.of(101, batch_size=10, epochs=3) == Sampling(10 / 101, 33)
    for everything in (0, 100, 999):
        assert Sampling.of(100, batch_size=everything, epochs=2) == Sampling(1.0, 2)


@pytest.mark.parametrize("noise", [0.5, 1.0, 5.0, 30.0])
def test_one_release_of_the_whole_data_is_the_gaussian_mechanism(noise):
    """Its Rényi divergence of order α is α/2σ² (Mironov 2017); the best order is sought here without a grid."""

    def bound(order: float) -> float:
        return order / (2 * noise**2) + math.log((order - 1) / order) - math.log(DELTA * order) / (order - 1)

    best = minimize_scalar(lambda log: bound(1 + math.exp(log)), bounds=(-5, 8), method="bounded").fun

    def exact(epsilon: float) -> float:
        """δ at ε of the Gaussian mechanism itself (Balle & Wang 2018), minus the one wanted."""
        half, shift = 1 / (2 * noise), epsilon * noise
        return norm.cdf(half - shift) - math.exp(epsilon) * norm.cdf(-half - shift) - DELTA

    spent = privacy_spent(noise, FULL, rounds=1, delta=DELTA)
    assert spent.epsilon_round == spent.epsilon_run
    assert best <= spent.epsilon_round <= 1.02 * best
    assert brentq(exact, 0, 100) < spent.epsilon_round


def test_epsilon_is_that_of_opacus_step_by_step():
    accountant, prv = RDPAccountant(), PRVAccountant()
    sampling = Sampling.of(200, batch_size=20, epochs=2)
    epsilons = []
    for _ in range(3 * sampling.steps):
        for item in (accountant, prv):
            item.step(noise_multiplier=1.1, sample_rate=0.1)
        epsilons.append(accountant.get_epsilon(DELTA))
    spent = privacy_spent(1.1, sampling, rounds=3, delta=DELTA)
    assert spent.epsilon_round == pytest.approx(epsilons[sampling.steps - 1])
    assert spent.epsilon_run == pytest.approx(epsilons[-1])
    assert 0.8 * spent.epsilon_run < prv.get_epsilon(DELTA) < spent.epsilon_run


def test_more_noise_and_less_training_spend_less():
    def spent(noise=1.0, rate=0.1, steps=10, rounds=20, delta=DELTA) -> float:
        return privacy_spent(noise, Sampling(rate, steps), rounds=rounds, delta=delta).epsilon_run

    assert spent() > spent(noise=2.0) > spent(noise=4.0)
    assert spent() > spent(rate=0.05)
    assert spent() > spent(steps=5)
    assert spent() > spent(rounds=10)
    assert spent() > spent(delta=1e-3)


@pytest.mark.parametrize("noise", [0.0, 1e-200, 1e-4])
def test_without_noise_there_is_no_guarantee(noise):
    spent = privacy_spent(noise, Sampling(0.1, 10), rounds=5, delta=DELTA)
    assert math.isinf(spent.epsilon_round)
    assert math.isinf(spent.epsilon_run)


@pytest.mark.parametrize("noise", [1e-3, 0.03, 0.3, 100.0])
@pytest.mark.parametrize("rate", [1e-4, 0.3, 0.999, 1.0])
def test_epsilon_is_never_missing_and_never_warns(noise, rate, recwarn):
    spent = privacy_spent(noise, Sampling(rate, 1), rounds=10, delta=DELTA)
    assert 0 < spent.epsilon_round <= spent.epsilon_run
    assert not recwarn.list


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 100.0])
@pytest.mark.parametrize("sampling", [FULL, Sampling(0.1, 10)])
def test_the_noise_for_a_budget_spends_it_and_no_more(epsilon, sampling):
    noise = noise_for(epsilon, sampling, rounds=20, delta=DELTA)
    assert 0.99 * epsilon < privacy_spent(noise, sampling, rounds=20, delta=DELTA).epsilon_run <= epsilon


def test_budgets_that_cannot_be_met_are_refused_with_the_least_that_can():
    with pytest.raises(
        ConfigError, match=r"no noise keeps 200 steps .* within ε = 0.001 .* the least .* is ε = 0.00"
    ) as no:
        noise_for(0.001, Sampling(0.1, 10), rounds=20, delta=DELTA)
    assert "\n" not in str(no.value)
    least = float(str(no.value).split("ε = ")[2].split(";")[0])
    assert np.isfinite(noise_for(1.1 * least, Sampling(0.1, 10), rounds=20, delta=DELTA))


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
        (lambda: Sampling(0.0, 1), r"rate in \(0, 1\] and at least 1 step; got 0.0 and 1"),
        (lambda: Sampling(1.1, 1), "got 1.1"),
        (lambda: Sampling(0.5, 0), "got 0.5 and 0"),
    ],
)
def test_numbers_out_of_range_are_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
