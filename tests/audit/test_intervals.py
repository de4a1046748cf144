import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar

from fedattack.audit.intervals import (
    clopper_pearson,
    mean_interval,
    median_interval,
    paired_interval,
    rate_interval,
    t_interval,
    these_runs,
)
from fedattack.audit.over_runs import mean_rate
from fedattack.base.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 5 ("exact" Clopper-Pearson).
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ],
)
def test_clopper_pearson_gives_the_published_limits(successes, n, low, high):
    assert clopper_pearson(successes, n) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "n", "level"), [(3, 10, 0.95), (58, 100, 0.99), (1, 7, 0.9), (6, 7, 0.9)])
def test_clopper_pearson_limits_put_half_the_error_in_each_binomial_tail(successes, n, level):
    low, high = clopper_pearson(successes, n, level)
    assert stats.binom.sf(successes - 1, n, low) == pytest.approx((1 - level) / 2)
    assert stats.binom.cdf(successes, n, high) == pytest.approx((1 - level) / 2)


def test_clopper_pearson_at_the_ends_has_a_closed_form():
    assert clopper_pearson(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert clopper_pearson(10, 10) == pytest.approx((0.025**0.1, 1.0))


def test_clopper_pearson_moves_steadily_between_whole_counts():
    limits = np.array([clopper_pearson(k, 12) for k in np.linspace(0, 12, 241)])
    assert (np.diff(limits, axis=0) >= 0).all()
    assert np.abs(np.diff(limits, axis=0)).max() < 0.02  # no jump at the whole numbers
    assert (limits[1:-1, 0] < np.linspace(0, 12, 241)[1:-1] / 12).all()


def test_clopper_pearson_with_split_ties_still_covers():
    rng = np.random.default_rng(0)
    rate, n = 0.3, 40
    # Half of the targets are settled, the others are ties of two and give half a credit each time one is right.
    sums = rng.binomial(1, rate, (600, n // 2)).sum(1) + rng.binomial(2, rate, (600, n // 2)).sum(1) / 2
    limits = [clopper_pearson(k, n) for k in sums]
    assert np.mean([low <= rate <= high for low, high in limits]) >= 0.95


@pytest.mark.parametrize(("successes", "n"), [(-0.1, 5), (5.1, 5), (0, 0), (math.nan, 5)])
def test_clopper_pearson_refuses_impossible_counts(successes, n):
    with pytest.raises(DataError, match="clopper_pearson"):
        clopper_pearson(successes, n)


@pytest.mark.parametrize("level", [0, 1, 95, -0.5, math.nan])
def test_levels_outside_0_and_1_are_refused(level):
    for interval in (lambda: clopper_pearson(1, 2, level), lambda: t_interval([1, 2], level)):
        with pytest.raises(ConfigError, match="level"):
            interval()


def test_t_interval_by_hand():
    # mean 2, sd 1, t(0.975, 2) = 4.3027, so the half width is 4.3027 / sqrt(3).
    assert t_interval([1, 2, 3]) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert t_interval([1, 2, 3], bounds=(0, 4)) == pytest.approx((0, 4))


def test_t_interval_needs_two_finite_values():
    with pytest.raises(DataError, match="at least 2"):
        t_interval([0.5])
    with pytest.raises(DataError, match="finite"):
        t_interval([0.5, math.nan])


def test_one_seed_is_judged_over_its_targets():
    assert rate_interval([58], [100]) == these_runs([58], [100]) == clopper_pearson(58, 100)


def test_these_runs_pool_the_targets_of_all_seeds():
    assert these_runs([50, 50, 50], [100, 100, 100]) == clopper_pearson(150, 300)
    assert these_runs([30, 50.5, 70], [100, 200, 100]) == clopper_pearson(150.5, 400)
    assert these_runs([0, 0], [5, 5]) == pytest.approx((0.0, 1 - 0.025**0.1))
    assert these_runs([5, 5], [5, 5]) == pytest.approx((0.025**0.1, 1.0))


@pytest.mark.parametrize("hits", [0, 7.5, 50, 100])
def test_more_seeds_of_the_same_rate_tell_more_of_runs_like_these(hits):
    """From two on: the first speaks of one run alone."""
    ends = np.array([rate_interval([hits] * k, [100] * k) for k in (2, 3, 5, 10, 20)])
    assert (np.diff(ends[:, 1] - ends[:, 0]) < 0).all()


def test_runs_like_these_are_less_sure_than_these_runs():
    for hits, sizes in (([50, 50], [100, 100]), ([30, 50, 70], [100] * 3), ([0, 0, 0], [40] * 3), ([9, 2.5], [9, 900])):
        these, like = these_runs(hits, sizes), rate_interval(hits, sizes)
        assert like[0] <= these[0]
        assert like[1] >= these[1]
        assert like[1] - like[0] > these[1] - these[0]


def test_seeds_that_disagree_widen_the_interval():
    alike, apart = rate_interval([50, 50, 50], [100] * 3), rate_interval([30, 50, 70], [100] * 3)
    assert apart[0] < alike[0]
    assert apart[1] > alike[1]


def test_two_seeds_that_agree_are_not_useless():
    """Student's t made 0–100 % of such seeds."""
    low, high = rate_interval([100, 130], [1000, 1000])
    assert t_interval([0.1, 0.13], bounds=(0, 1)) == pytest.approx((0, 0.305), abs=1e-3)
    assert 0.03 < low < 0.1
    assert 0.13 < high < 0.28


def test_rates_of_0_and_1_mirror_each_other():
    low, high = rate_interval([0, 1, 2.5], [50, 60, 70])
    assert rate_interval([50, 59, 67.5], [50, 60, 70]) == pytest.approx((1 - high, 1 - low), abs=1e-9)
    assert rate_interval([0, 0], [50, 50])[0] == 0
    assert rate_interval([50, 50], [50, 50])[1] == 1


def test_the_interval_moves_steadily_with_fractional_counts():
    ends = np.array([rate_interval([hits, 4], [12, 12]) for hits in np.linspace(4, 12, 81)])
    assert (np.diff(ends[:, 1]) > 0).all()
    assert np.abs(np.diff(ends, axis=0)).max() < 0.03


def test_comparisons_are_bonferroni_corrected():
    assert rate_interval([58], [100], comparisons=20) == pytest.approx(clopper_pearson(58, 100, 0.9975))
    once, often = rate_interval([5, 9], [100, 90]), rate_interval([5, 9], [100, 90], comparisons=20)
    assert often[0] < once[0] < once[1] < often[1]


@pytest.mark.parametrize(
    ("successes", "n"), [([], []), ([1, 2], [3]), ([4], [3]), ([-1], [3]), ([1, 0], [3, 0]), ([math.nan], [3])]
)
def test_rate_interval_refuses_counts_that_do_not_fit(successes, n):
    with pytest.raises(DataError, match="rate_interval"):
        rate_interval(successes, n)
    with pytest.raises(DataError, match="these_runs"):
        these_runs(successes, n)


def test_intervals_of_rates_refuse_zero_comparisons():
    with pytest.raises(ConfigError, match="comparisons"):
        rate_interval([1], [3], comparisons=0)


def test_interval_over_seeds_covers_where_the_pooled_binomial_does_not():
    """Runs differ: each seed has its own rate around 0.5, and its 400 targets follow that rate."""
    rng = np.random.default_rng(7)
    rates = rng.normal(0.5, 0.06, (500, 5)).clip(0, 1)
    counts = rng.binomial(400, rates)
    ours = [rate_interval(run, [400] * 5) for run in counts.tolist()]
    pooled = [clopper_pearson(int(run.sum()), 2000) for run in counts]
    covered = np.mean([low <= 0.5 <= high for low, high in ours])
    assert 0.92 <= covered <= 0.99
    assert np.mean([low <= 0.5 <= high for low, high in pooled]) < 0.75


def test_interval_over_seeds_covers_where_student_s_t_does_not():
    """Rates are near 0, and most seeds have hardly a success."""
    rng = np.random.default_rng(8)
    counts = rng.binomial(100, rng.beta(0.24, 23.5, (400, 3)))  # mean 0.01, standard deviation 0.02
    ours = [rate_interval(run, [100] * 3) for run in counts.tolist()]
    t = [t_interval((run / 100).tolist()) for run in counts]
    truth = 0.24 / 23.74
    assert 0.93 <= np.mean([low <= truth <= high for low, high in ours]) <= 1
    assert np.mean([low <= truth <= high for low, high in t]) < 0.85


def test_the_best_of_many_null_rounds_rarely_clears_chance():
    """Without the correction the best of 20 null rounds would clear chance in about a fifth of the runs or more."""
    rng = np.random.default_rng(3)
    best = rng.binomial(200, 0.1, (400, 20)).max(1)
    corrected = np.mean([rate_interval([k], [200], comparisons=20)[0] > 0.1 for k in best.tolist()])
    uncorrected = np.mean([rate_interval([k], [200])[0] > 0.1 for k in best.tolist()])
    assert corrected <= 0.05
    assert uncorrected > 0.2


def test_the_interval_of_a_statistic_is_that_of_a_rate_of_as_many_targets():
    """Wilson's interval of 300 targets makes 300 targets of the statistic."""
    z = stats.norm.isf(0.025)
    centre, half = (0.4 + z**2 / 600) / (1 + z**2 / 300), z / (300 + z**2) * math.sqrt(300 * 0.24 + z**2 / 4)
    found = mean_interval([0.35, 0.4, 0.45], (centre - half, centre + half))
    assert found == pytest.approx(mean_rate(np.array([35.0, 40, 45]), np.full(3, 100.0), 0.95), abs=1e-4)
    stretched = mean_interval([-0.3, -0.2, -0.1], tuple(2 * end - 1 for end in (centre - half, centre + half)), (-1, 1))
    assert stretched[1] - stretched[0] < 2 * (found[1] - found[0])  # the prior is on the statistic's own scale


def test_the_interval_of_a_statistic_contains_that_of_these_runs():
    assert mean_interval([0.7], (0.6, 0.8)) == (0.6, 0.8)
    assert mean_interval([0.9, 0.9], (0.1, 0.95))[0] <= 0.1
    assert mean_interval([1.0, 1.0], (0.95, 1.0))[1] == 1
    assert mean_interval([0.5, 0.5], (0.5, 0.5))[0] < 0.5
    wide, narrow = mean_interval([0.7, 0.72], (0.6, 0.8)), mean_interval([0.7, 0.72], (0.7, 0.72))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize(
    ("values", "these"),
    [([], (0, 1)), ([1.5, 0.5], (0, 1)), ([0.5, math.nan], (0, 1)), ([0.5, 0.6], (0.7, 0.4)), ([0.5, 0.6], (0.4, 1.2))],
)
def test_statistics_out_of_bounds_are_refused(values, these):
    with pytest.raises(DataError, match="mean_interval"):
        mean_interval(values, these)


def constrained_score(delta: float, b: int, c: int, n: int) -> float:
    """Score of b and c discordant pairs of n under p12 − p21 = delta, by maximising the likelihood numerically."""

    def unlikely(p21: float) -> float:
        cells = ((b, p21 + delta), (c, p21), (n - b - c, 1 - 2 * p21 - delta))
        return -sum(count * np.log(max(p, 1e-300)) for count, p in cells if count)

    bounds = (max(0.0, -delta), (1 - delta) / 2)
    p21 = minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    return (b - c - n * delta) / np.sqrt(n * (2 * p21 + delta * (1 - delta)))


@pytest.mark.parametrize("counts", [(1, 0, 44), (10, 3, 50), (0, 0, 30), (40, 0, 300), (3, 20, 60)])
def test_the_paired_interval_inverts_the_score_test(counts):
    b, c, n = counts
    low, high = paired_interval([b], [c], [n])
    assert low <= (b - c) / n <= high
    for end in (low, high):
        assert abs(constrained_score(end, b, c, n)) == pytest.approx(stats.norm.isf(0.025), rel=1e-3)


def test_the_paired_interval_covers_the_difference_and_mirrors():
    draw = np.random.default_rng(0)
    covered = 0
    for b, c, _ in draw.multinomial(80, (0.2, 0.08, 0.72), size=500).tolist():
        low, high = paired_interval([b], [c], [80])
        assert paired_interval([c], [b], [80]) == pytest.approx((-high, -low), abs=1e-6)
        covered += low <= 0.12 <= high
    assert 0.92 <= covered / 500 <= 0.99
    assert paired_interval([50], [0], [50])[1] == 1.0


def test_seeds_that_disagree_widen_the_paired_interval():
    pooled = paired_interval([20], [10], [200])
    wide = paired_interval([20, 0], [0, 10], [100, 100])
    assert wide[0] < pooled[0]
    assert wide[1] > pooled[1]


@pytest.mark.parametrize(
    "counts", [([], [], []), ([1], [1, 2], [5]), ([3], [3], [5]), ([-1], [0], [5]), ([0], [0], [0])]
)
def test_impossible_pairs_are_refused(counts):
    with pytest.raises(DataError, match="paired_interval"):
        paired_interval(*counts)


def test_the_median_s_ranks_are_the_published_ones():
    """Conover, Practical Nonparametric Statistics (1999), the sign test: ranks 6 and 15 of 20, 1 and 6 of 6."""
    assert median_interval([list(range(1, 21))]) == (6, 15)
    assert median_interval([np.arange(1.0, 7.0)]) == (1, 6)
    assert median_interval([[1.0] * 5]) == (None, None)
    assert median_interval([[]]) == (None, None)


def test_the_median_s_interval_covers_it_at_least_as_often_as_stated():
    draw = np.random.default_rng(0)
    ends = [median_interval([draw.exponential(size=25)]) for _ in range(2_000)]
    covered = np.mean([low <= math.log(2) <= high for low, high in ends])
    assert 0.945 < covered < 0.985


def test_seeds_that_differ_widen_the_median_s_interval():
    seeds = [[0.0] * 20, [1.0] * 20, [2.0] * 20]
    assert median_interval(seeds) == pytest.approx(t_interval([0.0, 1.0, 2.0]))
    draw = np.random.default_rng(1)
    values = draw.normal(size=(3, 40))
    alike, apart = median_interval(list(values)), median_interval(list(values + np.array([[-1.0], [0.0], [1.0]])))
    pooled = median_interval([values.ravel()])
    assert apart[0] < alike[0] <= pooled[0]
    assert apart[1] > alike[1] >= pooled[1]


def test_a_median_s_interval_stays_in_the_range_of_its_quantity():
    similar = [np.linspace(0.96, 1.0, 20), np.linspace(0.5, 0.6, 20)]
    assert median_interval(similar)[1] > 1
    low, high = median_interval(similar, bounds=(-1.0, 1.0))
    assert (low, high) == (median_interval(similar)[0], 1.0)
    same = [[0.0] * 20, [1.0] * 20]
    assert median_interval(same, bounds=(0.0, 1.0)) == (0, 1), "where no example differs from its run's median"
