"""Source inference beside the code of its authors (Hu et al. 2023).

Their class ``SIA`` takes the local models of one round and examples by owner. It evaluates every example under every
model, and returns the share of examples whose owner's model has the smallest loss.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.attacks import ATTACKS, Knowledge, Targets
from fedattack.audit.truth import Truth
from fedattack.record import Record
from fedattack.threats.source.case import credits_of
from tests.benchmarks.peers.getting import SIA_AUTHORS, PeerMissingError, load_file, quiet
from tests.benchmarks.peers.rows import Method, Row, missing_row
from tests.benchmarks.peers.runs import recorded

Models = list[dict[int, dict[str, Tensor]]]

TURNS = 2
"""How often ours and theirs take turns on each record."""

BATCH = 64
"""Examples that the authors' code evaluates at a time: their batch size in the paper."""


@dataclass(frozen=True)
class Case:
    """One seed's record, with the targets that one client holds alone.

    Attributes
    ----------
    truth
        Which client is which node.
    owner
        (n,): positions of the targets' owners among the truth's clients.
    """

    record: Record
    knowledge: Knowledge
    truth: Truth
    owner: NDArray[np.int64]

    @classmethod
    def of(cls, record: Record, knowledge: Knowledge, truth: Truth) -> "Case":
        """Keep the targets that one client holds."""
        held = np.flatnonzero(np.isin(truth.owners, truth.clients))
        owner = np.array([truth.clients.index(name) for name in truth.owners[held]], dtype=np.int64)
        asked: Targets = _given(knowledge.targets)
        known = replace(knowledge, targets=Targets(asked.x[held], asked.y[held]))
        return cls(record, known, truth, owner)

    @property
    def targets(self) -> Targets:
        """The targets."""
        targets: Targets = _given(self.knowledge.targets)
        return targets

    def models(self) -> Models:
        """Read the local models of each round, by client."""
        found = []
        for round_ in self.record:
            of_round = {}
            for reply in round_.observations:
                state = {name: torch.from_numpy(array.copy()) for name, array in (reply.arrays or {}).items()}
                of_round[self.client(reply.node)] = state
            found.append(of_round)
        return found

    def client(self, node: str) -> int:
        """Return the position of the client that is a node."""
        return self.truth.clients.index(self.truth.nodes.get(node, node))


def ours(case: Case) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the credit (n,) for each target: mean over the rounds by themselves, and for all rounds combined."""
    scores = ATTACKS["sia"].run(case.record, case.knowledge, device="cpu")
    columns = np.argsort([case.client(node) for node in scores.facts["clients"]])
    everyone = np.arange(len(case.owner))
    by_round = [credits_of(-losses[:, columns])[everyone, case.owner] for losses in scores.arrays["losses"]]
    combined = credits_of(scores.arrays["combined"][:, columns])[everyone, case.owner]
    return np.mean(by_round, axis=0), combined


def authors(code: Any, case: Case, models: Models) -> NDArray[np.float64]:
    """Return the share (rounds,) of targets whose owner the authors' code names in each round."""
    by_owner = {int(client): np.flatnonzero(case.owner == client).tolist() for client in np.unique(case.owner)}
    y = case.targets.y
    examples = [(torch.from_numpy(x), int(label)) for x, label in zip(case.targets.x, y, strict=True)]
    arguments = argparse.Namespace(local_bs=BATCH, gpu=-1, device=torch.device("cpu"))
    network = _given(case.knowledge.model).build()
    rates = []
    for of_round in models:
        attack = code.SIA(args=arguments, w_locals=of_round, dataset=examples, dict_sia_users=by_owner)
        with quiet():
            rates.append(float(attack.attack(network)) / 100)
    return np.array(rates)


def settings(mnist: Path | None) -> dict[str, tuple[str, ...]]:
    """Return changes to the preset ``sia-fedavg`` by name."""
    found: dict[str, tuple[str, ...]] = {"digits, 20 rounds": ()}
    if mnist is not None:
        found["MNIST-10k, 5 rounds"] = (f"dataset={mnist}", "rounds=5")
    return found


def rows(peers: Path | None, mnist: Path | None, seeds: Sequence[int]) -> Iterator[Row]:
    """Attack the same models by both, in turns."""
    code, missing = None, ""
    try:
        code = load_file(SIA_AUTHORS.find(peers) / SIA_AUTHORS.files[0])
    except PeerMissingError as reason:
        missing = str(reason)
    for name, changes in settings(mnist).items():
        budget = "each target under each model once"
        each, together = Method("ours, round by round", budget), Method("ours, all rounds combined", budget)
        theirs = Method(f"{SIA_AUTHORS.name}, round by round", budget)
        for seed in seeds:
            with recorded("sia-fedavg", changes, seed) as run:
                case = Case.of(*run)
                for _ in range(TURNS):
                    alone, combined = each.run(ours, case)
                    if code is not None:
                        # Reading the models from the disk is part of our time, and not of theirs.
                        models = case.models()
                        rates = theirs.run(authors, code, case, models)
                each.right.append(alone)
                together.right.append(combined)
                if code is not None:
                    theirs.right.append(np.full(len(case.owner), rates.mean()))
        setting = f"source inference, {name}"
        yield each.row(setting, theirs)
        yield together.row(setting, theirs)
        yield missing_row(setting, theirs.name, missing) if missing else theirs.row(setting)


def _given(value: Any) -> Any:
    if value is None:
        raise AssertionError("the preset has it")
    return value
