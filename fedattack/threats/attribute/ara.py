"""Attribute reconstruction by gradient matching: cos-matching, and L2 with L-BFGS beside it.

Lyu & Chen 2021, "A novel attribute reconstruction attack in federated learning". The server has a client's examples
without one attribute, and finds the values under which the gradient of those examples is the update that it received.
"""

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks.base import Attack, Progress, Seen
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, PartialRecords, Targets
from fedattack.attacks.matching import check_model, fits_model, is_finite, is_zero
from fedattack.attacks.replies import MOST_EXAMPLES, choose_rounds, replies_of
from fedattack.base.errors import DataError, NeedsError
from fedattack.base.stored import Axes, Name, Number
from fedattack.learning import LocalSGD, pick_device
from fedattack.learning.importing import trust_given
from fedattack.record import Observation, Record
from fedattack.threats.attribute.filled_in import MOST_BELIEF, FilledIn, refuse_numbers
from fedattack.threats.attribute.gradient_matching import (
    METHODS,
    Arrays,
    Match,
    Matching,
    Method,
    Victim,
    Weights,
    groups_of,
    match_group,
)
from fedattack.threats.attribute.gradient_membership import gradient_variances, infer_membership
from fedattack.threats.attribute.options import GradientMatchingOptions, Knows


def averaged_gradient(
    update: Mapping[str, NDArray[np.float32]], received: Arrays, training: LocalSGD, examples: int
) -> dict[str, NDArray[np.float32]]:
    """Return the loss gradient that, taken in every local step, gives the client's update: −Δ/(η·steps) for plain SGD.

    For a single step it is the gradient itself; for several, their average along the way ("epoch-averaged"). Momentum μ
    is assumed to start at zero in every round: step k of equal gradients moves by 1 + μ + … + μ^(k−1) of them. Weight
    decay λ is assumed to add λ·w of the received model to each.

    ``update`` is Δ = sent − received by name, ``received`` the model that the client started from, and ``examples``, at
    least 1, how many it has.

    Raises
    ------
    NeedsError
        If the learning rate is 0: such updates say nothing.
    """
    if not training.lr > 0:
        raise NeedsError("gradient matching needs updates of a learning rate above 0; knowledge of training has lr = 0")
    # Δ = −η·reach·(g + λw), solved for g.
    moved = training.lr * training.reach(examples)
    gradient = {}
    for name, delta in update.items():
        gradient[name] = (-delta / moved - training.weight_decay * received[name]).astype(np.float32)
    return gradient


@dataclass(frozen=True, eq=False)
class FilledInByMatching(FilledIn):
    """The attribute, filled in for the clients that were attacked.

    Beliefs are those where the optimiser stopped, not calibrated, and the prior for clients that were not attacked.

    Attributes
    ----------
    clients
        The clients that are asked about.
    rounds, weights
        By client that was attacked the rounds that were used, and whether examples' weights were found too.
    prior, label, membership
        What the attacker knew.
    objectives
        (methods, clients): where the best start ended, else NaN.
    members, decoys
        (n,), (m,): how likely each example, and each auxiliary record among them, is a member; NaN for examples of
        clients that were not attacked. ``None`` if membership was known.
    decoy_clients
        (m,): for whom each auxiliary record was a candidate.
    """

    clients: tuple[Name, ...]
    rounds: Mapping[Name, tuple[Number, ...]]
    weights: Mapping[Name, Weights]
    prior: Knows
    label: Knows
    membership: Knows
    objectives: Annotated[NDArray[np.float64], Axes("methods", "clients", nan=True)]
    members: Annotated[NDArray[np.float64] | None, Axes("records", low=0, high=MOST_BELIEF, nan=True)] = None
    decoys: Annotated[NDArray[np.float64] | None, Axes("decoys", low=0, high=MOST_BELIEF, nan=True)] = None
    decoy_clients: Annotated[NDArray[np.str_] | None, Axes("decoys")] = None


