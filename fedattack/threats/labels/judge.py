"""Judge counts of labels: how many of a client's labels are counted right, and which labels are named."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.clients import SHUFFLING, ClientsCase, ClientsJudge, reach_of_clients
from fedattack.audit.finding import NOT_APPLICABLE
from fedattack.audit.intervals import t_interval
from fedattack.audit.measures import UNKNOWN, Measurement, measure, no_value
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.readoff import read_off
from fedattack.audit.summaries import null_of
from fedattack.audit.table import Row, rows_of
from fedattack.base.errors import DataError
from fedattack.threats.labels.labels import CountedLabels
from fedattack.threats.labels.rules import round_counts
from fedattack.threats.labels.tables import CLIENTS, COUNTS, RULES

Floats = NDArray[np.float64]
Score = Callable[[Floats, Floats], float]

PRIOR = "auxiliary labels"


def share_right(counted: Floats, true: Floats) -> float:
    """Return which share of the true labels (classes,) counts of as many have in common with them."""
    return float(np.minimum(counted, true).sum() / true.sum())


def share_named(counted: Floats, true: Floats) -> float:
    """Return which share of the labels that are there is counted at least once."""
    return float(((counted >= 0.5) & (true > 0)).sum() / (true > 0).sum())


def mean_error(counted: Floats, true: Floats) -> float:
    """Return the mean absolute error of counts (classes,)."""
    return float(np.abs(counted - true).mean())


_SCORES: Mapping[str, Score] = {"right": share_right, "present": share_named, "mean-error": mean_error}


@dataclass(frozen=True, eq=False)
class LabelsCase(ClientsCase[CountedLabels, None]):
    """One seed's counts beside its truth.

    Raises
    ------
    DataError
        If the truth has other classes than the scores.
    """

    def __post_init__(self) -> None:
        counted, true = self.found.classes, self.truth.counts.shape[1]
        if true > counted:
            raise DataError(
                f"seed {self.seed}: the truth counts {true} labels, and the scores {counted}; attack again with the "
                "model of this run"
            )

    @cached_property
    def asked(self) -> list[str]:
        """The clients of which something was seen, and of which it is known what they hold, in their order."""
        holders = dict(zip(self.truth.clients, self.truth.counts.sum(axis=1), strict=True))
        seen = ~np.isnan(self.found.counts).any(axis=(0, 2))
        names = []
        for client in self.clients:
            if holders.get(client, 0) and seen[self.columns(client)].any():
                names.append(client)
        return names

    @cached_property
    def true(self) -> Floats:
        """(clients, classes): what each client that is asked about holds."""
        rows = [self.truth.clients.index(client) for client in self.asked]
        counts = np.zeros((len(rows), self.found.classes))
        counts[:, : self.truth.counts.shape[1]] = self.truth.counts[rows]
        return counts

    def counted(self, rule: str) -> Floats:
        """Return (clients, classes): what a rule counted; of a client with several nodes the mean."""
        counts = self.found.counts[self.found.rules.index(rule)]
        return np.stack([np.nanmean(counts[self.columns(client)], axis=0) for client in self.asked])

    @property
    def rule(self) -> str:
        """The rule that counts."""
        return self.found.rules[0]

    def fits(self, metric: str, rule: str = "") -> Floats:
        """Compare what a rule counted of a client with what each one holds.

        For shares of counts, what was counted of one is stretched to as many examples as the other one has. Which
        labels are named does not change with whom a client is held against: stretched, fewer would be, beside others.
        """
        score, counted = _SCORES[metric], self.counted(rule or self.rule)
        totals = np.maximum(counted.sum(axis=1), 1e-12)
        table = np.empty((len(self.asked), len(self.asked)))
        for row, own in enumerate(counted):
            for column, true in enumerate(self.true):
                stretched = own
                if metric != "present":
                    stretched = own * true.sum() / totals[row]
                table[row, column] = score(stretched, true)
        return table

    @cached_property
    def is_exact(self) -> NDArray[np.bool_]:
        """(clients,): whether all labels of a client are counted, where neither the guess nor another client has these.

        The guess are the shares of the attacker's own examples, in whole numbers.
        """
        right: NDArray[np.bool_] = (self.counted(self.rule) == self.true).all(axis=1)
        prior = self.found.prior
        for client, true in enumerate(self.true):
            of_others = np.delete(self.true, client, axis=0)
            guessed = round_counts(prior / prior.sum(), int(true.sum()))
            right[client] &= not (guessed == true).all() and not (of_others == true).all(axis=1).any()
        return right

    def guess(self, score: Score) -> Floats:
        """Return (clients,): the same for whoever takes the labels of the attacker's own examples for a client's."""
        prior = self.found.prior
        return np.array([score(prior * true.sum(), true) for true in self.true])


class LabelsJudge(ClientsJudge[LabelsCase]):
    """States how many labels are counted right, which are named, and the mean absolute error of counts.

    Each is the mean over clients, of the best rule that could be applied. The test exchanges clients.
    """

    case = LabelsCase
    notes = (
        "The null of labels.right and labels.present compares the same counts with other clients' labels. If all "
        "clients hold labels in the same shares, these say nothing about a client.",
    )

    @property
    def rule(self) -> str:
        """The rule that counts."""
        return self.asked[0].rule

    @measure("right", "Labels counted right", headline=True)
    def find_right(self) -> Measurement | None:
        """Count what counts have in common with the labels that are there."""
        if not self.asked:
            return no_value("there is no client whose labels are known")
        # Whoever names every label misses none: the guess bars the counts alone.
        bars = {PRIOR: self._guess(share_right)}
        series = self.show(RULES, CLIENTS)
        # Where clients hold one label each, a guess may meet all counts of a client: none is certain.
        exact = [case.is_exact for case in self.asked]
        of_clients = read_off("label count", exact, [np.zeros(len(of_run)) for of_run in exact])
        return self.hold_against_others("right", bars=bars, baselines=bars, series=series, read_off=of_clients)

    @measure("present", "Labels present and named")
    def find_present(self) -> Measurement | None:
        """Count the labels that are there and named."""
        return self.hold_against_others("present")

    @measure("mean-error", "Mean absolute error of the counts")
    def find_error(self) -> Measurement | None:
        """Measure how far the counts are off."""
        if not self.asked:
            return None
        null = self.fit_clients("mean-error").draw(self.rng(SHUFFLING), self.shuffles)
        errors = np.concatenate([self._errors(case, self.rule) for case in self.asked])
        interval = t_interval(errors.tolist(), bounds=(0.0, np.inf)) if len(errors) > 1 else UNKNOWN
        return Measurement(
            value=float(errors.mean()),
            n=len(errors),
            interval=interval,
            units="examples",
            null=null_of(null.tolist(), len(errors)),
            baselines={PRIOR: self._guess(mean_error)},
            verdict=NOT_APPLICABLE,
            reason="lower is a worse leak; the verdict is that of the labels counted right, which says the same in "
            "shares",
        )

    def _guess(self, score: Score) -> float:
        """Return the same for whoever takes the labels of the attacker's own examples for a client's."""
        return float(np.concatenate([case.guess(score) for case in self.asked]).mean())

    @property
    def reason(self) -> str:
        """The rule, and what the null is."""
        return f"by the rule {self.rule}; the null compares the same counts with other clients' labels"

    @staticmethod
    def _errors(case: LabelsCase, rule: str) -> Floats:
        """Return (clients,): the mean absolute error of a rule's counts, as they are."""
        return np.asarray(np.abs(case.counted(rule) - case.true).mean(axis=1))

    @rows_of(RULES)
    def compare_rules(self) -> Iterator[Row]:
        """Compare the rules on the same updates."""
        for rule in self.asked[0].found.rules:
            cases = [case for case in self.asked if rule in case.found.rules]
            shares = {}
            for name in ("right", "present"):
                shares[name] = float(np.concatenate([np.diagonal(case.fits(name, rule)) for case in cases]).mean())
            error = float(np.concatenate([self._errors(case, rule) for case in cases]).mean())
            yield {"rule": rule, **shares, "error": error}

    @rows_of(CLIENTS)
    def describe_clients(self, case: LabelsCase) -> Iterator[Row]:
        """Describe the clients of a run."""
        errors, right = self._errors(case, self.rule), np.diagonal(case.fits("right"))
        rows = zip(case.asked, case.counted(self.rule), case.true, right.tolist(), errors.tolist(), strict=True)
        for client, counted, true, share, error in rows:
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

    @rows_of(COUNTS)
    def list_counts(self, case: LabelsCase) -> Iterator[Row]:
        """List every count of a label that the client holds or that is counted, beside the truth."""
        for rule in case.found.rules:
            counted = case.counted(rule)
            for index, client in enumerate(case.asked):
                for label in np.flatnonzero((counted[index] > 0) | (case.true[index] > 0)).tolist():
                    counts = {"counted": float(counted[index, label]), "true": int(case.true[index, label])}
                    yield {"client": client, "rule": rule, "label": label, **counts}

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to exchange clients whose shares of labels differ."""
        kinds = []
        for run in runs:
            counts = run.truth.counts[run.truth.counts.sum(axis=1) > 0]
            shares = counts / counts.sum(axis=1, keepdims=True)
            kinds.append(np.unique(shares, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64))
        return reach_of_clients(kinds, needed, "that hold labels in different shares")
