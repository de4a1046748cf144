"""One seed's scores of source inference beside its truth: whom each target names, and who holds it.

Everything is computed per target as a credit in [0, 1]: 1 for naming the owner, 1/m for an owner among m clients that
tie for the best score. Ties then count neither for nor against the attack, whatever the order of the clients.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.judge import TargetsCase
from fedattack.audit.naming import Alike, cross_rounds, named_by_holder, own_rate
from fedattack.base.machine import let_go
from fedattack.threats.source.sia import LikelySources, combine_likelihoods, combine_rounds

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

# Streams of a seed's random numbers, apart from each other.
_DEALING, _DEALING_SHARED, _HALVES = 1, 3, 4

# Tables of who is named would take much memory, if they were kept of all rounds.
_NOT_KEPT = np.zeros((0, 0))

# Cells into which targets without class labels are sorted by their labels.
_TENTHS = 10


def credits_of(scores: Floats) -> Floats:
    """Turn scores (targets, clients) into each client's credit for being named.

    NaN stands for a client that was not seen and stays NaN; the others' credits sum to one in each row. A row without
    any finite score is a guess among the clients that were seen.
    """
    observed = ~np.isnan(scores)
    filled = np.where(observed, scores, -np.inf)
    best = (filled == filled.max(axis=1, keepdims=True)) & observed
    credit = best / np.maximum(best.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.where(observed, credit, np.nan))


@dataclass(frozen=True)
class HeldTargets:
    """Some targets (n,) by their indices, and who holds each, (n, clients)."""

    rows: Rows
    by: NDArray[np.bool_]

    def every_other(self, start: int) -> "HeldTargets":
        """Take every second target."""
        return HeldTargets(self.rows[start::2], self.by[start::2])

    def halve(self, rng: np.random.Generator) -> tuple["HeldTargets", "HeldTargets"]:
        """Split the targets in two, within each client as far as its targets are even."""
        order = rng.permutation(len(self.rows))
        order = order[np.argsort(self.by[order].argmax(axis=1), kind="stable")]
        ordered = HeldTargets(self.rows[order], self.by[order])
        return ordered.every_other(0), ordered.every_other(1)

    def credit_holders(self, credit: Floats) -> Floats:
        """Return the credit for naming a holder, of the targets of which a holder was seen."""
        single = credit[self.rows]
        counted = (self.by & ~np.isnan(single)).any(axis=1)
        return np.asarray(np.where(self.by, np.nan_to_num(single), 0.0).sum(axis=1)[counted])


@dataclass(frozen=True)
class Answered:
    """How one seed's targets were answered; those of which no owner was seen are left out: that is no wrong answer.

    Attributes
    ----------
    hits
        Credit for naming an owner, for each target that counts.
    chance, largest
        What guessing, and naming the largest client, would have got; sums over the same targets.
    null
        Credits for the null targets as dealt.
    held, named
        The targets, and what :func:`~fedattack.audit.naming.named_by_holder` gives of them.
    """

    hits: Floats
    chance: float
    largest: float
    null: Floats
    held: HeldTargets
    named: Floats

    @property
    def rate(self) -> float:
        """The mean credit; 0 where nothing counts."""
        if not len(self.hits):
            return 0.0
        return float(self.hits.mean())


@dataclass(frozen=True)
class RoundAnswers:
    """How one seed's targets were answered in each round: all of them, and each half of them.

    Who is named for all targets is kept for the last round alone.
    """

    whole: list[Answered]
    halves: list[tuple[Answered, Answered]]

    @property
    def named(self) -> list[tuple[Floats, Floats]]:
        """For each round and half what :func:`~fedattack.audit.naming.named_by_holder` gives."""
        return [(first.named, second.named) for first, second in self.halves]

    def choose_best(self) -> Answered:
        """Take each half of the targets in the round that is best on the other half, so that luck is not counted."""
        own = np.array([[own_rate(first), own_rate(second)] for first, second in self.named])
        first, second = cross_rounds(own)
        one, other = self.halves[first][0], self.halves[second][1]
        return replace(
            self.whole[-1],
            hits=np.concatenate([one.hits, other.hits]),
            chance=one.chance + other.chance,
            largest=one.largest + other.largest,
            null=np.concatenate([one.null, other.null]),
        )


@dataclass(frozen=True, eq=False)
class SourceCase(TargetsCase[LikelySources]):
    """One seed's scores of source inference beside its truth."""

    SEEN = "combined"

    @property
    def losses(self) -> "RoundLosses":
        """(rounds, targets, clients): the scores' losses, a client's several nodes put together."""
        return RoundLosses(self)

    @cached_property
    def combined(self) -> Floats:
        """(targets, clients): scores over all rounds, as the attack combines them."""
        return combine_rounds(self.losses)

    @cached_property
    def credit(self) -> Floats:
        """(targets, clients): credit for naming each client by these."""
        return credits_of(self.combined)

    @cached_property
    def log_prior(self) -> Floats:
        """(clients,): what the attacker believed before it looked."""
        prior = self.found.log_prior
        return np.array([prior[self.columns(name)].max() for name in self.clients])

    @property
    def labels(self) -> Rows:
        """(targets,): the targets' labels."""
        return np.asarray(self.found.labels)

    @cached_property
    def never_seen(self) -> NDArray[np.bool_]:
        """(clients,): whether the attack never got a usable model of a client."""
        return np.asarray(np.isnan(self.combined).all(axis=0))

    @cached_property
    def owner(self) -> Rows:
        """(targets,): index of the sole owner among :attr:`clients`; −1 without one, or if it was never seen."""
        return self._find_clients(self.truth.owners)

    @cached_property
    def origin(self) -> Rows:
        """(targets,): index of the client from whose data a target of nobody comes; −1 where there is none known."""
        return self._find_clients(self.truth.origins)

    def _find_clients(self, names: NDArray[np.str_]) -> Rows:
        positions = {self.clients[position]: position for position in np.flatnonzero(~self.never_seen)}
        return np.array([positions.get(name, -1) for name in names.tolist()], dtype=np.int64)

    @cached_property
    def cells(self) -> Rows:
        """(targets,): cells of targets that have the same label.

        In a regression they have about the same: tenths. Labels of several numbers say nothing here.
        """
        labels = self.labels
        if labels.ndim > 1 or not len(labels):
            return np.zeros(len(labels), dtype=np.int64)
        if np.issubdtype(labels.dtype, np.integer):
            return np.unique(labels, return_inverse=True)[1]
        edges = np.quantile(labels, np.linspace(0, 1, _TENTHS + 1)[1:-1])
        return np.searchsorted(edges, labels)

    @cached_property
    def sole(self) -> HeldTargets:
        """The targets with one owner, if it was ever seen."""
        rows = np.flatnonzero(self.owner >= 0)
        return HeldTargets(rows, self.owner[rows, None] == np.arange(len(self.clients)))

    @cached_property
    def shared(self) -> HeldTargets:
        """The targets that several clients hold, of which one was ever seen at least."""
        rows, by = [], []
        for row, names in self.truth.shared.items():
            holds = np.isin(self.clients, names) & ~self.never_seen
            if holds.any():
                rows.append(row)
                by.append(holds)
        shape = (len(rows), len(self.clients))
        return HeldTargets(np.array(rows, dtype=np.int64), np.array(by, dtype=np.bool_).reshape(shape))

    def _deal_null(self, held: HeldTargets, stream: int) -> HeldTargets:
        """Deal the null targets out as if they were held as those of ``held`` are, and as evenly."""
        draw = np.random.default_rng((self.seed, stream))
        rows = held.rows
        if len(rows):
            rows = np.flatnonzero(self.null)
        order = np.resize(draw.permutation(len(held.by)), len(rows))
        return HeldTargets(rows, held.by[order])

    def _answer(self, credit: Floats, held: HeldTargets, exchanged: HeldTargets) -> Answered:
        """Count the credit (targets, clients) for ``held`` and for the null targets ``dealt`` like them."""
        by_size = np.where(np.isnan(credit).all(axis=0), np.nan, self.sizes.astype(float))
        observed = ~np.isnan(credit[held.rows])
        holders = observed & held.by
        counted = holders.any(axis=1)
        guess = holders.sum(axis=1) / np.maximum(observed.sum(axis=1), 1)
        by_largest = np.nan_to_num(credits_of(by_size[None]))
        largest = np.where(held.by, by_largest, 0.0).sum(axis=1)
        return Answered(
            hits=held.credit_holders(credit),
            chance=float(guess[counted].sum()),
            largest=float(largest[counted].sum()),
            null=exchanged.credit_holders(credit),
            held=held,
            named=named_by_holder(credit[held.rows], held.by),
        )

    @cached_property
    def all_rounds(self) -> Answered:
        """The targets with one owner, all rounds combined."""
        return self._answer(self.credit, self.sole, self._deal_null(self.sole, _DEALING))

    @cached_property
    def by_likelihood(self) -> Answered:
        """The same, the rounds combined as log likelihoods."""
        credit = credits_of(combine_likelihoods(self.losses))
        return self._answer(credit, self.sole, self._deal_null(self.sole, _DEALING))

    @cached_property
    def of_several(self) -> Answered:
        """The targets that several clients hold, all rounds combined."""
        return self._answer(self.credit, self.shared, self._deal_null(self.shared, _DEALING_SHARED))

    @cached_property
    def rounds(self) -> RoundAnswers:
        """Each round counted and let go: the rounds of many clients are too large to be held twice."""
        exchanged = self._deal_null(self.sole, _DEALING)
        first, second = self.sole.halve(np.random.default_rng((self.seed, _HALVES)))
        whole, halves = [], []
        for losses in self.losses:
            credit = credits_of(-losses)
            whole.append(replace(self._answer(credit, self.sole, exchanged), named=_NOT_KEPT))
            one = self._answer(credit, first, exchanged.every_other(0))
            halves.append((one, self._answer(credit, second, exchanged.every_other(1))))
        whole[-1] = self._answer(credit, self.sole, exchanged)
        return RoundAnswers(whole, halves)

    @property
    def last_round(self) -> Answered:
        """The targets with one owner, in the last round alone."""
        return self.rounds.whole[-1]

    @cached_property
    def best_round(self) -> Answered:
        """The same in the best round, which is chosen on one half of the targets and measured on the other."""
        return self.rounds.choose_best()

    @cached_property
    def alike(self) -> Alike:
        """The targets of sole owners and of nobody; those of one label are alike."""
        rows = np.flatnonzero((self.owner >= 0) | self.null)
        return Alike(np.nan_to_num(self.credit[rows]), self.owner[rows], self.cells[rows])

    @cached_property
    def counted(self) -> Rows:
        """(n,): the targets with one owner, who was seen."""
        rows = self.sole.rows
        return rows[~np.isnan(self.credit[rows, self.owner[rows]])]

    @property
    def right(self) -> Floats:
        """(n,): credit for naming the owner of each of :attr:`counted`."""
        return np.asarray(self.credit[self.counted, self.owner[self.counted]])

    @property
    def label_shares(self) -> Floats:
        """(null targets, clients): shares of a label's examples by client, of those seen; zero if none holds any.

        Without class labels (a regression, say) nothing is known, and all are zero.
        """
        labels, classes = self.labels[self.null], len(self.truth.classes)
        if not np.issubdtype(labels.dtype, np.integer) or labels.size == 0 or labels.max() >= classes:
            return np.zeros((len(labels), len(self.clients)))
        held = dict(zip(self.truth.clients, self.truth.counts.astype(float), strict=True))
        counts = np.array([held.get(name, np.zeros(classes)) for name in self.clients])
        counts[self.never_seen] = 0
        totals = counts.sum(axis=0)
        return np.asarray((counts / np.maximum(totals, 1)).T[labels])


@dataclass(frozen=True)
class RoundLosses:
    """The losses of one seed, round by round: those of all rounds may not fit into memory."""

    case: SourceCase

    @property
    def shape(self) -> tuple[int, ...]:
        """(rounds, targets, clients)."""
        return (*self.case.found.losses.shape[:2], len(self.case.clients))

    def __iter__(self) -> Iterator[Floats]:
        """Yield each round's, (targets, clients)."""
        of_nodes = self.case.found.losses
        for of_round in of_nodes:
            yield self.case.by_client(of_round)
            let_go(of_nodes)
