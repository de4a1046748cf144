"""Judge gradient inversion: how close reconstructed examples are to those that clients trained on.

Inputs are scaled to 0 … 1 by the data's range, per channel of images and per column of tables, and reconstructions are
clipped to it. Reconstructions of several examples come in no order: they are paired with the true ones so that the mean
squared error is least. That pairing flatters every guess alike, so that all that they are held against is paired, too.

An example may have been attacked in several rounds. It counts once, with the median of its rounds.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from fedattack.audit.finding import NOT_APPLICABLE, Finding
from fedattack.audit.intervals import here_of, median_interval, rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.significance import DRAWS, Significance, count_of, exchange_within, least_p, significance_of
from fedattack.audit.summaries import null_rate
from fedattack.audit.truth import HeldRecords
from fedattack.base.errors import DataError
from fedattack.learning.importing import given
from fedattack.record import Observation
from fedattack.threats.inversion.exchange import Attacked, Exchanged, arrangements_of, exchange
from fedattack.threats.inversion.images import (
    IDENTICAL,
    Images,
    paired,
    peak_ratio,
    squared_error,
    structural_similarity,
)
from fedattack.threats.inversion.inversion import client_training, movement_of
from fedattack.threats.inversion.preflight import Preflight, preflight

RECOGNISED = 20.0
"""Peak signal-to-noise ratio in dB from which an image counts as recognised."""

RANDOM, MEAN = "a random image of the data", "the mean image of the label"

_PICTURES = 20

# Streams of random numbers, apart from each other.
_DRAWING, _EXCHANGING, _TESTING = 1, 2, 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Compared:
    """Reconstructions (n, …) that stand for true examples, and measures (n,) in the order of the true ones."""

    images: Images
    error: Floats
    ratio: Floats
    similarity: Floats | None


def _compared(reconstructed: Images, truth: Images) -> _Compared:
    """Measure reconstructions; where there are fewer than examples, grey stands in."""
    positions = paired(reconstructed, truth)
    images = reconstructed[positions]
    images[positions < 0] = 0.5
    error = squared_error(images, truth)
    similarity = structural_similarity(images, truth) if truth.ndim == 4 else None
    return _Compared(images, error, peak_ratio(error), similarity)


@dataclass(frozen=True)
class InversionCase(Case):
    """One seed's reconstructed examples beside those that clients trained on, which the truth must hold."""

    def __post_init__(self) -> None:
        held, images = self.held, self.scores.arrays["images"]
        if images.shape[1:] != held.x.shape[1:]:
            raise DataError(
                f"seed {self.seed}: reconstructed examples have shape {images.shape[1:]} and those of the truth "
                f"{held.x.shape[1:]}; attack again"
            )
        rebuilt = {*self.scores.arrays["batches"].tolist()}
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

    @property
    def held(self) -> HeldRecords:
        """The truth."""
        if self.truth.records is None:
            raise DataError(
                f"seed {self.seed}: truth/records.npz is not there, so that reconstructed examples can be held against "
                "nothing; a run's preparation writes it for clients of few examples (--set records=1)"
            )
        return self.truth.records

    @cached_property
    def limits(self) -> tuple[Images, Images]:
        """Least and largest inputs of the data, per channel or column, in a shape that broadcasts with examples."""
        x = np.concatenate([self.truth.evaluation[0], self.held.x])
        axes = (0, *range(2, x.ndim))
        return x.min(axis=axes, keepdims=True), x.max(axis=axes, keepdims=True)

    def scaled(self, x: NDArray[np.float32]) -> Images:
        """Scale inputs to 0 … 1."""
        low, high = self.limits
        span = np.where(high > low, high - low, 1)
        return np.asarray(np.clip((np.nan_to_num(x) - low) / span, 0, 1), dtype=np.float32)

    @cached_property
    def batches(self) -> list[tuple[int, str, NDArray[np.int64]]]:
        """Which of the scores' batches can be judged: number, client, and the indices of its examples."""
        owners, batches = np.array(self.held.owners), []
        for number, batch in enumerate(self.scores.facts["batches"]):
            client = self.truth.nodes.get(batch["node"], batch["node"])
            rows = np.flatnonzero(owners == client)
            if len(rows):
                batches.append((number, client, rows))
        return batches

    @cached_property
    def clients_replies(self) -> dict[str, list[int]]:
        """By client the places of its batches among :attr:`batches`; all of them are about the same examples."""
        replies: dict[str, list[int]] = defaultdict(list)
        for place, (_, client, _) in enumerate(self.batches):
            replies[client].append(place)
        return dict(replies)

    @cached_property
    def clients_rows(self) -> list[NDArray[np.int64]]:
        """For each client the indices of its examples."""
        return [self.batches[places[0]][2] for places in self.clients_replies.values()]

    def by_example(self, batches: Sequence[_Compared], measure: str) -> Floats:
        """Return a measure of each example (examples,), client by client: the median over its rounds."""
        values = []
        for places in self.clients_replies.values():
            values.append(np.median([getattr(batches[place], measure) for place in places], axis=0))
        return np.concatenate(values)

    def recognised(self, batches: Sequence[_Compared]) -> Floats:
        """Return in which share of its rounds each example is recognised, (examples,)."""
        shares = []
        for places in self.clients_replies.values():
            shares.append(np.mean([batches[place].ratio >= RECOGNISED for place in places], axis=0))
        return np.concatenate(shares)

    @property
    def has_classes(self) -> bool:
        """Whether labels are classes."""
        return np.issubdtype(self.held.y.dtype, np.integer)

    def exchange(self, draws: int) -> Exchanged:
        """Measure the reconstructions beside other examples than the true ones."""
        unheld, labels = self.truth.evaluation
        attacked = []
        for places, rows in zip(self.clients_replies.values(), self.clients_rows, strict=True):
            replies = [self.reconstructed(self.batches[place][0]) for place in places]
            attacked.append(Attacked(self.true_records(rows), self._cells(self.held.y[rows]), replies))
        rng = np.random.default_rng((self.seed, _EXCHANGING))
        return exchange(attacked, (self.scaled(unheld), self._cells(labels)), RECOGNISED, rng, draws)

    def _cells(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        return labels.astype(np.int64) if self.has_classes else np.zeros(len(labels), dtype=np.int64)

    @cached_property
    def in_common(self) -> Floats:
        """(clients, clients): labels that the first one's replies have in common with the second's true ones.

        In any order; the mean over the first one's rounds.
        """
        classes = np.unique(self.held.y)
        true = np.stack([_counts(self.held.y[rows], classes) for rows in self.clients_rows])
        labels, batches = self.scores.arrays["labels"], self.scores.arrays["batches"]
        table = []
        for places in self.clients_replies.values():
            of_rounds = []
            for place in places:
                restored = _counts(labels[batches == self.batches[place][0]], classes)
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

    def reconstructed(self, number: int) -> Images:
        """Return the scaled reconstructions of a batch."""
        return self.scaled(self.scores.arrays["images"][self.scores.arrays["batches"] == number])

    def true_records(self, rows: NDArray[np.int64]) -> Images:
        """Return scaled examples that clients trained on."""
        return self.scaled(self.held.x[rows])

    @cached_property
    def results(self) -> list[_Compared]:
        """The reconstructions of each batch."""
        return [_compared(self.reconstructed(number), self.true_records(rows)) for number, _, rows in self.batches]

    @cached_property
    def guesses(self) -> dict[str, list[_Compared]]:
        """What two guesses without any gradient give; the second knows the label."""
        draw = np.random.default_rng((self.seed, _DRAWING))
        unheld, labels = self.truth.evaluation
        candidates = self.scaled(unheld)
        guesses: dict[str, list[_Compared]] = {RANDOM: [], MEAN: []}
        for _, _, rows in self.batches:
            truth = self.true_records(rows)
            drawn = candidates[draw.integers(len(candidates), size=len(rows))]
            means = []
            for label in self.held.y[rows]:
                alike = candidates[labels == label]
                means.append((alike if len(alike) else candidates).mean(axis=0))
            guesses[RANDOM].append(_compared(drawn, truth))
            guesses[MEAN].append(_compared(np.stack(means), truth))
        return guesses

    @cached_property
    def nulls(self) -> list[_Compared]:
        """What reconstructions from another client's reply give; random images where no other client was attacked."""
        nulls = []
        for index, (_, client, rows) in enumerate(self.batches):
            after = self.batches[index + 1 :] + self.batches[:index]
            others = [number for number, other, _ in after if other != client]
            if others:
                nulls.append(_compared(self.reconstructed(others[0]), self.true_records(rows)))
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
            reply = self._reply(self.scores.facts["batches"][number])
            sent, received = movement_of(reply, self.record, architecture, how), dict(reply.received or {})
            x, y = self.held.x[rows], self.held.y[rows]
            replay = preflight(architecture, given(model.loss), how, received, sent, x, y, low=low, high=high)
            preflights.append(replay)
        return preflights

    def _reply(self, batch: Mapping[str, Any]) -> Observation:
        for round_ in self.record:
            for observation in round_.observations:
                named = (round_.number, observation.node) == (batch["round"], batch["node"])
                if named and observation.arrays is not None:
                    return observation
        raise DataError(
            f"seed {self.seed}: the scores are about round {batch['round']}, node {batch['node']}, of which the record "
            "has no reply; attack again"
        )


class InversionJudge(Judge[InversionCase]):
    """States how close reconstructed examples are to the true ones.

    Its findings are

    - ``recognised``: the share of examples with a peak signal-to-noise ratio of :data:`RECOGNISED` or more, which is
      the headline;
    - ``psnr``, ``mse`` and, of images, ``ssim``: medians;
    - ``labels``: how many labels are right, where there are classes;
    - ``preflight``: the median residual of a replay.

    Each example counts once, however many rounds it was attacked in.
    """

    case = InversionCase
    headline = "recognised"
    needs_truth = ("records",)
    notes = (
        "A reconstruction is held against guesses without any gradient, too: images of one class resemble each other. "
        "Where the residual of the replay is large, the attack looks at another computation than the client's, "
        "and that it fails says nothing of privacy.",
    )

    draws: ClassVar[int] = DRAWS
    """Exchanges that a test draws."""

    def __init__(
        self, cases: Sequence[InversionCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.results = [case.results for case in cases]
        self.nulls = [case.nulls for case in cases]
        self.exchanged = [case.exchange(self.draws) for case in cases]
        self.guesses: dict[str, list[list[_Compared]]] = {RANDOM: [], MEAN: []}
        for case in cases:
            for name, guesses in case.guesses.items():
                self.guesses[name].append(guesses)

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to take others of their labels for the true examples, if all small clients are attacked."""
        arrangements, examples = 1.0, 0
        for run in runs:
            held, others = run.truth.records, run.truth.evaluation[1]
            if held is None or not len(held.y):
                continue
            examples += len(held.y)
            by_class = np.issubdtype(held.y.dtype, np.integer)
            labels, of_others = (
                y.astype(np.int64) if by_class else np.zeros(len(y), np.int64) for y in (held.y, others)
            )
            owners = np.array(held.owners)
            arrangements *= arrangements_of([labels[owners == name] for name in np.unique(owners)], of_others)
        if not examples:
            return None
        enough = f"1 example, beside {math.ceil(1 / needed) - 1} others of its label that nobody trained on"
        return Reach(least_p(arrangements), f"{examples} examples to reconstruct", enough)

    def findings(self) -> list[Finding]:
        """State all of the above."""
        return [*self.of_scores(), self._preflight()]

    def listings(self) -> Iterator[Listing]:
        """List every example with how well it was reconstructed from each reply."""
        yield Listing(
            "records",
            "one row for each example and each reply that was attacked; psnr is the peak signal-to-noise ratio in dB, "
            "ssim the structural similarity of images, mse the mean squared error of inputs in 0 … 1",
            ("seed", "client", "round", "record", "psnr", "ssim", "mse", "recognised"),
            self._measured(),
        )

    def _measured(self) -> Iterator[tuple[Cell, ...]]:
        for case, results in zip(self.cases, self.results, strict=True):
            for (number, client, rows), result in zip(case.batches, results, strict=True):
                of_reply = (case.seed, client, int(case.scores.facts["batches"][number]["round"]))
                for index, row in enumerate(rows.tolist()):
                    ratio, error = float(result.ratio[index]), float(result.error[index])
                    similarity = None if result.similarity is None else float(result.similarity[index])
                    yield *of_reply, row, ratio, similarity, error, ratio >= RECOGNISED

    def of_scores(self) -> list[Finding]:
        """State all but the replay, which needs the model."""
        findings = [self._recognised()]
        findings.append(self._median("psnr", "Peak signal-to-noise ratio, median", "dB", "ratio", (0.0, IDENTICAL)))
        if self.cases[0].held.x.ndim == 4:
            findings.append(self._median("ssim", "Structural similarity, median", "", "similarity", (-1.0, 1.0)))
        findings.append(self._error())
        if self.cases[0].has_classes:
            findings.append(self._labels())
        return findings

    def _test(self, measure: str, middle: Callable[..., Any]) -> Significance:
        """Hold the middle of all examples' values against what exchanges give.

        Each run has a table of exchanges, of which the truth is one; a draw takes a row of each.
        """
        tables = [getattr(exchanged, measure) for exchanged in self.exchanged]
        arrangements = 1.0
        for table, exchanged in zip(tables, self.exchanged, strict=True):
            arrangements *= min(exchanged.arrangements, len(table))

        def draw(rng: np.random.Generator, count: int) -> Floats:
            rows = [table[rng.integers(len(table), size=count)] for table in tables]
            return np.asarray(middle(np.concatenate(rows, axis=1), axis=1))

        observed = float(middle(np.concatenate([table[0] for table in tables])))
        alike = "others of their labels" if self.cases[0].has_classes else "others"
        how = f"the true examples exchanged with {alike} that nobody trained on"
        rng = np.random.default_rng((self.cases[0].seed, _TESTING))
        return significance_of(observed, draw, rng, how, arrangements=arrangements, draws=self.draws)

    def _recognised(self) -> Finding:
        sums, sizes = self._count_recognised(self.results)
        shares = {}
        for name, guesses in self.guesses.items():
            shares[name] = sum(self._count_recognised(guesses)[0]) / sum(sizes)
        return self.judged(
            "recognised",
            f"Examples reconstructed to {RECOGNISED:g} dB or better",
            rate_interval(sums, sizes),
            null_rate(*self._count_recognised(self.nulls)),
            f"chance is {RANDOM}, the null a reconstruction from another client's reply",
            test=self._test("recognised", np.mean),
            here=here_of(sums, sizes),
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=shares[RANDOM],
            baselines={MEAN: shares[MEAN]},
            bars={MEAN: shares[MEAN]},
            headline=True,
            series={"pictures": [*itertools.islice(self._pictures(), _PICTURES)]},
            **over_seeds(np.divide(sums, sizes).tolist()),
        )

    def _count_recognised(self, seeds: Sequence[Sequence[_Compared]]) -> tuple[list[float], list[int]]:
        """Count for each seed the examples that are recognised, and all examples."""
        shares = [case.recognised(batches) for case, batches in zip(self.cases, seeds, strict=True)]
        return [float(share.sum()) for share in shares], [*map(len, shares)]

    def _by_seed(self, seeds: Sequence[Sequence[_Compared]], measure: str) -> list[Floats]:
        """Return a measure, such as ``ratio``, of the examples of each seed."""
        return [case.by_example(batches, measure) for case, batches in zip(self.cases, seeds, strict=True)]

    def _median(self, metric: str, label: str, units: str, measure: str, bounds: tuple[float, float]) -> Finding:
        values, nulls = self._by_seed(self.results, measure), self._by_seed(self.nulls, measure)
        n = sum(map(len, values))
        null_low, null_high = median_interval(nulls, bounds=bounds)
        medians = self._medians_of_guesses(measure)
        return self.judged(
            metric,
            label,
            median_interval(values, bounds=bounds),
            {"value": _middle(nulls), "low": null_low, "high": null_high, "n": n},
            f"chance is {RANDOM}, the null a reconstruction from another client's reply",
            test=self._test(measure, np.median),
            here=_median_of_these_runs(values),
            value=_middle(values),
            n=n,
            units=units,
            chance=medians[RANDOM],
            baselines={MEAN: medians[MEAN]},
            bars={MEAN: medians[MEAN]},
        )

    def _medians_of_guesses(self, measure: str) -> dict[str, float]:
        return {name: _middle(self._by_seed(guesses, measure)) for name, guesses in self.guesses.items()}

    def _error(self) -> Finding:
        values = self._by_seed(self.results, "error")
        low, high = median_interval(values, bounds=(0.0, 1.0))
        return self.finding(
            "mse",
            "Mean squared error of inputs in 0 … 1, median",
            value=_middle(values),
            low=low,
            high=high,
            n=sum(map(len, values)),
            units="",
            baselines=self._medians_of_guesses("error"),
            verdict=NOT_APPLICABLE,
            reason="less is worse; the verdict is that of the peak signal-to-noise ratio, which says the same in dB",
        )

    def _labels(self) -> Finding:
        sums, sizes, nulls, chances = [], [], [], []
        for case in self.cases:
            sums.append(float(case.in_common.trace()))
            sizes.append(int(case.sizes.sum()))
            # The reply of the next client; there is none where there is one client.
            nulls.append(float(np.roll(case.in_common, -1, axis=0).trace()))
            counts = np.bincount(case.truth.evaluation[1].astype(np.int64))
            chances.append(float(counts.max() / counts.sum()))
        alone = any(len(case.sizes) == 1 for case in self.cases)
        return self.judged(
            "labels",
            "Labels restored",
            rate_interval(sums, sizes),
            None if alone else null_rate(nulls, sizes),
            "as many as a batch's restored labels have in common with its true ones; chance is the commonest label, "
            "the null another client's labels",
            test=self._test_of_labels(sum(sums)),
            here=here_of(sums, sizes),
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=max(chances),
        )

    def _test_of_labels(self, observed: float) -> Significance:
        """Exchange the clients of a run that have as many examples: restored labels know how many there are."""

        def draw(rng: np.random.Generator, count: int) -> Floats:
            total = np.zeros(count)
            for case in self.cases:
                who = exchange_within(case.sizes, rng, count)
                total += case.in_common[np.arange(len(case.sizes)), who].sum(axis=1)
            return total

        logarithm = sum(case.label_arrangements for case in self.cases)
        arrangements = count_of(logarithm)
        rng = np.random.default_rng((self.cases[0].seed, _TESTING))
        how = "the clients of each run that have as many examples exchanged"
        return significance_of(observed, draw, rng, how, arrangements=arrangements, draws=self.draws)

    def _preflight(self) -> Finding:
        preflights: list[Preflight] = []
        for case in self.cases:
            preflights += case.preflights
        # Each cause once, in their order.
        causes: dict[str, None] = {}
        for replay in preflights:
            causes |= dict.fromkeys(replay.causes)
        note = f"; what explains the others: {'; '.join(causes)}" if causes else ""
        residuals = np.minimum([replay.residual for replay in preflights], 1e9)
        right = sum(replay.fits for replay in preflights)
        return self.finding(
            "preflight",
            "Residual of a replay of the true examples, median",
            value=float(np.median(residuals)),
            low=None,
            high=None,
            n=len(preflights),
            units="",
            verdict=NOT_APPLICABLE,
            reason="the true examples, put through what the attacker takes a client to compute, give what the client "
            f"sent for {right} of {len(preflights)} replies{note}",
        )

    def _pictures(self) -> Iterator[dict[str, Any]]:
        """Yield reconstructions of images, as pixels 0 … 255: (height, width), or with 3 channels last."""
        for case in self.cases:
            if case.held.x.ndim == 4 and case.held.x.shape[1] in (1, 3):
                for batch, result in zip(case.batches, case.results, strict=True):
                    yield from self._pictures_of(case, batch, result)

    def _pictures_of(
        self, case: InversionCase, batch: tuple[int, str, NDArray[np.int64]], result: _Compared
    ) -> Iterator[dict[str, Any]]:
        number, client, rows = batch
        if result.similarity is None:
            raise AssertionError("asked for of images alone")
        for index, truth in enumerate(case.true_records(rows)):
            yield {
                "client": self.title_of(case, client),
                "round": int(case.scores.facts["batches"][number]["round"]),
                "psnr": float(result.ratio[index]),
                "ssim": float(result.similarity[index]),
                "truth": _pixels(truth),
                "image": _pixels(result.images[index]),
            }


def _middle(values: Sequence[Floats]) -> float:
    """Return the median over all seeds."""
    return float(np.median(np.concatenate(values)))


def _pixels(image: Images) -> Any:
    last = np.moveaxis(np.round(255 * image).astype(int), 0, -1)
    return (last[..., 0] if last.shape[-1] == 1 else last).tolist()


def _counts(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Count how often each class is among labels."""
    return np.asarray((labels.reshape(-1, 1) == classes).sum(axis=0))


def _median_of_these_runs(values: Sequence[Floats]) -> tuple[float, float] | None:
    low, high = median_interval([np.concatenate(values)])
    if len(values) < 2 or low is None or high is None:
        return None
    return low, high
