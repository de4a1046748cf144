"""Exchanges within cells: brute force, and how often a null is called more than an accident."""

from functools import partial
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from fedattack.audit import exchanges
from fedattack.audit.exchanges import Exchanges, Held, significance_above, significance_of_owners, standardise
from fedattack.audit.roc import area_value, tpr_value_at
from fedattack.audit.significance import significance_of

NULLS = 200


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(exchanges, "significance_of", partial(significance_of, draws=399))


def made(members, others, cells_of_members=None, cells_of_others=None) -> Exchanges:
    """Everything is of one cell if no cells are given."""
    if cells_of_members is None:
        cells_of_members, cells_of_others = np.zeros(len(members), int), np.zeros(len(others), int)
    return Exchanges(np.array(members, float), np.array(others, float), cells_of_members, cells_of_others, (0, 1))


def rearranged(scores, cells, members):
    """Members and non-members in each way to choose as many members in each cell, by hand."""
    ways = []
    for cell in np.unique(cells):
        inside = np.flatnonzero(cells == cell)
        ways.append([*combinations(inside, int(members[inside].sum()))])
    for chosen in product(*ways):
        flags = np.zeros(len(scores), bool)
        flags[np.concatenate(chosen).astype(int)] = True
        yield scores[flags], scores[~flags]


def best_by_hand(members, others):
    thresholds = np.concatenate([members, others])
    return max(0.5 + (np.mean(members > one) - np.mean(others > one)) / 2 for one in [-np.inf, *thresholds])


@pytest.mark.parametrize("ties", [False, True])
def test_p_is_the_share_of_all_arrangements_with_as_large_a_statistic(ties):
    draw = np.random.default_rng(3)
    for trial in range(6):
        scores = draw.normal(size=9)
        if ties:
            scores = scores.round()
        cells = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
        members = np.array([1, 0, 1, 0, 1, 0, 0, 1, 1], dtype=bool)
        scores[members] += 1
        tested = made(scores[members], scores[~members], cells[members], cells[~members])
        for statistic, by_hand in (
            (tested.area, area_value),
            (tested.tpr_at(0.3), partial(tpr_value_at, fpr=0.3)),
            (tested.best_balanced_accuracy, best_by_hand),
        ):
            found = tested.significance(statistic, "x")
            observed = by_hand(scores[members], scores[~members])
            as_large = [by_hand(*both) >= observed - 1e-12 for both in rearranged(scores, cells, members)]
            assert len(as_large) == 18
            assert found.least == pytest.approx(1 / 18)
            assert found.p == pytest.approx(np.mean(as_large), abs=0.02 if np.mean(as_large) < 0.2 else 0.1), trial


def test_rates_that_need_many_of_the_largest_scores_are_right():
    draw = np.random.default_rng(0)
    members, others = draw.normal(1.0, 1.0, 700).round(1), draw.normal(size=900).round(1)
    tested = made(members, others)
    flags = np.repeat([True, False], [700, 900])[np.argsort(-np.concatenate([members, others]), kind="stable")]
    for fpr in (0.001, 0.05, 0.5):
        assert tested.tpr_at(fpr)(flags[None])[0] == tpr_value_at(members, others, fpr)


def test_a_cell_of_one_kind_says_nothing():
    members, others = np.array([5.0, 6.0, 7.0]), np.array([0.0, 1.0, 2.0])
    found = made(members, others, np.zeros(3, int), np.ones(3, int)).significance(lambda flags: flags[:, 0] * 1.0, "x")
    assert (found.p, found.least) == (1.0, 1.0)


def test_the_most_exposed_client_is_the_one_with_the_largest_excess():
    """Of four members and four non-members a client's three largest scores are members': by hand."""
    expected = 3 * 4 / 8
    deviation = np.sqrt(3 * (4 / 8) * (4 / 8) * (5 / 7))
    assert standardise(*np.array([3.0, 3, 4, 8])) == pytest.approx((3 - expected) / deviation)
    assert standardise(*np.array([0.0, 0, 4, 8])) == 0
    members, others = np.array([9.0, 8, 7, 0.1, 0.2, 0.3]), np.array([6, 0.4, 0.5, 0.6, 0.7, 0.8])
    clients = np.array([0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1])
    tested = made(members, others, clients[:6], clients[6:])
    flags = np.isin(np.sort(np.concatenate([members, others]))[::-1], members)
    assert tested.most_exposed(clients, 0.1)(flags[None])[0] == pytest.approx((3 - expected) / deviation)


