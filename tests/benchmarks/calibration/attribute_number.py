"""False alarms and power of the judge of a column of numbers, on drawn numbers and estimates.

In each null the estimates say no more of a client's numbers than the other columns, or the client's mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge, PartialRecords, Scores, Targets
from fedattack.audit.finding import Finding
from fedattack.audit.truth import Attributes
from fedattack.threats.attribute import imputation
from fedattack.threats.attribute.numbers import MAIN, EstimatedNumbers
from fedattack.threats.attribute.numbers_judge import NumberCase, NumbersJudge
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.worlds.cases import make_case

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, each, seeds
        How many clients, examples of each, and runs that are judged together.
    apart
        By how much clients' means lie apart, in standard deviations.
    depends
        Correlation of the number with the other column, by which it can be imputed.
    estimates
        ``noise``; the client's ``mean``; ``imputed`` from the other column; or the number ``with noise``.
    noise
        Standard deviation of what is added to the number.
    public
        Examples of the attacker's own; none for 0.
    leaking
        Share of the examples whose number is known, whatever the estimates.
    """

    clients: int = 8
    each: int = 25
    seeds: int = 1
    apart: float = 0.0
    depends: float = 0.0
    estimates: str = "noise"
    noise: float = 0.0
    public: int = 0
    leaking: float = 0.0


NULLS: Mapping[str, World] = {
    "noise": World(),
    "noise, 3 seeds": World(seeds=3),
    "noise, 3 clients of 8": World(clients=3, each=8),
    "noise, clients apart": World(apart=2.0),
    "the client's mean": World(apart=2.0, estimates="mean"),
    "the client's mean, 3 clients": World(clients=3, apart=2.0, estimates="mean"),
    "imputed from the other column, as anybody could": World(depends=0.8, estimates="imputed", public=60),
    "imputed from the other column, clients apart": World(depends=0.6, apart=1.0, estimates="imputed", public=60),
}

POWERS: Mapping[str, World] = {
    "with noise of half a deviation": World(estimates="with noise", noise=0.5),
    "with noise of half a deviation, 3 clients of 8": World(3, 8, estimates="with noise", noise=0.5),
    "a fifth is known, the rest is imputed": World(depends=0.6, estimates="imputed", public=60, leaking=0.2),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> NumberCase:
    """Draw numbers, the other column, and estimates of one run."""
    count = world.clients * world.each
    owners = np.repeat(np.arange(world.clients), world.each)
    means = world.apart * rng.normal(size=world.clients)
    numbers, other = _draw(world, count, rng)
    numbers = numbers + means[owners]
    estimates = {
        "noise": rng.normal(size=count),
        "mean": means[owners],
        # As another regression than the judge's would: with a little noise of its own.
        "imputed": world.depends * other + 0.05 * rng.normal(size=count),
        "with noise": numbers + world.noise * rng.normal(size=count),
    }[world.estimates]
    estimates = np.where(rng.random(count) < world.leaking, numbers, estimates)
    x = np.stack([np.zeros(count), other], axis=1).astype(np.float32)
    span = np.array([numbers.min(), numbers.max()])
    grid = np.linspace(*span, 11).astype(np.float32)[:, None]
    names = tuple(map(str, range(len(grid))))
    y = np.zeros(count, dtype=np.float32)
    partial_records = PartialRecords(x, y, owners.astype(str), (0,), grid, names, span=span)
    auxiliary = None
    if world.public:
        public = np.stack(_draw(world, world.public, rng), axis=1).astype(np.float32)
        auxiliary = Targets(public, np.zeros(world.public, dtype=np.float32))
    clients = tuple(np.arange(world.clients).astype(str).tolist())
    found = EstimatedNumbers(clients, (MAIN,), partial_records.fingerprint, estimates[None])
    values = np.zeros(count, dtype=np.int64)
    asked = Attributes(values, names, tuple(owners.astype(str).tolist()), "age", numbers=numbers)
    truth = truth_of(world.clients, nodes={}, attributes=asked)
    knowledge = Knowledge(partial=partial_records, auxiliary=auxiliary)
    return make_case(NumberCase, seed, Scores.of("attribute-number", found), truth, RECORD, knowledge)


def _draw(world: World, count: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw numbers and the other column, both with deviation 1 and correlated."""
    other = rng.normal(size=count)
    return world.depends * other + np.sqrt(1 - world.depends**2) * rng.normal(size=count), other


def judged(world: World, rng: np.random.Generator) -> list[Finding]:
    """Draw runs of a world, and judge them beside the regressions that take little time."""
    regressions = imputation._regressions

    def quick(seed: int) -> dict[str, Any]:
        return {name: model for name, model in regressions(seed).items() if name in ("mean", "ridge regression")}

    with patch.object(imputation, "_regressions", quick):
        return judge_drawn(draw_less(NumbersJudge, draws=499), draw_case, world, rng)


rows = partial(study, NULLS, POWERS, judged)