class GradientMatching(Attack):
    """Cos-matching and L2-L-BFGS, side by side on the same updates.

    With ``membership=unknown`` a client's examples lie among as many of the auxiliary ones, whose attribute is taken
    away as well. The mixture of :mod:`fedattack.threats.attribute.gradient_membership` judges them by the last model
    that the client sent, and what it takes for members is attacked.
    """

    options = GradientMatchingOptions()
    found = FilledInByMatching
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "how clients train: learning rate, epochs, batch size",
        "clients' examples and labels except one attribute, its possible values, and whose they are",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where the column is a number."""
        return refuse_numbers(knowledge)

    def attack(self, seen: Seen) -> FilledInByMatching:
        """Match the updates of all clients by every method."""
        record, notes = seen.record, seen.notes
        model, partial = seen.model, seen.partial
        if self.options.label == "unknown" and model.loss not in ("cross-entropy", "mse"):
            raise NeedsError(f"attack {self.name}: label=unknown needs a known loss, and this is {model.loss!r}")
        architecture = model.build()
        check_model(architecture, record)
        device = pick_device(seen.device)
        if self.options.restarts is not None:
            notes.append(f"each method starts from as many places as restarts says: {self.options.restarts}")
        clients = list(dict.fromkeys(partial.clients.tolist()))
        base = np.full(len(partial.domain), 1 / len(partial.domain))
        prior: NDArray[np.float64] | None = None
        if self.options.prior == "known" and partial.prior is not None:
            prior = base = np.asarray(partial.prior, dtype=np.float64)
        cases = self._cases(seen, architecture, clients, prior)
        candidates = _Candidates()
        if self.options.membership == "unknown":
            cases, candidates = _members_first(cases, seen, architecture)

        beliefs = np.tile(base, (len(METHODS), len(partial.y), 1))
        decisions = np.full((len(METHODS), len(partial.y)), -1, dtype=np.int64)
        objectives = np.full((len(METHODS), len(clients)), np.nan)
        matches = self._matches(cases, model, seen.seed, device, seen.progress)
        for row, case, match in matches:
            # Decoys have no decision.
            asked = case.rows >= 0
            beliefs[row, case.rows[asked]] = match.beliefs[asked]
            decisions[row, case.rows[asked]] = match.decisions[asked]
            objectives[row, clients.index(case.client)] = match.objective
        return FilledInByMatching(
            methods=METHODS,
            values=tuple(partial.names),
            targets=partial.fingerprint,
            decisions=decisions,
            beliefs=beliefs,
            clients=tuple(clients),
            rounds={case.client: tuple(case.updates.rounds) for case in cases},
            weights={case.client: self._weights(case.updates.steps) for case in cases},
            prior="unknown" if prior is None else "known",
            label=self.options.label,
            membership=self.options.membership,
            objectives=objectives,
            members=candidates.members,
            decoys=candidates.decoys,
            decoy_clients=candidates.decoy_clients,
        )

    def _cases(
        self, seen: Seen, model: nn.Module, clients: Sequence[str], prior: NDArray[np.float64] | None
    ) -> list["_NamedVictim"]:
        """Read the updates of all clients that can be attacked."""
        record, knowledge, notes, partial = seen.record, seen.knowledge, seen.notes, seen.partial
        codes = attribute_codes(partial)
        cases: list[_NamedVictim] = []
        for client in clients:
            rows = np.flatnonzero(partial.clients == client)
            if len(rows) > _MOST_RECORDS:
                notes.append(
                    f"client {client}: {len(rows):,} of its examples are known, and at most {_MOST_RECORDS:,} are "
                    "matched with an update; not attacked: ask about fewer"
                )
                continue
            updates = read_updates(record, knowledge, model, client, self.options.updates, len(rows), notes)
            if updates is not None:
                y = partial.y[rows] if self.options.label == "known" else None
                victim = Victim(partial.x[rows], y, codes, updates.received, updates.gradients, prior)
                cases.append(_NamedVictim(client, rows, victim, updates))
        if not cases:
            raise NeedsError(
                f"attack {self.name} needs the updates of a client whose examples are known, and {record.path} holds "
                f"none for updates={self.options.updates}; check knowledge/nodes, or take other rounds"
            )
        return cases

    def _matches(
        self,
        cases: Sequence["_NamedVictim"],
        model: ModelKnowledge,
        seed: int,
        device: torch.device,
        progress: Progress,
    ) -> Iterator[tuple[int, "_NamedVictim", Match]]:
        """Match all cases by every method; yields the method's index, the case and its match."""
        # Victims that are matched together have variables of one form.
        by_kind: dict[Weights, list[_NamedVictim]] = defaultdict(list)
        for case in cases:
            by_kind[self._weights(case.updates.steps)].append(case)
        options = self.options
        pieces: list[_AnswerPiece] = []
        # Kinds in an order that no dict decides: victims draw by their index within a kind.
        for row, method in enumerate(METHODS):
            restarts = options.restarts or _RESTARTS[method]
            for kind, chosen in sorted(by_kind.items()):
                how = Matching(method, options.steps, restarts, options.temperature, options.relaxation, kind)
                victims = [case.victim for case in chosen]
                for group in groups_of(victims, how, options.memory, device):
                    pieces.append(_AnswerPiece(row, how, group))
        total, done = len(METHODS) * len(cases), 0
        matches_of_pieces = fan_out(
            functools.partial(_match, model, seed, device),
            pieces,
            workers=options.workers,
            memory=options.memory,
            device=device,
        )
        for piece, matches in zip(pieces, matches_of_pieces, strict=True):
            done += len(matches)
            progress(done, total)
            for index, match in matches.items():
                yield piece.row, by_kind[piece.how.weights][index], match

    def _weights(self, steps: int) -> Weights:
        options = self.options
        if options.weights == "uniform" or (options.weights is None and steps == 1 and options.membership == "known"):
            return "uniform"
        return "shared" if steps == 1 else "round"


