"""The pieces of membership inference: some replies of a round, or the round's shadow models, in whatever process."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks._groups import Group, answered_groups
from fedattack.attacks.answers import Answers
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.local_models import Rebuilding
from fedattack.learning import per_record_loss
from fedattack.learning.importing import one_line, trust_given
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.membership.measures import ExampleGradients, difference, length_of, losses_at
from fedattack.threats.membership.references import Shadows

Floats = NDArray[np.float64]

# RMIA compares with the first of the attacker's examples; more change its answers little.
_SAMPLE = slice(500)


@dataclass(frozen=True)
class Replies:
    """Some replies of a round, the model that all of them answer if it is known, and which are their client's last.

    ``shadowed`` says whether shadow models are trained in the round.
    """

    group: Group
    received: Arrays | None
    last: tuple[bool, ...]
    shadowed: bool


@dataclass(frozen=True)
class Played:
    """A round in which the attacker plays clients of so many examples: its position, number and common model."""

    position: int
    number: int
    common: Arrays
    size: int


@dataclass(frozen=True)
class OfReplies:
    """What k replies show of n targets; NaN where it cannot be known.

    Attributes
    ----------
    group
        Whose they are; without what they held.
    losses
        (n, k): at the clients' own models.
    population
        (k, examples): losses of the attacker's examples there; ``None`` where no shadow models are trained.
    products, norms, lengths
        (n, k), (n, k), (k,): ⟨−∇ℓ, Δ⟩ and ‖∇ℓ‖ at the model that the clients were sent, and ‖Δ‖.
    last_norms
        (n, k): ‖∇ℓ‖ at a client's own model, in the last round in which it is seen.
    notes
        What a reader must know.
    """

    group: Group
    losses: Floats
    population: Floats | None
    products: Floats
    norms: Floats
    lengths: Floats
    last_norms: Floats
    notes: list[str] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Where the round is."""
        return self.group.position


@dataclass(frozen=True)
class OfShadows:
    """What s shadow models show: losses (n, s) of the targets, also through the defence; (s, examples) of others."""

    position: int
    plain: Floats
    adaptive: Floats | None
    population: Floats | None


def read_answers(record: Record, answers: Answers) -> Iterator[OfReplies]:
    """Yield what the replies of each round show by what the clients' own app says."""
    for group, rows in answered_groups(record, answers):
        products, norms = answers.products[rows].T, answers.norms[rows].T
        losses, unknown = answers.losses[rows].T, np.full(norms.shape, np.nan)
        yield OfReplies(group, losses, None, products, norms, answers.lengths[rows], unknown)


@dataclass(frozen=True)
class Meter:
    """Measures pieces.

    Attributes
    ----------
    model, targets
        The clients' model, and n targets.
    rebuild
        What makes the clients' models of what they sent.
    frozen
        Names of parameters that no client trains; ``None`` where replies show no gradients.
    player
        What the attacker knows to train shadow models with; ``None`` for none.
    shadows
        How many it trains in each round.
    step
        How far the update goes for a gradient of length 1: 1 where clients send models.
    seed, device
        What shadow models are drawn from; where to compute.
    bound
        Bytes of gradients held at a time.
    """

    model: ModelKnowledge
    targets: Targets
    rebuild: Rebuilding
    frozen: tuple[str, ...] | None
    player: Knowledge | None
    shadows: int
    step: float
    seed: int
    device: torch.device
    bound: int

    def __call__(self, piece: Replies | Played) -> OfReplies | OfShadows:
        """Measure a piece."""
        model = self.model.build()
        return self._of_replies(piece, model) if isinstance(piece, Replies) else self._of_shadows(piece, model)

    def _losses(self, states: Sequence[Arrays], model: nn.Module, examples: Targets) -> Floats:
        """Return the losses (states, examples)."""
        loss = per_record_loss(trust_given(self.model.loss))
        return np.stack([losses_at(state, model, examples, loss, self.device) for state in states])

    def _player(self) -> Shadows | None:
        if self.player is None:
            return None
        return Shadows(self.player, self.shadows, seed=self.seed, device=self.device)

    def _of_replies(self, piece: Replies, model: nn.Module) -> OfReplies:
        states = piece.group.models(self.rebuild)
        shape = (len(self.targets), len(states))
        player = self._player() if piece.shadowed else None
        shown = OfReplies(
            group=piece.group.bare(),
            losses=self._losses(states, model, self.targets).T,
            population=None if player is None else self._losses(states, model, player.population.take(_SAMPLE)),
            products=np.full(shape, np.nan),
            norms=np.full(shape, np.nan),
            lengths=np.full(len(states), np.nan),
            last_norms=np.full(shape, np.nan),
        )
        for node, losses in zip(piece.group.nodes, shown.losses.T, strict=True):
            if np.isnan(losses).any():
                shown.notes.append(
                    f"round {piece.group.number}, client {node}: its model gives losses that are not numbers; it is "
                    "not compared with others"
                )
        if self.frozen is not None:
            try:
                self._measure_gradients(piece, states, model, shown)
            except (RuntimeError, ValueError) as cause:
                # torch.func cannot differentiate every model.
                shown.notes.append(
                    f"gradients of single examples cannot be computed for this model ({one_line(cause)}); only losses "
                    "are used"
                )
        return shown

    def _measure_gradients(self, piece: Replies, states: Sequence[Arrays], model: nn.Module, shown: OfReplies) -> None:
        """Measure where updates point, and how steep the losses are at the clients' last models."""
        gradients = ExampleGradients(
            model,
            trust_given(self.model.loss),
            self.targets.x,
            self.targets.y,
            device=self.device,
            bound=self.bound,
            frozen=self.frozen or (),
        )
        for column, (state, last) in enumerate(zip(states, piece.last, strict=True)):
            if last:
                shown.last_norms[:, column] = gradients.norms(state)
        if piece.received is None:
            return
        received = piece.received
        updates = [difference(state, received, gradients.names) for state in states]
        products, norms = gradients.along(received, updates)
        shown.products[:] = products / self.step
        shown.norms[:] = norms[:, None]
        shown.lengths[:] = [length_of(update) / self.step for update in updates]

    def _of_shadows(self, piece: Played, model: nn.Module) -> OfShadows:
        player = self._player()
        if player is None:
            raise AssertionError("no shadow models were asked for")
        plain, adaptive, population = [], [], []
        # One by one: all of them may not fit into memory.
        for state, arrived in player.of_round(piece.number, piece.common, piece.size):
            plain.append(self._losses([state], model, self.targets)[0])
            population.append(self._losses([state], model, player.population.take(_SAMPLE))[0])
            if arrived is not None:
                adaptive.append(self._losses([arrived], model, self.targets)[0])
        of_defended = np.stack(adaptive, axis=1) if adaptive else None
        return OfShadows(piece.position, np.stack(plain, axis=1), of_defended, np.stack(population))
