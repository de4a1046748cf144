"""False alarms and power of the judge of sequences, on drawn sequences.

In each null the sequences that are found are drawn without a look at the client whose update they are said to come
from.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Scores
from fedattack.threats.sequences.dager import ReadSequences
from fedattack.threats.sequences.judge import SequencesCase, SequencesJudge, Tokens
from tests.benchmarks.calibration.drawn import RECORD, draw_less, judge_drawn, study, truth_of
from tests.worlds.cases import make_case


@dataclass(frozen=True)
class World:
    """What is drawn for one run.

    Attributes
    ----------
    clients, each, seeds
        How many clients, sequences of each, and runs that are judged together.
    vocabulary, longest
        How many tokens there are, of which each next one is rarer, and those of the longest sequence.
    topics
        Whether each client writes of tokens of its own more often.
    common
        Share of the sequences that are one of ten which everybody writes.
    found
        What is found of a client: ``new`` sequences, as those of another client would be; or the ``next`` client's.
    leaking
        Share of what is found that is the client's own.
    """

    clients: int = 8
    each: int = 4
    seeds: int = 1
    vocabulary: int = 200
    longest: int = 12
    topics: bool = False
    common: float = 0.0
    found: str = "new"
    leaking: float = 0.0


NULLS: Mapping[str, World] = {
    "new sequences": World(),
    "new sequences, 3 seeds": World(seeds=3),
    "the next client's sequences": World(found="next"),
    "new sequences of another topic": World(topics=True),
    "the next client's sequences, of its topic": World(topics=True, found="next"),
    "half are what everybody writes": World(common=0.5),
    "all are what everybody writes": World(common=1.0),
    "short sequences of 5 tokens": World(vocabulary=5, longest=3),
    "3 clients": World(clients=3),
    "3 clients, 3 seeds": World(clients=3, seeds=3),
    "50 clients of one sequence": World(clients=50, each=1),
}

POWERS: Mapping[str, World] = {
    "a tenth is the client's own": World(leaking=0.1),
    "a tenth is the client's own, short": World(vocabulary=5, longest=3, leaking=0.1),
    "a half is the client's own, short": World(vocabulary=5, longest=3, leaking=0.5),
    "all of 3 clients": World(clients=3, leaking=1.0),
    "all, half is what everybody writes": World(common=0.5, leaking=1.0),
}


class _Writer:
    """Writes sequences of clients."""

    def __init__(self, world: World, rng: np.random.Generator) -> None:
        self.world, self.rng = world, rng
        # Zipf: the n-th token is n times as rare as the first.
        self.common_rates = _shares(1 / np.arange(1, world.vocabulary + 1))
        self.common = [self._draw(self.common_rates) for _ in range(10)]

    def draw_topic(self) -> NDArray[np.float64]:
        """Draw how often a client writes each token."""
        if not self.world.topics:
            return self.common_rates
        return _shares(self.common_rates * self.rng.lognormal(0, 2, self.world.vocabulary))

    def write(self, rates: NDArray[np.float64]) -> list[Tokens]:
        """Write the sequences of one client."""
        written = []
        for _ in range(self.world.each):
            tokens = self._draw(rates)
            if self.rng.random() < self.world.common:
                tokens = self.common[self.rng.integers(len(self.common))]
            written.append(tokens)
        return written

    def _draw(self, rates: NDArray[np.float64]) -> Tokens:
        length = self.rng.integers(2, self.world.longest + 1)
        return tuple(self.rng.choice(self.world.vocabulary, size=length, p=rates).tolist())


def draw_case(world: World, seed: int, rng: np.random.Generator) -> SequencesCase:
    """Draw sequences of clients, and those that are found."""
    writer = _Writer(world, rng)
    true = [writer.write(writer.draw_topic()) for _ in range(world.clients)]
    found = [writer.write(writer.draw_topic()) for _ in range(world.clients)]
    if world.found == "next":
        found = [*true[1:], true[0]]
    for own, of_client in zip(true, found, strict=True):
        for index, tokens in enumerate(own):
            if rng.random() < world.leaking:
                of_client[index] = tokens
    names = np.arange(world.clients).astype(str)
    owners = np.repeat(names, world.each)
    answers = {**_join(true), "owners": owners, "whole": names}
    truth = truth_of(world.clients, answers={SequencesCase.ANSWERS: answers})
    read = ReadSequences(
        clients=tuple(truth.nodes),
        layers=("first", "second"),
        looks_ahead=False,
        rounds=(1,),
        targets="",
        whose=np.repeat(np.arange(world.clients), world.each),
        named=np.zeros(world.clients, dtype=np.int64),
        rank=np.zeros((world.clients, 2), dtype=np.int64),
        width=np.zeros((world.clients, 2), dtype=np.int64),
        seen=np.ones(world.clients, dtype=np.bool_),
        **_join(found),
    )
    return make_case(SequencesCase, seed, Scores.of("dager", read), truth, RECORD)


def _join(of_clients: list[list[Tokens]]) -> dict[str, NDArray[np.int64]]:
    """Put sequences one after another, as scores and truths have them."""
    sequences = [tokens for of_client in of_clients for tokens in of_client]
    return {"tokens": np.concatenate(sequences), "lengths": np.array(list(map(len, sequences)))}


def _shares(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(weights / weights.sum())


judged = partial(judge_drawn, draw_less(SequencesJudge), draw_case)
rows = partial(study, NULLS, POWERS, judged)
