"""Judge property inference: which clients were named, which of them have the property, and what guessing would give.

F1 is judged through the Jaccard index J = TP/(TP + FP + FN), of which it is 2J/(1 + J). J is a rate among the clients
that are positive, named or both, and so has the interval of a rate.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_Sent = Mapping[str, NDArray[np.float64]]
"""By metric, each client's mean of what it sent in plaintext, (clients,)."""


@dataclass(frozen=True)
class PropertyCase(Case):
    """One seed's scores of property inference beside its truth, which must answer as many questions."""

    def __post_init__(self) -> None:
        positives, asked = self.truth.positives, len(self.scores.facts["questions"])
        if positives is None or len(positives) != asked:
            answered = "none" if positives is None else f"{len(positives)}"
            raise DataError(
                f"seed {self.seed}: the scores answer {asked} questions and the truth answers {answered}; expected "
                "truth/positives.npz with a row for each, as the run's preparation writes it"
            )
        self.truth.check_nodes(self.scores.facts["clients"], seed=self.seed)

    def by_client(self, values: NDArray[Any]) -> NDArray[Any]:
        """Take the largest of the values (…, nodes) of a client's nodes; returns (…, clients)."""
        return np.stack([np.fmax.reduce(values[..., self.columns(name)], axis=-1) for name in self.clients], axis=-1)

    @cached_property
    def positives(self) -> Flags:
        """(questions, clients): who has the property."""
        if self.truth.positives is None:
            raise AssertionError("checked at the start")
        columns = [self.truth.clients.index(name) for name in self.clients]
        return np.asarray(self.truth.positives[:, columns])

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
    def observed(self) -> Flags:
        """(windows, clients): who had taken part by then; the others are unknown, neither right nor wrong."""
        return np.asarray(~np.isnan(self.score[0, 0]))

    @property
    def asked_of(self) -> NDArray[np.int64]:
        """Questions to which some client that was seen is an answer."""
        return np.flatnonzero((self.positives & self.observed[-1]).any(axis=1))

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
        counts = []
        for case, truth in zip(cases, positives, strict=True):
            observed = case.observed[window]
            named = case.named[method, case.asked_of, window] & observed
            counts.append(((named & truth).sum(), named.sum(), (truth & observed).sum()))
        return cls(*np.array(counts, dtype=np.float64).T)

    @property
    def either(self) -> NDArray[np.float64]:
        """Clients that are positive, named, or both."""
        return np.asarray(self.named + self.positive - self.hits)


def _f1_of(jaccard: float) -> float:
    return 2 * jaccard / (1 + jaccard)


@dataclass(frozen=True)
class _Measure:
    """A measure of a method's names: which counts are its trials, how its rate is read, and what chance is."""

    label: str
    trials: Callable[[_Counts], NDArray[np.float64]]
    read: Callable[[float], float]
    reason: str


