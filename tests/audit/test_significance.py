"""Tests of single findings, and the correction over all findings of a report."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from fedattack.audit.finding import Finding
from fedattack.audit.significance import (
    adjust,
    arrangements_within,
    correct_findings,
    exchange_clients,
    exchange_within,
    significance_of,
)
from fedattack.base.errors import DataError


def finding(metric="asr", p=0.001, **changes):
    parts = {
        "attack": "sia",
        "metric": metric,
        "label": "Owner named",
        "view": "individual",
        "value": 0.5,
        "low": 0.4,
        "high": 0.6,
        "n": 100,
        "seeds": [0],
        "chance": 0.1,
        "p": p,
        "verdict": "leak" if p is not None and p <= 0.05 else "no evidence",
        "reason": "said",
    }
    return Finding(**{**parts, **changes})


def test_all_clients_exchanged_give_the_exact_share():
    """The oracle goes through all 4! ways to say who is who."""
    matrix = np.random.default_rng(0).random((4, 4))
    traces = [sum(matrix[client, who[client]] for client in range(4)) for who in permutations(range(4))]
    observed = float(np.trace(matrix))

    def draw(rng, count):
        return matrix[np.arange(4), exchange_clients(4, rng, count)].sum(axis=1)

    test = significance_of(observed, draw, np.random.default_rng(1), "who is who", arrangements=24)
    exact = np.mean([trace >= observed - 1e-12 for trace in traces])
    assert test.least == 1 / 24
    assert test.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 199) + 0.01)


def test_exchanges_stay_within_their_cells():
    cells = np.array([0, 1, 0, 1, 2, 0])
    drawn = exchange_within(cells, np.random.default_rng(0), 300)
    assert (cells[drawn] == cells).all()
    assert (np.sort(drawn, axis=1) == np.arange(6)).all()
    # Each of the three positions of cell 0 comes to each of its places about equally often.
    counts = np.bincount(drawn[:, 0], minlength=6)[[0, 2, 5]]
    assert stats.chisquare(counts).pvalue > 0.001


def test_arrangements_are_counted():
    assert arrangements_within(np.zeros(5, dtype=int), np.array([1, 1, 0, 0, 0], dtype=bool)) == pytest.approx(10)
    cells = np.array([0, 0, 1, 1])
    assert arrangements_within(cells, np.array([True, False, True, False])) == pytest.approx(4)
    assert arrangements_within(np.zeros(1000, dtype=int), np.arange(1000) < 500) == np.inf


def test_p_is_uniform_where_there_is_nothing_to_find():
    draws = np.random.default_rng(0)
    ps = []
    for seed in range(300):
        observed = float(draws.normal())
        test = significance_of(
            observed, lambda rng, count: rng.normal(size=count), np.random.default_rng(seed), "", draws=199
        )
        ps.append(test.p)
    alarms = sum(p <= 0.05 for p in ps)
    assert stats.binom.cdf(2, 300, 0.05) < stats.binom.cdf(alarms, 300, 0.05) < 0.999


def test_the_drawing_ends_early_where_there_is_nothing():
    drawn = []

    def draw(rng, count):
        drawn.append(count)
        return rng.normal(size=count)

    assert significance_of(-1.0, draw, np.random.default_rng(0), "").p > 0.5
    assert sum(drawn) == 199
    assert significance_of(9.0, draw, np.random.default_rng(0), "").p == pytest.approx(1e-4)


def test_equal_weights_are_holm():
    """The oracle is the textbook's, by hand."""
    assert adjust([0.01, 0.04, 0.03], [1, 1, 1]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust([0.5, 0.9], [1, 1]) == pytest.approx([1.0, 1.0])


def test_the_headline_gets_nine_tenths_of_the_error():
    headline, other = correct_findings([finding(p=0.04, headline=True), finding("auc", p=0.04)])
    assert headline.p_adjusted == pytest.approx(0.04 / 0.9)
    assert headline.verdict == "leak"
    # What the headline was shown by goes on to the other finding.
    assert other.p_adjusted == pytest.approx(0.04 / 0.9)
    assert other.verdict == "leak"


def test_findings_without_a_test_stay_as_they_are():
    untested = [replace(finding(), p=None)]
    assert correct_findings(untested) == untested
    assert correct_findings([]) == []


def test_a_finding_that_does_not_outlast_the_correction_is_taken_back():
    headline, other = correct_findings([finding(p=0.6, headline=True), finding("auc", p=0.04)])
    assert (headline.verdict, other.verdict) == ("no evidence", "no evidence")
    assert other.p_adjusted == pytest.approx(0.4)
    assert other.reason == "said; corrected for all 2 tested findings p = 0.4, which is not enough"


def test_findings_that_could_show_nothing_take_no_part():
    few = finding("asr-shared", p=1 / 6, verdict="too few to tell")
    untested = finding("false-alarms", p=None, verdict="not applicable")
    alone, *others = correct_findings([finding(p=0.049), few, untested])
    assert alone.p_adjusted == pytest.approx(0.049)
    assert alone.verdict == "leak"
    assert [other.p_adjusted for other in others] == [None, None]


def test_what_no_result_could_have_shown_beside_so_many_findings_is_too_few():
    """Four clients have 24 arrangements: enough for one finding, and not for one of two headlines."""
    few = finding(p=1 / 24, p_least=1 / 24, headline=True)
    assert correct_findings([few])[0].verdict == "leak"
    other = finding("tpr", p=0.9, p_least=0.0001, headline=True)
    too_few, none = correct_findings([few, other])
    assert (too_few.verdict, none.verdict) == ("too few to tell", "no evidence")
    assert too_few.reason.endswith(
        "what is exchanged has only 24 arrangements, so its test gives at best p = 0.042, and corrected for 2 tested "
        "findings at best p = 0.083"
    )
    assert correct_findings([few, replace(other, p=0.0001, verdict="leak")])[0].verdict == "leak"


def test_of_few_arrangements_p_is_the_exact_share():
    """The best of 24 arrangements, the second best, and so on: whatever the random numbers."""
    values = np.arange(4.0)
    everything = np.array([order @ 10.0 ** np.arange(4) for order in permutations(values)])

    def draw(rng, count):
        return rng.choice(everything, size=count)

    for place in (1, 2, 3):
        observed = float(np.sort(everything)[-place])
        for seed in range(20):
            found = significance_of(observed, draw, np.random.default_rng(seed), "all", arrangements=24)
            assert found.p == pytest.approx(place / 24)
            assert found.least == pytest.approx(1 / 24)


def test_a_statistic_that_is_no_number_is_no_evidence():
    def draw(rng, count):
        return np.full(count, np.nan)

    assert significance_of(1.0, draw, np.random.default_rng(0), "all").p == 1
    with pytest.raises(DataError, match="the statistic of a test is nan"):
        significance_of(np.nan, draw, np.random.default_rng(0), "all")


def test_a_report_on_nothing_shows_a_leak_in_one_of_twenty():
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(400):
        ps = rng.random(8)
        report = [finding(f"m{index}", p=float(p), headline=not index) for index, p in enumerate(ps)]
        alarms += any(one.verdict == "leak" for one in correct_findings(report))
    assert alarms <= stats.binom.ppf(0.999, 400, 0.05)
