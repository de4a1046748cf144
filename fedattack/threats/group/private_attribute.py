"""Adversaries that infer a private attribute of a client from its update: Stru-NN, Unkwn-NN, SVM and random forest.

Cui et al. 2023 (RecUP-FL), Section 5.4, after Melis et al. 2019. An adversary trains a classifier on max-pooled
updates. It computes these itself from auxiliary records, at the model of the round that it attacks. A static adversary
trains on such updates as they are, an adaptive one on updates that it has put through the clients' defence first.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import AuxiliaryAttribute, Defend, Knowledge, KnownDefence, ModelKnowledge, Targets
from fedattack.attacks.matching import check_model
from fedattack.attacks.replies import MOST_EXAMPLES, check_steps, choose_rounds, replied, why_left_out
from fedattack.attacks.threat import ADAPTIVE
from fedattack.base.errors import FedAttackError, NeedsError, RecordError, short
from fedattack.base.stored import Axes, Name, Number
from fedattack.learning import LocalSGD, pick_device
from fedattack.learning.attribute_updates import AttributeUpdates, attribute_updates
from fedattack.learning.importing import trust_given
from fedattack.learning.pooled_updates import (
    Fit,
    Pooling,
    check_labels,
    standardisation,
    train_network,
)
from fedattack.record import Observation, Record, Round
from fedattack.threats.group.options import PrivateAttributeOptions

Update = Mapping[str, NDArray[np.float32]]
Beliefs = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""Pooled updates (n, features) → probabilities of the attribute's values (n, values)."""

TREES = 120
STRUCTURE_KNOWN = (512, 512)
STRUCTURE_UNKNOWN = (1024, 1024, 512, 128)
# Largest number of an update that is pooled: no training moves so far, and sums of larger ones are not finite.
_LARGEST = 1e15

# Share of the memory for shadow clients that are trained together, and for the updates of all if they are kept.
_SHARE = 0.4


_AdversaryTrainer = Callable[[NDArray[np.float32], NDArray[np.int64], int, int, Fit], Beliefs]
"""Pooled updates, their values, how many values there are, a seed and how networks are fitted → beliefs."""


def _network(*hidden: int) -> _AdversaryTrainer:
    def train(features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit) -> Beliefs:
        return train_network(features, labels, values=values, hidden=hidden, seed=seed, fit=fit).beliefs

    return train


def _svm(features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit) -> Beliefs:
    """Train an SVM with an RBF kernel; beliefs are the softmax of its margins, which is uncalibrated."""
    from sklearn.svm import SVC

    mean, deviation = standardisation(features)
    machine = SVC(kernel="rbf", decision_function_shape="ovr").fit((features - mean) / deviation, labels)

    def beliefs(asked: NDArray[np.float32]) -> NDArray[np.float64]:
        margins = machine.decision_function((asked - mean) / deviation)
        if margins.ndim == 1:
            margins = np.stack([-margins, margins], axis=1) / 2
        shares = np.exp(margins - margins.max(axis=1, keepdims=True))
        return _spread_beliefs(shares / shares.sum(axis=1, keepdims=True), machine.classes_, values)

    return beliefs


def _forest(features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit) -> Beliefs:
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(TREES, random_state=seed).fit(features, labels)
    return lambda asked: _spread_beliefs(forest.predict_proba(asked), forest.classes_, values)


def _spread_beliefs(shares: NDArray[np.float64], classes: NDArray[np.int64], values: int) -> NDArray[np.float64]:
    """Give values that did not occur in training a probability of 0."""
    beliefs = np.zeros((len(shares), values))
    beliefs[:, classes] = shares
    return beliefs


ADVERSARIES: Mapping[str, _AdversaryTrainer] = {
    "stru-nn": _network(*STRUCTURE_KNOWN),
    "unkwn-nn": _network(*STRUCTURE_UNKNOWN),
    "svm": _svm,
    "random-forest": _forest,
}
"""The adversaries by name. Stru-NN has an architecture of the kind that the defender's zoo holds."""


@dataclass(frozen=True)
class _Made:
    """Makes updates of clients that the attacker makes up."""

    model: ModelKnowledge
    training: LocalSGD
    auxiliary: Targets
    clients: int
    device: str
    memory: int

    def updates(
        self,
        architecture: nn.Module,
        start: Mapping[str, NDArray[np.float32]],
        codes: NDArray[np.int64],
        *,
        records: int,
        seed: int,
    ) -> AttributeUpdates:
        made = attribute_updates(
            architecture,
            start,
            self.auxiliary.x,
            self.auxiliary.y,
            codes,
            self.training,
            clients=self.clients,
            records=records,
            seed=seed,
            loss=trust_given(self.model.loss),
            device=self.device,
            memory=_SHARE * self.memory,
        )
        if 4 * self.clients * sum(value.size for value in start.values()) > _SHARE * self.memory:
            return made
        return replace(made, make=partial(iter, list(made)))

    def defend_updates(
        self,
        architecture: nn.Module,
        made: AttributeUpdates,
        start: Mapping[str, NDArray[np.float32]],
        defend: Defend | None,
        rng: np.random.Generator,
    ) -> Iterator[Update]:
        """Put updates through the clients' defence, if there is one."""
        if defend is None:
            yield from made
            return
        received = copy.deepcopy(architecture)
        received.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in start.items()})
        x, y = self.auxiliary.x, self.auxiliary.y
        for update, rows in zip(made, made.rows, strict=True):
            yield defend(update, rng=rng, model=received, x=x[rows], y=y[rows])


