"""Tests of attacks that name a client for each target: whether for its own targets more than by accident.

Two exchanges, each right for another null:

- *who is who*: the targets of a client stay together and go to another client of the run. They are alike where the
  clients' data has nothing to do with their models. Each client is named once in each exchange, so that neither a
  client that attracts all blame nor unequal numbers of targets look like a leak.
- *within cells*, such as the targets of one label: they are alike for models that learned no single example, however
  much the labels say of the clients.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import count as counted

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.significance import (
    Significance,
    arrangements_within,
    exchange_clients,
    exchange_within,
    significance_of,
)
from fedattack.base.machine import usable_cpus

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Marks = NDArray[np.bool_]

# Numbers that a draw holds at once, which bounds its memory.
_AT_ONCE = 2_000_000

# Exchanges of a thousand targets that a core keeps in its cache.
_IN_CACHE = 100

_WHO_IS_WHO = "the clients of each run exchanged"


def named_by_holder(credit: Floats, by: Marks) -> Floats:
    """Average how much each client is named for the targets of each.

    Of the credit (targets, clients) for naming a client, NaN where it was not seen, and who holds each target (targets,
    clients), make (clients, clients): at ``[i, j]`` the mean credit for naming j over the targets of i; NaN where there
    is none.
    """
    # Row: whose targets; column: who is named.
    clients = credit.shape[1]
    sums, counts = np.zeros((clients, clients)), np.zeros((clients, clients))
    for client in np.flatnonzero(by.any(axis=0)):
        of_client = credit[by[:, client]]
        known = ~np.isnan(of_client)
        # Zeros stand in for NaN, which may not count as credit nor as a vote.
        sums[client] = np.where(known, of_client, 0.0).sum(axis=0)
        counts[client] = known.sum(axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


@dataclass(frozen=True)
class Holders:
    """The clients of one run that hold targets: who of them is who may be exchanged.

    Attributes
    ----------
    clients
        (holders,): their places among all clients.
    alike
        How many exchanges of them leave everything as it is, since they hold the same targets.
    """

    clients: Rows
    alike: int

    @classmethod
    def of(cls, by: Marks) -> "Holders":
        """Find them, given who holds each target (targets, clients)."""
        clients = np.flatnonzero(by.any(axis=0))
        alike = 1
        # Targets with several holders make some clients alike, and an exchange of these changes nothing.
        if len(clients) and (by.sum(axis=1) > 1).any():
            # Clients with equal columns hold the same targets.
            _, counts = np.unique(by[:, clients], axis=1, return_counts=True)
            alike = math.prod(map(math.factorial, counts.tolist()))
        return cls(clients, alike)

    def among(self, named: Floats) -> Floats:
        """Take their part of what :func:`named_by_holder` gives."""
        return np.asarray(named[np.ix_(self.clients, self.clients)])


def who_is_who(runs: Sequence[tuple[Holders, Floats]], rng: np.random.Generator) -> Significance:
    """Test whether clients are named for their own targets, of each run's :func:`named_by_holder`.

    The statistic is the mean over clients of the credit for naming them, summed over the runs.
    """
    arrangements = 1
    tables = []
    for holders, named in runs:
        table = holders.among(named)
        seen = int((~np.isnan(table)).any(axis=0).sum())
        # Ordered choices of holders for the clients that are ever named: others' columns have no effect.
        arrangements *= max(math.perm(len(table), seen) // holders.alike, 1)
        tables.append(table)

    def statistic(exchanged: Sequence[Rows]) -> Floats:
        total = np.zeros(len(exchanged[0]))
        for table, who in zip(tables, exchanged, strict=True):
            total += _average_named(table, who)
        return total

    return _by_exchanged_clients(statistic, list(map(len, tables)), rng, arrangements)


def best_round(
    runs: Sequence[tuple[Holders, Sequence[tuple[Floats, Floats]]]], rng: np.random.Generator
) -> Significance:
    """Test whether clients are named for their own targets in the best round, which is chosen anew in each exchange.

    It is given, for each run and round, :func:`named_by_holder` of each half of the targets.
    """
    tables = []
    for holders, rounds in runs:
        tables.append([(holders.among(first), holders.among(second)) for first, second in rounds])
    sizes = [len(holders.clients) for holders, _ in runs]

    def statistic(exchanged: Sequence[Rows]) -> Floats:
        total = np.zeros(len(exchanged[0]))
        for rounds, who in zip(tables, exchanged, strict=True):
            # (rounds, halves, exchanges)
            measured = np.array([[_average_named(half, who) for half in halves] for halves in rounds])
            chosen = cross_rounds(measured)
            for half in (0, 1):
                # Take of each exchange the round that the other half chose for it.
                total += np.take_along_axis(measured[:, half], chosen[half][None], axis=0)[0]
        return total

    return _by_exchanged_clients(statistic, sizes, rng, math.prod(map(math.factorial, sizes)))


def cross_rounds(measured: Floats) -> Rows:
    """Choose a round for each half of the targets (2, …): the one that is best on the other half.

    Measured is the success on each half, (rounds, 2, …).
    """
    # Reversed, so that each half gets the choice of the other one.
    return np.asarray(measured.argmax(axis=0)[::-1])


def own_rate(named: Floats) -> float:
    """Return the mean over clients of the credit for naming them, given what :func:`named_by_holder` gives."""
    return float(_average_named(named, np.arange(len(named))[None])[0])


def _average_named(table: Floats, who: Rows) -> Floats:
    """Average over clients how much each is named for the targets of the one whose place it has: (exchanges,)."""
    credit = table[np.arange(len(table)), who]
    known = ~np.isnan(credit)
    # A client of which nothing is known in its place counts as nothing, and not as zero.
    return np.asarray(np.where(known, credit, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1))


def _by_exchanged_clients(
    statistic: Callable[[Sequence[Rows]], Floats], sizes: Sequence[int], rng: np.random.Generator, arrangements: int
) -> Significance:
    def draw(generator: np.random.Generator, count: int) -> Floats:
        return statistic([exchange_clients(size, generator, count) for size in sizes])

    # The identity is the observed order.
    observed = float(statistic([np.arange(size)[None] for size in sizes])[0])
    # A draw holds a number for each client.
    at_once = min(max(_AT_ONCE // max(sizes), 1), 1_000)
    return significance_of(observed, draw, rng, _WHO_IS_WHO, arrangements=arrangements, at_once=at_once)


@dataclass(frozen=True)
class Alike:
    """Targets of one run, of which those of a cell are alike for models that learned none of them.

    Attributes
    ----------
    credit
        (n, clients): credit for naming a client; 0 where it was not seen.
    owner
        (n,): index of the client that holds a target; −1 for one that nobody holds.
    cells
        (n,): the cell of each target, 0 or more.
    """

    credit: Floats
    owner: Rows
    cells: Rows

    @cached_property
    def by_client(self) -> Floats:
        """(clients, n): the credit, a client's together in memory, since the slots are taken client by client."""
        return np.ascontiguousarray(self.credit.T)

    @cached_property
    def slots(self) -> Rows:
        """(held,): the targets that a client holds, client by client."""
        # Stable: a client's targets keep their order in memory and on disk.
        order = np.argsort(self.owner, kind="stable")
        # Targets of nobody (−1) stand first, and are no slots.
        return order[self.owner[order] >= 0]

    @cached_property
    def holders(self) -> Rows:
        """(holders,): the clients that hold any, in the order of :attr:`slots`."""
        return np.unique(self.owner[self.slots])

    @cached_property
    def sizes(self) -> Rows:
        """(holders,): how many targets each holds."""
        return np.bincount(self.owner[self.slots])[self.holders]

    def observed(self) -> Floats:
        """(1, held): credit for naming the holder of each of :attr:`slots`."""
        return self.credit[self.slots, self.owner[self.slots]][None]

    def drawn(self, rng: np.random.Generator, count: int) -> Floats:
        """(count, held): the same after so many exchanges of holders within cells."""
        taken = exchange_within(self.cells, rng, count, self.slots)
        # By positions in the flat credit: take is twice as fast as two index arrays.
        return np.take(self.by_client.ravel(), taken + self.owner[self.slots] * len(self.cells))

    def by_holder(self, credit: Floats) -> Floats:
        """(count, holders): sums of credits (count, held)."""
        if not len(self.slots):
            return np.zeros((len(credit), 0))
        # reduceat sums from each start up to the next one; slots lie client by client.
        starts = np.cumsum(self.sizes) - self.sizes
        return np.asarray(np.add.reduceat(credit, starts, axis=1))

    @cached_property
    def expected(self) -> tuple[Floats, Floats]:
        """Mean and variance (holders,) of each holder's sum of credits over all exchanges within cells."""
        mean, variance = np.zeros(len(self.holders)), np.zeros(len(self.holders))
        for cell in np.unique(self.cells[self.slots]):
            inside = self.cells == cell
            # How many targets of the cell each holder has; the shift by one puts those of nobody (−1) at index 0.
            counts = np.bincount(self.owner[inside] + 1, minlength=self.credit.shape[1] + 1)[1:][self.holders]
            credit = self.credit[inside][:, self.holders]
            size = len(credit)
            mean += counts * credit.mean(axis=0)
            # Drawn without replacement: a holder of all targets of a cell has no variance there.
            variance += counts * (size - counts) / max(size - 1, 1) * credit.var(axis=0)
        return mean, variance

    def excess(self, sums: Floats) -> Floats:
        """(count, holders): how far holders' sums of credits are above the expected, in standard deviations.

        One is added to the variance, so that a single lucky hit of a client that is hardly ever named is no large one.
        """
        mean, variance = self.expected
        return (sums - mean) / np.sqrt(variance + 1)

    def arrangements(self) -> float:
        """Count the ways to deal the cells' targets to their holders; infinite where there are very many."""
        return arrangements_within(self.cells, self.owner)


