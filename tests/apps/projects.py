"""The toy app beside this file, in the forms that apps of Flower have, and the lines that observe it."""

import atexit
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tomli_w

from fedattack.attacks import Targets
from fedattack.audit.truth import NOBODY, note_node, write_truth
from fedattack.record import Record

TOY = Path(__file__).parent / "toy"
ROOT = TOY.parents[2]
CLIENTS = 4
ROUNDS = 3


@dataclass(eq=False)
class Project:
    """A folder with an app, and its package; ``lines`` are added to its server file, each before a line there."""

    folder: str
    package: str
    lines: tuple[tuple[str, str], ...] = ()

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to / "project", ignore=shutil.ignore_patterns("__pycache__")))

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
BEFORE_LEGACY = "from flwr.common import Context, ndarrays_to_parameters"
LINES = {
    "server_app": (
        ("from flwr.app import ConfigRecord, Context", "from fedattack.observe import ObservedStrategy"),
        ("strategy.start(", 'strategy = ObservedStrategy(strategy, "RECORD")'),
    ),
    "legacy_server_app": (
        (BEFORE_LEGACY, IMPORT_LEGACY),
        (
            "return ServerAppComponents(strategy=strategy, config=config)",
            'strategy = ObservedLegacyStrategy(strategy, "RECORD")',
        ),
    ),
    "secagg_server_app": (
        (BEFORE_LEGACY, IMPORT_LEGACY),
        (
            "context = LegacyContext(context=context, config=config, strategy=strategy)",
            'strategy = ObservedLegacyStrategy(strategy, "RECORD", view="aggregate")',
        ),
    ),
}

CONFIG = {
    "num-server-rounds": ROUNDS,
    "fraction-evaluate": 1.0,
    "learning-rate": 0.1,
    "local-epochs": 10,
    "batch-size": 10,
    "momentum": 0.0,
}


class Toy(Project):
    """The toy app in one form: what of the folder ``toy`` it has, its package, and its run config.

    ``words`` are put in the places of others in its server and clients.
    """

    def __init__(
        self, name, package, task="", *, files=(), server="server_app", client="client_app", words=None, **config
    ):
        super().__init__(name, package, LINES.get(server, ()))
        sources = {"server_app": server, "client_app": client, **{file: file for file in files}}
        if task:
            sources["task"] = f"task_{task}"
            config = CONFIG | config
        self._sources = sources
        self._words = words or {}
        self.config = {key.replace("_", "-"): value for key, value in config.items()}

    def copy(self, to: Path) -> Path:
        project = to / "project"
        (project / self.package).mkdir(parents=True)
        (project / self.package / "__init__.py").write_text("")
        for name, source in self._sources.items():
            text = (TOY / f"{source}.py").read_text().replace("toyapp", self.package)
            for before, after in self._words.items():
                text = text.replace(before, after)
            (project / self.package / f"{name}.py").write_text(text)
        (project / "pyproject.toml").write_text(tomli_w.dumps(self._declare()))
        return project

    def _declare(self) -> dict[str, Any]:
        components = {f"{part}app": f"{self.package}.{part}_app:app" for part in ("server", "client")}
        return {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": self.package,
                "version": "1.0.0",
                "description": "A toy app",
                "license": "Apache-2.0",
                "dependencies": ["flwr>=1.23"],
            },
            "tool": {
                "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
                "flwr": {"app": {"publisher": "somebody", "components": components, "config": self.config}},
            },
        }

    @cached_property
    def where(self) -> Path:
        """A copy that lasts as long as this process."""
        folder = TemporaryDirectory(prefix="toy-")
        atexit.register(folder.cleanup)
        return self.copy(Path(folder.name))


STATES = ("states",)
MESSAGE_API = Toy(
    "message_api", "pytorchexample", "cnn", files=STATES, fraction_evaluate=0.5, batch_size=16, momentum=0.9
)
LEGACY = Toy(
    *("legacy", "digitsfl", "mlp"),
    files=("digits",),
    server="legacy_server_app",
    client="legacy_client_app",
    fraction_fit=1.0,
    learning_rate=0.2,
    momentum=0.9,
)
SECAGG = Toy(
    *("secagg", "secaggexample", "linear"),
    files=("digits",),
    server="secagg_server_app",
    client="legacy_client_app",
    fraction_fit=0.75,
    learning_rate=0.05,
    local_epochs=1,
    batch_size=25,
)
SKLEARN = Toy("sklearn_model", "sklearnexample", "sklearn", files=("digits",), local_epochs=5)
BATCH_NORM = Toy(
    *("batch_norm", "hospitals", "norm"),
    files=("digits", *STATES),
    words={'"arrays"': '"model"', '"config"': '"settings"', '"metrics"': '"report"', '"num-examples"': '"patients"'},
    fraction_evaluate=0.0,
    local_epochs=8,
    batch_size=15,
    momentum=0.9,
)
NUMPY = Toy(
    "numpy_model",
    "numpyexample",
    "numpy",
    num_clients=CLIENTS,
    fraction_evaluate=0.0,
    learning_rate=0.5,
    local_epochs=20,
)
# These need packages that fedattack itself does not.
LIGHTNING = Toy("lightning_model", "lightningexample", "lightning", files=("digits", *STATES))
OPACUS = Toy("opacus_model", "privateexample", "opacus", files=("digits", *STATES), learning_rate=0.5, local_epochs=4)
XGBOOST = Toy(
    *("xgboost_model", "xgboostexample", "xgboost"),
    words={"FedAvg": "FedXgbBagging"},
    fraction_evaluate=0.0,
    learning_rate=0.3,
)
TEXTS = Toy(
    *("text_classifier", "textexample", "texts"),
    files=("texts", *STATES),
    num_server_rounds=2,
    local_epochs=12,
    learning_rate=0.005,
    batch_size=8,
    optimizer="AdamW",
)
LORA = Toy(
    *("lora_model", "loraexample", "lora"),
    files=("texts",),
    num_server_rounds=2,
    local_epochs=20,
    learning_rate=0.02,
    batch_size=8,
    optimizer="AdamW",
)
# The app in NumPy and its twin in PyTorch, with one step of each client in a round.
TWINS = [
    Toy(name, name, task, num_clients=6, fraction_evaluate=0.0, learning_rate=0.5, local_epochs=1)
    for name, task in (("numpy_twin", "numpy"), ("torch_twin", "twin"))
]
# Clients of many kinds, of which nobody knows the loss.
ASKED = Toy("asked_app", "asked_app", server="asked_server_app", client="asked_client_app", kind="classifier")
# Few rows of a table at each client.
TABLE = Toy(
    *("table_model", "tableexample", "table"),
    files=("digits", *STATES),
    num_server_rounds=2,
    num_clients=6,
    local_epochs=3,
    batch_size=100,
)
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
