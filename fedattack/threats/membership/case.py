"""One seed's scores of membership inference beside its truth: who is a member, and of whom non-members are asked.

Members are targets that one client holds, asked of that client. Non-members are targets that nobody holds. Each is
dealt to one client, so that all of a client's non-members have the labels that its members have: otherwise the labels
alone would tell them apart. Where it is known from whose data a non-member comes, it is asked of that client.

Where too few targets are nobody's, the non-members of a client are other clients' members. Then each target has one
part alone: it is a member of its owner, or a non-member of another client, but never both. So no two answers are about
the same target, and the same exchanges are exact: to exchange a member of a client with another's example is to
exchange who holds them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.judge import TargetsCase
from fedattack.audit.reach import Prepared
from fedattack.audit.truth import NOBODY, SEVERAL
from fedattack.threats.membership.membership import METHODS, LikelyMembers

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

FEWEST = 8
"""Fewer targets of a kind have no ROC."""

# The stream of a seed's random numbers by which non-members are dealt.
_DEALING = 11

# Whose a client's non-members are: drawn from its own data, of anybody's, or other clients' members.
_SAME_CLIENT, _NOBODYS, _AMONG_CLIENTS = "same client", "nobody", "other clients"

# A client's own held-out examples are its non-members if they leave this part of the targets.
_MOST = 0.5


@dataclass(frozen=True)
class Pairs:
    """Some targets (n,), each asked of one client (n,)."""

    rows: Rows
    columns: Rows

    def of(self, scores: Floats) -> Floats:
        """Return the pairs' scores."""
        return np.asarray(scores[self.rows, self.columns])

    def where(self, kept: NDArray[np.bool_]) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(self.rows[kept], self.columns[kept])

    def keep_known(self, scores: Floats) -> "Pairs":
        """Return the pairs that have a score."""
        return self.where(~np.isnan(self.of(scores)))

    def __len__(self) -> int:
        return len(self.rows)


