"""Sizes of groups in what clients send: whole numbers that add up to how many examples the client has."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.readoff import BITS
from fedattack.audit.significance import Significance, significance_of
from fedattack.threats.plaintext.arrays import Sent

# Groups of one vector, its largest size, and vectors of one client.
_MOST_GROUPS, _LARGEST, _MOST_VECTORS = 1_024, 2**20, 1_000

# Numbers of the distributions of sums, and sizes that are drawn at once.
_MOST_NUMBERS, _AT_ONCE = 2**24, 2**22

# No sum is taken for rarer: the distribution comes from Fourier transforms, which round.
_RAREST = 1e-12

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GroupSizes:
    """Vectors of whole numbers under one name in one run, all of one length.

    Attributes
    ----------
    name, type
        The name, and the type of the message.
    clients
        Those that send some, of which it is known how many examples they have.
    vectors
        For each of these its different vectors, (k, groups).
    counts
        (clients,): how many examples it has.
    """

    name: str
    type: str
    clients: Sequence[str]
    vectors: Sequence[Whole]
    counts: Whole

    @cached_property
    def add_up(self) -> NDArray[np.bool_]:
        """(clients,): whether each vector adds up to how many examples the client has."""
        fits = [(of.sum(axis=1) == count).all() for of, count in zip(self.vectors, self.counts, strict=True)]
        return np.array(fits, dtype=np.bool_)

    def share_small(self, least: int) -> Floats:
        """Return which share of a client's groups has fewer examples than ``least``, (clients,).

        It is 0 where the vectors are no sizes of groups, as they do not add up.
        """
        shares = [float(_share_small(of, least).mean()) for of in self.vectors]
        return np.where(self.add_up, shares, 0.0)

    def count_small(self, least: int) -> Whole:
        """Return how many groups of fewer examples a client tells by one vector, (clients,): of several the most.

        It is 0 where the vectors are no sizes of groups, as they do not add up.
        """
        counts = [int(((of > 0) & (of < least)).sum(axis=1).max()) for of in self.vectors]
        return np.where(self.add_up, counts, 0)

    @property
    def filled(self) -> Whole:
        """(clients,): how many groups that are not empty a vector has, of several the most; 0 as above."""
        return np.where(self.add_up, [int((of > 0).sum(axis=1).max()) for of in self.vectors], 0)

    @cached_property
    def _pool(self) -> Whole:
        """(vectors, groups): those of all clients."""
        return np.concatenate(self.vectors)

    @cached_property
    def bits(self) -> Floats:
        """(clients,): how unlikely it is by accident that its vectors add up.

        An accident is a vector each of whose numbers is the one that any vector has there.
        """
        # The distribution of a sum of independent numbers: the product of their Fourier transforms.
        size = int(self._pool.max(axis=0).sum()) + 1
        if size * self._pool.shape[1] > _MOST_NUMBERS:
            return np.zeros(len(self.clients))
        transform = np.ones(size // 2 + 1, dtype=np.complex128)
        for column in self._pool.T:
            transform *= np.fft.rfft(np.bincount(column, minlength=size) / len(column), size)
        chances = np.fft.irfft(transform, size)
        fits = np.where(self.counts < size, chances[np.minimum(self.counts, size - 1)], 0.0)
        bits = -np.log2(np.clip(fits, _RAREST, 1.0))
        return np.asarray(bits * [len(of) for of in self.vectors])

    def draw(self, least: int, rng: np.random.Generator, count: int) -> Floats:
        """Return the mean of :meth:`share_small` over clients whose vectors are drawn number by number, (count,)."""
        pool, groups = self._pool, self._pool.shape[1]
        drawn = np.empty(count)
        at_once = max(1, _AT_ONCE // (len(self.clients) * groups))
        for start in range(0, count, at_once):
            some = min(at_once, count - start)
            rows = rng.integers(len(pool), size=(some, len(self.clients), groups))
            sizes = pool[rows, np.arange(groups)]
            fits = sizes.sum(axis=2) == self.counts
            drawn[start : start + some] = np.where(fits, _share_small(sizes, least), 0.0).mean(axis=1)
        return drawn


def _share_small(sizes: Whole, least: int) -> Floats:
    """Return which share of the groups that are not empty, along the last axis, has fewer examples."""
    filled = (sizes > 0).sum(axis=-1)
    return np.asarray(((sizes > 0) & (sizes < least)).sum(axis=-1) / np.maximum(filled, 1))


def find_group_sizes(sent: Sequence[tuple[str, Sent]], counts: Mapping[str, int]) -> list[GroupSizes]:
    """Find the names under which clients send whole numbers that may be sizes of groups of all their examples.

    Parameters
    ----------
    sent
        Arrays and vectors, each with the client that sent it.
    counts
        By client how many examples it has.
    """
    by_name: dict[tuple[str, str], dict[str, list[Whole]]] = defaultdict(lambda: defaultdict(list))
    for client, array in sent:
        of_client = by_name[array.name, array.type][client]
        if client in counts and len(of_client) < _MOST_VECTORS and _may_be_sizes(array):
            of_client.append(array.values.astype(np.int64))
    found = []
    for (name, type_), by_client in by_name.items():
        lengths = Counter(len(vector) for of in by_client.values() for vector in of)
        if not lengths:
            continue
        # Vectors of other lengths cannot be compared with those of most.
        length = lengths.most_common(1)[0][0]
        vectors = {}
        for client, of in sorted(by_client.items()):
            if same := [vector for vector in of if len(vector) == length]:
                vectors[client] = np.unique(np.stack(same), axis=0)
        sizes = [counts[client] for client in vectors]
        found.append(GroupSizes(name, type_, [*vectors], [*vectors.values()], np.array(sizes, dtype=np.int64)))
    return found


def _may_be_sizes(array: Sent) -> bool:
    values = array.values
    if not array.is_whole or values.ndim != 1 or not 2 <= values.size <= _MOST_GROUPS:
        return False
    return bool(np.isfinite(values).all() and values.min() >= 0 and values.max() <= _LARGEST)


@dataclass(frozen=True, eq=False)
class SmallGroups:
    """Sizes of groups of all runs, by their names and types, and below how many examples a group is small.

    There may be several names. The statistic is that of the name for which it is largest, also in each drawing: so it
    pays for the choice.
    """

    by_name: Mapping[tuple[str, str], Sequence[GroupSizes]]
    least: int

    @classmethod
    def of_runs(cls, runs: Sequence[Sequence[GroupSizes]], least: int) -> "SmallGroups":
        """Put those of several runs together; names under which no client's numbers add up are left out."""
        by_name: dict[tuple[str, str], list[GroupSizes]] = defaultdict(list)
        for sizes in (sizes for of_run in runs for sizes in of_run):
            by_name[sizes.name, sizes.type].append(sizes)
        kept = {name: of for name, of in by_name.items() if any(sizes.add_up.any() for sizes in of)}
        return cls(kept, least)

    @property
    def best(self) -> tuple[str, str]:
        """The name whose groups are small most often."""
        return max(self.by_name, key=lambda name: float(np.concatenate(self.shares(name)).mean()))

    def shares(self, name: tuple[str, str]) -> list[Floats]:
        """Return for each run which share of the groups of a client is small, (clients,)."""
        return [sizes.share_small(self.least) for sizes in self.by_name[name]]

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Return how many are small in so many drawings, (count,)."""
        largest = np.zeros(count)
        for of_name in self.by_name.values():
            clients = [len(sizes.clients) for sizes in of_name]
            drawn = [sizes.draw(self.least, rng, count) for sizes in of_name]
            largest = np.maximum(largest, np.average(drawn, axis=0, weights=clients))
        return largest

    def test(self, rng: np.random.Generator) -> Significance:
        """Say how likely so much is by accident."""
        observed = float(np.concatenate(self.shares(self.best)).mean())
        return significance_of(observed, self.draw, rng, "the numbers of clients exchanged, each by itself")

    def is_certain(self, name: tuple[str, str]) -> bool:
        """Say whether no accident makes so many clients' numbers of this name add up."""
        bits = -math.log2(1 + len(self.by_name))
        for sizes in self.by_name[name]:
            fits = int(sizes.add_up.sum())
            # The clients whose numbers add up were chosen among all that send some.
            bits += float(sizes.bits[sizes.add_up].sum()) - math.log2(math.comb(len(sizes.clients), fits))
        return bits >= BITS
