import numpy as np
import pytest
from scipy import stats

from tests.benchmarks.calibration.coverage import (
    RARE,
    TWO,
    _row,
    draw_rates,
    rows,
    settings,
    summary,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured():
    return rows(200, seed=0, short=True)


def test_no_interval_is_surely_below_its_level(measured):
    too_low = [row for row in measured if row["coverage_high"] < 0.93 and row["note"] != RARE]
    assert not too_low
    assert np.mean([row["coverage"] for row in measured]) > 0.95


def test_student_s_t_is_below_its_level_near_the_edges(measured):
    edge = [row for row in measured if row["statement"] == "runs like these" and "mean 0.01, sd 0.02" in row["setting"]]
    assert max(row["t_coverage"] for row in edge) < 0.9


@pytest.mark.parametrize(
    ("held", "says_why"), [(2000, True), (1960, False), (1900, False), (1860, False), (1800, True)]
)
def test_a_coverage_is_what_was_counted_and_one_that_is_surely_wrong_says_why(held, says_why):
    """Of 2,000 intervals so many hold the truth; 95 % Clopper-Pearson intervals of that share are known."""
    ends = [(0.4, 0.6)] * held + [(0.6, 0.8)] * (2000 - held)
    row = _row(("statement", "shape", 3), "setting", 0.5, ends, None, lambda coverage: f"why not {coverage:g}")
    assert row["coverage"] == held / 2000
    exact = stats.binomtest(held, 2000).proportion_ci(0.95, method="exact")
    assert (row["coverage_low"], row["coverage_high"]) == pytest.approx((exact.low, exact.high))
    assert row["note"] == (f"why not {held / 2000:g}" if says_why else "")
    assert row["width"] == pytest.approx(0.2)


def test_the_summary_counts_every_row_once(measured):
    groups = summary(measured)
    assert sum(group["rows"] for group in groups) == len(measured)
    assert min(group["least"] for group in groups) == min(row["coverage"] for row in measured)


def test_the_same_seed_gives_the_same_rows():
    assert rows(3, seed=5, short=True) == rows(3, seed=5, short=True)


def test_rates_are_drawn_with_the_stated_mean_and_spread():
    rng = np.random.default_rng(0)
    seen = set()
    for setting in settings():
        if setting.runs != 2 or setting.n != 50:
            continue
        rates = draw_rates(setting, (200_000,), rng)
        assert rates.mean() == pytest.approx(setting.mean, abs=0.001)
        assert rates.std() == pytest.approx(setting.sd, abs=0.002)
        seen.add(setting.shape)
    assert TWO in seen
    assert len(seen) == 3
