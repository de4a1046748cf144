"""False alarms and power of the judge of moved rows, on drawn rows.

In each null the named rows are drawn without a look at the client whose update they are said to come from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, Scores
from fedattack.audit.finding import Finding
from fedattack.audit.truth import Truth
from fedattack.threats.tokens.judge import TokensCase, TokensJudge
from tests.benchmarks.calibration.drawn import judge_drawn, study


class _Judge(TokensJudge):
    """Draws fewer exchanges, so that a row takes seconds."""

    draws = 999
    shuffles = 20


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
    clients = tuple(map(str, range(world.clients)))
    truth = Truth(
        clients=clients,
        classes=("0",),
        counts=np.ones((world.clients, 1), dtype=np.int64),
        owners=np.zeros(0, dtype=np.str_),
        evaluation=(np.zeros((1, 2), np.float32), np.zeros(1, np.int64)),
        nodes={f"node{client}": client for client in clients},
        targets="",
        answers={TokensCase.ANSWERS: _list_used(used, clients)},
    )
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
    scores = Scores("tokens", arrays, {"clients": [*truth.nodes], "tables": tables, "targets": ""})
    record: Any = SimpleNamespace(view="individual")
    return TokensCase(seed, scores, truth, record, Knowledge())


def _list_used(used: NDArray[np.bool_], clients: tuple[str, ...]) -> Mapping[str, NDArray[Any]]:
    """List the rows that clients use, as truths do."""
    owners, rows = np.nonzero(used)
    names = np.array(clients)
    return {
        "names": np.array(["words"]),
        "rows": rows,
        "tables": np.zeros_like(rows),
        "owners": names[owners],
        "whole": names,
    }


def judged(world: World, rng: np.random.Generator) -> list[Finding]:
    """Judge one drawing of a world."""
    return judge_drawn(_Judge, draw_case, world, rng)


def rows(repetitions: int, seed: int) -> Iterator[dict[str, Any]]:
    """Measure false alarms and power."""
    return study(NULLS, POWERS, judged, repetitions, seed)
