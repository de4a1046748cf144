"""Judge gradient inversion: how close reconstructed examples are to those that clients trained on.

Inputs are scaled to 0 … 1 by the data's range, per channel of images and per column of tables, and reconstructions are
clipped to it. Reconstructions of several examples come in no order: they are paired with the true ones so that the mean
squared error is least. That pairing flatters every guess alike, so that the null and the baselines are paired as well.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NOT_APPLICABLE, Finding, Null
from fedattack.audit.intervals import median_interval, rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.truth import HeldRecords
from fedattack.errors import DataError
from fedattack.learning.importing import given
from fedattack.record import Observation
from fedattack.threats.inversion.images import Images, paired, peak_ratio, squared_error, structural_similarity
from fedattack.threats.inversion.inversion import client_training, movement_of
from fedattack.threats.inversion.preflight import Preflight, preflight

RECOGNISED = 20.0
"""Peak signal-to-noise ratio in dB from which an image counts as recognised."""

RANDOM, MEAN = "a random image of the data", "the mean image of the label"

_PICTURES = 20
_DRAWING = 1


@dataclass(frozen=True)
class _Compared:
    """Reconstructions (n, …) that stand for true examples, and measures (n,) in the order of the true ones."""

    images: Images
    error: NDArray[np.float64]
    ratio: NDArray[np.float64]
    similarity: NDArray[np.float64] | None


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
    """

    case = InversionCase
    headline = "recognised"
    notes = (
        "A reconstruction is held against guesses without any gradient, too: images of one class resemble each other. "
        "Where the residual of the replay is large, the attack looks at another computation than the client's, "
        "and that it fails says nothing of privacy.",
    )

    def __init__(
        self, cases: Sequence[InversionCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.results = [case.results for case in cases]
        self.nulls = [case.nulls for case in cases]
        self.guesses: dict[str, list[list[_Compared]]] = {RANDOM: [], MEAN: []}
        for case in cases:
            for name, guesses in case.guesses.items():
                self.guesses[name].append(guesses)

    def findings(self) -> list[Finding]:
        """State all of the above."""
        findings = [self._recognised(), self._median("psnr", "Peak signal-to-noise ratio, median", "dB", "ratio")]
        if self.cases[0].held.x.ndim == 4:
            findings.append(self._median("ssim", "Structural similarity, median", "", "similarity"))
        findings.append(self._error())
        if np.issubdtype(self.cases[0].held.y.dtype, np.integer):
            findings.append(self._labels())
        return [*findings, self._preflight()]

    def _recognised(self) -> Finding:
        sums, sizes = _count_recognised(self.results)
        shares = {}
        for name, guesses in self.guesses.items():
            shares[name] = sum(_count_recognised(guesses)[0]) / sum(sizes)
        return self.judged(
            "recognised",
            f"Examples reconstructed to {RECOGNISED:g} dB or better",
            rate_interval(sums, sizes),
            _null_rate(*_count_recognised(self.nulls)),
            f"chance is {RANDOM}, the null a reconstruction from another client's reply",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=shares[RANDOM],
            baselines={MEAN: shares[MEAN]},
            bars={MEAN: shares[MEAN]},
            headline=True,
            series={"pictures": [*itertools.islice(self._pictures(), _PICTURES)]},
            **over_seeds(np.divide(sums, sizes).tolist()),
        )

    def _median(self, metric: str, label: str, units: str, measure: str) -> Finding:
        values, nulls = _by_seed(self.results, measure), _by_seed(self.nulls, measure)
        n = sum(map(len, values))
        null_low, null_high = median_interval(nulls)
        medians = self._medians_of_guesses(measure)
        return self.judged(
            metric,
            label,
            median_interval(values),
            {"value": _middle(nulls), "low": null_low, "high": null_high, "n": n},
            f"chance is {RANDOM}, the null a reconstruction from another client's reply",
            value=_middle(values),
            n=n,
            units=units,
            chance=medians[RANDOM],
            baselines={MEAN: medians[MEAN]},
            bars={MEAN: medians[MEAN]},
        )

    def _medians_of_guesses(self, measure: str) -> dict[str, float]:
        return {name: _middle(_by_seed(guesses, measure)) for name, guesses in self.guesses.items()}

    def _error(self) -> Finding:
        values = _by_seed(self.results, "error")
        low, high = median_interval(values)
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
            labels, batches = case.scores.arrays["labels"], case.scores.arrays["batches"]
            restored = [labels[batches == number] for number, _, _ in case.batches]
            truth = [case.held.y[rows] for _, _, rows in case.batches]
            sums.append(float(sum(map(_in_common, restored, truth))))
            sizes.append(sum(map(len, truth)))
            nulls.append(float(sum(map(_in_common, [*restored[1:], restored[0]], truth))))
            counts = np.bincount(case.truth.evaluation[1].astype(np.int64))
            chances.append(float(counts.max() / counts.sum()))
        return self.judged(
            "labels",
            "Labels restored",
            rate_interval(sums, sizes),
            _null_rate(nulls, sizes),
            "as many as a batch's restored labels have in common with its true ones; chance is the commonest label, "
            "the null another reply's labels",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=max(chances),
        )

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


def _by_seed(seeds: Sequence[Sequence[_Compared]], measure: str) -> list[NDArray[np.float64]]:
    """Join a measure, such as ``ratio``, over the batches of each seed."""
    joined = []
    for batches in seeds:
        joined.append(np.concatenate([getattr(batch, measure) for batch in batches]))
    return joined


def _middle(values: Sequence[NDArray[np.float64]]) -> float:
    """Return the median over all seeds."""
    return float(np.median(np.concatenate(values)))


def _count_recognised(seeds: Sequence[Sequence[_Compared]]) -> tuple[list[float], list[int]]:
    """Count for each seed the examples that are recognised, and all examples."""
    ratios = _by_seed(seeds, "ratio")
    return [float((ratio >= RECOGNISED).sum()) for ratio in ratios], [*map(len, ratios)]


def _pixels(image: Images) -> Any:
    last = np.moveaxis(np.round(255 * image).astype(int), 0, -1)
    return (last[..., 0] if last.shape[-1] == 1 else last).tolist()


def _in_common(restored: NDArray[Any], truth: NDArray[Any]) -> int:
    """Count the labels that two batches have in common, in any order."""
    return (Counter(restored.ravel().tolist()) & Counter(truth.tolist())).total()


def _null_rate(sums: Sequence[float], sizes: Sequence[int]) -> Null:
    low, high = rate_interval(sums, sizes)
    return {"value": sum(sums) / sum(sizes), "low": low, "high": high, "n": sum(sizes)}
