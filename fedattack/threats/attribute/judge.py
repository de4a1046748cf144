"""Judge attribute inference: how many values were recovered, and how many more than by a guess without any update.

Where a value is common, naming it for everybody is right most of the time. The number that counts is therefore the
excess over the best baseline on the same examples, with a paired interval; balanced accuracy and the recall of the
rarest value stand beside it.

Two tests must say that it is no accident, see :mod:`fedattack.audit.answers`. An attack that names what is common among
a client's examples can thus be a leak, but not by luck with a few clients. A guess without updates that suits some
clients better than every baseline does cannot be told from an attack.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.answers import ValueQuestions, arrangements_of, better_than, both, exchange_answers
from fedattack.audit.finding import NOT_APPLICABLE, Null
from fedattack.audit.intervals import LEVEL, mean_interval, paired_interval
from fedattack.audit.judge import Judge, entry_of_client, rows_of_clients
from fedattack.audit.measures import UNKNOWN, Interval, Measurement, Rate, measure, separate
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import DRAWS, Significance, arrangements_within, least_p, significance_of
from fedattack.audit.summaries import null_of, part_by_client, rate_populations, reliability
from fedattack.audit.table import Row, rows_of
from fedattack.audit.truth import Attributes
from fedattack.base.errors import DataError
from fedattack.threats.attribute.case import BESIDE, AttributeCase, ColumnCase, Flags, Floats, Rows
from fedattack.threats.attribute.tables import CLIENTS, METHODS, RECORDS

_DRAWS = 4_000

# Examples of each client, which are proposed where there are too few.
_RECORDS = 20

# Streams of random numbers, apart from each other.
_SHUFFLING, _POSTERIOR, _DEALING, _TESTING, _MEMBERSHIP = 1, 2, 4, 5, 6

C = TypeVar("C", bound=ColumnCase[Any, Any])

POINTS = "points"
"""Units of a difference of two rates, in per cent of the examples."""


@dataclass(frozen=True)
class _Worth:
    """What an answer counts."""

    weights: Floats  # (values,): credit of a right answer, by the true value.
    costs: Floats  # (values,): what naming a value costs, right or wrong.
    # Whether naming one value for everybody gives the same whatever is true, so that it needs no test to beat it.
    constant: bool = True

    def credit(self, answers: Rows, truth: Rows) -> Floats:
        """(n,): credit of each answer."""
        return np.asarray(np.where(answers == truth, self.weights[truth], 0.0) - self.costs[answers])


class AttributeJudge(Judge[AttributeCase]):
    """States how many values of an attribute were recovered."""

    case = AttributeCase
    needs_truth = ("attributes",)
    beside = BESIDE
    notes = (
        "Attribute inference is judged by the excess over guessing the attribute without any update, from the other "
        "columns and the label. Its null compares the same answers with a shuffled truth; a null run, in which "
        "clients train on a shuffled column, is `--set permute-sensitive=true`.",
        "For a leak, answers must depend on the values of these clients, and be right more often than the best "
        "guess. A better guess that nobody thought of would look the same.",
    )
    method: ClassVar[str] = ""
    """The method that was fixed in advance as the one that counts; the first of the scores if it is empty."""

    def __init__(
        self, cases: Sequence[AttributeCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        # All answers are (n,), seed after seed.
        self.truth = self.pool(lambda case: case.values)
        self.sizes = self.each(lambda case: len(case.values))
        self.n = len(self.truth)
        self.names, self.column = cases[0].attributes.names, cases[0].attributes.column
        self.counts = np.bincount(self.truth, minlength=len(self.names))
        # The rarest of those that occur at all.
        self.rarest = int(np.where(self.counts > 0, self.counts, self.counts.max() + 1).argmin())
        own, baselines = self._join(lambda case: case.answers), self._join(lambda case: case.baselines)
        self.methods, self.baselines = list(own), list(baselines)
        self.answers = own | self._join(lambda case: case.others) | baselines
        self.rates: dict[str, Rate] = {}
        for name, answers in self.answers.items():
            self.rates[name] = Rate.of(self._split(answers == self.truth))
        self.best = max(self.baselines, key=lambda name: self.rates[name].value)
        self.main = self._choose_main()
        self.questions = _put_together(self.each(lambda case: case.attributes))

    def _split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Take values (n,) apart by seed."""
        return np.split(values, np.cumsum(self.sizes)[:-1])

    def _join(self, read: Callable[[AttributeCase], Mapping[str, Rows]]) -> dict[str, Rows]:
        """Put the answers of all seeds together, (n,), by method, of the methods that every seed has."""
        first, *others = self.each(read)
        joined = {}
        for method, answers in first.items():
            if all(method in of_case for of_case in others):
                joined[method] = np.concatenate([answers, *(of_case[method] for of_case in others)])
        return joined

    def _of_baselines(self, read: Callable[[Rows], float]) -> dict[str, float]:
        """Return by baseline what is read of its answers."""
        return {name: read(self.answers[name]) for name in self.baselines}

    def _choose_main(self) -> str:
        if not self.methods or (self.method and self.method not in self.methods):
            raise DataError(
                f"the scores of {self.shared['attack']} have the methods {', '.join(self.methods) or 'none'}; expected "
                f"{self.method or 'at least one'}; attack again"
            )
        return self.method or self.methods[0]

    @measure("excess", headline=True)
    def exceed_baselines(self) -> Measurement:
        """Compare the accuracy with that of the best baseline, example by example."""
        value, interval, here = self._compare_with_best(self.main)
        pairs = zip(self.rates[self.main].by_seed, self.rates[self.best].by_seed, strict=True)
        series: dict[str, Any] = {"asked": self._asked}
        if self.cases[0].is_first:
            series["attributes"] = self._table()
        return Measurement(
            label=f"Values of {self.column}: accuracy of {self.main} above the best baseline ({self.best})",
            reason="the baseline is the best one on these very examples; both are compared example by example, and "
            "the null uses a shuffled truth",
            value=value,
            n=self.n,
            interval=interval,
            here=here,
            null=self._shuffle_truth(self._exceed_in, self.n),
            chance=0.0,
            units=POINTS,
            test=self._accuracy_tests[self.main],
            series=series,
            by_seed=[100 * (own - bar) for own, bar in pairs],
        )

    @measure("accuracy")
    def count_right(self) -> Measurement:
        """Count the values that the headline's method recovers."""
        return self._count_right(self.main, series=self._series())

    @measure("balanced-accuracy")
    def balance_values(self) -> Measurement:
        """Average the recalls of all values, so that a common one counts no more than a rare one."""
        answers = self.answers[self.main]
        value = _balanced_accuracy(answers, self.truth)
        bars = self._of_baselines(lambda guesses: _balanced_accuracy(guesses, self.truth))
        seeds = [*map(_balanced_accuracy, self._split(answers), self._split(self.truth))]
        interval = self._balanced_here(value)
        here: Interval = UNKNOWN
        if len(self.cases) > 1:
            here = interval
            interval = mean_interval(seeds, interval, bounds=(0.0, 1.0))
        even = _Worth(1 / np.maximum(self.counts, 1), np.zeros(len(self.counts)))
        return Measurement(
            label=f"Balanced accuracy of {self.main} on {self.column}",
            reason="the mean of each value's recall, with Jeffreys' interval for each; naming one value for everybody "
            "is at chance",
            value=value,
            n=self.n,
            interval=interval,
            here=here,
            null=self._shuffle_truth(lambda truth: _balanced_accuracy(answers, truth), self.n),
            chance=1 / len(np.unique(self.truth)),
            baselines=bars,
            bars=_keep_highest(bars),
            test=self._test(self.main, even, len(self.methods)),
            by_seed=seeds,
        )

    @measure("rare-recall")
    def recall_rarest(self) -> Measurement:
        """Count the examples of the rarest value that are recovered."""
        answers, right = self.answers[self.main], []
        for named, values in zip(self._split(answers), self._split(self.truth), strict=True):
            if (values == self.rarest).any():
                right.append(named[values == self.rarest] == self.rarest)
        recalled, rare = Rate.of(right), np.arange(len(self.counts)) == self.rarest
        # Naming the rarest value more often finds more of it: only what is beyond that is to the attack's credit.
        worth = _Worth(rare / self.counts[self.rarest], rare / self.n)
        return recalled.measured(
            "chance is naming that value equally often at random; the test is about the excess over chance, compared "
            "with that of the best baseline",
            label=f"Examples of the rarest {self.column} ({self.names[self.rarest]}) that {self.main} recovers",
            null=self._shuffle_truth(lambda truth: self._recall_rarest(answers, truth), recalled.n),
            chance=float((answers == self.rarest).mean()),
            baselines=self._of_baselines(lambda guesses: self._recall_rarest(guesses, self.truth)),
            test=self._test(self.main, worth, len(self.methods) + 1),
        )

    @measure("accuracy-*")
    def count_right_of_others(self) -> Iterator[Measurement]:
        """Count the values that the other methods recover."""
        for method in self.methods:
            if method != self.main:
                yield self._count_right(method, metric=f"accuracy-{slug(method)}")

    @measure("bound", "Lower bound on the accuracy by Proposition 3")
    def bound_accuracy(self) -> Measurement | None:
        """State what Proposition 3 of Driouich et al. 2022 promises, where the scores tell, and whether it is kept."""
        bounds, rates, sizes = [], [], []
        for case, hits in zip(self.cases, self._split(self.answers[self.main] == self.truth), strict=True):
            for name, bound in case.bound_accuracy(self.main).items():
                rows = np.array(case.attributes.owners) == name
                bounds.append(bound)
                rates.append(float(hits[rows].mean()))
                sizes.append(int(rows.sum()))
        if not bounds:
            return None
        kept = int((np.array(rates) >= np.array(bounds) - 1e-9).sum())
        return Measurement(
            reason="max(|1 − 2ρ|, 1 − 4·MSE/θ_s²) of each client's decoded least-squares model, weighted by its "
            f"examples; the accuracy is at least the bound for {kept} of {len(bounds)} clients",
            value=float(np.average(bounds, weights=sizes)),
            n=sum(sizes),
            baselines={f"accuracy of {self.main} there": float(np.average(rates, weights=sizes))},
            verdict=NOT_APPLICABLE,
        )

    @measure("membership", "Examples recognised as the client's or not, before the attribute")
    def tell_members(self) -> Measurement | None:
        """Judge which candidates were taken for members, where clients' examples lay among decoys."""
        answers, largest = [], 0
        candidates: list[tuple[int, str]] = []
        for number, case in enumerate(self.cases):
            if case.membership is None:
                return None
            members, decoys, clients = case.membership
            answers.append((members, decoys))
            candidates += [(number, client) for client in clients]
            largest += max(len(members), len(decoys))
        right = Rate.of([np.concatenate([members, ~decoys]) for members, decoys in answers])
        if not all(right.sizes):
            return None
        draw = self.rng(_DEALING)
        return right.measured(
            "chance is one answer for all, the null the same answers in random order",
            null=null_of([_deal_answers(answers, draw) for _ in range(self.shuffles)], right.n),
            chance=largest / right.n,
            test=_test_members(answers, candidates, self.rng(_MEMBERSHIP), self.draws),
        )

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Say which of the two tests is limited more: by the examples, or by the clients that can be told apart.

        At most on the examples on which the guess of the commonest value is wrong, an attack is better.
        """
        asked = [run.truth.attributes for run in runs if run.truth.attributes is not None]
        if not sum(len(attributes.values) for attributes in asked):
            return None
        wins = sum(len(one.values) - int(np.bincount(one.values).max(initial=0)) for one in asked)
        by_wins = least_p(2.0 ** min(wins, DRAWS.bit_length()))
        by_exchanges = least_p(arrangements_of(_put_together(asked)))
        if by_exchanges > max(by_wins, needed):
            clients = max(len({*one.owners}) for one in asked)
            enough = smallest(lambda count: math.factorial(count) * needed >= 1, 2)
            setting = f"clients={enough}" if enough > clients else ""
            different = max(map(_count_different, asked))
            return Reach(by_exchanges, f"{different} clients with different values", f"{enough} of them", setting)
        enough = smallest(lambda examples: 2.0**examples * needed >= 1)
        words = "examples that do not have the most common value"
        most = max(max(Counter(one.owners).values(), default=0) for one in asked)
        setting = f"records-per-client={_RECORDS}" if most < _RECORDS else ""
        return Reach(max(by_wins, by_exchanges), f"{wins} {words}", f"{enough} of them", setting)

    @rows_of(CLIENTS)
    def list_clients(self) -> Iterator[Row]:
        """List the clients, those of which most is recovered first."""
        return rows_of_clients(self, self._per_client)

    @rows_of(RECORDS)
    def list_answers(self) -> Iterator[Row]:
        """List every example with the value that the headline's method names."""
        names = self.names
        columns = map(self._split, (self.truth, self.answers[self.main], self.answers[self.best]))
        for case, truth, said, baseline in zip(self.cases, *columns, strict=True):
            belief, answered = case.belief(self.main), case.answered(self.main)
            for record, client in enumerate(case.attributes.owners):
                yield {
                    "seed": case.seed,
                    "record": record,
                    "client": client,
                    "true": names[truth[record]],
                    "said": names[said[record]],
                    "answered": bool(answered[record]),
                    "score": float(belief[record]),
                    "right": bool(said[record] == truth[record]),
                    "baseline": names[baseline[record]],
                }

    @cached_property
    def _accuracy_tests(self) -> dict[str, Significance]:
        """The test of each method's accuracy."""
        even = np.ones(len(self.counts))
        worth = _Worth(even, np.zeros(len(self.counts)), constant=False)
        return {method: self._test(method, worth, stream) for stream, method in enumerate(self.methods)}

    def _test(self, method: str, worth: _Worth, stream: int) -> Significance:
        """Test whether a method knows something of the values, and more than the best baseline.

        The first alone is not enough, since any other guess from the same columns knows something. The second alone is
        not enough, since one client's examples are right together.
        """
        truth, answers = self.questions.truth, self.answers[method]
        credit = self._of_baselines(lambda guesses: float(worth.credit(guesses, truth).sum()))
        bar = self.answers[max(self.baselines, key=lambda name: credit[name])]
        draw = self.rng(_TESTING, stream)
        knows = exchange_answers(answers, self.questions, bar, worth.weights, draw, draws=self.draws)
        if worth.constant and np.ptp(bar) == 0:
            return knows
        advantages = worth.credit(answers, truth) - worth.credit(bar, truth)
        return both(better_than(advantages, draw, draws=self.draws), knows)

    @cached_property
    def _shuffled(self) -> list[Rows]:
        """Truths that are shuffled within each seed."""
        draw, truth = self.rng(_SHUFFLING), self._split(self.truth)
        return [np.concatenate([*map(draw.permutation, truth)]) for _ in range(self.shuffles)]

    def _shuffle_truth(self, statistic: Callable[[Rows], float], n: int) -> Null:
        """Sum up what a statistic is against every shuffled truth."""
        return null_of([*map(statistic, self._shuffled)], n)

    @property
    def _asked(self) -> dict[str, Any]:
        """What is asked for."""
        return {"column": self.column, "values": list(self.names)}

    def _compare_with_best(self, method: str) -> tuple[float, tuple[float, float], Interval]:
        """Return the excess of a method over the best baseline in points, with its intervals: over runs, and here."""
        hits, bars = self.answers[method] == self.truth, self.answers[self.best] == self.truth
        return compare_hits(self._split(hits), self._split(bars))

    def _exceed_in(self, truth: Rows) -> float:
        """Return the excess were that the truth."""
        best = max(self._of_baselines(lambda guesses: _accuracy(guesses, truth)).values())
        return 100 * (_accuracy(self.answers[self.main], truth) - best)

    def _count_right(self, method: str, **parts: Any) -> Measurement:
        answers = self.answers[method]
        baselines = self._of_baselines(lambda guesses: _accuracy(guesses, self.truth))
        unanswered = self.n - sum(self.each(lambda case: int(case.answered(method).sum())))
        note = f"; {unanswered:,} examples without an answer count as the majority value" if unanswered else ""
        return self.rates[method].measured(
            f"chance is a random value, the null a shuffled truth{note}",
            label=f"Values of {self.column} recovered by {method}",
            null=self._shuffle_truth(lambda truth: _accuracy(answers, truth), self.n),
            chance=1 / len(self.names),
            baselines=baselines,
            bars=_keep_highest(baselines),
            test=self._accuracy_tests[method],
            by_seed=self.rates[method].by_seed,
            **parts,
        )

    def _balanced_here(self, value: float) -> tuple[float, float]:
        """Return the interval of the balanced accuracy about these very runs."""
        draw = self.rng(_POSTERIOR)
        values = self.truth
        # For each recall the posterior under Jeffreys' prior, which is Beta(½, ½).
        hits, recalls = self.answers[self.main] == values, []
        for known in np.unique(values):
            right, size = int(hits[values == known].sum()), int((values == known).sum())
            recalls.append(draw.beta(right + 0.5, size - right + 0.5, size=_DRAWS))
        low, high = np.quantile(np.mean(recalls, axis=0), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return min(float(low), value), max(float(high), value)

    def _recall_rarest(self, answers: Rows, truth: Rows) -> float:
        """Return the share of the rarest value's examples for which it is named."""
        return float((answers[truth == self.rarest] == self.rarest).mean())

    def _table(self) -> dict[str, Any]:
        imputed_by = {case.imputed_by for case in self.cases}
        return {
            **self._asked,
            "rarest": self.names[self.rarest],
            "best_baseline": self.best,
            "imputed_by": sorted(imputed_by - {""}),
            "random": 1 / len(self.names),
            **self.show(METHODS),
        }

    @rows_of(METHODS)
    def compare_methods(self) -> Iterator[Row]:
        """Compare every method and every baseline on the same examples."""
        for method, answers in self.answers.items():
            low, high = self.rates[method].interval()
            excess, ends, _ = self._compare_with_best(method)
            is_baseline = method in self.baselines
            excess_low, excess_high = (None, None) if is_baseline else ends
            yield {
                "method": method,
                "baseline": is_baseline,
                "accuracy": self.rates[method].value,
                "low": low,
                "high": high,
                "balanced": _balanced_accuracy(answers, self.truth),
                "rare_recall": self._recall_rarest(answers, self.truth),
                "excess": excess,
                "excess_low": excess_low,
                "excess_high": excess_high,
            }

    def _series(self) -> dict[str, Any]:
        populations = rate_populations(self._list_populations())
        series: dict[str, Any] = {"per_client": self._per_client, "populations": populations}
        sure, rare = [], []
        for case in self.cases:
            sure.append(case.belief(self.main))
            rare.append(case.beliefs(self.main)[:, self.rarest])
        series["reliability"] = reliability(np.concatenate(sure), self.answers[self.main] == self.truth)
        # Values as a whole have no threshold; one value has.
        has, scores = self.truth == self.rarest, np.concatenate(rare)
        if has.any() and not has.all() and not np.isnan(scores).any():
            series |= separate(scores[has], scores[~has])
            series["asked"] = {**self._asked, "rarest": self.names[self.rarest]}
        return series

    def _list_populations(self) -> Iterator[tuple[NDArray[np.float64], dict[str, NDArray[np.str_]]]]:
        hits = self._split(self.answers[self.main] == self.truth)
        for case, of_case, values in zip(self.cases, hits, self._split(self.truth), strict=True):
            parts = {self.column: np.array(self.names)[values]}
            yield of_case.astype(np.float64), parts | part_by_client(case.truth, case.attributes.owners)

    @cached_property
    def _per_client(self) -> list[dict[str, Any]]:
        return list_by_client(self, self._split(self.answers[self.main] == self.truth))


class ModelBasedJudge(AttributeJudge):
    """The same of the model-based attack, whose examples with the best value are the headline."""

    method = "reconstructed"


def compare_hits(hits: Sequence[Flags], bars: Sequence[Flags]) -> tuple[float, tuple[float, float], Interval]:
    """Return by how much more often hits are right than those of a baseline, example by example.

    Parameters
    ----------
    hits, bars
        For each seed (n,): which examples the method and the baseline have right.

    Returns
    -------
    value, interval, here
        In points, with the intervals over runs, and about these very runs.
    """
    sizes = [len(of_seed) for of_seed in hits]
    wins = [int((own & ~other).sum()) for own, other in zip(hits, bars, strict=True)]
    losses = [int((other & ~own).sum()) for own, other in zip(hits, bars, strict=True)]
    value = 100 * (sum(wins) - sum(losses)) / sum(sizes)
    low, high = paired_interval(wins, losses, sizes)
    interval = min(100 * low, value), max(100 * high, value)
    if len(sizes) == 1:
        return value, interval, UNKNOWN
    low, high = paired_interval([sum(wins)], [sum(losses)], [sum(sizes)])
    return value, interval, (100 * low, 100 * high)


def list_by_client(judge: Judge[C], hits: Sequence[Flags]) -> list[dict[str, Any]]:
    """List how many hits (n,) of each seed every client has, those with most first."""
    owners = judge.each(lambda case: np.array(case.attributes.owners))
    comparisons = sum(len(np.unique(names)) for names in owners)
    entries = []
    for case, names, of_seed in zip(judge.cases, owners, hits, strict=True):
        for name in np.unique(names).tolist():
            entries.append(entry_of_client(judge.title_of(case, name), of_seed[names == name], comparisons))
    return sorted(entries, key=lambda entry: -entry["value"])


def slug(method: str) -> str:
    """Return a method's name as names of findings are written."""
    return re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")


def _deal_answers(answers: Sequence[tuple[Flags, Flags]], draw: np.random.Generator) -> float:
    """Return how often answers of membership are right once they are dealt to the candidates at random."""
    right = size = 0
    for members, decoys in answers:
        permuted = draw.permutation(np.concatenate([members, decoys]))
        right += int(permuted[: len(members)].sum() + (~permuted[len(members) :]).sum())
        size += len(permuted)
    return right / size


def _test_members(
    answers: Sequence[tuple[Flags, Flags]], candidates: Sequence[tuple[int, str]], rng: np.random.Generator, draws: int
) -> Significance:
    """Test whether members were told from decoys, by exchanging the answers about each client's candidates."""
    named = np.concatenate([np.concatenate(pair) for pair in answers])
    member = np.concatenate([np.arange(len(ours) + len(others)) < len(ours) for ours, others in answers])
    _, cells = np.unique([f"{number} {client}" for number, client in candidates], return_inverse=True)
    ours, others, taken = (np.bincount(cells[which], minlength=cells.max() + 1) for which in (member, ~member, named))

    def draw(rng: np.random.Generator, count: int) -> Floats:
        """Only how many of those that were taken for members are members changes in an exchange."""
        return np.asarray(rng.hypergeometric(ours, others, taken, (count, len(taken))).sum(axis=1), dtype=np.float64)

    how, ways = "answers exchanged within each client's candidates", arrangements_within(cells, member)
    return significance_of(float((named & member).sum()), draw, rng, how, arrangements=ways, draws=draws)


def _put_together(runs: Sequence[Attributes]) -> ValueQuestions:
    """Put the examples of all runs together; a client of two runs is two clients."""
    names: list[tuple[int, str]] = []
    for number, attributes in enumerate(runs):
        names += [(number, owner) for owner in attributes.owners]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    clients = np.array([numbers[name] for name in names])
    of_run = np.array([run for run, _ in names])
    return ValueQuestions(np.concatenate([attributes.values for attributes in runs]), clients, of_run)


def _count_different(attributes: Attributes) -> int:
    """Count the clients of a run that are told apart by how many of their examples have each value."""
    owners = np.array(attributes.owners)
    counts = [np.bincount(attributes.values[owners == owner]) for owner in np.unique(owners)]
    # Without zeros at the end, where a client has no example of the last values.
    return len({tuple(np.trim_zeros(of_owner, "b").tolist()) for of_owner in counts})


def _keep_highest(bars: Mapping[str, float]) -> dict[str, float]:
    """Keep the highest of many bars: who clears it clears them all, and a list of them is nothing to read."""
    name = max(bars, key=lambda name: bars[name])
    return {f"the best baseline, {name}": bars[name]}


def _accuracy(answers: Rows, truth: Rows) -> float:
    return float((answers == truth).mean())


def _balanced_accuracy(answers: Rows, truth: Rows) -> float:
    counts = np.bincount(truth)
    right = np.bincount(truth[answers == truth], minlength=len(counts))
    return float((right[counts > 0] / counts[counts > 0]).mean())