@pytest.mark.parametrize("fpr", [0.01, 0.3])
def test_the_most_exposed_client_is_that_of_a_table_of_all_targets_and_clients(fpr):
    draw = np.random.default_rng(5)
    members, others = draw.normal(1.0, 1.0, 80).round(1), draw.normal(size=120).round(1)
    # Of client 6 there is no target at all.
    clients = draw.choice([0, 1, 2, 3, 4, 5, 7], size=200)
    order = np.argsort(-np.concatenate([members, others]), kind="stable")
    flags = np.array([draw.permutation(200) < 80 for _ in range(20)])
    flags[0] = order < 80
    found = made(members, others).most_exposed(clients, fpr)(flags)

    one_hot = np.eye(8)[clients[order]]
    scores = np.concatenate([members, others])[order]
    for row, excess in zip(flags, found, strict=True):
        top = scores > scores[~row][int(fpr * 120)]
        of_clients = (row & top) @ one_hot, top @ one_hot, flags[0] @ one_hot, one_hot.sum(axis=0)
        assert excess == standardise(*of_clients).max()


def test_a_fixed_threshold_is_the_hypergeometric_test():
    draw = np.random.default_rng(0)
    marked = np.repeat([True, False], [20, 30])
    scores = draw.random(50) + 0.3 * marked
    found = significance_above(scores, marked, np.zeros(50, int), 0.8, draw, "x")
    above = (scores > 0.8).sum()
    exact = hypergeom.sf((scores[marked] > 0.8).sum() - 1, 50, 20, above)
    assert exact < 0.2
    assert found.p == pytest.approx(exact, abs=0.01)


def test_owners_are_exchanged_with_both_scores_of_each_target():
    draw = np.random.default_rng(2)
    owners = np.array([0, 0, 1, 1, 2])
    scores = draw.normal(size=(5, 3))
    scores[np.arange(5), owners] += 1.5
    found = significance_of_owners([Held(scores, owners, np.zeros(5, int))], 0.25, draw, "x")

    def rate(owners):
        return tpr_value_at(scores[np.arange(5), owners], scores[np.arange(5), (owners + 1) % 3], 0.25)

    as_large = [rate(np.array(drawn)) >= rate(owners) for drawn in permutations(owners)]
    assert found.least == pytest.approx(1 / 30)
    assert found.p == pytest.approx(np.mean(as_large), abs=0.02)


def test_nulls_are_seldom_more_than_an_accident(few_draws):
    """Scores differ by cell, and nobody learned anything."""
    alarms = dict.fromkeys(("tpr", "area", "balanced", "exposed"), 0)
    for seed in range(NULLS):
        draw = np.random.default_rng((seed, 8))
        cells = np.concatenate([draw.integers(10, size=100), draw.integers(10, size=300)])
        scores = draw.normal(size=400) + 2 * draw.normal(size=10)[cells]
        tested = made(scores[:100], scores[100:], cells[:100], cells[100:])
        for name, statistic in (
            ("tpr", tested.tpr_at(0.05)),
            ("area", tested.area),
            ("balanced", tested.best_balanced_accuracy),
            ("exposed", tested.most_exposed(cells, 0.05)),
        ):
            alarms[name] += tested.significance(statistic, "x").p <= 0.05
    for name, count in alarms.items():
        assert binom.ppf(0.005, NULLS, 0.02) <= count <= binom.ppf(0.995, NULLS, 0.05), name


def test_scores_that_depend_on_each_other_are_no_leak(few_draws):
    """Three clients held against each other: what is high with one is low with the next."""
    alarms = 0
    for seed in range(NULLS):
        draw = np.random.default_rng((seed, 9))
        scores = draw.normal(size=(150, 3))
        scores -= scores.mean(axis=1, keepdims=True)
        held = Held(scores, np.arange(150) % 3, draw.integers(2, size=150))
        alarms += significance_of_owners([held], 0.1, draw, "x").p <= 0.05
    assert binom.ppf(0.005, NULLS, 0.02) <= alarms <= binom.ppf(0.995, NULLS, 0.05)
