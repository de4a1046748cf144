"""Judge property inference: which clients were named, which of them have the property, and what guessing would give.

F1 is judged through the Jaccard index J = TP/(TP + FP + FN), of which it is 2J/(1 + J). J is a rate among the clients
that are positive, named or both, and so has the interval of a rate.

What could be an accident is found by exchanging who is who among the clients of a run that took part, for all questions
at once: a client may have the property in several questions, and a method may name the same client in all of them.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import gammaln

from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, Finding
from fedattack.audit.intervals import LEVEL, here_of, rate_interval, t_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.roc import area, curve
from fedattack.audit.significance import DRAWS, Draw, Significance, count_of, exchange_clients, least_p, significance_of
from fedattack.audit.summaries import histogram, null_of
from fedattack.base.errors import DataError
from fedattack.threats.property.prolin import METHODS

_FALSE_ALARMS = 0.05
_SHUFFLES = 1_000
_LISTED = 200

# Streams of random numbers, apart from each other.
_SHUFFLING, _EXCHANGING = 1, 2

# Answers (exchanges, questions, clients) that are held in memory together.
_ANSWERS = 1_000_000

_HOW = "the clients of each run exchanged"

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
_Sent = Mapping[str, Floats]
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
        # Of no clients nothing can be stacked.
        if not self.clients:
            return values
        return np.stack([np.fmax.reduce(values[..., self.columns(name)], axis=-1) for name in self.clients], axis=-1)

    @cached_property
    def positives(self) -> Flags:
        """(questions, clients): who has the property."""
        if self.truth.positives is None:
            raise AssertionError("checked at the start")
        columns = [self.truth.clients.index(name) for name in self.clients]
        return np.asarray(self.truth.positives[:, columns])

    @cached_property
    def score(self) -> Floats:
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

    @cached_property
    def seen(self) -> NDArray[np.int64]:
        """(seen,): the places of the clients that ever took part."""
        return np.flatnonzero(self.observed[-1])

    @cached_property
    def has(self) -> Flags:
        """(questions, seen): which of them have the property."""
        return np.asarray(self.positives[:, self.seen])

    def exchanged(self, rng: np.random.Generator, count: int) -> Flags:
        """Draw who is who: (count, questions, seen), in each draw the same exchange for all questions."""
        who = exchange_clients(len(self.seen), rng, count)
        return np.moveaxis(self.has[:, who], 1, 0)

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

    hits: Floats
    named: Floats
    positive: Floats

    @classmethod
    def of(cls, cases: Sequence[PropertyCase], method: int, window: int) -> "_Counts":
        counts = []
        for case in cases:
            truth, observed = case.positives[case.asked_of], case.observed[window]
            named = case.named[method, case.asked_of, window] & observed
            counts.append(((named & truth).sum(), named.sum(), (truth & observed).sum()))
        return cls(*np.array(counts, dtype=np.float64).T)

    @property
    def either(self) -> Floats:
        """Clients that are positive, named, or both."""
        return np.asarray(self.named + self.positive - self.hits)


def _f1_of(jaccard: Any) -> Any:
    return 2 * jaccard / (1 + jaccard)


@dataclass(frozen=True)
class _Measure:
    """A measure of a method's names: which counts are its trials, how its rate is read, and what chance is."""

    label: str
    trials: Callable[[_Counts], Floats]
    read: Callable[[Any], Any]
    reason: str


_MEASURES: Mapping[str, _Measure] = {
    "f1": _Measure(
        "F1 score",
        lambda counts: counts.either,
        _f1_of,
        "chance is naming everybody, the null is the same names with the clients exchanged",
    ),
    "precision": _Measure(
        "Precision", lambda counts: counts.named, np.asarray, "chance is the share of clients with the property"
    ),
    "recall": _Measure(
        "Recall", lambda counts: counts.positive, np.asarray, "chance is naming as many clients at random"
    ),
}


