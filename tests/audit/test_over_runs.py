import numpy as np
import pytest
from scipy import stats
from scipy.special import betaln

from fedattack.audit.over_runs import RATE_SCALE, mean_rate, mean_value


def by_sampling(successes, n, level):
    """Quantiles of the mean rate, by weighting a million draws of the prior with their likelihood."""
    rng = np.random.default_rng(0)
    means = rng.beta(0.5, 0.5, 1_000_000)
    most = np.sqrt(means * (1 - means))
    prior = stats.t(3, scale=RATE_SCALE)
    # Half of a t, cut where no rates can have that standard deviation.
    sds = prior.isf(0.5 - rng.random(len(means)) * (prior.cdf(most) - 0.5))
    total = np.maximum((most / sds) ** 2 - 1, 1e-9)
    yes, no = means * total, (1 - means) * total
    logs = np.zeros_like(means)
    for hits, size in zip(successes, n, strict=True):
        logs += betaln(yes + hits, no + size - hits) - betaln(yes, no)
    order = np.argsort(means)
    below = np.cumsum(np.exp(logs - logs.max())[order])
    return np.interp([(1 - level) / 2, (1 + level) / 2], below / below[-1], means[order])


@pytest.mark.parametrize(
    ("successes", "n", "level"),
    [
        ([0, 0], [50, 50], 0.95),
        ([3, 9], [50, 50], 0.95),
        ([3, 9.5], [50, 50], 0.9),
        ([1, 30, 12], [100, 100, 40], 0.95),
        ([48, 50, 50], [50, 50, 50], 0.95),
        ([30, 31, 35, 30, 28], [100] * 5, 0.99),
    ],
)
@pytest.mark.slow
def test_the_grid_gives_what_a_million_draws_give(successes, n, level):
    found = mean_rate(np.array(successes, float), np.array(n, float), level)
    assert found == pytest.approx(by_sampling(successes, n, level), abs=0.004, rel=0.03)


def test_runs_of_many_targets_that_differ_come_close_to_student_s_interval():
    rates = np.random.default_rng(0).normal(0.4, 0.05, 20)
    low, high = mean_rate(rates * 10_000, np.full(20, 10_000.0), 0.95)
    expected = stats.t(19, rates.mean(), stats.sem(rates)).ppf([0.025, 0.975])
    assert (low, high) == pytest.approx(expected, abs=1e-3)


def test_many_runs_that_are_alike_come_close_to_the_pooled_interval():
    hits = np.random.default_rng(0).binomial(100, 0.3, 400).astype(float)
    low, high = mean_rate(hits, np.full(400, 100.0), 0.95)
    expected = stats.beta(hits.sum() + 0.5, 40_000 - hits.sum() + 0.5).ppf([0.025, 0.975])
    assert (low, high) == pytest.approx(expected, abs=6e-4)


def test_tails_beyond_a_hundred_comparisons_are_still_found():
    hits, n = np.array([3.0, 9.0, 5.0]), np.full(3, 50.0)
    widths = []
    for level in (0.9, 0.99, 0.999, 0.9999):
        low, high = mean_rate(hits, n, level)
        widths.append(high - low)
    assert (np.diff(widths) > 0.02).all()
    assert high < 1


@pytest.mark.slow
def test_a_mean_of_normal_values_by_brute_force():
    values, errors, scale = np.array([1.0, 1.6, 0.7]), np.array([0.2, 0.3, 0.1]), 0.5
    means, sds = np.linspace(-8, 10, 3_601), np.linspace(1e-4, 30, 6_000)
    posterior = np.zeros_like(means)
    for sd in sds:
        spread = np.sqrt(sd**2 + errors**2)
        likelihood = stats.norm.pdf((values - means[:, None]) / spread) / spread
        posterior += likelihood.prod(axis=1) * stats.t.pdf(sd / scale, 3)
    below = np.cumsum(posterior) / posterior.sum()
    expected = np.interp([0.025, 0.975], below, means)
    assert mean_value(values, errors, scale, 0.95) == pytest.approx(expected, abs=0.01)


def test_a_mean_of_normal_values_has_the_values_units():
    values, errors = np.array([20.0, 23.0]), np.array([0.5, 0.4])
    low, high = mean_value(values, errors, 1.0, 0.95)
    assert mean_value(100 * values + 7, 100 * errors, 100.0, 0.95) == pytest.approx((100 * low + 7, 100 * high + 7))
