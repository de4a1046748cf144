"""A tiny federation of images, one or a few at each client, written to a run folder without running Flower."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedattack.attacks.coding import TableCoding, find_coding
from fedattack.attacks.knowledge import Knowledge, ModelKnowledge
from fedattack.attacks.knowledge_files import write_knowledge
from fedattack.audit.truth import HeldRecords, note_node, write_truth
from fedattack.learning import LocalSGD, build_model, full_gradient, gradient_step, train_local
from fedattack.record import Exchange, RecordWriter, Reply

MODEL = ModelKnowledge(spec="mlp", input_shape=(1, 8, 8), classes=10, hidden=32)
ONE_STEP = LocalSGD(epochs=1, batch_size=0, lr=0.1)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits (1797, 1, 8, 8), standardised, and their labels."""
    bundled = load_digits()
    x = bundled.images[:, np.newaxis]
    return ((x - x.mean()) / x.std()).astype(np.float32), bundled.target.astype(np.int64)


TABLE = ModelKnowledge(spec="mlp", input_shape=(13,), classes=2, hidden=32)


def table(count: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (count, 13) of two numbers, categories of four and of six values, and two values; and classes."""
    draw = np.random.default_rng(7)
    numbers = draw.normal(size=(count, 2))
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    four = draw.choice(4, size=count, p=[0.4, 0.3, 0.2, 0.1])
    six = draw.choice(6, size=count)
    two = draw.choice(2, size=(count, 1))
    x = np.concatenate([numbers, np.eye(4)[four], np.eye(6)[six], two], axis=1).astype(np.float32)
    return x, (numbers[:, 0] + (four == 1) + draw.normal(size=count) > 0.3).astype(np.int64)


def write_table_run(folder: Path, **options: Any) -> Path:
    """Write such a federation of rows of a table, whose coding the attacker knows."""
    x, y = table()
    return write_inversion_run(folder, model=TABLE, data=(x, y), coding=find_coding(x), **options)


def normed(input_shape: tuple[int, ...] = (1, 8, 8), classes: int = 10) -> nn.Module:
    """Build a small network with batch normalisation, of images and of vectors."""
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(144, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, classes)),
    )


def write_inversion_run(
    folder: Path,
    *,
    clients: int = 3,
    each: int = 1,
    rounds: int = 2,
    protocol: str = "fedsgd",
    training: LocalSGD = ONE_STEP,
    model: ModelKnowledge = MODEL,
    silent: bool = False,
    seed: int = 0,
    data: tuple[np.ndarray, np.ndarray] | None = None,
    coding: TableCoding | None = None,
) -> Path:
    """Write record, knowledge and truth; ``silent`` clients send updates of records that are not theirs."""
    x, y = data or digits()
    order = np.random.default_rng(seed).permutation(len(y))
    rows = order[: clients * each].reshape(clients, each)
    others = order[clients * each : 2 * clients * each].reshape(clients, each)
    network = build_model(
        model.spec, input_shape=model.input_shape, classes=model.classes, hidden=model.hidden, seed=seed
    )
    common = {name: value.numpy().copy() for name, value in network.state_dict().items()}
    writer = RecordWriter(folder / "record", protocol=protocol, seed=seed, facts={"lr": training.lr})
    for number in range(1, rounds + 1):
        replies = []
        for client, own in enumerate(others if silent else rows):
            network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in common.items()})
            if protocol == "fedsgd":
                sent = full_gradient(network, x[own], y[own], weight_decay=training.weight_decay, seed=0).arrays
            else:
                train_local(network, x[own], y[own], seed=number, **vars(training))
                sent = {name: value.numpy().copy() for name, value in network.state_dict().items()}
            replies.append(Reply(f"node{client}", "ok", sent, each))
        writer.write(Exchange(number, common, replies))
        mean = {name: np.mean([reply.arrays[name] for reply in replies], axis=0, dtype=np.float32) for name in common}
        common = gradient_step(common, mean, training.lr) if protocol == "fedsgd" else mean
    writer.close(final=common)
    write_knowledge(folder / "knowledge", Knowledge(model=model, training=training, coding=coding))
    unheld = order[2 * clients * each :][:300]
    held = rows.reshape(-1)
    write_truth(
        folder / "truth",
        clients=[str(client) for client in range(clients)],
        classes=[str(label) for label in range(model.classes)],
        counts=np.array([np.bincount(y[own], minlength=model.classes) for own in rows]),
        evaluation=(x[unheld], y[unheld]),
        targets="",
        records=HeldRecords(x[held], y[held], tuple(str(client) for client in range(clients) for _ in range(each))),
    )
    for client in range(clients):
        note_node(folder / "truth", node=f"node{client}", client=str(client))
    return folder
