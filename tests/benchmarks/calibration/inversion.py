"""False alarms and power of the judge of gradient inversion, on drawn examples and reconstructions.

In each null the reconstructions know at most the labels of the true examples, and how many there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Knowledge
from fedattack.audit.measures import Measure
from fedattack.audit.truth import HeldRecords
from fedattack.threats.inversion.case import InversionCase
from fedattack.threats.inversion.judge import InversionJudge
from tests.benchmarks.calibration.drawn import RECORD, judge_drawn, study, truth_of
from tests.threats.inversion.inverted import make_scores
from tests.worlds.cases import make_case

_CLASSES, _SHAPE = 5, (1, 6, 6)

# Two examples of a label are then about 20 dB apart, so that some are recognised by accident.
_SPREAD = 0.09

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def without_replay(judge: type[InversionJudge]) -> dict[str, Measure]:
    """Return a judge's measures but the replay, which needs the model."""
    return {metric: one for metric, one in judge.measures.items() if metric != "preflight"}


class QuickJudge(InversionJudge):
    """Draws fewer exchanges, so that a row takes seconds, and replays nothing, for which there is no model."""

    draws = 999
    measures = without_replay(InversionJudge)


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    guess
        What is reconstructed: ``random`` images, the ``mean`` image of the label, ``another`` example of the label that
        is drawn anew in each round, a ``lasting`` one that is the same in all rounds, the ``next`` client's example,
        or the ``truth`` with noise.
    noise
        Deviation of what is added.
    clients, each, rounds
        How many clients, examples of each, and rounds in which they are attacked.
    alike
        Whether all examples are of one label.
    unheld
        Examples that nobody trained on.
    seeds
        Runs that are judged together.
    """

    guess: str
    noise: float = 0.0
    clients: int = 20
    each: int = 1
    rounds: int = 1
    alike: bool = False
    unheld: int = 200
    seeds: int = 1


NULLS: Mapping[str, World] = {
    "random images, 20 targets": World("random"),
    "the label's mean with noise, 20 targets": World("mean", 0.02),
    "another example of the label, 20 targets": World("another"),
    "another example of the label, 5 targets": World("another", clients=5),
    "another example of the label, 1 target": World("another", clients=1),
    "another example of the label, 1 target, 4 seeds": World("another", clients=1, seeds=4),
    "the next client's example, one label, 20 targets": World("next", alike=True),
    "another example of the label, 5 batches of 4": World("another", clients=5, each=4),
    "random images, 5 batches of 6": World("random", clients=5, each=6),
    "another example of the label in each of 4 rounds, 5 targets": World("another", clients=5, rounds=4),
    "the same other example in 4 rounds, 5 targets": World("lasting", 0.02, clients=5, rounds=4),
    "the same other examples in 3 rounds, 5 batches of 4": World("lasting", 0.02, clients=5, each=4, rounds=3),
    "another example of the label, 10 others": World("another", clients=5, unheld=10),
}

POWERS: Mapping[str, World] = {
    "the truth with noise, 1 target": World("truth", 0.05, clients=1),
    "the truth with noise, 5 targets": World("truth", 0.05, clients=5),
    "the truth with much noise, 5 targets": World("truth", 0.12, clients=5),
    "the truth with noise, 5 batches of 4": World("truth", 0.05, clients=5, each=4),
}


def draw_case(world: World, seed: int, rng: np.random.Generator) -> InversionCase:
    """Draw examples, and what was made of them."""
    middles = rng.uniform(0.2, 0.8, size=(_CLASSES, *_SHAPE))

    def examples_of(labels: Labels) -> Images:
        spread = _SPREAD * rng.uniform(0.5, 1.5, size=(len(labels), 1, 1, 1))
        return np.asarray(middles[labels] + spread * rng.standard_normal((len(labels), *_SHAPE)), dtype=np.float32)

    count = world.clients * world.each
    labels = np.zeros(count, dtype=np.int64) if world.alike else rng.integers(_CLASSES, size=count)
    truth = examples_of(labels)
    unheld_labels = rng.integers(_CLASSES, size=world.unheld)
    lasting = examples_of(labels)

    def guess() -> Images:
        guesses = {
            "random": rng.random(truth.shape),
            "mean": middles[labels],
            "another": examples_of(labels),
            "lasting": lasting,
            "next": np.roll(truth, world.each, axis=0),
            "truth": truth,
        }
        noise = world.noise * rng.standard_normal(truth.shape)
        return np.asarray(guesses[world.guess] + noise, dtype=np.float32)

    images = [guess() for _ in range(world.rounds)]
    # The labels are those of the clients, but of any client.
    restored = rng.permutation(labels.reshape(world.clients, world.each)).ravel()
    evaluation = (examples_of(unheld_labels), unheld_labels)
    return case_of(world, np.concatenate(images), restored, HeldRecords(truth, labels, ()), evaluation, seed)


def case_of(
    world: Any,
    images: Images,
    restored: Labels,
    held: HeldRecords,
    evaluation: tuple[Images, Labels],
    seed: int,
    knowledge: Knowledge | None = None,
) -> InversionCase:
    """Make a case of reconstructions (rounds · clients · each, …), round by round and client by client.

    Of the world it takes how many ``clients``, examples of ``each`` and ``rounds`` there are.
    """
    names = [str(client) for client in range(world.clients)]
    scores = make_scores(images, np.tile(restored, world.rounds), names, each=world.each, rounds=world.rounds)
    truth = truth_of(
        world.clients,
        classes=tuple(str(label) for label in range(_CLASSES)),
        counts=np.full((world.clients, _CLASSES), world.each),
        evaluation=evaluation,
        records=HeldRecords(held.x, held.y, tuple(np.repeat(names, world.each).tolist())),
    )
    return make_case(InversionCase, seed, scores, truth, RECORD, knowledge)


judged = partial(judge_drawn, QuickJudge, draw_case)
rows = partial(study, NULLS, POWERS, judged)