NO_PAIRS = Pairs(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class MembershipCase(TargetsCase[LikelyMembers]):
    """One seed's scores of membership inference beside its truth."""

    SEEN = "score/loss-series"

    @property
    def methods(self) -> list[str]:
        """The methods that were computed, FedMIA first."""
        return [name for name in METHODS if name in self.found.scores]

    def scores_of(self, method: str) -> Floats:
        """Return a method's scores, (targets, clients)."""
        return self.by_client(self.found.scores[method])

    @cached_property
    def owner(self) -> Rows:
        """(targets,): index of the sole owner among the clients; −1 without one."""
        positions = {name: position for position, name in enumerate(self.clients)}
        return np.array([positions.get(name, -1) for name in self.truth.owners.tolist()], dtype=np.int64)

    @cached_property
    def labels(self) -> NDArray[Any]:
        """(targets,): class labels; all alike for a regression, whose targets are no classes."""
        return _classes_of(self.found.labels)

    def cells(self, pairs: Pairs) -> Rows:
        """(n,): number of each pair's client and label."""
        names, numbers = np.unique(self.labels, return_inverse=True)
        return np.asarray(pairs.columns * len(names) + numbers[pairs.rows])

    @property
    def dealt(self) -> tuple[Pairs, Pairs]:
        """Members, and non-members that are dealt to clients so that both have the same labels in each client."""
        return self._dealing[:2]

    @property
    def same_client(self) -> bool:
        """Whether a client's non-members come from its own data, as far as they can be dealt so."""
        return self._dealing[2] == _SAME_CLIENT

    @property
    def among_clients(self) -> bool:
        """Whether a client's non-members are other clients' members, since too few targets are nobody's."""
        return self._dealing[2] == _AMONG_CLIENTS

    @property
    def enough(self) -> bool:
        """Whether there are enough members and non-members to be judged."""
        return min(map(len, self.dealt)) >= FEWEST

    @cached_property
    def _dealing(self) -> tuple[Pairs, Pairs, str]:
        draw = np.random.default_rng((self.seed, _DEALING))
        scores = self.scores_of(self.methods[0])
        members = draw.permutation(np.flatnonzero(self.owner >= 0))
        members = members[~np.isnan(scores[members, self.owner[members]])]
        nobody = draw.permutation(np.flatnonzero(self.null))
        _, labels = np.unique(self.labels, return_inverse=True)
        anybody = self._deal(members, nobody, labels)
        homes = np.where(self.null, self.truth.origins, self.truth.owners)
        names, numbers = np.unique(homes, return_inverse=True)
        own = self._deal(members, nobody[homes[nobody] != ""], labels * len(names) + numbers)
        if min(map(len, anybody)) < FEWEST:
            among = self._deal_among_clients(members, labels, draw)
            if min(map(len, among)) >= FEWEST:
                return *among, _AMONG_CLIENTS
        # To be told from a client's own data is worth many targets, but not most of them.
        if _mean_size(own) >= _MOST * _mean_size(anybody):
            return *own, _SAME_CLIENT
        return *anybody, _NOBODYS

    def _deal(self, members: Rows, nobody: Rows, groups: Rows) -> tuple[Pairs, Pairs]:
        """Deal targets of nobody to the members of the same group."""
        by_group = {group: members[groups[members] == group] for group in np.unique(groups[members])}
        free = {group: nobody[groups[nobody] == group] for group in by_group}
        times = _choose_times({group: (len(rows), len(free[group])) for group, rows in by_group.items()})
        kept, rows_of_others, columns_of_others = [_NONE], [_NONE], [_NONE]
        for group, rows in by_group.items():
            taken = rows[: len(free[group]) // times]
            others = free[group][: times * len(taken)]
            kept.append(taken)
            rows_of_others.append(others)
            columns_of_others.append(np.resize(self.owner[taken], len(others)))
        chosen = np.concatenate(kept)
        others_asked = Pairs(np.concatenate(rows_of_others), np.concatenate(columns_of_others))
        return Pairs(chosen, self.owner[chosen]), others_asked

    def _deal_among_clients(self, members: Rows, labels: Rows, draw: np.random.Generator) -> tuple[Pairs, Pairs]:
        """Pair targets of one label and two owners: one is a member of its owner, of whom the other is asked, too."""
        kept, rows_of_others = [_NONE], [_NONE]
        for label in np.unique(labels[members]):
            rows = members[labels[members] == label]
            pairs = draw.permuted(rows[pair_owners(self.owner[rows], draw)], axis=0)
            kept.append(pairs[0])
            rows_of_others.append(pairs[1])
        chosen = np.concatenate(kept)
        columns = self.owner[chosen]
        return Pairs(chosen, columns), Pairs(np.concatenate(rows_of_others), columns)

    @cached_property
    def elsewhere(self) -> Pairs:
        """Members of other clients, each asked of the next client: harder to tell from this client's own.

        There are none where the non-members are such already.
        """
        if self.among_clients:
            return NO_PAIRS
        members, _ = self.dealt
        columns = (members.columns + 1) % len(self.clients)
        pairs = Pairs(members.rows, columns)
        kept = (columns != members.columns) & ~np.isnan(pairs.of(self.scores_of(self.methods[0])))
        return pairs.where(kept)

    @property
    def declared(self) -> float | None:
        """The largest ε that the run's clients declare for the whole run, if it is finite."""
        if self.truth.privacy is None:
            return None
        largest = max(self.truth.privacy.epsilon_run, default=float("inf"))
        return largest if np.isfinite(largest) else None


class AggregateCase(MembershipCase):
    """The same where the server sees sums alone: there is one column, and everybody's examples are members."""

    @cached_property
    def node_clients(self) -> list[str]:
        """All clients together."""
        return ["all clients"]

    @property
    def holders(self) -> Sequence[str]:
        """All clients together."""
        return self.node_clients

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(1,): how many training examples all clients hold."""
        return np.array([self.truth.counts.sum()], dtype=np.int64)

    @cached_property
    def owner(self) -> Rows:
        """(targets,): 0 for what some client holds, −1 for what nobody does."""
        return np.where(self.null, -1, 0).astype(np.int64)

    @property
    def elsewhere(self) -> Pairs:
        """There are no other clients."""
        return NO_PAIRS


_NONE = np.zeros(0, dtype=np.int64)


def pair_owners(owners: Rows, draw: np.random.Generator) -> Rows:
    """Pair as many indices as can be, so that the two of each pair have different owners.

    Returns
    -------
    ndarray
        (2, pairs): into the owners, each at most once.
    """
    names, numbers, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return np.zeros((2, 0), dtype=np.int64)
    indices = draw.permutation(len(owners))
    # Nobody may have more than all others together.
    largest = numbers[indices] == sizes.argmax()
    spare = np.cumsum(largest) > len(owners) - sizes.max()
    indices = indices[~(largest & spare)]
    # In the order of owners, the index that is half of all further on is another's. A drawn order mixes the owners.
    order = draw.permutation(len(names))
    indices = indices[np.argsort(order[numbers[indices]], kind="stable")]
    half = len(indices) // 2
    return np.stack([indices[:half], indices[half : 2 * half]])


def _choose_times(sizes: Mapping[Any, tuple[int, int]]) -> int:
    """Choose how many non-members each member gets, for labels with so many members and so many non-members.

    Members of labels that are too scarce for it are left out. The best number leaves much of both: it has the largest
    harmonic mean of members and non-members, so that one rare label does not cost the non-members of all others.
    """

    def left(times: int) -> float:
        members = sum(min(own, free // times) for own, free in sizes.values())
        return members * times / (1 + times)

    most = max((free // own for own, free in sizes.values()), default=1)
    return max(range(1, max(most, 1) + 1), key=left)


def _mean_size(halves: tuple[Pairs, Pairs]) -> float:
    """Return the harmonic mean of the numbers of members and non-members."""
    members, others = map(len, halves)
    return 2 * members * others / max(members + others, 1)


def _classes_of(labels: NDArray[Any]) -> NDArray[Any]:
    if np.issubdtype(labels.dtype, np.integer) and labels.ndim == 1:
        return labels
    return np.zeros(len(labels), dtype=np.int64)


def _number_labels(run: Prepared) -> Rows:
    """Return the number of each target's label; none where targets and truth do not fit."""
    targets = run.knowledge.targets
    if targets is None or len(targets.y) != len(run.truth.owners):
        return np.zeros(0, dtype=np.int64)
    return np.unique(_classes_of(targets.y), return_inverse=True)[1]


def count_fewest(run: Prepared, *, alone: bool) -> int:
    """Return how many members are left at most, each with a non-member of its label; ``alone``: held by one client."""
    numbers = _number_labels(run)
    if not len(numbers):
        return 0
    owners = run.truth.owners
    is_held = owners != NOBODY
    if alone:
        is_held &= owners != SEVERAL
    members, free = np.bincount(numbers[is_held]), np.bincount(numbers[owners == NOBODY])
    size = min(len(members), len(free))
    return int(np.minimum(members[:size], free[:size]).sum())


def count_fewest_among_clients(run: Prepared) -> int:
    """Return how many members are left at most, each with another client's example of its label."""
    numbers = _number_labels(run)
    if not len(numbers):
        return 0
    owners = run.truth.owners
    is_held = ~np.isin(owners, [NOBODY, SEVERAL])
    pairs = 0
    for label in np.unique(numbers[is_held]):
        sizes = np.unique(owners[is_held & (numbers == label)], return_counts=True)[1]
        pairs += min(int(sizes.sum()) // 2, int(sizes.sum() - sizes.max()))
    return pairs


@dataclass(frozen=True)
class CanaryCase(MembershipCase):
    """The same of neurons that single examples move."""

    SEEN = "score/canary"