def _replies(round_: Round) -> dict[str, Observation]:
    """Return the replies that hold a model, by node."""
    return {reply.node: reply for reply in filter(replied, round_.observations)}


def _start_of(round_: Round) -> dict[str, NDArray[Any]]:
    """Return the model that all clients of a round were sent."""
    if round_.common is None:
        raise RecordError(f"{round_.where}: the common model is not in the record; record the run again")
    return {name: np.array(array) for name, array in round_.common.items()}


def _pooling_of(architecture: nn.Module) -> Pooling:
    """Return how updates of a model are pooled."""
    return Pooling.of({name: np.zeros(value.shape, np.float32) for name, value in architecture.named_parameters()})


def _usable_replies(round_: Round, pooling: Pooling, notes: list[str]) -> dict[str, Observation]:
    """Return the replies of a round that can be pooled, by node; a note says why another one cannot."""
    usable = {}
    for node, reply in _replies(round_).items():
        where = f"round {round_.number}, client {node} left out"
        try:
            update = _read_update(reply, pooling)
            pooling.check(update)
        except FedAttackError as cause:
            notes.append(f"{where}: {short(str(cause), 200)}")
            continue
        if all(bool((np.abs(array) <= _LARGEST).all()) for array in update.values()):
            usable[node] = reply
        else:
            notes.append(f"{where}: it holds numbers that are not finite, or larger than {_LARGEST:g}")
    return usable


def _read_update(reply: Observation, pooling: Pooling) -> Update:
    """Return a reply's update, without arrays that are not pooled."""
    update = reply.update()
    return {name: update[name] for name, _ in pooling.shapes if name in update}


def _records(replies: Iterable[Observation]) -> int:
    """Return how many examples a client of the middle has, by what they plausibly say; 1 where none says it."""
    counts = [reply.count for reply in replies if reply.count and reply.count <= MOST_EXAMPLES]
    return max(int(np.median(counts or [1])), 1)


def _draw_size(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


@dataclass(frozen=True, eq=False)
class AttributeBeliefs:
    """What adversaries believe of the private attributes of clients.

    Attributes
    ----------
    adversaries
        Static ones and, where the clients' defence is known, adaptive ones.
    rounds, nodes
        Numbers of the rounds that were attacked, and whose updates there are in them.
    attributes
        By attribute the names of its values.
    clients, epochs
        How many clients the attacker made up in each round, and for how many epochs networks were fitted.
    targets
        Fingerprint of the targets that the attacker knows.
    beliefs
        (adversaries, rounds, nodes, values) by attribute: probabilities of its values, which sum to one; NaN where a
        node sent nothing that can be used.
    """

    adversaries: Annotated[tuple[Name, ...], Field(min_length=1)]
    rounds: tuple[Number, ...]
    nodes: tuple[Name, ...]
    attributes: Annotated[Mapping[Name, tuple[Name, ...]], Field(min_length=1)]
    clients: Number
    epochs: Number
    targets: Name
    beliefs: Annotated[
        Mapping[str, NDArray[np.float64]],
        Axes("adversaries", "rounds", "nodes", low=0, high=1 + 1e-6, nan=True, rest=True, prefix="beliefs-"),
    ]

    def fault(self) -> str:
        """Say where beliefs are not about the attributes' values, or nothing."""
        for name, values in self.attributes.items():
            if name not in self.beliefs:
                return f"there is no array beliefs-{short(name, 60)}"
            if self.beliefs[name].shape[3:] != (len(values),):
                return f"beliefs-{short(name, 60)}: expected {len(values)} values, got {self.beliefs[name].shape[3:]}"
        return ""


class PrivateAttribute(Attack):
    """What each client's examples have in common, from its updates, by every adversary in several rounds."""

    options = PrivateAttributeOptions()
    found = AttributeBeliefs
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "how clients train: learning rate, epochs, batch size",
        "examples of about the clients' distribution, with the private attributes of their owners",
        "the clients' defence and its settings, but not its random draws, for adaptive adversaries",
    )

    def attack(self, seen: Seen) -> AttributeBeliefs:
        """Train all adversaries at the models of the rounds, and ask them about the replies."""
        record, knowledge, options = seen.record, seen.knowledge, self.options
        model, attributes = seen.model, knowledge.attributes
        defence = knowledge.defence
        names: list[str] = list(options.adversaries)
        if defence is not None:
            # What cannot be built is refused before any work.
            defence.build()
            names += [f"{name}{ADAPTIVE}" for name in options.adversaries]
        if attributes is None:
            raise AssertionError("checked by run")
        # Those whom an inconsistent server singles out are all sent the round's own model.
        if record.server not in ("passive", "inconsistent"):
            raise NeedsError(
                f"attack {self.name} needs replies to one model, and the server of {record.path} is {record.server}; "
                "take the record of a passive or an inconsistent one"
            )
        architecture = model.build()
        check_model(architecture, record)
        device = pick_device(seen.device)
        made = _Made(model, seen.training, seen.auxiliary, options.clients, str(device), options.memory)
        chosen = self._chosen(record)
        nodes = sorted(set().union(*map(_replies, chosen.values())))
        beliefs: dict[str, NDArray[np.float64]] = {}
        for name, known in attributes.items():
            beliefs[name] = np.full((len(names), len(chosen), len(nodes), len(known.values)), np.nan)
        pieces = len(chosen) * len(attributes)
        pooling = _pooling_of(architecture)
        adversaries = _Adversaries(made, pooling, attributes, defence, options.adversaries, options.epochs, seen.seed)
        answered = fan_out(
            adversaries,
            _pieces(chosen, knowledge, attributes, pooling, seen.notes),
            count=pieces,
            workers=options.workers,
            memory=options.memory,
            carried=sum(4 * value.numel() for value in architecture.state_dict().values()),
            paths=() if defence is None else defence.paths,
            device=device,
        )
        for done, (piece, of_piece) in enumerate(answered):
            columns = list(map(nodes.index, piece.nodes))
            beliefs[piece.attribute][:, piece.index, columns] = of_piece
            seen.progress(done + 1, pieces)
        if all(np.isnan(array).all() for array in beliefs.values()):
            raise NeedsError(
                f"attack {self.name} needs updates that can be pooled, and {record.path} holds none"
                f"{why_left_out(seen.notes)}"
            )
        return AttributeBeliefs(
            adversaries=tuple(names),
            rounds=tuple(chosen),
            nodes=tuple(nodes),
            attributes={name: tuple(known.values) for name, known in attributes.items()},
            clients=options.clients,
            epochs=options.epochs,
            targets=knowledge.asked(),
            beliefs=beliefs,
        )

    def _chosen(self, record: Record) -> dict[int, Round]:
        rounds = {round_.number: round_ for round_ in record if _replies(round_)}
        updates = self.options.updates
        chosen = choose_rounds(updates, sorted(rounds))
        if not chosen:
            raise NeedsError(
                f"attack {self.name} needs a client's reply, and {record.path} holds none in updates={updates}; "
                "take other rounds"
            )
        return {number: rounds[number] for number in chosen}


