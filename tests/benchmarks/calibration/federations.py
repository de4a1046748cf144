"""False alarms of whole reports, measured on small federations that are trained in this process.

Each run is trained, attacked and judged as a user's is. Then the truth is replaced by one under which there is nothing
to find, and the same scores are judged again: what is then called a leak is a false alarm.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.finding import ERROR, LEAK, Finding
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import Run, open_runs
from fedattack.audit.truth import NOBODY, SEVERAL, ClientAttribute, Truth
from fedattack.record import Record
from fedattack.record.folder import RunFolder
from tests.benchmarks.calibration.drawn import share
from tests.benchmarks.calibration.source import BY_CLIENTS
from tests.worlds.reference import run_preset

Nothing = Callable[[Run, np.random.Generator], Run]
"""Replaces what is true, or what was scored, so that there is nothing to find."""


@dataclass(frozen=True)
class World:
    """Small runs, and the nulls that are made of them.

    Attributes
    ----------
    preset, changes, attacks
        What is run, and by which attacks with which options it is attacked.
    nulls
        By name.
    told
        By null: findings that it leaves something to find. Who holds which labels is told by examples whose owners
        were drawn by their labels.
    """

    preset: str
    changes: tuple[str, ...]
    attacks: dict[str, dict[str, str]]
    nulls: dict[str, Nothing]
    told: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def counts(self, null: str, finding: str) -> bool:
        """Whether the finding finds nothing under the null."""
        return finding not in self.told.get(null, ())


def _dealt(evidence: Run, owners_of: Callable[[np.ndarray, Truth], np.ndarray], count: int = 0) -> Run:
    """Say that some clients hold targets that nobody holds; the real owners' targets are left out."""
    truth = _truth_of(evidence)
    nobody = np.flatnonzero(truth.owners == NOBODY)
    pretended = nobody[: count or len(nobody) // 3]
    owners = np.where(truth.owners == NOBODY, NOBODY, SEVERAL).astype(truth.owners.dtype)
    owners[pretended] = owners_of(pretended, truth)
    return replace(evidence, truth=replace(truth, owners=owners, shared={}))


def _truth_of(evidence: Run) -> Truth:
    if evidence.truth is None:
        raise AssertionError("the truth was written")
    return evidence.truth


def owners_at_random(evidence: Run, draw: np.random.Generator) -> Run:
    """Targets that nobody holds, dealt to clients at random."""
    return _dealt(evidence, lambda rows, truth: draw.choice(truth.clients, size=len(rows)))


def owners_of_few(evidence: Run, draw: np.random.Generator) -> Run:
    """Twenty of them."""
    return _dealt(evidence, lambda rows, truth: draw.choice(truth.clients, size=len(rows)), count=20)


def owners_by_label(evidence: Run, draw: np.random.Generator) -> Run:
    """Targets that nobody holds, dealt as their labels are held: only labels tell."""
    labels = evidence.knowledge.targets.y if evidence.knowledge.targets else np.zeros(0, dtype=int)

    def owners(rows: np.ndarray, truth: Truth) -> np.ndarray:
        shares = (truth.counts + 1e-9) / (truth.counts + 1e-9).sum(axis=0)
        return np.array([draw.choice(truth.clients, p=shares[:, labels[row]]) for row in rows])

    return _dealt(evidence, owners)


def models_know_nothing(evidence: Run, draw: np.random.Generator) -> Run:
    """Each target gets the scores of another one: clients still differ, but not by what they hold."""
    truth = _truth_of(evidence)
    order = draw.permutation(len(truth.owners))
    scores = {}
    for name, one in evidence.scores.items():
        arrays = {}
        for key, values in one.arrays.items():
            axis = [place for place, size in enumerate(values.shape) if size == len(order)]
            moved = values if key == "labels" or not axis else np.take(values, order, axis=axis[0])
            arrays[key] = moved
        scores[name] = replace(one, arrays=arrays)
    return replace(evidence, scores=scores)


def property_at_random(evidence: Run, draw: np.random.Generator) -> Run:
    """As many clients have the property, any of them."""
    truth = _truth_of(evidence)
    if truth.positives is None:
        raise AssertionError("a run about a property")
    order = draw.permutation(truth.positives.shape[1])
    return replace(evidence, truth=replace(truth, positives=truth.positives[:, order]))


def values_at_random(evidence: Run, draw: np.random.Generator) -> Run:
    """Clients have each other's values of a private attribute."""
    truth = _truth_of(evidence)
    private = {}
    for name, held in truth.private.items():
        private[name] = ClientAttribute(tuple(draw.permutation(held.values).tolist()), held.names)
    return replace(evidence, truth=replace(truth, private=private))


def other_examples(evidence: Run, draw: np.random.Generator) -> Run:
    """Clients trained on examples of the same labels that nobody holds."""
    truth = _truth_of(evidence)
    if truth.records is None:
        raise AssertionError("a run of clients with few examples")
    unheld, labels = truth.evaluation
    x = truth.records.x.copy()
    for place, label in enumerate(truth.records.y):
        x[place] = unheld[draw.choice(np.flatnonzero(labels == label))]
    return replace(evidence, truth=replace(truth, records=replace(truth.records, x=x)))


def as_it_is(evidence: Run, draw: np.random.Generator) -> Run:
    """The run itself is a null."""
    del draw
    return evidence


_TARGETS: dict[str, Nothing] = {
    "owners at random": owners_at_random,
    "labels alone": owners_by_label,
    "models that know nothing": models_know_nothing,
}
_OF_TARGETS: dict[str, dict[str, str]] = {"sia": {}, "membership": {"shadows": "0"}}
_LABELS_TELL = {"labels alone": tuple(f"sia.{metric}" for metric in BY_CLIENTS)}
_SMALL = ("nulls=900", "auxiliary=0", "rounds=3", "local-epochs=3", "records=40", "batch-size=16")
_FEW_LABELS = ("records=0", "nulls=350", "clients=8", "partition=dirichlet", "alpha=0.1")

WORLDS: dict[str, World] = {
    "8 clients": World(
        "membership", (*_SMALL, "clients=8"), _OF_TARGETS, {**_TARGETS, "20 targets": owners_of_few}, _LABELS_TELL
    ),
    "8 clients of few labels": World("membership", (*_SMALL, *_FEW_LABELS), _OF_TARGETS, _TARGETS, _LABELS_TELL),
    "3 clients": World("membership", (*_SMALL, "clients=3"), _OF_TARGETS, _TARGETS, _LABELS_TELL),
    "12 clients, a third a round": World(
        "membership", (*_SMALL, "clients=12", "fraction=0.34"), _OF_TARGETS, _TARGETS, _LABELS_TELL
    ),
    "20 clients, some invert their update": World(
        "prolin-inversion",
        ("secagg=false", "clients=20", "rounds=15", "fraction=0.3"),
        {"prolin": {}},
        {"the property of any clients": property_at_random},
    ),
    "30 clients of one colour each": World(
        "private-attribute",
        ("rounds=4",),
        {"private-attribute": {"epochs": "4", "clients": "60"}},
        {"the colours of any clients": values_at_random},
    ),
    "6 clients, a column shuffled": World(
        "aia-model",
        ("permute-sensitive=true", "clients=6", "rounds=40"),
        {"aia": {}, "attribute-baselines": {}},
        {"clients trained on a shuffled column": as_it_is},
    ),
    "5 clients of one image": World(
        "inversion",
        ("rounds=1",),
        {"inversion": {"iterations": "60"}},
        {"other images of the same labels": other_examples},
        {"other images of the same labels": ("inversion.labels",)},
    ),
}


def seeds_of(world: World, seeds: Iterator[int]) -> Iterator[Run]:
    """Train, attack, and read one run a seed."""
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            run_preset(world.preset, world.changes, seed, folder)
            knowledge = read_knowledge(folder / "knowledge")
            for name, options in world.attacks.items():
                attack = ATTACKS[name].with_options(options)
                scores = attack.run(Record(folder / "record"), knowledge, seed=seed, device="cpu")
                scores.save(folder / "scores" / f"{name}.npz")
            (evidence,) = open_runs(RunFolder(folder))
            yield evidence


def rows(repetitions: int, seed: int, worlds: Sequence[str] = tuple(WORLDS)) -> Iterator[dict[str, Any]]:
    """Yield the false alarms of each finding, by its own test, and of whole reports.

    Parameters
    ----------
    repetitions
        Runs of each world.
    seed
        Of the first run.
    worlds
        Names in :data:`WORLDS`.
    """
    logging.getLogger("flwr").setLevel(logging.WARNING)
    for name in worlds:
        world = WORLDS[name]
        alarms: dict[str, Counter[str]] = {null: Counter() for null in world.nulls}
        tested: dict[str, Counter[str]] = {null: Counter() for null in world.nulls}
        for evidence in seeds_of(world, iter(range(seed, seed + repetitions))):
            for index, (null, nothing) in enumerate(world.nulls.items()):
                draw = np.random.default_rng((evidence.seed, index))
                report = judge_attacks([nothing(evidence, draw)], setting={}, provenance={})
                silent = [finding for finding in report if world.counts(null, finding.name)]
                alarms[null].update(_alarms(silent))
                tested[null].update([finding.name for finding in silent if finding.p is not None] + [REPORT])
        for null in world.nulls:
            for finding, count in tested[null].items():
                yield {"world": name, "null": null, "finding": finding, **share(alarms[null][finding], count)}


REPORT = "any finding of a report"
"""The row of whole reports: what they call a leak after the correction over all findings."""


def _alarms(report: Sequence[Finding]) -> list[str]:
    """Name the findings whose own test is an alarm, and the report if it shows a leak."""
    names = [finding.name for finding in report if finding.p is not None and finding.p <= ERROR]
    if any(finding.verdict == LEAK for finding in report):
        names.append(REPORT)
    return names
