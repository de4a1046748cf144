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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.audit.answers import Questions, arrangements_of, better_than, both, informed
from fedattack.audit.finding import NOT_APPLICABLE, Finding, Null
from fedattack.audit.intervals import LEVEL, here_of, mean_interval, paired_interval, rate_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.roc import curve
from fedattack.audit.significance import DRAWS, Significance, arrangements_within, least_p, significance_of
from fedattack.audit.summaries import histogram, null_of, reliability
from fedattack.audit.truth import Attributes
from fedattack.base.errors import DataError
from fedattack.threats.attribute.imputation import impute

_DRAWS = 4_000

# Examples of each client, which are proposed where there are too few.
_RECORDS = 20

# Streams of random numbers, apart from each other.
_SHUFFLING, _POSTERIOR, _IMPUTATION, _DEALING, _TESTING, _MEMBERSHIP = 1, 2, 3, 4, 5, 6

POINTS = "points"
"""Units of a difference of two rates, in per cent of the examples."""

BASELINES = "attribute-baselines"
"""The attack whose methods are guesses, to be held against the others'."""

MAJORITY = "majority"
IMPUTATION = "imputation without the model"

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Measure:
    """What an answer counts.

    Attributes
    ----------
    weights
        (values,): credit of a right answer, by the true value.
    costs
        (values,): what naming a value costs, right or wrong.
    constant
        Whether naming one value for everybody gives the same whatever is true, so that it needs no test to beat it.
    """

    weights: Floats
    costs: Floats
    constant: bool = True

    def credits(self, answers: Rows, truth: Rows) -> Floats:
        """(n,): credit of each answer."""
        return np.asarray(np.where(answers == truth, self.weights[truth], 0.0) - self.costs[answers])


