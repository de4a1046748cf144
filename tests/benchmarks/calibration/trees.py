"""False alarms and power of the judge of trees, on drawn tables, thresholds and rows.

In each null thresholds and rows are drawn without a look at the table of the client whose trees they are said to come
from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.threats.trees.judge import TreesCase, TreesJudge
from fedattack.threats.trees.trees import ReadTables
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.worlds.cases import make_case

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    read
        Whose table thresholds and rows are drawn from: one of ``nobody``, or the ``next`` client's.
    values
        How many different values a column has; 0 for as many as there are rows.
    site
        By how much the columns of each client lie apart, in standard deviations.
    clients, each, columns, cuts, seeds
        How many clients, rows of each, columns, thresholds in each, and runs that are judged together.
    linked
        How many trees of the common model a participant puts to clients at random, in each of three rounds.
    leaking
        Share of thresholds, rows and links that are the client's own.
    """

    read: str = "nobody"
    values: int = 0
    site: float = 0.0
    clients: int = 8
    each: int = 30
    columns: int = 5
    cuts: int = 6
    seeds: int = 1
    linked: int = 2
    leaking: float = 0.0


NULLS: Mapping[str, World] = {
    "tables of nobody": World(),
    "tables of nobody, 3 seeds": World(seeds=3),
    "tables of nobody, columns of 4 values": World(values=4),
    "tables of nobody, columns of 50 values": World(values=50),
    "tables of nobody, sites apart": World(site=1.0),
    "the next client's tables": World("next"),
    "the next client's tables, sites apart": World("next", site=1.0),
    "the next client's tables, columns of 50 values": World("next", values=50),
    "3 clients": World(clients=3),
    "3 clients, 3 seeds": World(clients=3, seeds=3),
    "20 clients of 8 rows": World(clients=20, each=8),
}

POWERS: Mapping[str, World] = {
    "a tenth is the client's own": World(leaking=0.1),
    "a tenth is the client's own, columns of 50 values": World(values=50, leaking=0.1),
    "a half is the client's own, columns of 50 values": World(values=50, leaking=0.5),
    "all of 3 clients": World(clients=3, leaking=1.0),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> TreesCase:
    """Draw tables, and what was read of trees."""
    true = [_draw_table(world, rng) for _ in range(world.clients)]
    read = [_draw_table(world, rng) for _ in range(world.clients)]
    if world.read == "next":
        read = [*true[1:], true[0]]
    whole, cuts = [], []
    for own, other in zip(true, read, strict=True):
        rows = np.where(rng.random((world.each, 1)) < world.leaking, own, rng.permutation(other))
        values = np.where(rng.random(own.shape) < world.leaking, own, other)
        whole.append(rows)
        cuts.append(rng.permuted(values, axis=0)[: world.cuts])
    clients = np.arange(world.clients)
    truth = truth_of(
        world.clients,
        answers={
            TreesCase.ANSWERS: {
                "x": np.concatenate(true).astype(np.float32),
                "owners": np.repeat(clients.astype(str), world.each),
            }
        },
    )
    found = ReadTables(
        clients=tuple(truth.nodes),
        features=world.columns,
        objective="reg:squarederror",
        trees=(1,) * world.clients,
        rounds=(1, 2, 3),
        targets="",
        rows=np.concatenate(whole),
        whose=np.repeat(clients, world.each),
        cuts=np.concatenate(cuts).astype(np.float32).astype(np.float64).ravel(),
        cut_columns=np.tile(np.arange(world.columns), world.clients * world.cuts),
        cut_whose=np.repeat(clients, world.cuts * world.columns),
        **_deal_trees(world, rng),
    )
    return make_case(TreesCase, seed, Scores.of("trees", found), truth, RECORD)


def _draw_table(world: World, rng: np.random.Generator) -> Floats:
    """Draw the rows of one client, (each, columns)."""
    drawn = rng.normal(size=(world.each, world.columns)) + world.site * rng.normal(size=world.columns)
    if world.values:
        # Values around 0 of equal distance.
        drawn = np.round(drawn * world.values / 6)
    return np.asarray(drawn)


def _deal_trees(world: World, rng: np.random.Generator) -> dict[str, NDArray[np.int64]]:
    """Say whose the trees of rounds 2 to 4 are, and to whom a participant puts them."""
    owners = np.tile(np.repeat(np.arange(world.clients), world.linked), 3)
    sent_in = np.repeat([2, 3, 4], world.clients * world.linked)
    dealt = np.concatenate([rng.permutation(owners[sent_in == number]) for number in (2, 3, 4)])
    is_own = rng.random(len(owners)) < world.leaking
    return {"linked": np.where(is_own, owners, dealt), "owners": owners, "sent_in": sent_in}


judged = partial(judge_drawn, draw_less(TreesJudge), draw_case)
rows = partial(study, NULLS, POWERS, judged)