class HolderExchanges:
    """The holders of some runs' targets, exchanged within cells: the same exchanges for all statistics.

    Parameters
    ----------
    runs
        The targets of each.
    rng
        Draws the exchanges.
    how
        What is exchanged, in words.
    """

    def __init__(self, runs: Sequence[Alike], rng: np.random.Generator, how: str) -> None:
        self._runs, self._rng, self._how = runs, rng, how
        # For each draw the sums of credits by holder, (count, holders) a run: few numbers, of which all statistics are.
        self._drawn: list[list[Floats]] = []

    def significance(self, statistic: Callable[[Sequence[Floats]], Floats]) -> Significance:
        """Hold a statistic of each run's sums of credits, (count, holders), against what exchanges give."""
        observed = float(statistic([alike.by_holder(alike.observed()) for alike in self._runs])[0])
        arrangements = math.prod(map(Alike.arrangements, self._runs))
        at_once = min(max(_AT_ONCE // max(len(alike.cells) for alike in self._runs), 1), 1_000)
        # Numbers the calls, each of which asks for the next exchanges.
        turn = counted()

        def draw(_: np.random.Generator, count: int) -> Floats:
            index = next(turn)
            if index == len(self._drawn):
                self._drawn.append(self._draw_sums(count))
            return statistic(self._drawn[index])

        return significance_of(observed, draw, self._rng, self._how, arrangements=arrangements, at_once=at_once)

    def weighted(self, weights: Sequence[Floats]) -> Callable[[Sequence[Floats]], Floats]:
        """Return the statistic that is large where holders are named more than others are for targets of their cells.

        `weights` has, for each run, the weight (holders,) of a target of each of :attr:`Alike.holders`.
        """

        def statistic(sums: Sequence[Floats]) -> Floats:
            total = np.zeros(len(sums[0]))
            for of_run, weight in zip(sums, weights, strict=True):
                total += of_run @ weight
            return total

        return statistic

    def largest_excess(self, sums: Sequence[Floats]) -> Floats:
        """Return how far the client is above what its cells give that is furthest; see :meth:`Alike.excess`."""
        # The largest over the clients of a run, then over the runs: its null is drawn with the same maximum.
        largest = [alike.excess(of_run).max(axis=1) for of_run, alike in zip(sums, self._runs, strict=True)]
        return np.asarray(np.max(largest, axis=0))

    def _draw_sums(self, count: int) -> list[Floats]:
        """(count, holders) for each run: its sums of credits after so many exchanges."""

        def draw_run(alike: Alike, generator: np.random.Generator) -> Floats:
            sums = []
            # A few at a time stay in the cache of a core, and are the same numbers.
            for first in range(0, count, _IN_CACHE):
                sums.append(alike.by_holder(alike.drawn(generator, min(_IN_CACHE, count - first))))
            return np.concatenate(sums)

        # NumPy sorts and draws beside other threads. Each run has a generator of its own, so that its numbers do not
        # depend on the thread's turn.
        with ThreadPoolExecutor(min(len(self._runs), usable_cpus())) as workers:
            return list(workers.map(draw_run, self._runs, self._rng.spawn(len(self._runs))))
