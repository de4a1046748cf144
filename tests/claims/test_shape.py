"""Bounds on how far apart two Gaussians are, from few scores of each."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from fedattack.audit.intervals import clopper_pearson
from fedattack.claims.shape import place_at_least, shift_above, shift_at_least

ERROR = 0.0125
RUNS = 600
# Means are so many deviations apart; with few scores the error is largest where that is much.
FAR = 12.0


def as_stated(above):
    """Whether so many bounds above the truth are what the stated error explains, but for once in a thousand times."""
    return clopper_pearson(above, RUNS, 0.998)[0] <= ERROR


@pytest.mark.parametrize(("count", "others"), [(8, 8), (15, 15), (30, 8)])
def test_a_shift_is_above_the_truth_as_rarely_as_stated(count, others):
    rng, found = np.random.default_rng(count), []
    for _ in range(RUNS):
        bound = shift_above(rng.normal(FAR, 1, count), rng.normal(size=others), ERROR)
        found.append(bound or 0.0)
    assert as_stated(sum(bound > FAR for bound in found))
    assert np.mean(found) > 0.4 * FAR


@pytest.mark.parametrize(("count", "others"), [(8, 8), (8, 100)])
@pytest.mark.parametrize(("shift", "deviation"), [(1.0, 3.0), (4.0, 1.4)])
def test_a_larger_deviation_makes_no_more_errors(count, others, shift, deviation):
    rng, above = np.random.default_rng(others), 0
    for _ in range(RUNS):
        bound = shift_above(rng.normal(shift, deviation, count), rng.normal(size=others), ERROR)
        above += (bound or 0.0) > shift
    assert as_stated(above)


def test_a_smaller_deviation_is_another_shape():
    rng = np.random.default_rng(0)
    assert shift_above(rng.normal(5, 0.1, 30), rng.normal(size=30), ERROR) is None
    assert shift_above(np.full(30, 5.0), rng.normal(size=30), ERROR) is None


@pytest.mark.parametrize("count", [8, 15])
def test_a_place_is_above_the_truth_as_rarely_as_stated(count):
    rng, found = np.random.default_rng(count), []
    for _ in range(RUNS):
        found.append(place_at_least(FAR, rng.normal(size=count), ERROR) or 0.0)
    assert as_stated(sum(bound > FAR for bound in found))
    assert np.mean(found) > 0.4 * FAR


@pytest.mark.parametrize("count", [8, 200])
def test_a_shift_of_equal_deviations_is_above_the_truth_as_rarely_as_stated(count):
    rng, above = np.random.default_rng(count), 0
    for _ in range(RUNS):
        bound = shift_at_least(rng.normal(FAR, 1, count), rng.normal(size=count), ERROR)
        above += (bound or 0.0) > FAR
    assert as_stated(above)


@pytest.mark.parametrize("apart", [-2.0, 0.5, 6.0, 300.0])
def test_at_the_bound_so_large_a_distance_is_as_likely_as_the_error(apart):
    """By an integral over what the estimated deviation may be, of nine scores."""
    scores = stats.norm.ppf((np.arange(9) + 0.5) / 9)
    threshold = float(scores.mean() + apart * scores.std(ddof=1))
    bound = place_at_least(threshold, scores, ERROR)

    def exceeded(square):
        above = stats.norm.sf(3 * (apart * math.sqrt(square / 8) - bound))
        return float(above * stats.chi2.pdf(square, 8))

    middle = 8 * (bound / apart) ** 2
    likely = integrate.quad(exceeded, 0, 60, points=[middle, 2 * middle], limit=500)[0]
    assert likely == pytest.approx(ERROR, rel=1e-3)


def test_no_distance_is_too_large():
    rng = np.random.default_rng(0)
    left, right = rng.normal(1e12, 1, 20), rng.normal(size=20)
    assert 0.5e12 < shift_above(left, right, ERROR) < 1.5e12
