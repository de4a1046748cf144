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
from typing import Any

import numpy as np
from scipy import stats

from fedattack.audit.finding import AUC, LEAK, NO_EVIDENCE, NOT_APPLICABLE, Finding, Null
from fedattack.audit.intervals import LEVEL, t_interval
from fedattack.audit.judge import Judge
from fedattack.audit.measures import UNKNOWN, Measure, Measurement, Rate, measure, no_value, separate
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.roc import area
from fedattack.audit.significance import Draw, Significance, exchange_clients, least_p, significance_of
from fedattack.audit.summaries import null_of
from fedattack.audit.table import Row, rows_of
from fedattack.base.reasons import Reason
from fedattack.threats.property.case import Flags, Floats, PropertyCase, count_arrangements
from fedattack.threats.property.prolin import METHODS
from fedattack.threats.property.tables import CLIENTS

_FALSE_ALARMS = 0.05
_LISTED = 200

# Streams of random numbers, apart from each other.
_SHUFFLING, _EXCHANGING = 1, 2

# Answers (exchanges, questions, clients) that are held in memory together.
_ANSWERS = 1_000_000


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


def f1_of(jaccard: Any) -> Any:
    """Turn Jaccard indices into F1 scores."""
    return 2 * jaccard / (1 + jaccard)


@dataclass(frozen=True)
class _Naming:
    """A measure of a method's names: which counts are its trials, how its rate is read, and what chance is."""

    trials: Callable[[_Counts], Floats]
    read: Callable[[Any], Any]
    reason: str


_NAMINGS: Mapping[str, _Naming] = {
    "f1": _Naming(
        lambda counts: counts.either,
        f1_of,
        "chance is naming everybody, the null is the same names with the clients exchanged",
    ),
    "precision": _Naming(lambda counts: counts.named, np.asarray, "chance is the share of clients with the property"),
    "recall": _Naming(lambda counts: counts.positive, np.asarray, "chance is naming as many clients at random"),
}


def _name_by(method: str) -> Measure:
    """Register the measure of F1 of another method than PROLIN."""

    @measure(f"f1-{method.lower()}", f"F1 score, {method}")
    def name_by_method(judge: "PropertyJudge") -> Measurement | None:
        if not judge.decisions:
            return None
        return judge.measure_names("f1", METHODS.index(method))

    return name_by_method


