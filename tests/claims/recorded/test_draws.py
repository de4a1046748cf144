import math

import numpy as np
import pytest
from scipy import stats

from fedattack.claims.recorded.draws import GaussianDraws, LaplaceDraws

KINDS = {
    "gaussian": (GaussianDraws(), np.random.default_rng(0).normal),
    "laplace": (LaplaceDraws(), np.random.default_rng(0).laplace),
}
SIZE, ERROR, DRAWS = 400, 0.02, 3000


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def noise(kind):
    return kind[1](0, 1, (DRAWS, SIZE))


def often(events):
    """The upper end of an interval on how often, that is hardly ever wrong."""
    return events.mean() - 4 * math.sqrt(ERROR / DRAWS)


def test_known_quantiles():
    gaussian, laplace = GaussianDraws(), LaplaceDraws()
    assert gaussian.least_sum(50, 1e-6) == pytest.approx(stats.chi2.ppf(1e-6, 50))
    assert laplace.least_sum(50, 1e-6) == pytest.approx(stats.gamma.ppf(1e-6, 50))
    share = stats.beta.ppf(1e-6, 5, 46)
    assert gaussian.least_at(5, 50, 1e-6) == pytest.approx(stats.norm.ppf((1 + share) / 2))
    assert laplace.least_at(5, 50, 1e-6) == pytest.approx(stats.expon.ppf(share))


def test_a_model_of_millions_at_a_tiny_error():
    gaussian = GaussianDraws()
    assert math.sqrt(gaussian.least_sum(7_000_000, 1e-9) / 7_000_000) == pytest.approx(
        1 - 6 / math.sqrt(14e6), abs=1e-5
    )
    assert gaussian.most_square(7_000_000, 0.0, 1e-9) > 7_000_000
    assert gaussian.least_at(1 << 17, 1 << 18, 1e-9) == pytest.approx(0.6745, rel=0.02)


def test_noise_alone_is_below_so_rarely(kind, noise):
    draws = kind[0]
    sums = (np.abs(noise) ** draws.power).sum(axis=1)
    assert often(sums < draws.least_sum(SIZE, ERROR)) < ERROR
    for rank in (4, 40, 200):
        assert often(np.sort(np.abs(noise), axis=1)[:, rank - 1] < draws.least_at(rank, SIZE, ERROR)) < ERROR


def test_quantiles_of_noise_alone_are_no_lower_than_they_must_be(kind, noise):
    """A bound of zero would pass the tests above."""
    draws = kind[0]
    sums = (np.abs(noise) ** draws.power).sum(axis=1)
    assert (sums < draws.least_sum(SIZE, 5 * ERROR)).mean() > ERROR
    ranked = np.sort(np.abs(noise), axis=1)[:, 39]
    assert (ranked < draws.least_at(40, SIZE, 5 * ERROR)).mean() > ERROR


@pytest.mark.parametrize("shift", ["spread", "one entry", "half"])
def test_whatever_the_noise_is_added_to_makes_it_no_smaller(kind, noise, shift):
    draws = kind[0]
    added = {
        "spread": np.full(SIZE, 0.3),
        "one entry": 20 * np.eye(SIZE)[0],
        "half": np.repeat([0.0, -1.5], SIZE // 2),
    }[shift]
    sent = np.abs(noise + added)
    assert (sent**draws.power).sum(axis=1).mean() >= (np.abs(noise) ** draws.power).sum(axis=1).mean()
    assert often((sent**draws.power).sum(axis=1) < draws.least_sum(SIZE, ERROR)) < ERROR
    assert often(np.sort(sent, axis=1)[:, 39] < draws.least_at(40, SIZE, ERROR)) < ERROR


@pytest.mark.parametrize("clip", [0.0, 5.0])
def test_a_clipped_update_with_noise_is_longer_so_rarely(kind, noise, clip):
    draws = kind[0]
    most = draws.most_square(SIZE, clip, ERROR)
    added = clip * np.eye(SIZE)[0]
    squares = ((noise + added) ** 2).sum(axis=1)
    assert often(squares > most) < ERROR
    assert most < 4 * squares.mean()
