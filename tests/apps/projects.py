"""The projects beside this file, each as its owner wrote it, and the lines that observe it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.attacks import Targets
from fedattack.audit.truth import NOBODY, note_node, write_truth
from fedattack.record import Record

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLIENTS = 4
ROUNDS = 3


@dataclass(frozen=True)
class Project:
    """A project and its package; ``lines`` are added to its server file, each before a line that is there."""

    folder: str
    package: str
    lines: tuple[tuple[str, str], ...]

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(HERE / self.folder, to / "project", ignore=shutil.ignore_patterns("__pycache__")))

    def observed(self, to: Path, record: Path) -> Path:
        """Copy the project and add the lines, indented as the line that follows each."""
        project = self.copy(to)
        path = project / self.package / "server_app.py"
        text = path.read_text().splitlines()
        for before, line in self.lines:
            (place,) = (index for index, there in enumerate(text) if there.strip() == before)
            indent = text[place][: len(text[place]) - len(text[place].lstrip())]
            text.insert(place, indent + line.replace("RECORD", str(record)))
        path.write_text("\n".join(text) + "\n")
        return project


IMPORT_LEGACY = "from fedattack.observe import ObservedLegacyStrategy"

MESSAGE_API = Project(
    "message_api",
    "pytorchexample",
    (
        ("from flwr.app import ArrayRecord, ConfigRecord, Context", "from fedattack.observe import ObservedStrategy"),
        ("# Start strategy, run FedAvg for `num_rounds`", 'strategy = ObservedStrategy(strategy, "RECORD")'),
    ),
)
LEGACY = Project(
    "legacy",
    "digitsfl",
    (
        (
            "from flwr.common import Context, ndarrays_to_parameters",
            IMPORT_LEGACY,
        ),
        ("config = ServerConfig(num_rounds=num_rounds)", 'strategy = ObservedLegacyStrategy(strategy, "RECORD")'),
    ),
)
SECAGG = Project(
    "secagg",
    "secaggexample",
    (
        (
            "from flwr.common import Context, ndarrays_to_parameters",
            IMPORT_LEGACY,
        ),
        (
            "# Construct the LegacyContext",
            'strategy = ObservedLegacyStrategy(strategy, "RECORD", view="aggregate")',
        ),
    ),
)
SKLEARN = Project(
    "sklearn_model",
    "sklearnexample",
    (
        ("from flwr.app import ArrayRecord, Context", "from fedattack.observe import ObservedStrategy"),
        ("strategy.start(", 'strategy = ObservedStrategy(strategy, "RECORD")'),
    ),
)
BATCH_NORM = Project(
    "batch_norm",
    "hospitals",
    (
        ("from flwr.app import ArrayRecord, ConfigRecord, Context", "from fedattack.observe import ObservedStrategy"),
        ("strategy.start(", 'strategy = ObservedStrategy(strategy, "RECORD")'),
    ),
)
NUMPY = Project(
    "numpy_model",
    "numpyexample",
    (
        ("from flwr.app import Array, ArrayRecord, Context", "from fedattack.observe import ObservedStrategy"),
        ("strategy.start(", 'strategy = ObservedStrategy(strategy, "RECORD")'),
    ),
)
LIGHTNING = Project("lightning_model", "lightningexample", ())
OPACUS = Project("opacus_model", "privateexample", ())
XGBOOST = Project("xgboost_model", "xgboostexample", ())
# These need packages that fedattack itself does not.
TEXTS = Project("text_classifier", "textexample", ())
LORA = Project("lora_model", "loraexample", ())
PROJECTS = (MESSAGE_API, LEGACY, SECAGG, SKLEARN, BATCH_NORM, NUMPY)


def fedattack(*words: str, cwd: Path, code: int = 0, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command in a project's folder, which is on the import path by no other means than being there."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fedattack", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])},
    )
    assert done.returncode == code, done.stderr
    return done


def findings_of(audit: Path, cwd: Path) -> dict[str, dict[str, Any]]:
    done = fedattack("report", str(audit), "--trust", "--json", cwd=cwd)
    return {f"{item['attack']}.{item['metric']}": item for item in json.loads(done.stdout)}


def write_targets(path: Path, data: list[tuple[np.ndarray, np.ndarray]], unheld) -> tuple[Targets, list[str]]:
    """Write target records, those of the clients and as many of nobody, mixed; returns them and their owners."""
    x = np.concatenate([*[own for own, _ in data], unheld[0]]).astype(np.float32)
    y = np.concatenate([*[own for _, own in data], unheld[1]]).astype(np.int64)
    owners = [str(client) for client, (_, own) in enumerate(data) for _ in own] + [NOBODY] * len(unheld[1])
    order = np.random.default_rng(5).permutation(len(y))
    np.savez(path, x=x[order], y=y[order])
    return Targets(x[order], y[order]), [owners[index] for index in order]


def write_what_is_true(audit: Path, data, unheld, targets: Targets, owners: list[str]) -> None:
    """Write the truth; clients differ in their number of records, by which the server's nodes are told apart."""
    sizes = [len(own) for _, own in data]
    assert len(set(sizes)) == len(sizes)
    write_truth(
        audit / "truth",
        clients=[str(client) for client in range(len(data))],
        classes=[str(label) for label in range(10)],
        counts=np.array([np.bincount(own, minlength=10) for _, own in data]),
        owners=owners,
        evaluation=(np.asarray(unheld[0], dtype=np.float32), np.asarray(unheld[1], dtype=np.int64)),
        targets=targets.fingerprint,
    )
    for seen in Record(audit / "record").rounds[0].observations:
        # Observed from outside, a count under a name of the app's own is one more metric.
        count = seen.metrics["patients"] if seen.num_examples is None else seen.num_examples
        note_node(audit / "truth", node=seen.node, client=str(sizes.index(int(count))))