@dataclass(frozen=True)
class AttributeCase(Case):
    """One seed's scores of an attack on attributes beside the attribute's values.

    The scores hold ``decisions`` (methods, n), −1 for no answer, and ``beliefs`` (n, v) or (methods, n, v). Their
    facts name the ``methods``. The scores beside them are of other attacks on the same examples. Those of
    :data:`BASELINES` are bars to clear. The others stand in the same table, which the first of them shows.
    """

    def __post_init__(self) -> None:
        for scores in (self.scores, *self.beside):
            self._check(scores)

    def _check(self, scores: Scores) -> None:
        decisions, methods = scores.arrays["decisions"], scores.facts["methods"]
        if self.truth.attributes is None or self.knowledge.partial is None:
            raise DataError(
                f"seed {self.seed}: {scores.attack} asks for an attribute, of which truth/attributes.npz or "
                "knowledge/partial.npz says nothing; expected both, as the run's preparation writes them"
            )
        expected = (len(methods), len(self.attributes.values))
        if decisions.shape != expected or decisions.max(initial=-1) >= len(self.attributes.names):
            raise DataError(
                f"seed {self.seed}: the decisions of {scores.attack} have shape {decisions.shape}; expected "
                f"{expected}, a method and an example each, and values below {len(self.attributes.names)}; attack again"
            )

    @property
    def attributes(self) -> Attributes:
        """The truth."""
        if self.truth.attributes is None:
            raise AssertionError("checked at the start")
        return self.truth.attributes

    @property
    def values(self) -> Rows:
        """(n,): index of each example's value."""
        return self.attributes.values

    @cached_property
    def commonest(self) -> int:
        """The value that is right most often where nothing else is known."""
        return int(np.bincount(self.values).argmax())

    @cached_property
    def answers(self) -> dict[str, Rows]:
        """(n,) for each method of the scores; no answer is the commonest value, the guess that is left."""
        return self._answers_of(self.scores)

    def _answers_of(self, scores: Scores) -> dict[str, Rows]:
        decisions = scores.arrays["decisions"]
        filled = np.where(decisions < 0, self.commonest, decisions)
        return dict(zip(scores.facts["methods"], filled, strict=True))

    @cached_property
    def others(self) -> dict[str, Rows]:
        """(n,) for each method of other attacks on the same example."""
        others: dict[str, Rows] = {}
        for scores in self.beside:
            if scores.attack != BASELINES:
                for method, answers in self._answers_of(scores).items():
                    others[f"{scores.attack}: {method}"] = answers
        return others

    @cached_property
    def baselines(self) -> dict[str, Rows]:
        """(n,) for each way to guess without updates."""
        baselines = {MAJORITY: np.full(len(self.values), self.commonest, dtype=np.int64)}
        if self.knowledge.auxiliary is not None:
            baselines[IMPUTATION], _ = self._imputed
        for scores in self.beside:
            if scores.attack == BASELINES:
                # The majority that is right most often is a higher bar than the one that an attacker can know.
                baselines = self._answers_of(scores) | baselines
        return baselines

    @cached_property
    def _imputed(self) -> tuple[Rows, str]:
        partial, auxiliary = self.knowledge.partial, self.knowledge.auxiliary
        if partial is None or auxiliary is None:
            raise AssertionError("asked for only where both are there")
        seed = int(np.random.SeedSequence((self.seed, _IMPUTATION)).generate_state(1)[0])
        beliefs, classifier = impute(partial, auxiliary, seed=seed)
        return beliefs.argmax(axis=1), classifier

    @property
    def imputed_by(self) -> str:
        """The classifier that imputes; empty without public records."""
        return self._imputed[1] if self.knowledge.auxiliary is not None else ""

    def answered(self, method: str) -> Flags:
        """(n,): of which examples a method says something."""
        row = self.scores.facts["methods"].index(method)
        return np.asarray(self.scores.arrays["decisions"][row] >= 0)

    def beliefs(self, method: str) -> Floats | None:
        """(n, v): how sure a method is of each value; ``None`` if it does not say."""
        beliefs = self.scores.arrays.get("beliefs")
        if beliefs is not None and beliefs.ndim == 3:
            beliefs = beliefs[self.scores.facts["methods"].index(method)]
        return beliefs

    def belief(self, method: str) -> Floats | None:
        """(n,): how sure a method is of its answers; ``None`` if it does not say."""
        beliefs = self.beliefs(method)
        if beliefs is None:
            return None
        return np.asarray(np.take_along_axis(beliefs, self.answers[method][:, None], axis=1)[:, 0])

    @property
    def membership(self) -> tuple[Flags, Flags] | None:
        """Who was taken for a member, of the client's examples and of the decoys; ``None`` if nobody was asked."""
        arrays = self.scores.arrays
        if not {"members", "decoys", "decoy_clients"} <= arrays.keys():
            return None
        members, decoys = arrays["members"], arrays["decoys"]
        return members[~np.isnan(members)] > 0.5, decoys[~np.isnan(decoys)] > 0.5

    @property
    def candidates_of(self) -> list[str]:
        """The client of each candidate of :attr:`membership`, examples first."""
        arrays = self.scores.arrays
        owners = np.array(self.attributes.owners)[~np.isnan(arrays["members"])]
        asked = ~np.isnan(arrays["decoys"])
        return [*owners.tolist(), *map(str, arrays["decoy_clients"][asked].tolist())]


