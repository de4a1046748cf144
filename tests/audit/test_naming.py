"""Tests of attacks that name clients, held against all exchanges one by one."""

from itertools import permutations

import numpy as np
import pytest

from fedattack.audit.naming import (
    Alike,
    HolderExchanges,
    Holders,
    best_round,
    cross_rounds,
    named_by_holder,
    own_rate,
    who_is_who,
)

# More than four standard deviations of a p-value from 9,999 exchanges; drawing ends earlier where p is above a quarter.
CLOSE = 0.02


def test_credit_is_averaged_over_the_targets_of_each_client():
    credit = np.array([[1.0, 0.0, np.nan], [0.0, 1.0, np.nan], [0.5, 0.5, 0.0]])
    by = np.array([[True, False, False], [True, True, False], [False, True, False]])
    expected = [[0.5, 0.5, np.nan], [0.25, 0.75, 0.0], [np.nan, np.nan, np.nan]]
    np.testing.assert_allclose(named_by_holder(credit, by), expected)
    assert own_rate(named_by_holder(credit, by)) == pytest.approx((0.5 + 0.75) / 2)


def all_exchanges(sizes):
    if not sizes:
        yield ()
        return
    for who in permutations(range(sizes[0])):
        for others in all_exchanges(sizes[1:]):
            yield ((*who,), *others)


def p_of(statistic, sizes):
    """Share of all exchanges that give as much as none."""
    observed = statistic([tuple(range(size)) for size in sizes])
    values = [statistic(who) for who in all_exchanges(sizes)]
    return np.mean(np.array(values) >= observed - 1e-9)


def of_clients(clients, only):
    named = np.random.default_rng(clients).random((clients, clients)) + 0.3 * np.eye(clients)
    return Holders(np.array(only), 1), named


def test_who_is_who_is_the_share_of_all_exchanges():
    """Two runs: one with a client that was not seen, one with a client that holds no targets."""
    unseen, (holders, table) = of_clients(4, range(4)), of_clients(5, [0, 2, 3])
    unseen[1][:, 1] = np.nan

    def statistic(exchanged):
        first = np.nanmean([unseen[1][client, exchanged[0][client]] for client in range(4)])
        places = [0, 2, 3]
        second = np.mean([table[places[client], places[exchanged[1][client]]] for client in range(3)])
        return first + second

    test = who_is_who([unseen, (holders, table)], np.random.default_rng(0))
    assert test.p == pytest.approx(p_of(statistic, [4, 3]), abs=CLOSE)
    # Who of the four has which of three places, and who of the three is who.
    assert test.least == pytest.approx(1 / (24 * 6))


def test_a_client_that_attracts_all_blame_is_no_evidence():
    table = np.zeros((6, 6))
    table[:, 2] = 1
    assert who_is_who([(Holders(np.arange(6), 1), table)], np.random.default_rng(0)).p == 1


def test_three_clients_are_too_few():
    table = np.eye(3)
    test = who_is_who([(Holders(np.arange(3), 1), table)], np.random.default_rng(0))
    assert test.least == pytest.approx(1 / 6)
    assert test.p == pytest.approx(1 / 6, abs=CLOSE)


def test_clients_that_hold_the_same_targets_cannot_be_told_apart():
    by = np.array([[True, True, False, False], [True, True, True, False]])
    holders = Holders.of(by)
    assert holders.clients.tolist() == [0, 1, 2]
    assert holders.alike == 2


def test_the_best_round_is_chosen_anew_in_each_exchange():
    draw = np.random.default_rng(3)
    own = 0.3 * np.eye(4)
    rounds = [(draw.random((4, 4)) + own, draw.random((4, 4)) + own) for _ in range(3)]

    def statistic(exchanged):
        (who,) = exchanged
        of = [[np.mean([half[client, who[client]] for client in range(4)]) for half in halves] for halves in rounds]
        best_first, best_second = np.argmax(of, axis=0)
        return of[best_second][0] + of[best_first][1]

    test = best_round([(Holders(np.arange(4), 1), rounds)], np.random.default_rng(0))
    assert test.p == pytest.approx(p_of(statistic, [4]), abs=CLOSE)
    assert test.least == pytest.approx(1 / 24)


def test_each_half_has_the_round_that_is_best_on_the_other():
    assert cross_rounds(np.array([[0.9, 0.1], [0.2, 0.8]])).tolist() == [1, 0]


def two_cells():
    """Three targets of one label and four of another, of two clients and nobody."""
    credit = np.random.default_rng(5).choice([0.0, 0.5, 1.0], size=(7, 2))
    return Alike(credit, np.array([0, 1, -1, 0, 0, 1, -1]), np.array([0, 0, 0, 1, 1, 1, 1]))


def credits_of_all_exchanges(alike):
    """(exchanges, held): the credit in each held slot, for all exchanges within the two cells."""
    rows = []
    for first in permutations([0, 1, 2]):
        for second in permutations([3, 4, 5, 6]):
            taken = np.array([*first, *second])[alike.slots]
            rows.append(alike.credit[taken, alike.owner[alike.slots]])
    return np.array(rows)


def test_expected_credit_is_that_of_all_exchanges_within_cells():
    alike = two_cells()
    assert alike.owner[alike.slots].tolist() == [0, 0, 0, 1, 1]
    sums = alike.by_holder(credits_of_all_exchanges(alike))
    mean, variance = alike.expected
    np.testing.assert_allclose(mean, sums.mean(axis=0))
    np.testing.assert_allclose(variance, sums.var(axis=0))
    assert alike.arrangements() == pytest.approx(6 * 12)


def test_exchanges_within_cells_are_the_share_of_all():
    alike = two_cells()
    weights = np.array([1.0, 1.0, 1.0, 2.0, 2.0])
    everything = credits_of_all_exchanges(alike)
    observed = alike.observed()
    exchanges = HolderExchanges([alike], np.random.default_rng(0), "so")
    weighted = exchanges.significance(exchanges.weighted([np.array([1.0, 2.0])]))
    assert weighted.p == pytest.approx(np.mean(everything @ weights >= observed @ weights - 1e-9), abs=CLOSE)
    assert weighted.least == pytest.approx(1 / 72)
    largest = exchanges.significance(exchanges.largest_excess)
    of_holders = alike.excess(alike.by_holder(everything)).max(axis=1)
    reached = of_holders >= alike.excess(alike.by_holder(observed)).max() - 1e-9
    assert largest.p == pytest.approx(reached.mean(), abs=CLOSE)
    assert largest.how == "so"
