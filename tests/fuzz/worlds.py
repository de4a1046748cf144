"""Small run folders, one for each attack, with everything in them that a folder may hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.truth import Attributes, note_node, write_truth
from fedattack.record import Record
from fedattack.record.folder import write_study
from fedattack.record.signature import make_key
from fedattack.report import write_report
from fedattack.runs.settings import default_settings
from tests.worlds.attacked import audit_folder
from tests.worlds.classified import write_classified_run
from tests.worlds.federation import write_predictions_run, write_property_run, write_run
from tests.worlds.inversion import write_inversion_run
from tests.worlds.private import write_private_run

STUDY = {
    "preset": "quickstart",
    "attacks": ["sia"],
    "settings": default_settings() | {"clients": 4, "rounds": 2, "device": "cpu"},
    "seeds": [0],
    "commands": ["fedattack audit quickstart --out run"],
    "runtime": "simulation",
    "options": {},
    "started": "2026-11-22T12:00:00+00:00",
}


@dataclass(frozen=True)
class World:
    """How a run folder is made, and which attacks it is for, with options that keep them short."""

    make: Callable[[Path], object]
    attacks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def attack(self, folder: Path) -> None:
        """Run the attacks on the folder, and keep their scores."""
        record, known = Record(folder / "record"), read_knowledge(folder / "knowledge")
        for name, options in self.attacks.items():
            attack = ATTACKS[name].with_options(options)
            attack.run(record, known, device="cpu").save(folder / "scores" / f"{name}.npz")

    def build(self, folder: Path) -> Path:
        """Make the folder, attack it and judge it."""
        self.make(folder)
        write_study(folder, STUDY)
        self.attack(folder)
        audit_folder(folder, device="cpu")
        write_report(folder)
        return folder


def _with_attribute(folder: Path) -> None:
    values = write_classified_run(folder, rounds=2, auxiliary=40)
    known = read_knowledge(folder / "knowledge")
    write_truth(
        folder / "truth",
        clients=["0", "1", "2"],
        classes=[str(label) for label in range(4)],
        counts=np.full((3, 4), 3),
        evaluation=(known.auxiliary.x, known.auxiliary.y),
        targets=known.asked(),
        attributes=Attributes(values, ("no", "yes"), tuple(known.partial.clients.tolist()), "sex"),
    )
    for client in range(3):
        note_node(folder / "truth", node=f"node{client}", client=str(client))


def _signed(folder: Path) -> None:
    key = folder.parent / "recorder.pem"
    if not key.exists():
        make_key(key)
    write_run(folder, key=key)


WORLDS: Mapping[str, World] = {
    "source": World(partial(write_run, origins=True), {"sia": {}}),
    "signed": World(_signed, {"sia": {}}),
    "gradients": World(partial(write_run, protocol="fedsgd"), {"sia": {}}),
    "predictions": World(write_predictions_run, {"sia": {}}),
    "sums": World(
        partial(write_property_run, rounds=3, clients=4, sampled=2, positives=(1,), auxiliary=120), {"prolin": {}}
    ),
    "attribute": World(_with_attribute, {"ara": {"steps": "3"}, "attribute-baselines": {}}),
    "group": World(
        partial(write_private_run, clients=6, rounds=2),
        {"private-attribute": {"clients": "30", "epochs": "1", "adversaries": "svm", "updates": "pre1"}},
    ),
    "pictures": World(partial(write_inversion_run, clients=2, rounds=1), {"inversion": {"iterations": "3"}}),
}
