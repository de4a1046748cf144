"""Judge property inference: which clients were named, which of them have the property, and what guessing would give.

F1 is judged through the Jaccard index J = TP/(TP + FP + FN), of which it is 2J/(1 + J): J is a rate among the clients
that are positive, named or both, and so has the interval of a rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedattack.audit.finding import NO_EVIDENCE, NOT_APPLICABLE, Finding, verdict
from fedattack.audit.intervals import LEVEL, rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.summaries import null_of
from fedattack.errors import DataError
from fedattack.threats.property.prolin import METHODS

_FALSE_ALARMS = 0.05
_SHUFFLES = 1_000
_LISTED = 200

# Streams of random numbers, apart from each other.
_SHUFFLING, _TIES = 1, 2

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class PropertyCase(Case):
    """One seed's scores of property inference beside its truth, which must answer as many questions."""

    def __post_init__(self) -> None:
        positives, asked = self.truth.positives, len(self.scores.facts["questions"])
        if positives is None or len(positives) != asked:
            found = "none" if positives is None else f"{len(positives)}"
            raise DataError(
                f"seed {self.seed}: the scores answer {asked} questions and the truth answers {found}; expected "
                "truth/positives.npz with a row for each, as the run's preparation writes it"
            )
        self.truth.check_nodes(self.scores.facts["clients"], seed=self.seed)

    def by_client(self, values: NDArray[Any]) -> NDArray[Any]:
        """Take the largest of the values (…, nodes) of a client's nodes; returns (…, clients)."""
        return np.stack([np.fmax.reduce(values[..., self.columns(name)], axis=-1) for name in self.clients], axis=-1)

    @cached_property
    def positives(self) -> Flags:
        """(questions, clients): who has the property."""
        place = {name: column for column, name in enumerate(self.truth.clients)}
        if self.truth.positives is None:
            raise AssertionError("checked at the start")
        return np.asarray(self.truth.positives[:, [place[name] for name in self.clients]])

    @cached_property
    def score(self) -> NDArray[np.float64]:
        """(methods, questions, windows, clients), NaN for clients not seen by then."""
        return self.by_client(self.scores.arrays["scores"])

    @cached_property
    def named(self) -> Flags:
        """(methods, questions, windows, clients)."""
        named: Flags = self.by_client(self.scores.arrays["decisions"]).astype(np.bool_)
        return named

    @property
    def seen(self) -> Flags:
        """(windows, clients): who had taken part by then; the others are unknown, neither right nor wrong."""
        return np.asarray(~np.isnan(self.score[0, 0]))

    @property
    def asked_of(self) -> NDArray[np.int64]:
        """Questions to which some client that was seen is an answer."""
        return np.flatnonzero((self.positives & self.seen[-1]).any(axis=1))

    @property
    def at_chance(self) -> Flags:
        """(questions,): whether no round's detector, nor all together, told unseen batches apart better than chance."""
        accuracy = self.scores.arrays["accuracy"]
        error = np.sqrt(0.25 / (2 * self.scores.facts["unseen"]))
        single = accuracy.max(axis=1) <= 0.5 + stats.norm.isf(0.05 / accuracy.shape[1]) * error
        return np.asarray(single & (accuracy.mean(axis=1) <= 0.5 + stats.norm.isf(0.05) * error))


@dataclass(frozen=True)
class _Counts:
    """Right and wrong names of one method after one window, a number for each seed."""

    hits: NDArray[np.float64]
    named: NDArray[np.float64]
    positive: NDArray[np.float64]

    @classmethod
    def of(cls, cases: Sequence[PropertyCase], method: int, window: int, positives: Sequence[Flags]) -> "_Counts":
        rows = []
        for case, truth in zip(cases, positives, strict=True):
            named, seen = case.named[method, case.asked_of, window], case.seen[window]
            rows.append(((named & truth & seen).sum(), (named & seen).sum(), (truth & seen).sum()))
        return cls(*np.array(rows, dtype=np.float64).T)

    @property
    def either(self) -> NDArray[np.float64]:
        """Clients that are positive, named, or both."""
        return np.asarray(self.named + self.positive - self.hits)


def _f1_of(jaccard: float) -> float:
    return 2 * jaccard / (1 + jaccard)


