"""What recording costs: time per round, bytes on disk, memory; with against without in one and the same Flower run.

``python -m tests.benchmarks.recording`` runs a real ``flwr run`` on Ray, whose ServerApp trains blocks of rounds in
turn with and without the observer, and with what makes a record smaller:

- ``at-once``: 1M parameters, 10 clients a round, which answer at once, the worst case for the recorder's share;
- ``25-steps``: the same, but clients take 25 steps of SGD, which is still little;
- ``resnet-18``: 11.2M parameters with batch norm, 4 clients that take ten steps on 32 images of 3 x 32 x 32;
- ``resnet-18-short``: the same, but clients take two steps;
- ``resnet-18-epoch``: the same, but clients pass once over 500 images, which is a realistic round.

What the thread that writes takes of a processor stands beside the time of a round, which is measured from outside.

Names of cases as arguments run these alone.
"""

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedattack.runs.simulator import Simulator

WHOLE: dict[str, dict[str, Any]] = {"whole": {}}
"""By name, the options of the observers that are compared."""


@dataclass(frozen=True)
class Case:
    """Federations that are compared: blocks of rounds, each without an observer and with each kind of one."""

    title: str
    clients: int
    steps: int
    model: str = "mlp"
    blocks: int = 8
    rounds: int = 8
    kinds: dict[str, dict[str, Any]] = field(default_factory=lambda: WHOLE)


CASES = {
    "at-once": Case(
        "clients that answer at once",
        clients=10,
        steps=0,
        kinds={
            **WHOLE,
            "every=4": {"every": 4},
            "clients=0.2": {"clients": 0.2},
        },
    ),
    "25-steps": Case("clients that take 25 steps", clients=10, steps=25),
    "resnet-18": Case(
        "ResNet-18, clients that take ten steps", clients=4, steps=10, model="resnet", blocks=4, rounds=5
    ),
    "resnet-18-short": Case(
        "ResNet-18, clients that take two steps",
        clients=4,
        steps=2,
        model="resnet",
        blocks=4,
        rounds=5,
        kinds={**WHOLE, "every=5": {"every": 5}},
    ),
    "resnet-18-epoch": Case(
        "ResNet-18, clients that pass once over 500 images", clients=4, steps=16, model="resnet", blocks=4, rounds=5
    ),
}

PYPROJECT = """
[project]
name = "recordingcost"
version = "1.0.0"
description = "benchmark"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedattack"
fab-include = ["*.py"]

[tool.flwr.app.components]
serverapp = "server:app"
clientapp = "client:app"

[tool.flwr.app.config]
out = ""
steps = 0
blocks = 0
rounds = 0
clients = 0
model = ""
kinds = ""
"""

MODEL = """
from torch import nn

def made(name):
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 1258), nn.ReLU(), nn.Linear(1258, 10))
    from torchvision.models import resnet18
    return resnet18(num_classes=10)

SHAPES = {"mlp": (64, (784,)), "resnet": (32, (3, 32, 32))}
"""

CLIENT = """
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from model import SHAPES, made

app = ClientApp()

@app.train()
def train(message, context):
    arrays = message.content["arrays"]
    steps = int(context.run_config["steps"])
    if steps:
        model = made(context.run_config["model"])
        model.load_state_dict(arrays.to_torch_state_dict())
        batch, shape = SHAPES[context.run_config["model"]]
        for step in range(steps):
            x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        arrays = ArrayRecord(model.state_dict())
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 10 + message.metadata.dst_node_id % 7})}
    return Message(RecordDict(content), reply_to=message)
"""

SERVER = """
import json
import os
import shutil
import time
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedattack.observe import ObservedStrategy
from fedattack.record import RecordWriter
from model import made

app = ServerApp()

class Timed(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        self.times.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

write, spent = RecordWriter.write, []

def timed_write(writer, exchange):
    began = time.thread_time()
    write(writer, exchange)
    spent.append(time.thread_time() - began)

RecordWriter.write = timed_write

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

@app.main()
def main(grid, context):
    config = context.run_config
    n, rounds = int(config["clients"]), int(config["rounds"])
    arrays = ArrayRecord(made(config["model"]).state_dict())
    out, observers = Path(config["out"]), json.loads(config["kinds"])
    kinds = ["plain", *observers]
    times, memory = {kind: [] for kind in kinds}, dict.fromkeys(kinds, 0)
    processor = {kind: [] for kind in kinds}
    written, recorded = dict.fromkeys(kinds, 0), dict.fromkeys(kinds, 0)
    for block in range(int(config["blocks"])):
        # Which comes first changes, so that a machine that slows down harms all alike.
        for kind in kinds[::-1] if block % 2 else kinds:
            before = rss()
            strategy = inner = Timed(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
            inner.times = []
            record = out / "record"
            if kind != "plain":
                strategy = ObservedStrategy(inner, record, **observers[kind])
            strategy.start(grid, arrays, num_rounds=rounds)
            marks = inner.times
            processor[kind] += spent
            spent.clear()
            # The first round of the run starts Ray's actors; the last round's end is not marked.
            times[kind] += [b - a for a, b in zip(marks, marks[1:])][1 if block == 0 else 0 :]
            if block > 1:
                memory[kind] += rss() - before
            if kind != "plain":
                written[kind] += sum(file.stat().st_size for file in record.rglob("*.*"))
                recorded[kind] += rounds
                shutil.rmtree(record)
    size = sum(len(array.data) for array in arrays.values())
    result = {"times": times, "memory": memory, "model": size, "written": written, "rounds": recorded}
    result["processor"] = processor
    (out / "times.json").write_text(json.dumps(result))
"""


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Run a case; returns times of rounds, memory, and what was written, by kind."""
    app = folder / "app"
    app.mkdir(parents=True)
    for file, text in (
        ("pyproject.toml", PYPROJECT),
        ("model.py", MODEL),
        ("client.py", CLIENT),
        ("server.py", SERVER),
    ):
        (app / file).write_text(text)
    config = {
        "out": str(folder),
        "steps": case.steps,
        "blocks": case.blocks,
        "rounds": case.rounds,
        "clients": case.clients,
        "model": case.model,
        "kinds": json.dumps(case.kinds),
    }
    with Simulator(app, supernodes=case.clients, log=folder / "log.txt") as simulator:
        simulator.run(config)
    result: dict[str, Any] = json.loads((folder / "times.json").read_text())
    return result


def show(case: Case, result: dict[str, Any]) -> None:
    """Print the figures of a case."""
    plain = statistics.median(result["times"]["plain"])
    print(f"{case.title}: {result['model'] / 4e6:.2f}M parameters, {case.clients} clients")
    print(f"  without an observer: median round {plain:.3f} s")
    for kind in case.kinds:
        times = statistics.median(result["times"][kind])
        arrived = result["rounds"][kind] * case.clients * result["model"]
        growth = f"{result['memory'][kind] / 1e6:+.0f} MB"
        share = f"{result['written'][kind] / arrived:.4f} times the {arrived / 1e6:.0f} MB that arrived"
        print(f"  {kind}: median round {times:.3f} s, ratio {times / plain:.3f}")
        print(f"    the writer takes {statistics.mean(result['processor'][kind]):.3f} s of a processor a written round")
        print(f"    written {share}; server memory {growth}")
    sys.stdout.flush()


def main() -> None:
    """Print the figures."""
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            show(CASES[name], measure(CASES[name], Path(folder)))


if __name__ == "__main__":
    main()
