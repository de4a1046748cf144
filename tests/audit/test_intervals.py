import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar

from fedattack.audit.intervals import clopper_pearson, median_interval, paired_interval, rate_interval, t_interval
from fedattack.errors import ConfigError, DataError


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
    for interval in (
        lambda: clopper_pearson(1, 2, level),
        lambda: t_interval([1, 2], level),
        lambda: rate_interval([1], [2], level),
    ):
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
    assert rate_interval([58], [100]) == clopper_pearson(58, 100)


def test_several_seeds_take_the_wider_end():
    alike = rate_interval([50, 50, 50], [100, 100, 100])
    assert alike == clopper_pearson(150, 300)
    apart = rate_interval([30, 50, 70], [100, 100, 100])
    assert apart == pytest.approx(t_interval([0.3, 0.5, 0.7], bounds=(0, 1)))
    assert apart[0] < clopper_pearson(150, 300)[0]


def test_comparisons_are_bonferroni_corrected():
    assert rate_interval([58], [100], 0.95, comparisons=20) == pytest.approx(clopper_pearson(58, 100, 0.9975))


@pytest.mark.parametrize(
    ("successes", "n"), [([], []), ([1, 2], [3]), ([4], [3]), ([-1], [3]), ([1, 0], [3, 0]), ([math.nan], [3])]
)
def test_rate_interval_refuses_counts_that_do_not_fit(successes, n):
    with pytest.raises(DataError, match="rate_interval"):
        rate_interval(successes, n)


def test_rate_interval_refuses_zero_comparisons():
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
    assert covered >= 0.94
    assert np.mean([low <= 0.5 <= high for low, high in pooled]) < 0.75


def test_the_best_of_many_null_rounds_rarely_clears_chance():
    """Without the correction the best of 20 null rounds would clear chance in about a fifth of the runs or more."""
    rng = np.random.default_rng(3)
    best = rng.binomial(200, 0.1, (400, 20)).max(1)
    corrected = np.mean([rate_interval([k], [200], comparisons=20)[0] > 0.1 for k in best.tolist()])
    uncorrected = np.mean([rate_interval([k], [200])[0] > 0.1 for k in best.tolist()])
    assert corrected <= 0.05
    assert uncorrected > 0.2


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
    low, high = median_interval(seeds)
    assert (low, high) == pytest.approx(t_interval([0.0, 1.0, 2.0]))
