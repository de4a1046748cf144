"""Membership inference behind secure aggregation: whether any client trained on an example.

The server sees the common model of each round, and nothing of single clients. It trains reference federations on
auxiliary examples, in which nobody holds a target, and asks how much better the real models know it than these do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.local_models import readable
from fedattack.attacks.matching import check_model, fits_model
from fedattack.attacks.replies import check_steps, why_left_out
from fedattack.base.errors import NeedsError
from fedattack.learning import LocalSGD, per_record_loss, pick_device
from fedattack.learning.importing import trust_given
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.membership.fedmia import FEWEST_OTHERS, below_others, logits_of, mean_where_seen
from fedattack.threats.membership.measures import losses_at
from fedattack.threats.membership.membership import LikelyMembers
from fedattack.threats.membership.options import AggregateMembershipOptions
from fedattack.threats.membership.references import State, Trainer

Floats = NDArray[np.float64]

# A reference federation has no more clients than this, however many the real one has: its model is a mean anyway.
_MOST_CLIENTS = 5

# Copies of a model that a federation holds: sums in double precision, gradients, momenta and states.
_COPIES = 12

# A thinned record has rounds that are far apart, and a reference federation plays those between them, too.
_MOST_ROUNDS = 10_000


class AggregateMembership(Attack):
    """How well the common models know an example, against models of federations without it.

    There is one column of scores, of all clients together. The methods are

    - ``fedmia``, the test of FedMIA against reference federations, where there are auxiliary examples;
    - ``loss-series`` and ``loss-threshold``, the loss of the common models and of the last one alone.
    """

    options = AggregateMembershipOptions()
    found = LikelyMembers
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "examples with their labels; it asks whether any client trained on them",
        "auxiliary examples and how clients train, for references",
    )

    def attack(self, seen: Seen) -> LikelyMembers:
        """Hold the losses of the common models against those of reference federations."""
        record, knowledge, notes = seen.record, seen.knowledge, seen.notes
        model, targets = seen.model.build(), seen.targets
        check_model(model, record)
        starts = ((round_.number, readable(round_.common)) for round_ in record)
        first, start = next(filter(itemgetter(1), starts), (0, None))
        models = _models_after(record, model, notes)
        if not models or start is None:
            raise NeedsError(
                f"attack {self.name} needs the common model after a round, and {record.path} holds none that can be "
                f"used{why_left_out(notes)}"
            )
        rounds = list(models)
        torch_device = pick_device(seen.device)
        loss = per_record_loss(trust_given(seen.model.loss))
        losses_of = partial(losses_at, model=model, examples=targets, loss=loss, device=torch_device)
        losses = np.stack(list(map(losses_of, models.values())))
        seen.progress(1, 1 + self.options.references)
        scores: dict[str, Floats] = {}
        per_round = np.full((len(rounds), len(targets), 1), np.nan)
        trained = 0
        steps = _steps(record, rounds, first)
        if self._can_train(record, knowledge, notes) and _can_play(steps, notes):
            federation = _Federation(
                model=seen.model,
                training=seen.training,
                examples=seen.auxiliary,
                clients=_clients(record, seen.auxiliary),
                seed=seen.seed,
                frozen=tuple(knowledge.frozen or ()),
            )
            played = fan_out(
                partial(_losses_of, federation, targets, start, tuple(steps), torch_device),
                range(self.options.references),
                workers=self.options.workers,
                memory=_COPIES * sum(array.nbytes for array in start.values()),
                device=torch_device,
            )
            of_references: list[Floats] = []
            for losses_at_steps in played:
                of_references.append(losses_at_steps)
                seen.progress(1 + len(of_references), 1 + self.options.references)
            trained = self.options.references * (steps[-1] + 1) * federation.clients
            others = logits_of(np.stack(of_references, axis=-1))
            for position, own in enumerate(logits_of(losses)):
                per_round[position] = below_others(own[:, None], others[position])
            scores["fedmia"] = mean_where_seen(per_round)
        scores["loss-series"] = -losses.mean(axis=0)[:, None]
        scores["loss-threshold"] = -losses[-1][:, None]
        return LikelyMembers.of(targets, scores, per_round, clients=["all"], rounds=rounds, trained=trained)

    def _can_train(self, record: Record, knowledge: Knowledge, notes: list[str]) -> bool:
        if knowledge.training is None or knowledge.auxiliary is None:
            notes.append(
                "no reference federations: the attacker has no auxiliary examples, or does not know how clients train; "
                "only the losses of the common models are used"
            )
            return False
        # Half of the examples are the clients'.
        size = -(-len(knowledge.auxiliary) // (2 * _clients(record, knowledge.auxiliary)))
        try:
            check_steps(self.name, knowledge, size)
        except NeedsError as cause:
            notes.append(f"no reference federations: {cause}")
            return False
        return self.options.references >= FEWEST_OTHERS


def _models_after(record: Record, model: nn.Module, notes: list[str]) -> dict[int, Arrays]:
    """Return the common model after each round, as far as it is known and fits."""
    models: dict[int, Arrays] = {}
    for round_ in record:
        after = round_.after
        read = readable(after)
        if after is None or read is None:
            continue
        if fits_model(model, read, f"round {round_.number} left out", notes):
            models[round_.number] = after
    return models


def _steps(record: Record, rounds: Sequence[int], first: int) -> list[int]:
    """Return after how many further rounds of a federation its model is compared with those of the record."""
    if record.keep.every == 1:
        return [*range(len(rounds))]
    return [number - first for number in rounds]


def _can_play(steps: Sequence[int], notes: list[str]) -> bool:
    if min(steps) >= 0 and max(steps) == steps[-1] < _MOST_ROUNDS:
        return True
    notes.append(f"no reference federations: the rounds of the record are too far apart, {max(steps) + 1:,} in all")
    return False


def _clients(record: Record, examples: Targets) -> int:
    """Return how many clients a reference federation has."""
    fewest = min(len(round_.participants) or len(record.nodes) or 1 for round_ in record)
    return max(1, min(_MOST_CLIENTS, fewest, len(examples) // 2))


@dataclass(frozen=True)
class _Federation:
    """Federations of so many clients that the attacker plays on its own examples; number i draws from (seed, 1, i)."""

    model: ModelKnowledge
    training: LocalSGD
    examples: Targets
    clients: int
    seed: int
    frozen: tuple[str, ...] = ()

    def run(self, number: int, start: Arrays, rounds: int, device: torch.device) -> Iterator[State]:
        """Yield the common model after each round of a federation of half of the examples."""
        rng = np.random.default_rng((self.seed, 1, number))
        trainer = Trainer(self.model, self.training, device, frozen=self.frozen)
        order = rng.permutation(len(self.examples))
        of_clients = np.array_split(order[: max(len(order) // 2, self.clients)], self.clients)
        common: State = {name: np.array(value) for name, value in start.items()}
        for _ in range(rounds):
            common = self._round(trainer, common, of_clients, rng)
            yield common

    def _round(
        self, trainer: Trainer, common: State, of_clients: Sequence[NDArray[np.int64]], rng: np.random.Generator
    ) -> State:
        total = {name: np.zeros(value.shape, dtype=np.float64) for name, value in common.items()}
        for rows in of_clients:
            state = trainer.train_reference(common, self.examples.take(rows), seed=int(rng.integers(2**31)))
            for name, value in state.items():
                total[name] += value / len(of_clients)
        return {name: value.astype(common[name].dtype) for name, value in total.items()}


def _losses_of(
    federation: _Federation,
    targets: Targets,
    start: Arrays,
    steps: tuple[int, ...],
    device: torch.device,
    number: int,
) -> Floats:
    """Return the losses (steps, targets) of a federation's models after some rounds, in whatever process."""
    model, loss = federation.model.build(), per_record_loss(trust_given(federation.model.loss))
    losses = []
    for step, played in enumerate(federation.run(number, start, steps[-1] + 1, device)):
        if step in steps:
            losses.append(losses_at(played, model, targets, loss, device))
    return np.stack(losses)
