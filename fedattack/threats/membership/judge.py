"""Judge membership inference: how well members are told from examples on which their client did not train.

Members are targets that one client holds, asked of that client. Non-members are targets that nobody holds. Each is
dealt to one client, so that all of a client's non-members have the labels that its members have: otherwise the labels
alone would tell them apart. Where it is known from whose data a non-member comes, it is asked of that client.

Where too few targets are nobody's, the non-members of a client are other clients' members. Then each target has one
part alone: it is a member of its owner, or a non-member of another client, but never both. So no two answers are about
the same target, and the same exchanges are exact: to exchange a member of a client with another's example is to
exchange who holds them.

A finding is a leak if exchanging members with non-members, within each client and label, seldom finds as much.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.answers import both
from fedattack.audit.exchanges import Exchanges, Held, significance_above, significance_of_owners, standardised
from fedattack.audit.finding import Finding, Null
from fedattack.audit.intervals import here_of, mean_interval, rate_interval, these_runs
from fedattack.audit.judge import Judge, TargetsCase, over_seeds
from fedattack.audit.listing import Cell, Listing
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.roc import (
    Estimate,
    area,
    area_value,
    balanced_accuracy,
    curve,
    epsilon_at,
    epsilon_implied,
    epsilon_rule,
    tpr_at,
    tpr_value_at,
)
from fedattack.audit.significance import DRAWS, Significance, least_p
from fedattack.audit.summaries import histogram, null_of, null_rate, reliability
from fedattack.audit.truth import NOBODY, SEVERAL
from fedattack.base.machine import let_go
from fedattack.base.structured import flat
from fedattack.threats.membership.membership import ALONE, METHODS, SCORE

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

# What a finding's setting says where non-members are other clients' members.
NON_MEMBERS = {"non-members": "other clients' examples (FedMIA's own setting)"}

# Scores of members and of non-members, seed by seed.
Scored = list[tuple[Floats, Floats]]

# Streams of a seed's random numbers, apart from each other.
_DEALING = 11
_HALVES = 12
_FOLDS = 13
_FOREST = 14
_EXCHANGES = 15

_WITHIN_CELLS = "members and non-members exchanged within each client and label"

_ONE_PERCENT = 0.01
_ONE_PER_MILLE = 0.001

# Fewer targets of a kind have no ROC.
_FEWEST = 8

# Whose a client's non-members are: drawn from its own data, of anybody's, or other clients' members.
_SAME_CLIENT = "same client"
_NOBODYS = "nobody"
_AMONG_CLIENTS = "other clients"

# A client's own held-out examples are its non-members if they leave this part of the targets.
_MOST = 0.5

_NULL_DRAWS = 200


@dataclass(frozen=True)
class Pairs:
    """Some targets, each asked of one client.

    Attributes
    ----------
    rows, columns
        (n,): the targets and the clients.
    """

    rows: Rows
    columns: Rows

    def of(self, scores: Floats) -> Floats:
        """Return the pairs' scores."""
        return np.asarray(scores[self.rows, self.columns])

    def where(self, kept: NDArray[np.bool_]) -> "Pairs":
        """Return some of the pairs."""
        return Pairs(self.rows[kept], self.columns[kept])

    def known(self, scores: Floats) -> "Pairs":
        """Return the pairs that have a score."""
        return self.where(~np.isnan(self.of(scores)))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class MembershipCase(TargetsCase):
    """One seed's scores of membership inference beside its truth."""

    SEEN = f"{SCORE}loss-series"

    @property
    def methods(self) -> list[str]:
        """The methods that were computed, FedMIA first."""
        return [name for name in METHODS if f"{SCORE}{name}" in self.scores.arrays]

    def scored(self, method: str) -> Floats:
        """Return a method's scores, (targets, clients)."""
        return self.by_client(self.scores.arrays[f"{SCORE}{method}"])

    @cached_property
    def owner(self) -> Rows:
        """(targets,): index of the sole owner among the clients; −1 without one."""
        positions = {name: position for position, name in enumerate(self.clients)}
        return np.array([positions.get(name, -1) for name in self.truth.owners.tolist()], dtype=np.int64)

    @cached_property
    def labels(self) -> NDArray[Any]:
        """(targets,): class labels; all alike for a regression, whose targets are no classes."""
        labels = np.asarray(self.scores.arrays["labels"])
        if np.issubdtype(labels.dtype, np.integer) and labels.ndim == 1:
            return labels
        return np.zeros(len(labels), dtype=np.int64)

    def cells(self, pairs: Pairs) -> Rows:
        """(n,): number of each pair's client and label."""
        names, numbers = np.unique(self.labels, return_inverse=True)
        return np.asarray(pairs.columns * len(names) + numbers[pairs.rows])

    @property
    def dealt(self) -> tuple[Pairs, Pairs]:
        """Members, and non-members that are dealt to clients so that both have the same labels in each client."""
        return self._dealing[:2]

    @property
    def same_client(self) -> bool:
        """Whether a client's non-members come from its own data, as far as they can be dealt so."""
        return self._dealing[2] == _SAME_CLIENT

    @property
    def among_clients(self) -> bool:
        """Whether a client's non-members are other clients' members, since too few targets are nobody's."""
        return self._dealing[2] == _AMONG_CLIENTS

    @cached_property
    def _dealing(self) -> tuple[Pairs, Pairs, str]:
        draw = np.random.default_rng((self.seed, _DEALING))
        scores = self.scored(self.methods[0])
        members = draw.permutation(np.flatnonzero(self.owner >= 0))
        members = members[~np.isnan(scores[members, self.owner[members]])]
        nobody = draw.permutation(np.flatnonzero(self.null))
        _, labels = np.unique(self.labels, return_inverse=True)
        anybody = self._deal(members, nobody, labels)
        homes = np.where(self.null, self.truth.origins, self.truth.owners)
        names, numbers = np.unique(homes, return_inverse=True)
        own = self._deal(members, nobody[homes[nobody] != ""], labels * len(names) + numbers)
        if min(map(len, anybody)) < _FEWEST:
            among = self._deal_among_clients(members, labels, draw)
            if min(map(len, among)) >= _FEWEST:
                return *among, _AMONG_CLIENTS
        # To be told from a client's own data is worth many targets, but not most of them.
        if _size(own) >= _MOST * _size(anybody):
            return *own, _SAME_CLIENT
        return *anybody, _NOBODYS

    def _deal(self, members: Rows, nobody: Rows, groups: Rows) -> tuple[Pairs, Pairs]:
        """Deal targets of nobody to the members of the same group."""
        by_group = {group: members[groups[members] == group] for group in np.unique(groups[members])}
        free = {group: nobody[groups[nobody] == group] for group in by_group}
        times = _times({group: (len(rows), len(free[group])) for group, rows in by_group.items()})
        kept: list[Rows] = []
        rows_of_others: list[Rows] = []
        columns_of_others: list[Rows] = []
        for group, rows in by_group.items():
            taken = rows[: len(free[group]) // times]
            others = free[group][: times * len(taken)]
            kept.append(taken)
            rows_of_others.append(others)
            columns_of_others.append(np.resize(self.owner[taken], len(others)))
        chosen = _joined(kept)
        return Pairs(chosen, self.owner[chosen]), Pairs(_joined(rows_of_others), _joined(columns_of_others))

    def _deal_among_clients(self, members: Rows, labels: Rows, draw: np.random.Generator) -> tuple[Pairs, Pairs]:
        """Pair targets of one label and two owners: one is a member of its owner, of whom the other is asked, too."""
        kept: list[Rows] = []
        rows_of_others: list[Rows] = []
        for label in np.unique(labels[members]):
            rows = members[labels[members] == label]
            pairs = rows[paired(self.owner[rows], draw)]
            pairs = draw.permuted(pairs, axis=0)
            kept.append(pairs[0])
            rows_of_others.append(pairs[1])
        chosen = _joined(kept)
        columns = self.owner[chosen]
        return Pairs(chosen, columns), Pairs(_joined(rows_of_others), columns)

    @cached_property
    def elsewhere(self) -> Pairs:
        """Members of other clients, each asked of the next client: harder to tell from this client's own.

        There are none where the non-members are such already.
        """
        if self.among_clients:
            return Pairs(_joined([]), _joined([]))
        members, _ = self.dealt
        columns = (members.columns + 1) % len(self.clients)
        pairs = Pairs(members.rows, columns)
        kept = (columns != members.columns) & ~np.isnan(pairs.of(self.scored(self.methods[0])))
        return pairs.where(kept)


class AggregateCase(MembershipCase):
    """The same where the server sees sums alone: there is one column, and everybody's examples are members."""

    @cached_property
    def node_clients(self) -> list[str]:
        """All clients together."""
        return ["all clients"]

    @property
    def holders(self) -> Sequence[str]:
        """All clients together."""
        return self.node_clients

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(1,): how many training examples all clients hold."""
        return np.array([self.truth.counts.sum()], dtype=np.int64)

    @cached_property
    def owner(self) -> Rows:
        """(targets,): 0 for what some client holds, −1 for what nobody does."""
        return np.where(self.null, -1, 0).astype(np.int64)

    @cached_property
    def elsewhere(self) -> Pairs:
        """There are no other clients."""
        return Pairs(_joined([]), _joined([]))


class MembershipJudge(Judge[MembershipCase]):
    """States how well members can be told from examples on which their client did not train.

    Its findings are

    - ``tpr-at-1pct-fpr``: the share of members found where one in a hundred non-members is accused; the headline;
    - ``tpr-at-0.1pct-fpr``: likewise for one in a thousand;
    - ``tpr-at-1pct-fpr-elsewhere``: non-members are other clients' members;
    - ``auc``: the area under the ROC curve;
    - ``tpr-at-1pct-fpr-adaptive``: an attacker who knows the clients' defence, where there is one;
    - ``worst-client``: the most exposed client, at the threshold of all;
    - ``epsilon-implied``: the ε that this ROC rules out;
    - ``balanced-accuracy``: half right answers on members, half on non-members.
    """

    case = MembershipCase
    headline = "tpr-at-1pct-fpr"
    notes = (
        "Non-members are targets that nobody holds, with the labels of each client's members, and from the same "
        "client's data where that is known. Where there are too few such targets, non-members are other clients' "
        "examples, and each finding says so. The null run asks which of the non-members are members, where none is.",
    )

    def __init__(
        self, cases: Sequence[MembershipCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        enough = [case for case in cases if min(map(len, case.dealt)) >= _FEWEST]
        # The two settings ask other questions. Runs of both are not pooled: that with targets of nobody comes first.
        of_nobody = [case for case in enough if not case.among_clients]
        self.judged_cases = of_nobody or enough
        self._among_clients = bool(enough) and not of_nobody

    def finding(self, metric: str, label: str, **numbers: Any) -> Finding:
        """Make a finding that says, where it is so, that non-members are other clients' examples."""
        finding = super().finding(metric, label, **numbers)
        if not self._among_clients:
            return finding
        setting = finding.setting | NON_MEMBERS
        return replace(finding, label=f"{finding.label}, against other clients' examples", setting=setting)

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach:
        """Count members and non-members of their labels, as they would be dealt; of enough of them p can be small."""
        del needed
        alone = cls.case is not AggregateCase
        counts, whose = [_fewest(run, alone=alone) for run in runs], "nobody holds"
        if alone and max(counts) < _FEWEST:
            among = [_fewest_among_clients(run) for run in runs]
            if max(among) >= _FEWEST:
                counts, whose = among, "other clients hold"
        there = max(counts) >= _FEWEST
        return Reach(
            least_p(2.0 ** min(sum(counts), DRAWS.bit_length())) if there else 1.0,
            f"{max(counts)} targets that somebody holds beside as many of their labels that {whose}",
            f"{_FEWEST} of each",
            "targets=20",
        )

    def findings(self) -> list[Finding]:
        """State all of the above."""
        if not self.judged_cases:
            reason = (
                f"fewer than {_FEWEST} targets that one seen client holds, or fewer than {_FEWEST} of the same labels "
                "that nobody holds, and likewise that other clients hold"
            )
            return [self.unmeasured(self.headline, "Members found at 1% false positives", reason, headline=True)]
        main = self._main
        findings: list[Finding | None] = [
            self._tpr(
                "tpr-at-1pct-fpr",
                "Members found at 1% false positives",
                main,
                headline=True,
                reason=f"{self._whose()}: ",
                baselines=self._alone(),
                series=self._series(),
            ),
            self._tpr("tpr-at-0.1pct-fpr", "Members found at 0.1% false positives", main, fpr=_ONE_PER_MILLE),
            self._elsewhere(),
            self._adaptive(),
            self._auc(),
            self._worst_client(),
            self._epsilon(),
            self._balanced_accuracy(),
        ]
        return [finding for finding in findings if finding is not None]

    def listings(self) -> Iterator[Listing]:
        """List the clients, and every target with the score that the headline's method gives it."""
        if not self.judged_cases:
            return
        yield self.clients_listing(self._per_client, "members found")
        yield Listing(
            "records",
            f"one row for each example that was asked about, with the score of {METHODS[self._main]}; accused is who "
            "has a higher score than 99% of the non-members",
            ("seed", "record", "client asked", "member", "score", "accused"),
            self._answers(),
        )

    def _answers(self) -> Iterator[tuple[Cell, ...]]:
        threshold = self._threshold()
        for case, sides in zip(self.judged_cases, self._pairs[self._main], strict=True):
            scores = case.scored(self._main)
            for member, pairs in zip((True, False), sides, strict=True):
                for row, column, score in zip(pairs.rows, pairs.columns, pairs.of(scores), strict=True):
                    yield case.seed, int(row), case.clients[column], member, float(score), bool(score > threshold)

    @cached_property
    def _pairs(self) -> dict[str, list[tuple[Pairs, Pairs]]]:
        """Members and non-members that have a score, by method, FedMIA first.

        A method is left out if in some seed it says nothing of members, or nothing of non-members.
        """
        by_method: dict[str, list[tuple[Pairs, Pairs]]] = {}
        for method in METHODS:
            if not all(method in case.methods for case in self.judged_cases):
                continue
            pairs = []
            for case in self.judged_cases:
                values = case.scored(method)
                members, others = case.dealt
                pairs.append((members.known(values), others.known(values)))
            if all(min(map(len, pair)) for pair in pairs):
                by_method[method] = pairs
        return by_method

    @cached_property
    def _scores(self) -> dict[str, Scored]:
        """The scores of these."""
        scores: dict[str, Scored] = {}
        for method, pairs in self._pairs.items():
            scores[method] = []
            for case, (members, others) in zip(self.judged_cases, pairs, strict=True):
                values = case.scored(method)
                scores[method].append((members.of(values), others.of(values)))
        return scores

    def _cells(self, method: str) -> tuple[Rows, Rows]:
        """Return numbers of the client and label of each member, and of each non-member, over all seeds."""
        numbers: tuple[list[Rows], list[Rows]] = ([], [])
        first = 0
        for case, pairs in zip(self.judged_cases, self._pairs[method], strict=True):
            for side, part in zip(numbers, pairs, strict=True):
                side.append(first + case.cells(part))
            first += len(case.clients) * len(case.labels)
        return np.concatenate(numbers[0]), np.concatenate(numbers[1])

    def _exchanges_of(self, method: str) -> Exchanges:
        stream = self.judged_cases[0].seed, _EXCHANGES
        return Exchanges(*_pooled(self._scores[method]), *self._cells(method), stream)

    @cached_property
    def _exchanges(self) -> Exchanges:
        return self._exchanges_of(self._main)

    @property
    def _main(self) -> str:
        """The method that all findings but the comparison are about."""
        return next(iter(self._scores))

    @property
    def _main_scores(self) -> Scored:
        return self._scores[self._main]

    @cached_property
    def _halves(self) -> Scored:
        """Two halves of the non-members, seed by seed, in which nobody is a member."""
        halves = []
        for case, (_, others) in zip(self.judged_cases, self._main_scores, strict=True):
            shuffled = np.random.default_rng((case.seed, _HALVES)).permutation(others)
            halves.append((shuffled[::2], shuffled[1::2]))
        return halves

    def _null_of(self, method: str, statistic: Callable[[Floats, Floats], float]) -> Null:
        """Take some non-members for members, again and again: the range of what then seems to be found."""
        members, others = _pooled(self._scores[method])
        draw = np.random.default_rng((self.judged_cases[0].seed, _HALVES))
        count = min(len(members), len(others) // 2)
        values = []
        for _ in range(_NULL_DRAWS):
            shuffled = draw.permutation(others)
            values.append(statistic(shuffled[:count], shuffled[count:]))
        return null_of(values, count)

    def _tpr(
        self,
        metric: str,
        label: str,
        method: str,
        *,
        fpr: float = _ONE_PERCENT,
        test: Significance | None = None,
        asked: Scored | None = None,
        reason: str = "",
        **parts: Any,
    ) -> Finding:
        """Judge a method, or scores of it that were ``asked`` of other non-members, and have a test of their own."""
        scores = asked or self._scores[method]
        if test is None:
            exchanges = self._exchanges if method == self._main else self._exchanges_of(method)
            test = exchanges.significance(exchanges.tpr_at(fpr), _WITHIN_CELLS)
        here = tpr_at(*_pooled(scores), fpr)
        found = _over_runs(here, [tpr_value_at(*part, fpr) for part in scores])
        null = self._null_of(method, partial(tpr_value_at, fpr=fpr))
        members, others = _pooled(scores)
        size = f"{len(members):,} members and {len(others):,} non-members"
        if len(others) < 1 / fpr:
            size += ", too few non-members for this rate: the threshold is above all of them"
        return self.judged(
            metric,
            label,
            (found.low, found.high),
            null,
            f"{reason}{size}",
            value=found.value,
            n=len(members),
            chance=fpr,
            test=test,
            here=_ends(here, scores),
            bars=self._bars(tpr_at(*_pooled(self._blind), fpr).high),
            **over_seeds([tpr_value_at(*part, fpr) for part in scores]),
            **parts,
        )

    def _whose(self) -> str:
        """Say whose data the non-members come from, and what follows."""
        if self._among_clients:
            return (
                "judged against other clients' examples, which is FedMIA's own setting, since too few targets are "
                "nobody's; it asks whether this client trained on an example, and not whether anybody did, so that "
                "what is common to a client's data cannot be told from its single examples"
            )
        if all(case.same_client for case in self.judged_cases):
            return "non-members come from the data of the same clients"
        if any((case.truth.origins != "").any() for case in self.judged_cases):
            known = "too few non-members come from the data of the same clients"
        else:
            known = "it is not known from whose data the non-members come"
        return f"{known}, so that what is common to a client's data cannot be told from its single examples"

    def _alone(self) -> dict[str, float]:
        """Return what methods reach that look at the asked client alone."""
        return {row["method"]: row["tpr_1pct"]["value"] for method, row in self._compared.items() if method in ALONE}

    def _elsewhere(self) -> Finding | None:
        if not all(len(case.elsewhere) >= _FEWEST for case in self.judged_cases):
            return None
        asked = []
        held = []
        for case, (members, _) in zip(self.judged_cases, self._main_scores, strict=True):
            values = case.scored(self._main)
            asked.append((members, _known(case.elsewhere.of(values))))
            pairs, _ = case.dealt
            held.append(Held(values[pairs.rows], pairs.columns, case.labels[pairs.rows]))
        draw = np.random.default_rng((self.judged_cases[0].seed, _EXCHANGES, 1))
        owners = significance_of_owners(held, _ONE_PERCENT, draw, "who holds what exchanged within each label")
        # Clients whose data differ are told apart so. It is training only if members differ from non-members, too.
        members_alone = self._exchanges.significance(self._exchanges.tpr_at(_ONE_PERCENT), _WITHIN_CELLS)
        return self._tpr(
            "tpr-at-1pct-fpr-elsewhere",
            "Members found at 1% false positives, among other clients' members",
            self._main,
            test=both(owners, members_alone),
            asked=asked,
            reason="non-members are examples on which the next client trained, and this one did not: ",
        )

    def _adaptive(self) -> Finding | None:
        method = f"likelihood-ratio{ADAPTIVE}"
        if method not in self._scores:
            return None
        return self._tpr(
            f"tpr-at-1pct-fpr{ADAPTIVE}",
            "Members found at 1% false positives by an attacker who knows the defence",
            method,
            reason="shadow models go through the clients' defence: ",
        )

    def _auc(self) -> Finding:
        scores = self._main_scores
        here = area(*_pooled(scores))
        found = _over_runs(here, [area_value(*part) for part in scores])
        blind = self._blind_area
        return self.judged(
            "auc",
            "Area under the ROC curve",
            (found.low, found.high),
            self._null_of(self._main, area_value),
            f"a classifier that sees the examples alone, and no model, reaches {blind.value:.3f} "
            f"({blind.low:.3f} to {blind.high:.3f}); far from 0.5, members and non-members are unlike in themselves",
            value=found.value,
            n=len(_pooled(scores)[0]),
            chance=0.5,
            units="AUC",
            test=self._exchanges.significance(self._exchanges.area, _WITHIN_CELLS),
            here=_ends(here, scores),
            bars=self._bars(blind.high),
            baselines={"examples alone, without any model": blind.value},
            **over_seeds([area_value(*part) for part in scores]),
        )

    @cached_property
    def _blind(self) -> Scored:
        """Scores of a classifier that sees the examples alone, by cross-validation, seed by seed."""
        scores = []
        for case in self.judged_cases:
            targets = case.knowledge.targets
            if targets is None:
                raise AssertionError("checked by the attack")
            members, others = case.dealt
            rows = np.concatenate([members.rows, others.rows])
            is_member = np.repeat([1, 0], [len(members), len(others)])
            features = np.column_stack([flat(targets.x[rows]), case.labels[rows]])
            forest = RandomForestClassifier(100, min_samples_leaf=2, random_state=_FOREST, class_weight="balanced")
            if case.among_clients:
                # What it may know is whose data an example looks like.
                asked = np.concatenate([members.columns, others.columns])
                beliefs = _beliefs_of_owners(forest, features, case.owner[rows], asked)
            else:
                folds = StratifiedKFold(4, shuffle=True, random_state=_FOREST)
                beliefs = cross_val_predict(forest, features, is_member, cv=folds, method="predict_proba")[:, 1]
            scores.append((beliefs[is_member == 1], beliefs[is_member == 0]))
        return scores

    @cached_property
    def _blind_area(self) -> Estimate:
        return area(*_pooled(self._blind))

    def _bars(self, without_model: float) -> dict[str, float]:
        """Return what the examples alone tell, where they do: what is told without a model is no leak of one.

        The bar is an upper end, since the classifier may have missed some of what there is to see.
        """
        return {"what the examples alone tell": without_model} if self._blind_area.low > 0.5 else {}

    def _most_exposed_without_model(self) -> float:
        """Return the largest upper end of the rates at which clients' members are found without a model.

        One threshold serves all clients, as it does for the attack.
        """
        others = np.sort(_pooled(self._blind)[1])[::-1]
        threshold = others[int(_ONE_PERCENT * len(others))]
        most = 0.0
        for case, (found, _) in zip(self.judged_cases, self._blind, strict=True):
            columns = case.dealt[0].columns
            for column in np.unique(columns):
                above = found[columns == column] > threshold
                most = max(most, these_runs([int(above.sum())], [len(above)])[1])
        return most

    def _threshold(self) -> float:
        """Return the score above which one in a hundred non-members is."""
        others = np.sort(_pooled(self._main_scores)[1])[::-1]
        return float(others[int(_ONE_PERCENT * len(others))])

    @cached_property
    def _per_client(self) -> list[dict[str, Any]]:
        """List how many of each client's members are found at the threshold of all clients, worst first.

        The excess is that over the client's non-members, in standard deviations.
        """
        entries = []
        threshold = self._threshold()
        bars = sum(len(case.clients) for case in self.judged_cases)
        for case in self.judged_cases:
            members, others = case.dealt
            scores = case.scored(self._main)
            total = case.truth.counts.sum()
            for column, name in enumerate(case.clients):
                own = _known(members.where(members.columns == column).of(scores))
                accused = _known(others.where(others.columns == column).of(scores))
                if not len(own) or not len(accused):
                    continue
                hits, alarms = int((own > threshold).sum()), int((accused > threshold).sum())
                low, high = rate_interval([hits], [len(own)], comparisons=bars)
                of_client = np.array([hits, hits + alarms, len(own), len(own) + len(accused)], dtype=np.float64)
                entries.append(
                    {
                        "client": self.title_of(case, name),
                        "value": hits / len(own),
                        "low": low,
                        "high": high,
                        "n": len(own),
                        "share": float(case.sizes[column] / total) if total else None,
                        "null": null_rate([alarms], [len(accused)], bars),
                        "excess": float(standardised(*of_client)),
                    }
                )
        return sorted(entries, key=lambda entry: -entry["value"])

    def _worst_client(self) -> Finding | None:
        if max(len(case.clients) for case in self.judged_cases) < 2:
            return None
        clients: list[Rows] = []
        for side in (0, 1):
            first = 0
            for case, pairs in zip(self.judged_cases, self._pairs[self._main], strict=True):
                clients.append(first + pairs[side].columns)
                first += len(case.clients)
        statistic = self._exchanges.most_exposed(np.concatenate(clients), _ONE_PERCENT)
        return self.worst_client(
            "worst-client",
            "Members found at 1% false positives",
            self._per_client,
            ", at the threshold of all; the null is how often this client is accused of the non-members that have its "
            "members' labels",
            chance=_ONE_PERCENT,
            test=self._exchanges.significance(statistic, f"{_WITHIN_CELLS}, the most exposed client each time"),
            bars=self._bars(self._most_exposed_without_model()),
            by="excess",
        )

    def _epsilon(self) -> Finding | None:
        if self._among_clients:
            # Between a client's member and another's there are two changes: ε bounds each, and not both.
            return None
        declared = [_declared(case) for case in self.judged_cases]
        delta = max((case.truth.privacy.delta for case in self.judged_cases if case.truth.privacy), default=0.0)
        draw = np.random.default_rng((self.judged_cases[0].seed, _HALVES, 1))
        members, others = _pooled(self._main_scores)
        choosing, measured = _halved(len(members), draw)
        choosing_others, measured_others = _halved(len(others), draw)
        side, threshold = epsilon_rule(members[choosing], others[choosing_others], delta=delta)
        found = epsilon_at(side, threshold, members[measured], others[measured_others], delta=delta)
        is_member = np.repeat([True, False], [len(measured), len(measured_others)])
        of_members, of_others = self._cells(self._main)
        test = significance_above(
            side * np.concatenate([members[measured], others[measured_others]]),
            is_member if side > 0 else ~is_member,
            np.concatenate([of_members[measured], of_others[measured_others]]),
            threshold,
            draw,
            f"{_WITHIN_CELLS}, at a threshold that the other half of the targets chose",
        )
        halves = _pooled(self._halves)
        by_chance = epsilon_implied(*halves, draw, delta=delta)
        null: Null = {"value": by_chance.value, "low": by_chance.low, "high": by_chance.high, "n": len(halves[0])}
        finite = [epsilon for epsilon in declared if epsilon is not None]
        words = "no ε is declared"
        if finite:
            words = f"the run declares ε = {max(finite):.3g}"
            if found.low > max(finite):
                words += ", which is below that lower end"
        return self.judged(
            "epsilon-implied",
            "ε that the attack implies",
            (found.low, found.high),
            null,
            f"what tells members apart so well cannot be (ε, {delta:g})-private for a smaller ε than the interval's "
            f"lower end; {words}",
            value=found.value,
            n=len(members),
            chance=0.0,
            units="ε",
            test=test,
            bars=self._bars(epsilon_implied(*_pooled(self._blind), draw, delta=delta).high),
            baselines={"declared ε": max(finite)} if finite else {},
        )

    def _balanced_accuracy(self) -> Finding:
        right, null_right = [], []
        for case, scores, halves in zip(self.judged_cases, self._main_scores, self._halves, strict=True):
            draw = np.random.default_rng((case.seed, _FOLDS))
            right.append(balanced_accuracy(*scores, draw))
            null_right.append(balanced_accuracy(*halves, draw))
        blind, blind_size = balanced_accuracy(
            *_pooled(self._blind), np.random.default_rng((self.judged_cases[0].seed, _FOLDS, 2))
        )
        (sums, sizes), (null_sums, null_sizes) = zip(*right, strict=True), zip(*null_right, strict=True)
        return self.judged(
            "balanced-accuracy",
            "Right answers, as many members as non-members",
            rate_interval(sums, sizes),
            null_rate(null_sums, null_sizes),
            "thresholds come from the other half of the targets; this counts bold guesses on everybody as much as sure "
            "ones on a few",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=0.5,
            test=self._exchanges.significance(
                self._exchanges.best_balanced_accuracy, f"{_WITHIN_CELLS}, at the best threshold each time"
            ),
            here=here_of(sums, sizes),
            bars=self._bars(these_runs([blind], [blind_size])[1]),
            **over_seeds([hits / size for hits, size in right]),
        )

    def _series(self) -> dict[str, Any]:
        series: dict[str, Any] = {
            "roc": curve(*_pooled(self._main_scores), band=True),
            "scores": histogram(*_pooled(self._main_scores)),
            "membership_methods": list(self._compared.values()),
            "per_round": self._per_round(),
            "per_client": self._per_client,
            "reliability": self._reliability(),
            "membership_targets": self._targets(),
        }
        if not series["per_round"]["rounds"]:
            series.pop("per_round")
        return {name: value for name, value in series.items() if value}

    @cached_property
    def _compared(self) -> dict[str, dict[str, Any]]:
        """What each method reaches."""
        rows = {}
        for method, scores in self._scores.items():
            rows[method] = {
                "method": METHODS[method],
                "tpr_1pct": vars(_rate_over_runs(scores, _ONE_PERCENT)),
                "tpr_01pct": vars(_rate_over_runs(scores, _ONE_PER_MILLE)),
                "auc": vars(_area_over_runs(scores)),
            }
        return rows

    def _per_round(self) -> dict[str, list[Any]]:
        """Return the headline's number in each round alone."""
        by_round: dict[str, list[Any]] = {key: [] for key in ("rounds", "value", "low", "high")}
        numbers = self.judged_cases[0].scores.facts["rounds"]
        for number in numbers:
            scores = []
            for case in self.judged_cases:
                if number in case.scores.facts["rounds"]:
                    members, others = case.dealt
                    position = case.scores.facts["rounds"].index(number)
                    values = case.by_client(case.scores.arrays["per_round"][position].astype(float))
                    scores.append((_known(members.of(values)), _known(others.of(values))))
                    let_go(case.scores.arrays["per_round"])
            members_seen, others_seen = _pooled(scores)
            if min(len(members_seen), len(others_seen)) < _FEWEST:
                continue
            by_round["rounds"].append(number)
            for key, end in vars(tpr_at(members_seen, others_seen, _ONE_PERCENT)).items():
                by_round[key].append(end)
        return by_round

    def _reliability(self) -> dict[str, Any]:
        """Turn scores into probabilities on one half of the targets, and hold them against the other, both ways."""
        sure: list[Floats] = []
        right: list[NDArray[np.bool_]] = []
        for case, (members, others) in zip(self.judged_cases, self._main_scores, strict=True):
            draw = np.random.default_rng((case.seed, _FOLDS, 1))
            values = _finite(np.concatenate([members, others]))[:, None]
            is_member = np.repeat([True, False], [len(members), len(others)])
            order = draw.permutation(len(values))
            for test, fit in ((order[::2], order[1::2]), (order[1::2], order[::2])):
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

    def _targets(self) -> dict[str, int]:
        counts = {"a seen client holds": 0, "nobody holds": 0, "several clients hold": 0}
        for case in self.cases:
            counts["a seen client holds"] += int((case.owner >= 0).sum())
            counts["nobody holds"] += int(case.null.sum())
            counts["several clients hold"] += int((case.truth.owners == SEVERAL).sum())
        return counts


class AggregateMembershipJudge(MembershipJudge):
    """The same for a server that sees sums alone, and asks whether any client trained on an example."""

    case = AggregateCase
    notes = (
        "The server sees sums alone: a member is what any client trained on. Non-members are targets that nobody "
        "holds, with the members' labels.",
    )


def paired(owners: Rows, draw: np.random.Generator) -> Rows:
    """Pair as many places as can be, so that the two of each pair have different owners.

    Returns
    -------
    ndarray
        (2, pairs): places, each at most once.
    """
    names, numbers, sizes = np.unique(owners, return_inverse=True, return_counts=True)
    if len(names) < 2:
        return np.zeros((2, 0), dtype=np.int64)
    places = draw.permutation(len(owners))
    # Nobody may have more than all others together.
    largest = numbers[places] == sizes.argmax()
    spare = np.cumsum(largest) > len(owners) - sizes.max()
    places = places[~(largest & spare)]
    # In the order of owners, the place that is half of all further on is another's. A drawn order mixes the owners.
    order = draw.permutation(len(names))
    places = places[np.argsort(order[numbers[places]], kind="stable")]
    half = len(places) // 2
    return np.stack([places[:half], places[half : 2 * half]])


def _beliefs_of_owners(forest: RandomForestClassifier, features: Floats, owners: Rows, asked: Rows) -> Floats:
    """Return by cross-validation how likely a classifier takes each example for one of the client who is asked."""
    beliefs = np.zeros((len(owners), max(owners.max(), asked.max()) + 1))
    for fit, test in KFold(4, shuffle=True, random_state=_FOREST).split(features):
        forest.fit(features[fit], owners[fit])
        beliefs[np.ix_(test, forest.classes_)] = forest.predict_proba(features[test])
    return np.asarray(beliefs[np.arange(len(asked)), asked])


def _numbered_labels(run: Prepared) -> Rows:
    """Return the number of each target's label; none where targets and truth do not fit."""
    owners, targets = run.truth.owners, run.knowledge.targets
    if targets is None or len(targets.y) != len(owners):
        return np.zeros(0, dtype=np.int64)
    labels = targets.y if np.issubdtype(targets.y.dtype, np.integer) and targets.y.ndim == 1 else np.zeros(len(owners))
    return np.unique(labels, return_inverse=True)[1]


def _fewest_among_clients(run: Prepared) -> int:
    """Return how many members are left at most, each with another client's example of its label."""
    numbers = _numbered_labels(run)
    if not len(numbers):
        return 0
    owners = run.truth.owners
    held = ~np.isin(owners, [NOBODY, SEVERAL])
    pairs = 0
    for label in np.unique(numbers[held]):
        sizes = np.unique(owners[held & (numbers == label)], return_counts=True)[1]
        pairs += min(int(sizes.sum()) // 2, int(sizes.sum() - sizes.max()))
    return pairs


def _fewest(run: Prepared, *, alone: bool) -> int:
    """Return how many members are left at most, each with a non-member of its label; ``alone``: held by one client."""
    numbers = _numbered_labels(run)
    if not len(numbers):
        return 0
    owners = run.truth.owners
    held = ~np.isin(owners, [NOBODY, SEVERAL]) if alone else owners != NOBODY
    held, free = (np.bincount(numbers[which]) for which in (held, owners == NOBODY))
    size = min(len(held), len(free))
    return int(np.minimum(held[:size], free[:size]).sum())


def _times(sizes: Mapping[Any, tuple[int, int]]) -> int:
    """Choose how many non-members each member gets, for labels with so many members and so many non-members.

    Members of labels that are too scarce for it are left out. The best number leaves much of both: it has the largest
    harmonic mean of members and non-members, so that one rare label does not cost the non-members of all others.
    """

    def left(times: int) -> float:
        members = sum(min(held, free // times) for held, free in sizes.values())
        return members * times / (1 + times)

    most = max((free // held for held, free in sizes.values()), default=1)
    return max(range(1, max(most, 1) + 1), key=left)


def _size(dealt: tuple[Pairs, Pairs]) -> float:
    """Return the harmonic mean of the numbers of members and non-members."""
    members, others = map(len, dealt)
    return 2 * members * others / max(members + others, 1)


def _joined(parts: Sequence[Rows]) -> Rows:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _finite(scores: Floats) -> Floats:
    """Return scores with infinite ones, which no regression can be fitted on, put to the largest or smallest other."""
    known = scores[np.isfinite(scores)]
    return np.clip(scores, known.min(initial=0.0), known.max(initial=0.0))


def _known(scores: Floats) -> Floats:
    return np.asarray(scores[~np.isnan(scores)])


def _pooled(scores: Scored) -> tuple[Floats, Floats]:
    members, others = zip(*scores, strict=True)
    return np.concatenate(members), np.concatenate(others)


def _halved(count: int, draw: np.random.Generator) -> tuple[Rows, Rows]:
    order = draw.permutation(count)
    return order[::2], order[1::2]


def _over_runs(here: Estimate, by_seed: Sequence[float]) -> Estimate:
    """Widen these runs' interval to that of runs like these, whose models differ."""
    low, high = mean_interval(by_seed, (here.low, here.high))
    return Estimate(here.value, low, high)


def _rate_over_runs(scores: Scored, fpr: float) -> Estimate:
    return _over_runs(tpr_at(*_pooled(scores), fpr), [tpr_value_at(*part, fpr) for part in scores])


def _area_over_runs(scores: Scored) -> Estimate:
    return _over_runs(area(*_pooled(scores)), [area_value(*part) for part in scores])


def _ends(here: Estimate, scores: Scored) -> tuple[float, float] | None:
    """Return the interval of these runs, where there are several."""
    return (here.low, here.high) if len(scores) > 1 else None


def _declared(case: MembershipCase) -> float | None:
    """Return the largest ε that the run's clients declare for the whole run, if it is finite."""
    if case.truth.privacy is None:
        return None
    largest = max(case.truth.privacy.epsilon_run, default=float("inf"))
    return largest if np.isfinite(largest) else None
