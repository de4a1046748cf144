"""Bounds from scores, on draws whose ε is known."""

import math

import numpy as np
import pytest
from scipy import stats

from fedattack.claims.canaries import bounds
from fedattack.privacy.gaussian import epsilon_of

DELTA = 1e-5
NULL = bounds.KnownNull(5000)
RUNS = 150
# An error of 5 % is exceeded by so many runs once in a thousand times by accident.
MOST = stats.binom.isf(1e-3, RUNS, 0.05)


@pytest.mark.parametrize(("count", "mu"), [(10, 6.0), (20, 2.0), (60, 0.5)])
def test_bounds_of_clients_are_rarely_above_the_truth(mu, count):
    rng = np.random.default_rng(count)
    true, above, found = epsilon_of(mu, DELTA), 0, []
    for _ in range(RUNS):
        scores = rng.normal(mu, 1, count)
        by_shape = bounds.bound_by_shape(scores, NULL, DELTA)
        found.append(max(by_shape, bounds.bound_by_ranks(scores, NULL, DELTA)))
        above += found[-1] > true
    assert above <= MOST
    assert np.mean(found) > 0.3 * true


def test_ranks_hold_where_scores_are_no_gaussian():
    """Half of the canaries never took part: the bound is that of who is above, and the shape is refused."""
    rng = np.random.default_rng(0)
    scores = np.where(rng.random(60) < 0.5, rng.normal(12, 1, 60), rng.normal(0, 1, 60))
    assert bounds.bound_by_shape(scores, NULL, DELTA) == -math.inf
    assert 10 < bounds.bound_by_ranks(scores, NULL, DELTA) < 130


def test_a_variance_below_that_of_chance_is_no_shape():
    assert NULL.find_shift(np.linspace(4.99, 5.01, 20)) is None
    assert NULL.find_shift(np.full(20, 5.0)) is None
    assert NULL.find_shift(np.arange(5.0)) is None


@pytest.mark.parametrize(("sigma", "epsilon"), [(4.22, 1.0), (1.54, 3.0), (0.541, 10.0)])
def test_the_papers_gaussian_mechanisms(sigma, epsilon):
    """Andrew et al. 2024, Table 1: δ = 1e-6, and noise for ε = 1, 3 and 10."""
    assert epsilon_of(1 / sigma, 1e-6) == pytest.approx(epsilon, rel=4e-3)


def naive(coins, guesses, right, epsilon, delta):
    """Theorem 5.2 as it is written: the largest mean of the i probabilities below the count."""
    rate = 1 / (1 + math.exp(-epsilon))
    best = 0.0
    for i in range(1, right + 1):
        near = sum(stats.binom.pmf(right - j, guesses, rate) for j in range(1, i + 1))
        best = max(best, near / i)
    return min(1.0, stats.binom.sf(right - 1, guesses, rate) + 2 * coins * delta * best)


@pytest.mark.parametrize("case", [(100, 20, 18, 1.0, 1e-5), (50, 50, 30, 0.2, 1e-3), (10, 4, 0, 1.0, 0.1)])
def test_the_p_value_is_that_of_the_theorem(case):
    assert bounds.p_value(*case) == pytest.approx(naive(*case))


def test_guesses_that_are_all_right_have_a_closed_form_without_delta():
    """All of r right is a p-value of (e^ε / (1 + e^ε))^r."""
    rate = 0.05 ** (1 / 600)
    assert bounds.bound_by_guesses(1000, 600, 600, 0.0, 0.05) == pytest.approx(math.log(rate / (1 - rate)))
    assert bounds.bound_by_guesses(1000, 600, 600, 1e-5, 0.05) < bounds.bound_by_guesses(1000, 600, 600, 0.0, 0.05)
    assert bounds.bound_by_guesses(1000, 600, 300, 1e-5, 0.05) == 0
    assert bounds.bound_by_guesses(10, 0, 0, 1e-5, 0.05) == 0


def test_guesses_are_rarely_above_the_truth_of_randomised_response():
    """The mechanism that is worst for pure ε tells each coin with a probability of e^ε / (1 + e^ε)."""
    rng, epsilon, above = np.random.default_rng(0), 1.0, 0
    rate = 1 / (1 + math.exp(-epsilon))
    found = []
    for _ in range(RUNS):
        included = rng.random(200) < 0.5
        told = np.where(rng.random(200) < rate, included, ~included)
        guesses, right = bounds.count_right_guesses(told.astype(float), included, 1.0)
        found.append(bounds.bound_by_guesses(200, guesses, right, 0.0, 0.05))
        above += found[-1] > epsilon
    assert above <= MOST
    assert np.mean(found) > 0.5


def test_guesses_are_on_the_extremes():
    included = np.array([True, False, True, False, False, True])
    scores = np.array([9.0, -3.0, 5.0, 0.1, 4.0, 0.0])
    assert bounds.count_right_guesses(scores, included, 1 / 3) == (2, 2)
    assert bounds.count_right_guesses(scores, included, 1.0) == (6, 4)


@pytest.mark.parametrize("mu", [0.8, 4.0])
def test_bounds_of_examples_are_rarely_above_the_truth(mu):
    rng, above, found = np.random.default_rng(1), 0, []
    for _ in range(RUNS):
        included = rng.random(120) < 0.5
        scores = rng.normal(size=120) + mu * included
        inside, null = scores[included], bounds.SampledNull(scores[~included])
        found.append(max(bounds.bound_by_shape(inside, null, DELTA), bounds.bound_by_ranks(inside, null, DELTA)))
        above += found[-1] > epsilon_of(mu, DELTA)
    assert above <= MOST
    assert np.median(found) > 0.2 * epsilon_of(mu, DELTA)


def test_two_samples_without_a_shape_bound_nothing():
    skewed = bounds.SampledNull(np.random.default_rng(0).exponential(size=100) ** 3)
    for inside, null in ((np.arange(100.0), skewed), (np.arange(3.0), bounds.SampledNull(np.arange(100.0)))):
        assert bounds.bound_by_shape(inside, null, DELTA) == -math.inf
        assert bounds.bound_by_ranks(inside, null, DELTA) == -math.inf
