"""Membership inference: whether a client trained on an example.

A federated server sees what no other attacker sees: updates of clients that did not train on the example. See
:mod:`fedattack.threats.membership.fedmia`, and the guide beside it for the attacks that it is compared with.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks._groups import count_groups, groups_of
from fedattack.attacks.answers import ShadowLosses
from fedattack.attacks.base import KNOWS_MODEL, Attack, Seen
from fedattack.attacks.knowledge import Knowledge, Targets
from fedattack.attacks.local_models import LocalModels, local_models, readable
from fedattack.attacks.matching import fits_model
from fedattack.attacks.replies import check_steps, why_left_out
from fedattack.attacks.threat import ADAPTIVE
from fedattack.base.errors import NeedsError
from fedattack.base.stored import Axes, Name, Number
from fedattack.learning import pick_device
from fedattack.record import Observation, Record
from fedattack.record.format import PROTOCOLS, Arrays
from fedattack.threats.membership.fedmia import FEWEST_OTHERS, against_others, below_others, logits_of, mean_where_seen
from fedattack.threats.membership.measures import rows_at_once
from fedattack.threats.membership.measuring import Meter, OfReplies, OfShadows, Played, Replies, read_answers
from fedattack.threats.membership.options import MembershipOptions
from fedattack.threats.membership.references import Shadows

Floats = NDArray[np.float64]

METHODS = {
    "fedmia": "FedMIA: loss and cosine, against the other clients",
    "fedmia-loss": "FedMIA: loss, against the other clients",
    "fedmia-cosine": "FedMIA: cosine of gradient and update, against the other clients",
    "likelihood-ratio": "likelihood ratio: loss, against shadow models of the attacker's",
    f"likelihood-ratio{ADAPTIVE}": "likelihood ratio, shadows put through the clients' defence",
    "rmia": "RMIA: loss, against shadow models and the attacker's examples",
    "average-cosine": "cosine of gradient and update, mean over rounds",
    "loss-series": "loss, mean over rounds",
    "loss-threshold": "loss of the last model",
    "gradient-norm": "norm of the gradient at the last model",
    "gradient-difference": "how much the update shrinks without the gradient",
    "canary": "gradient canary: how far the neuron moved that only this example moves",
}
"""All methods in words; the first is what the attack is about."""

ALONE = ("average-cosine", "loss-series", "loss-threshold", "gradient-norm", "gradient-difference")
"""Methods that look at the asked client alone."""

# RMIA's a: a model that did not train on an example gives p, one that did about (1 + a)p / 2 + (1 − a) / 2.
_RMIA_SLOPE = 0.3


@dataclass(frozen=True, eq=False)
class LikelyMembers:
    """How likely each client trained on each target.

    Attributes
    ----------
    clients, rounds
        Nodes of the record, or one name for all of them together, and numbers of the rounds that could be used.
    trained
        How many models the attacker trained itself.
    targets
        Fingerprint of the targets.
    methods
        The methods that could be computed, as :data:`METHODS` names them.
    scores
        (targets, clients) by method: larger for likelier members, NaN where nothing is known.
    per_round
        (rounds, targets, clients): scores of the first method in each round alone.
    labels
        (targets, …): as they were given.
    """

    clients: tuple[Name, ...]
    rounds: tuple[Number, ...]
    trained: Number
    targets: Name
    methods: tuple[Name, ...]
    scores: Annotated[Mapping[str, NDArray[np.float64]], Axes("targets", "clients", nan=True, prefix="score/")]
    per_round: Annotated[NDArray[np.floating[Any]], Axes("rounds", "targets", "clients", nan=True)]
    labels: Annotated[NDArray[Any], Axes("targets", rest=True, kinds="iuf")]

    @classmethod
    def of(
        cls,
        targets: Targets,
        scores: Mapping[str, Floats],
        per_round: NDArray[Any],
        *,
        clients: Iterable[str],
        rounds: Iterable[int],
        trained: int = 0,
    ) -> "LikelyMembers":
        """Put together what is found of targets; rounds are kept in single precision, for there may be many."""
        return cls(
            clients=tuple(clients),
            rounds=tuple(rounds),
            trained=trained,
            targets=targets.fingerprint,
            methods=tuple(scores),
            scores=scores,
            per_round=per_round.astype(np.float32, copy=False),
            labels=targets.y,
        )


class Membership(Attack):
    """FedMIA, and beside it what others do with the same record."""

    options = MembershipOptions()
    found = LikelyMembers
    knows: ClassVar[tuple[str, ...]] = (
        KNOWS_MODEL,
        "examples with their labels; it asks for each client whether it trained on them",
        "how clients train",
        "auxiliary examples, if there are any",
        "the clients' defence and its settings, but not its random draws, for adaptive methods",
    )

    def attack(self, seen: Seen) -> LikelyMembers:
        """Measure round by round, and put the rounds together by each method."""
        record, knowledge, targets = seen.record, seen.knowledge, seen.targets
        answers = knowledge.answers
        measures = self._measure(seen) if answers is None else read_answers(record, answers)
        by_app = _by_position(knowledge.shadow_losses)
        tally = _Tally()
        rounds: list[int] = []
        # Each once, and after what is noted of replies: pieces are measured in other processes.
        of_pieces: list[str] = []
        trained = 0
        for position, of_round in groupby(measures, lambda measure: measure.position):
            measured = _RoundMeasures.empty(len(targets), record.nodes)
            for measure in of_round:
                if isinstance(measure, OfReplies):
                    measured.add(measure)
                    of_pieces += measure.notes
                elif not np.isnan(measured.losses).all():
                    measured.hold_against(measure)
                    trained += self.options.shadows
            if not np.isnan(measured.losses).all():
                if position in by_app:
                    measured.hold_against(by_app[position])
                    trained += by_app[position].plain.shape[1]
                tally.add(measured)
                rounds.append(record.rounds[position].number)
            seen.progress(position + 1, len(record))
        if not rounds:
            raise NeedsError(
                f"attack {self.name} needs at least one usable reply, and {record.path} holds none"
                f"{why_left_out(seen.notes)}"
            )
        seen.progress(len(record), len(record))
        scores = tally.scores()
        seen.notes.extend(dict.fromkeys(of_pieces))
        if "fedmia" not in scores:
            seen.notes.append("no round has three clients, so none can be compared with others; FedMIA is left out")
        return LikelyMembers.of(
            targets,
            scores,
            np.stack(tally.per_round),
            clients=record.nodes,
            rounds=rounds,
            trained=trained,
        )

    def _measure(self, seen: Seen) -> Iterable[OfReplies | OfShadows]:
        """Measure the replies, and shadow models beside them, in pieces."""
        record, knowledge, notes = seen.record, seen.knowledge, seen.notes
        device = pick_device(seen.device)
        player = self._player(record, knowledge, notes)
        frozen = None
        if PROTOCOLS[record.protocol].sends_model:
            frozen = tuple(knowledge.frozen or ())
        local = local_models(record, knowledge, seed=seen.seed, device=device, notes=notes)
        meter = Meter(
            model=seen.model,
            targets=seen.targets,
            rebuild=local.rebuild,
            frozen=frozen,
            player=player,
            shadows=self.options.shadows,
            step=_step(record),
            seed=seen.seed,
            device=device,
            bound=self.options.memory // 10,
        )
        shadowed = choose_spread([round_.number for round_ in record], self.options.shadow_rounds)
        if player is not None and len(shadowed) < len(record):
            notes.append(
                f"shadow models were trained in {len(shadowed)} of {len(record)} rounds, as shadow_rounds says; the "
                "likelihood ratio and RMIA use these rounds, and FedMIA uses all"
            )
        paths: Sequence[str] = ()
        if player is None:
            shadowed = []
        elif player.defence is not None:
            paths = player.defence.paths
        pieces = _RecordPieces(record, meter, local, notes, shadowed)
        return fan_out(
            meter,
            pieces,
            count=pieces.count,
            workers=self.options.workers,
            memory=self.options.memory,
            carried=pieces.carried,
            paths=paths,
            device=device,
        )

    def _player(self, record: Record, knowledge: Knowledge, notes: list[str]) -> Knowledge | None:
        """Return what shadow models are trained with, if there are to be any."""
        # Without auxiliary examples nobody expects any.
        if self.options.shadows < FEWEST_OTHERS or knowledge.auxiliary is None or knowledge.shadow_losses is not None:
            return None
        if not Shadows.possible(knowledge):
            notes.append(
                "no shadow models: the attacker has too few auxiliary examples, or does not know how clients train; "
                "the likelihood ratio and RMIA are left out"
            )
            return None
        if not PROTOCOLS[record.protocol].sends_back:
            notes.append(f"no shadow models: the attacker has no way to train clients of {record.protocol}")
            return None
        if knowledge.defence is not None:
            # What cannot be built is refused before any work.
            knowledge.defence.build()
        return Knowledge(
            model=knowledge.model,
            auxiliary=knowledge.auxiliary,
            training=knowledge.training,
            defence=knowledge.defence,
            frozen=knowledge.frozen,
        )


@dataclass(frozen=True)
class _RoundMeasures:
    """What one round shows of each target and client, as :class:`OfReplies` has it; NaN where a client was not seen.

    ``population`` holds losses of the attacker's examples by column, ``references`` by method the scores (targets,
    clients) that need shadow models.
    """

    columns: Mapping[str, int]
    losses: Floats
    products: Floats
    norms: Floats
    lengths: Floats
    last_norms: Floats
    population: dict[int, Floats]
    references: dict[str, Floats]

    @classmethod
    def empty(cls, targets: int, nodes: Sequence[str]) -> "_RoundMeasures":
        """Return a round of which nothing is known yet."""
        columns = {node: column for column, node in enumerate(nodes)}
        losses, products, norms, last_norms = np.full((4, targets, len(nodes)), np.nan)
        return cls(columns, losses, products, norms, np.full(len(nodes), np.nan), last_norms, {}, {})

    def add(self, shown: OfReplies) -> None:
        """Add what some replies show."""
        columns = [self.columns[node] for node in shown.group.nodes]
        self.losses[:, columns] = shown.losses
        self.products[:, columns] = shown.products
        self.norms[:, columns] = shown.norms
        self.lengths[columns] = shown.lengths
        self.last_norms[:, columns] = shown.last_norms
        if shown.population is not None:
            self.population.update(zip(columns, shown.population, strict=True))

    def hold_against(self, shown: OfShadows) -> None:
        """Hold the round's losses against those of shadow models."""
        own = logits_of(self.losses)
        self.references["likelihood-ratio"] = below_others(own, logits_of(shown.plain))
        if shown.population is not None:
            self.references["rmia"] = _rmia(self.losses, shown.plain.T, self.population, shown.population)
        if shown.adaptive is not None:
            self.references[f"likelihood-ratio{ADAPTIVE}"] = below_others(own, logits_of(shown.adaptive))


