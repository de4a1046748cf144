"""Source inference: which client owns an example.

Hu et al. 2023, "Source inference attacks: beyond membership inference attacks in federated learning". The client whose
local model has the smallest loss on a target record is the most likely source (Theorem 2); with a prior λ the posterior
over all clients is softmax_k(−ℓ_k/γ + log λ_k).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedattack.attacks._fan_out import fan_out
from fedattack.attacks._groups import Group, answered_groups, count_groups, groups_of
from fedattack.attacks.base import KNOWS_MODEL, Attack, Seen
from fedattack.attacks.knowledge import ModelKnowledge, Targets
from fedattack.attacks.local_models import Rebuilding, local_models
from fedattack.attacks.replies import why_left_out
from fedattack.base.errors import NeedsError
from fedattack.base.machine import MEMORY
from fedattack.base.stored import AsJson, Axes, Name, Number
from fedattack.learning import losses_of_models, per_record_loss, pick_device
from fedattack.learning.importing import trust_given
from fedattack.threats.source.options import SourceOptions

# Replies that are evaluated in one piece, bytes of their models, and of all that the piece takes.
_MOST, _BOUND, _MEMORY = 16, MEMORY // 64, MEMORY // 4


@dataclass(frozen=True, eq=False)
class LikelySources:
    """How likely each client is the source of each target.

    Attributes
    ----------
    clients, rounds
        Nodes of the record, and numbers of the rounds that had a usable reply.
    prior
        What is assumed of clients before any loss is seen.
    targets
        Fingerprint of the targets.
    losses
        (rounds, targets, clients): NaN where a client was not seen.
    combined
        (targets, clients): higher for likelier sources, NaN for clients never seen.
    log_prior
        (clients,): logarithm of the probability that a client is the source of whatever target.
    decisions
        (targets,): indices into the clients, ties broken at random.
    labels
        (targets, …): as they were given.
    """

    clients: tuple[Name, ...]
    rounds: tuple[Number, ...]
    prior: Annotated[str, AsJson(Literal["uniform", "examples"])]
    targets: Name
    losses: Annotated[NDArray[np.float64], Axes("rounds", "targets", "clients", nan=True)]
    combined: Annotated[NDArray[np.float64], Axes("targets", "clients", nan=True)]
    log_prior: Annotated[NDArray[np.float64], Axes("clients", high=1e-9)]
    decisions: Annotated[NDArray[np.int64], Axes("targets", low=0, into="clients")]
    labels: Annotated[NDArray[Any], Axes("targets", rest=True, kinds="iuf")]


class SourceInference(Attack):
    """The smallest loss wins, in each round and over all rounds.

    The paper decides per round and leaves open how rounds are combined; see :func:`combine_rounds`.
    """

    options = SourceOptions()
    found = LikelySources
    knows: ClassVar[tuple[str, ...]] = (
        KNOWS_MODEL,
        "target records with their labels, known to be somebody's training data but not whose",
    )

    def attack(self, seen: Seen) -> LikelySources:
        """Compute the losses of all targets by all models, and combine the rounds."""
        record, knowledge, targets = seen.record, seen.knowledge, seen.targets
        strange: list[str] = []
        counts = np.ones(len(record.nodes))
        by_round = self._collect_losses(seen, counts, strange)
        rounds, losses = [], []
        for position, of_round in by_round.items():
            if not np.isnan(of_round).all():
                rounds.append(record.rounds[position].number)
                losses.append(of_round)
        if not losses:
            raise NeedsError(
                f"attack {self.name} needs at least one usable reply, and {record.path} holds none"
                f"{why_left_out(seen.notes)}"
            )
        seen.notes.extend(strange)
        stacked = np.stack(losses)
        # The score takes exp(−loss), a probability where labels are classes: other losses have any scale.
        scale = 1.0 if knowledge.answers is None else max(1.0, float(np.nanmedian(stacked)))
        combined = combine_rounds(stacked / scale)
        prior = np.full(len(counts), 1 / len(counts))
        if knowledge.prior == "examples":
            prior = counts / counts.sum()
        return LikelySources(
            clients=tuple(record.nodes),
            rounds=tuple(rounds),
            prior=knowledge.prior,
            targets=targets.fingerprint,
            losses=stacked,
            combined=combined,
            log_prior=np.log(prior),
            decisions=_decide(combined, np.random.default_rng(seen.seed)),
            labels=targets.y,
        )

    def _collect_losses(
        self, seen: Seen, counts: NDArray[np.float64], strange: list[str]
    ) -> dict[int, NDArray[np.float64]]:
        """Return the losses (targets, clients) by the index of a round; ``counts`` is filled with clients' examples."""
        record = seen.record
        columns = {node: column for column, node in enumerate(record.nodes)}
        by_round: dict[int, NDArray[np.float64]] = {}
        for group, values in self._losses_of_groups(seen):
            of_round = by_round.setdefault(group.position, np.full((values.shape[1], len(columns)), np.nan))
            for node, count, of_client in zip(group.nodes, group.counts, values, strict=True):
                of_round[:, columns[node]] = of_client
                counts[columns[node]] = count or 1
                if not np.isfinite(of_client).all():
                    strange.append(f"round {group.number}, client {node}: its model gives losses that are not finite")
            seen.progress(group.position, len(record))
        seen.progress(len(record), len(record))
        return by_round

    def _losses_of_groups(self, seen: Seen) -> Iterable[tuple[Group, NDArray[np.float64]]]:
        """Return the losses (clients, targets) of groups of replies: answered by the app, or computed."""
        answers = seen.knowledge.answers
        if answers is None:
            return self._compute_losses(seen)
        return ((group, answers.losses[rows]) for group, rows in answered_groups(seen.record, answers))

    def _compute_losses(self, seen: Seen) -> Iterable[tuple[Group, NDArray[np.float64]]]:
        """Compute the losses (clients, targets) of the usable replies, in pieces."""
        record, device = seen.record, pick_device(seen.device)
        local = local_models(record, seen.knowledge, seed=seen.seed, device=device, notes=seen.notes)
        size = sum(parameter.numel() for parameter in seen.model.build().parameters())
        most = min(_MOST, max(1, _BOUND // (4 * size)))
        return fan_out(
            partial(_losses, seen.model, seen.targets, local.rebuild, device),
            (group for at, round_ in enumerate(record) for _, group in groups_of(at, round_, local, most)),
            count=count_groups(record, most),
            workers=self.options.workers,
            memory=_MEMORY,
            carried=4 * size * most,
            device=device,
        )


def _losses(
    known: ModelKnowledge, targets: Targets, rebuild: Rebuilding, device: torch.device, group: Group
) -> tuple[Group, NDArray[np.float64]]:
    """Return a group without what it carried, and the losses (clients, targets) of its models."""
    model, loss = known.build(), per_record_loss(trust_given(known.loss))
    losses = []
    for state in group.models(rebuild):
        losses.append(losses_of_models(model, [state], targets.x, targets.y, loss, device=device)[0].numpy())
    return group.bare(), np.stack(losses)


class Losses(Protocol):
    """Losses (rounds, targets, clients), which are gone through round by round: an array is such."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rounds, targets, clients)."""

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        """Yield each round's, (targets, clients)."""


def combine_rounds(losses: Losses) -> NDArray[np.float64]:
    """Combine the rounds' losses into one score per target and client.

    The score is the mean of exp(−loss) − 1 over the rounds in which the client was seen. This is the probability that
    the client's model gives to the right label, less one, which keeps the digits of tiny losses. A client that was not
    sampled is "not seen", not "no". The score is bounded, so that neither a round with large losses nor a client whose
    model is overconfident decides alone.

    This was measured on MNIST, Synthetic and digits with all clients in every round. The score names up to half a point
    more owners than the mean loss, which is Theorem 2's exponents summed over rounds. It names up to three points more
    than the mean of log losses.

    Parameters
    ----------
    losses
        (rounds, targets, clients), NaN where a client was not seen.

    Returns
    -------
    ndarray
        (targets, clients), in [−1, 0] for losses that are not negative; NaN for clients never seen.
    """
    total = np.zeros(losses.shape[1:])
    rounds_seen = np.zeros(losses.shape[1:])
    for of_round in losses:
        observed = ~np.isnan(of_round)
        total[observed] += np.expm1(-of_round[observed])
        rounds_seen += observed
    return _mean(total, rounds_seen)


def combine_likelihoods(losses: Losses) -> NDArray[np.float64]:
    """Combine the rounds' losses into one log likelihood per target and client: Theorem 2's exponents over rounds.

    In the theorem a client's loss counts against that of models which have not learned the target: ℓ_pτ − ℓ_k. For
    these the paper takes the other clients of the round. The score is the mean over the rounds in which the client was
    seen. Where all clients are seen in all rounds, ℓ_pτ is the same for all of them. It is then left out, which keeps
    the digits of tiny losses. Otherwise ℓ_pτ makes an early round, when nobody has learned much, comparable with a late
    one. It is the median over the round's clients and not their mean, which one diverging model would decide.

    Parameters
    ----------
    losses
        (rounds, targets, clients), NaN where a client was not seen.

    Returns
    -------
    ndarray
        (targets, clients); −∞ where a loss was infinite, NaN for clients never seen.
    """
    total = np.zeros(losses.shape[1:])
    typical = np.zeros(losses.shape[1:])
    rounds_seen = np.zeros(losses.shape[1:])
    for of_round in losses:
        observed = ~np.isnan(of_round)
        present = observed.any(axis=0)
        total[observed] -= of_round[observed]
        typical += np.where(observed, _median(of_round[:, present])[:, None], 0.0)
        rounds_seen += observed
    others = _mean(typical, rounds_seen)
    # Against the largest rather than against zero: where all clients have the same rounds, nothing is added.
    return _mean(total, rounds_seen) + (others - np.fmax.reduce(others, axis=1, keepdims=True))


def _mean(total: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, total / count, np.nan))


def _median(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the median of each row's finite losses; zero where there is none."""
    ordered = np.sort(np.where(np.isfinite(losses), losses, np.nan), axis=1)
    if not ordered.shape[1]:
        return np.zeros(len(losses))
    count = np.isfinite(ordered).sum(axis=1)
    middle = np.stack([(count - 1) // 2, count // 2], axis=1).clip(0)
    picked = np.take_along_axis(ordered, middle, axis=1)
    return np.where(count > 0, (picked / 2).sum(axis=1), 0.0)


def posterior(combined: NDArray[np.float64], log_prior: NDArray[np.float64], gamma: float = 1.0) -> NDArray[np.float64]:
    """Compute softmax_k(score/γ + log λ_k), rows summing to one; Theorem 2 over all clients at once.

    A target for which no client could be scored gets the prior.
    """
    logits = np.where(np.isnan(combined), -np.inf, combined) / gamma + log_prior
    hopeless = ~np.isfinite(logits).any(axis=1)
    logits[hopeless] = log_prior
    logits = logits - logits.max(axis=1, keepdims=True)
    weights = np.exp(logits)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _decide(scores: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
    best = scores == np.fmax.reduce(scores, axis=1, keepdims=True)
    lottery = np.where(best, generator.random(scores.shape), -1.0)
    return np.asarray(lottery.argmax(axis=1))
