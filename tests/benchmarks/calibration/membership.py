"""False alarms and power of the judge of membership inference, on scores that are drawn.

A *world* says how scores depend on clients, labels, sites and features. In each world but those of power, no model has
learned any example.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from fedattack.attacks import Knowledge, Scores, Targets
from fedattack.audit import exchanges
from fedattack.audit.finding import Finding
from fedattack.audit.significance import significance_of
from fedattack.audit.truth import NOBODY, Truth
from fedattack.threats.membership import blind, judge
from fedattack.threats.membership.case import MembershipCase
from fedattack.threats.membership.judge import MembershipJudge
from fedattack.threats.membership.membership import LikelyMembers
from tests.benchmarks.calibration.drawn import measured
from tests.worlds.cases import make_case

CLASSES = 5
FEATURES = 4

# The judge's exchanges, and the trees of its classifier that sees no model: fewer than in an audit, to be quick.
DRAWS = 999
TREES = 20

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """What the scores of a run depend on.

    Attributes
    ----------
    clients, members, others
        Their numbers: clients, and over all of them members and non-members.
    seeds
        Runs that are judged together.
    learned
        By how much a client's own members score higher.
    by_features, by_label, by_site
        By how much the scores of a client differ with an example's features and label, and are higher for examples of
        its own data.
    origins
        Whether the truth says from whose data the non-members come.
    unlike
        By how much members differ from non-members in their first feature. The scores of all clients follow some
        direction of the features.
    relative
        Whether each client is held against the others, so that an example's scores depend on each other.
    unequal
        Whether the clients' numbers of members are unequal.
    """

    clients: int = 10
    members: int = 200
    others: int = 1000
    seeds: int = 1
    learned: float = 0.0
    by_features: float = 0.5
    by_label: float = 0.0
    by_site: float = 0.0
    origins: bool = False
    unlike: float = 0.0
    relative: bool = False
    unequal: bool = False

    def case(self, seed: int, draw: np.random.Generator) -> MembershipCase:
        """Draw one run."""
        count = self.members + self.others
        shares = np.arange(1, self.clients + 1) if self.unequal else np.ones(self.clients)
        home = draw.choice(self.clients, size=count, p=shares / shares.sum())
        # Every client has some.
        home[: 2 * self.clients] = np.arange(2 * self.clients) % self.clients
        is_member = np.arange(count) < self.members
        labels = (home + draw.integers(CLASSES - 1, size=count)) % CLASSES
        x = draw.normal(size=(count, FEATURES))
        x[is_member, 0] += self.unlike
        own = home[:, None] == np.arange(self.clients)
        # What a model makes of an example's features says nothing of whether it was trained on it.
        scores = self.by_features * x @ draw.normal(size=(FEATURES, self.clients))
        scores += draw.normal(size=(count, self.clients))
        scores += self.by_label * draw.normal(size=(CLASSES, self.clients))[labels]
        scores += self.by_site * own
        if self.unlike:
            scores += x @ draw.normal(size=(FEATURES, 1))
        scores += self.learned * (own & is_member[:, None])
        if self.relative:
            scores = scores - (scores.sum(axis=1, keepdims=True) - scores) / (self.clients - 1)
        mixed = draw.permutation(count)
        names = np.array([str(client) for client in home])[mixed]
        nobody = ~is_member[mixed]
        nodes = [str(client) for client in range(self.clients)]
        truth = Truth(
            clients=tuple(nodes),
            classes=tuple("abcde"),
            counts=np.full((self.clients, CLASSES), 10),
            owners=np.where(nobody, NOBODY, names),
            evaluation=(np.zeros((1, FEATURES), dtype=np.float32), np.zeros(1, dtype=np.int64)),
            nodes=dict(zip(nodes, nodes, strict=True)),
            targets="",
            origins=np.where(nobody & self.origins, names, ""),
        )
        targets = Targets(x[mixed].astype(np.float32), labels[mixed])
        by_method = {"fedmia": scores[mixed], "loss-series": scores[mixed]}
        found = LikelyMembers.of(targets, by_method, scores[mixed][None], clients=nodes, rounds=[1])
        record: Any = SimpleNamespace(view="individual")
        return make_case(
            MembershipCase, seed, Scores.of("membership", found), truth, record, Knowledge(targets=targets)
        )


NULLS = {
    "nobody learned anything": World(),
    "labels alone informative": World(by_label=2.0),
    "sites alone informative, origins known": World(by_site=2.0, origins=True),
    "each client against the others": World(relative=True),
    "3 clients against each other": World(clients=3, relative=True),
    "members unlike non-members": World(unlike=1.0),
    "20 targets of members": World(members=20, others=200),
    "unequal sizes": World(unequal=True, by_label=1.0),
    "5 seeds": World(seeds=5, by_label=1.0),
}
"""Where there is nothing to find."""

NOT_TOLD_APART = {"sites alone informative, origins unknown": World(by_site=2.0)}
"""Where the headline says that it cannot tell."""

POWER = {
    "5% found at 1%": World(members=1000, others=3000, by_features=0.0, learned=0.681),
    "10% found at 1%": World(members=1000, others=3000, by_features=0.0, learned=1.045),
}
"""Where members are learned a little."""


def rows(repetitions: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield false alarms and power of each finding; see :func:`tests.benchmarks.calibration.drawn.measured`."""
    with quick():
        for kind, worlds in (("null", NULLS), ("not told apart", NOT_TOLD_APART), ("power", POWER)):
            yield from measured(kind, worlds, judged, repetitions, seed)


def judged(world: World, rng: np.random.Generator) -> list[Finding]:
    """Draw runs of a world, and judge them."""
    cases = [world.case(int(rng.integers(2**31)), rng) for _ in range(world.seeds)]
    return MembershipJudge(cases, setting={}, provenance={}).findings()


@contextmanager
def quick() -> Iterator[None]:
    """Take fewer draws and trees than an audit does."""

    def forest(count: int, **options: Any) -> RandomForestClassifier:
        return RandomForestClassifier(min(count, TREES), **options)

    with (
        patch.object(exchanges, "significance_of", partial(significance_of, draws=DRAWS)),
        patch.object(blind, "RandomForestClassifier", forest),
        patch.object(judge, "_NULL_DRAWS", 20),
    ):
        yield
