"""False alarms and power of the judge of examples that were read off, on drawn examples.

In each null what was read off is drawn without a look at the client that it is said to be of.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.threats.exact.case import ExactCase
from fedattack.threats.exact.judge import ExactJudge
from tests.benchmarks.calibration.drawn import draw_less, judge_drawn, study
from tests.threats.exact.read import case_of

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    read
        What was read off of a client: ``random`` rows; ``new`` rows, drawn as those of clients are; its ``mean``; a row
        ``of others``; or ``any`` row that is known, of a client or of nobody.
    columns
        ``fine`` numbers, ``coarse`` ones of three values, or ``binary`` ones that are mostly 0.
    common
        Share of the examples that are one of ten which anybody may have.
    sizes, each, seeds
        How many examples clients hold, how many are read off of each, and runs that are judged together.
    sums
        Whether they were read off sums, and are put to clients and into groups at random.
    leaking
        Share of what was read off that is the client's own.
    """

    read: str
    columns: str = "coarse"
    common: float = 0.0
    sizes: tuple[int, ...] = (30, 30, 30, 30)
    each: int = 10
    seeds: int = 1
    sums: bool = False
    leaking: float = 0.0


NULLS: Mapping[str, World] = {
    "random rows": World("random", "fine"),
    "new rows of 20 numbers": World("new", "fine"),
    "new rows of three values": World("new"),
    "new rows of three values, 3 seeds": World("new", seeds=3),
    "new rows of 0 and 1": World("new", "binary"),
    "new rows of 20 numbers, a third are what anybody has": World("new", "fine", common=1 / 3),
    "new rows of 20 numbers, nearly all are what anybody has": World("new", "fine", common=0.9),
    "the client's mean": World("mean", "fine"),
    "rows of other clients": World("of others", "fine"),
    "rows of other clients, three values": World("of others"),
    "any known rows of three values": World("any"),
    "any known rows, unequal sizes": World("any", sizes=(10, 60, 20)),
    "new rows, one client": World("new", sizes=(100,)),
    "new rows, of sums": World("new", sums=True),
    "any known rows, of sums": World("any", sums=True),
}

POWERS: Mapping[str, World] = {
    "a tenth is the client's own, of 20 numbers": World("new", "fine", leaking=0.1),
    "a half is the client's own, of three values": World("new", leaking=0.5),
    "all of three clients, of 0 and 1": World("new", "binary", sizes=(30, 30, 30), leaking=1.0),
    "a tenth is of the clients, of sums, of 20 numbers": World("new", "fine", sums=True, leaking=0.1),
}


def _draw_rows(columns: str, count: int, rng: np.random.Generator) -> Rows:
    """Draw examples."""
    if columns == "fine":
        drawn: NDArray[Any] = rng.normal(size=(count, 20))
    elif columns == "coarse":
        drawn = rng.integers(3, size=(count, 4))
    else:
        drawn = rng.random((count, 6)) < 0.3
    return drawn.astype(np.float32)


def draw_case(world: World, seed: int, rng: np.random.Generator) -> ExactCase:
    """Draw examples of clients and of nobody, and what was read off."""
    common = _draw_rows(world.columns, 10, rng)

    def draw_rows(count: int) -> Rows:
        """Draw examples, of which some are of those that anybody may have."""
        is_common = rng.random((count, 1)) < world.common
        return np.where(is_common, common[rng.integers(len(common), size=count)], _draw_rows(world.columns, count, rng))

    held = [draw_rows(size) for size in world.sizes]
    nobody, auxiliary = draw_rows(30), draw_rows(30)
    read = []
    for client, own in enumerate(held):
        for _ in range(world.each):
            row = draw_rows(1)[0]
            if world.read != "new":
                row = _draw_read(world, client, held, nobody, rng)
            if rng.random() < world.leaking:
                row = own[rng.integers(len(own))]
            read.append((client, row))
    view = "aggregate" if world.sums else "individual"
    case = case_of(read, held, nobody=nobody, auxiliary=auxiliary, view=view, seed=seed)
    if world.sums:
        case.scores.arrays["whose"][:] = rng.integers(len(held), size=len(read))
        case.scores.arrays["groups"][:] = rng.permutation(np.arange(len(read)) // 2)
    return case


def _draw_read(world: World, client: int, held: list[Rows], nobody: Rows, rng: np.random.Generator) -> Rows:
    if world.read == "random":
        return rng.random(held[0].shape[1], dtype=np.float32)
    if world.read == "mean":
        return np.asarray(held[client].mean(axis=0))
    others = [rows for other, rows in enumerate(held) if other != client]
    every = np.concatenate(others if world.read == "of others" else [*held, nobody])
    return np.asarray(every[rng.integers(len(every))])


judged = partial(judge_drawn, draw_less(ExactJudge), draw_case)
rows = partial(study, NULLS, POWERS, judged)