class AttributeJudge(Judge[AttributeCase]):
    """States how many values of an attribute were recovered.

    Its findings are

    - ``excess``: accuracy above the best baseline on the same examples, the headline;
    - ``accuracy``, ``balanced-accuracy`` and ``rare-recall`` of the same method;
    - ``accuracy-METHOD`` of the others;
    - ``bound``: what Proposition 3 of Driouich et al. 2022 promises, where the scores tell;
    - ``membership``: how well examples of the client were told from others first, likewise.
    """

    case = AttributeCase
    headline = "excess"
    needs_truth = ("attributes",)
    beside = ("aia", "ara", BASELINES)
    notes = (
        "What counts of attribute inference is the excess over guessing the attribute without any update, from the "
        "other columns and the label. Its null is the same against a shuffled truth; a null run, in which clients "
        "train on a shuffled column, is `--set permute-sensitive=true`.",
        "For a leak, answers must have to do with the values of these clients, and be right more often than the best "
        "guess. A guess that nobody thought of, and that happens to suit these clients better, looks the same.",
    )
    method: ClassVar[str] = ""
    """The method that was fixed in advance as the one that counts; the first of the scores if it is empty."""
    draws: ClassVar[int] = DRAWS
    """Exchanges that a test draws."""
    shuffles: ClassVar[int] = 1_000
    """Shuffled truths that a null is shown by."""

    def __init__(
        self, cases: Sequence[AttributeCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.truth = [case.values for case in cases]
        self.sizes = [*map(len, self.truth)]
        self.n = sum(self.sizes)
        self.names, self.column = cases[0].attributes.names, cases[0].attributes.column
        baselines = _of_every_case([case.baselines for case in cases])
        answers = _of_every_case([case.answers for case in cases])
        others = _of_every_case([case.others for case in cases])
        self.baselines = list(baselines)
        self.methods = [name for name in cases[0].scores.facts["methods"] if name in answers]
        self.main = self._main_method()
        self.answers = answers | others | baselines
        self.hits = {name: _hits(rows, self.truth) for name, rows in self.answers.items()}
        self.accuracy = {name: _pooled(hits) for name, hits in self.hits.items()}
        self.best = max(self.baselines, key=lambda name: self.accuracy[name])
        draw = np.random.default_rng((cases[0].seed, _SHUFFLING))
        self.shuffled: list[list[Rows]] = []
        for _ in range(self.shuffles):
            self.shuffled.append([draw.permutation(values) for values in self.truth])
        counts = np.bincount(np.concatenate(self.truth), minlength=len(self.names))
        # The rarest of those that occur at all.
        self.rarest = int(np.where(counts > 0, counts, counts.max() + 1).argmin())
        free, rare = np.zeros(len(counts)), np.arange(len(counts)) == self.rarest
        self.by_accuracy = _Measure(np.ones(len(counts)), free, constant=False)
        self.by_recall = _Measure(1 / np.maximum(counts, 1), free)
        # Naming the rarest value more often finds more of it: only what is beyond that is to the attack's credit.
        self.by_rarest = _Measure(rare / counts[self.rarest], rare / self.n)
        self.questions = _questions([case.attributes for case in cases])
        self.tests = {method: self._test(method, self.by_accuracy, place) for place, method in enumerate(self.methods)}

    def _main_method(self) -> str:
        if self.methods and (not self.method or self.method in self.methods):
            return self.method or self.methods[0]
        raise DataError(
            f"the scores of {self.shared['attack']} have the methods {', '.join(self.methods) or 'none'}; expected "
            f"{self.method or 'at least one'}; attack again"
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
        by_exchanges = least_p(arrangements_of(_questions(asked)))
        if by_exchanges > max(by_wins, needed):
            clients = max(len({*one.owners}) for one in asked)
            enough = smallest(lambda count: math.factorial(count) * needed >= 1, 2)
            setting = f"clients={enough}" if enough > clients else ""
            different = max(map(_different_clients, asked))
            return Reach(by_exchanges, f"{different} clients with different values", f"{enough} of them", setting)
        enough = smallest(lambda examples: 2.0**examples * needed >= 1)
        words = "examples that have another value than the commonest one"
        held = max(max(Counter(one.owners).values(), default=0) for one in asked)
        setting = f"records-per-client={_RECORDS}" if held < _RECORDS else ""
        return Reach(max(by_wins, by_exchanges), f"{wins} {words}", f"{enough} of them", setting)

    def findings(self) -> list[Finding]:
        """State all of the above."""
        others = [name for name in self.methods if name != self.main]
        findings = [
            self._excess(),
            self._accuracy(self.main),
            self._balanced(),
            self._rare(),
            *map(self._accuracy, others),
            self._bound(),
            self._membership(),
        ]
        return [finding for finding in findings if finding is not None]

    def listings(self) -> Iterator[Listing]:
        """List the clients, and every example with the value that the headline's method names."""
        yield self.clients_listing(self._per_client, "values recovered")
        yield Listing(
            "records",
            f"one row for each example, with the value of {self.column} that {self.main} names; "
            f"an example without an answer counts as the commonest value; the best baseline is {self.best}",
            (
                "seed",
                "record",
                "client",
                "true value",
                "said value",
                "answered",
                "score",
                "right",
                "best baseline says",
            ),
            self._said(),
        )

    def _said(self) -> Iterator[tuple[Cell, ...]]:
        names = self.names
        columns = (self.truth, self.answers[self.main], self.answers[self.best])
        for case, truth, said, baseline in zip(self.cases, *columns, strict=True):
            belief, answered = case.belief(self.main), case.answered(self.main)
            for row, client in enumerate(case.attributes.owners):
                yield (
                    case.seed,
                    row,
                    client,
                    names[truth[row]],
                    names[said[row]],
                    bool(answered[row]),
                    None if belief is None else float(belief[row]),
                    bool(said[row] == truth[row]),
                    names[baseline[row]],
                )

    def _test(self, method: str, measure: _Measure, stream: int) -> Significance:
        """Test whether a method knows something of the values, and more than the best baseline.

        The first alone is not enough, since any other guess from the same columns knows something. The second alone is
        not enough, since one client's examples are right together.
        """
        truth, answers = self.questions.truth, np.concatenate(self.answers[method])
        bars = [np.concatenate(self.answers[name]) for name in self.baselines]
        bar = max(bars, key=lambda guesses: float(measure.credits(guesses, truth).sum()))
        draw = np.random.default_rng((self.cases[0].seed, _TESTING, stream))
        knows = informed(answers, self.questions, bar, measure.weights, draw, draws=self.draws)
        if measure.constant and np.ptp(bar) == 0:
            return knows
        advantages = measure.credits(answers, truth) - measure.credits(bar, truth)
        return both(better_than(advantages, draw, draws=self.draws), knows)

    def _null(self, statistic: Callable[[Sequence[Rows]], float], n: int) -> Null:
        """Sum up what a statistic is against every shuffled truth."""
        return null_of([statistic(truth) for truth in self.shuffled], n)

    def _excess(self) -> Finding:
        value, interval, here = self._over_best(self.main)
        seeds = []
        for hits, bar in zip(self.hits[self.main], self.hits[self.best], strict=True):
            seeds.append(100 * (float(hits.mean()) - float(bar.mean())))
        return self.judged(
            "excess",
            f"Values of {self.column}: accuracy of {self.main} above the best baseline ({self.best})",
            interval,
            self._null(self._shuffled_excess, self.n),
            "the baseline is the best of those on these very examples, both are held against each other example by "
            "example, and the null is the same against a shuffled truth",
            test=self.tests[self.main],
            here=here,
            value=value,
            units=POINTS,
            n=self.n,
            chance=0.0,
            headline=True,
            series={"asked": self._asked} | ({"attributes": self._table()} if self.cases[0].first else {}),
            **over_seeds(seeds),
        )

    @property
    def _asked(self) -> dict[str, Any]:
        """What is asked for."""
        return {"column": self.column, "values": list(self.names)}

    def _over_best(self, method: str) -> tuple[float, tuple[float, float], tuple[float, float] | None]:
        """Return the excess of a method over the best baseline in points, with its intervals: over runs, and here."""
        wins, losses = [], []
        for hits, bar in zip(self.hits[method], self.hits[self.best], strict=True):
            wins.append(int((hits & ~bar).sum()))
            losses.append(int((bar & ~hits).sum()))
        value = 100 * (sum(wins) - sum(losses)) / self.n
        low, high = paired_interval(wins, losses, self.sizes)
        interval = min(100 * low, value), max(100 * high, value)
        if len(self.cases) == 1:
            return value, interval, None
        low, high = paired_interval([sum(wins)], [sum(losses)], [self.n])
        return value, interval, (100 * low, 100 * high)

    def _accuracy_against(self, method: str, truth: Sequence[Rows]) -> float:
        return _pooled(_hits(self.answers[method], truth))

    def _shuffled_excess(self, truth: Sequence[Rows]) -> float:
        best = max(self._accuracy_against(name, truth) for name in self.baselines)
        return 100 * (self._accuracy_against(self.main, truth) - best)

    def _accuracy(self, method: str) -> Finding:
        baselines = {name: self.accuracy[name] for name in self.baselines}
        unanswered = self.n - sum(int(case.answered(method).sum()) for case in self.cases)
        note = f"; {unanswered:,} examples without an answer count as the majority's value" if unanswered else ""
        is_main = method == self.main
        return self.judged(
            "accuracy" if is_main else f"accuracy-{slug(method)}",
            f"Values of {self.column} recovered by {method}",
            self._accuracy_interval(method),
            self._null(lambda truth: self._accuracy_against(method, truth), self.n),
            f"chance is a value at random, the null a shuffled truth{note}",
            value=self.accuracy[method],
            n=self.n,
            chance=1 / len(self.names),
            baselines=baselines,
            bars=_highest(baselines),
            test=self.tests[method],
            here=here_of([float(hits.sum()) for hits in self.hits[method]], self.sizes),
            series=self._series() if is_main else {},
            **over_seeds([float(hits.mean()) for hits in self.hits[method]]),
        )

    def _accuracy_interval(self, method: str) -> tuple[float, float]:
        return rate_interval([float(hits.sum()) for hits in self.hits[method]], self.sizes)

    def _balanced(self) -> Finding:
        """Average the recalls of all values, so that a common one counts no more than a rare one."""
        value = _balanced_accuracy(self.answers[self.main], self.truth)
        bars = {name: _balanced_accuracy(self.answers[name], self.truth) for name in self.baselines}
        pairs = zip(self.answers[self.main], self.truth, strict=True)
        seeds = [_balanced_accuracy([answers], [truth]) for answers, truth in pairs]
        interval, here = self._balanced_here(value), None
        if len(self.cases) > 1:
            here = interval
            interval = mean_interval(seeds, here, bounds=(0.0, 1.0))
        return self.judged(
            "balanced-accuracy",
            f"Balanced accuracy of {self.main} on {self.column}",
            interval,
            self._null(lambda truth: _balanced_accuracy(self.answers[self.main], truth), self.n),
            "the mean of each value's recall, with Jeffreys' interval for each; naming one value for everybody is at "
            "chance",
            value=value,
            n=self.n,
            chance=1 / len(np.unique(np.concatenate(self.truth))),
            baselines=bars,
            bars=_highest(bars),
            test=self._test(self.main, self.by_recall, len(self.methods)),
            here=here,
            **over_seeds(seeds),
        )

    def _balanced_here(self, value: float) -> tuple[float, float]:
        draw = np.random.default_rng((self.cases[0].seed, _POSTERIOR))
        hits, values = np.concatenate(self.hits[self.main]), np.concatenate(self.truth)
        recalls = []
        for known in np.unique(values):
            right, size = int(hits[values == known].sum()), int((values == known).sum())
            recalls.append(draw.beta(right + 0.5, size - right + 0.5, size=_DRAWS))
        low, high = np.quantile(np.mean(recalls, axis=0), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        return min(float(low), value), max(float(high), value)

    def _rare(self) -> Finding:
        sums, sizes = [], []
        for hits, values in zip(self.hits[self.main], self.truth, strict=True):
            rare = values == self.rarest
            if rare.any():
                sums.append(float(hits[rare].sum()))
                sizes.append(int(rare.sum()))
        return self.judged(
            "rare-recall",
            f"Examples of the rarest {self.column} ({self.names[self.rarest]}) that {self.main} recovers",
            rate_interval(sums, sizes),
            self._null(lambda truth: self._rare_recall(self.main, truth), sum(sizes)),
            "chance is naming that value as often, at random; the test is of what is beyond that, and beyond what the "
            "best baseline has beyond that",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=float((np.concatenate(self.answers[self.main]) == self.rarest).mean()),
            baselines={name: self._rare_recall(name, self.truth) for name in self.baselines},
            test=self._test(self.main, self.by_rarest, len(self.methods) + 1),
            here=here_of(sums, sizes),
        )

    def _rare_recall(self, method: str, truth: Sequence[Rows]) -> float:
        """Return the share of the rarest value's examples, over all seeds, for which a method names it."""
        named = np.concatenate(self.answers[method]) == self.rarest
        return float(named[np.concatenate(truth) == self.rarest].mean())

    def _bound(self) -> Finding | None:
        """State what Proposition 3 promises for least squares and a binary attribute, and whether it is kept."""
        bounds, rates, sizes = [], [], []
        for case, hits in zip(self.cases, self.hits[self.main], strict=True):
            for name, bound in _bounds_of(case, self.main).items():
                rows = np.array(case.attributes.owners) == name
                bounds.append(bound)
                rates.append(float(hits[rows].mean()))
                sizes.append(int(rows.sum()))
        if not bounds:
            return None
        kept = int((np.array(rates) >= np.array(bounds) - 1e-9).sum())
        return self.finding(
            "bound",
            "Lower bound on the accuracy by Proposition 3",
            value=float(np.average(bounds, weights=sizes)),
            low=None,
            high=None,
            n=sum(sizes),
            baselines={f"accuracy of {self.main} there": float(np.average(rates, weights=sizes))},
            verdict=NOT_APPLICABLE,
            reason="max(|1 − 2ρ|, 1 − 4·MSE/θ_s²) of each client's decoded least-squares model, weighted by its "
            f"examples; the accuracy is at least the bound for {kept} of {len(bounds)} clients",
        )

    def _membership(self) -> Finding | None:
        """Judge which candidates were taken for members, where clients' examples lay among decoys."""
        answers, hits, sizes, largest = [], [], [], 0
        candidates: list[tuple[int, str]] = []
        for number, case in enumerate(self.cases):
            if case.membership is None:
                return None
            members, decoys = case.membership
            answers.append((members, decoys))
            candidates += [(number, client) for client in case.candidates_of]
            hits.append(float(members.sum() + (~decoys).sum()))
            sizes.append(len(members) + len(decoys))
            largest += max(len(members), len(decoys))
        if not all(sizes):
            return None
        draw = np.random.default_rng((self.cases[0].seed, _DEALING))
        return self.judged(
            "membership",
            "Examples told to be the client's, or not, before the attribute",
            rate_interval(hits, sizes),
            null_of([_dealt_anew(answers, draw) for _ in range(self.shuffles)], sum(sizes)),
            "chance is saying the same of all, the null the same answers dealt at random",
            value=sum(hits) / sum(sizes),
            n=sum(sizes),
            chance=largest / sum(sizes),
            test=_told_apart(answers, candidates, np.random.default_rng((self.cases[0].seed, _MEMBERSHIP)), self.draws),
            here=here_of(hits, sizes),
        )

    def _table(self) -> dict[str, Any]:
        imputed_by = {case.imputed_by for case in self.cases}
        return {
            **self._asked,
            "rarest": self.names[self.rarest],
            "best_baseline": self.best,
            "imputed_by": sorted(imputed_by - {""}),
            "random": 1 / len(self.names),
            "methods": [self._row(method) for method in self.answers],
        }

    def _row(self, method: str) -> dict[str, Any]:
        low, high = self._accuracy_interval(method)
        excess, (excess_low, excess_high), _ = self._over_best(method)
        is_baseline = method in self.baselines
        return {
            "method": method,
            "baseline": is_baseline,
            "accuracy": self.accuracy[method],
            "low": low,
            "high": high,
            "balanced": _balanced_accuracy(self.answers[method], self.truth),
            "rare_recall": self._rare_recall(method, self.truth),
            "excess": excess,
            "excess_low": None if is_baseline else excess_low,
            "excess_high": None if is_baseline else excess_high,
        }

    def _series(self) -> dict[str, Any]:
        series: dict[str, Any] = {"per_client": self._per_client}
        sure, rare = [], []
        for case in self.cases:
            belief, beliefs = case.belief(self.main), case.beliefs(self.main)
            if belief is None or beliefs is None:
                return series
            sure.append(belief)
            rare.append(beliefs[:, self.rarest])
        series["reliability"] = reliability(np.concatenate(sure), np.concatenate(self.hits[self.main]))
        # Of values as a whole there is no threshold; of one there is.
        has, scores = np.concatenate(self.truth) == self.rarest, np.concatenate(rare)
        if has.any() and not has.all() and not np.isnan(scores).any():
            series |= {
                "roc": curve(scores[has], scores[~has], band=False),
                "scores": histogram(scores[has], scores[~has]),
            }
            series["asked"] = {**self._asked, "rarest": self.names[self.rarest]}
        return series

    @cached_property
    def _per_client(self) -> list[dict[str, Any]]:
        owners = [np.array(case.attributes.owners) for case in self.cases]
        comparisons = sum(len(np.unique(names)) for names in owners)
        entries = []
        for case, names, hits in zip(self.cases, owners, self.hits[self.main], strict=True):
            for name in np.unique(names).tolist():
                right = hits[names == name]
                low, high = rate_interval([float(right.sum())], [len(right)], comparisons=comparisons)
                title, value = self.title_of(case, name), float(right.mean())
                entries.append({"client": title, "value": value, "low": low, "high": high, "n": len(right)})
        return sorted(entries, key=lambda entry: -entry["value"])


class ModelBasedJudge(AttributeJudge):
    """The same of the model-based attack, whose examples with the best value are the headline."""

    method = "reconstructed"


def slug(method: str) -> str:
    """Return a method's name as names of findings are written."""
    return re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")


def lower_bound(share: float, mse: float, weight: float) -> float:
    """Return Proposition 3's lower bound on the accuracy for a binary attribute and least squares.

    Parameters
    ----------
    share
        ρ, the share of examples with the second value.
    mse
        Mean squared error of the client's decoded model on its examples as they are.
    weight
        θ_s, by how much the second value changes the model's output.
    """
    trivial = abs(1 - 2 * share)
    return max(trivial, 1 - 4 * mse / weight**2) if weight else trivial


def _bounds_of(case: AttributeCase, method: str) -> dict[str, float]:
    """Compute Proposition 3's bound for each client whose decoded model the scores tell.

    The attack gives the ``losses`` (methods, n, v) of every value. Its fact ``clients`` gives the decoded ``share``
    and the ``weight`` of each method. Which loss is that of the true value is for the auditor to know.
    """
    losses, model = case.scores.arrays.get("losses"), case.knowledge.model
    if losses is None or model is None or model.loss != "mse" or len(case.attributes.names) != 2:
        return {}
    row, owners = case.scores.facts["methods"].index(method), np.array(case.attributes.owners)
    bounds = {}
    for client in case.scores.facts.get("clients", []):
        weight = (client.get("weight") or {}).get(method)
        # Without a decoded share the attack was not the one that the proposition is about.
        if weight is None or client.get("share") is None:
            continue
        # Whoever does not know which client a node is calls it by the node.
        name = case.truth.nodes.get(str(client["client"]), str(client["client"]))
        rows = np.flatnonzero(owners == name)
        mse = float(losses[row, rows, case.values[rows]].mean()) if len(rows) else np.nan
        if np.isfinite(mse):
            bounds[name] = lower_bound(float(case.values[rows].mean()), mse, float(weight))
    return bounds


def _dealt_anew(answers: Sequence[tuple[Flags, Flags]], draw: np.random.Generator) -> float:
    """Return how often answers of membership are right once they are dealt to the candidates at random."""
    right = size = 0
    for members, decoys in answers:
        dealt = draw.permutation(np.concatenate([members, decoys]))
        right += int(dealt[: len(members)].sum() + (~dealt[len(members) :]).sum())
        size += len(dealt)
    return right / size


def _told_apart(
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

    return significance_of(
        float((named & member).sum()),
        draw,
        rng,
        "answers exchanged within each client's candidates",
        arrangements=arrangements_within(cells, member),
        draws=draws,
    )


def _questions(runs: Sequence[Attributes]) -> Questions:
    """Put the examples of all runs together; a client of two runs is two clients."""
    names: list[tuple[int, str]] = []
    for number, attributes in enumerate(runs):
        names += [(number, owner) for owner in attributes.owners]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    clients = np.array([numbers[name] for name in names])
    of_run = np.array([run for run, _ in names])
    return Questions(np.concatenate([attributes.values for attributes in runs]), clients, of_run)


def _different_clients(attributes: Attributes) -> int:
    """Count the clients of a run that are told apart by how many of their examples have each value."""
    owners = np.array(attributes.owners)
    held = [np.bincount(attributes.values[owners == owner]) for owner in np.unique(owners)]
    return len({tuple(np.trim_zeros(counts, "b").tolist()) for counts in held})


def _highest(bars: Mapping[str, float]) -> dict[str, float]:
    """Keep the highest of many bars: who clears it clears them all, and a list of them is nothing to read."""
    name = max(bars, key=lambda name: bars[name])
    return {f"the best baseline, {name}": bars[name]}


def _of_every_case(answers: Sequence[Mapping[str, Rows]]) -> dict[str, list[Rows]]:
    """Turn one mapping a case into one list a method, for the methods that every case has."""
    common = set.intersection(*map(set, answers))
    shared = {}
    for method in answers[0]:
        if method in common:
            shared[method] = [of_case[method] for of_case in answers]
    return shared


def _hits(answers: Sequence[Rows], truth: Sequence[Rows]) -> list[Flags]:
    """Say for each seed which answers are right."""
    return [rows == values for rows, values in zip(answers, truth, strict=True)]


def _pooled(hits: Sequence[Flags]) -> float:
    return float(np.concatenate(hits).mean())


def _balanced_accuracy(answers: Sequence[Rows], truth: Sequence[Rows]) -> float:
    named, values = np.concatenate(answers), np.concatenate(truth)
    counts = np.bincount(values)
    right = np.bincount(values[named == values], minlength=len(counts))
    return float((right[counts > 0] / counts[counts > 0]).mean())