class PropertyJudge(Judge[PropertyCase]):
    """States which clients PROLIN, and the methods beside it, named."""

    case = PropertyCase
    notes = (
        "The null of prolin's findings is the same answers with the clients exchanged at random, once for all "
        "questions. A null run, in which no client has the property, is `--set positives=0`.",
        "Clients that were never sampled are unknown: they count neither as right nor as wrong.",
    )

    def __init__(
        self, cases: Sequence[PropertyCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        setting = {**setting, "shadow updates": cases[0].found.mode}
        super().__init__(cases, setting=setting, provenance=provenance)
        # Seeds of one preset have as many windows; records from elsewhere may differ.
        fewest = min((case.found.windows for case in cases), key=len)
        self.windows = list(fewest)
        self.at_once = max(1, _ANSWERS // max(1, *(case.has.size for case in cases)))

    @property
    def decisions(self) -> int:
        """How many clients were judged, over all questions that some client answers."""
        return sum(self.each(lambda case: len(case.asked_of) * int(case.observed[-1].sum())))

    def state(self, part: Measure, found: Measurement) -> Finding:
        """Make a finding; take back what a detector seems to tell that tells nothing apart."""
        finding = super().state(part, found)
        if part.metric == "false-alarms":
            # Where nobody has the property there is no other headline.
            return replace(finding, headline=not self.decisions)
        at_chance = all(self.each(lambda case: case.at_chance[case.asked_of].all()))
        if part.metric == "plaintext" or not at_chance or finding.verdict not in (LEAK, NO_EVIDENCE):
            return finding
        ground = Reason("the detector is at chance in every round, so nothing is claimed")
        return replace(finding, verdict=NO_EVIDENCE, reason="", grounds=(ground,))

    @measure("f1", "F1 score", headline=True)
    def name_clients(self) -> Measurement:
        """Measure F1 of PROLIN after all rounds."""
        if self.decisions:
            return self.measure_names("f1", 0, series=self._series())
        if any(self.each(lambda case: len(case.seen))):
            reason = "no client that took part has the property: in a null run only the false alarms count"
            return no_value(reason, series=self._series())
        return no_value("no client took part in any round, so nobody could be named")

    name_by_regression, name_by_least_squares, name_by_baseline, name_by_posterior = map(_name_by, METHODS[1:])

    @measure("precision", "Precision")
    def name_precisely(self) -> Measurement | None:
        """Count how many of the named clients have the property."""
        if not self.decisions:
            return None
        return self.measure_names("precision", 0)

    @measure("recall", "Recall")
    def name_all(self) -> Measurement | None:
        """Count how many of the clients with the property are named."""
        if not self.decisions:
            return None
        return self.measure_names("recall", 0)

    @measure("recall-at-far", f"Recall at {100 * _FALSE_ALARMS:.0f}% false alarms, {METHODS[0]}")
    def recall_at_false_alarms(self) -> Measurement | None:
        """Measure PROLIN's recall at the threshold at which a few of the clients without the property are named."""
        return self._recall_at_false_alarms(0)

    @measure("recall-at-far-posterior", f"Recall at {100 * _FALSE_ALARMS:.0f}% false alarms, posterior")
    def recall_at_false_alarms_by_posterior(self) -> Measurement | None:
        """Measure the same of the posterior."""
        return self._recall_at_false_alarms(METHODS.index("posterior"))

    @measure("plaintext")
    def read_plaintext(self) -> Measurement | None:
        """Judge what example counts and metrics tell by themselves: secure aggregation lets them through."""
        common = set.intersection(*(set(case.plaintext) for case in self.cases))
        metrics = [metric for metric in self.cases[0].plaintext if metric in common]
        if not metrics or not self.decisions:
            return None
        values = []
        for case in self.cases:
            values.append(np.stack([case.plaintext[metric][case.seen] for metric in metrics]))
        areas = _average_areas(values, self.each(lambda case: case.has[None]))[0]
        # Either direction may tell, and the most telling metric is chosen after seeing all.
        distances = np.abs(areas - 0.5)
        best = int(distances.argmax())

        def draw(rng: np.random.Generator, count: int) -> Floats:
            drawn = _average_areas(values, self.each(lambda case: case.draw_exchanges(rng, count)))
            return np.asarray(np.abs(drawn - 0.5).max(axis=1))

        rows = []
        for metric, value in zip(metrics, areas.tolist(), strict=True):
            rows.append({"metric": metric, "auc": value, "low": None, "high": None})
        return Measurement(
            label=f"What plaintext alone tells: {metrics[best]}",
            reason="area under the ROC curve of the most telling of the example counts and metrics that pass secure "
            "aggregation in plaintext, averaged over rounds, in its better direction",
            value=float(0.5 + distances[best]),
            n=self.decisions,
            interval=self._area_interval([of_case[best] for of_case in values], areas[best] >= 0.5, len(metrics)),
            null=null_of((0.5 + self._draw_exchanges(draw)).tolist(), self.decisions),
            chance=0.5,
            units=AUC,
            test=self._test(float(distances[best]), draw),
            chosen_among=len(metrics),
            series={"plaintext": rows},
        )

    @measure("false-alarms")
    def count_false_alarms(self) -> Measurement | None:
        """Count how often a client is named for what nobody has, or else a client without the property."""
        empty = self.each(lambda case: np.setdiff1d(np.arange(len(case.positives)), case.asked_of))
        null = all(map(len, empty))
        alarms = []
        for case, questions in zip(self.cases, empty, strict=True):
            chosen = case.asked_of
            if null:
                chosen = questions
            alarms.append(case.named[0, chosen, -1][case.observed[-1] & ~case.positives[chosen]])
        rate = Rate.of(alarms)
        if not all(rate.sizes):
            return None
        whose = "without the property"
        if null:
            whose = "for something that nobody has"
        return rate.measured(
            "an error rate that helps to read the other findings; it is not a leak by itself",
            label=f"False alarms: clients named {whose}",
            here=UNKNOWN,
            verdict=NOT_APPLICABLE,
        )

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to say who has the property, if all clients are seen; a null run has none."""
        has = [run.truth.positives for run in runs if run.truth.positives is not None and run.truth.positives.any()]
        if not has:
            return None
        # The first of several questions that some client answers.
        answered = has[0][has[0].any(axis=1)][0]
        clients, positive = len(answered), int(answered.sum())
        enough = positive + smallest(lambda others: math.comb(positive + others, positive) * needed >= 1)
        return Reach(
            least_p(count_arrangements(has)),
            f"{clients} clients, {positive} of them with the property",
            f"{enough} clients, {positive} of them with the property",
            f"clients={enough}",
        )

    @rows_of(CLIENTS)
    def list_answers(self, case: PropertyCase) -> Iterator[Row]:
        """List every answer about a client."""
        asked = product(range(len(case.positives)), case.seen.tolist())
        for (question, column), entry in zip(asked, case.list_posteriors(), strict=True):
            named = bool(case.named[0, question, -1, column])
            yield {**entry, "named": named, "score": float(case.score[0, question, -1, column])}

    @cached_property
    def _arrangements(self) -> float:
        return count_arrangements(self.each(lambda case: case.has))

    def _test(self, observed: float, draw: Draw) -> Significance:
        return significance_of(
            observed,
            draw,
            self.rng(_EXCHANGING),
            "the clients of each run exchanged",
            arrangements=self._arrangements,
            draws=self.draws,
            at_once=self.at_once,
        )

    def _draw_exchanges(self, draw: Draw) -> Floats:
        """Return the statistics (n,) of some exchanges, of which a null is made."""
        rng = self.rng(_SHUFFLING)
        drawn = []
        for start in range(0, self.shuffles, self.at_once):
            drawn.append(draw(rng, min(self.at_once, self.shuffles - start)))
        return np.concatenate(drawn)

    def measure_names(self, measure: str, method: int, **parts: Any) -> Measurement:
        """Measure F1, precision or recall of a method after all rounds."""
        naming = _NAMINGS[measure]
        counts = _Counts.of(self.cases, method, -1)
        trials = naming.trials(counts)
        draw = partial(_draw_hits, self.each(lambda case: _match(case, method)))
        return Measurement(
            reason=naming.reason,
            n=self.decisions,
            null=self._null_of_names(naming, counts, draw),
            # All three measures rise with the right names, and with nothing else that an exchange changes.
            test=self._test(float(counts.hits.sum()), draw),
            chance=self._guess_names(measure, counts),
            **_read_seeds(counts.hits, trials, naming.read),
            **parts,
        )

    def _null_of_names(self, naming: _Naming, counts: _Counts, draw: Draw) -> Null:
        """Sum up a measure of the same names for each of some exchanges."""
        exchanged = _Counts(self._draw_exchanges(draw), counts.named.sum(), counts.positive.sum())
        rates = naming.read(exchanged.hits / np.maximum(naming.trials(exchanged), 1))
        return null_of(rates.tolist(), self.decisions)

    def _guess_names(self, measure: str, counts: _Counts) -> float:
        """Naming everybody is the best that guessing can do for F1; precision is then the share of positives."""
        share = float(counts.positive.sum() / self.decisions)
        if measure == "f1":
            return float(f1_of(share))
        if measure == "precision":
            return share
        return float(counts.named.sum() / self.decisions)

    def _recall_at_false_alarms(self, method: int) -> Measurement | None:
        hits, trials, scores = [], [], []
        for case in self.cases:
            score = case.score[method, :, -1][:, case.seen]
            positive = int(case.has.sum())
            if not self.decisions or not positive or positive == case.has.size:
                return None
            hits.append(float(_find_above(score, case.has[None])[0]))
            trials.append(positive)
            scores.append(score)

        def draw(rng: np.random.Generator, count: int) -> Floats:
            recalled = np.zeros(count)
            for case, score in zip(self.cases, scores, strict=True):
                recalled += _find_above(score, case.draw_exchanges(rng, count))
            return recalled

        rate = Rate(hits, trials)
        return rate.measured(
            f"the threshold lets {100 * _FALSE_ALARMS:.0f}% of the clients without the property pass",
            null=null_of((self._draw_exchanges(draw) / rate.n).tolist(), rate.n),
            test=self._test(sum(hits), draw),
            chance=_FALSE_ALARMS,
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
        if not upwards:
            return 1 - high, 1 - low
        return low, high

    def _series(self) -> dict[str, Any]:
        case = self.cases[0]
        question = 0
        if len(case.asked_of):
            question = int(case.asked_of[0])
        series: dict[str, Any] = {
            "stability": self._measure_stability(),
            "overlap": self._overlap(),
            "distributions": case.list_distributions(question),
            "posteriors": self._list_posteriors(),
        }
        scores = self._last_scores()
        if all(map(len, scores)):
            series |= separate(*scores)
        if self.decisions:
            positives = sum(self.each(lambda case: int(case.has.sum())))
            series["methods"] = {
                "rounds": self.windows,
                "methods": {name: self._measure_rounds(method) for method, name in enumerate(METHODS)},
                "chance": f1_of(positives / self.decisions),
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

    def _measure_rounds(self, method: int) -> dict[str, list[float | None]]:
        curves: dict[str, list[float | None]] = defaultdict(list)
        for window in range(len(self.windows)):
            counts = _Counts.of(self.cases, method, window)
            for name, naming in _NAMINGS.items():
                n = float(naming.trials(counts).sum())
                value = None
                if n:
                    value = float(naming.read(counts.hits.sum() / n))
                curves[name].append(value)
        return dict(curves)

    def _measure_stability(self) -> dict[str, Any]:
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
        fewest = min((case.found.rounds for case in self.cases), key=len)
        rounds = list(fewest)
        # Questions of all seeds one after the other, (questions, rounds).
        overlap = self.pool(lambda case: case.found.overlap[:, : len(rounds)])
        checked = self.pool(lambda case: case.found.checked[:, : len(rounds)])
        accuracy = self.pool(lambda case: case.found.accuracy[:, : len(rounds)])
        rows = np.flatnonzero(~np.isnan(checked).all(axis=0))
        return {
            "rounds": rounds,
            "overlap": np.median(overlap, axis=0).tolist(),
            "low": overlap.min(axis=0).tolist(),
            "high": overlap.max(axis=0).tolist(),
            "accuracy": np.median(accuracy, axis=0).tolist(),
            "checked_rounds": np.array(rounds)[rows].tolist(),
            "checked_accuracy": np.nanmedian(checked[:, rows], axis=0).tolist(),
        }

    def _list_posteriors(self) -> list[dict[str, Any]]:
        """List all positives, and the most suspicious others."""
        entries: list[dict[str, Any]] = []
        for case in self.cases:
            entries += case.list_posteriors()
        entries.sort(key=lambda entry: (-entry["posterior"], entry["seed"], entry["target"], entry["client"]))
        kept = [entry for index, entry in enumerate(entries) if entry["positive"] or index < _LISTED]
        return kept[: 2 * _LISTED]


def _match(case: PropertyCase, method: int) -> Floats:
    """Count to how many questions the first client was named and the second is an answer, (seen, seen)."""
    named = case.named[method, :, -1][:, case.seen]
    return np.asarray(named.T.astype(np.float64) @ case.has)


def _draw_hits(matches: Sequence[Floats], rng: np.random.Generator, count: int) -> Floats:
    """Count the right names (count,) of exchanges."""
    hits = np.zeros(count)
    for match in matches:
        who = exchange_clients(len(match), rng, count)
        hits += match[np.arange(len(match)), who].sum(axis=1)
    return hits


def _find_above(score: Floats, has: Flags) -> Any:
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
    # Counted from below, the threshold is the score of index ⌈(1 − 0.05)·(n − 1)⌉; this is its rank from the top.
    rank = n - math.ceil((1 - _FALSE_ALARMS) * (n - 1))
    above = first_equal[(others >= rank).argmax(axis=1)]
    others_above = np.where(above > 0, others[np.arange(len(has)), above - 1], 0)
    return above - others_above


def _average_areas(values: Sequence[Floats], truths: Sequence[Flags]) -> Floats:
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
            # The Mann-Whitney statistic: sums of ranks less what they are at least, of all pairs.
            won = flags @ stats.rankdata(sent[known]) - positive * (positive + 1) / 2
            total[:, metric] += (won / np.maximum(pairs, 1)).sum(axis=1)
            counted[:, metric] += (pairs > 0).sum(axis=1)
    return np.where(counted > 0, total / np.maximum(counted, 1), 0.5)


def _read_seeds(hits: Floats, trials: Floats, read: Callable[[Any], Any]) -> dict[str, Any]:
    """Pool over the seeds that had trials; a method that named nobody has a precision of nothing at all."""
    use = trials > 0
    rate = Rate(hits[use].tolist(), trials[use].astype(int).tolist())
    if not use.any():
        return {"value": 0.0, "interval": (0.0, 1.0)}
    low, high = rate.interval()
    pooled = {"value": float(read(rate.value)), "interval": (float(read(low)), float(read(high)))}
    here_low, here_high = rate.here
    if here_low is not None and here_high is not None:
        pooled["here"] = (float(read(here_low)), float(read(here_high)))
    return pooled | {"by_seed": [float(read(of_seed)) for of_seed in rate.by_seed]}
