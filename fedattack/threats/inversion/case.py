"""One seed's reconstructed examples beside those that clients trained on, and beside guesses without any gradient.

Inputs are scaled to 0 … 1 by the data's range, per channel of images and per column of tables, and reconstructions are
clipped to it. Reconstructions of several examples come in no order: they are paired with the true ones so that the mean
squared error is least. That pairing flatters every guess alike, so that all that they are held against is paired, too.

An example may have been attacked in several rounds. It counts once, with the median of its rounds.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedattack.audit.judge import Case
from fedattack.audit.truth import HeldRecords
from fedattack.base.errors import DataError
from fedattack.base.structured import searchable
from fedattack.learning.importing import trust_given
from fedattack.record import Observation
from fedattack.threats.inversion.exchange import AttackedClient, Exchanged, exchange
from fedattack.threats.inversion.images import Images, pair_images, peak_ratio, squared_error, structural_similarity
from fedattack.threats.inversion.inversion import (
    InvertedReply,
    ReconstructedExamples,
    client_training,
    movement_of,
    take_middle,
    take_one_gradient,
)
from fedattack.threats.inversion.preflight import Preflight, preflight, preflight_middle

RECOGNISED = 20.0
"""Peak signal-to-noise ratio in dB from which an image counts as recognised."""

RANDOM, MEAN = "a random image of the data", "the mean image of the label"

# Streams of a seed's random numbers, apart from each other.
_DRAWING, _EXCHANGING = 1, 2

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """Reconstructions (n, …) that stand for true examples, and measures (n,) in the order of the true ones."""

    images: Images
    error: Floats
    ratio: Floats
    similarity: Floats | None


def compare(reconstructed: Images, truth: Images) -> Compared:
    """Measure reconstructions; where there are fewer than examples, grey stands in."""
    positions = pair_images(reconstructed, truth)
    images = reconstructed[positions]
    images[positions < 0] = 0.5
    error = squared_error(images, truth)
    similarity = structural_similarity(images, truth) if truth.ndim == 4 else None
    return Compared(images, error, peak_ratio(error), similarity)


@dataclass(frozen=True, eq=False)
class InversionCase(Case[ReconstructedExamples]):
    """One seed's reconstructed examples beside those that clients trained on, which the truth must hold."""

    def __post_init__(self) -> None:
        held, images = self.held, self.found.images
        if images.shape[1:] != held.x.shape[1:]:
            raise DataError(
                f"seed {self.seed}: reconstructed examples have shape {images.shape[1:]} and those of the truth "
                f"{held.x.shape[1:]}; attack again"
            )
        rebuilt = {*self.found.of_batch.tolist()}
        for number, _, _ in self.batches:
            if number not in rebuilt:
                raise DataError(
                    f"seed {self.seed}: the scores speak of reply {number} and hold no example of it; attack again"
                )
        if not self.batches:
            raise DataError(
                f"seed {self.seed}: truth/records.npz has the examples of none of the attacked clients; expected those "
                "of the clients that truth/nodes names; attack clients of few examples"
            )
        if not len(self.others[1]):
            raise DataError(
                f"seed {self.seed}: the truth has no example that none of the attacked clients holds, so there is "
                "nothing to compare with; attack one client alone, by --option clients=NAME"
            )

    @property
    def held(self) -> HeldRecords:
        """The truth."""
        if self.truth.records is None:
            raise DataError(
                f"seed {self.seed}: truth/records.npz is missing, so there is nothing to compare reconstructed "
                "examples with; a run's preparation writes it for clients of few examples (--set records=1)"
            )
        return self.truth.records

    @cached_property
    def others(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Examples that no attacked client holds, and labels: nobody's, or where there are none, other clients'."""
        if self.has_nobodys:
            return self.truth.evaluation
        attacked = [client for _, client, _ in self.batches]
        rest = ~np.isin(self.held.owners, attacked)
        return self.held.x[rest], self.held.y[rest]

    @property
    def has_nobodys(self) -> bool:
        """Whether there are examples that nobody trained on."""
        return len(self.truth.evaluation[1]) > 0

    @cached_property
    def limits(self) -> tuple[Images, Images]:
        """Least and largest inputs of the data, per channel or column, in a shape that broadcasts with examples."""
        x = np.concatenate([searchable(self.others[0]), self.held.x])
        axes = (0, *range(2, x.ndim))
        return x.min(axis=axes, keepdims=True), x.max(axis=axes, keepdims=True)

    def scale(self, x: NDArray[np.float32]) -> Images:
        """Scale inputs to 0 … 1."""
        low, high = self.limits
        span = np.where(high > low, high - low, 1)
        return np.asarray(np.clip((np.nan_to_num(x) - low) / span, 0, 1), dtype=np.float32)

    @cached_property
    def batches(self) -> list[tuple[int, str, NDArray[np.int64]]]:
        """Which of the scores' batches can be judged: number, client, and the indices of its examples."""
        owners, batches = np.array(self.held.owners), []
        for number, batch in enumerate(self.found.batches):
            client = self.truth.nodes.get(batch.node, batch.node)
            rows = np.flatnonzero(owners == client)
            if len(rows):
                batches.append((number, client, rows))
        return batches

    @cached_property
    def clients_replies(self) -> dict[str, list[int]]:
        """By client the indices of its batches among :attr:`batches`; all of them are about the same examples."""
        replies: dict[str, list[int]] = defaultdict(list)
        for index, (_, client, _) in enumerate(self.batches):
            replies[client].append(index)
        return dict(replies)

    @cached_property
    def clients_rows(self) -> list[NDArray[np.int64]]:
        """For each client the indices of its examples."""
        return [self.batches[indices[0]][2] for indices in self.clients_replies.values()]

    def by_example(self, batches: Sequence[Compared], measure: str) -> Floats:
        """Return a measure of each example (examples,), client by client: the median over its rounds."""
        values = []
        for indices in self.clients_replies.values():
            values.append(np.median([getattr(batches[index], measure) for index in indices], axis=0))
        return np.concatenate(values)

    def share_recognised(self, batches: Sequence[Compared]) -> Floats:
        """Return in which share of its rounds each example is recognised, (examples,)."""
        shares = []
        for indices in self.clients_replies.values():
            shares.append(np.mean([batches[index].ratio >= RECOGNISED for index in indices], axis=0))
        return np.concatenate(shares)

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes."""
        return np.issubdtype(self.held.y.dtype, np.integer)

    def exchange(self, draws: int) -> Exchanged:
        """Measure the reconstructions beside other examples than the true ones."""
        unheld, labels = self.others
        attacked = []
        for indices, rows in zip(self.clients_replies.values(), self.clients_rows, strict=True):
            replies = [self.reconstruct(self.batches[index][0]) for index in indices]
            attacked.append(AttackedClient(self.true_records(rows), self.label_cells(self.held.y[rows]), replies))
        rng = np.random.default_rng((self.seed, _EXCHANGING))
        return exchange(attacked, (self.scale(searchable(unheld)), self.label_cells(labels)), RECOGNISED, rng, draws)

    def label_cells(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Return the groups (n,) within which examples are exchanged: their classes, or one group of all."""
        return labels.astype(np.int64) if self.has_classes else np.zeros(len(labels), dtype=np.int64)

    @cached_property
    def in_common(self) -> Floats:
        """(clients, clients): labels that the first one's replies have in common with the second's true ones.

        In any order; the mean over the first one's rounds.
        """
        classes = np.unique(self.held.y)
        true = np.stack([count_labels(self.held.y[rows], classes) for rows in self.clients_rows])
        labels, of_batch = self.found.labels, self.found.of_batch
        table = []
        for indices in self.clients_replies.values():
            of_rounds = []
            for index in indices:
                restored = count_labels(labels[of_batch == self.batches[index][0]], classes)
                of_rounds.append(np.minimum(restored, true).sum(axis=1))
            table.append(np.mean(of_rounds, axis=0))
        return np.stack(table)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,): how many examples each client has."""
        return np.array([len(rows) for rows in self.clients_rows])

    @cached_property
    def label_arrangements(self) -> float:
        """Logarithm of how many exchanges of clients with as many examples differ in their labels."""
        alike: dict[tuple[int, ...], int] = defaultdict(int)
        for rows in self.clients_rows:
            alike[tuple(sorted(self.held.y[rows].tolist()))] += 1
        _, sizes = np.unique(self.sizes, return_counts=True)
        return float(gammaln(sizes + 1).sum() - gammaln(np.array([*alike.values()]) + 1).sum())

    def reconstruct(self, number: int) -> Images:
        """Return the scaled reconstructions of a batch."""
        return self.scale(self.found.images[self.found.of_batch == number])

    def true_records(self, rows: NDArray[np.int64]) -> Images:
        """Return scaled examples that clients trained on."""
        return self.scale(self.held.x[rows])

    @cached_property
    def results(self) -> list[Compared]:
        """The reconstructions of each batch."""
        return [compare(self.reconstruct(number), self.true_records(rows)) for number, _, rows in self.batches]

    @cached_property
    def guesses(self) -> dict[str, list[Compared]]:
        """What two guesses without any gradient give; the second knows the label."""
        draw = np.random.default_rng((self.seed, _DRAWING))
        unheld, labels = self.others
        candidates = self.scale(searchable(unheld))
        guesses: dict[str, list[Compared]] = {RANDOM: [], MEAN: []}
        for _, _, rows in self.batches:
            truth = self.true_records(rows)
            drawn = candidates[draw.integers(len(candidates), size=len(rows))]
            means = []
            for label in self.held.y[rows]:
                alike = candidates[labels == label]
                means.append((alike if len(alike) else candidates).mean(axis=0))
            guesses[RANDOM].append(compare(drawn, truth))
            guesses[MEAN].append(compare(np.stack(means), truth))
        return guesses

    @cached_property
    def nulls(self) -> list[Compared]:
        """What reconstructions from another client's reply give; random images where no other client was attacked."""
        nulls = []
        for index, (_, client, rows) in enumerate(self.batches):
            after = self.batches[index + 1 :] + self.batches[:index]
            others = [number for number, other, _ in after if other != client]
            if others:
                nulls.append(compare(self.reconstruct(others[0]), self.true_records(rows)))
            else:
                nulls.append(self.guesses[RANDOM][index])
        return nulls

    @cached_property
    def preflights(self) -> list[Preflight]:
        """A replay of each batch's true examples."""
        model, training = self.knowledge.model, self.knowledge.training
        if model is None or training is None:
            raise DataError(f"seed {self.seed}: knowledge/ lacks model or training, with which the attack was made")
        architecture, how = model.build(), client_training(self.record, training)
        low, high = self.limits
        preflights = []
        for number, _, rows in self.batches:
            reply = self._reply(self.found.batches[number])
            sent, received = movement_of(reply, self.record, architecture, how), dict(reply.received or {})
            x, y, loss = self.held.x[rows], self.held.y[rows], trust_given(model.loss)
            if self.found.imitate == "middle":
                middle, gradient = take_middle(received, dict(reply.arrays or {}), sent, how.reach(len(rows)))
                replay = preflight_middle(architecture, loss, take_one_gradient(how), middle, gradient, x, y)
            else:
                replay = preflight(architecture, loss, how, received, sent, x, y, low=low, high=high)
            preflights.append(replay)
        return preflights

    def _reply(self, batch: InvertedReply) -> Observation:
        for round_ in self.record:
            for observation in round_.observations:
                named = (round_.number, observation.node) == (batch.round, batch.node)
                if named and observation.arrays is not None:
                    return observation
        raise DataError(
            f"seed {self.seed}: the scores are about round {batch.round}, node {batch.node}, which has no reply in the "
            "record; attack again"
        )


def count_labels(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Count how often each class is among labels."""
    return np.asarray((labels.reshape(-1, 1) == classes).sum(axis=0))
