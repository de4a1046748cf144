"""The tester on mechanisms whose ε is known. ``python -m tests.benchmarks.claims`` has 1,000 runs of each."""

import math
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from fedattack.base.errors import ConfigError
from fedattack.claims.mechanisms import mechanism_of
from fedattack.claims.mixture import mixture_shift
from fedattack.claims.tester import Play, composed_rates, measure
from fedattack.privacy import gaussian_epsilon
from fedattack.privacy.gaussian import epsilon_of
from tests.benchmarks import claims as benchmark
from tests.claims import known

DELTA = 1e-5


def measured(name, play=None, seed=0, size=16):
    return measure(mechanism_of(getattr(known, name), name=name, size=size), play or Play(), seed=seed)


@pytest.mark.slow
def test_bounds_stay_below_the_true_epsilon_and_reach_most_of_it():
    """A short version of the benchmark: at most 5 % of the bounds may be above, of 24 of each kind."""
    above, runs = 0, 24
    for case in benchmark.known():
        if case.epsilon == 1 or case.name == "sampled inside, 0.1":
            continue
        row = benchmark.row(case, runs)
        above += round(row["above"] * runs)
        assert row["share"] >= benchmark.ENOUGH, row
    # Twelve rows; that so many of 288 are above by accident happens once in ten thousand times.
    assert above <= stats.binom.isf(1e-4, 12 * runs, 0.05)


@pytest.mark.slow
def test_the_platform_is_told_apart_always():
    found = measured("platform", Play(run=5))
    assert found.told == found.tries == 8000
    assert found.bound.message > 1e8
    assert found.bound.run > 4.9 * found.bound.message
    assert found.method == "gaussian"
    # Its true ε is 8.5e8; a bound is above the truth once in forty times, by little.
    assert found.bound.message < 1.02 * epsilon_of(2 / 4.844805262605389e-05, DELTA)


@pytest.mark.slow
def test_a_missing_client_can_be_played_against_flowers_mod():
    """Which divides by the norm of an update."""
    found = measured("platform", Play(relation="add-remove", draws=2000))
    assert found.told == found.tries


def test_without_noise_counting_has_the_last_word():
    found = measured("bare")
    assert found.method == "counting"
    assert found.told == found.tries
    assert found.bound.draw == pytest.approx(found.ceiling)
    assert "no noise" in found.notes[0]
    # 4,000 draws of each, all right: Clopper and Pearson's bounds at 98.75 %.
    rate = 1 - 0.0125 ** (1 / 4000)
    assert found.ceiling == pytest.approx(math.log((1 - rate - DELTA) / rate))


def test_rounds_are_composed():
    """Of Gaussians by √T; by counting, how often of T times it said yes."""
    found = measured("gaussian", Play(message=4, run=16))
    factor = 2 / found.mu
    assert found.bound.message == pytest.approx(gaussian_epsilon(factor, "replace", 4, DELTA).low)
    assert found.bound.run == pytest.approx(epsilon_of(4 * found.mu, DELTA))
    assert found.bound.draw < found.bound.message < found.bound.run < epsilon_of(4 * 1.0, DELTA)


@pytest.mark.parametrize("count", [1, 3, 20])
def test_composed_rates_are_a_lower_bound_of_randomised_response(count):
    """For a mechanism that says the truth with probability e^ε/(1 + e^ε), the best set of outcomes is found."""
    epsilon, delta = 1.0, 1e-3
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    found = composed_rates(p, 1 - p, count, delta)
    yes = np.arange(count + 1)
    left, right = stats.binom.pmf(yes, count, p), stats.binom.pmf(yes, count, 1 - p)
    assert np.maximum(left - math.exp(found) * right, 0).sum() == pytest.approx(delta, rel=1e-6)
    assert found <= count * epsilon
    assert composed_rates(0.2, 0.3, count, delta) == 0
    assert composed_rates(1e-6, 0.0, count, delta) == 0


def test_a_mechanism_that_does_not_clip_is_told_apart():
    assert measured("unclipped").told == measured("unclipped").tries
    held = measured("unclipped", Play(clipped=True))
    assert 0.6 * epsilon_of(1.0, DELTA) < held.bound.draw < 1.05 * epsilon_of(1.0, DELTA)


def test_noise_before_clipping_is_told_apart():
    found = measured("noise_first")
    assert "1000 times the norm" in found.pair
    assert found.told == found.tries


def test_an_array_without_noise_is_found():
    found = measured("half_noisy")
    assert found.told == found.tries
    assert "last array" in found.pair


def test_noise_that_follows_the_update_is_found():
    """A large update has sixteen times the noise of a tiny one, while their means hardly differ."""
    found = measured("noise_of_the_update", Play(clipped=True))
    assert found.pair == "a large update and a tiny one"
    assert found.score == "the length"
    assert found.bound.draw > 4


def test_laplace_noise_passes_for_no_gaussian():
    assert measured("laplace").method == "counting"


def test_sampling_before_the_mechanism_is_taken_for_granted():
    removed = Play(relation="add-remove", rate=0.1)
    found = measured("gaussian", removed)
    assert found.bound.draw == pytest.approx(gaussian_epsilon(1 / found.mu, "add-remove", 1, DELTA, rate=0.1).low)
    assert found.bound.draw < measured("gaussian", Play(relation="add-remove")).bound.draw
    counted = measured("bare", removed)
    assert 0 < counted.bound.draw < counted.ceiling


@pytest.mark.slow
def test_a_mixture_is_found_by_its_shift():
    rng = np.random.default_rng(0)
    bounds = []
    for _ in range(60):
        right = rng.normal(5.0, 2.0, 4000)
        left = rng.normal(5.0, 2.0, 4000) + 2.0 * 1.2 * (rng.random(4000) < 0.3)
        bound = mixture_shift(left, right, 0.3, 1.96, 1.95)
        if bound is not None:
            bounds.append(bound)
    assert len(bounds) > 55
    # 2.5 % are expected above.
    assert np.mean(np.array(bounds) > 1.2) < 0.12
    assert 0.9 < fmean(bounds) < 1.2
    other = rng.normal(5.0, 2.0, 4000) + 3.0 * (rng.random(4000) < 0.9)
    assert mixture_shift(other, right, 0.3, 1.96, 1.95) is None


def test_bad_numbers():
    with pytest.raises(ConfigError, match="expected 2000 or more"):
        Play(draws=100)
    for sampler in ({"inside": 0.5}, {"rate": 0.5}):
        with pytest.raises(ConfigError, match="add-remove"):
            Play(**sampler)
    with pytest.raises(ConfigError, match="not sampled again"):
        Play(inside=0.5, rate=0.5, relation="add-remove")


@pytest.mark.slow
def test_numbers_that_no_seed_repeats_are_said_to_be_so():
    for name in ("seeds_itself", "own_mod"):
        (note,) = measured(name, Play(draws=2000)).notes
        assert "the seed does not reproduce these numbers" in note
    for name in ("honest", "gaussian", "wrapped"):
        assert measured(name, Play(draws=2000)).notes == ()
