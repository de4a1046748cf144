"""A run of Flower's own central wrapper with :class:`CanaryMod`, in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedattack.claims.canaries import Canaries, CanaryMod
from fedattack.data import Dataset, load_dataset
from fedattack.learning import accuracy_of_models, build_model, train_local
from fedattack.observe import ObservedStrategy
from fedattack.record import Record
from tests.worlds.local_grid import LocalGrid

HIDDEN = 32


@dataclass(frozen=True)
class Setting:
    """A run on the bundled digits; ``noise`` is the multiplier over all nodes."""

    noise: float
    canaries: Canaries | None
    clients: int = 10
    rounds: int = 5
    seed: int = 0

    @property
    def nodes(self) -> int:
        return self.clients + (self.canaries.count if self.canaries else 0)


def net(data: Dataset, seed: int | None = None) -> torch.nn.Module:
    return build_model("mlp", input_shape=data.input_shape, classes=data.classes, hidden=HIDDEN, seed=seed)


def app_of(setting: Setting, data: Dataset) -> ClientApp:
    order = np.random.default_rng(setting.seed).permutation(len(data.y_train))

    def train(message: Message, context: Context) -> Message:
        partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
        rows = np.array_split(order, partitions)[partition]
        model = net(data)
        arrays = message.content.array_records["arrays"]
        model.load_state_dict({name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()})
        train_local(
            model,
            data.x_train[rows],
            data.y_train[rows],
            epochs=2,
            batch_size=32,
            lr=0.1,
            seed=setting.seed + partition,
        )
        sent = ArrayRecord({name: Array(value.detach().numpy()) for name, value in model.state_dict().items()})
        # Flower's wrapper divides the noise by the number of nodes, so that all have to weigh the same.
        return Message(RecordDict({"arrays": sent, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    canaries = setting.canaries
    mods = [CanaryMod(canaries.count, canaries.clip or 0.0, canaries.seed)] if canaries else []
    app = ClientApp(mods=mods)
    app.train()(train)
    return app


def run(folder: Path, setting: Setting) -> tuple[Record, float]:
    """Run it; returns the record, and the last model's accuracy on the test split."""
    torch.set_num_threads(1)
    data = load_dataset("digits")
    inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=setting.nodes)
    strategy = DifferentialPrivacyServerSideFixedClipping(inner, setting.noise, 1.0, setting.nodes)
    observed = ObservedStrategy(strategy, folder)
    # Flower's wrapper draws from numpy's global generator.
    np.random.seed(setting.seed)  # noqa: NPY002
    initial = ArrayRecord({k: Array(v.numpy()) for k, v in net(data, setting.seed).state_dict().items()})
    grid = LocalGrid(app_of(setting, data), setting.nodes)
    observed.start(grid, initial, num_rounds=setting.rounds)
    record = Record(folder)
    final = record.final
    assert final is not None
    accuracy = accuracy_of_models(net(data), [dict(final)], data.x_test, data.y_test)
    return record, float(np.asarray(accuracy)[0])
