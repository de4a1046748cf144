"""Made-up federations, and what witnesses would have noted of them."""

import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context, RecordDict
from torch import nn

from fedattack.apps.auditing import Attacked, attack, list_trusted, pose_run
from fedattack.apps.choosing import choose
from fedattack.apps.holding import hold
from fedattack.apps.posing import Posed
from fedattack.apps.posing import pose as pose_held
from fedattack.apps.questions import NOTHING_BESIDES, Questions
from fedattack.apps.server import WitnessedServerApp
from fedattack.apps.witnessing import witness_of
from fedattack.audit.opened import open_records
from fedattack.learning import build_model, train_local
from fedattack.observe import ObservedServerApp
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import Part, RunFolder, write_study
from fedattack.runs.asked import known_to
from fedattack.runs.pipeline import choose_attacks
from fedattack.runs.watch import Watch
from fedattack.witness import (
    SERVER,
    SeenExamples,
    Witness,
    WitnessedClientApp,
    WitnessedModel,
    WitnessedTraining,
    sources,
)
from tests.worlds.local_grid import LocalGrid

FEATURES, CLASSES = 6, 4
MODEL = WitnessedModel(
    "torch.nn:Linear", {"in_features": FEATURES, "out_features": CLASSES}, (FEATURES,), CLASSES, "cross-entropy", ""
)
TRAINING = WitnessedTraining("SGD", 0.1, 0.9, 0.0, (8, 3), 12, 3.0, False)


def pool(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """All examples there are, each different."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, FEATURES)).astype(np.float32), rng.integers(CLASSES, size=count)


def hash_of(x: np.ndarray) -> bytes:
    return hashlib.blake2b(x.tobytes(), digest_size=16, key=b"seed").digest()


def seen(x: np.ndarray, y: np.ndarray, keep: int = 10**6) -> SeenExamples:
    """What is kept of some examples, each of which may be there twice."""
    if not len(x):
        return SeenExamples.none()
    rows = {hash_of(example): row for row, example in enumerate(x)}
    kept = sorted(rows)[:keep]
    picked = [rows[key] for key in kept]
    hashes = np.array([list(key) for key in kept], dtype=np.uint8)
    counts = Counter(int(y[row]) for row in rows.values() if y[row] >= 0) if y.dtype.kind == "i" else {}
    return SeenExamples(x[picked], y[picked], hashes, len(rows), dict(counts))


def witness(client: str, trained, evaluated=None, *, keep: int = 10**6, node: str = "", **facts) -> Witness:
    nothing = np.zeros((0, FEATURES), np.float32), np.zeros(0, np.int64)
    facts = {"model": MODEL, "training": TRAINING} | facts
    return Witness(node or f"10{client}", client, seen(*trained, keep), seen(*(evaluated or nothing), keep), **facts)


def server(evaluated, **facts) -> Witness:
    return Witness(SERVER, "", SeenExamples.none(), seen(*evaluated), **facts)


def write_record(folder, nodes, rounds: int = 2, **options) -> None:
    """A record in which each node sends a model of its own."""
    rng = np.random.default_rng(1)
    state = build_model(MODEL.spec, input_shape=(FEATURES,), classes=CLASSES, seed=0, arguments=MODEL.arguments)
    common = {name: value.numpy() for name, value in state.state_dict().items()}
    writer = RecordWriter(folder, **options)
    for number in range(1, rounds + 1):
        replies = []
        for node in nodes:
            moved = {name: (a + rng.normal(size=a.shape)).astype(np.float32) for name, a in common.items()}
            replies.append(Reply(node, "ok", moved, 10))
        writer.write(Exchange(number, common, replies))
    writer.close()


def linear() -> nn.Module:
    """The model of these federations, as its owner would name it."""
    return nn.Linear(FEATURES, CLASSES)


class Filling(nn.Linear):
    """A linear layer that takes 0 for what is missing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nan_to_num(x))


def train_record(
    folder, data, *, model: WitnessedModel, training, rounds: int, share: float = 1.0, seed: int = 0
) -> None:
    """A record of real training: FedAvg over ``data``, examples and labels by client, a share of them in each round."""
    rng = np.random.default_rng((seed, 7))
    known = {"input_shape": model.input_shape, "classes": model.classes, "arguments": model.arguments}
    module = build_model(model.spec, seed=seed, **known)
    common = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    writer = RecordWriter(folder)
    for number in range(1, rounds + 1):
        taking_part = [name for name in data if rng.random() < share] or [*data][:1]
        replies = []
        for name in taking_part:
            x, y = data[name]
            module.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in common.items()})
            train_local(module, x, y, **vars(training), loss=model.loss, seed=int(rng.integers(2**31)))
            state = {key: value.numpy().copy() for key, value in module.state_dict().items()}
            replies.append(Reply(f"10{name}", "ok", state, len(y)))
        writer.write(Exchange(number, common, replies))
        weights = np.array([reply.num_examples for reply in replies], dtype=np.float64)
        mean = {}
        for key in common:
            stacked = np.stack([reply.arrays[key] for reply in replies])
            mean[key] = np.average(stacked, axis=0, weights=weights).astype(np.float32)
        common = mean
    writer.close(final=common)


def pose(part: Part, witnesses, *, model=None, loss=None, asked: Questions = NOTHING_BESIDES, **options) -> Posed:
    """Hold and pose what was witnessed of a run."""
    holding = hold(witnesses, Record(part.record))
    return pose_held(part, holding, replace(asked, model=model, loss=loss), **options)


def pose_all(parts, *, app=None, **asked) -> list[Posed]:
    """Witness, hold and pose runs."""
    return [pose_run(part, asked.get("asked") or Questions(**asked), app) for part in parts]


def attack_all(parts, posed, make=lambda names: choose_attacks(names, {}), watch: Watch | None = None) -> Attacked:
    """Choose and attack."""
    watch, trusted = watch or Watch(), list_trusted(posed)
    folder = RunFolder(parts[0].folder)
    runs = open_records(folder, lambda part: known_to(part, trusted), truth=True)
    return attack(folder, runs, posed, choose(runs, posed, make, watch), "cpu", watch)


@contextmanager
def importable_app(where: Path, module: str, text: str) -> Iterator[Path]:
    """Write an app of one module into a folder, from which it can be imported meanwhile."""
    (where / f"{module}.py").write_text(text)
    (where / "pyproject.toml").write_text(
        f'[tool.flwr.app.components]\nserverapp = "{module}:server"\nclientapp = "{module}:client"\n'
    )
    sys.path.insert(0, str(where))
    yield where
    sys.path.remove(str(where))
    sys.modules.pop(module, None)


def run_here(part: Part, server, client, config, clients: int) -> None:
    """Run apps in this process, witnessed and observed, as the one run of a folder."""
    grid = LocalGrid(WitnessedClientApp(client, witness_of(part)), clients)
    grid.configure(config)
    context = Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config=dict(config))
    try:
        ObservedServerApp(WitnessedServerApp(server, witness_of(part)), part.record)(grid, context)
    finally:
        sources.remove()
    write_study(part.folder, {"commands": ["fedattack audit ."], "seeds": [0]})
