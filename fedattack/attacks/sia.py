"""Source inference: which client owns a record.

Hu et al. 2023, "Source inference attacks: beyond membership inference attacks in federated learning". The client whose
local model has the smallest loss on a target record is the most likely source (Theorem 2); with a prior λ the posterior
over all clients is softmax_k(−ℓ_k/γ + log λ_k).
"""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks.base import Attack, Needs, Progress, Scores
from fedattack.attacks.knowledge import Knowledge
from fedattack.errors import ModelError
from fedattack.learning import check_parameters, losses_of_models, per_record_loss, pick_device
from fedattack.record import Observation, Record, Round


# Losses below this, in nats, differ by rounding and luck; it keeps their logarithms from deciding.
_SMALLEST = 1e-6


class SourceInference(Attack):
    """The smallest loss wins, in each round and over all rounds.

    Scores hold ``losses`` (rounds, targets, clients) in float64, NaN where a client was not seen; ``combined``
    (targets, clients), higher for likelier sources, NaN for clients never seen; ``log_prior`` (clients,);
    ``decisions`` (targets,), indices into the fact ``clients``, ties broken at random. The fact ``rounds`` names the
    rounds.

    The paper decides per round and leaves open how rounds are combined. Here the exponents of Theorem 2, (other
    clients' mean loss on the record − the client's loss)/γ, are averaged over the rounds in which the client was seen:
    the likelihoods of independent rounds multiplied, with one γ for all. A client that was not sampled is "not seen",
    not "no". Losses shrink as the training goes on, so clients that were seen in different rounds are compared by the
    logarithms of their losses instead. (Measured on digits with a third of ten clients a round: 30 % of the owners
    named by logarithms, 24 % by losses, Dirichlet α = 1; with all clients in every round 30 % and 31 %.)
    """

    name: ClassVar[str] = "sia"
    title: ClassVar[str] = "Source inference"
    paper: ClassVar[str] = "Hu et al. 2023, Source inference attacks, Sections 3.2 to 3.4"
    needs: ClassVar[Needs] = Needs(views=("individual",), protocols=("fedavg",), knowledge=("model", "targets"))
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "target records with their labels, known to be somebody's training data but not whose",
    )

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        if knowledge.model is None or knowledge.targets is None:
            raise AssertionError("checked by run")
        targets = knowledge.targets
        model = knowledge.model.build()
        check_parameters(model, {parameter.name: parameter.shape for parameter in record.parameters})
        loss = per_record_loss(knowledge.model.loss)
        place = pick_device(device)
        position = {node: index for index, node in enumerate(record.nodes)}
        losses = np.full((len(record), len(targets), len(position)), np.nan)
        notes: list[str] = []
        counts = np.ones(len(position))
        for done, item in enumerate(record):
            for seen in _usable(item, model, notes):
                # One client at a time: a record of many rounds and clients is never held in memory.
                ours = losses_of_models(model, [seen.arrays or {}], targets.x, targets.y, loss, device=place)[0].numpy()
                losses[done, :, position[seen.node]] = np.where(np.isnan(ours), np.inf, ours)
                counts[position[seen.node]] = seen.num_examples or 1
                if not np.isfinite(ours).all():
                    notes.append(f"round {item.number}, client {seen.node}: its model gives losses that are not finite")
            progress(done + 1, len(record))
        combined = combine_rounds(losses)
        prior = counts / counts.sum() if knowledge.prior == "examples" else np.full(len(position), 1 / len(position))
        return Scores(
            attack=self.name,
            arrays={
                "losses": losses,
                "combined": combined,
                "log_prior": np.log(prior),
                "decisions": _decide(combined, np.random.default_rng(seed)),
            },
            facts={"clients": list(record.nodes), "rounds": [item.number for item in record], "prior": knowledge.prior},
            notes=tuple(notes),
        )


def combine_rounds(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Combine the rounds' losses into one score per target and client.

    Parameters
    ----------
    losses
        (rounds, targets, clients), NaN where a client was not seen, inf where its loss is not finite.

    Returns
    -------
    ndarray
        (targets, clients): mean over the rounds in which the client was seen of other clients' mean loss − its loss,
        in nats; of the losses' logarithms where not every client was seen in every round. NaN for clients never seen, −inf for those whose models give no finite loss.
    """
    if np.isnan(losses).any():
        losses = np.log(losses + _SMALLEST)
    total = np.zeros(losses.shape[1:])
    rounds_seen = np.zeros(losses.shape[1:])
    for single in losses:
        score = margins(single)
        seen = ~np.isnan(score)
        total[seen] += score[seen]
        rounds_seen += seen
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(rounds_seen > 0, total / rounds_seen, np.nan))


def margins(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compare each client's loss with the others' mean loss on the same record, in one round; (targets, clients)."""
    finite = np.where(np.isfinite(losses), losses, np.nan)
    others = np.sum(np.isfinite(losses), axis=1, keepdims=True) - 1
    rest = (np.nansum(finite, axis=1, keepdims=True) - finite) / np.maximum(others, 1)
    return np.asarray(np.where(np.isposinf(losses), -np.inf, np.where(others > 0, rest - finite, -finite)))


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


def _usable(item: Round, model: nn.Module, notes: list[str]) -> list[Observation]:
    usable = []
    for seen in item.observations:
        if seen.status != "ok" or seen.arrays is None:
            continue
        try:
            check_parameters(model, {name: array.shape for name, array in seen.arrays.items()})
        except ModelError as cause:
            notes.append(f"round {item.number}, client {seen.node} left out: {cause}")
            continue
        usable.append(seen)
    return usable


def _decide(scores: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
    best = scores == np.fmax.reduce(scores, axis=1, keepdims=True)
    lottery = np.where(best, generator.random(scores.shape), -1.0)
    return np.asarray(lottery.argmax(axis=1))
