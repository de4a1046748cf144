"""What recording costs: time per round, bytes on disk, memory; with against without in one and the same Flower run.

``python -m tests.benchmarks.recording`` runs a real ``flwr run`` on Ray, whose ServerApp trains blocks of rounds in
turn with and without the observer: 1M parameters, 10 clients a round. One client answers at once, which is the worst
case for the recorder's share; the other takes 25 steps of SGD on the model, which is still little.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from fedattack.runtime.simulator import Simulator

CLIENTS = 10
BLOCKS = 8
ROUNDS = 8

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
"""

CLIENT = """
import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()
x, y = torch.randn(1600, 784), torch.randint(10, (1600,))

@app.train()
def train(message, context):
    arrays = message.content["arrays"]
    steps = int(context.run_config["steps"])
    if steps:
        model = nn.Sequential(nn.Linear(784, 1258), nn.ReLU(), nn.Linear(1258, 10))
        model.load_state_dict(arrays.to_torch_state_dict())
        for step in range(steps):
            rows = slice(64 * step, 64 * step + 64)
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
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
import resource
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from fedattack.observe import ObservedStrategy

app = ServerApp()

class Timed(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        self.times.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

@app.main()
def main(grid, context):
    config = context.run_config
    n, rounds = int(config["clients"]), int(config["rounds"])
    model = nn.Sequential(nn.Linear(784, 1258), nn.ReLU(), nn.Linear(1258, 10))
    arrays = ArrayRecord(model.state_dict())
    out = Path(config["out"])
    times, memory = {"plain": [], "observed": []}, {"plain": 0, "observed": 0}
    for block in range(int(config["blocks"])):
        # Which comes first alternates, so that a machine that slows down harms both alike.
        for kind in (("plain", "observed"), ("observed", "plain"))[block % 2]:
            before = rss()
            strategy = inner = Timed(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
            inner.times = []
            if kind == "observed":
                strategy = ObservedStrategy(inner, out / f"record-{block}")
            strategy.start(grid, arrays, num_rounds=rounds)
            marks = inner.times
            # The first round of the run starts Ray's actors; the last round's end is not marked.
            times[kind] += [b - a for a, b in zip(marks, marks[1:])][1 if block == 0 else 0 :]
            if block > 1:
                memory[kind] += rss() - before
    size = sum(array.data.__len__() for array in arrays.values())
    (out / "times.json").write_text(json.dumps({"times": times, "memory": memory, "model": size}))
"""


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = folder / "app"
        app.mkdir()
        for file, text in (("pyproject.toml", PYPROJECT), ("client.py", CLIENT), ("server.py", SERVER)):
            (app / file).write_text(text)
        for steps, what in ((0, "a client that answers at once"), (25, "a client that takes 25 steps")):
            out = folder / f"out-{steps}"
            out.mkdir()
            config = {"out": str(out), "steps": steps, "blocks": BLOCKS, "rounds": ROUNDS, "clients": CLIENTS}
            with Simulator(app, supernodes=CLIENTS, log=out / "log.txt") as simulator:
                simulator.run(config)
            result = json.loads((out / "times.json").read_text())
            plain, observed = (statistics.median(result["times"][kind]) for kind in ("plain", "observed"))
            rounds = [len((path / "rounds.jsonl").read_text().splitlines()) for path in out.glob("record-*")]
            arrived = sum(rounds) * CLIENTS * result["model"]
            written = sum(file.stat().st_size for path in out.glob("record-*") for file in path.rglob("*.*"))
            growth = {kind: f"{value / 1e6:+.1f} MB" for kind, value in result["memory"].items()}
            blocks = f"{BLOCKS - 2} blocks of {ROUNDS} rounds"
            print(f"{what}: {result['model'] / 4e6:.2f}M parameters, {CLIENTS} clients, {len(rounds)} records")
            print(f"  median round: {plain:.3f} s without, {observed:.3f} s with, ratio {observed / plain:.3f}")
            print(f"  written: {written / arrived:.4f} times the {arrived / 1e6:.0f} MB that arrived")
            print(f"  server memory over {blocks}: {growth['plain']} without, {growth['observed']} with")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
