"""Tests of answers: small cases that are counted by hand, and what each test is there to refuse."""

import numpy as np
import pytest
from scipy import stats

from fedattack.audit.answers import ValueQuestions, better_than, both, exchange_answers
from fedattack.audit.significance import Significance

ONES = np.ones(2)


def drawing():
    return np.random.default_rng(0)


def questions(truth, clients=None, runs=None):
    zeros = np.zeros(len(truth), dtype=int)
    parts = [zeros if part is None else np.array(part) for part in (clients, runs)]
    return ValueQuestions(np.array(truth), *parts)


def test_better_is_mcnemars_test():
    advantages = np.array([1.0] * 8 + [-1.0] * 2 + [0.0] * 90)
    assert better_than(advantages, drawing()).p == pytest.approx(stats.binom.sf(7, 10, 0.5), abs=0.01)
    assert better_than(np.zeros(20), drawing()).p == 1
    assert better_than(np.ones(3), drawing()).least == 1 / 8


def test_better_weighs_what_answers_count():
    """Of the four ways to swap, only that as it is has 3 or more."""
    assert better_than(np.array([2.0, 1.0]), drawing()).p == pytest.approx(1 / 4, abs=0.02)


def test_one_clients_values_are_exchanged():
    """The one value can stand in four places, of which one is right."""
    found = exchange_answers(np.array([1, 0, 0, 0]), questions([1, 0, 0, 0]), np.zeros(4, int), ONES, drawing())
    assert found.least == pytest.approx(1 / 4)
    assert found.p == pytest.approx(1 / 4, abs=0.08), "the drawing ends early"


def test_clients_are_exchanged_whole():
    """Six right answers, but only three ways to deal the values to clients."""
    values, clients = [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 2, 2]
    found = exchange_answers(np.array(values), questions(values, clients), np.zeros(6, int), ONES, drawing())
    assert found.least == pytest.approx(1 / 3)
    assert found.p == pytest.approx(1 / 3, abs=0.1)
    # Were each of these a client of a run of its own, there would be nothing to exchange.
    apart = exchange_answers(np.array(values), questions(values, clients, clients), np.zeros(6, int), ONES, drawing())
    assert apart.p == apart.least == 1


def test_what_is_known_anyhow_is_no_information():
    truth = drawing().integers(0, 2, 100)
    found = exchange_answers(truth, questions(truth), truth, ONES, drawing())
    assert found.p == 1
    assert exchange_answers(truth, questions(truth), np.zeros(100, int), ONES, drawing()).p < 0.001


def test_values_that_do_not_count_are_no_information():
    """Only the second value counts: naming the first one right is worth nothing."""
    truth = np.arange(100) % 2
    answers = np.where(truth == 1, np.arange(100) % 4 // 2, 0)
    found = exchange_answers(answers, questions(truth), np.zeros(100, int), np.array([1.0, 0.0]), drawing())
    assert found.p < 0.001, "the first value is named for all that have it, and for half of the others"
    assert exchange_answers(1 - truth, questions(truth), np.zeros(100, int), ONES, drawing()).p == 1


def test_unequal_clients_give_no_alarm():
    """Clients differ in what they have and in what is answered, and the largest has half of all."""
    draw, alarms = np.random.default_rng(1), 0
    clients = np.repeat(np.arange(8), [80, 30, 20, 10, 8, 6, 4, 2])
    for _ in range(200):
        truth = (draw.random(len(clients)) < draw.beta(0.5, 0.5, 8)[clients]).astype(int)
        answers = (draw.random(len(clients)) < draw.beta(0.5, 0.5, 8)[clients]).astype(int)
        zeros = np.zeros(len(clients), dtype=int)
        alarms += exchange_answers(answers, questions(truth, clients), zeros, ONES, draw, draws=199).p <= 0.05
    assert 1 <= alarms <= stats.binom.isf(0.001, 200, 0.05)


def test_both_takes_the_weaker():
    found = both(Significance(0.01, 0.001, "a"), Significance(0.2, 0.0001, "b"))
    assert (found.p, found.least) == (0.2, 0.001)
    assert "a; b" in found.how
