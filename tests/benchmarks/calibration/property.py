"""False alarms and power of the judge of property inference, on drawn names and scores.

In each null who has the property is drawn without a look at what the methods say.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedattack.threats.property.case import PropertyCase
from fedattack.threats.property.judge import PropertyJudge
from tests.benchmarks.calibration.drawn import judge_drawn, study, truth_of
from tests.threats.property.answered import make_scores
from tests.worlds.cases import make_case

_UNSEEN = 50


class _Judge(PropertyJudge):
    """Draws fewer exchanges, so that a row takes seconds."""

    draws = 999


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, questions, positives
        How many, and how many clients have the property in each question.
    signal
        What the property adds to a client's score, whose noise has a deviation of one.
    alike
        Part of that noise that is the same in all questions: some clients are always suspected.
    always
        Clients that are named whatever comes, first ones first.
    overlapping
        Whether the same clients have the property in all questions.
    unequal
        Whether clients take part in different numbers of rounds, and scores are large for those that do often.
    seeds
        Runs that are judged together.
    """

    clients: int = 20
    questions: int = 5
    positives: int = 4
    signal: float = 0.0
    alike: float = 0.0
    always: int = 0
    overlapping: bool = False
    unequal: bool = False
    seeds: int = 1


NULLS: Mapping[str, World] = {
    "names drawn independently": World(),
    "the same clients always named": World(always=4),
    "the same clients always named, questions of the same clients": World(always=4, overlapping=True),
    "overlapping positives, scores alike in all questions": World(alike=0.9, overlapping=True),
    "one question": World(questions=1),
    "nobody has the property": World(positives=0),
    "3 clients, 5 questions": World(clients=3, positives=1),
    "unequal participation": World(alike=0.5, unequal=True),
    "unequal participation, 3 seeds": World(alike=0.5, unequal=True, seeds=3),
}

POWERS: Mapping[str, World] = {
    "signal of 1 deviation": World(signal=1.0),
    "signal of 1 deviation, 3 seeds": World(signal=1.0, seeds=3),
    "signal of 2 deviations, one question": World(questions=1, signal=2.0),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> PropertyCase:
    """Draw scores, names and truth of one run."""
    shape = (world.questions, world.clients)
    order = np.argsort(rng.random(shape), axis=1)
    if world.overlapping:
        order[:] = order[0]
    positives = order < world.positives
    own = rng.standard_normal(world.clients)
    score = np.sqrt(world.alike) * own + np.sqrt(1 - world.alike) * rng.standard_normal(shape)
    often = np.ones(world.clients)
    if world.unequal:
        often = rng.exponential(size=world.clients)
        score += often
        score[:, rng.random(world.clients) < 0.1] = np.nan
    score += world.signal * positives
    named = score >= np.nanquantile(score, 0.8)
    named[:, : world.always] = True
    telling = {"loss": own, "accuracy": rng.standard_normal(world.clients), "norm": often}
    return case_of(score, named, positives, seed, telling)


def case_of(
    score: np.ndarray, named: np.ndarray, positives: np.ndarray, seed: int, sent: Mapping[str, np.ndarray]
) -> PropertyCase:
    """Make a case in which all methods say the same; ``sent`` in plaintext are metrics (clients,)."""
    clients = score.shape[1]
    nodes = [f"node{client}" for client in range(clients)]
    replies = []
    for client, node in enumerate(nodes):
        metrics = {name: float(values[client]) for name, values in sent.items()}
        replies.append(SimpleNamespace(status="ok", node=node, num_examples=10, plaintext=metrics))
    record: Any = _Record([SimpleNamespace(observations=replies)])
    scores = make_scores(score, nodes, named=named, unseen=_UNSEEN)
    truth = truth_of(clients, counts=np.full((clients, 1), 10), positives=positives)
    return make_case(PropertyCase, seed, scores, truth, record)


class _Record(list[Any]):
    """Rounds of a record that was never written."""

    view = "aggregate"


judged = partial(judge_drawn, _Judge, draw_case)
rows = partial(study, NULLS, POWERS, judged)
