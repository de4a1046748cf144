"""False alarms and power of the judge of labels, on drawn counts.

In each null the counts are drawn without a look at the client whose update they are said to come from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedattack.attacks import Scores
from fedattack.threats.labels.judge import LabelsCase, LabelsJudge
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.worlds.cases import make_case


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, classes, examples, seeds
        How many clients, labels, examples of a client, and runs that are judged together.
    alpha
        Of the Dirichlet distribution of a client's labels: small where clients differ much.
    leaking
        Share of a client's counts that are its own; the rest are those of another draw.
    sizes
        Whether clients hold different numbers of examples, which the server sees.
    """

    clients: int = 10
    classes: int = 10
    examples: int = 60
    seeds: int = 1
    alpha: float = 0.5
    leaking: float = 0.0
    sizes: bool = False


NULLS: Mapping[str, World] = {
    "counts of other clients": World(),
    "counts of other clients, 3 seeds": World(seeds=3),
    "clients that hardly differ": World(alpha=100.0),
    "clients of one label": World(alpha=0.01),
    "clients of other sizes": World(sizes=True),
    "3 clients": World(clients=3),
    "3 clients, 3 seeds": World(clients=3, seeds=3),
    "100 labels": World(classes=100),
}

POWERS: Mapping[str, World] = {
    "a tenth is the client's own": World(leaking=0.1),
    "a tenth is the client's own, 3 seeds": World(leaking=0.1, seeds=3),
    "a half is the client's own": World(leaking=0.5),
    "all of 5 clients": World(clients=5, leaking=1.0),
    "all of clients that hardly differ": World(alpha=100.0, leaking=1.0),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> LabelsCase:
    """Draw labels and counts of one run."""
    sizes = np.full(world.clients, world.examples)
    if world.sizes:
        sizes = rng.integers(world.examples // 4, 2 * world.examples, size=world.clients)
    alphas = np.full(world.classes, world.alpha)
    true = np.stack([rng.multinomial(size, rng.dirichlet(alphas)) for size in sizes])
    others = np.stack([rng.multinomial(size, rng.dirichlet(alphas)) for size in sizes])
    counts = np.round(world.leaking * true + (1 - world.leaking) * others)
    truth = truth_of(world.clients, classes=tuple(map(str, range(world.classes))), counts=true)
    facts = {
        "clients": [*truth.nodes],
        "classes": world.classes,
        "rules": ["solved"],
        "rounds": [1],
        "drawn": False,
        "targets": "",
    }
    arrays = {"counts": counts[None], "prior": np.full(world.classes, 1 / world.classes)}
    return make_case(LabelsCase, seed, Scores("labels", arrays, facts), truth, RECORD)


judged = partial(judge_drawn, draw_less(LabelsJudge), draw_case)
rows = partial(study, NULLS, POWERS, judged)
