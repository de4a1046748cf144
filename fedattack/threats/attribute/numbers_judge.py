"""Judge a column of numbers: how many are met within a tolerance, and how well their order is, beside imputation.

What counts is the excess over the best estimate without any update, as for a column of few values. Two tests must say
that it is no accident: estimates must be nearer than the best baseline's, and depend on which of a client's examples
has which number. An attack that knows no more than a client's mean passes the first alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from fedattack.attacks.knowledge import PartialRecords, Targets
from fedattack.audit.answers import better_than, both
from fedattack.audit.finding import Null
from fedattack.audit.intervals import LEVEL, mean_interval
from fedattack.audit.judge import Judge, rows_of_clients
from fedattack.audit.measures import UNKNOWN, Measurement, Rate, measure
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import (
    DRAWS,
    Significance,
    arrangements_within,
    exchange_within,
    least_p,
    significance_of,
)
from fedattack.audit.summaries import null_of
from fedattack.audit.table import Row, rows_of
from fedattack.base.errors import DataError
from fedattack.threats.attribute.case import IMPUTATION, ColumnCase
from fedattack.threats.attribute.imputation import impute_numbers
from fedattack.threats.attribute.judge import POINTS, compare_hits, list_by_client, slug
from fedattack.threats.attribute.numbers import MAIN, EstimatedNumbers
from fedattack.threats.attribute.tables import ESTIMATES, NUMBER_CLIENTS, NUMBERS, TOLERANCE

Floats = NDArray[np.float64]

COMMONEST = "the commonest number"

# Streams of random numbers, apart from each other.
_SHUFFLING, _TESTING, _RANKS = 1, 2, 4


@dataclass(frozen=True, eq=False)
class NumberCase(ColumnCase[EstimatedNumbers, Floats]):
    """One seed's estimates beside the numbers, and estimates without any update.

    Raises
    ------
    DataError
        If the truth holds no numbers, or not as many as were estimated.
    """

    def __post_init__(self) -> None:
        if self.truth.attributes is None or self.truth.attributes.numbers is None or self.knowledge.partial is None:
            raise DataError(
                f"seed {self.seed}: {self.attack} asks for numbers that are missing in truth/attributes.npz or "
                "knowledge/partial.npz; expected them in both, as an audit with --sensitive writes them"
            )
        if self.found.estimates.shape[1] != len(self.numbers) or MAIN not in self.found.methods:
            raise DataError(
                f"seed {self.seed}: the scores of {self.attack} have {self.found.estimates.shape[1]} estimates "
                f"by {', '.join(self.found.methods)}; expected {len(self.numbers)}, by {MAIN} too; attack again"
            )

    @property
    def numbers(self) -> Floats:
        """(n,): the numbers."""
        if self.attributes.numbers is None:
            raise AssertionError("checked at the start")
        return self.attributes.numbers

    @cached_property
    def tolerance(self) -> float:
        """How far an estimate may be off."""
        return TOLERANCE * float(self.numbers.std())

    @cached_property
    def commonest(self) -> float:
        """The number that is near to most others, a higher bar than what an attacker can know."""
        ordered = np.sort(self.numbers)
        ends = np.searchsorted(ordered, ordered + 2 * self.tolerance, side="right")
        first = int((ends - np.arange(len(ordered))).argmax())
        # In the middle of the interval that holds most.
        return float(ordered[first] + ordered[ends[first] - 1]) / 2

    @cached_property
    def estimates(self) -> dict[str, Floats]:
        """(n,) for each method; no answer is the commonest number."""
        filled = np.where(np.isnan(self.found.estimates), self.commonest, self.found.estimates)
        return dict(zip(self.found.methods, filled, strict=True))

    @cached_property
    def baselines(self) -> dict[str, Floats]:
        """(n,) for each way to estimate without updates."""
        baselines = {COMMONEST: np.full(len(self.numbers), self.commonest)}
        if self.knowledge.auxiliary is not None:
            baselines[IMPUTATION], _ = self.imputed
        return baselines

    def impute(self, partial: PartialRecords, auxiliary: Targets, seed: int) -> tuple[Floats, str]:
        """Impute the number of each example by a regression."""
        return impute_numbers(partial, auxiliary, seed=seed)

    def is_near(self, estimates: Floats) -> NDArray[np.bool_]:
        """(n,): whether estimates are within the tolerance."""
        return np.asarray(np.abs(estimates - self.numbers) <= self.tolerance)


class NumbersJudge(Judge[NumberCase]):
    """States how many numbers of a column are met, more than by the best estimate without updates; and their order."""

    case = NumberCase
    needs_truth = ("attributes",)
    notes = (
        f"A number counts as met within {TOLERANCE} standard deviations of its column. The headline is the excess "
        "over the best estimate without updates: a regression from the other columns and the label, or one number "
        "for all.",
        "For a leak, estimates must be nearer than the best of these, and depend on which of a client's examples has "
        "which number. A better regression that nobody thought of would look the same.",
    )

    @cached_property
    def _names(self) -> list[str]:
        """The methods, that which counts first."""
        return sorted(self.cases[0].estimates, key=lambda name: name != MAIN)

    @property
    def _column(self) -> str:
        return self.cases[0].attributes.column

    @cached_property
    def _near(self) -> dict[str, Rate]:
        """How many numbers each method and each baseline meets."""
        rates = {}
        for name in self._names:
            rates[name] = Rate.of([case.is_near(case.estimates[name]) for case in self.cases])
        for name in self._baselines:
            rates[name] = Rate.of([case.is_near(case.baselines[name]) for case in self.cases])
        return rates

    @cached_property
    def _baselines(self) -> list[str]:
        """The baselines that every seed has."""
        return [name for name in self.cases[0].baselines if all(name in case.baselines for case in self.cases)]

    @cached_property
    def _best(self) -> str:
        """The baseline that meets most numbers."""
        return max(self._baselines, key=lambda name: self._near[name].value)

    @cached_property
    def _cells(self) -> NDArray[np.int64]:
        """(n of all seeds,): the client of each example, with numbers of its own in each seed."""
        owners = [f"{number} {owner}" for number, case in enumerate(self.cases) for owner in case.attributes.owners]
        return np.unique(owners, return_inverse=True)[1].astype(np.int64)

    def _exchange(self, statistic: Callable[[Floats], Floats], rng: np.random.Generator) -> Significance:
        """Test whether a statistic of the numbers (draws, n) is met by exchanging these within each client."""
        numbers = self.pool(lambda case: case.numbers)
        _, kinds = np.unique(numbers, return_inverse=True)

        def draw(rng: np.random.Generator, count: int) -> Floats:
            return statistic(numbers[exchange_within(self._cells, rng, count)])

        return significance_of(
            float(statistic(numbers[None])[0]),
            draw,
            rng,
            "numbers exchanged within each client",
            arrangements=arrangements_within(self._cells, kinds),
            draws=self.draws,
            at_once=max(1, 1_000_000 // len(numbers)),
        )

    @measure("near", headline=True)
    def exceed_baselines(self) -> Measurement:
        """Compare how many numbers are met with the best baseline, example by example."""
        hits = self.each(lambda case: case.is_near(case.estimates[MAIN]))
        bars = self.each(lambda case: case.is_near(case.baselines[self._best]))
        value, interval, here = compare_hits(hits, bars)
        pairs = zip(self._near[MAIN].by_seed, self._near[self._best].by_seed, strict=True)
        series: dict[str, Any] = {"column": {"name": self._column, "tolerance": self.cases[0].tolerance}}
        imputed_by = sorted({case.imputed_by for case in self.cases} - {""})
        words = f"; imputed by {', '.join(imputed_by)}" if imputed_by else "; nothing is known to impute from"
        return Measurement(
            label=f"Numbers of {self._column} met by {MAIN} above the best baseline ({self._best})",
            reason="estimates and the best baseline are compared example by example, and the null uses shuffled "
            f"numbers{words}",
            value=value,
            n=self._near[MAIN].n,
            interval=interval,
            here=here,
            null=self._shuffle(self._exceed_in),
            chance=0.0,
            units=POINTS,
            test=self._tests[MAIN],
            series=series | self.show(NUMBERS) | {"per_client": self._per_client},
            by_seed=[100 * (own - bar_rate) for own, bar_rate in pairs],
        )

    @measure("within")
    def count_near(self) -> Measurement:
        """Count the numbers that the headline's method meets."""
        return self._count_near(MAIN)

    @measure("within-*")
    def count_near_of_others(self) -> Iterator[Measurement]:
        """Count the numbers that the other methods meet."""
        for method in self._names:
            if method != MAIN:
                yield self._count_near(method, metric=f"within-{slug(method)}")

    def _count_near(self, method: str, **parts: Any) -> Measurement:
        estimates, tolerances = self.pool(lambda case: case.estimates[method]), self._tolerances
        bars = {name: self._near[name].value for name in self._baselines}
        return self._near[method].measured(
            "chance is the best baseline; the null uses shuffled numbers",
            label=f"Numbers of {self._column} met by {method} within {TOLERANCE} standard deviations",
            null=self._shuffle(lambda drawn: float((np.abs(estimates - drawn) <= tolerances).mean())),
            chance=self._near[self._best].value,
            baselines=bars,
            bars=bars,
            test=self._tests[method],
            by_seed=self._near[method].by_seed,
            **parts,
        )

    @cached_property
    def _tests(self) -> dict[str, Significance]:
        """By method, whether it is nearer than the best baseline, and knows which example has which number."""
        return {method: self._test(method, stream) for stream, method in enumerate(self._names)}

    def _test(self, method: str, stream: int) -> Significance:
        estimates, tolerances = self.pool(lambda case: case.estimates[method]), self._tolerances
        hits = self.pool(lambda case: case.is_near(case.estimates[method]).astype(np.float64))
        met = self.pool(lambda case: case.is_near(case.baselines[self._best]).astype(np.float64))

        def count_near(drawn: Floats) -> Floats:
            return np.asarray((np.abs(estimates - drawn) <= tolerances).sum(axis=1, dtype=np.float64))

        beats = better_than(hits - met, self.rng(_TESTING, 2 * stream), draws=self.draws)
        return both(beats, self._exchange(count_near, self.rng(_TESTING, 2 * stream + 1)))

    @measure("rank")
    def rank_numbers(self) -> Measurement:
        """Correlate the order of the estimates with that of the numbers (Spearman), beside the best baseline's."""
        values = [_spearman(case.estimates[MAIN], case.numbers) for case in self.cases]
        sizes = [len(case.numbers) for case in self.cases]
        bars = {
            name: float(
                np.average([_spearman(case.baselines[name], case.numbers) for case in self.cases], weights=sizes)
            )
            for name in self._baselines
        }
        value, n = float(np.average(values, weights=sizes)), sum(sizes)
        interval, here = _fisher(value, n), UNKNOWN
        if len(values) > 1:
            here = interval
            # Between −1 and 1, as a rate is between 0 and 1.
            low, high = mean_interval([(1 + one) / 2 for one in values], ((1 + here[0]) / 2, (1 + here[1]) / 2))
            interval = min(2 * low - 1, value), max(2 * high - 1, value)
        best = max(bars, key=lambda name: bars[name])
        own = self.pool(lambda case: _standard_ranks(case.estimates[MAIN]))
        other = self.pool(lambda case: _standard_ranks(case.baselines[best]))
        ranks = self.pool(lambda case: _standard_ranks(case.numbers))
        beats = better_than((own - other) * ranks, self.rng(_RANKS, 0), draws=self.draws)
        knows = self._exchange(lambda drawn: self._correlate(own, drawn), self.rng(_RANKS, 1))
        return Measurement(
            label=f"Order of {self._column} by {MAIN}, Spearman's rank correlation",
            reason="the null uses shuffled numbers; examples count equally in all seeds",
            value=value,
            n=n,
            interval=interval,
            here=here,
            null=self._shuffle(lambda drawn: float(self._correlate(own, drawn[None])[0])),
            chance=0.0,
            bars=bars,
            baselines=bars,
            units="",
            test=both(beats, knows),
            by_seed=values,
        )

    def _correlate(self, own: Floats, drawn: Floats) -> Floats:
        """Return Spearman's correlation of ranks (n,) with numbers (draws, n), the mean over seeds by their sizes."""
        start, total = 0, np.zeros(len(drawn))
        for case in self.cases:
            end = start + len(case.numbers)
            ranks = rankdata(drawn[:, start:end], axis=1)
            centred = ranks - ranks.mean(axis=1, keepdims=True)
            length = np.maximum(np.linalg.norm(centred, axis=1), 1e-12)
            total += (centred @ own[start:end]) / length * np.sqrt(end - start)
            start = end
        return np.asarray(total / start)

    @property
    def _tolerances(self) -> Floats:
        """(n of all seeds,): how far each estimate may be off."""
        return self.pool(lambda case: np.full(len(case.numbers), case.tolerance))

    def _exceed_in(self, numbers: Floats) -> float:
        """Return the excess over the best baseline were these the numbers."""
        bars = [self._met_of(self.pool(partial(_baseline_of, name)), numbers) for name in self._baselines]
        return 100 * (self._met_of(self.pool(lambda case: case.estimates[MAIN]), numbers) - max(bars))

    def _met_of(self, estimates: Floats, numbers: Floats) -> float:
        """Return which share of the estimates is near were these the numbers."""
        return float((np.abs(estimates - numbers) <= self._tolerances).mean())

    def _shuffle(self, statistic: Callable[[Floats], float]) -> Null:
        """Sum up what a statistic is against numbers that are shuffled within each seed."""
        draw, found = self.rng(_SHUFFLING), []
        for _ in range(self.shuffles):
            found.append(statistic(np.concatenate([draw.permutation(case.numbers) for case in self.cases])))
        return null_of(found, sum(len(case.numbers) for case in self.cases))

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Say how many examples there are on which an attack can be nearer than a baseline."""
        sizes = [len(run.truth.attributes.values) for run in runs if run.truth.attributes is not None]
        if not sum(sizes):
            return None
        enough = smallest(lambda examples: 2.0**examples * needed >= 1)
        least = least_p(2.0 ** min(sum(sizes), DRAWS.bit_length()))
        return Reach(least, f"{sum(sizes)} examples", f"{enough} of them")

    @cached_property
    def _per_client(self) -> list[dict[str, Any]]:
        return list_by_client(self, self.each(lambda case: case.is_near(case.estimates[MAIN])))

    @rows_of(NUMBERS)
    def compare_methods(self) -> Iterator[Row]:
        """Compare every method and every baseline on the same examples."""
        for name in (*self._names, *self._baselines):
            low, high = self._near[name].interval()
            order = [_spearman({**case.baselines, **case.estimates}[name], case.numbers) for case in self.cases]
            sizes = [len(case.numbers) for case in self.cases]
            yield {
                "method": name,
                "baseline": name in self._baselines,
                "near": self._near[name].value,
                "low": low,
                "high": high,
                "rank": float(np.average(order, weights=sizes)),
            }

    @rows_of(NUMBER_CLIENTS)
    def list_clients(self) -> Iterator[Row]:
        """List the clients, those of which most is met first."""
        return rows_of_clients(self, self._per_client)

    @rows_of(ESTIMATES)
    def list_estimates(self) -> Iterator[Row]:
        """List every example with its number, and what is estimated."""
        for case in self.cases:
            answered = ~np.isnan(case.found.estimates[case.found.methods.index(MAIN)])
            near, bar = case.is_near(case.estimates[MAIN]), case.baselines[self._best]
            for record, client in enumerate(case.attributes.owners):
                yield {
                    "seed": case.seed,
                    "record": record,
                    "client": client,
                    "true": float(case.numbers[record]),
                    "said": float(case.estimates[MAIN][record]),
                    "answered": bool(answered[record]),
                    "near": bool(near[record]),
                    "baseline": float(bar[record]),
                    "baseline_near": bool(case.is_near(bar)[record]),
                }


def _baseline_of(name: str, case: NumberCase) -> Floats:
    return case.baselines[name]


def _standard_ranks(values: Floats) -> Floats:
    """Return ranks (n,) with mean 0 and a sum of squares of n; zeros where all are alike."""
    centred = rankdata(values) - (len(values) + 1) / 2
    length = np.linalg.norm(centred)
    return np.asarray(centred / max(length, 1e-12) * np.sqrt(len(values)))


def _spearman(estimates: Floats, numbers: Floats) -> float:
    """Return Spearman's rank correlation; 0 where all estimates are alike."""
    return float(_standard_ranks(estimates) @ _standard_ranks(numbers) / len(numbers))


def _fisher(value: float, n: int) -> tuple[float, float]:
    """Return the interval of Spearman's correlation by Fisher's z, with the variance (1 + ρ²/2)/(n − 3).

    Bonett and Wright 2000, "Sample size requirements for estimating Pearson, Kendall and Spearman correlations".
    """
    if n < 4:
        return -1.0, 1.0
    bounded = float(np.clip(value, -1 + 1e-9, 1 - 1e-9))
    spread = float(norm.ppf((1 + LEVEL) / 2)) * np.sqrt((1 + bounded**2 / 2) / (n - 3))
    middle = np.arctanh(bounded)
    return min(float(np.tanh(middle - spread)), value), max(float(np.tanh(middle + spread)), value)