@dataclass(frozen=True)
class _RoundPiece:
    """A round and an attribute: which of the attribute's draws, the model that clients were sent, pooled replies."""

    index: int
    number: int
    stream: int
    attribute: str
    nodes: tuple[str, ...]
    records: int
    start: Mapping[str, NDArray[Any]]
    pooled: NDArray[np.float32]


def _pieces(
    chosen: Mapping[int, Round],
    knowledge: Knowledge,
    attributes: Mapping[str, AuxiliaryAttribute],
    pooling: Pooling,
    notes: list[str],
) -> Iterator[_RoundPiece]:
    """Yield the pieces of all rounds; of a round's replies one by one is read, and pooled at once."""
    for index, (number, round_) in enumerate(chosen.items()):
        replies, start = _usable_replies(round_, pooling, notes), _start_of(round_)
        if not replies:
            continue
        records = _records(replies.values())
        check_steps("private-attribute", knowledge, records)
        pooled = pooling.pool(_read_update(reply, pooling) for reply in replies.values())
        for stream, name in enumerate(attributes):
            yield _RoundPiece(index, number, stream, name, tuple(replies), records, start, pooled)


@dataclass(frozen=True)
class _Adversaries:
    """Trains all adversaries of one attribute at the model of one round, in whatever process."""

    made: _Made
    pooling: Pooling
    attributes: Mapping[str, AuxiliaryAttribute]
    defence: KnownDefence | None
    names: tuple[str, ...]
    epochs: int
    seed: int

    def __call__(self, piece: _RoundPiece) -> tuple[_RoundPiece, NDArray[np.float64]]:
        """Return the piece without arrays, and beliefs (adversaries, replies, values): static ones, then adaptive."""
        rng = np.random.default_rng((self.seed, piece.number, piece.stream))
        known = self.attributes[piece.attribute]
        architecture = self.made.model.build()
        clean = self.made.updates(architecture, piece.start, known.codes, records=piece.records, seed=_draw_size(rng))
        changes: list[Defend | None] = [None]
        if self.defence is not None:
            changes.append(self.defence.build())
        beliefs = []
        for change in changes:
            made = self.made.defend_updates(architecture, clean, piece.start, change, rng)
            pooled = self.pooling.pool(made)
            check_labels(pooled, clean.values, len(known.values))
            for name in self.names:
                train, fit = ADVERSARIES[name], Fit(epochs=self.epochs)
                classifier = train(pooled, clean.values, len(known.values), _draw_size(rng), fit)
                beliefs.append(classifier(piece.pooled))
        return replace(piece, start={}, pooled=piece.pooled[:0]), np.stack(beliefs)