@dataclass(frozen=True)
class _AnswerPiece:
    """Some victims that are matched together: by which method, how, and the victims by index."""

    row: int
    how: Matching
    victims: Mapping[int, Victim]


def _match(model: ModelKnowledge, seed: int, device: torch.device, piece: _AnswerPiece) -> dict[int, Match]:
    """Match a piece's victims, in whatever process."""
    return match_group(model.build(), trust_given(model.loss), piece.victims, piece.how, seed=seed, device=device)


# L-BFGS stops for good where a unit of a ReLU switches and the gradient with it jumps; Adam goes on.
_RESTARTS: Mapping[Method, int] = {"cos": 1, "l2": 4}


# An update tells little of each of so many examples, and knowledge can hold any number of equal ones.
_MOST_RECORDS = 20_000


def attribute_codes(partial: PartialRecords) -> NDArray[np.float32]:
    """Return what each value of the attribute adds to a model's input (v, d)."""
    codes = np.zeros((len(partial.domain), partial.x.shape[1]), dtype=np.float32)
    codes[:, list(partial.columns)] = partial.domain
    return codes


@dataclass(frozen=True)
class ClientUpdates:
    """What the record gives of one client."""

    rounds: list[int]  # The rounds used.
    # In each of them the model that the client received, and the gradient that its update amounts to.
    received: list[dict[str, NDArray[Any]]]
    gradients: list[dict[str, NDArray[np.float32]]]
    # The model that the client sent in the last round of the record in which it replied.
    last_sent: dict[str, NDArray[Any]]
    steps: int  # How many local steps it makes in a round.


def read_updates(
    record: Record,
    knowledge: Knowledge,
    model: nn.Module,
    client: str,
    updates: str,
    records: int,
    notes: list[str],
) -> ClientUpdates | None:
    """Read the updates of one client; what cannot be used goes into ``notes``.

    ``updates`` is as for :func:`choose_rounds`; ``records`` is how many of the client's examples are known, for replies
    that do not say how many it has. ``None`` if no update can be used.
    """
    training = knowledge.training
    if training is None:
        raise NeedsError("reading gradients from updates needs knowledge of training")
    replies = dict(replies_of(record, knowledge, client))
    usable, steps = ClientUpdates([], [], [], {}, 0), 0
    for number in choose_rounds(updates, sorted(replies)):
        reply = replies[number]
        # It decides how many steps the client made, by which the update is divided.
        examples = max(int(reply.count or records), 1)
        where = f"round {number}, client {client} left out"
        if examples > MOST_EXAMPLES:
            notes.append(f"{where}: it says that it has {examples:,} examples, more than {MOST_EXAMPLES:,}")
            continue
        gradient = _gradient_of(reply, model, training, examples, where, notes)
        if gradient is None:
            continue
        usable.rounds.append(number)
        usable.received.append(dict(reply.received or {}))
        usable.gradients.append(gradient)
        steps = max(steps, training.steps(examples))
        if examples != records and f"client {client} says" not in " ".join(notes):
            notes.append(f"client {client} says that it has {examples} examples, and {records} are known")
    if not usable.rounds:
        notes.append(f"client {client}: no update that updates={updates} asks for can be used; not attacked")
        return None
    return replace(usable, last_sent=dict(replies[max(replies)].arrays or {}), steps=steps)


