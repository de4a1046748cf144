"""False alarms and power of the judge of moved rows, on drawn rows.

In each null the named rows are drawn without a look at the client whose update they are said to come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.threats.tokens.judge import TokensCase, TokensJudge
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.worlds.cases import make_case


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, rows, seeds
        How many clients, rows of the table, and runs that are judged together.
    common
        Share of the rows that every client uses, and that is always named.
    own
        Chance that a client uses one of the other rows.
    leaking
        Chance that a row is named by the client's own use; otherwise it is named as another client may use it.
    """

    clients: int = 10
    rows: int = 200
    seeds: int = 1
    common: float = 0.1
    own: float = 0.1
    leaking: float = 0.0


NULLS: Mapping[str, World] = {
    "rows of other clients": World(),
    "rows of other clients, 3 seeds": World(seeds=3),
    "most rows are everybody's": World(common=0.8),
    "few rows are used": World(common=0.0, own=0.01),
    "nearly all rows are used": World(own=0.9),
    "3 clients": World(clients=3),
    "3 clients, 3 seeds": World(clients=3, seeds=3),
}

POWERS: Mapping[str, World] = {
    "a tenth is the client's own": World(leaking=0.1),
    "a tenth is the client's own, 3 seeds": World(leaking=0.1, seeds=3),
    "a half is the client's own": World(leaking=0.5),
    "all of 5 clients": World(clients=5, leaking=1.0),
    "all, most rows are everybody's": World(common=0.8, leaking=1.0),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> TokensCase:
    """Draw used and named rows of one run."""
    shape = (world.clients, world.rows)
    common = np.arange(world.rows) < world.common * world.rows
    used = (rng.random(shape) < world.own) | common
    other = (rng.random(shape) < world.own) | common
    # A client that uses no row is asked nothing.
    used[:, -1] = True
    named = np.where(rng.random(shape) < world.leaking, used, other)
    truth = truth_of(world.clients, answers={TokensCase.ANSWERS: _list_used(used)})
    whose, rows = np.nonzero(named)
    asked = np.arange(world.rows)
    arrays = {
        "rows": rows,
        "tables": np.zeros_like(rows),
        "whose": whose,
        "asked": asked,
        "asked_tables": np.zeros_like(asked),
        "seen": np.ones(world.clients, dtype=np.bool_),
    }
    tables = [{"name": "words", "rows": world.rows, "how": ["single replies"]}]
    facts = {"clients": [*truth.nodes], "tables": tables, "rounds": [1], "targets": ""}
    return make_case(TokensCase, seed, Scores("tokens", arrays, facts), truth, RECORD)


def _list_used(used: NDArray[np.bool_]) -> Mapping[str, NDArray[Any]]:
    """List the rows that clients use, as truths do."""
    owners, rows = np.nonzero(used)
    names = np.arange(len(used)).astype(str)
    return {
        "names": np.array(["words"]),
        "rows": rows,
        "tables": np.zeros_like(rows),
        "owners": names[owners],
        "whole": names,
    }


judged = partial(judge_drawn, draw_less(TokensJudge), draw_case)
rows = partial(study, NULLS, POWERS, judged)
