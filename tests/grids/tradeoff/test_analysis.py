"""Fronts and comparisons against slow, obvious ones."""

import math

import numpy as np
import pytest

from fedattack.grids.tradeoff.analysis import compare, is_wide, pareto_front, success_at


def front_by_pairs(losses, successes) -> list[bool]:
    def dominates(one, other) -> bool:
        at_most = losses[one] <= losses[other] and successes[one] <= successes[other]
        return at_most and (losses[one] < losses[other] or successes[one] < successes[other])

    every = range(len(losses))
    return [not any(dominates(one, other) for one in every) for other in every]


@pytest.mark.parametrize("seed", range(50))
def test_the_front_is_what_nothing_dominates(seed):
    draw = np.random.default_rng(seed)
    count = int(draw.integers(0, 12))
    # Few values, so that ties in one or both are common.
    losses, successes = draw.integers(0, 5, size=(2, count)).tolist()
    assert pareto_front(losses, successes) == front_by_pairs(losses, successes)


def test_success_is_interpolated_within_reach_alone():
    # By hand: from (1, 0.8) to (3, 0.4) it falls by 0.2 for each unit; the two cells at 3 count with their mean.
    curve = [3.0, 1.0, 3.0, 5.0], [0.5, 0.8, 0.3, 0.2]
    found = success_at(np.array([0.9, 1.0, 2.0, 3.0, 4.5, 5.0, 5.1]), curve)
    np.testing.assert_allclose(found, [np.nan, 0.8, 0.6, 0.4, 0.25, 0.2, np.nan])


def test_two_lines_that_cross_share_the_range_by_hand():
    """From the common cell (1, 1): one falls to 0 at loss 5, the other to 0.5 at 2 and stays there until 4."""
    steady, quick = ([1.0, 5.0], [1.0, 0.0]), ([1.0, 2.0, 4.0], [1.0, 0.5, 0.5])
    found = compare({"steady": steady, "quick": quick})
    # They meet where 1 − (x − 1)/4 = 0.5, at 3; beyond 4 there is one alone.
    np.testing.assert_allclose(found.losses, [1, 4], atol=0.01)
    assert found.shares == {
        name: pytest.approx(share, abs=0.01) for name, share in zip(("steady", "quick"), (1 / 3, 2 / 3), strict=True)
    }


def test_a_share_is_of_what_a_defence_reaches_itself():
    long, short = ([1.0, 9.0], [1.0, 0.2]), ([1.0, 2.0], [1.0, 0.1])
    other = ([1.0, 9.0], [1.0, 0.6])
    shares = compare({"long": long, "short": short, "other": other}).shares
    assert shares == {"long": pytest.approx(7 / 8, abs=0.01), "short": 1.0, "other": 0.0}


def test_equal_defences_tie():
    curve = [1.0, 2.0], [0.5, 0.2]
    found = compare({"one": curve, "same": curve})
    assert found.shares == {"one": 1.0, "same": 1.0}


def test_losses_worse_than_guessing_are_left_out():
    good_early, good_late = ([1.0, 2.0, 10.0], [1.0, 0.4, 0.9]), ([1.0, 2.0, 10.0], [1.0, 0.5, 0.1])
    assert compare({"early": good_early, "late": good_late}).shares["late"] > 0.5
    assert compare({"early": good_early, "late": good_late}, most=2.0).shares == {"early": 1.0, "late": 0.0}


def test_far_apart_losses_are_compared_on_a_logarithm():
    early, late = ([1.0, 10.0, 1000.0], [1.0, 0.1, 0.1]), ([1.0, 10.0, 10.0 + 1e-6, 1000.0], [1.0, 0.5, 0.0, 0.0])
    assert is_wide([1.0, 1000.0])
    assert compare({"early": early, "late": late}).shares["early"] == pytest.approx(1 / 3, abs=0.01)
    assert not is_wide([0.0, 1000.0])
    assert not is_wide([1.0, 19.0])


@pytest.mark.parametrize(
    "curves",
    [
        {},
        {"one": ([1.0, 2.0], [0.5, 0.2])},
        {"one": ([1.0], [0.5]), "other": ([1.0], [0.4])},
        {"one": ([1.0, 2.0], [0.5, 0.2]), "elsewhere": ([3.0, 4.0], [0.5, 0.2])},
    ],
)
def test_where_nothing_meets_nothing_is_compared(curves):
    found = compare(curves)
    assert found.losses is None
    assert found.shares == {}


@pytest.mark.parametrize("seed", range(10))
def test_many_defences_against_a_point_by_point_oracle(seed):
    draw = np.random.default_rng(seed)
    curves = {
        name: (np.sort(draw.uniform(1, 3, 5)).tolist(), draw.uniform(0, 1, 5).tolist()) for name in ("a", "b", "c")
    }
    low = min(losses[0] for losses, _ in curves.values())
    high = max(losses[-1] for losses, _ in curves.values())

    def at(curve, place) -> float:
        losses, successes = curve
        for left in range(len(losses) - 1):
            if losses[left] <= place <= losses[left + 1]:
                part = (place - losses[left]) / (losses[left + 1] - losses[left])
                return successes[left] * (1 - part) + successes[left + 1] * part
        return math.nan

    won, met = dict.fromkeys(curves, 0), dict.fromkeys(curves, 0)
    for place in np.linspace(low, high, 20_001):
        there = {name: value for name, curve in curves.items() if not math.isnan(value := at(curve, place))}
        if len(there) > 1:
            for name in there:
                met[name] += 1
            won[min(there, key=there.get)] += 1
    expected = {name: won[name] / met[name] for name in curves if met[name]}
    assert compare(curves).shares == pytest.approx(expected, abs=0.01)
