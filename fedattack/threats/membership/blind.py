"""What the examples alone tell of who is a member, without any model: that is no leak of one.

A classifier sees the examples and their labels, by cross-validation. It may miss some of what there is to see, so that
upper ends of its success are the bars. If there are many targets, it sees a sample, so that these ends are a little
higher.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict

from fedattack.audit.intervals import these_runs
from fedattack.audit.measures import Sides
from fedattack.audit.roc import Estimate, area
from fedattack.base.structured import flat
from fedattack.threats.membership.case import Floats, MembershipCase, Pairs, Rows

_FOREST = 14

# So few trees tell as much as a hundred with leaves of two examples, to 0.004 of the area, in half the time.
_TREES, _LEAF = 60, 5

# Seeds are taken until there are so many members, and so many non-members; of one seed there are no more of each. The
# area under the curve is then known to about ±0.025.
_ENOUGH = 1_000


@dataclass(frozen=True)
class Blind:
    """What a classifier tells that sees the examples alone."""

    cases: Sequence[MembershipCase]

    @cached_property
    def sample(self) -> Sequence[tuple[MembershipCase, Pairs, Pairs]]:
        """The members and non-members that it sees, seed by seed."""
        sample: list[tuple[MembershipCase, Pairs, Pairs]] = []
        members_seen = others_seen = 0
        for case in self.cases:
            members, others = (_draw_pairs(pairs, case.seed) for pairs in case.dealt)
            sample.append((case, members, others))
            members_seen += len(members)
            others_seen += len(others)
            if min(members_seen, others_seen) >= _ENOUGH:
                break
        return sample

    def describe_sample(self) -> str:
        """Say how many members and non-members it sees, where it does not see all."""
        seen = [len(scores) for scores in self.sides.pooled]
        there = [sum(len(case.dealt[side]) for case in self.cases) for side in (0, 1)]
        if seen == there:
            return ""
        return f" of {seen[0]:,} members and {seen[1]:,} non-members"

    @cached_property
    def sides(self) -> Sides:
        """Its scores, seed by seed."""
        return Sides([_score_examples(*of_seed) for of_seed in self.sample])

    @cached_property
    def area(self) -> Estimate:
        """Its area under the ROC curve."""
        return area(*self.sides.pooled)

    def bars(self, upper_end: Callable[[Floats, Floats], float]) -> dict[str, float]:
        """Return what the examples alone tell by some measure, where they do."""
        if self.area.low <= 0.5:
            return {}
        return {"what the examples alone tell": upper_end(*self.sides.pooled)}

    def most_exposed(self, fpr: float) -> float:
        """Return the largest upper end of the rates at which clients' members are found.

        One threshold serves all clients, as it does for the attack.
        """
        threshold = threshold_at(self.sides, fpr)
        most = 0.0
        for (_, members, _), (beliefs, _) in zip(self.sample, self.sides.seeds, strict=True):
            for column in np.unique(members.columns):
                above = beliefs[members.columns == column] > threshold
                most = max(most, these_runs([int(above.sum())], [len(above)])[1])
        return most


def threshold_at(sides: Sides, fpr: float) -> float:
    """Return the score above which this share of the non-members is."""
    others = np.sort(sides.pooled[1])[::-1]
    return float(others[int(fpr * len(others))])


def _draw_pairs(pairs: Pairs, seed: int) -> Pairs:
    if len(pairs) <= _ENOUGH:
        return pairs
    drawn = np.zeros(len(pairs), dtype=bool)
    drawn[np.random.default_rng((seed, _FOREST)).choice(len(pairs), _ENOUGH, replace=False)] = True
    return pairs.where(drawn)


def _score_examples(case: MembershipCase, members: Pairs, others: Pairs) -> tuple[Floats, Floats]:
    targets = case.knowledge.targets
    if targets is None:
        raise AssertionError("checked by the attack")
    rows = np.concatenate([members.rows, others.rows])
    is_member = np.repeat([1, 0], [len(members), len(others)])
    # Trees take a missing number as one more value, and no infinite one; whole numbers, such as tokens, have neither.
    features = np.column_stack([flat(targets.x[rows]), case.labels[rows]]).astype(np.float64, copy=False)
    features[np.isinf(features)] = np.nan
    forest = RandomForestClassifier(_TREES, min_samples_leaf=_LEAF, random_state=_FOREST, class_weight="balanced")
    if case.among_clients:
        # What it may know is whose data an example looks like.
        asked = np.concatenate([members.columns, others.columns])
        beliefs = _believe_owners(forest, features, case.owner[rows], asked)
    else:
        folds = StratifiedKFold(4, shuffle=True, random_state=_FOREST)
        beliefs = cross_val_predict(forest, features, is_member, cv=folds, method="predict_proba")[:, 1]
    return beliefs[is_member == 1], beliefs[is_member == 0]


def _believe_owners(forest: RandomForestClassifier, features: Floats, owners: Rows, asked: Rows) -> Floats:
    """Return by cross-validation how likely a classifier takes each example for one of the client who is asked."""
    beliefs = np.zeros((len(owners), max(owners.max(), asked.max()) + 1))
    for fit, test in KFold(4, shuffle=True, random_state=_FOREST).split(features):
        forest.fit(features[fit], owners[fit])
        beliefs[np.ix_(test, forest.classes_)] = forest.predict_proba(features[test])
    return np.asarray(beliefs[np.arange(len(asked)), asked])
