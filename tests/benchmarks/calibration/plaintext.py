"""False alarms and power of the judge of plaintext, on drawn examples, vectors and arrays.

In each null what a client sends was made of examples of nobody, of other clients, or of none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.threats.plaintext.case import THREAT, PlaintextCase
from fedattack.threats.plaintext.judge import PlaintextJudge
from fedattack.threats.plaintext.plaintext import PlainValues, PlainVector, SentArray
from tests.benchmarks.calibration.drawn import RECORD, judge_drawn, study, truth_of
from tests.worlds.cases import make_case

Floats = NDArray[np.float64]

_CLASSES = 4


class _Judge(PlaintextJudge):
    """Draws fewer exchanges, so that a row takes seconds."""

    shuffles = 20


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    sends
        What arrays and vectors are made of: ``noise``; examples of ``nobody``; those of the ``next`` client; or the
        ``columns`` of all clients', each shuffled by itself.
    values
        How many different values a column has; 0 for as many as there are examples.
    common
        Share of the examples that are one of ten which anybody may have.
    alike
        Whether columns depend on each other, so that examples are alike by accident.
    site
        By how much the columns of each client lie apart, in standard deviations.
    clients, each, columns, vectors, seeds
        How many clients, examples of each, numbers of an example, vectors of each client, and runs that are judged
        together.
    leaking
        Share of examples and statistics that are the client's own.
    """

    sends: str = "nobody"
    values: int = 0
    common: float = 0.0
    alike: bool = False
    site: float = 0.0
    clients: int = 6
    each: int = 20
    columns: int = 5
    vectors: int = 3
    seeds: int = 1
    leaking: float = 0.0


NULLS: Mapping[str, World] = {
    "noise": World("noise"),
    "examples of nobody": World(),
    "examples of nobody, 3 seeds": World(seeds=3),
    "examples of nobody, columns of 3 values": World(values=3),
    "examples of nobody, columns that depend on each other": World(values=4, alike=True),
    "examples of nobody, 64 numbers": World(columns=64),
    "a third are what anybody has, 64 numbers": World(columns=64, common=1 / 3),
    "the next client's examples": World("next"),
    "the next client's examples, columns of 3 values": World("next", values=3),
    "the next client's examples, sites apart": World("next", site=1.0),
    "columns of all shuffled, 3 values": World("columns", values=3),
    "3 clients": World(clients=3),
    "3 clients, 3 seeds": World(clients=3, seeds=3),
    "20 clients of 4 examples": World(clients=20, each=4),
}

POWERS: Mapping[str, World] = {
    "a tenth is the client's own": World(leaking=0.1),
    "a half is the client's own, columns of 3 values": World(values=3, leaking=0.5),
    "all of 3 clients, 64 numbers": World(clients=3, columns=64, leaking=1.0),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> PlaintextCase:
    """Draw examples of clients, and what they send."""
    common = _draw_examples(replace(world, each=10), rng)
    held = [_draw_examples(world, rng, common) for _ in range(world.clients)]
    labels = [rng.integers(_CLASSES, size=world.each) for _ in held]
    names = np.arange(world.clients).astype(str)
    truth = truth_of(
        world.clients,
        answers={
            THREAT: {
                "x": np.concatenate(held).astype(np.float32),
                "owners": np.repeat(names, world.each),
                "labels": np.concatenate(labels).astype(np.float64),
                "whole": names,
            }
        },
    )
    described, vectors, sent, contents = [], [], [], []
    for client, (own, y) in enumerate(zip(held, labels, strict=True)):
        rows = _draw_sent(world, held, common, client, rng)
        # Of another number of examples: counts that add up to the client's own would be sizes of its groups.
        counted = np.bincount(rng.integers(_CLASSES, size=rng.integers(world.each // 2, 2 * world.each)))
        if rng.random() < world.leaking:
            counted = np.bincount(y, minlength=_CLASSES)
        is_own = rng.random((world.each, 1)) < world.leaking
        rows = np.where(is_own, own, rows)
        of_means = own if rng.random() < world.leaking else rows
        for vector in rows[: world.vectors]:
            described.append(PlainVector("pixels", "train", world.columns))
            vectors.append(vector.astype(np.float64))
        arrays = {
            "rows": rows[world.vectors : world.vectors + 6],
            "statistics": np.stack([of_means.mean(0), of_means.var(0), of_means.max(0), of_means.min(0)]),
            "counts": counted,
        }
        for name, array in arrays.items():
            sent.append((client, SentArray(name, "train", array.shape, name == "counts", float(np.finfo("f4").eps))))
            contents.append(array.astype(np.float32).ravel())
    found = PlainValues(
        nodes=tuple(truth.nodes),
        keys=(),
        further=0,
        vectors=tuple(described),
        targets="",
        numbers=np.concatenate(vectors),
        whose=np.repeat(np.arange(world.clients), world.vectors),
        sent=tuple(array for _, array in sent),
        contents=np.concatenate(contents),
        senders=np.array([client for client, _ in sent]),
    )
    return make_case(PlaintextCase, seed, Scores.of(THREAT, found), truth, RECORD)


def _draw_examples(world: World, rng: np.random.Generator, common: Floats | None = None) -> Floats:
    """Draw the examples of one client, (each, columns); some are of those that anybody may have."""
    shape = world.each, world.columns
    drawn: NDArray[Any] = rng.normal(size=shape) + world.site * rng.normal(size=world.columns)
    if world.values:
        drawn = rng.integers(world.values, size=shape)
    if world.alike:
        # Mostly one number throughout.
        mostly = rng.integers(world.values, size=(world.each, 1))
        drawn = (mostly + rng.choice([0, 0, 0, 1], shape)) % world.values
    if common is not None:
        is_common = rng.random((world.each, 1)) < world.common
        drawn = np.where(is_common, common[rng.integers(len(common), size=world.each)], drawn)
    return drawn.astype(np.float32).astype(np.float64)


def _draw_sent(world: World, held: list[Floats], common: Floats, client: int, rng: np.random.Generator) -> Floats:
    """Draw what the arrays of a client are made of, (each, columns)."""
    if world.sends == "noise":
        return np.asarray(rng.normal(size=held[client].shape))
    if world.sends == "next":
        return held[(client + 1) % len(held)]
    if world.sends == "columns":
        return np.asarray(rng.permuted(np.concatenate(held), axis=0)[: world.each])
    return _draw_examples(world, rng, common)


judged = partial(judge_drawn, _Judge, draw_case)
rows = partial(study, NULLS, POWERS, judged)