def _gradient_of(
    reply: Observation, model: nn.Module, training: LocalSGD, examples: int, where: str, notes: list[str]
) -> dict[str, NDArray[np.float32]] | None:
    """Return the gradient that a reply's update amounts to; ``None``, with a note, if it cannot be used."""
    if reply.received is None:
        notes.append(f"{where}: the model that it received is not in the record")
        return None
    received, sent = dict(reply.received), dict(reply.arrays or {})
    if not (fits_model(model, received, where, notes) and fits_model(model, sent, where, notes)):
        return None
    names = dict(model.named_parameters())
    update = {name: delta for name, delta in reply.update().items() if name in names}
    gradient = averaged_gradient(update, received, training, examples)
    if not is_finite([*gradient.values(), *received.values()]):
        notes.append(f"{where}: its update is not finite")
        return None
    if is_zero(gradient.values()):
        notes.append(f"{where}: its update is zero")
        return None
    return gradient


@dataclass(frozen=True)
class _NamedVictim:
    """A client under attack; ``rows`` says which of the known examples each of the victim's is, −1 for a decoy."""

    client: str
    rows: NDArray[np.int64]
    victim: Victim
    updates: ClientUpdates

    def only(self, chosen: NDArray[np.bool_]) -> "_NamedVictim":
        """Return the case with some of its examples."""
        y = None if self.victim.y is None else self.victim.y[chosen]
        return replace(self, rows=self.rows[chosen], victim=replace(self.victim, x=self.victim.x[chosen], y=y))


@dataclass(frozen=True)
class _Candidates:
    """How likely candidates are members, as in :class:`FilledInByMatching`; nothing where membership was known."""

    members: NDArray[np.float64] | None = None
    decoys: NDArray[np.float64] | None = None
    decoy_clients: NDArray[np.str_] | None = None


def _members_first(
    cases: Sequence[_NamedVictim], seen: Seen, model: nn.Module
) -> tuple[list[_NamedVictim], _Candidates]:
    """Hide each client's examples among auxiliary ones, judge which are members, and keep those."""
    partial, public, seed = seen.partial, seen.knowledge.auxiliary, seen.seed
    if public is None:
        raise NeedsError("option membership=unknown needs knowledge of auxiliary, the examples that no client holds")
    members = np.full(len(partial.y), np.nan)
    decoys, decoy_clients = [], []
    kept: list[_NamedVictim] = []
    for number, case in enumerate(cases):
        mixed = _among_decoys(case, partial, public, np.random.default_rng((seed, 1, number)))
        # Each example with each value (v, n, d): its own is not known yet.
        candidates = mixed.victim.x + mixed.victim.codes[:, None]
        labels = np.asarray(mixed.victim.y)
        variances = gradient_variances(model, case.updates.last_sent, candidates, labels, trust_given(seen.model.loss))
        if not np.isfinite(variances).all():
            raise DataError(f"client {case.client}: the model that it sent last gives gradients that are not finite")
        likely = infer_membership(variances, seed=seed)
        members[case.rows] = likely[: len(case.rows)]
        decoys.append(likely[len(case.rows) :])
        decoy_clients += [case.client] * len(decoys[-1])
        # Members first (Section 3.3), whose attribute is then found as if membership were known (Section 3.2).
        judged = likely > 0.5
        if judged.any():
            kept.append(mixed.only(judged))
        else:
            seen.notes.append(f"client {case.client}: no candidate was taken for a member; not attacked")
    if len(public.y) < max(len(case.rows) for case in cases):
        seen.notes.append(
            f"some clients have more examples than there are auxiliary ones to hide them among, {len(public.y)}"
        )
    return kept, _Candidates(members, np.concatenate(decoys), np.array(decoy_clients, dtype=np.str_))


def _among_decoys(
    case: _NamedVictim, partial: PartialRecords, public: Targets, draw: np.random.Generator
) -> _NamedVictim:
    """Add as many auxiliary records, without their attribute, to a client's examples."""
    if case.victim.y is None:
        raise NeedsError("option membership=unknown needs label=known: the variances are those of the labels' loss")
    chosen = draw.permutation(len(public.y))[: len(case.rows)]
    others = public.x[chosen].copy()
    # Without their attribute, as the client's own examples are.
    others[:, list(partial.columns)] = 0
    x, y = np.concatenate([case.victim.x, others]), np.concatenate([case.victim.y, public.y[chosen]])
    rows = np.concatenate([case.rows, np.full(len(chosen), -1)])
    return replace(case, rows=rows, victim=replace(case.victim, x=x, y=y))
