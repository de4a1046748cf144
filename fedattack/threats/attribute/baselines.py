"""What an attacker can say of an attribute without matching gradients: the bars that an attack must clear.

Lyu & Chen 2021, "A novel attribute reconstruction attack in federated learning", Section 4.3, has

- a random guess,
- an attack model trained on public records,
- seven heuristics on statistics of the client's models.

The majority value is another. Imputation from all public records with their labels uses no update either; the
judge of every attack on attributes makes it (:mod:`fedattack.threats.attribute.imputation`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge, PartialRecords, Targets
from fedattack.attacks.matching import check_model, fits_model, is_finite
from fedattack.attacks.replies import replies_of
from fedattack.base.stored import Name
from fedattack.learning import losses_of_models, per_record_loss
from fedattack.learning.importing import trust_given
from fedattack.learning.torch_utils import in_mode, to_tensor
from fedattack.record import Record
from fedattack.threats.attribute.ara import attribute_codes
from fedattack.threats.attribute.filled_in import FilledIn, refuse_numbers
from fedattack.threats.attribute.gradient_matching import Arrays
from fedattack.threats.attribute.gradient_membership import flatten_gradients, last_layer, last_layer_gradients
from fedattack.threats.attribute.imputation import draw_largest, impute, values_of
from fedattack.threats.attribute.options import BaselinesOptions

HEURISTICS = (
    "stats-label",
    "stats-probability",
    "stats-loss",
    "stats-final-loss",
    "stats-gradient",
    "stats-true-label-gradient",
    "stats-majority",
)
"""The paper's seven, in its order (Section 4.3)."""

PUBLIC_SIZES = (100, 1_000)
"""How many public records the paper's attack models are trained on."""

# Numbers of completed examples and of their gradients that are held at a time.
_NUMBERS = 2**22


def statistics_scores(
    model: nn.Module, states: Sequence[Arrays], candidates: NDArray[np.float32], y: NDArray[Any], loss: str
) -> dict[str, NDArray[np.float64]]:
    """Score every value by the paper's heuristics on statistics of a client's models (Section 4.3), but the majority.

    Each example is completed with every value, and the value is taken for which the client's models say

    1. most often, over the rounds, the label;
    2. the largest sum of the label's probability;
    3. the smallest sum of the loss;
    4. the smallest loss of the last model;
    5. the largest sum of the norm of the last layer's gradient, as the paper has it;
    6. the largest sum, closest to zero, of the negative gradient of the last layer's weights that lead to the label.

    ``states`` are the models that the client sent, in the order of rounds, ``candidates`` (v, n, d) the examples
    completed with each value, and ``y`` (n,) their labels. The first, second and sixth heuristic are for
    ``cross-entropy`` alone. Returns scores (n, v), larger for likelier values, by names among :data:`HEURISTICS`.
    """
    values, count = candidates.shape[:2]
    classes = loss == "cross-entropy"
    # Value by value: all examples with the first value, all with the second.
    rows = candidates.reshape(values * count, -1)
    labels = np.tile(y, values)
    scores = {name: np.zeros(values * count) for name in (_OF_CLASSES if classes else _ANY_LOSS)}
    for state in states:
        losses = losses_of_models(model, [state], rows, labels, per_record_loss(loss))[0].numpy()
        gradients = last_layer_gradients(model, state, rows, labels, loss)
        scores["stats-loss"] -= losses
        # Overwritten in each round, so that the last one stays.
        scores["stats-final-loss"] = -losses
        scores["stats-gradient"] += np.linalg.norm(flatten_gradients(gradients), axis=1)
        if classes:
            scores["stats-label"] += _predict(model, state, rows) == labels
            # exp(−cross-entropy) is the probability of the label.
            scores["stats-probability"] += np.exp(-losses)
            weight = next(iter(gradients.values()))
            # The label's row of the gradient ∂loss/∂W is (p_label − 1)·h, the only one that is negative where the
            # layer's inputs h are not.
            to_label = weight[np.arange(len(rows)), labels].reshape(len(rows), -1)
            scores["stats-true-label-gradient"] += to_label.sum(axis=1)
    return {name: score.reshape(values, count).T for name, score in scores.items()}


def statistics_decisions(
    scores: Mapping[str, NDArray[np.float64]], generator: np.random.Generator
) -> dict[str, NDArray[np.int64]]:
    """Decide by the scores (n, v) of :func:`statistics_scores`; equals are drawn.

    The last of :data:`HEURISTICS` is the majority of the others. Returns (n,) indices of values by heuristic.
    """
    decisions: dict[str, NDArray[np.int64]] = {}
    votes = np.zeros(next(iter(scores.values())).shape)
    for name, score in scores.items():
        decisions[name] = draw_largest(score, generator)
        # Each heuristic has one vote for each example.
        votes[np.arange(len(votes)), decisions[name]] += 1
    decisions[HEURISTICS[-1]] = draw_largest(votes, generator)
    return decisions


_OF_CLASSES = HEURISTICS[:-1]
_ANY_LOSS = ("stats-loss", "stats-final-loss", "stats-gradient")


@dataclass(frozen=True, eq=False)
class FilledInByGuesses(FilledIn):
    """The attribute, filled in without gradients.

    Attributes
    ----------
    classifiers
        By method that trains one the classifier that was chosen.
    """

    classifiers: Mapping[Name, Name]


