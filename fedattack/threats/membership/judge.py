"""Judge membership inference: how well members are told from examples on which their client did not train.

A finding is a leak if exchanging members with non-members, within each client and label, seldom finds as much. Who is a
member, and of whom non-members are asked, is said in :mod:`fedattack.threats.membership.case`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.answers import both
from fedattack.audit.exchanges import Exchanges, Held, significance_above, significance_of_owners, standardise
from fedattack.audit.finding import AUC, Finding, Null
from fedattack.audit.intervals import these_runs
from fedattack.audit.judge import Judge, entry_of_client, expose_client, rows_of_clients
from fedattack.audit.listing import Listing
from fedattack.audit.measures import Measurement, Rate, Sides, measure, no_value, separate
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.roc import (
    area,
    area_value,
    balanced_accuracy,
    epsilon_at,
    epsilon_implied,
    epsilon_rule,
    tpr_at,
    tpr_value_at,
)
from fedattack.audit.significance import DRAWS, Significance, least_p
from fedattack.audit.summaries import (
    null_of,
    null_rate,
    part_by_client,
    part_by_label,
    rate_populations,
    rate_surest,
    reliability,
)
from fedattack.audit.table import Row, rows_of
from fedattack.audit.truth import SEVERAL
from fedattack.base.machine import let_go
from fedattack.base.reasons import ABOUT, Reason
from fedattack.threats.membership import tables
from fedattack.threats.membership.blind import Blind, threshold_at
from fedattack.threats.membership.case import (
    FEWEST,
    AggregateCase,
    CanaryCase,
    Floats,
    MembershipCase,
    Pairs,
    Rows,
    count_fewest,
    count_fewest_among_clients,
)
from fedattack.threats.membership.membership import ALONE, METHODS

# What a finding's setting says where non-members are other clients' members.
NON_MEMBERS = {"non-members": "other clients' examples (FedMIA's own setting)"}

# Streams of a seed's random numbers, apart from each other.
_HALVES, _FOLDS, _EXCHANGES = 12, 13, 15

_WITHIN_CELLS = "members and non-members exchanged within each client and label"

_ONE_PERCENT = 0.01
_ONE_PER_MILLE = 0.001

_NULL_DRAWS = 200


# What is measured of single clients alone.
_OF_CLIENTS = ("tpr-at-1pct-fpr-elsewhere", f"tpr-at-1pct-fpr{ADAPTIVE}", "worst-client")


class MembershipJudge(Judge[MembershipCase]):
    """States how well members can be told from examples on which their client did not train."""

    case = MembershipCase
    notes = (
        "Non-members are targets that nobody holds, with the labels of each client's members, and from the same "
        "client's data if that is known. If there are too few such targets, non-members are other clients' examples, "
        "and each finding says so. The null run asks which of the non-members are members, although none is.",
    )

    def __init__(
        self, cases: Sequence[MembershipCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        enough = [case for case in cases if case.enough]
        # The two settings ask other questions. Runs of both are not pooled: that with targets of nobody comes first.
        of_nobody = [case for case in enough if not case.among_clients]
        self._all_cases, self._enough = cases, bool(enough)
        self.cases = of_nobody or enough or cases
        self._among_clients = self._enough and not of_nobody
        self._blind = Blind(self.cases)

    def findings(self) -> list[Finding]:
        """State all measures, if there are enough members and non-members."""
        if self._enough:
            return super().findings()
        reason = (
            f"fewer than {FEWEST} targets that one seen client holds, or fewer than {FEWEST} of the same labels "
            "that nobody holds, and likewise that other clients hold"
        )
        return [self.state(self.measures[self.headline], no_value(reason))]

    def finding(self, metric: str, label: str, **numbers: Any) -> Finding:
        """Make a finding that says, where it is so, that non-members are other clients' examples."""
        finding = super().finding(metric, label, **numbers)
        if not self._among_clients:
            return finding
        setting = finding.setting | NON_MEMBERS
        return replace(finding, label=f"{finding.label}, against other clients' examples", setting=setting)

    @measure("tpr-at-1pct-fpr", "Members found at 1% false positives", headline=True)
    def find_members(self) -> Measurement:
        """Find members where one in a hundred non-members is accused."""
        baselines = {}
        for method, row in self._compared.items():
            if method in ALONE:
                baselines[row["method"]] = row["tpr_1pct"]["value"]
        whose = Reason(self._say_whose(), ABOUT)
        return self._find_at(_ONE_PERCENT, grounds=(whose,), baselines=baselines, series=self._series())

    @measure("tpr-at-0.1pct-fpr", "Members found at 0.1% false positives")
    def find_members_surely(self) -> Measurement:
        """Find members where one in a thousand non-members is accused."""
        return self._find_at(_ONE_PER_MILLE)

    @measure("tpr-at-1pct-fpr-elsewhere", "Members found at 1% false positives, among other clients' members")
    def find_members_elsewhere(self) -> Measurement | None:
        """Find members among other clients' members."""
        if not all(self.each(lambda case: len(case.elsewhere) >= FEWEST)):
            return None
        asked = []
        of_members = []
        for case, (members, _) in zip(self.cases, self._main_scores.seeds, strict=True):
            values = case.scores_of(self._main)
            asked.append((members, _drop_unknown(case.elsewhere.of(values))))
            pairs, _ = case.dealt
            of_members.append(Held(values[pairs.rows], pairs.columns, case.labels[pairs.rows]))
        draw = self.rng(_EXCHANGES, 1)
        owners = significance_of_owners(of_members, _ONE_PERCENT, draw, "who holds what exchanged within each label")
        # Clients whose data differ are told apart so. It is training only if members differ from non-members, too.
        members_alone = self._exchanges.significance(self._exchanges.tpr_at(_ONE_PERCENT), _WITHIN_CELLS)
        reason = "non-members are examples on which the next client trained, and this one did not: "
        return self._find_at(_ONE_PERCENT, asked=Sides(asked), test=both(owners, members_alone), reason=reason)

    @measure(f"tpr-at-1pct-fpr{ADAPTIVE}", "Members found at 1% false positives by an attacker who knows the defence")
    def find_members_adaptively(self) -> Measurement | None:
        """Find members by an attacker who knows the clients' defence, where there is one."""
        method = f"likelihood-ratio{ADAPTIVE}"
        if method not in self._scores:
            return None
        return self._find_at(_ONE_PERCENT, method, reason="shadow models go through the clients' defence: ")

    @measure("auc", "Area under the ROC curve")
    def measure_area(self) -> Measurement:
        """Measure the area under the ROC curve."""
        blind = self._blind.area
        return self._main_scores.measured(
            f"a classifier that sees only the examples{self._blind.describe_sample()}, and no model, reaches "
            f"{blind.value:.3f} ({blind.low:.3f} to {blind.high:.3f}); if this is far from 0.5, members and "
            "non-members differ in themselves",
            area,
            area_value,
            null=self._draw_null(self._main, area_value),
            chance=0.5,
            units=AUC,
            test=self._exchanges.significance(self._exchanges.area, _WITHIN_CELLS),
            bars=self._blind.bars(lambda *sides: blind.high),
            baselines={"examples alone, without any model": blind.value},
        )

    @measure("worst-client")
    def find_members_of_worst_client(self) -> Measurement | None:
        """Take the most exposed client, at the threshold of all."""
        if max(self.each(lambda case: len(case.clients))) < 2 or not self._per_client:
            return None
        clients: list[Rows] = []
        for side in (0, 1):
            first = 0
            for case, pairs in zip(self.cases, self._pairs[self._main], strict=True):
                clients.append(first + pairs[side].columns)
                first += len(case.clients)
        statistic = self._exchanges.most_exposed(np.concatenate(clients), _ONE_PERCENT)
        return expose_client(
            max(self._per_client, key=lambda entry: entry["excess"]),
            len(self._per_client),
            "Members found at 1% false positives, most exposed client",
            ", at the threshold for all clients; the null is how often this client is accused of non-members with its "
            "members' labels",
            chance=_ONE_PERCENT,
            test=self._exchanges.significance(statistic, f"{_WITHIN_CELLS}, the most exposed client each time"),
            bars=self._blind.bars(lambda *sides: self._blind.most_exposed(_ONE_PERCENT)),
        )

    @measure("epsilon-implied", "ε that the attack implies")
    def imply_epsilon(self) -> Measurement | None:
        """State the ε that this ROC rules out."""
        if self._among_clients:
            # Between a client's member and another's there are two changes: ε bounds each, and not both.
            return None
        delta = max((case.truth.privacy.delta for case in self.cases if case.truth.privacy), default=0.0)
        draw = self.rng(_HALVES, 1)
        members, others = self._main_scores.pooled
        choosing, measured = _halve(len(members), draw)
        choosing_others, measured_others = _halve(len(others), draw)
        side, threshold = epsilon_rule(members[choosing], others[choosing_others], delta=delta)
        found = epsilon_at(side, threshold, members[measured], others[measured_others], delta=delta)
        is_member = np.repeat([True, False], [len(measured), len(measured_others)])
        of_members, of_others = self._number_cells(self._main)
        test = significance_above(
            side * np.concatenate([members[measured], others[measured_others]]),
            is_member if side > 0 else ~is_member,
            np.concatenate([of_members[measured], of_others[measured_others]]),
            threshold,
            draw,
            f"{_WITHIN_CELLS}, at a threshold chosen on the other half of the targets",
        )
        by_chance = epsilon_implied(*self._halves.pooled, draw, delta=delta)
        n = len(self._halves.pooled[0])
        null: Null = {"value": by_chance.value, "low": by_chance.low, "high": by_chance.high, "n": n}
        finite = [case.declared for case in self.cases if case.declared is not None]
        words = "no ε is declared"
        if finite:
            words = f"the run declares ε = {max(finite):.3g}"
            if found.low > max(finite):
                words += ", which is below that lower end"
        return Measurement(
            reason=f"training whose members can be distinguished this well cannot be (ε, {delta:g})-private for a "
            f"smaller "
            "ε than the "
            f"interval's lower end; {words}",
            value=found.value,
            n=len(members),
            interval=(found.low, found.high),
            null=null,
            chance=0.0,
            units="ε",
            test=test,
            bars=self._blind.bars(lambda one, other: epsilon_implied(one, other, draw, delta=delta).high),
            baselines={"declared ε": max(finite)} if finite else {},
        )

    @measure("balanced-accuracy", "Right answers, with as many members as non-members")
    def answer_evenly(self) -> Measurement:
        """Count right answers, half of them on members, half on non-members."""
        right, null = [], []
        for case, scores, halves in zip(self.cases, self._main_scores.seeds, self._halves.seeds, strict=True):
            draw = np.random.default_rng((case.seed, _FOLDS))
            right.append(balanced_accuracy(*scores, draw))
            null.append(balanced_accuracy(*halves, draw))
        rate = Rate(*zip(*right, strict=True))
        draw = self.rng(_FOLDS, 2)

        def answer_blindly(members: Floats, others: Floats) -> float:
            hits, size = balanced_accuracy(members, others, draw)
            return these_runs([hits], [size])[1]

        return rate.measured(
            "thresholds come from the other half of the targets; unsure guesses about everybody count as much as sure "
            "ones about a few",
            null=Rate(*zip(*null, strict=True)).null(),
            chance=0.5,
            test=self._exchanges.significance(
                self._exchanges.best_balanced_accuracy, f"{_WITHIN_CELLS}, at the best threshold each time"
            ),
            bars=self._blind.bars(answer_blindly),
            by_seed=rate.by_seed,
        )

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach:
        """Count members and non-members of their labels, as they would be dealt; of enough of them p can be small."""
        del needed
        alone = cls.case is not AggregateCase
        counts, whose = [count_fewest(run, alone=alone) for run in runs], "nobody holds"
        if alone and max(counts) < FEWEST:
            among = [count_fewest_among_clients(run) for run in runs]
            if max(among) >= FEWEST:
                counts, whose = among, "other clients hold"
        there = max(counts) >= FEWEST
        return Reach(
            least_p(2.0 ** min(sum(counts), DRAWS.bit_length())) if there else 1.0,
            f"{max(counts)} targets that somebody holds, and as many with their labels that {whose}",
            f"{FEWEST} of each",
            "targets=20",
        )

    def listed(self) -> list[Listing]:
        """List clients and answers, if there are enough members and non-members."""
        return super().listed() if self._enough else []

    @rows_of(tables.CLIENTS)
    def list_clients(self) -> Iterator[Row]:
        """List the clients, the most exposed first."""
        return rows_of_clients(self, self._per_client)

    @rows_of(tables.RECORDS)
    def list_answers(self, case: MembershipCase) -> Iterator[Row]:
        """List every target with the score that the headline's method gives it."""
        scores = case.scores_of(self._main)
        for is_member, dealt in zip((True, False), case.dealt, strict=True):
            pairs = dealt.keep_known(scores)
            for row, column, score in zip(pairs.rows, pairs.columns, pairs.of(scores), strict=True):
                yield {
                    "record": int(row),
                    "client": case.clients[column],
                    "member": is_member,
                    "score": float(score),
                    "accused": bool(score > self._threshold),
                }

    @property
    def method(self) -> str:
        """The method that all findings but the comparison are about, in words."""
        return METHODS[self._main]

    @cached_property
    def _pairs(self) -> dict[str, list[tuple[Pairs, Pairs]]]:
        """Members and non-members that have a score, by method, FedMIA first.

        A method is left out if in some seed it says nothing of members, or nothing of non-members.
        """
        by_method: dict[str, list[tuple[Pairs, Pairs]]] = {}
        for method in METHODS:
            pairs = []
            for case in self.cases:
                if method not in case.methods:
                    break
                values = case.scores_of(method)
                members, others = case.dealt
                pairs.append((members.keep_known(values), others.keep_known(values)))
            if len(pairs) == len(self.cases) and all(min(map(len, pair)) for pair in pairs):
                by_method[method] = pairs
        return by_method

    @cached_property
    def _scores(self) -> dict[str, Sides]:
        """The scores of these."""
        scores = {}
        for method, pairs in self._pairs.items():
            seeds = []
            for case, (members, others) in zip(self.cases, pairs, strict=True):
                values = case.scores_of(method)
                seeds.append((members.of(values), others.of(values)))
            scores[method] = Sides(seeds)
        return scores

    @property
    def _main(self) -> str:
        """The method that all findings but the comparison are about."""
        return next(iter(self._scores))

    @property
    def _main_scores(self) -> Sides:
        return self._scores[self._main]

    @cached_property
    def _threshold(self) -> float:
        return threshold_at(self._main_scores, _ONE_PERCENT)

    def _number_cells(self, method: str) -> tuple[Rows, Rows]:
        """Return numbers of the client and label of each member, and of each non-member, over all seeds."""
        numbers: tuple[list[Rows], list[Rows]] = ([], [])
        first = 0
        for case, pairs in zip(self.cases, self._pairs[method], strict=True):
            for side, asked in zip(numbers, pairs, strict=True):
                side.append(first + case.cells(asked))
            first += len(case.clients) * len(case.labels)
        return np.concatenate(numbers[0]), np.concatenate(numbers[1])

    def _exchange(self, method: str) -> Exchanges:
        stream = self.cases[0].seed, _EXCHANGES
        return Exchanges(*self._scores[method].pooled, *self._number_cells(method), stream)

    @cached_property
    def _exchanges(self) -> Exchanges:
        return self._exchange(self._main)

    @cached_property
    def _halves(self) -> Sides:
        """Two halves of the non-members, seed by seed, in which nobody is a member."""
        halves = []
        for case, (_, others) in zip(self.cases, self._main_scores.seeds, strict=True):
            shuffled = np.random.default_rng((case.seed, _HALVES)).permutation(others)
            halves.append((shuffled[::2], shuffled[1::2]))
        return Sides(halves)

    def _draw_null(self, method: str, statistic: Callable[[Floats, Floats], float]) -> Null:
        """Take some non-members for members, again and again: the range of what then seems to be found."""
        members, others = self._scores[method].pooled
        draw = self.rng(_HALVES)
        count = min(len(members), len(others) // 2)
        values = []
        for _ in range(_NULL_DRAWS):
            shuffled = draw.permutation(others)
            values.append(statistic(shuffled[:count], shuffled[count:]))
        return null_of(values, count)

    def _find_at(
        self,
        fpr: float,
        method: str = "",
        *,
        test: Significance | None = None,
        asked: Sides | None = None,
        reason: str = "",
        **parts: Any,
    ) -> Measurement:
        """Judge a method, or scores of it that were ``asked`` of other non-members, and have a test of their own."""
        method = method or self._main
        scores = asked or self._scores[method]
        if test is None:
            exchanges = self._exchanges if method == self._main else self._exchange(method)
            test = exchanges.significance(exchanges.tpr_at(fpr), _WITHIN_CELLS)
        members, others = scores.pooled
        size = f"{len(members):,} members and {len(others):,} non-members"
        if len(others) < 1 / fpr:
            size += ", too few non-members for this rate: the threshold is above all of them"
        return scores.measured(
            f"{reason}{size}",
            partial(tpr_at, fpr=fpr),
            partial(tpr_value_at, fpr=fpr),
            null=self._draw_null(method, partial(tpr_value_at, fpr=fpr)),
            chance=fpr,
            test=test,
            bars=self._blind.bars(lambda members, others: tpr_at(members, others, fpr).high),
            **parts,
        )

    def _say_whose(self) -> str:
        """Say whose data the non-members come from, and what follows."""
        if self._among_clients:
            return (
                "judged against other clients' examples, which is FedMIA's own setting, because there are too few "
                "targets that nobody holds; it asks whether this client trained on an example, not whether anybody "
                "did, so what is "
                "common to a client's data cannot be told apart from its single examples"
            )
        if all(self.each(lambda case: case.same_client)):
            return "non-members come from the data of the same clients"
        known = "it is not known whose data the non-members come from"
        if any(self.each(lambda case: (case.truth.origins != "").any())):
            known = "too few non-members come from the data of the same clients"
        return f"{known}, so what is common to a client's data cannot be told apart from its single examples"

    @cached_property
    def _per_client(self) -> list[dict[str, Any]]:
        """List how many of each client's members are found at the threshold of all clients, worst first.

        The excess is that over the client's non-members, in standard deviations.
        """
        entries = []
        bars = sum(self.each(lambda case: len(case.clients)))
        for case in self.cases:
            members, others = case.dealt
            scores = case.scores_of(self._main)
            total = case.truth.counts.sum()
            for column, name in enumerate(case.clients):
                own = _drop_unknown(members.where(members.columns == column).of(scores)) > self._threshold
                accused = _drop_unknown(others.where(others.columns == column).of(scores)) > self._threshold
                if not len(own) or not len(accused):
                    continue
                hits, alarms = int(own.sum()), int(accused.sum())
                of_client = np.array([hits, hits + alarms, len(own), len(own) + len(accused)], dtype=np.float64)
                entry = entry_of_client(self.title_of(case, name), own, bars)
                entry["share"] = float(case.sizes[column] / total) if total else None
                entry["null"] = null_rate([alarms], [len(accused)], bars)
                entry["excess"] = float(standardise(*of_client))
                entries.append(entry)
        return sorted(entries, key=lambda entry: -entry["value"])

    def _series(self) -> dict[str, Any]:
        series = separate(*self._main_scores.pooled, band=True) | {
            **self.show(tables.METHODS),
            "per_round": self._per_round(),
            "per_client": self._per_client,
            "reliability": self._measure_reliability(),
            "membership_targets": self._count_targets(),
            "populations": rate_populations(self._list_populations()),
            "surest": self._rate_surest(),
        }
        if not series["per_round"]["rounds"]:
            series.pop("per_round")
        return {name: value for name, value in series.items() if value}

    def _list_populations(self) -> Iterator[tuple[NDArray[np.float64], dict[str, NDArray[np.str_]]]]:
        """Yield which members are found at the threshold of all."""
        for case, (members, _) in zip(self.cases, self._pairs[self._main], strict=True):
            found = members.of(case.scores_of(self._main)) > self._threshold
            clients = [case.clients[column] for column in members.columns]
            parts = part_by_label(case.truth, case.labels[members.rows])
            yield found.astype(np.float64), parts | part_by_client(case.truth, clients)

    def _rate_surest(self) -> Mapping[str, Any]:
        sure = []
        for members, others in self._main_scores.seeds:
            is_member = np.repeat([1.0, 0.0], [len(members), len(others)])
            sure.append((np.concatenate([members, others]), is_member))
        share = float(np.concatenate([right for _, right in sure]).mean())
        return rate_surest(sure, self.cases[0].seed, share)

    @rows_of(tables.METHODS)
    def compare_methods(self) -> Iterable[Row]:
        """Compare what each method reaches."""
        return self._compared.values()

    @cached_property
    def _compared(self) -> dict[str, dict[str, Any]]:
        """What each method reaches."""
        rows: dict[str, dict[str, Any]] = {}
        for method, scores in self._scores.items():
            rows[method] = {"method": METHODS[method]}
            for name, fpr in (("tpr_1pct", _ONE_PERCENT), ("tpr_01pct", _ONE_PER_MILLE)):
                rows[method][name] = vars(scores.over_runs(partial(tpr_at, fpr=fpr), partial(tpr_value_at, fpr=fpr)))
            rows[method]["auc"] = vars(scores.over_runs(area, area_value))
        return rows

    def _per_round(self) -> dict[str, list[Any]]:
        """Return the headline's number in each round alone."""
        by_round: dict[str, list[Any]] = {key: [] for key in ("rounds", "value", "low", "high")}
        for number in self.cases[0].found.rounds:
            scores = []
            for case in self.cases:
                found = case.found
                if number in found.rounds:
                    members, others = case.dealt
                    values = case.by_client(found.per_round[found.rounds.index(number)].astype(float))
                    scores.append((_drop_unknown(members.of(values)), _drop_unknown(others.of(values))))
                    let_go(found.per_round)
            members_seen, others_seen = Sides(scores).pooled
            if min(len(members_seen), len(others_seen)) < FEWEST:
                continue
            by_round["rounds"].append(number)
            for key, end in vars(tpr_at(members_seen, others_seen, _ONE_PERCENT)).items():
                by_round[key].append(end)
        return by_round

    def _measure_reliability(self) -> dict[str, Any]:
        """Turn scores into probabilities on one half of the targets, and hold them against the other, both ways."""
        sure: list[Floats] = []
        right: list[NDArray[np.bool_]] = []
        for case, (members, others) in zip(self.cases, self._main_scores.seeds, strict=True):
            draw = np.random.default_rng((case.seed, _FOLDS, 1))
            values = _bound_infinite(np.concatenate([members, others]))[:, None]
            is_member = np.repeat([True, False], [len(members), len(others)])
            one, other = _halve(len(values), draw)
            for test, fit in ((one, other), (other, one)):
                if len(np.unique(is_member[fit])) < 2:
                    continue
                deviation = max(float(values[fit].std()), 1e-12)
                model = LogisticRegression().fit(values[fit] / deviation, is_member[fit])
                belief = model.predict_proba(values[test] / deviation)[:, 1]
                sure.append(np.maximum(belief, 1 - belief))
                right.append((belief > 0.5) == is_member[test])
        if not sure:
            return {}
        return reliability(np.concatenate(sure), np.concatenate(right))

    def _count_targets(self) -> dict[str, int]:
        counts = {"a seen client holds": 0, "nobody holds": 0, "several clients hold": 0}
        for case in self._all_cases:
            counts["a seen client holds"] += int((case.owner >= 0).sum())
            counts["nobody holds"] += int(case.null.sum())
            counts["several clients hold"] += int((case.truth.owners == SEVERAL).sum())
        return counts


class CanaryMembershipJudge(MembershipJudge):
    """The same for an active server whose neurons single examples move."""

    case = CanaryCase


class AggregateMembershipJudge(MembershipJudge):
    """The same for a server that sees sums alone, and asks whether any client trained on an example."""

    case = AggregateCase
    measures: ClassVar = {
        metric: measured for metric, measured in MembershipJudge.measures.items() if metric not in _OF_CLIENTS
    }
    notes = (
        "The server sees only sums: a member is an example that any client trained on. Non-members are targets that "
        "nobody "
        "holds, with the members' labels.",
    )


def _bound_infinite(scores: Floats) -> Floats:
    """Return scores with infinite ones, which no regression can be fitted on, put to the largest or smallest other."""
    known = scores[np.isfinite(scores)]
    return np.clip(scores, known.min(initial=0.0), known.max(initial=0.0))


def _drop_unknown(scores: Floats) -> Floats:
    return np.asarray(scores[~np.isnan(scores)])


def _halve(count: int, draw: np.random.Generator) -> tuple[Rows, Rows]:
    order = draw.permutation(count)
    return order[::2], order[1::2]
