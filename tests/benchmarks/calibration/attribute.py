"""False alarms and power of the judge of attribute inference, on drawn values and answers.

In each null the answers say no more of the values than the guesses do, or no more than what suits them by luck.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, PartialRecords, Scores
from fedattack.audit.truth import Attributes
from fedattack.threats.attribute.case import BASELINES, AttributeCase
from fedattack.threats.attribute.judge import AttributeJudge
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.threats.attribute.filled import make_scores
from tests.worlds.cases import make_case

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, examples, seeds
        How many clients, examples of each, and runs that are judged together.
    unequal
        Whether some clients have several times as many examples as others.
    share
        Mean share of the second value.
    differ
        How many drawn examples' worth of a share's spread clients have in common; 0 where all have the same share. 2
        means very different clients.
    lean
        Whether the answers about a client lean to one value, and those about another client to another.
    guess
        Accuracy of a guess without updates, by site up to ``site`` more or less; 0 where there is none.
    answers
        ``random``, ``guess``, the same as the guess; ``altered``, where some are not; or ``rival``, which is another
        guess that is as good.
    knows, leaking
        Share of the values that the attack knows besides, and share of the clients of which it does.
    knows_client
        Of how many clients the attack knows, and names, the commonest value.
    members
        Share of the client's examples that are recognised as its own.
    """

    clients: int = 10
    examples: int = 50
    seeds: int = 1
    unequal: bool = False
    share: float = 0.5
    differ: float = 0.0
    lean: bool = False
    guess: float = 0.0
    site: float = 0.0
    answers: str = "random"
    knows: float = 0.0
    leaking: float = 1.0
    knows_client: float = 0.0
    members: float = 0.0


NULLS: Mapping[str, World] = {
    "column shuffled": World(),
    "column shuffled, a value rare": World(share=0.1),
    "answers lean by client": World(differ=2, lean=True),
    "answers lean by client, 3 seeds": World(differ=2, lean=True, seeds=3),
    "answers lean by client, 3 clients": World(clients=3, differ=2, lean=True),
    "answers lean by client, 3 clients, 3 seeds": World(clients=3, differ=2, lean=True, seeds=3),
    "answers lean by client, 100 clients": World(clients=100, examples=8, differ=2, lean=True),
    "answers lean by client, unequal": World(differ=2, lean=True, unequal=True),
    "answers lean by client, unequal, a value rare": World(differ=5, lean=True, unequal=True, share=0.1),
    "20 targets": World(clients=4, examples=5, differ=2, lean=True),
    "answers equal a guess": World(guess=0.7, answers="guess"),
    "a guess altered by client": World(guess=0.7, answers="altered", lean=True, differ=2),
    "another guess as good": World(guess=0.8, answers="rival"),
    "another guess as good, 3 seeds": World(guess=0.8, answers="rival", seeds=3),
    "another guess as good, a value rare": World(guess=0.9, share=0.1, answers="rival"),
    "another guess, better at some sites by luck": World(guess=0.8, site=0.05, answers="rival"),
    "one value only": World(share=0.0, lean=True),
}

POWERS: Mapping[str, World] = {
    "a quarter of the values known": World(knows=0.25),
    "a quarter of the values known, 3 seeds": World(knows=0.25, seeds=3),
    "half of the values known, 3 clients": World(knows=0.5, clients=3),
    "all values known, 3 clients, 20 examples": World(knows=1.0, clients=3, examples=20),
    "all values known, one client": World(knows=1.0, clients=1),
    "80 % known of a quarter of the clients": World(clients=12, knows=0.8, leaking=0.25),
    "a fifth known beside a guess": World(guess=0.7, answers="guess", knows=0.2),
    "commonest value known of 9 in 10 clients": World(differ=2, knows_client=0.9),
    "all values known, a value rare": World(share=0.1, knows=1.0),
    "a fifth of members recognised": World(members=0.2),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> AttributeCase:
    """Draw values, answers and a guess of one run."""
    sizes = np.full(world.clients, world.examples)
    if world.unequal:
        sizes = np.maximum(2, world.examples * rng.lognormal(0, 0.8, world.clients)).astype(int)
    owners = np.repeat(np.arange(world.clients), sizes)
    shares = np.full(world.clients, world.share)
    if world.differ:
        shares = rng.beta(world.share * world.differ, (1 - world.share) * world.differ, world.clients)
    truth = (rng.random(len(owners)) < shares[owners]).astype(int)
    leans = rng.beta(0.5, 0.5, world.clients) if world.lean else np.full(world.clients, max(world.share, 0.1))
    guess = _guess(world, truth, owners, rng)
    answers = (rng.random(len(owners)) < leans[owners]).astype(int)
    if world.answers == "rival":
        answers = _guess(world, truth, owners, rng)
    elif world.answers != "random":
        altered = rng.random(len(owners)) < leans[owners] / 2
        answers = np.where(altered & (world.answers == "altered"), 1 - guess, guess)
    leaking = np.arange(world.clients) < world.leaking * world.clients
    answers = np.where(leaking[owners] & (rng.random(len(owners)) < world.knows), truth, answers)
    commonest = (np.bincount(owners, truth) > sizes / 2).astype(int)
    named = rng.random(world.clients) < world.knows_client
    answers = np.where(named[owners], commonest[owners], answers)
    # Of some clients most candidates are taken for members, of others few.
    taken = rng.beta(0.5, 0.5, world.clients)[owners]
    members = rng.random(len(owners)) < np.maximum(taken, world.members * (taken < 0.9))
    decoys = rng.random(len(owners)) < taken * (1 - world.members)
    asked = {"members": members.astype(float), "decoys": decoys.astype(float), "decoy_clients": owners.astype(str)}
    return case_of(answers, truth, owners, seed, {"stats": guess} if world.guess else {}, asked)


def _guess(world: World, truth: Rows, owners: Rows, rng: np.random.Generator) -> Rows:
    right = np.clip(world.guess + world.site * rng.standard_normal(world.clients), 0, 1)
    return np.where(rng.random(len(owners)) < right[owners], truth, 1 - truth)


def case_of(
    answers: Rows, truth: Rows, owners: Rows, seed: int, guesses: Mapping[str, Rows], arrays: Mapping[str, Any]
) -> AttributeCase:
    """Make a case of one method's answers to questions about clients by number."""
    names = ("no", "yes")
    x = np.zeros((len(truth), 2), dtype=np.float32)
    partial = PartialRecords(
        x, np.zeros(len(truth)), owners.astype(str), (1,), np.arange(2, dtype=np.float32)[:, None], names
    )
    beside: tuple[Scores, ...] = ()
    if guesses:
        beside = (make_scores(BASELINES, guesses),)
    counts = np.bincount(owners)[:, None]
    asked = Attributes(truth, names, tuple(map(str, owners)), "sex")
    told = truth_of(len(counts), counts=counts, nodes={}, attributes=asked)
    return make_case(
        AttributeCase,
        seed,
        make_scores("ara", {"cos": answers}, **arrays),
        told,
        RECORD,
        Knowledge(partial=partial),
        beside,
    )


judged = partial(judge_drawn, draw_less(AttributeJudge, draws=499), draw_case)
rows = partial(study, NULLS, POWERS, judged)