class PropertyJudge(Judge[PropertyCase]):
    """States which clients PROLIN, and the methods beside it, named; F1 of PROLIN after all rounds is the headline."""

    case = PropertyCase
    headline = "f1"
    notes = (
        "The null of prolin's findings is the same answers with the clients exchanged: who is who is drawn anew, once "
        "for all questions. A null run, in which no client has the property, is `--set positives=0`.",
        "Clients that were never sampled are unknown: they count neither as right nor as wrong.",
    )

    draws: ClassVar[int] = DRAWS
    """Exchanges that a test draws."""

    def __init__(
        self, cases: Sequence[PropertyCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        setting = {**setting, "shadow updates": cases[0].scores.facts["mode"]}
        super().__init__(cases, setting=setting, provenance=provenance)
        # Seeds of one preset have as many windows; records from elsewhere may differ.
        self.windows = min((case.scores.facts["windows"] for case in cases), key=len)
        self.at_once = max(1, _ANSWERS // max(1, *(case.has.size for case in cases)))

    @property
    def decisions(self) -> int:
        """How many clients were judged, over all questions that some client answers."""
        return sum(len(case.asked_of) * int(case.observed[-1].sum()) for case in self.cases)

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to say who has the property, if all clients are seen; a null run has none."""
        has = [run.truth.positives for run in runs if run.truth.positives is not None and run.truth.positives.any()]
        if not has:
            return None
        # Of several questions the first that some client answers.
        answered = has[0][has[0].any(axis=1)][0]
        clients, positive = len(answered), int(answered.sum())
        enough = positive + smallest(lambda others: math.comb(positive + others, positive) * needed >= 1)
        return Reach(
            least_p(_arrangements(has)),
            f"{clients} clients, {positive} of them with the property",
            f"{enough} clients, {positive} of them with the property",
            f"clients={enough}",
        )

    def findings(self) -> list[Finding]:
        """State F1 of each method, then what else is known of PROLIN's answers."""
        findings: list[Finding | None] = []
        if self.decisions:
            findings += [self._rate("f1", method) for method in range(len(METHODS))]
            findings += [self._rate("precision", 0), self._rate("recall", 0)]
            findings += [self._at_false_alarms(0), self._at_false_alarms(METHODS.index("posterior"))]
            findings.append(self._plaintext())
        elif any(len(case.seen) for case in self.cases):
            reason = "no client that took part has the property: a null run, of which the false alarms speak"
            findings.append(self._unmeasured(reason, self._series()))
        else:
            findings.append(self._unmeasured("no client took part in any round, so that nobody could be named", {}))
        findings.append(self._false_alarms())
        return [finding for finding in findings if finding is not None]

    def listings(self) -> Iterator[Listing]:
        """List every answer about a client."""
        yield Listing(
            "clients",
            "one row for each client that took part and each question; named and score are PROLIN's, after all rounds",
            ("seed", "question", "client", "has", "named", "score", "posterior", "low", "high", "rounds"),
            self._answers(),
        )

    def _answers(self) -> Iterator[tuple[Cell, ...]]:
        for case in self.cases:
            places = product(range(len(case.positives)), case.seen.tolist())
            for (question, column), entry in zip(places, _posteriors_of(case), strict=True):
                posterior = (entry["posterior"], entry["low"], entry["high"], entry["rounds"])
                named = bool(case.named[0, question, -1, column])
                score = float(case.score[0, question, -1, column])
                yield case.seed, entry["target"], entry["client"], entry["positive"], named, score, *posterior

    @cached_property
    def arrangements(self) -> float:
        """How many different truths the exchanges give; clients with the same properties are alike."""
        return _arrangements([case.has for case in self.cases])

    def _test(self, observed: float, draw: Draw) -> Significance:
        rng = np.random.default_rng((self.cases[0].seed, _EXCHANGING))
        sizes: dict[str, Any] = {"arrangements": self.arrangements, "draws": self.draws, "at_once": self.at_once}
        return significance_of(observed, draw, rng, _HOW, **sizes)

    def _exchanged(self, draw: Draw) -> Floats:
        """Return the statistics (n,) of some exchanges, of which a null is made."""
        rng = np.random.default_rng((self.cases[0].seed, _SHUFFLING))
        drawn = []
        for start in range(0, _SHUFFLES, self.at_once):
            drawn.append(draw(rng, min(self.at_once, _SHUFFLES - start)))
        return np.concatenate(drawn)

    def _claimed(self, finding: Finding) -> Finding:
        """Take back what a detector seems to tell that tells nothing apart."""
        at_chance = all(case.at_chance[case.asked_of].all() for case in self.cases)
        if not at_chance or finding.verdict not in (LEAK, NO_EVIDENCE):
            return finding
        reason = "the detector is at chance in every round, so nothing is claimed"
        return replace(finding, verdict=NO_EVIDENCE, reason=reason)

    def _rate(self, measure: str, method: int) -> Finding:
        trials_of, read = _MEASURES[measure].trials, _MEASURES[measure].read
        counts = _Counts.of(self.cases, method, -1)
        trials = trials_of(counts)
        value, low, high = _pooled(counts.hits, trials, read)
        draw = partial(_drawn_hits, [_matches(case, method) for case in self.cases])
        metric, label = measure, _MEASURES[measure].label
        if method > 0:
            metric, label = f"{measure}-{METHODS[method].lower()}", f"{label}, {METHODS[method]}"
        headline = metric == self.headline
        finding = self.judged(
            metric,
            label,
            (low, high),
            null_of(self._null_rates(measure, counts, draw), self.decisions),
            _MEASURES[measure].reason,
            # All three measures rise with the right names, and with nothing else that an exchange changes.
            test=self._test(float(counts.hits.sum()), draw),
            here=_these_runs(counts.hits, trials, read),
            value=value,
            n=self.decisions,
            chance=self._chance(measure, counts),
            headline=headline,
            series=self._series() if headline else {},
            **over_seeds([float(read(hits / n)) for hits, n in zip(counts.hits, trials, strict=True) if n]),
        )
        return self._claimed(finding)

    def _null_rates(self, measure: str, counts: _Counts, draw: Draw) -> list[float]:
        """Return a measure of the same names for each of some exchanges."""
        exchanged = _Counts(self._exchanged(draw), counts.named.sum(), counts.positive.sum())
        trials = _MEASURES[measure].trials(exchanged)
        rates: list[float] = _MEASURES[measure].read(exchanged.hits / np.maximum(trials, 1)).tolist()
        return rates

    def _chance(self, measure: str, counts: _Counts) -> float:
        """Naming everybody is the best that guessing can do for F1; precision is then the share of positives."""
        share = float(counts.positive.sum() / self.decisions)
        if measure == "f1":
            return float(_f1_of(share))
        if measure == "precision":
            return share
        return float(counts.named.sum() / self.decisions)

    def _unmeasured(self, reason: str, series: Mapping[str, Any]) -> Finding:
        return self.unmeasured("f1", _MEASURES["f1"].label, reason, headline=True, series=series)

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
        hits, trials, scores = [], [], []
        for case in self.cases:
            score = case.score[method, :, -1][:, case.seen]
            positive = int(case.has.sum())
            if not positive or positive == case.has.size:
                return None
            hits.append(float(_found(score, case.has[None])[0]))
            trials.append(positive)
            scores.append(score)

        def draw(rng: np.random.Generator, count: int) -> Floats:
            found = np.zeros(count)
            for case, score in zip(self.cases, scores, strict=True):
                found += _found(score, case.exchanged(rng, count))
            return found

        name = METHODS[method]
        finding = self.judged(
            "recall-at-far" if method == 0 else f"recall-at-far-{name.lower()}",
            f"Recall at {100 * _FALSE_ALARMS:.0f}% false alarms, {name}",
            rate_interval(hits, trials),
            null_of((self._exchanged(draw) / sum(trials)).tolist(), sum(trials)),
            f"the threshold lets {100 * _FALSE_ALARMS:.0f}% of the clients without the property pass",
            test=self._test(sum(hits), draw),
            here=here_of(hits, trials),
            value=sum(hits) / sum(trials),
            n=sum(trials),
            chance=_FALSE_ALARMS,
        )
        return self._claimed(finding)

    def _plaintext(self) -> Finding | None:
        """Judge what example counts and metrics tell by themselves: secure aggregation lets them through."""
        sent = list(map(_plaintext_of, self.cases))
        common = set(sent[0]).intersection(*sent)
        metrics = [metric for metric in sent[0] if metric in common]
        if not metrics:
            return None
        values = []
        for case, of_case in zip(self.cases, sent, strict=True):
            values.append(np.stack([of_case[metric][case.seen] for metric in metrics]))
        areas = _mean_areas(values, [case.has[None] for case in self.cases])[0]
        # Either direction may tell, and the most telling metric is chosen after seeing all.
        distances = np.abs(areas - 0.5)
        best = int(distances.argmax())

        def draw(rng: np.random.Generator, count: int) -> Floats:
            drawn = _mean_areas(values, [case.exchanged(rng, count) for case in self.cases])
            return np.asarray(np.abs(drawn - 0.5).max(axis=1))

        return self.judged(
            "plaintext",
            f"What is sent in plaintext tells by itself: {metrics[best]}",
            self._area_interval([of_case[best] for of_case in values], areas[best] >= 0.5, len(metrics)),
            null_of((0.5 + self._exchanged(draw)).tolist(), self.decisions),
            "area under the ROC curve of the most telling of the example counts and metrics that pass secure "
            "aggregation in plaintext, averaged over rounds, in its better direction",
            test=self._test(float(distances[best]), draw),
            value=float(0.5 + distances[best]),
            units="AUC",
            n=self.decisions,
            chance=0.5,
            selected_after_the_fact=True,
            comparisons=len(metrics),
            series={
                "plaintext": [
                    {"metric": metric, "auc": auc, "low": None, "high": None}
                    for metric, auc in zip(metrics, areas.tolist(), strict=True)
                ]
            },
        )

    def _area_interval(self, values: Sequence[Floats], upwards: bool, comparisons: int) -> tuple[float, float]:
        """Return the interval of a metric's mean area, in the direction in which it tells.

        The intervals of all metrics hold together, so that the choice among them is paid for, whatever the direction.
        The questions of a run share their clients. So the ends are the means of the questions' ends, which holds
        however much they depend on each other.
        """
        corrected = 1 - (1 - LEVEL) / comparisons
        ends: list[tuple[float, float]] = []
        by_seed = []
        for case, of_case in zip(self.cases, values, strict=True):
            known = ~np.isnan(of_case)
            means = []
            for positive in case.has:
                with_it, without = of_case[positive & known], of_case[~positive & known]
                if len(with_it) and len(without):
                    estimate = area(with_it, without, corrected)
                    ends.append((estimate.low, estimate.high))
                    means.append(estimate.value)
            if means:
                by_seed.append(fmean(means))
        if not ends:
            return 0.0, 1.0
        low, high = np.mean(ends, axis=0).tolist()
        if len(by_seed) > 1:
            spread = t_interval(by_seed, corrected, bounds=(0.0, 1.0))
            low, high = min(low, spread[0]), max(high, spread[1])
        return (low, high) if upwards else (1 - high, 1 - low)

    def _series(self) -> dict[str, Any]:
        case = self.cases[0]
        question = int(case.asked_of[0]) if len(case.asked_of) else 0
        series: dict[str, Any] = {
            "stability": self._stability(),
            "overlap": self._overlap(),
            "distributions": _distributions(case, question),
            "posteriors": self._posteriors(),
        }
        scores = self._last_scores()
        if all(map(len, scores)):
            series |= {"roc": curve(*scores, band=False), "scores": histogram(*scores)}
        if self.decisions:
            positives = sum(int(case.has.sum()) for case in self.cases)
            series["methods"] = {
                "rounds": self.windows,
                "methods": {name: self._over_rounds(method) for method, name in enumerate(METHODS)},
                "chance": _f1_of(positives / self.decisions),
            }
        return series

    def _last_scores(self) -> tuple[Floats, Floats]:
        """Return PROLIN's scores after all rounds of clients with the property, and of clients without."""
        with_it, without = [np.zeros(0)], [np.zeros(0)]
        for case in self.cases:
            for question in case.asked_of:
                score, has = case.score[0, question, -1][case.seen], case.has[question]
                with_it.append(score[has])
                without.append(score[~has])
        return np.concatenate(with_it), np.concatenate(without)

    def _over_rounds(self, method: int) -> dict[str, list[float | None]]:
        curves: dict[str, list[float | None]] = defaultdict(list)
        for window in range(len(self.windows)):
            counts = _Counts.of(self.cases, method, window)
            for name, measure in _MEASURES.items():
                n = float(measure.trials(counts).sum())
                curves[name].append(float(measure.read(counts.hits.sum() / n)) if n else None)
        return dict(curves)

    def _stability(self) -> dict[str, Any]:
        shares: dict[str, list[float]] = defaultdict(list)
        for method, name in enumerate(METHODS):
            for window in range(len(self.windows)):
                of_seeds = []
                for case in self.cases:
                    if not len(case.seen):
                        continue
                    final = case.named[method, :, window] == case.named[method, :, -1]
                    of_seeds.append(final[:, case.seen].mean())
                shares[name].append(float(fmean(of_seeds)))
        return {"rounds": self.windows, "methods": dict(shares)}

    def _overlap(self) -> dict[str, Any]:
        rounds = min((case.scores.facts["rounds"] for case in self.cases), key=len)

        def over_questions(name: str) -> Floats:
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


def _arrangements(runs: Sequence[Flags]) -> float:
    """Count the truths that exchanges of clients give, of runs (questions, clients) of who has the property."""
    logarithm = 0.0
    for has in runs:
        _, alike = np.unique(has, axis=1, return_counts=True)
        logarithm += float(gammaln(has.shape[1] + 1) - gammaln(alike + 1).sum())
    return count_of(logarithm)


def _matches(case: PropertyCase, method: int) -> Floats:
    """Count to how many questions the first client was named and the second is an answer, (seen, seen)."""
    named = case.named[method, :, -1][:, case.seen]
    return np.asarray(named.T.astype(np.float64) @ case.has)


def _drawn_hits(matches: Sequence[Floats], rng: np.random.Generator, count: int) -> Floats:
    """Count the right names (count,) of exchanges."""
    hits = np.zeros(count)
    for match in matches:
        who = exchange_clients(len(match), rng, count)
        hits += match[np.arange(len(match)), who].sum(axis=1)
    return hits


def _found(score: Floats, has: Flags) -> NDArray[np.int64]:
    """Count the positives above the threshold that lets :data:`_FALSE_ALARMS` of the others pass.

    The threshold is one of the others' scores. What equals it is not above it. The others are those of this very truth,
    so that an exchanged one has its own threshold.

    Parameters
    ----------
    score
        (questions, clients)
    has
        (count, questions, clients): who has the property, as many in each.

    Returns
    -------
    ndarray
        (count,)
    """
    order = np.argsort(-score, axis=None)
    falling = -score.ravel()[order]
    first_equal = np.searchsorted(falling, falling)
    others = np.cumsum(~has.reshape(len(has), -1)[:, order], axis=1)
    n = int(others[0, -1])
    rank = n - math.ceil((1 - _FALSE_ALARMS) * (n - 1))
    above = first_equal[(others >= rank).argmax(axis=1)]
    others_above = np.where(above > 0, others[np.arange(len(has)), above - 1], 0)
    return np.asarray(above - others_above)


def _mean_areas(values: Sequence[Floats], truths: Sequence[Flags]) -> Floats:
    """Return areas under the ROC curve, averaged over all questions of all seeds that have one.

    Parameters
    ----------
    values
        For each seed (metrics, clients), NaN where a client did not send it.
    truths
        For each seed (count, questions, clients).

    Returns
    -------
    ndarray
        (count, metrics); one half where no question has an area.
    """
    shape = len(truths[0]), len(values[0])
    total, counted = np.zeros(shape), np.zeros(shape)
    for of_seed, has in zip(values, truths, strict=True):
        for metric, sent in enumerate(of_seed):
            known = ~np.isnan(sent)
            flags = has[..., known].astype(np.float64)
            positive = flags.sum(axis=-1)
            pairs = positive * (known.sum() - positive)
            won = flags @ stats.rankdata(sent[known]) - positive * (positive + 1) / 2
            total[:, metric] += (won / np.maximum(pairs, 1)).sum(axis=1)
            counted[:, metric] += (pairs > 0).sum(axis=1)
    return np.where(counted > 0, total / np.maximum(counted, 1), 0.5)


def _pooled(hits: Floats, trials: Floats, read: Callable[[Any], Any]) -> tuple[float, float, float]:
    """Pool over the seeds that had trials; a method that named nobody has a precision of nothing at all."""
    use = trials > 0
    if not use.any():
        return 0.0, 0.0, 1.0
    low, high = rate_interval(hits[use].tolist(), trials[use].astype(int).tolist())
    return float(read(hits.sum() / trials.sum())), float(read(low)), float(read(high))


def _these_runs(hits: Floats, trials: Floats, read: Callable[[Any], Any]) -> tuple[float, float] | None:
    """Return the interval about these very runs, where several had trials."""
    use = trials > 0
    here = here_of(hits[use].tolist(), trials[use].astype(int).tolist())
    return None if here is None else (float(read(here[0])), float(read(here[1])))