_MEASURES: Mapping[str, _Measure] = {
    "f1": _Measure(
        "F1 score",
        lambda counts: counts.either,
        _f1_of,
        "chance is naming everybody, the null is the same names against a shuffled truth",
    ),
    "precision": _Measure(
        "Precision", lambda counts: counts.named, float, "chance is the share of clients with the property"
    ),
    "recall": _Measure("Recall", lambda counts: counts.positive, float, "chance is naming as many clients at random"),
}


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
        return sum(len(case.asked_of) * int(case.observed[-1].sum()) for case in self.cases)

    def findings(self) -> list[Finding]:
        """State F1 of each method, then what else is known of PROLIN's answers."""
        findings: list[Finding | None] = []
        if self.decisions:
            findings += [self._rate("f1", method) for method in range(len(METHODS))]
            findings += [self._rate("precision", 0), self._rate("recall", 0)]
            findings += [self._at_false_alarms(0), self._at_false_alarms(METHODS.index("posterior"))]
            findings.append(self._plaintext())
        else:
            findings.append(self._nobody())
        findings.append(self._false_alarms())
        return [finding for finding in findings if finding is not None]

    def _shuffle(self, draw: np.random.Generator) -> list[Flags]:
        """Deal the property to as many clients, at random among those that were seen."""
        dealt = []
        for case, truth in zip(self.cases, self.truth, strict=True):
            observed = np.flatnonzero(case.observed[-1])
            other = np.zeros_like(truth)
            other[:, observed] = draw.permuted(truth[:, observed], axis=1)
            dealt.append(other)
        return dealt

    def _rate(self, measure: str, method: int) -> Finding:
        trials_of, read = _MEASURES[measure].trials, _MEASURES[measure].read
        counts = _Counts.of(self.cases, method, self.last, self.truth)
        trials = trials_of(counts)
        value, low, high = _pooled(counts.hits, trials, read)
        nulls = []
        for truth in self.shuffled:
            shuffled = _Counts.of(self.cases, method, self.last, truth)
            nulls.append(_pooled_value(shuffled.hits, trials_of(shuffled), read))
        null = null_of(nulls, self.decisions)
        chance = self._chance(measure, counts)
        words, why = verdict(value, low, chance, null["high"])
        reason = f"{_MEASURES[measure].reason}: {why}"
        if all(case.at_chance[case.asked_of].all() for case in self.cases):
            words, reason = NO_EVIDENCE, "the detector is at chance in every round, so nothing is claimed"
        metric, label = measure, _MEASURES[measure].label
        if method > 0:
            metric, label = f"{measure}-{METHODS[method].lower()}", f"{label}, {METHODS[method]}"
        headline = metric == self.headline
        return self.finding(
            metric,
            label,
            value=value,
            low=low,
            high=high,
            n=self.decisions,
            chance=chance,
            null=null,
            verdict=words,
            reason=reason,
            headline=headline,
            series=self._series() if headline else {},
            **over_seeds([read(hits / n) for hits, n in zip(counts.hits, trials, strict=True) if n]),
        )

    def _chance(self, measure: str, counts: _Counts) -> float:
        """Naming everybody is the best that guessing can do for F1; precision is then the share of positives."""
        share = float(counts.positive.sum() / self.decisions)
        if measure == "f1":
            return _f1_of(share)
        if measure == "precision":
            return share
        return float(counts.named.sum() / self.decisions)

    def _nobody(self) -> Finding:
        reason = "no client that took part has the property: a null run, of which the false alarms speak"
        return self.unmeasured("f1", _MEASURES["f1"].label, reason, headline=True, series=self._series())

    def _false_alarms(self) -> Finding | None:
        """How often a client is named for a question to which nobody is the answer, or else a client without it."""
        empty = [np.setdiff1d(np.arange(len(case.positives)), case.asked_of) for case in self.cases]
        null = all(map(len, empty))
        alarms, trials = [], []
        for case, questions in zip(self.cases, empty, strict=True):
            chosen = questions if null else case.asked_of
            negative = case.observed[-1] & ~case.positives[chosen]
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
        """State recall at the threshold at which a few of the clients without the property are named."""
        hits, trials, nulls = [], [], []
        for seed, (case, truth) in enumerate(zip(self.cases, self.truth, strict=True)):
            score, observed = case.score[method, :, -1], case.observed[-1]
            quiet = score[:, observed][~case.positives[:, observed]]
            if not len(quiet) or not truth[:, observed].any():
                return None
            # a client is named above the threshold, so that ties with negatives do not count as hits
            threshold = np.quantile(quiet, 1 - _FALSE_ALARMS, method="higher")
            above = score[case.asked_of] > threshold
            hits.append(float((above & truth & observed).sum()))
            trials.append(int((truth & observed).sum()))
            nulls.append([float((above & dealt[seed] & observed).sum()) for dealt in self.shuffled])
        name = METHODS[method]
        return self.judged(
            "recall-at-far" if method == 0 else f"recall-at-far-{name.lower()}",
            f"Recall at {100 * _FALSE_ALARMS:.0f}% false alarms, {name}",
            rate_interval(hits, trials),
            null_of((np.sum(nulls, axis=0) / sum(trials)).tolist(), sum(trials)),
            f"the threshold lets {100 * _FALSE_ALARMS:.0f}% of the clients without the property pass",
            value=sum(hits) / sum(trials),
            n=sum(trials),
            chance=_FALSE_ALARMS,
        )

    def _plaintext(self) -> Finding | None:
        """Judge what example counts and metrics tell by themselves: secure aggregation lets them through."""
        sent = list(map(_plaintext_of, self.cases))
        common = set(sent[0]).intersection(*sent)
        metrics = [metric for metric in sent[0] if metric in common]
        if not metrics:
            return None
        areas = self._areas(metrics, sent, self.truth)
        # Either direction may tell, and the most telling metric is chosen after seeing all.
        distances = np.abs(areas - 0.5)
        best = int(distances.argmax())
        value = float(0.5 + distances[best])
        nulls = np.array([self._areas(metrics, sent, truth) for truth in self.shuffled[: _SHUFFLES // 5]])
        null = null_of((0.5 + np.abs(nulls - 0.5)).max(axis=1).tolist(), self.decisions)
        draw = np.random.default_rng((self.cases[0].seed, _TIES))
        low, high = self._area_interval(metrics[best], sent, draw, areas[best] >= 0.5, 2 * len(metrics))
        low, high = min(low, value), max(high, value)
        words, why = verdict(value, low, 0.5, null["high"], units="")
        return self.finding(
            "plaintext",
            f"What is sent in plaintext tells by itself: {metrics[best]}",
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
                "plaintext": [
                    {"metric": metric, "auc": area, "low": None, "high": None}
                    for metric, area in zip(metrics, areas.tolist(), strict=True)
                ]
            },
        )

    def _areas(self, metrics: Sequence[str], sent: Sequence[_Sent], truth: Sequence[Flags]) -> NDArray[np.float64]:
        """Return the area under the ROC curve of each metric (metrics,), averaged over seeds and questions."""
        means = []
        for metric in metrics:
            areas = []
            for case, values, flags in zip(self.cases, sent, truth, strict=True):
                observed = case.observed[-1] & ~np.isnan(values[metric])
                for positive in flags[:, observed]:
                    if positive.any() and not positive.all():
                        areas.append(_auc(values[metric][observed], positive))
            means.append(fmean(areas or [0.5]))
        return np.array(means)

    def _area_interval(
        self, metric: str, sent: Sequence[_Sent], draw: np.random.Generator, upwards: bool, comparisons: int
    ) -> tuple[float, float]:
        """Resample positive and negative clients."""
        areas = np.array([self._resampled_area(metric, sent, draw) for _ in range(_SHUFFLES // 5)])
        if not upwards:
            areas = 1 - areas
        tail = (1 - LEVEL) / 2 / comparisons
        low, high = np.quantile(areas, (tail, 1 - tail))
        return float(low), float(high)

    def _resampled_area(self, metric: str, sent: Sequence[_Sent], draw: np.random.Generator) -> float:
        areas = []
        for case, values, flags in zip(self.cases, sent, self.truth, strict=True):
            value = values[metric]
            observed = case.observed[-1] & ~np.isnan(value)
            for positive in flags:
                with_it, without = value[observed & positive], value[observed & ~positive]
                if len(with_it) and len(without):
                    chosen = [draw.choice(with_it, len(with_it)), draw.choice(without, len(without))]
                    has = np.arange(len(with_it) + len(without)) < len(with_it)
                    areas.append(_auc(np.concatenate(chosen), has))
        return fmean(areas or [0.5])

    def _series(self) -> dict[str, Any]:
        case = self.cases[0]
        question = int(case.asked_of[0]) if len(case.asked_of) else 0
        series: dict[str, Any] = {
            "stability": self._stability(),
            "overlap": self._overlap(),
            "distributions": _distributions(case, question),
            "posteriors": self._posteriors(),
        }
        if self.decisions:
            positives = int(sum(map(np.sum, self.truth)))
            series["methods"] = {
                "rounds": self.windows,
                "methods": {name: self._over_rounds(method) for method, name in enumerate(METHODS)},
                "chance": _f1_of(positives / self.decisions),
            }
        return series

    def _over_rounds(self, method: int) -> dict[str, list[float | None]]:
        curves: dict[str, list[float | None]] = defaultdict(list)
        for window in range(len(self.windows)):
            counts = _Counts.of(self.cases, method, window, self.truth)
            for name, measure in _MEASURES.items():
                n = float(measure.trials(counts).sum())
                curves[name].append(measure.read(float(counts.hits.sum()) / n) if n else None)
        return dict(curves)

    def _stability(self) -> dict[str, Any]:
        shares: dict[str, list[float]] = defaultdict(list)
        for method, name in enumerate(METHODS):
            for window in range(len(self.windows)):
                of_seeds = []
                for case in self.cases:
                    final = case.named[method, :, window] == case.named[method, :, -1]
                    of_seeds.append(final[:, case.observed[-1]].mean())
                shares[name].append(float(fmean(of_seeds)))
        return {"rounds": self.windows, "methods": dict(shares)}

    def _overlap(self) -> dict[str, Any]:
        rounds = min((case.scores.facts["rounds"] for case in self.cases), key=len)

        def over_questions(name: str) -> NDArray[np.float64]:
            return np.concatenate([case.scores.arrays[name][:, : len(rounds)] for case in self.cases])

        overlap, checked = over_questions("overlap"), over_questions("checked")
        rows = np.flatnonzero(~np.isnan(checked).all(axis=0))
        return {
            "rounds": rounds,
            "overlap": np.median(overlap, axis=0).tolist(),
            "low": overlap.min(axis=0).tolist(),
            "high": overlap.max(axis=0).tolist(),
            "accuracy": np.median(over_questions("accuracy"), axis=0).tolist(),
            "checked_rounds": np.array(rounds)[rows].tolist(),
            "checked_accuracy": np.nanmedian(checked[:, rows], axis=0).tolist(),
        }

    def _posteriors(self) -> list[dict[str, Any]]:
        """List all positives, and the most suspicious others."""
        entries: list[dict[str, Any]] = []
        for case in self.cases:
            entries += _posteriors_of(case)
        entries.sort(key=lambda entry: (-entry["posterior"], entry["seed"], entry["target"], entry["client"]))
        kept = [entry for index, entry in enumerate(entries) if entry["positive"] or index < _LISTED]
        return kept[: 2 * _LISTED]


def _posteriors_of(case: PropertyCase) -> Iterator[dict[str, Any]]:
    arrays = case.scores.arrays
    posterior = case.by_client(arrays["posterior"])
    low, high = case.by_client(arrays["posterior_low"]), case.by_client(arrays["posterior_high"])
    took_part = case.by_client((arrays["participation"] > 0).sum(axis=0))
    for question, asked in enumerate(case.scores.facts["questions"]):
        for column in np.flatnonzero(case.observed[-1]):
            yield {
                "client": case.clients[column],
                "target": str(asked),
                "seed": case.seed,
                "posterior": float(posterior[question, column]),
                "low": float(low[question, column]),
                "high": float(high[question, column]),
                "positive": bool(case.positives[question, column]),
                "rounds": int(took_part[column]),
            }


def _distributions(case: PropertyCase, question: int) -> list[dict[str, Any]]:
    arrays, facts = case.scores.arrays, case.scores.facts

    def density(side: str, row: int) -> dict[str, float]:
        mean, sd = arrays[f"{side}_mean"][question, row, 0], arrays[f"{side}_sd"][question, row, 0]
        return {"mean": float(mean), "sd": float(sd)}

    distributions = []
    for index, number in enumerate(facts["shown"]):
        row = facts["rounds"].index(number)
        distributions.append(
            {
                "round": number,
                "plus": density("plus", row),
                "minus": density("minus", row),
                "overlap": float(arrays["overlap"][question, row]),
                "plus_sample": arrays["plus_sample"][question, index].tolist(),
                "minus_sample": arrays["minus_sample"][question, index].tolist(),
            }
        )
    return distributions


def _plaintext_of(case: PropertyCase) -> _Sent:
    """Average what each client sent in plaintext over rounds."""
    sent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_ in case.record:
        for reply in round_.observations:
            if reply.status != "ok":
                continue
            case.truth.check_nodes([reply.node], seed=case.seed)
            for metric, value in {"num-examples": reply.num_examples, **reply.metrics}.items():
                if isinstance(value, int | float) and np.isfinite(value):
                    sent[str(metric)][case.truth.nodes[reply.node]].append(float(value))
    means = {}
    for metric, by_client in sent.items():
        means[metric] = np.array([fmean(by_client.get(client, [np.nan])) for client in case.clients])
    return means


def _auc(values: NDArray[np.float64], positive: Flags) -> float:
    ranks = stats.rankdata(values)
    with_it, without = int(positive.sum()), int((~positive).sum())
    return float((ranks[positive].sum() - with_it * (with_it + 1) / 2) / (with_it * without))


def _pooled_value(hits: NDArray[np.float64], trials: NDArray[np.float64], read: Callable[[float], float]) -> float:
    if not trials.sum():
        return 0.0
    return read(float(hits.sum() / trials.sum()))


def _pooled(
    hits: NDArray[np.float64], trials: NDArray[np.float64], read: Callable[[float], float]
) -> tuple[float, float, float]:
    """Pool over the seeds that had trials; a method that named nobody has a precision of nothing at all."""
    use = trials > 0
    if not use.any():
        return 0.0, 0.0, 1.0
    low, high = rate_interval(hits[use].tolist(), trials[use].astype(int).tolist())
    return _pooled_value(hits, trials, read), read(low), read(high)
