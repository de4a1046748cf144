"""Judge attribute inference: how many values were recovered, and how many more than by a guess without any update.

Where a value is common, naming it for everybody is right most of the time. The number that counts is therefore the
excess over the best baseline on the same records, with a paired interval; balanced accuracy and the recall of the
rarest value stand beside it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NOT_APPLICABLE, Finding, verdict
from fedattack.audit.intervals import LEVEL, paired_interval, rate_interval, t_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.summaries import null_of, reliability
from fedattack.audit.truth import Attributes
from fedattack.errors import DataError
from fedattack.threats import Scores
from fedattack.threats.attribute.imputation import impute

_SHUFFLES = 1_000
_DRAWS = 4_000

# Streams of random numbers, apart from each other.
_SHUFFLING, _POSTERIOR, _IMPUTATION, _DEALING = 1, 2, 3, 4

POINTS = "points"
"""Units of a difference of two rates, in per cent of the records."""

BASELINES = "attribute-baselines"
"""The attack whose methods are guesses, to be held against the others'."""

MAJORITY = "majority"
IMPUTATION = "imputation without the model"

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class AttributeCase(Case):
    """One seed's scores of an attack on attributes beside the attribute's values.

    The scores hold ``decisions`` (methods, n), −1 for no answer, and ``beliefs`` (n, v) or (methods, n, v). Their
    facts name the ``methods``. The scores beside them are of other attacks on the same records: those of
    :data:`BASELINES` are bars to clear, the others stand in the same table, which the first of them shows.
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
                f"{expected}, a method and a record each, and values below {len(self.attributes.names)}; attack again"
            )

    @property
    def attributes(self) -> Attributes:
        """The truth."""
        if self.truth.attributes is None:
            raise AssertionError("checked at the start")
        return self.truth.attributes

    @property
    def values(self) -> Rows:
        """(n,): index of each record's value."""
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
        """(n,) for each method of other attacks on the same record."""
        return {
            f"{scores.attack}: {name}": answers
            for scores in self.beside
            if scores.attack != BASELINES
            for name, answers in self._answers_of(scores).items()
        }

    @cached_property
    def baselines(self) -> dict[str, Rows]:
        """(n,) for each way to guess without updates."""
        found = {MAJORITY: np.full(len(self.values), self.commonest, dtype=np.int64)}
        if self.knowledge.auxiliary is not None:
            found[IMPUTATION], _ = self._imputed
        for scores in self.beside:
            if scores.attack == BASELINES:
                # The majority that is right most often is a higher bar than the one that an attacker can know.
                found = self._answers_of(scores) | found
        return found

    @cached_property
    def _imputed(self) -> tuple[Rows, str]:
        partial, auxiliary = self.knowledge.partial, self.knowledge.auxiliary
        if partial is None or auxiliary is None:
            raise AssertionError("asked for only where both are there")
        seed = int(np.random.SeedSequence((self.seed, _IMPUTATION)).generate_state(1)[0])
        beliefs, name = impute(partial, auxiliary, seed=seed)
        return beliefs.argmax(axis=1), name

    @property
    def imputed_by(self) -> str:
        """The classifier that imputes; empty without public records."""
        return self._imputed[1] if self.knowledge.auxiliary is not None else ""

    def unanswered(self, method: str) -> int:
        """Of how many records a method says nothing."""
        row = self.scores.facts["methods"].index(method)
        return int((self.scores.arrays["decisions"][row] < 0).sum())

    def belief(self, method: str) -> NDArray[np.float64] | None:
        """(n,): how sure a method is of its answers; ``None`` if it does not say."""
        beliefs = self.scores.arrays.get("beliefs")
        if beliefs is None:
            return None
        if beliefs.ndim == 3:
            beliefs = beliefs[self.scores.facts["methods"].index(method)]
        return np.asarray(np.take_along_axis(beliefs, self.answers[method][:, None], axis=1)[:, 0])