class AttributeBaselines(Attack):
    """All baselines for the attribute on the same examples.

    The methods are ``random``; ``majority`` of the prior or, without one, of the public records; ``public100`` and
    ``public1000``, the best classifier on so many of these without the label, as in the paper; and the heuristics,
    which have no answer for clients that never replied. Public records are the auxiliary ones with their attribute;
    without them their methods are missing.
    """

    options = BaselinesOptions()
    found = FilledInByGuesses
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture and loss",
        "clients' examples and labels except one attribute, its possible values, and whose they are",
        "public records with the attribute, where there are any",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where the column is a number."""
        return refuse_numbers(knowledge)

    def attack(self, seen: Seen) -> FilledInByGuesses:
        """Guess by every method."""
        partial, public, seed = seen.partial, seen.knowledge.auxiliary, seen.seed
        count, values = len(partial.y), len(partial.domain)
        draw = np.random.default_rng(seed)
        decisions: dict[str, NDArray[np.int64]] = {"random": draw.integers(values, size=count)}
        beliefs: dict[str, NDArray[np.float64]] = {"random": np.full((count, values), 1 / values)}
        classifiers: dict[str, str] = {}
        prior = partial.prior
        if public is not None:
            prior = _shares_of(partial, public) if prior is None else prior
            # The smaller set is the beginning of the larger one.
            order = draw.permutation(len(public))
            for size in PUBLIC_SIZES:
                if len(order) < size:
                    seen.notes.append(f"public{size} is left out: there are {len(order)} auxiliary records")
                    continue
                sample, method = public.take(order[:size]), f"public{size}"
                # The paper's attack models do not see the label.
                beliefs[method], classifiers[method] = impute(partial, sample, labels=False, seed=seed)
        if prior is not None:
            beliefs["majority"] = np.tile(prior, (count, 1))
        for method, shares in beliefs.items():
            if method not in decisions:
                decisions[method] = draw_largest(shares, draw)
        statistics = self._statistics(seen, partial, draw)
        share = np.full(values, 1 / values) if prior is None else prior
        for method, chosen in statistics.items():
            decisions[method] = chosen
            # A heuristic gives a value and no probabilities; −1 takes the last row of the matrix, which is not looked
            # at.
            beliefs[method] = np.where((chosen >= 0)[:, None], np.eye(values)[chosen], share)
        return FilledInByGuesses(
            methods=tuple(decisions),
            values=tuple(partial.names),
            targets=partial.fingerprint,
            decisions=np.stack([*decisions.values()]),
            beliefs=np.stack([*beliefs.values()]),
            classifiers=classifiers,
        )

    def _statistics(
        self, seen: Seen, partial: PartialRecords, draw: np.random.Generator
    ) -> dict[str, NDArray[np.int64]]:
        """Decide (n,) by each heuristic."""
        record, knowledge = seen.record, seen.knowledge
        model = seen.model.build()
        check_model(model, record)
        codes, loss = attribute_codes(partial), trust_given(seen.model.loss)
        clients = list(dict.fromkeys(partial.clients.tolist()))
        decisions: dict[str, NDArray[np.int64]] = {}
        for done, client in enumerate(clients):
            rows = np.flatnonzero(partial.clients == client)
            states = _sent_states(record, knowledge, client, model, seen.notes)
            if states:
                scores = _scores_in_blocks(model, states, partial, codes, rows, loss)
                for method, chosen in statistics_decisions(scores, draw).items():
                    decisions.setdefault(method, np.full(len(partial.y), -1, dtype=np.int64))[rows] = chosen
            else:
                seen.notes.append(f"client {client}: no reply that can be used; the statistics say nothing of it")
            seen.progress(done + 1, len(clients))
        return decisions


def _scores_in_blocks(
    model: nn.Module,
    states: Sequence[Arrays],
    partial: PartialRecords,
    codes: NDArray[np.float32],
    rows: NDArray[np.int64],
    loss: str,
) -> dict[str, NDArray[np.float64]]:
    """Score a client's examples ``rows``, a few at a time, since each is completed with every value."""
    parameters = dict(model.named_parameters())
    numbers = partial.x.shape[1] + sum(parameters[name].numel() for name in last_layer(model))
    # What is held at once are the completed examples and their gradients of the last layer.
    most = max(1, _NUMBERS // (len(codes) * numbers))
    blocks: dict[str, list[NDArray[np.float64]]] = {}
    for first in range(0, len(rows), most):
        block = rows[first : first + most]
        candidates = partial.x[block] + codes[:, None]
        for name, scores in statistics_scores(model, states, candidates, partial.y[block], loss).items():
            blocks.setdefault(name, []).append(scores)
    return {name: np.concatenate(scores) for name, scores in blocks.items()}


def _sent_states(
    record: Record, knowledge: Knowledge, client: str, model: nn.Module, notes: list[str]
) -> list[dict[str, NDArray[Any]]]:
    """Read the models that a client sent, in the order of rounds, as far as they can be used."""
    states = []
    for number, reply in replies_of(record, knowledge, client):
        state = dict(reply.arrays or {})
        fits = fits_model(model, state, f"round {number}, client {client} left out", notes)
        if fits and is_finite(state.values()):
            states.append(state)
    return states


def _shares_of(partial: PartialRecords, public: Targets) -> NDArray[np.float64] | None:
    """Return the shares (v,) of the values among public records; ``None`` if no example has a value of the domain."""
    values, known = values_of(partial, public.x)
    return np.bincount(values[known], minlength=len(partial.domain)) / known.sum() if known.any() else None


def _predict(model: nn.Module, state: Arrays, rows: NDArray[np.float32]) -> NDArray[np.int64]:
    dtypes = {name: value.dtype for name, value in model.state_dict().items()}
    tensors = {name: to_tensor(array, dtype=dtypes[name]) for name, array in state.items()}
    with torch.inference_mode(), in_mode(model, training=False):
        outputs = functional_call(model, tensors, (to_tensor(rows),))
    return np.asarray(outputs.argmax(dim=1).numpy())
