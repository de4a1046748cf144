"""Tests of answers to questions that have one true value each.

Answers about one client share a model, so that they are right or wrong together. Two tests are therefore needed:

- :func:`exchange_answers` asks whether answers have to do with the true values at all. It exchanges true values, and
  whole clients' values. Answers that merely differ from client to client do not pass it. It says nothing about who is
  better: any other guess from the same columns passes it.
- :func:`better_than` asks whether answers are better than others to the same questions. It is McNemar's test. A guess
  that is as good as another does not pass it. It takes each question by itself, and so alone would trust clients whose
  answers are right together by luck.

:func:`both` asks for both.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.significance import DRAWS, Significance, arrangements_within, exchange_within, significance_of

# Entries of the largest array that a test makes: 16 MB.
_ENTRIES = 2_000_000

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


def better_than(advantages: Floats, rng: np.random.Generator, *, draws: int = DRAWS) -> Significance:
    """Test whether answers are better than others to the same questions, by swapping the two at random.

    Advantages (n,) are the credit of the answer minus that of the other answer. With credits of 0 and 1 this is
    McNemar's exact test, by drawing.
    """
    # A tie is the same after a swap, so that it takes no part.
    differing = advantages[advantages != 0]

    def draw(rng: np.random.Generator, count: int) -> Floats:
        # 1 where the two answers of a question change places.
        signs = rng.integers(0, 2, size=(count, len(differing)), dtype=np.int8)
        return np.asarray((2 * signs - 1) @ differing)

    return significance_of(
        float(differing.sum()),
        draw,
        rng,
        "answers swapped with the best baseline's",
        # 2.0**1024 is no float any more; so many arrangements count as infinite in any case.
        arrangements=2.0 ** min(len(advantages), 1_000),
        draws=draws,
        at_once=_at_once(len(differing)),
    )


@dataclass(frozen=True)
class ValueQuestions:
    """Questions of which each has one true value, of one or several runs.

    Attributes
    ----------
    truth
        (n,): index of the true value.
    clients
        (n,): whose question it is, 0 or more without a gap; clients of several runs have numbers of their own.
    runs
        (n,): in which run, 0 or more.
    """

    truth: Rows
    clients: Rows
    runs: Rows


def exchange_answers(
    answers: Rows,
    questions: ValueQuestions,
    known: Rows,
    weights: Floats,
    rng: np.random.Generator,
    *,
    draws: int = DRAWS,
) -> Significance:
    """Test whether answers (n,) have to do with the true values, by exchanging these.

    The credit of the answers has two parts. What answers about one client have in common is held against what the
    values of other clients have in common. What is left is held against other values of the same client. A draw
    exchanges both, so that unequal clients stay whole.

    Parameters
    ----------
    known
        (n,): what is known anyhow, 0 or more, such as a baseline's answer: values are exchanged where it is the same.
    weights
        (v,): credit of a right answer, by the true value.
    """
    truth = questions.truth
    _, cells = np.unique(np.stack([questions.runs, known]), axis=1, return_inverse=True)
    # One number for each pair of client and cell: values are exchanged within these alone.
    within = questions.clients * (int(cells.max()) + 1) + cells
    _, first = np.unique(questions.clients, return_index=True)
    runs = questions.runs[first]
    between = _between(answers, questions, cells, weights)
    # The diagonal holds each client's own values, as they are without an exchange.
    own = float(np.trace(between))
    rows = np.arange(len(runs))

    def draw(rng: np.random.Generator, count: int) -> Floats:
        exchanged = truth[exchange_within(within, rng, count)]
        credit = np.where(exchanged == answers, weights[exchanged], 0.0).sum(axis=1)
        others = exchange_within(runs, rng, count)
        # Both exchanges in one draw: what clients gain within themselves, and what they gain by other clients.
        return np.asarray(credit - own + between[rows, others].sum(axis=1))

    return significance_of(
        float(weights[truth[answers == truth]].sum()),
        draw,
        rng,
        "true values exchanged within clients, and clients within runs",
        arrangements=_arrangements(questions, runs),
        draws=draws,
        at_once=_at_once(len(truth)),
    )


def _between(answers: Rows, questions: ValueQuestions, cells: Rows, weights: Floats) -> Floats:
    """Hold what the answers about each client have in common against what the values of each client have in common.

    Returned is (clients, clients): credit of the row's answers against the column's values, both as shares of each
    cell, beyond the credit of answers that are the same for all clients.
    """
    clients = questions.clients
    shape = (int(clients.max()) + 1, int(cells.max()) + 1, len(weights))
    named, true = np.zeros(shape), np.zeros(shape)
    np.add.at(named, (clients, cells, answers), 1.0)
    np.add.at(true, (clients, cells, questions.truth), 1.0)
    size = true.sum(axis=2, keepdims=True)
    of_cell = size.sum(axis=0)
    # What remains is by how much a value is named more often than for the mean client of its cell.
    named -= size * named.sum(axis=0) / of_cell
    # A client without questions in a cell has there what clients have in the mean.
    shares = np.where(size > 0, true / np.maximum(size, 1), true.sum(axis=0) / of_cell)
    # Values and cells are summed over in one product: row i holds the answers about i, column j the values of j.
    return np.asarray((named * weights).reshape(len(named), -1) @ shares.reshape(len(shares), -1).T)


def both(first: Significance, second: Significance) -> Significance:
    """Ask for two tests at once: the larger p counts, which is valid where either of the two is."""
    return Significance(
        max(first.p, second.p),
        max(first.least, second.least),
        f"the larger of two: {first.how}; {second.how}",
        max(first.below, second.below),
    )


def arrangements_of(questions: ValueQuestions) -> float:
    """Count the exchanges of :func:`exchange_answers`, had nothing been known."""
    _, first = np.unique(questions.clients, return_index=True)
    return _arrangements(questions, questions.runs[first])


def _at_once(n: int) -> int:
    # At least one draw, however many answers there are.
    return max(1, _ENTRIES // max(1, n))


def _arrangements(questions: ValueQuestions, runs: Rows) -> float:
    """Count the ways to deal the values, had nothing been known; infinite where there are very many."""
    values = np.zeros((len(runs), int(questions.truth.max()) + 1))
    np.add.at(values, (questions.clients, questions.truth), 1.0)
    # Clients of one run with the same values are not told apart, whichever comes first.
    _, alike = np.unique(values, axis=0, return_inverse=True)
    # Values of a client change places within it, and whole clients within their run.
    return arrangements_within(questions.clients, questions.truth) * arrangements_within(runs, alike)