# A measure: which counts are its successes and its trials, and how its rate is read.
_MEASURES: Mapping[str, tuple[Callable[[_Counts], NDArray[np.float64]], Callable[[float], float]]] = {
    "f1": (lambda counts: counts.either, _f1_of),
    "precision": (lambda counts: counts.named, float),
    "recall": (lambda counts: counts.positive, float),
}
_LABELS = {"f1": "F1 score", "precision": "Precision", "recall": "Recall"}


class PropertyJudge(Judge[PropertyCase]):
    """States which clients PROLIN, and the methods beside it, named; F1 of PROLIN after all rounds is the headline."""

    case = PropertyCase
    headline = "f1"
    notes = (
        "The null of prolin's findings is the same result against a shuffled truth; a null run, in which no client has "
        "the property, is `--set positives=0`.",
        "Clients that were never sampled are unknown: they count neither as right nor as wrong.",
    )

    def __init__(
        self, cases: Sequence[PropertyCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        setting = {**setting, "shadow updates": cases[0].scores.facts["mode"]}
        super().__init__(cases, setting=setting, provenance=provenance)
        # Seeds of one preset have as many windows; records from elsewhere may differ.
        self.windows = min((case.scores.facts["windows"] for case in cases), key=len)
        self.last = len(self.windows) - 1
        self.truth = [case.positives[case.asked_of] for case in cases]
        draw = np.random.default_rng((cases[0].seed, _SHUFFLING))
        self.shuffled = [self._shuffle(draw) for _ in range(_SHUFFLES)] if self.decisions else []

    @property
    def decisions(self) -> int:
        """How many clients were judged, over all questions that some client answers."""
        return sum(len(case.asked_of) * int(case.seen[-1].sum()) for case in self.cases)

    def findings(self) -> list[Finding]:
        """State F1 of each method, then what else is known of PROLIN's answers."""
        found: list[Finding | None] = []
        if self.decisions:
            found += [self._rate("f1", method) for method in range(len(METHODS))]
            found += [self._rate(measure, 0) for measure in ("precision", "recall")]
            found += [self._at_false_alarms(method) for method in (0, METHODS.index("posterior"))]
            found.append(self._plaintext())
        else:
            found.append(self._nobody())
        found.append(self._false_alarms())
        return [item for item in found if item is not None]

    def _shuffle(self, draw: np.random.Generator) -> list[Flags]:
        """Deal the property to as many clients, at random among those that were seen."""
        dealt = []
        for case, truth in zip(self.cases, self.truth, strict=True):
            seen = np.flatnonzero(case.seen[-1])
            other = np.zeros_like(truth)
            other[:, seen] = draw.permuted(truth[:, seen], axis=1)
            dealt.append(other)
        return dealt

    def _rate(self, measure: str, method: int) -> Finding:
        trials, read = _MEASURES[measure]
        counts = _Counts.of(self.cases, method, self.last, self.truth)
        low: float | None
        high: float | None
        value, low, high = _pooled(counts.hits, trials(counts), read)
        nulls = []
        for truth in self.shuffled:
            other = _Counts.of(self.cases, method, self.last, truth)
            nulls.append(_pooled_value(other.hits, trials(other), read))
        null = null_of(nulls, self.decisions)
        share = counts.positive.sum() / self.decisions
        # Naming everybody is the best that guessing can do for F1; precision is then the share of positives.
        chance = {"f1": 2 * share / (1 + share), "precision": share, "recall": counts.named.sum() / self.decisions}
        words, why = verdict(value, low, float(chance[measure]), null["high"])
        why = {
            "f1": "chance is naming everybody, the null is the same names against a shuffled truth",
            "precision": "chance is the share of clients with the property",
            "recall": "chance is naming as many clients at random",
        }[measure] + f": {why}"
        if all(case.at_chance[case.asked_of].all() for case in self.cases):
            words, why = NO_EVIDENCE, "the detector is at chance in every round, so nothing is claimed"
        each = [read(hit / n) for hit, n in zip(counts.hits, trials(counts), strict=True) if n]
        name = METHODS[method]
        return self.finding(
            measure if method == 0 else f"{measure}-{name.lower()}",
            f"{_LABELS[measure]}, {name}" if method else _LABELS[measure],
            value=value,
            low=low,
            high=high,
            n=self.decisions,
            chance=float(chance[measure]),
            null=null,
            verdict=words,
            reason=why,
            headline=measure == "f1" and method == 0,
            series=self._series() if measure == "f1" and method == 0 else {},
            **over_seeds(each),
        )

    def _nobody(self) -> Finding:
        reason = "no client that took part has the property: a null run, of which the false alarms speak"
        return self.unmeasured("f1", _LABELS["f1"], reason, headline=True, series=self._series())

    def _false_alarms(self) -> Finding | None:
        """How often a client is named for a question to which nobody is the answer, or else a client without it."""
        empty = [np.setdiff1d(np.arange(len(case.positives)), case.asked_of) for case in self.cases]
        null = all(len(questions) for questions in empty)
        alarms, trials = [], []
        for case, questions in zip(self.cases, empty, strict=True):
            chosen = questions if null else case.asked_of
            negative = case.seen[-1] & ~case.positives[chosen]
            alarms.append(float((case.named[0, chosen, -1] & negative).sum()))
            trials.append(int(negative.sum()))
        if not all(trials):
            return None
        low, high = rate_interval(alarms, trials)
        what = "for something that nobody has" if null else "without the property"
        return self.finding(
            "false-alarms",
            f"False alarms: clients named {what}",
            value=sum(alarms) / sum(trials),
            low=low,
            high=high,
            n=sum(trials),
            verdict=NOT_APPLICABLE,
            reason="a rate of errors, to read the others with; it is no leak by itself",
            headline=not self.decisions,
        )

    def _at_false_alarms(self, method: int) -> Finding | None:
        """Recall with the threshold at which so many clients without the property are named."""
        hits, trials, nulls = [], [], []
        for index, (case, truth) in enumerate(zip(self.cases, self.truth, strict=True)):
            score, seen = case.score[method, :, -1], case.seen[-1]
            quiet = score[:, seen][~case.positives[:, seen]]
            if not len(quiet) or not truth[:, seen].any():
                return None
            # a client is named above the threshold, so that ties with negatives do not count as hits
            threshold = np.quantile(quiet, 1 - _FALSE_ALARMS, method="higher")
            above = score[case.asked_of] > threshold
            hits.append(float((above & truth & seen).sum()))
            trials.append(int((truth & seen).sum()))
            nulls.append([float((above & dealt[index] & seen).sum()) for dealt in self.shuffled])
        low, high = rate_interval(hits, trials)
        null = null_of((np.sum(nulls, axis=0) / sum(trials)).tolist(), sum(trials))
        value = sum(hits) / sum(trials)
        words, why = verdict(value, low, _FALSE_ALARMS, null["high"])
        name = METHODS[method]
        return self.finding(
            "recall-at-far" if method == 0 else f"recall-at-far-{name.lower()}",
            f"Recall at {100 * _FALSE_ALARMS:.0f}% false alarms, {name}",
            value=value,
            low=low,
            high=high,
            n=sum(trials),
            chance=_FALSE_ALARMS,
            null=null,
            verdict=words,
            reason=f"the threshold lets {100 * _FALSE_ALARMS:.0f}% of the clients without the property pass: {why}",
        )

    def _plaintext(self) -> Finding | None:
        """Judge what example counts and metrics tell by themselves: secure aggregation lets them through."""
        values = [_plaintext_of(case) for case in self.cases]
        metrics = [name for name in values[0] if all(name in other for other in values)]
        if not metrics:
            return None
        areas = {name: self._area([item[name] for item in values], self.truth) for name in metrics}
        # Either direction may tell, and the most telling metric is chosen after seeing all.
        best = max(areas, key=lambda name: abs(areas[name] - 0.5))
        value = 0.5 + abs(areas[best] - 0.5)
        shuffled = self.shuffled[: _SHUFFLES // 5]
        nulls = np.array(
            [[self._area([item[name] for item in values], truth) for name in metrics] for truth in shuffled]
        )
        null = null_of((0.5 + np.abs(nulls - 0.5)).max(axis=1).tolist(), self.decisions)
        draw = np.random.default_rng((self.cases[0].seed, _TIES))
        low, high = self._area_interval([item[best] for item in values], draw, areas[best] >= 0.5, 2 * len(metrics))
        low, high = min(low, value), max(high, value)
        words, why = verdict(value, low, 0.5, null["high"], units="")
        return self.finding(
            "plaintext",
            f"What is sent in plaintext tells by itself: {best}",
            value=value,
            low=low,
            high=high,
            units="AUC",
            n=self.decisions,
            chance=0.5,
            null=null,
            verdict=words,
            reason="area under the ROC curve of the most telling of the example counts and metrics that pass secure "
            f"aggregation in plaintext, averaged over rounds, in its better direction: {why}",
            selected_after_the_fact=True,
            comparisons=2 * len(metrics),
            series={
                "plaintext": [{"metric": name, "auc": area, "low": None, "high": None} for name, area in areas.items()]
            },
        )

    def _area(self, values: Sequence[NDArray[np.float64]], truth: Sequence[Flags]) -> float:
        areas = []
        for case, value, flags in zip(self.cases, values, truth, strict=True):
            seen = case.seen[-1] & ~np.isnan(value)
            areas += [_auc(value[seen], row[seen]) for row in flags if row[seen].any() and not row[seen].all()]
        return fmean(areas) if areas else 0.5

    def _area_interval(
        self, values: Sequence[NDArray[np.float64]], draw: np.random.Generator, upwards: bool, comparisons: int
    ) -> tuple[float, float]:
        """Resample positive and negative clients."""
        areas = []
        for _ in range(_SHUFFLES // 5):
            single = []
            for case, value, flags in zip(self.cases, values, self.truth, strict=True):
                seen = case.seen[-1] & ~np.isnan(value)
                for row in flags:
                    with_it, without = value[seen & row], value[seen & ~row]
                    if len(with_it) and len(without):
                        some = draw.choice(with_it, len(with_it)), draw.choice(without, len(without))
                        single.append(_auc(np.concatenate(some), np.arange(len(with_it) + len(without)) < len(with_it)))
            areas.append(fmean(single) if single else 0.5)
        tail = (1 - LEVEL) / 2 / comparisons
        low, high = np.quantile(areas if upwards else 1 - np.array(areas), (tail, 1 - tail))
        return float(low), float(high)

    def _series(self) -> dict[str, Any]:
        case = self.cases[0]
        series: dict[str, Any] = {"stability": self._stability(), "overlap": self._overlap()}
        series["distributions"] = _distributions(case, int(case.asked_of[0]) if len(case.asked_of) else 0)
        series["posteriors"] = self._posteriors()
        if self.decisions:
            share = float(sum(truth.sum() for truth in self.truth) / self.decisions)
            series["methods"] = {
                "rounds": self.windows,
                "methods": {name: self._over_rounds(method) for method, name in enumerate(METHODS)},
                "chance": 2 * share / (1 + share),
            }
        return series

    def _over_rounds(self, method: int) -> dict[str, list[float | None]]:
        curves: dict[str, list[float | None]] = {measure: [] for measure in _MEASURES}
        for window in range(len(self.windows)):
            counts = _Counts.of(self.cases, method, window, self.truth)
            for measure, (trials, read) in _MEASURES.items():
                n = float(trials(counts).sum())
                curves[measure].append(read(float(counts.hits.sum()) / n) if n else None)
        return curves

    def _stability(self) -> dict[str, Any]:
        shares: dict[str, list[float]] = {}
        for method, name in enumerate(METHODS):
            shares[name] = []
            for window in range(len(self.windows)):
                same = [
                    (case.named[method, :, window] == case.named[method, :, -1])[:, case.seen[-1]].mean()
                    for case in self.cases
                ]
                shares[name].append(float(fmean(same)))
        return {"rounds": self.windows, "methods": shares}

    def _overlap(self) -> dict[str, Any]:
        rounds = min((case.scores.facts["rounds"] for case in self.cases), key=len)
        arrays = {
            name: np.concatenate([case.scores.arrays[name][:, : len(rounds)] for case in self.cases])
            for name in ("overlap", "accuracy", "checked")
        }
        checked = np.flatnonzero(~np.isnan(arrays["checked"]).all(axis=0))
        return {
            "rounds": rounds,
            "overlap": np.median(arrays["overlap"], axis=0).tolist(),
            "low": arrays["overlap"].min(axis=0).tolist(),
            "high": arrays["overlap"].max(axis=0).tolist(),
            "accuracy": np.median(arrays["accuracy"], axis=0).tolist(),
            "checked_rounds": [rounds[row] for row in checked],
            "checked_accuracy": np.nanmedian(arrays["checked"][:, checked], axis=0).tolist(),
        }

    def _posteriors(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = []
        for case in self.cases:
            arrays = {
                name: case.by_client(case.scores.arrays[name])
                for name in ("posterior", "posterior_low", "posterior_high")
            }
            took_part = case.by_client((case.scores.arrays["participation"] > 0).sum(axis=0))
            for question, asked in enumerate(case.scores.facts["questions"]):
                for column in np.flatnonzero(case.seen[-1]):
                    listed.append(
                        {
                            "client": case.clients[column],
                            "target": str(asked),
                            "seed": case.seed,
                            "posterior": float(arrays["posterior"][question, column]),
                            "low": float(arrays["posterior_low"][question, column]),
                            "high": float(arrays["posterior_high"][question, column]),
                            "positive": bool(case.positives[question, column]),
                            "rounds": int(took_part[column]),
                        }
                    )
        # All positives, and the most suspicious others.
        listed.sort(key=lambda item: (-item["posterior"], item["seed"], item["target"], item["client"]))
        kept = [item for place, item in enumerate(listed) if item["positive"] or place < _LISTED]
        return kept[: 2 * _LISTED]


def _distributions(case: PropertyCase, question: int) -> list[dict[str, Any]]:
    arrays, found = case.scores.arrays, []
    for place, number in enumerate(case.scores.facts["shown"]):
        row = case.scores.facts["rounds"].index(number)
        plus, minus = arrays["plus_sample"][question, place], arrays["minus_sample"][question, place]
        found.append(
            {
                "round": number,
                "plus": {
                    "mean": float(arrays["plus_mean"][question, row, 0]),
                    "sd": float(arrays["plus_sd"][question, row, 0]),
                },
                "minus": {
                    "mean": float(arrays["minus_mean"][question, row, 0]),
                    "sd": float(arrays["minus_sd"][question, row, 0]),
                },
                "overlap": float(arrays["overlap"][question, row]),
                "plus_sample": plus.tolist(),
                "minus_sample": minus.tolist(),
            }
        )
    return found


def _plaintext_of(case: PropertyCase) -> dict[str, NDArray[np.float64]]:
    """Each client's mean of what it sent in plaintext, (clients,) for each numeric metric."""
    totals: dict[str, dict[str, list[float]]] = {}
    for item in case.record:
        for seen in item.observations:
            if seen.status != "ok":
                continue
            sent = {"num-examples": seen.num_examples, **seen.metrics}
            for name, value in sent.items():
                if isinstance(value, int | float) and np.isfinite(value):
                    client = case.truth.nodes[seen.node]
                    totals.setdefault(str(name), {}).setdefault(client, []).append(float(value))
    return {
        name: np.array([fmean(values[client]) if client in values else np.nan for client in case.clients])
        for name, values in totals.items()
    }


def _auc(values: NDArray[np.float64], positive: Flags) -> float:
    ranks = stats.rankdata(values)
    with_it, without = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - with_it * (with_it + 1) / 2) / (with_it * without))


def _pooled_value(hits: NDArray[np.float64], trials: NDArray[np.float64], read: Callable[[float], float]) -> float:
    return read(float(hits.sum() / trials.sum())) if trials.sum() else 0.0


def _pooled(
    hits: NDArray[np.float64], trials: NDArray[np.float64], read: Callable[[float], float]
) -> tuple[float, float, float]:
    """Pool over the seeds that had trials; a method that named nobody has a precision of nothing at all."""
    use = trials > 0
    if not use.any():
        return 0.0, 0.0, 1.0
    low, high = rate_interval(hits[use].tolist(), trials[use].astype(int).tolist())
    return _pooled_value(hits, trials, read), read(low), read(high)
