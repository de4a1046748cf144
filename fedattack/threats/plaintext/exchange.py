"""Exchange clients, and count how often what a client sends is then nearest to an example of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.significance import Significance, arrangements_within, exchange_within, significance_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Nearest:
    """Whose examples are nearest to the vectors of each client, of all runs.

    There may be vectors of several names. The statistic is that of the name for which it is largest, also in each
    exchange: so it pays for the choice.
    """

    # By name, for each run (clients, clients): of the vectors of a client (rows) the share whose nearest example is
    # held by another one (columns).
    shares: Mapping[str, tuple[Floats, ...]]

    @property
    def best(self) -> str:
        """The name whose vectors are most often nearest to an example of the client's own."""
        return max(self.shares, key=lambda name: float(np.mean(self.own(name))))

    def own(self, name: str) -> Floats:
        """Return the share that is nearest to an example of the client's own, (clients of all runs,)."""
        return np.concatenate([np.diagonal(share) for share in self.shares[name]])

    @property
    def runs(self) -> NDArray[np.int64]:
        """(clients of all runs,): in which run, 0 or more."""
        shares = self.shares[self.best]
        return np.repeat(np.arange(len(shares)), [len(share) for share in shares])

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return how often it is in so many exchanges of the clients of each run, (count,)."""
        runs = self.runs
        starts = np.searchsorted(runs, runs)
        exchanged = exchange_within(runs, rng, count) - starts
        rows = np.arange(len(runs)) - starts
        largest = np.zeros(count)
        for shares in self.shares.values():
            drawn = np.empty((count, len(runs)))
            for run, share in enumerate(shares):
                own = np.flatnonzero(runs == run)
                drawn[:, own] = share[rows[own], exchanged[:, own]]
            largest = np.maximum(largest, drawn.mean(axis=1))
        return largest

    def test(self, rng: np.random.Generator) -> Significance:
        """Say how likely so much is by accident."""
        runs = self.runs
        ways = arrangements_within(runs, np.arange(len(runs)))
        how = "the clients of each run exchanged"
        return significance_of(float(self.own(self.best).mean()), self.draw, rng, how, arrangements=ways)
