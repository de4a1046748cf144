"""What the witness costs: a client's whole training call, with against without, for models from tiny to small.

``python -m tests.benchmarks.witness_cost`` calls each client in turn without and with a witness, on one thread, after
calls that warm both up. It prints the median processor time of a call, their ratio, and what the
witness adds to each batch. Names of cases as arguments run these alone.

``--runs N`` adds whole Flower runs of a foreign project, N of each kind, in turn: seconds from start to end.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedattack.runs.simulator import Simulator
from fedattack.witness import WitnessedClientApp
from tests.apps.projects import CLIENTS, MESSAGE_API
from tests.worlds.local_grid import LocalGrid

_WARM = 10
_NODE = 11


def lenet() -> nn.Module:
    """The LeNet of Flower's quickstart, for 3 × 32 × 32."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def logistic_regression() -> nn.Module:
    """One layer."""
    return nn.Linear(64, 10)


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    """One convolution on 8 × 8."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16, 10)
    )


@dataclass(frozen=True)
class Case:
    """A client: its model, the shape of an example, and how it trains."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    examples: int = 450
    epochs: int = 2
    repeats: int = 100


CASES = {
    "logistic-16": Case(logistic_regression, (64,), 16),
    "logistic-32": Case(logistic_regression, (64,), 32),
    "mlp-16": Case(mlp, (64,), 16),
    "mlp-32": Case(mlp, (64,), 32),
    "cnn-16": Case(cnn, (1, 8, 8), 16),
    "cnn-32": Case(cnn, (1, 8, 8), 32),
    "lenet-32": Case(lenet, (3, 32, 32), 32, repeats=30),
}


def make_app(case: Case) -> ClientApp:
    """Make a client as Flower's quickstart writes it."""
    app = ClientApp()
    generator = torch.Generator().manual_seed(1)
    # As coarse as pixels are.
    x = torch.randint(0, 17, (case.examples, *case.shape), generator=generator) / 16
    y = torch.arange(case.examples) % 10

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = case.make()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loader = DataLoader(TensorDataset(x, y), case.batch, shuffle=True)
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        model.train()
        total = 0.0
        for _ in range(case.epochs):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()
                total += loss.item()
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y), "loss": total}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def serve(name: str, folder: str | None, end: Connection) -> None:
    """Call a client as often as it is asked for, and tell the seconds of processor time that each call takes."""
    torch.set_num_threads(1)
    case = CASES[name]
    app = make_app(case)
    LocalGrid(app, 1)  # it gives messages a run
    if folder is not None:
        app = WitnessedClientApp(app, Path(folder))
    arrays = ArrayRecord(case.make().state_dict())
    while end.recv():
        message = Message(RecordDict({"arrays": arrays}), _NODE, "train")
        context = Context(7, _NODE, {"partition-id": 0, "num-partitions": 1}, RecordDict(), {})
        torch.manual_seed(0)
        started = time.process_time()
        app(message, context)
        end.send(time.process_time() - started)


def measure(name: str) -> tuple[float, float]:
    """Return the medians without and with a witness, each in a process of its own: hooks stay in theirs."""
    spawned = get_context("spawn")
    taken: tuple[list[float], list[float]] = [], []
    with tempfile.TemporaryDirectory() as folder:
        ends = []
        for where in (None, folder):
            mine, theirs = spawned.Pipe()
            spawned.Process(target=serve, args=(name, where, theirs), daemon=True).start()
            ends.append(mine)
        for repeat in range(_WARM + CASES[name].repeats):
            for end, times in zip(ends, taken, strict=True):
                end.send(True)
                seconds = end.recv()
                if repeat >= _WARM:
                    times.append(seconds)
        for end in ends:
            end.send(False)
    return statistics.median(taken[0]), statistics.median(taken[1])


def clients(names: list[str]) -> None:
    """Print a row for each client."""
    print("| client | batches | ms a call | with witness | ratio | µs a batch |\n|---|---|---|---|---|---|", flush=True)
    for name in names:
        case = CASES[name]
        without, watched = measure(name)
        batches = case.epochs * -(-case.examples // case.batch)
        each = (watched - without) / batches
        print(
            f"| {name} | {batches} | {without * 1e3:.2f} | {watched * 1e3:.2f} | {watched / without:.2f} "
            f"| {each * 1e6:.0f} |",
            flush=True,
        )


def runs(count: int) -> None:
    """Print how long Flower runs of a foreign project take."""
    taken: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(count):
        for kind, times in taken.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                project = MESSAGE_API.copy(folder)
                if kind == "with":
                    path = project / "pytorchexample" / "client_app.py"
                    wrapped = f"WitnessedClientApp(app, {str(folder / 'witness')!r})"
                    path.write_text(
                        f"{path.read_text()}\nfrom fedattack.witness import WitnessedClientApp\n\napp = {wrapped}\n"
                    )
                with Simulator(project, supernodes=CLIENTS, log=folder / "flower.log") as simulator:
                    started = time.perf_counter()
                    simulator.run({})
                    times.append(time.perf_counter() - started)
    without, watched = (statistics.median(times) for times in taken.values())
    print(f"whole runs: {without:.1f} s without, {watched:.1f} s with: {watched / without:.2f} times", flush=True)


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *CASES], help="cases; all without any")
    parser.add_argument("--runs", type=int, default=0, help="whole Flower runs of each kind")
    told = parser.parse_args()
    torch.set_num_threads(1)
    clients(told.names or [*CASES])
    if told.runs:
        runs(told.runs)


if __name__ == "__main__":
    main()
