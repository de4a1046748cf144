"""False alarms and power of the judge of clients' private attributes, on drawn values and decisions.

In each null the decisions are drawn without a look at the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedattack.attacks import Scores
from fedattack.audit.truth import ClientAttribute
from fedattack.threats.group.case import PrivateAttributeCase
from fedattack.threats.group.judge import PrivateAttributeJudge
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.worlds.cases import make_case

_NAME = "colour"


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, rounds, values, seeds
        How many clients, rounds, values of the attribute, and runs that are judged together.
    common
        Share of clients that have the first value, beyond those of an even deal.
    guesses
        Decisions about clients that do not leak: ``random`` for each client, ``fickle`` in each round anew,
        ``commonest``, or ``leaning`` to the first value.
    leaking
        Share of clients whose value is named.
    replies
        Share of rounds in which a client replies.
    """

    clients: int = 30
    rounds: int = 8
    values: int = 3
    seeds: int = 1
    common: float = 0.0
    guesses: str = "random"
    leaking: float = 0.0
    replies: float = 1.0


NULLS: Mapping[str, World] = {
    "decisions at random": World(),
    "decisions at random, 3 seeds": World(seeds=3),
    "decisions at random in each round": World(guesses="fickle"),
    "two values": World(values=2),
    "one value is common, the commonest named": World(common=0.5, guesses="commonest"),
    "one value is common, decisions lean to it": World(common=0.5, guesses="leaning"),
    "partial participation": World(guesses="fickle", replies=0.4),
    "3 clients": World(clients=3),
    "3 clients, 3 seeds": World(clients=3, seeds=3),
    "20 clients": World(clients=20, values=2),
    "one value only": World(common=1.0),
}

POWERS: Mapping[str, World] = {
    "a quarter leaks, others at random": World(leaking=0.25),
    "a quarter leaks, others at random, 3 seeds": World(leaking=0.25, seeds=3),
    "a quarter leaks, others at random, 5 seeds": World(leaking=0.25, seeds=5),
    "a quarter leaks, others the commonest": World(leaking=0.25, guesses="commonest"),
    "a quarter leaks, others the commonest, 3 seeds": World(leaking=0.25, guesses="commonest", seeds=3),
    "a quarter leaks, two values": World(leaking=0.25, values=2),
    "a quarter leaks, others in each round anew": World(leaking=0.25, guesses="fickle"),
    "half leaks": World(leaking=0.5),
    "all of 6 clients leak": World(clients=6, leaking=1.0),
    "all of 3 clients leak, 3 seeds": World(clients=3, leaking=1.0, seeds=3),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> PrivateAttributeCase:
    """Draw values and decisions of one run."""
    held = rng.integers(world.values, size=world.clients)
    held[rng.random(world.clients) < world.common] = 0
    shape = (world.rounds, world.clients)
    decisions = np.broadcast_to(rng.integers(world.values, size=world.clients), shape)
    if world.guesses == "fickle":
        decisions = rng.integers(world.values, size=shape)
    elif world.guesses == "commonest":
        decisions = np.full(shape, np.bincount(held).argmax())
    elif world.guesses == "leaning":
        decisions = np.where(rng.random(world.clients) < 0.7, 0, decisions)
    decisions = np.where(rng.random(world.clients) < world.leaking, held, decisions)
    beliefs = np.eye(world.values)[decisions]
    silent = rng.random(shape) >= world.replies
    silent[0] = False
    beliefs[silent] = np.nan
    names = tuple(f"value {value}" for value in range(world.values))
    truth = truth_of(world.clients, private={_NAME: ClientAttribute(tuple(held.tolist()), names)})
    facts = {
        "adversaries": ["svm"],
        "rounds": [*range(1, world.rounds + 1)],
        "nodes": [*truth.nodes],
        "attributes": {_NAME: [*names]},
        "clients": 1,
        "epochs": 1,
        "targets": "",
    }
    scores = Scores("private-attribute", {f"beliefs-{_NAME}": beliefs[None]}, facts)
    return make_case(PrivateAttributeCase, seed, scores, truth, RECORD)


judged = partial(judge_drawn, draw_less(PrivateAttributeJudge), draw_case)
rows = partial(study, NULLS, POWERS, judged)
