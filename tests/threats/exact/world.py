"""Clients of a few digits, or rows of a table, that send how a first fully connected layer moves; no Flower is run."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.attacks.held_examples import held_examples
from fedattack.learning import LocalSGD, build_model
from tests.worlds import attacked as world
from tests.worlds.attacked import Alter, as_they_are, count_labels, state, write_known, write_rounds

CLIENTS, LR = 4, 0.1


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the digits (1797, 1, 8, 8) in 0 … 1 and their labels."""
    bundled = load_digits()
    return (bundled.images[:, None] / 16).astype(np.float32), bundled.target.astype(np.int64)


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return a table (569, 30) of continuous columns, standardised, and labels of three kinds."""
    bundled = load_breast_cancer()
    x = (bundled.data - bundled.data.mean(axis=0)) / bundled.data.std(axis=0)
    thirds = np.digitize(bundled.data[:, 0], np.quantile(bundled.data[:, 0], (1 / 3, 2 / 3)))
    return x.astype(np.float32), thirds.astype(np.int64)


def with_tanh() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 10))


def with_sign_changed() -> nn.Module:
    class Changed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 40)
            self.last = nn.Linear(40, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.last(torch.relu(self.first(-x.flatten(1))))
            return output

    return Changed()


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40, bias=False), nn.ReLU(), nn.Linear(40, 10))


def out_of_order() -> nn.Module:
    """Build a network whose first layer is declared last, goes by another name, and is followed by an in-place ReLU."""

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tail = nn.Linear(40, 10)
            self.act = nn.ReLU(inplace=True)
            self.entry = nn.Linear(64, 40)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.tail(self.act(self.entry(x.view(len(x), -1))))
            return output

    return Other()


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))


def write_exact_run(
    folder: Path,
    *,
    data: Callable[[], tuple[np.ndarray, np.ndarray]] = digits,
    protocol: str = "fedsgd",
    rounds: int = 1,
    each: int = 8,
    clients: int = CLIENTS,
    hidden: int = 200,
    spec: str = "mlp",
    training: LocalSGD | None = None,
    taking_part: Sequence[Sequence[int]] | None = None,
    alter: Alter = as_they_are,
    auxiliary: int = 300,
    others: bool = False,
    seed: int = 0,
) -> Path:
    """Write record, knowledge and truth.

    ``taking_part`` says by round which clients do. With ``others`` clients train on examples that are not those of the
    truth: there is nothing to find.
    """
    x, y = data()
    classes = int(y.max()) + 1
    order = np.random.default_rng(seed).permutation(len(y))
    parts = order[: clients * each].reshape(clients, each)
    rest = order[2 * clients * each :]
    trained_on = order[clients * each : 2 * clients * each].reshape(clients, each) if others else parts
    training = training or LocalSGD(1, 0, LR)
    known = ModelKnowledge(spec=spec, input_shape=x.shape[1:], classes=classes, hidden=hidden)
    if ":" in spec:
        torch.manual_seed(seed)
        common = state(known.build())
    else:
        common = state(build_model(spec, input_shape=x.shape[1:], classes=classes, hidden=hidden, seed=seed))
    shape = {"lr": LR, "protocol": protocol, "rounds": rounds, "training": training, "taking_part": taking_part}
    write_rounds(
        folder, known, common, x, y, trained_on, alter=alter, seed=seed, seeds=lambda client: seed + client, **shape
    )
    targets = Targets(x[rest[-20:]], y[rest[-20:]])
    own = Targets(x[rest[:auxiliary]], y[rest[:auxiliary]]) if auxiliary else None
    knowledge = Knowledge(model=known, targets=targets, auxiliary=own, training=training)
    unused = rest[-120:-20]
    held = held_examples(knowledge, [(str(client), x[parts[client]]) for client in range(clients)])
    answers = {} if held is None else {"exact": held}
    counts = count_labels(y, parts, classes)
    return write_known(folder, knowledge, counts, evaluation=(x[unused], y[unused]), answers=answers)


write_sums = partial(world.write_sums, write_exact_run)
attacked = partial(world.attack, "exact")
judged = partial(world.attack_and_judge, "exact")
