"""Rates, areas and implied ε: brute force, and how often their intervals hold what is true."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fedattack.audit.roc import area, balanced_accuracy, epsilon_implied, tpr_at

DRAWS = 300


def rate_by_hand(members, others, fpr):
    """The most members above any threshold that accuses at most a share of the non-members."""
    allowed = [threshold for threshold in others if np.mean(others > threshold) <= fpr + 1e-12]
    return max(np.mean(members > threshold) for threshold in allowed)


@pytest.mark.parametrize("fpr", [0.001, 0.01, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("ties", [False, True])
def test_the_rate_is_that_of_the_best_threshold(fpr, ties):
    for seed in range(20):
        draw = np.random.default_rng(seed)
        members = draw.normal(1.0, 1.0, draw.integers(1, 60))
        others = draw.normal(size=draw.integers(1, 300))
        if ties:
            members, others = members.round(), others.round()
        found = tpr_at(members, others, fpr)
        assert found.value == pytest.approx(rate_by_hand(members, others, fpr))
        assert 0 <= found.low <= found.value <= found.high <= 1


@pytest.mark.parametrize(("shift", "fpr", "others"), [(0.0, 0.01, 1500), (1.5, 0.01, 1500), (1.0, 0.1, 200)])
@pytest.mark.slow
def test_the_rate_s_interval_holds_the_true_rate(shift, fpr, others):
    """Of null scores, and of shifted normal ones."""
    truth = norm.sf(norm.isf(fpr) - shift)
    held = 0
    for seed in range(DRAWS):
        draw = np.random.default_rng((seed, 1))
        found = tpr_at(draw.normal(shift, 1.0, 200), draw.normal(size=others), fpr)
        held += found.low <= truth <= found.high
    assert held >= 0.95 * DRAWS


def test_with_few_non_members_a_small_rate_has_no_upper_end_and_hardly_a_lower_one():
    members, others = np.linspace(2, 3, 50), np.linspace(0, 1, 20)
    found = tpr_at(members, others, 0.001)
    assert (found.value, found.low, found.high) == (1.0, 0.0, 1.0)


def test_more_confidence_gives_a_wider_interval():
    draw = np.random.default_rng(0)
    members, others = draw.normal(1.0, 1.0, 300), draw.normal(size=3000)
    usual, sure = tpr_at(members, others, 0.01), tpr_at(members, others, 0.01, level=0.999)
    assert sure.low <= usual.low < usual.value < usual.high <= sure.high
    assert area(members, others, 0.999).low < area(members, others).low


@pytest.mark.parametrize("ties", [False, True])
def test_the_area_is_scikit_learn_s(ties):
    for seed in range(20):
        draw = np.random.default_rng(seed)
        members, others = draw.normal(0.5, 1.0, draw.integers(2, 60)), draw.normal(size=draw.integers(2, 60))
        if ties:
            members, others = members.round(), others.round()
        labels = np.repeat([1, 0], [len(members), len(others)])
        expected = roc_auc_score(labels, np.concatenate([members, others]))
        assert area(members, others).value == pytest.approx(expected)


@pytest.mark.parametrize("shift", [0.0, 1.0, 2.0])
def test_the_area_s_interval_holds_the_true_area_nineteen_times_in_twenty(shift):
    truth = norm.cdf(shift / np.sqrt(2))
    held = 0
    for seed in range(DRAWS):
        draw = np.random.default_rng((seed, 2))
        found = area(draw.normal(shift, 1.0, 80), draw.normal(size=160))
        assert found.low < found.value < found.high
        held += found.low <= truth <= found.high
    assert 0.92 <= held / DRAWS <= 0.98


def test_areas_of_nothing_in_between_have_the_interval_of_a_rate():
    above, below = np.linspace(2, 3, 20), np.linspace(0, 1, 50)
    best, worst = area(above, below), area(below, above)
    assert (best.value, best.high) == (1.0, 1.0)
    assert 0.8 < best.low < 1.0
    assert (worst.value, worst.low) == (0.0, 0.0)
    assert worst.high == pytest.approx(1 - best.low)
    same = area(np.zeros(9), np.zeros(9))
    assert (same.value, same.low, same.high) == (0.5, 0.5, 0.5)


def test_a_null_s_balanced_accuracy_is_a_half_and_unequal_groups_do_not_matter():
    right, total = 0.0, 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        hits, size = balanced_accuracy(draw.normal(size=50), draw.normal(size=170), draw)
        assert size == 100
        right, total = right + hits, total + size
    assert right / total == pytest.approx(0.5, abs=0.02)
    draw = np.random.default_rng(0)
    assert balanced_accuracy(np.full(9, 1.0), np.zeros(30), draw) == (18.0, 18)
    assert balanced_accuracy(np.zeros(9), np.zeros(30), draw)[0] == 9.0


def answers(epsilon, draw, count):
    """Randomised response: an honest answer with the probability e^ε / (1 + e^ε)."""
    honest = np.exp(epsilon) / (1 + np.exp(epsilon))
    yes, no = draw.random(count) < honest, draw.random(count) >= honest
    return yes.astype(float), no.astype(float)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_the_implied_epsilon_of_randomised_response_is_at_most_the_true_one(epsilon):
    lows = []
    values = []
    for seed in range(DRAWS):
        draw = np.random.default_rng((seed, 3))
        found = epsilon_implied(*answers(epsilon, draw, 400), draw)
        assert 0 <= found.low <= found.value <= found.high
        lows.append(found.low)
        values.append(found.value)
    assert np.mean(np.array(lows) > epsilon) <= 0.05
    assert np.median(values) == pytest.approx(epsilon, rel=0.25)
    draw = np.random.default_rng(4)
    assert epsilon_implied(*answers(epsilon, draw, 40_000), draw).low > 0.8 * epsilon


def delta_of(epsilon, sigma):
    """δ of the Gaussian mechanism with sensitivity 1 (Balle and Wang 2018, Theorem 8)."""
    near, far = norm.cdf(0.5 / sigma - epsilon * sigma), norm.cdf(-0.5 / sigma - epsilon * sigma)
    return near - np.exp(epsilon) * far


@pytest.mark.parametrize(("sigma", "delta"), [(1.0, 0.01), (0.5, 1e-3)])
def test_the_implied_epsilon_of_gaussian_noise_is_at_most_the_true_one(sigma, delta):
    truth = brentq(lambda epsilon: delta_of(epsilon, sigma) - delta, 0.0, 50.0)
    above = 0
    for seed in range(DRAWS):
        draw = np.random.default_rng((seed, 5))
        members, others = draw.normal(1.0, sigma, 300), draw.normal(0.0, sigma, 500)
        above += epsilon_implied(members, others, draw, delta=delta).low > truth
    assert above <= 0.05 * DRAWS
    draw = np.random.default_rng(6)
    many = epsilon_implied(draw.normal(1.0, sigma, 60_000), draw.normal(0.0, sigma, 60_000), draw, delta=delta)
    assert many.low > 0.3 * truth


def test_scores_that_are_all_alike_imply_nothing():
    draw = np.random.default_rng(0)
    found = epsilon_implied(np.zeros(100), np.zeros(300), draw)
    assert (found.value, found.low) == (0.0, 0.0)
    nulls = [epsilon_implied(draw.normal(size=100), draw.normal(size=100), draw).low for _ in range(100)]
    assert np.mean(np.array(nulls) > 0) <= 0.05


def test_it_is_the_sure_no_that_implies_where_the_sure_yes_does_not():
    """A fifth of the non-members score lower than any member."""
    draw = np.random.default_rng(0)
    members, others = draw.random(2000), draw.random(2000)
    others[:400] -= 1.0
    assert epsilon_implied(members, others, draw).low > 2.5
    assert epsilon_implied(-others, -members, draw).low > 2.5
