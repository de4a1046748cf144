"""Could what was read off be of the clients by accident? Who holds which known example is exchanged.

What was read off stays. It equals known examples: of the client that it is said to be of, of others, or of nobody. If
it told nothing of clients, these could as well be anybody's. So the more of them are the client's own alone, the less
likely is an accident, however few of a client's examples were read off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.significance import (
    Significance,
    arrangements_within,
    exchange_within,
    significance_of,
)
from fedattack.threats.exact.case import ANY, NOBODY, ExactCase

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

HOW = "who holds which known example exchanged"

# Entries beside those of what was read off with which these are exchanged, at least, and for each of these.
_FEWEST, _FOR_EACH = 5_000, 20

# Numbers that are drawn together.
_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class MetExamples:
    """What was read off of one run and equals a known example, with the holders of all known ones.

    Attributes
    ----------
    holders
        (entries,): of all known examples, each with each of its holders; see
        :attr:`~fedattack.threats.exact.case.KnownHolders.holders`.
    entries
        (named,): for each example that was read off its indices into the holders, all one behind the other.
    starts
        (met,): where those of each begin.
    said
        (named,): whose it is said to be; −1 for any client's.
    """

    holders: Rows
    entries: Rows
    starts: Rows
    said: Rows

    @classmethod
    def of(cls, case: ExactCase, rng: np.random.Generator) -> "MetExamples":
        """Look up what was read off; of very many other examples some are drawn, whoever holds them."""
        known = case.known_examples
        entries_of = [np.flatnonzero(known.rows == row) for _, row in case.met]
        sizes = np.array([len(entries) for entries in entries_of], dtype=np.int64)
        named = np.concatenate([np.zeros(0, dtype=np.int64), *entries_of])
        said = np.repeat(np.array([whose for whose, _ in case.met], dtype=np.int64), sizes)
        kept = np.unique(named)
        others = np.setdiff1d(np.arange(len(known.rows)), kept)
        most = max(_FEWEST, _FOR_EACH * len(kept))
        if len(others) > most:
            others = rng.choice(others, most, replace=False)
        entries = np.concatenate([kept, others])
        return cls(known.holders[entries], np.searchsorted(kept, named), np.cumsum(sizes) - sizes, said)

    def count_own(self, holders: Rows) -> Floats:
        """Count the examples that only the client holds of which they are said to be, (count,), by (count, named)."""
        is_own = np.where(self.said == ANY, holders != NOBODY, holders == self.said)
        if not len(self.starts):
            return np.zeros(len(holders))
        return np.asarray(np.logical_and.reduceat(is_own, self.starts, axis=1).sum(axis=1, dtype=np.float64))

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Count them in so many exchanges of who holds what, (count,)."""
        if not len(self.starts):
            return np.zeros(count)
        exchanged = exchange_within(np.zeros(len(self.holders), dtype=np.int64), rng, count, self.entries)
        return self.count_own(self.holders[exchanged])


@dataclass(frozen=True)
class MetOfRuns:
    """The same of all runs."""

    runs: Sequence[MetExamples]

    @property
    def n(self) -> int:
        """How many different examples were read off and are known."""
        return sum(len(run.starts) for run in self.runs)

    @property
    def observed(self) -> float:
        """How many of them are held by whom they are said to be of alone."""
        return float(sum(run.count_own(run.holders[run.entries][None])[0] for run in self.runs))

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Count them in so many exchanges within each run, (count,)."""
        return np.asarray(sum(run.draw(rng, count) for run in self.runs))

    def test(self, rng: np.random.Generator, draws: int) -> Significance:
        """Say how likely so many are by accident."""
        runs = np.repeat(np.arange(len(self.runs)), [len(run.holders) for run in self.runs])
        ways = arrangements_within(runs, np.concatenate([run.holders for run in self.runs]))
        at_once = max(1, min(1_000, _AT_ONCE // max(1, len(runs))))
        return significance_of(self.observed, self.draw, rng, HOW, arrangements=ways, draws=draws, at_once=at_once)


@dataclass(frozen=True)
class LinkedExamples:
    """The groups into which the attacker puts examples of sums.

    Attributes
    ----------
    groups
        (read,): numbers of groups, ascending.
    holders
        (read,): whose each example is, an index into the clients, or −1 if it is no known client's.
    """

    groups: Rows
    holders: Rows

    @classmethod
    def of(cls, case: ExactCase) -> "LinkedExamples":
        """Order what was read off by its groups."""
        groups = case.take_asked(case.found.groups)
        order = np.argsort(groups, kind="stable")
        return cls(groups[order], case.truly_of[order])

    @property
    def arrangements(self) -> float:
        """How many ways there are to say whose the examples are."""
        return arrangements_within(np.zeros(len(self.holders), dtype=np.int64), self.holders)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Count the examples in groups of one client, in so many exchanges of whose they are, (count,)."""
        drawn = self.holders[exchange_within(np.zeros(len(self.holders), dtype=np.int64), rng, count)]
        starts = np.flatnonzero(np.diff(self.groups, prepend=-1))
        sizes = np.diff(np.append(starts, len(self.groups)))
        least, largest = np.minimum.reduceat(drawn, starts, axis=1), np.maximum.reduceat(drawn, starts, axis=1)
        is_linked = (sizes > 1) & (least == largest) & (least >= 0)
        return np.asarray((is_linked * sizes).sum(axis=1, dtype=np.float64))
