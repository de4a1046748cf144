"""Judge counts of labels: how many of a client's labels are counted right, and which labels are named."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NOT_APPLICABLE, Finding
from fedattack.audit.intervals import here_of, rate_interval, t_interval
from fedattack.audit.judge import Case, Judge, over_seeds
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.summaries import null_of
from fedattack.base.errors import DataError
from fedattack.threats.labels.exchange import Fits

Floats = NDArray[np.float64]
Measure = Callable[[Floats, Floats], float]

PRIOR = "auxiliary labels"

# Streams of random numbers, apart from each other.
_SHUFFLING, _TESTING = 1, 2
_SHUFFLES = 1_000

# Clients of the first run that the page shows.
_SHOWN = 20


def share_right(counted: Floats, true: Floats) -> float:
    """Return the part of the true labels (classes,) that counts of as many have in common with them."""
    return float(np.minimum(counted, true).sum() / true.sum())


def share_named(counted: Floats, true: Floats) -> float:
    """Return the part of the labels that are there which are counted at least once."""
    return float(((counted >= 0.5) & (true > 0)).sum() / (true > 0).sum())


def mean_error(counted: Floats, true: Floats) -> float:
    """Return the mean absolute error of counts (classes,)."""
    return float(np.abs(counted - true).mean())


@dataclass(frozen=True)
class LabelsCase(Case):
    """One seed's counts beside its truth.

    Raises
    ------
    DataError
        If the truth has other classes than the scores.
    """

    def __post_init__(self) -> None:
        counted, true = self.scores.facts["classes"], self.truth.counts.shape[1]
        if self.scores.arrays["counts"].shape[2] != counted:
            raise DataError(f"seed {self.seed}: the scores do not count {counted} labels, as they say; attack again")
        if true > counted:
            raise DataError(
                f"seed {self.seed}: the truth counts {true} labels, and the scores {counted}; attack again with the "
                "model of this run"
            )

    @cached_property
    def asked(self) -> list[str]:
        """The clients of which something was seen, and of which it is known what they hold, in their order."""
        holders = dict(zip(self.truth.clients, self.truth.counts.sum(axis=1), strict=True))
        seen = ~np.isnan(self.scores.arrays["counts"]).any(axis=(0, 2))
        names = []
        for client in self.clients:
            if holders.get(client, 0) and seen[self.columns(client)].any():
                names.append(client)
        return names

    @cached_property
    def true(self) -> Floats:
        """(clients, classes): what each client that is asked about holds."""
        rows = [self.truth.clients.index(client) for client in self.asked]
        counts = np.zeros((len(rows), self.scores.facts["classes"]))
        counts[:, : self.truth.counts.shape[1]] = self.truth.counts[rows]
        return counts

    def counted(self, rule: str) -> Floats:
        """Return (clients, classes): what a rule counted; of a client with several nodes the mean."""
        counts = self.scores.arrays["counts"][self.scores.facts["rules"].index(rule)]
        return np.stack([np.nanmean(counts[self.columns(client)], axis=0) for client in self.asked])

    def fits(self, rule: str, measure: Measure) -> Floats:
        """Return (clients, clients): what a rule counted of a client beside what each other one holds.

        What was counted of one is stretched to as many examples as the other one has.
        """
        counted = self.counted(rule)
        counted /= np.maximum(counted.sum(axis=1, keepdims=True), 1e-12)
        table = np.empty((len(self.asked), len(self.asked)))
        for row, shares in enumerate(counted):
            for column, true in enumerate(self.true):
                table[row, column] = measure(shares * true.sum(), true)
        return table

    def guess(self, measure: Measure) -> Floats:
        """Return (clients,): the same for whoever takes the labels of the attacker's own examples for a client's."""
        prior = self.scores.arrays["prior"]
        return np.array([measure(prior * true.sum(), true) for true in self.true])


class LabelsJudge(Judge[LabelsCase]):
    """States how many labels are counted right, which are named, and the mean absolute error of counts.

    Each is the mean over clients, of the best rule that could be applied. The test exchanges clients.
    """

    case = LabelsCase
    headline = "right"
    notes = (
        "The null of labels.right and labels.present is the same counts beside other clients' labels. Where all "
        "clients hold labels in the same shares, these say nothing of a client.",
    )

    def findings(self) -> list[Finding]:
        """State all findings."""
        self.asked = [case for case in self.cases if case.asked]
        label = "Labels counted right"
        if not self.asked:
            reason = "of no client it is known which labels it holds"
            return [self.unmeasured(self.headline, label, reason, headline=True)]
        self.rule = self.asked[0].scores.facts["rules"][0]
        series = {"rules": [*self._rules()], "clients": [*self._clients()]}
        return [
            self._found("right", label, share_right, headline=True, series=series),
            self._found("present", "Labels that are there and named", share_named),
            self._error(),
        ]

    def _fits(self, measure: Measure) -> Fits:
        return Fits([case.fits(self.rule, measure) for case in self.asked])

    def _found(self, metric: str, label: str, measure: Measure, **parts: Any) -> Finding:
        fits = self._fits(measure)
        null = fits.draw(np.random.default_rng((self.cases[0].seed, _SHUFFLING)), _SHUFFLES)
        guessed = float(np.concatenate([case.guess(measure) for case in self.asked]).mean())
        n = sum(fits.sizes)
        # Whoever names every label misses none: the guess bars the counts alone.
        bars = {PRIOR: guessed} if measure is share_right else {}
        return self.judged(
            metric,
            label,
            rate_interval(fits.sums, fits.sizes),
            null_of(null.tolist(), n),
            f"by the rule {self.rule}; the null is the same counts beside other clients' labels",
            value=float(fits.own.mean()),
            n=n,
            chance=float(null.mean()),
            test=fits.test(np.random.default_rng((self.cases[0].seed, _TESTING))),
            here=here_of(fits.sums, fits.sizes),
            baselines=bars,
            bars=bars,
            **parts,
            **over_seeds([total / size for total, size in zip(fits.sums, fits.sizes, strict=True)]),
        )

    def _error(self) -> Finding:
        fits = self._fits(mean_error)
        null = fits.draw(np.random.default_rng((self.cases[0].seed, _SHUFFLING)), _SHUFFLES)
        errors = np.concatenate([self._errors(case, self.rule) for case in self.asked])
        low, high = t_interval(errors.tolist(), bounds=(0.0, np.inf)) if len(errors) > 1 else (None, None)
        guessed = float(np.concatenate([case.guess(mean_error) for case in self.asked]).mean())
        return self.finding(
            "mean-error",
            "Mean absolute error of the counts",
            value=float(errors.mean()),
            low=low,
            high=high,
            n=len(errors),
            units="examples",
            null=null_of(null.tolist(), len(errors)),
            baselines={PRIOR: guessed},
            verdict=NOT_APPLICABLE,
            reason="less is worse; the verdict is that of the labels that are counted right, which says the same in "
            "shares",
        )

    @staticmethod
    def _errors(case: LabelsCase, rule: str) -> Floats:
        """Return (clients,): the mean absolute error of a rule's counts, as they are."""
        return np.asarray(np.abs(case.counted(rule) - case.true).mean(axis=1))

    def _rules(self) -> Iterator[dict[str, Any]]:
        """Compare the rules on the same updates."""
        for rule in self.asked[0].scores.facts["rules"]:
            cases = [case for case in self.asked if rule in case.scores.facts["rules"]]
            of_rule = {"rule": rule}
            for name, measure in (("right", share_right), ("present", share_named)):
                of_rule[name] = float(np.concatenate([np.diagonal(case.fits(rule, measure)) for case in cases]).mean())
            yield of_rule | {"error": float(np.concatenate([self._errors(case, rule) for case in cases]).mean())}

    def _clients(self) -> Iterator[dict[str, Any]]:
        """Describe the clients of the first run."""
        case = self.asked[0]
        errors, right = self._errors(case, self.rule), np.diagonal(case.fits(self.rule, share_right))
        rows = zip(case.asked, case.counted(self.rule), case.true, right.tolist(), errors.tolist(), strict=True)
        for client, counted, true, share, error in list(rows)[:_SHOWN]:
            named, there = counted >= 0.5, true > 0
            yield {
                "client": client,
                "examples": int(true.sum()),
                "right": share,
                "error": error,
                "there": int(there.sum()),
                "named": int((named & there).sum()),
                "wrong": int((named & ~there).sum()),
            }

    def listings(self) -> Iterator[Listing]:
        """List the clients, and every count beside the truth."""
        yield Listing(
            "clients",
            "one row for each client, by the rule that counts best",
            ("seed", "client", "examples", "counted right", "mean absolute error"),
            self._list_clients(),
        )
        yield Listing(
            "counts",
            "one row for each client, rule and label that is there or counted",
            ("seed", "client", "rule", "label", "counted", "true"),
            self._list_counts(),
        )

    def _list_clients(self) -> Iterator[tuple[Cell, ...]]:
        for case in self.asked:
            right, errors = np.diagonal(case.fits(self.rule, share_right)), self._errors(case, self.rule)
            for row, client in enumerate(case.asked):
                yield case.seed, client, int(case.true[row].sum()), float(right[row]), float(errors[row])

    def _list_counts(self) -> Iterator[tuple[Cell, ...]]:
        for case in self.asked:
            for rule in case.scores.facts["rules"]:
                counted = case.counted(rule)
                for row, client in enumerate(case.asked):
                    for label in np.flatnonzero((counted[row] > 0) | (case.true[row] > 0)).tolist():
                        yield case.seed, client, rule, label, float(counted[row, label]), int(case.true[row, label])
