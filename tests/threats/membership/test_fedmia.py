"""FedMIA's test against the other clients, held against a slow obvious one."""

import numpy as np
import pytest
from scipy.stats import t

from fedattack.threats.membership.fedmia import against_others, below_others, logits_of, mean_where_seen


def by_hand(values, others, prior=4.0):
    """P(other < value) target by target: a moderated t test around the others' mean."""
    targets, count = others.shape
    means, variances = [], []
    for row in others.tolist():
        mean = sum(row) / count
        means.append(mean)
        variances.append(sum((value - mean) ** 2 for value in row) / (count - 1))
    typical = np.median(variances)
    found = np.empty(values.shape)
    for row in range(targets):
        pooled = (prior * typical + (count - 1) * variances[row]) / (prior + count - 1)
        for column in range(values.shape[1]):
            distance = values[row, column] - means[row]
            found[row, column] = t(prior + count - 1).cdf(distance / np.sqrt(pooled * (1 + 1 / count)))
    return found


@pytest.mark.parametrize("count", [2, 3, 4, 9])
def test_a_value_is_tested_as_a_slow_loop_does(count):
    draw = np.random.default_rng(count)
    values = draw.normal(size=(12, 3))
    values[0, 1] = np.nan
    others = draw.normal(size=(12, count)) * draw.exponential(size=(12, 1))
    np.testing.assert_allclose(below_others(values, others), by_hand(values, others), rtol=1e-10)


@pytest.mark.parametrize("clients", [3, 4, 5, 8, 9, 40])
@pytest.mark.parametrize("decimals", [0, 9])
def test_one_sort_for_all_clients_is_a_sort_for_each_without_the_largest(clients, decimals):
    values = np.random.default_rng(clients).normal(size=(30, clients)).round(decimals)
    values[:3, 1] += 100.0
    values[3:6, [0, 2]] += 50.0
    values[6, 0] = -700.0
    found = against_others(values)
    for client in range(clients):
        others = np.sort(np.delete(values, client, axis=1), axis=1)[:, : max(clients - 2, 2)]
        expected = by_hand(values[:, [client]], others)
        np.testing.assert_allclose(found[:, [client]], expected, rtol=1e-8, atol=1e-300)


@pytest.mark.parametrize("seen", [0, 1, 2, 3])
def test_fewer_than_three_clients_are_held_against_nobody(seen):
    values = np.full((5, 4), np.nan)
    values[:, :seen] = np.random.default_rng(0).normal(size=(5, seen))
    found = against_others(values)
    assert np.isnan(found[:, seen:]).all()
    assert np.isfinite(found[:, :seen]).all() == (seen == 3 or seen == 0)
    assert np.isnan(found[:, :seen]).all() == (seen < 3)


@pytest.mark.parametrize("clients", [5, 10])
def test_an_example_that_two_clients_hold_stands_out_in_both(clients):
    values = np.random.default_rng(1).normal(size=(200, clients))
    values[:20, [0, 1]] += 8.0
    values[20:40, 2] += 8.0
    found = against_others(values)
    assert (found[:20, :2] > 0.95).all()
    assert (found[20:40, 2] > 0.95).all()
    # Bold, as all clients are held against the smaller ones of the others; most of all with few of them.
    assert 0.5 < found[40:].mean() < 0.62


def test_what_is_as_all_others_is_as_likely_as_not():
    same = np.full((4, 5), -1.25)
    np.testing.assert_array_equal(against_others(same), np.full((4, 5), 0.5))
    same[0, 3] = 7.0
    found = against_others(same)
    assert found[0, 3] == 1.0
    np.testing.assert_array_equal(found[1:], np.full((3, 5), 0.5))


def test_a_client_that_diverged_on_some_examples_hides_nobody_else():
    draw = np.random.default_rng(2)
    values = draw.normal(size=(30, 6))
    expected = against_others(values[:, :5])
    values[3, 5] = np.nan
    found = against_others(values)
    np.testing.assert_array_equal(found[:, :5], expected)
    assert np.isnan(found[:, 5]).all()


def test_losses_become_log_odds_of_the_label():
    losses = np.geomspace(1e-6, 30, 50)
    chance = np.exp(-losses)
    np.testing.assert_allclose(logits_of(losses), np.log(chance / -np.expm1(-losses)), rtol=1e-9, atol=1e-12)
    assert logits_of(np.array([np.log(2)]))[0] == pytest.approx(0.0, abs=1e-15)


def test_extreme_losses_stay_finite_and_in_order():
    losses = np.array([0.0, 1e-300, 1e-25, 1e-12, 0.1, 10.0, 300.0, 699.0, 701.0, 1e18, np.inf, np.nan])
    found = logits_of(losses)
    assert np.isnan(found[-1])
    assert np.isfinite(found[:-1]).all()
    assert (np.diff(found[:-1]) <= 0).all()
    assert (np.diff(found[1:8]) < 0).all()
    # The odds of a tiny loss are 1 to that loss, and those of a huge one e^-loss to 1.
    assert found[3] == pytest.approx(-np.log(1e-12))
    assert found[6] == pytest.approx(-300.0)


def test_the_mean_is_over_what_was_seen():
    values = np.array([[0.2, np.nan, np.nan], [0.6, 0.5, np.nan]])
    np.testing.assert_allclose(mean_where_seen(values), [0.4, 0.5, np.nan])
