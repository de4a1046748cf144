"""Judge gradient inversion: how close reconstructed records are to those that clients trained on.

Inputs are scaled to 0 … 1 by the data's range, per channel of images and per column of tables, and reconstructions are
clipped to it. Reconstructions of several records come in no order: they are paired with the true ones so that the mean
squared error is least. That pairing flatters every guess alike, so that the null and the baselines are paired as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NOT_APPLICABLE, Finding, Null, verdict
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
class _Judged:
    """Pairs of true and reconstructed records: measures (n,) in the order of the true ones."""

    images: Images
    places: NDArray[np.int64]
    error: NDArray[np.float64]
    ratio: NDArray[np.float64]
    similarity: NDArray[np.float64] | None


def _judged(found: Images, truth: Images) -> _Judged:
    """Measure reconstructions; where there are fewer than records, grey stands in."""
    places = paired(found, truth)
    images = np.where((places >= 0).reshape(-1, *(1,) * (truth.ndim - 1)), found[places], np.float32(0.5))
    error = squared_error(images, truth)
    similarity = structural_similarity(images, truth) if truth.ndim == 4 else None
    return _Judged(images, places, error, peak_ratio(error), similarity)


@dataclass(frozen=True)
class InversionCase(Case):
    """One seed's reconstructed records beside those that clients trained on, which the truth must hold."""

    def __post_init__(self) -> None:
        held, images = self.held, self.scores.arrays["images"]
        if images.shape[1:] != held.x.shape[1:]:
            raise DataError(
                f"seed {self.seed}: reconstructed records have shape {images.shape[1:]} and those of the truth "
                f"{held.x.shape[1:]}; attack again"
            )
        rebuilt = {*self.scores.arrays["batches"].tolist()}
        if lacking := [number for number, _, _ in self.batches if number not in rebuilt]:
            raise DataError(
                f"seed {self.seed}: the scores speak of reply {lacking[0]} and hold no record of it; attack again"
            )
        if not self.batches:
            raise DataError(
                f"seed {self.seed}: truth/records.npz has the records of none of the attacked clients; expected those "
                "of the clients that truth/nodes names; attack clients of few records"
            )

    @property
    def held(self) -> HeldRecords:
        """The truth."""
        if self.truth.records is None:
            raise DataError(
                f"seed {self.seed}: truth/records.npz is not there, so that reconstructed records can be held against "
                "nothing; a run's preparation writes it for clients of few records (--set records=1)"
            )
        return self.truth.records

    @cached_property
    def limits(self) -> tuple[Images, Images]:
        """Least and largest inputs of the data, per channel or column, in a shape that broadcasts with records."""
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
        """Which of the scores' batches can be judged: number, client, and the places of its records."""
        owners, found = np.array(self.held.owners), []
        for number, batch in enumerate(self.scores.facts["batches"]):
            client = self.truth.nodes.get(batch["node"], batch["node"])
            rows = np.flatnonzero(owners == client)
            if len(rows):
                found.append((number, client, rows))
        return found

    def reconstructed(self, number: int) -> Images:
        """Return the scaled reconstructions of a batch."""
        return self.scaled(self.scores.arrays["images"][self.scores.arrays["batches"] == number])

    @cached_property
    def results(self) -> list[_Judged]:
        """The reconstructions of each batch."""
        return [_judged(self.reconstructed(number), self.scaled(self.held.x[rows])) for number, _, rows in self.batches]

    @cached_property
    def guesses(self) -> dict[str, list[_Judged]]:
        """What two guesses without any gradient give; the second knows the label."""
        draw = np.random.default_rng((self.seed, _DRAWING))
        unheld, labels = self.truth.evaluation
        every = self.scaled(unheld)
        guesses: dict[str, list[_Judged]] = {RANDOM: [], MEAN: []}
        for _, _, rows in self.batches:
            truth = self.scaled(self.held.x[rows])
            guesses[RANDOM].append(_judged(every[draw.integers(len(every), size=len(rows))], truth))
            alike = [every[labels == label] for label in self.held.y[rows]]
            means = [(own if len(own) else every).mean(axis=0) for own in alike]
            guesses[MEAN].append(_judged(np.stack(means), truth))
        return guesses

    @cached_property
    def nulls(self) -> list[_Judged]:
        """What reconstructions from another client's reply give; random images where no other client was attacked."""
        found = []
        for place, (_, client, rows) in enumerate(self.batches):
            after = self.batches[place + 1 :] + self.batches[:place]
            others = [number for number, other, _ in after if other != client]
            truth = self.scaled(self.held.x[rows])
            found.append(_judged(self.reconstructed(others[0]), truth) if others else self.guesses[RANDOM][place])
        return found

    @cached_property
    def preflights(self) -> list[Preflight]:
        """A replay of each batch's true records."""
        model, training = self.knowledge.model, self.knowledge.training
        if model is None or training is None:
            raise DataError(f"seed {self.seed}: knowledge/ lacks model or training, with which the attack was made")
        architecture, how = model.build(), client_training(self.record, training)
        found = []
        for number, _, rows in self.batches:
            reply = self._reply(self.scores.facts["batches"][number])
            movement = movement_of(reply, self.record, architecture, how)
            low, high = self.limits
            x, y = self.held.x[rows], self.held.y[rows]
            received = dict(reply.received or {})
            found.append(preflight(architecture, given(model.loss), how, received, movement, x, y, low=low, high=high))
        return found

    def _reply(self, batch: Mapping[str, Any]) -> Observation:
        for item in self.record:
            for seen in item.observations:
                if (item.number, seen.node) == (batch["round"], batch["node"]) and seen.arrays is not None:
                    return seen
        raise DataError(
            f"seed {self.seed}: the scores are about round {batch['round']}, node {batch['node']}, of which the record "
            "has no reply; attack again"
        )


