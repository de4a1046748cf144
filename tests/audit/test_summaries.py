import numpy as np
import pytest

from fedattack.audit.intervals import rate_interval
from fedattack.audit.summaries import null_of, null_rate, reliability


def test_a_null_is_the_mean_of_its_draws_with_the_middle_of_them():
    found = null_of([float(value) for value in range(101)], 7)
    assert found == {"value": 50.0, "low": pytest.approx(2.5), "high": pytest.approx(97.5), "n": 7}


def test_the_interval_of_a_null_holds_its_mean():
    found = null_of([0.0] * 99 + [1.0], 3)
    assert (found["value"], found["low"], found["high"]) == (0.01, 0.0, 0.01)


def test_a_null_s_rate_pools_the_seeds_and_is_none_where_one_has_no_targets():
    found = null_rate([3.0, 6.0], [10, 20], 4)
    low, high = rate_interval([3.0, 6.0], [10, 20], comparisons=4)
    assert found == {"value": pytest.approx(0.3), "low": low, "high": high, "n": 30}
    assert null_rate([3.0, 0.0], [10, 0]) is None
    assert null_rate([], []) is None


def test_reliability_is_that_of_bins_worked_out_by_hand():
    found = reliability(np.array([0.12, 0.18, 0.95, 1.0]), np.array([0.0, 0.5, 1.0, 1.0]))
    assert found["confidence"] == pytest.approx([0.15, 0.975])
    assert found["accuracy"] == [0.25, 1.0]
    assert found["count"] == [2, 2]
    assert found["ece"] == pytest.approx((2 * 0.1 + 2 * 0.025) / 4)