class AttributeJudge(Judge[AttributeCase]):
    """States how many values of an attribute were recovered.

    Its findings are

    - ``excess``: accuracy above the best baseline on the same records, the headline;
    - ``accuracy``, ``balanced-accuracy`` and ``rare-recall`` of the same method;
    - ``accuracy-METHOD`` of the others;
    - ``bound``: what Proposition 3 of Driouich et al. 2022 promises, where the scores tell;
    - ``membership``: how well records of the client were told from others first, likewise.
    """

    case = AttributeCase
    headline = "excess"
    beside = ("aia", "ara", BASELINES)
    notes = (
        "What counts of attribute inference is the excess over guessing the attribute without any update, from the "
        "other columns and the label. Its null is the same against a shuffled truth; a null run, in which clients "
        "train on a shuffled column, is `--set permute-sensitive=true`.",
    )
    method: ClassVar[str] = ""
    """The method that was fixed in advance as the one that counts; the first of the scores if it is empty."""

    def __init__(
        self, cases: Sequence[AttributeCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.truth = [case.values for case in cases]
        self.sizes = [len(values) for values in self.truth]
        self.names = cases[0].attributes.names
        self.baselines = [name for name in cases[0].baselines if all(name in case.baselines for case in cases)]
        self.methods = [
            name for name in cases[0].scores.facts["methods"] if all(name in case.answers for case in cases)
        ]
        if not self.methods or (self.method and self.method not in self.methods):
            raise DataError(
                f"the scores of {self.shared['attack']} have the methods {', '.join(self.methods) or 'none'}; expected "
                f"{self.method or 'at least one'}; attack again"
            )
        self.main = self.method or self.methods[0]
        others = [name for name in cases[0].others if all(name in case.others for case in cases)]
        self.answers: Mapping[str, list[Rows]] = {
            **{name: [case.answers[name] for case in cases] for name in self.methods},
            **{name: [case.others[name] for case in cases] for name in others},
            **{name: [case.baselines[name] for case in cases] for name in self.baselines},
        }
        self.hits: Mapping[str, list[Flags]] = {
            name: [own == values for own, values in zip(rows, self.truth, strict=True)]
            for name, rows in self.answers.items()
        }
        self.accuracy = {name: _pooled(hits) for name, hits in self.hits.items()}
        self.best = max(self.baselines, key=lambda name: self.accuracy[name])
        draw = np.random.default_rng((cases[0].seed, _SHUFFLING))
        self.shuffled = [[draw.permutation(values) for values in self.truth] for _ in range(_SHUFFLES)]
        counts = np.sum([np.bincount(values, minlength=len(self.names)) for values in self.truth], axis=0)
        # The rarest of those that occur at all.
        self.rarest = int(np.where(counts > 0, counts, counts.max() + 1).argmin())

    def findings(self) -> list[Finding]:
        """State all of the above."""
        others = [name for name in self.methods if name != self.main]
        found = [
            self._excess(),
            self._accuracy(self.main),
            self._balanced(),
            self._rare(),
            *(self._accuracy(name) for name in others),
            self._bound(),
            self._membership(),
        ]
        return [item for item in found if item is not None]

    def _excess(self) -> Finding:
        value, low, high = self._over(self.main)
        null = null_of([self._shuffled_excess(truth) for truth in self.shuffled], sum(self.sizes))
        words, why = verdict(value, low, 0.0, null["high"], units=POINTS)
        each = [
            100 * (float(own.mean()) - float(other.mean()))
            for own, other in zip(self.hits[self.main], self.hits[self.best], strict=True)
        ]
        return self.finding(
            "excess",
            f"Accuracy of {self.main} above the best baseline ({self.best})",
            value=value,
            low=low,
            high=high,
            units=POINTS,
            n=sum(self.sizes),
            chance=0.0,
            null=null,
            headline=True,
            verdict=words,
            reason="the baseline is the best of those on these very records, the interval is paired (Tango's score "
            "interval, over several seeds also Student's), the null is the same against a shuffled truth: " + why,
            series={"attributes": self._table()} if self.cases[0].first else {},
            **over_seeds(each),
        )

    def _over(self, method: str) -> tuple[float, float, float]:
        """Excess of a method over the best baseline in points, with its interval."""
        pairs = list(zip(self.hits[method], self.hits[self.best], strict=True))
        first = [int((own & ~other).sum()) for own, other in pairs]
        second = [int((other & ~own).sum()) for own, other in pairs]
        low, high = paired_interval(first, second, self.sizes)
        value = (sum(first) - sum(second)) / sum(self.sizes)
        return 100 * value, 100 * min(low, value), 100 * max(high, value)

    def _shuffled_accuracy(self, method: str, truth: Sequence[Rows]) -> float:
        return _pooled([own == values for own, values in zip(self.answers[method], truth, strict=True)])

    def _shuffled_excess(self, truth: Sequence[Rows]) -> float:
        best = max(self._shuffled_accuracy(name, truth) for name in self.baselines)
        return 100 * (self._shuffled_accuracy(self.main, truth) - best)

    def _accuracy(self, method: str) -> Finding:
        sums = [float(hits.sum()) for hits in self.hits[method]]
        low, high = rate_interval(sums, self.sizes)
        value, chance = self.accuracy[method], 1 / len(self.names)
        null = null_of([self._shuffled_accuracy(method, truth) for truth in self.shuffled], sum(self.sizes))
        bars = {name: self.accuracy[name] for name in self.baselines}
        words, why = verdict(value, low, chance, null["high"], bars=_highest(bars))
        each = [float(hits.mean()) for hits in self.hits[method]]
        silent = sum(case.unanswered(method) for case in self.cases)
        note = f"; {silent:,} records without an answer count as the majority's value" if silent else ""
        return self.finding(
            "accuracy" if method == self.main else f"accuracy-{slug(method)}",
            f"Values recovered by {method}",
            value=value,
            low=low,
            high=high,
            n=sum(self.sizes),
            chance=chance,
            null=null,
            baselines=bars,
            verdict=words,
            reason=f"chance is a value at random, the null a shuffled truth{note}: {why}",
            series=self._series() if method == self.main else {},
            **over_seeds(each),
        )

    def _balanced(self) -> Finding:
        """Average the recalls of all values, so that a common one counts no more than a rare one."""
        value = self._balanced_of(self.answers[self.main], self.truth)
        low, high = self._balanced_interval()
        chance = 1 / len({int(v) for values in self.truth for v in values})
        null = null_of([self._balanced_of(self.answers[self.main], truth) for truth in self.shuffled], sum(self.sizes))
        bars = {name: self._balanced_of(self.answers[name], self.truth) for name in self.baselines}
        words, why = verdict(value, low, chance, null["high"], bars=_highest(bars))
        return self.finding(
            "balanced-accuracy",
            f"Balanced accuracy of {self.main}",
            value=value,
            low=min(low, value),
            high=max(high, value),
            n=sum(self.sizes),
            chance=chance,
            null=null,
            baselines=bars,
            verdict=words,
            reason="the mean of each value's recall, with Jeffreys' interval for each; naming one value for everybody "
            f"is at chance: {why}",
        )

    @staticmethod
    def _balanced_of(answers: Sequence[Rows], truth: Sequence[Rows]) -> float:
        own, values = np.concatenate(answers), np.concatenate(truth)
        counts = np.bincount(values)
        right = np.bincount(values[own == values], minlength=len(counts))
        return float((right[counts > 0] / counts[counts > 0]).mean())

    def _balanced_interval(self) -> tuple[float, float]:
        draw = np.random.default_rng((self.cases[0].seed, _POSTERIOR))
        own, values = np.concatenate(self.answers[self.main]), np.concatenate(self.truth)
        recalls = []
        for value in np.unique(values):
            right, size = int((own[values == value] == value).sum()), int((values == value).sum())
            recalls.append(draw.beta(right + 0.5, size - right + 0.5, size=_DRAWS))
        low, high = np.quantile(np.mean(recalls, axis=0), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        if len(self.cases) > 1:
            pairs = zip(self.answers[self.main], self.truth, strict=True)
            seeds = t_interval([self._balanced_of([one], [two]) for one, two in pairs], bounds=(0.0, 1.0))
            low, high = min(low, seeds[0]), max(high, seeds[1])
        return float(low), float(high)

    def _rare(self) -> Finding | None:
        chosen = [values == self.rarest for values in self.truth]
        use = [index for index, rows in enumerate(chosen) if rows.any()]
        sizes = [int(chosen[index].sum()) for index in use]
        sums = [float(self.hits[self.main][index][chosen[index]].sum()) for index in use]
        low, high = rate_interval(sums, sizes)
        value = sum(sums) / sum(sizes)
        named = fmean(float((rows == self.rarest).mean()) for rows in self.answers[self.main])

        def recall(method: str, truth: Sequence[Rows]) -> float:
            asked = [rows == self.rarest for rows in truth]
            pairs = zip(self.answers[method], asked, strict=True)
            return sum(float((own[rows] == self.rarest).sum()) for own, rows in pairs) / sum(sizes)

        null = null_of([recall(self.main, truth) for truth in self.shuffled], sum(sizes))
        words, why = verdict(value, low, named, null["high"])
        return self.finding(
            "rare-recall",
            f"Records of the rarest value ({self.names[self.rarest]}) that {self.main} recovers",
            value=value,
            low=low,
            high=high,
            n=sum(sizes),
            chance=named,
            null=null,
            baselines={name: recall(name, self.truth) for name in self.baselines},
            verdict=words,
            reason=f"chance is naming that value as often, at random: {why}",
        )

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
        kept = sum(rate >= bound - 1e-9 for rate, bound in zip(rates, bounds, strict=True))
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
            f"records; the accuracy is at least the bound for {kept} of {len(bounds)} clients",
        )

    def _membership(self) -> Finding | None:
        """Judge what was told of membership, where clients' records lay among others (``members``, ``decoys``)."""
        told = []
        for case in self.cases:
            arrays = case.scores.arrays
            if "members" not in arrays or "decoys" not in arrays:
                return None
            # who is taken for a member, of the client's records and of the others
            told.append([arrays[name][~np.isnan(arrays[name])] > 0.5 for name in ("members", "decoys")])
        sizes = [len(inside) + len(outside) for inside, outside in told]
        if not all(sizes):
            return None
        hits = [float(inside.sum() + (~outside).sum()) for inside, outside in told]
        largest = [max(len(inside), len(outside)) for inside, outside in told]
        low, high = rate_interval(hits, sizes)
        value, chance = sum(hits) / sum(sizes), sum(largest) / sum(sizes)
        draw = np.random.default_rng((self.cases[0].seed, _DEALING))
        nulls = []
        for _ in range(_SHUFFLES):
            right = 0
            for inside, outside in told:
                named = draw.permutation(np.concatenate([inside, outside]))
                right += int(named[: len(inside)].sum() + (~named[len(inside) :]).sum())
            nulls.append(right / sum(sizes))
        null = null_of(nulls, sum(sizes))
        words, why = verdict(value, low, chance, null["high"])
        return self.finding(
            "membership",
            "Records told to be the client's, or not, before the attribute",
            value=value,
            low=low,
            high=high,
            n=sum(sizes),
            chance=chance,
            null=null,
            verdict=words,
            reason=f"chance is saying the same of all, the null the same answers dealt at random: {why}",
        )

    def _table(self) -> dict[str, Any]:
        rows = []
        for name, hits in self.hits.items():
            low, high = rate_interval([float(item.sum()) for item in hits], self.sizes)
            excess, excess_low, excess_high = self._over(name)
            own, values = np.concatenate(self.answers[name]), np.concatenate(self.truth)
            rare = values == self.rarest
            is_baseline = name in self.baselines
            rows.append(
                {
                    "method": name,
                    "baseline": is_baseline,
                    "accuracy": self.accuracy[name],
                    "low": low,
                    "high": high,
                    "balanced": self._balanced_of(self.answers[name], self.truth),
                    "rare_recall": float((own[rare] == self.rarest).mean()),
                    "excess": excess,
                    "excess_low": None if is_baseline else excess_low,
                    "excess_high": None if is_baseline else excess_high,
                }
            )
        imputed = sorted({case.imputed_by for case in self.cases} - {""})
        return {
            "column": self.cases[0].attributes.column,
            "values": list(self.names),
            "rarest": self.names[self.rarest],
            "best_baseline": self.best,
            "imputed_by": imputed,
            "random": 1 / len(self.names),
            "methods": rows,
        }

    def _series(self) -> dict[str, Any]:
        series: dict[str, Any] = {"per_client": self._per_client()}
        sure = [case.belief(self.main) for case in self.cases]
        told = [belief for belief in sure if belief is not None]
        if len(told) == len(sure):
            series["reliability"] = reliability(np.concatenate(told), np.concatenate(self.hits[self.main]))
        return series

    def _per_client(self) -> list[dict[str, Any]]:
        owners = [np.array(case.attributes.owners) for case in self.cases]
        bars = sum(len(np.unique(names)) for names in owners)
        entries = []
        for case, names, hits in zip(self.cases, owners, self.hits[self.main], strict=True):
            for name in np.unique(names).tolist():
                own = hits[names == name]
                low, high = rate_interval([float(own.sum())], [len(own)], comparisons=bars)
                entries.append(
                    {
                        "client": self.title_of(case, name),
                        "value": float(own.mean()),
                        "low": low,
                        "high": high,
                        "n": len(own),
                    }
                )
        return sorted(entries, key=lambda entry: -entry["value"])


class ModelBasedJudge(AttributeJudge):
    """The same of the model-based attack, whose records with the best value are the headline."""

    method = "reconstructed"


def slug(method: str) -> str:
    """Return a method's name as names of findings are written."""
    return re.sub(r"[^a-z0-9]+", "-", method.lower()).strip("-")


def lower_bound(share: float, mse: float, weight: float) -> float:
    """Return Proposition 3's lower bound on the accuracy for a binary attribute and least squares.

    Parameters
    ----------
    share
        ρ, the share of records with the second value.
    mse
        Mean squared error of the client's decoded model on its records as they are.
    weight
        θ_s, by how much the second value changes the model's output.
    """
    trivial = abs(1 - 2 * share)
    return max(trivial, 1 - 4 * mse / weight**2) if weight else trivial


def _bounds_of(case: AttributeCase, method: str) -> dict[str, float]:
    """Compute Proposition 3's bound for each client whose decoded model the scores tell.

    The attack gives the ``losses`` (methods, n, v) of every value and, in the fact ``clients``, the decoded ``share``
    and the ``weight`` of each method; which loss is that of the true value is for the auditor to know.
    """
    losses, clients = case.scores.arrays.get("losses"), case.scores.facts.get("clients", [])
    known = case.knowledge.model
    if losses is None or known is None or known.loss != "mse" or len(case.attributes.names) != 2:
        return {}
    row, owners = case.scores.facts["methods"].index(method), np.array(case.attributes.owners)
    found = {}
    for client in clients:
        weight = (client.get("weight") or {}).get(method)
        # Without a decoded share the attack was not the one that the proposition is about.
        if weight is None or client.get("share") is None:
            continue
        rows = np.flatnonzero(owners == client["client"])
        mse = float(losses[row, rows, case.values[rows]].mean())
        if np.isfinite(mse):
            found[str(client["client"])] = lower_bound(float(case.values[rows].mean()), mse, float(weight))
    return found


def _highest(bars: Mapping[str, float]) -> dict[str, float]:
    """Keep the highest of many bars: who clears it clears them all, and a list of them is nothing to read."""
    name = max(bars, key=lambda name: bars[name])
    return {f"the best baseline, {name}": bars[name]}


def _pooled(hits: Sequence[Flags]) -> float:
    return sum(int(item.sum()) for item in hits) / sum(len(item) for item in hits)
