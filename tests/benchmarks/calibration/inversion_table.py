"""False alarms and power of the judge of gradient inversion, on drawn rows of tables and what was found of them.

In each null what was found knows at most the labels of the true rows, and how many there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, Scores
from fedattack.attacks.coding import find_coding
from fedattack.audit.truth import HeldRecords
from fedattack.threats.inversion.case import InversionCase
from fedattack.threats.inversion.inversion import ReconstructedExamples
from tests.benchmarks.calibration.drawn import judge_drawn, study
from tests.benchmarks.calibration.inversion import QuickJudge, case_of
from tests.worlds.cases import change_case

_CATEGORIES = (2, 3, 5, 12)

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    found
        What was found: ``new`` rows, of any label; rows ``alike``, of the label, drawn anew in each round, or
        ``lasting`` ones that are the same in all rounds; the most ``common`` value of each column; the ``next``
        client's rows.
    right
        Share of the cells that are then the true ones.
    is_sparse
        Whether nearly everybody has the same category in each column.
    clients, each, rounds
        How many clients, rows of each, and rounds in which they are attacked.
    unheld
        Rows that nobody trained on.
    seeds
        Runs that are judged together.
    """

    found: str
    right: float = 0.0
    is_sparse: bool = False
    clients: int = 5
    each: int = 2
    rounds: int = 1
    unheld: int = 200
    seeds: int = 1


NULLS: Mapping[str, World] = {
    "new rows": World("new"),
    "new rows of a sparse table": World("new", is_sparse=True),
    "rows of the label": World("alike"),
    "rows of the label, of a sparse table": World("alike", is_sparse=True),
    "rows of the label, 1 client of 1": World("alike", clients=1, each=1),
    "rows of the label, 3 clients of 8": World("alike", clients=3, each=8),
    "rows of the label, 3 seeds": World("alike", seeds=3),
    "rows of the label in each of 3 rounds": World("alike", rounds=3),
    "the same rows of the label in 3 rounds": World("lasting", rounds=3),
    "rows of the label, 10 others": World("alike", unheld=10),
    "the most common values": World("common"),
    "the most common values of a sparse table": World("common", is_sparse=True),
    "the next client's rows": World("next"),
}

POWERS: Mapping[str, World] = {
    "a fifth of the cells": World("alike", 0.2),
    "a half of the cells": World("alike", 0.5),
    "a half of the cells of a sparse table": World("alike", 0.5, is_sparse=True),
    "nine tenths of the cells, 1 client of 1": World("alike", 0.9, clients=1, each=1),
}


class _People:
    """Draws rows of two numbers and columns of categories, which follow the label."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self._rng = rng
        self._means = rng.normal(size=(2, 2))
        self._shares = []
        for count in _CATEGORIES:
            weights = rng.dirichlet(np.full(count, 0.5), size=2)
            if world.is_sparse:
                # Of either label, nine in ten have one category.
                weights = 0.1 * weights + 0.9 * np.eye(count)[rng.integers(count)]
            self._shares.append(weights)

    def draw(self, labels: Labels) -> Rows:
        parts = [self._means[labels] + self._rng.normal(size=(len(labels), 2))]
        for weights in self._shares:
            drawn = (weights.cumsum(axis=1)[labels] > self._rng.random((len(labels), 1))).argmax(axis=1)
            parts.append(np.eye(weights.shape[1])[drawn])
        return np.concatenate(parts, axis=1).astype(np.float32)


def draw_case(world: World, seed: int, rng: np.random.Generator) -> InversionCase:
    """Draw rows, and what was found of them."""
    people = _People(world, rng)
    count = world.clients * world.each
    labels, unheld_labels = rng.integers(2, size=count), rng.integers(2, size=world.unheld)
    truth, unheld, lasting = people.draw(labels), people.draw(unheld_labels), people.draw(labels)
    coding = find_coding(np.concatenate([truth, unheld]))
    if coding is None:
        raise AssertionError("rows of a table have a coding")
    # Which input of each column most have.
    most = unheld.mean(axis=0)
    common = np.where([kind for kind, own in zip(coding.is_number, coding.columns, strict=True) for _ in own], most, 0)
    for is_number, own in zip(coding.is_number, coding.columns, strict=True):
        if not is_number:
            common[own[int(most[list(own)].argmax())]] = 1

    def find() -> Rows:
        found = {
            "new": people.draw(rng.integers(2, size=count)),
            "alike": people.draw(labels),
            "lasting": lasting.copy(),
            "common": np.repeat(common[np.newaxis], count, axis=0),
            "next": np.roll(truth, world.each, axis=0),
        }[world.found]
        for own in coding.columns:
            is_right = rng.random(count) < world.right
            found[np.ix_(is_right, own)] = truth[np.ix_(is_right, own)]
        return found.astype(np.float32)

    found = np.concatenate([find() for _ in range(world.rounds)])
    # The labels are those of the clients, but of any client.
    restored = rng.permutation(labels.reshape(world.clients, world.each)).ravel()
    held, knowledge = HeldRecords(truth, labels, ()), Knowledge(coding=coding)
    case = case_of(world, found, restored, held, (unheld, unheld_labels), seed, knowledge)
    unsure = rng.random((len(found), len(coding.columns)))
    scores = replace(case.scores.as_found(ReconstructedExamples), unsure=unsure)
    return change_case(case, scores=Scores.of("inversion", scores))


judged = partial(judge_drawn, QuickJudge, draw_case)
rows = partial(study, NULLS, POWERS, judged)