class InversionJudge(Judge[InversionCase]):
    """States how close reconstructed records are to the true ones.

    Its findings are

    - ``recognised``: the share of records with a peak signal-to-noise ratio of :data:`RECOGNISED` or more, which is
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
        self.found = [case.results for case in cases]
        self.null = [case.nulls for case in cases]
        self.guesses = {name: [case.guesses[name] for case in cases] for name in (RANDOM, MEAN)}

    def findings(self) -> list[Finding]:
        """State all of the above."""
        found = [self._recognised(), self._median("psnr", "Peak signal-to-noise ratio, median", "dB", _ratio)]
        if self.cases[0].held.x.ndim == 4:
            found.append(self._median("ssim", "Structural similarity, median", "", _similarity))
        found.append(self._error())
        if np.issubdtype(self.cases[0].held.y.dtype, np.integer):
            found.append(self._labels())
        return [*found, self._preflight()]

    def _recognised(self) -> Finding:
        def hits(items: Sequence[Sequence[_Judged]]) -> tuple[list[float], list[int]]:
            each = [np.concatenate([item.ratio for item in own]) >= RECOGNISED for own in items]
            return [float(own.sum()) for own in each], [len(own) for own in each]

        sums, sizes = hits(self.found)
        value, (low, high) = sum(sums) / sum(sizes), rate_interval(sums, sizes)
        null = _null_rate(*hits(self.null))
        shares = {name: sum(hits(items)[0]) / sum(sizes) for name, items in self.guesses.items()}
        words, why = verdict(value, low, shares[RANDOM], null["high"], bars={MEAN: shares[MEAN]})
        means = [own / size for own, size in zip(sums, sizes, strict=True)]
        return self.finding(
            "recognised",
            f"Records reconstructed to {RECOGNISED:g} dB or better",
            value=value,
            low=low,
            high=high,
            n=sum(sizes),
            chance=shares[RANDOM],
            null=null,
            baselines={MEAN: shares[MEAN]},
            verdict=words,
            reason=f"chance is {RANDOM}, the null a reconstruction from another client's reply: {why}",
            headline=True,
            series={"pictures": self._pictures()},
            **over_seeds(means),
        )

    def _median(
        self, metric: str, label: str, units: str, measure: Callable[[_Judged], NDArray[np.float64]]
    ) -> Finding:
        def over(items: Sequence[Sequence[_Judged]]) -> list[NDArray[np.float64]]:
            return [np.concatenate([measure(item) for item in own]) for own in items]

        values = over(self.found)
        pooled = np.concatenate(values)
        low, high = median_interval(values)
        null_values = over(self.null)
        null_low, null_high = median_interval(null_values)
        middle = float(np.median(np.concatenate(null_values)))
        null: Null = {"value": middle, "low": null_low, "high": null_high, "n": len(pooled)}
        bars = {name: float(np.median(np.concatenate(over(items)))) for name, items in self.guesses.items()}
        words, why = verdict(
            float(np.median(pooled)), low, bars[RANDOM], null_high, bars={MEAN: bars[MEAN]}, units=units
        )
        return self.finding(
            metric,
            label,
            value=float(np.median(pooled)),
            low=low,
            high=high,
            n=len(pooled),
            units=units,
            chance=bars[RANDOM],
            null=null,
            baselines={MEAN: bars[MEAN]},
            verdict=words,
            reason=f"chance is {RANDOM}, the null a reconstruction from another client's reply: {why}",
        )

    def _error(self) -> Finding:
        values = [np.concatenate([item.error for item in own]) for own in self.found]
        low, high = median_interval(values)
        return self.finding(
            "mse",
            "Mean squared error of inputs in 0 … 1, median",
            value=float(np.median(np.concatenate(values))),
            low=low,
            high=high,
            n=sum(map(len, values)),
            units="",
            baselines={
                name: float(np.median([error for own in items for item in own for error in item.error]))
                for name, items in self.guesses.items()
            },
            verdict=NOT_APPLICABLE,
            reason="less is worse; the verdict is that of the peak signal-to-noise ratio, which says the same in dB",
        )

    def _labels(self) -> Finding:
        sums, sizes, others, chances = [], [], [], []
        for case in self.cases:
            answers, batches = case.scores.arrays["labels"], case.scores.arrays["batches"]
            own = {number: np.sort(answers[batches == number]) for number, _, _ in case.batches}
            truth = [(client, own[number], np.sort(case.held.y[rows])) for number, client, rows in case.batches]
            sums.append(float(sum(_common(found, wanted) for _, found, wanted in truth)))
            sizes.append(sum(len(wanted) for _, _, wanted in truth))
            shifted = [*truth[1:], truth[0]]
            others.append(float(sum(_common(other[1], one[2]) for one, other in zip(truth, shifted, strict=True))))
            counts = np.bincount(case.truth.evaluation[1].astype(np.int64))
            chances.append(float(counts.max() / counts.sum()))
        low, high = rate_interval(sums, sizes)
        value, null = sum(sums) / sum(sizes), _null_rate(others, sizes)
        words, why = verdict(value, low, max(chances), null["high"])
        return self.finding(
            "labels",
            "Labels restored",
            value=value,
            low=low,
            high=high,
            n=sum(sizes),
            chance=max(chances),
            null=null,
            verdict=words,
            reason="as many as a batch's restored labels have in common with its true ones; chance is the commonest "
            f"label, the null another reply's labels: {why}",
        )

    def _preflight(self) -> Finding:
        every = [item for case in self.cases for item in case.preflights]
        finite = [min(item.residual, 1e9) for item in every]
        right = sum(item.fits for item in every)
        causes = list(dict.fromkeys(cause for item in every for cause in item.causes))
        told = f"; what explains the others: {'; '.join(causes)}" if causes else ""
        return self.finding(
            "preflight",
            "Residual of a replay of the true records, median",
            value=float(np.median(finite)),
            low=None,
            high=None,
            n=len(every),
            units="",
            verdict=NOT_APPLICABLE,
            reason="the true records, put through what the attacker takes a client to compute, give what the client "
            f"sent for {right} of {len(every)} replies{told}",
        )

    def _pictures(self) -> list[dict[str, Any]]:
        """Give the first reconstructions of images, as pixels 0 … 255: (height, width), or with 3 channels last."""
        shown = []
        for case in self.cases:
            if case.held.x.ndim != 4 or case.held.x.shape[1] not in (1, 3):
                continue
            for (number, client, rows), result in zip(case.batches, case.results, strict=True):
                truth = case.scaled(case.held.x[rows])
                for place in range(len(rows)):
                    shown.append(
                        {
                            "client": self.title_of(case, client),
                            "round": int(case.scores.facts["batches"][number]["round"]),
                            "psnr": float(result.ratio[place]),
                            "ssim": float(_similarity(result)[place]),
                            "truth": _pixels(truth[place]),
                            "image": _pixels(result.images[place]),
                        }
                    )
        return shown[:_PICTURES]


def _ratio(item: _Judged) -> NDArray[np.float64]:
    return item.ratio


def _similarity(item: _Judged) -> NDArray[np.float64]:
    if item.similarity is None:
        raise AssertionError("asked for of images alone")
    return item.similarity


def _pixels(image: Images) -> Any:
    last = np.moveaxis(np.round(255 * image).astype(int), 0, -1)
    return (last[..., 0] if last.shape[-1] == 1 else last).tolist()


def _common(found: NDArray[Any], wanted: NDArray[Any]) -> int:
    """Count what two multisets have in common."""
    return sum(min(int((found == label).sum()), int((wanted == label).sum())) for label in np.unique(wanted))


def _null_rate(sums: Sequence[float], sizes: Sequence[int]) -> Null:
    low, high = rate_interval(sums, sizes)
    return {"value": sum(sums) / sum(sizes), "low": low, "high": high, "n": sum(sizes)}