class _RecordPieces:
    """The pieces of a record, round by round: its replies, and then its shadow models."""

    def __init__(
        self, record: Record, meter: Meter, local: LocalModels, notes: list[str], shadowed: Collection[int]
    ) -> None:
        self._record, self._meter, self._local, self._notes = record, meter, local, notes
        self._shadowed = frozenset(shadowed)
        self._model = meter.model.build()
        frozen = meter.frozen or ()
        size = sum(value.numel() for name, value in self._model.named_parameters() if name not in frozen)
        # What is rebuilt by training is so for a few at a time.
        most = len(record.nodes)
        if local.together > 1:
            most = local.together
        self._most = min(rows_at_once(size, meter.bound), most)
        self.carried = 4 * size * self._most
        self.count = count_groups(record, self._most) + len(self._shadowed)

    def __iter__(self) -> Iterator[Replies | Played]:
        last = _last_rounds(self._record)
        for position, round_ in enumerate(self._record):
            counts: list[float | None] = []
            shadowed = round_.number in self._shadowed
            for first, group in groups_of(position, round_, self._local, self._most):
                received = None
                if self._meter.frozen is not None:
                    received = self._find_received(first)
                is_last = tuple(last[node] == round_.number for node in group.nodes)
                yield Replies(group, received, is_last, shadowed)
                counts += group.counts
            if not counts or not shadowed:
                continue
            common = readable(round_.common)
            if common is None:
                continue
            player = self._player()
            size = self._typical(counts)
            try:
                check_steps("membership", player, min(size, len(player.auxiliary or ()) // 2))
            except NeedsError as cause:
                self._notes.append(f"round {round_.number}: no shadow models: {cause}")
                continue
            yield Played(position, round_.number, common, size)

    def _player(self) -> Knowledge:
        player = self._meter.player
        if player is None or player.auxiliary is None:
            raise AssertionError("checked by possible")
        return player

    def _find_received(self, reply: Observation) -> Arrays | None:
        received = readable(reply.received)
        where = f"what client {reply.node} was sent"
        if received is None or not fits_model(self._model, received, where, self._notes):
            return None
        return received

    def _typical(self, counts: Sequence[float | None]) -> int:
        """Return how many examples a client of the middle has; where none says it, as many as there are others."""
        half = len(self._player().auxiliary or ()) // 2
        return int(np.median([count for count in counts if count] or [half]))


class _Tally:
    """Puts rounds together, method by method."""

    def __init__(self) -> None:
        self.per_round: list[NDArray[np.float32]] = []
        self._total: dict[str, Floats] = {}
        self._seen: dict[str, NDArray[np.uint16]] = {}
        self._last: dict[str, Floats] = {}

    def add(self, measured: _RoundMeasures) -> None:
        """Add a round."""
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = measured.products / (measured.norms * measured.lengths)
        # An example whose gradient vanishes, or an update of nothing, points nowhere.
        cosines = np.where(np.isfinite(cosines), cosines, np.where(np.isnan(measured.products), np.nan, 0.0))
        by_loss = against_others(logits_of(measured.losses))
        by_cosine = against_others(cosines)
        both = mean_where_seen(np.stack([by_loss, by_cosine]))
        self.per_round.append(both.astype(np.float32))
        self._sum("fedmia", both)
        self._sum("fedmia-loss", by_loss)
        self._sum("fedmia-cosine", by_cosine)
        for method, values in measured.references.items():
            self._sum(method, values)
        self._sum("average-cosine", cosines)
        self._sum("loss-series", -measured.losses)
        self._sum("gradient-difference", 2 * measured.products - measured.norms**2)
        self._keep("loss-threshold", -measured.losses)
        self._keep("gradient-norm", -measured.last_norms)

    def scores(self) -> dict[str, Floats]:
        """Return each method's scores (targets, clients), without methods that could not be computed."""
        by_method: dict[str, Floats] = {}
        for method in METHODS:
            if method in self._total:
                with np.errstate(invalid="ignore", divide="ignore"):
                    values = np.where(self._seen[method] > 0, self._total[method] / self._seen[method], np.nan)
            elif method in self._last:
                values = self._last[method]
            else:
                continue
            if not np.isnan(values).all():
                by_method[method] = values
        return by_method

    def _sum(self, method: str, values: Floats) -> None:
        seen = ~np.isnan(values)
        self._total[method] = self._total.get(method, 0.0) + np.where(seen, values, 0.0)
        self._seen[method] = self._seen.get(method, np.uint16(0)) + seen.astype(np.uint16)

    def _keep(self, method: str, values: Floats) -> None:
        """Keep what was seen last of each client."""
        self._last[method] = np.where(np.isnan(values), self._last.get(method, np.nan), values)


def _by_position(shadows: ShadowLosses | None) -> dict[int, OfShadows]:
    """Return what shadow models show that the clients' own app trained, by the position of the round."""
    by_position: dict[int, OfShadows] = {}
    if shadows is not None:
        for position, losses in zip(shadows.seqs.tolist(), shadows.losses, strict=True):
            by_position[position] = OfShadows(position, losses.T, None, None)
    return by_position


def choose_spread(numbers: Sequence[int], count: int | None) -> list[int]:
    """Choose so many of the numbers, evenly, the last among them; all where ``count`` is ``None``.

    Examples
    --------
    >>> choose_spread([1, 2, 3, 4, 5, 6], 3)
    [2, 4, 6]
    """
    if count is None or count >= len(numbers):
        return list(numbers)
    return [numbers[(index + 1) * len(numbers) // count - 1] for index in range(count)]


def _step(record: Record) -> float:
    """Return how far an update goes for a gradient of length 1.

    In FedSGD the update is the server's step, of which the gradient is what the client sent.
    """
    lr = record.facts.get("lr")
    if isinstance(lr, int | float) and not PROTOCOLS[record.protocol].sends_back:
        return lr
    return 1.0


def _last_rounds(record: Record) -> dict[str, int]:
    """Return the last round in which each node replied."""
    last: dict[str, int] = {}
    for round_ in record:
        last.update(dict.fromkeys(round_.participants, round_.number))
    return last


def _rmia(losses: Floats, shadows: Floats, population: dict[int, Floats], shadows_on_population: Floats) -> Floats:
    """Return the share of the attacker's examples that a target beats in p(example | model) / p(example).

    Zarifzadeh et al. 2024, "Low-cost high-power membership inference attacks" (RMIA), offline, with γ = 1.

    Parameters
    ----------
    losses, shadows
        (targets, clients), (shadows, targets): losses of the targets.
    population, shadows_on_population
        By column (examples,), and (shadows, examples): losses of the attacker's examples.
    """
    scores = np.full(losses.shape, np.nan)
    of_targets = _probability(shadows)
    of_population = _probability(shadows_on_population)
    for column, own in population.items():
        ratios = np.sort(-own - np.log(of_population))
        ratio = -losses[:, column] - np.log(of_targets)
        beaten = np.searchsorted(ratios, ratio, side="right") / len(ratios)
        scores[:, column] = np.where(np.isnan(ratio) | np.isnan(ratios).any(), np.nan, beaten)
    return scores


def _probability(losses: Floats) -> Floats:
    """Return p(example): over models that trained on it and models that did not."""
    without = np.exp(-losses).mean(axis=0)
    return np.asarray(((1 + _RMIA_SLOPE) * without + (1 - _RMIA_SLOPE)) / 2)
