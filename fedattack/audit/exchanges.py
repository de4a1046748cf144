"""Could members be found so well by accident? Members and non-members exchanged within cells.

A cell is a client and a label of one run. The client's model is the same for all targets of the cell. If it did not
learn the members, then these are no other draws than the non-members, and it is an accident who is which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count as counted
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import rankdata

from fedattack.audit.significance import Draw, Significance, arrangements_within, significance_of

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]

T = TypeVar("T", bound=np.generic)

Statistic = Callable[[Flags], Floats]
"""Takes who is a member, (draws, n) in the order of the scores, to one number a draw, larger for a worse leak."""

# Flags that are in memory at once.
# 10 MB, as a flag takes one byte.
_AT_ONCE = 10_000_000

# Targets with the largest scores that a rate looks at first; there are more if these do not do.
_FIRST = 64


@dataclass(frozen=True)
class Held:
    """One run's targets that clients hold.

    Attributes
    ----------
    scores
        (n, clients): of each target, asked of each client; NaN where that is not known.
    owners, labels
        (n,): who holds each target, and its label, 0 or more.
    """

    scores: Floats
    owners: Rows
    labels: Rows

    @cached_property
    def _ranked(self) -> Floats:
        """The scores, the lowest for NaN: what was not scored is never accused."""
        return np.where(np.isnan(self.scores), -np.inf, self.scores)

    def asked(self, owners: Rows) -> tuple[Floats, Floats]:
        """Return the scores with the owners (draws, n), and with the clients after them; the lowest for NaN."""
        targets, clients = self.scores.shape
        flat, starts = self._ranked.ravel(), np.arange(targets) * clients
        # Each target is a non-member for one of n clients alone, the next one, so that members and non-members are as
        # many. By positions in the flat scores: take is twice as fast as two index arrays.
        return np.take(flat, starts + owners), np.take(flat, starts + (owners + 1) % clients)


class Exchanges:
    """Members and non-members of a method, and their exchanges, which are the same for all statistics.

    Parameters
    ----------
    members, others
        (m,), (k,): scores, larger for likelier members.
    cells_of_members, cells_of_others
        (m,), (k,): the cell of each, 0 or more.
    seed
        Seeds the exchanges.
    """

    def __init__(
        self, members: Floats, others: Floats, cells_of_members: Rows, cells_of_others: Rows, seed: tuple[int, ...]
    ) -> None:
        scores = np.concatenate([members, others])
        # Largest first, so that a threshold is a number of targets from the top. Stable, so that ties have one order.
        self._order = np.argsort(-scores, kind="stable")
        self._scores = scores[self._order]
        self._members = np.repeat([True, False], [len(members), len(others)])[self._order]
        self._cells = np.concatenate([cells_of_members, cells_of_others])[self._order]
        self._sizes = len(members), len(others)
        self._arrangements = arrangements_within(self._cells, self._members)
        self._alike = _of_equal_size(self._cells)
        # The index of the first target with the same score: those before it are strictly above.
        self._above = np.searchsorted(-self._scores, -self._scores, side="left")
        self._rng = np.random.default_rng(seed)
        self._drawn: list[NDArray[np.uint8]] = []

    def significance(self, statistic: Statistic, how: str) -> Significance:
        """Hold a statistic against what exchanges give."""
        observed = float(statistic(self._members[None])[0])
        # A draw holds a flag for each score.
        at_once = max(1, min(1_000, _AT_ONCE // len(self._scores)))
        draw = self._draws_of(statistic)
        return significance_of(observed, draw, self._rng, how, arrangements=self._arrangements, at_once=at_once)

    def tpr_at(self, fpr: float) -> Statistic:
        """Return the statistic :func:`fedattack.audit.roc.tpr_value_at`."""

        def statistic(flags: Flags) -> Floats:
            above = self._above_threshold(flags, fpr)
            # Only the top of the order is needed: what lies below every draw's threshold is no hit.
            hits = (flags[:, : above.max()] & _before(above)).sum(axis=1)
            return np.asarray(hits / self._sizes[0])

        return statistic

    def area(self, flags: Flags) -> Floats:
        """Return :func:`fedattack.audit.roc.area_value` of each draw."""
        members, others = self._sizes
        # Mann and Whitney: the ranks' sum of the members, less the least that it can be, over the number of pairs.
        least = members * (members + 1) / 2
        return np.asarray((flags @ rankdata(self._scores) - least) / (members * others))

    def best_balanced_accuracy(self, flags: Flags) -> Floats:
        """Return the balanced accuracy at the best of all thresholds, which pays for the choice of it."""
        members, others = self._sizes
        # A threshold lies after the last of equal scores alone, since these cannot be told apart.
        last = np.append(self._scores[1:] < self._scores[:-1], True)
        found = np.cumsum(flags, axis=1, dtype=np.int32)
        ends = np.flatnonzero(last) + 1
        if len(ends) < len(last):
            found = found[:, last]
        # TPR less FPR: found / members less (ends − found) / others.
        excess = found * (1 / members + 1 / others)
        excess -= ends / others
        return np.asarray(0.5 + excess.max(axis=1) / 2)

    def most_exposed(self, clients: Rows, fpr: float) -> Statistic:
        """Return the largest excess over all clients: members above the common threshold, held against non-members.

        `clients` (m + k,) says whose each member and each non-member is; `fpr` is the rate of non-members above the
        threshold.
        """
        # A dense one would have targets × clients entries.
        ones, rows = np.ones(len(clients)), np.arange(len(clients))
        one_hot = sparse.csr_array((ones, (rows, clients[self._order])))
        # As many columns as clients; sparse, since a target belongs to one client.
        sizes, members = one_hot.sum(axis=0), self._members @ one_hot

        def statistic(flags: Flags) -> Floats:
            above = self._above_threshold(flags, fpr)
            top = _before(above)
            width = top.shape[1]
            hits = (flags[:, :width] & top) @ one_hot[:width]
            return np.asarray(standardise(hits, top @ one_hot[:width], members, sizes).max(axis=1))

        return statistic

    def _above_threshold(self, flags: Flags, fpr: float) -> Rows:
        """(draws,): how many targets are above the threshold that the non-members of each draw set."""
        # So many non-members may be above the threshold.
        allowed = int(fpr * self._sizes[1])
        width = _FIRST
        # Doubled until each draw has passed the allowed number of non-members within the width.
        while width < flags.shape[1] and (np.count_nonzero(~flags[:, :width], axis=1) <= allowed).any():
            width *= 2
        accused = np.cumsum(~flags[:, :width], axis=1, dtype=np.int32)
        # argmax finds the first non-member that is too many; all that is strictly above its score counts.
        return np.asarray(self._above[(accused > allowed).argmax(axis=1)])

    def _draws_of(self, statistic: Statistic) -> Draw:
        # Numbers the calls, each of which asks for the next exchanges.
        turn = counted()

        def draw(_: np.random.Generator, count: int) -> Floats:
            # All statistics share the exchanges, and with them the random numbers, whoever asks for further ones.
            index = next(turn)
            if index == len(self._drawn):
                # Packed, eight flags a byte, since they are kept for the statistics to come.
                self._drawn.append(np.packbits(_exchange(self._members, self._alike, self._rng, count), axis=1))
            flags = np.unpackbits(self._drawn[index], axis=1, count=len(self._scores))
            return statistic(flags.view(np.bool_))

        return draw


def standardise(hits: Floats, above: Floats, marked: Floats, sizes: Floats) -> Floats:
    """Return by how many standard deviations more of the marked are above than if it were an accident who is marked.

    All are (…,): how many of the marked are above a threshold, and how many of all; how many are marked, and how many
    there are.
    """
    # Mean and variance of a hypergeometric distribution: `above` draws of `sizes`, of which `marked` count.
    expected = above * marked / np.maximum(sizes, 1)
    variance = expected * (1 - marked / np.maximum(sizes, 1)) * (sizes - above) / np.maximum(sizes - 1, 1)
    # The bound of 1e-12 is never the result: it keeps NumPy's unused branch from dividing by 0.
    return np.asarray(np.where(variance > 0, (hits - expected) / np.sqrt(np.maximum(variance, 1e-12)), 0.0))


def significance_above(
    scores: Floats, marked: Flags, cells: Rows, threshold: float, rng: np.random.Generator, how: str
) -> Significance:
    """Hold it against exchanges within cells how many of the marked are above a threshold; all of them (n,).

    The threshold must come from other targets. In each cell the number is then hypergeometric.
    """
    _, inside = np.unique(cells, return_inverse=True)
    # For each cell: how many are marked, how many are not, and how many scores are above.
    chosen = np.bincount(inside, marked).astype(np.int64)
    left = np.bincount(inside) - chosen
    above = np.bincount(inside, scores > threshold).astype(np.int64)

    def draw(rng: np.random.Generator, count: int) -> Floats:
        return np.asarray(
            # Cells are independent: a hypergeometric number of marked ones above, for each cell.
            rng.hypergeometric(chosen, left, above, size=(count, len(chosen))).sum(axis=1, dtype=np.float64)
        )

    observed = float((scores[marked] > threshold).sum())
    return significance_of(observed, draw, rng, how, arrangements=arrangements_within(cells, marked))


def significance_of_owners(runs: Sequence[Held], fpr: float, rng: np.random.Generator, how: str) -> Significance:
    """Exchange who holds what among targets of one label, and take the rate at which members are found each time.

    The members of a client are held against those of the next one. Each target is a member for its owner, and a
    non-member for the client after that. Both its scores go with it, because one may say something about the other.
    """
    alike = [_of_equal_size(run.labels) for run in runs]
    asked = [run.asked(run.owners[None]) for run in runs]
    # −∞ stands for a client that was not scored for the target: it is no non-member.
    allowed = int(fpr * sum(int((others > -np.inf).sum()) for _, others in asked))

    def rate(members: Floats, others: Floats) -> Floats:
        position = others.shape[1] - 1 - allowed
        # The score of the non-member that is just too many: partition finds it without sorting.
        threshold = np.partition(others, position, axis=1)[:, position]
        return np.asarray((members > threshold[:, None]).mean(axis=1))

    def draw(rng: np.random.Generator, count: int) -> Floats:
        drawn = [run.asked(_exchange(run.owners, same, rng, count)) for run, same in zip(runs, alike, strict=True)]
        members, others = zip(*drawn, strict=True)
        return rate(np.concatenate(members, axis=1), np.concatenate(others, axis=1))

    members, others = zip(*asked, strict=True)
    observed = float(rate(np.concatenate(members, axis=1), np.concatenate(others, axis=1))[0])
    targets = sum(len(run.owners) for run in runs)
    # Eight bytes a score.
    at_once = max(1, min(1_000, _AT_ONCE // (8 * targets)))
    arrangements = prod(arrangements_within(run.labels, run.owners) for run in runs)
    return significance_of(observed, draw, rng, how, arrangements=arrangements, at_once=at_once)


def _exchange(values: NDArray[T], alike: Sequence[Rows], rng: np.random.Generator, count: int) -> NDArray[T]:
    """(count, n): the values, exchanged within the cells of :func:`_of_equal_size`."""
    exchanged = np.empty((count, len(values)), dtype=values.dtype)
    for rows in alike:
        as_they_are = np.broadcast_to(values[rows], (count, *rows.shape))
        # `permuted` shuffles each cell by itself; `shuffle` would move whole cells.
        exchanged[:, rows] = rng.permuted(as_they_are, axis=2)
    return exchanged


def _of_equal_size(cells: Rows) -> list[Rows]:
    """Put cells of the same size together: for each size the positions of their targets, (cells, size)."""
    by_cell = np.argsort(cells, kind="stable")
    _, starts, sizes = np.unique(cells[by_cell], return_index=True, return_counts=True)
    together = []
    for size in np.unique(sizes):
        # A row of consecutive positions in the order by cell, for each cell of this size.
        positions = starts[sizes == size][:, None] + np.arange(size)
        together.append(by_cell[positions])
    return together


def _before(ends: Rows) -> Flags:
    """(draws, largest end): whether a place is before the end of its draw."""
    return np.asarray(np.arange(ends.max()) < ends[:, None])
