"""Clients of a few digits, or rows of a table, that send how a first fully connected layer moves; no Flower is run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, read_knowledge, write_knowledge
from fedattack.attacks.held_examples import held_examples
from fedattack.audit.evidence import read_evidence
from fedattack.audit.judging import judge_attacks
from fedattack.audit.truth import note_node, write_truth
from fedattack.learning import LocalSGD, build_model, full_gradient, gradient_step, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record

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


def state(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


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
    alter: Callable[[np.ndarray], np.ndarray] = lambda array: array,
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
    writer = RecordWriter(folder / "record", seed=seed, facts={"lr": LR}, protocol=protocol)
    for number in range(rounds):
        replies = []
        for client in range(clients) if taking_part is None else taking_part[number]:
            model = known.build()
            model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in common.items()})
            rows = trained_on[client]
            if protocol == "fedsgd":
                sent: dict[str, Any] = full_gradient(model, x[rows], y[rows], seed=0).arrays
            else:
                train_local(model, x[rows], y[rows], seed=seed + client, **vars(training))
                sent = state(model)
            sent = {name: alter(array) for name, array in sent.items()}
            replies.append(Reply(f"node{client}", "ok", sent, each, {}))
        writer.write(Exchange(number + 1, common, replies))
        mean = {name: np.mean([reply.arrays[name] for reply in replies], axis=0) for name in common}
        mean = {name: array.astype(np.float32) for name, array in mean.items()}
        common = gradient_step(common, mean, LR) if protocol == "fedsgd" else mean
    writer.close(final=common)
    targets = Targets(x[rest[-20:]], y[rest[-20:]])
    own = Targets(x[rest[:auxiliary]], y[rest[:auxiliary]]) if auxiliary else None
    knowledge = Knowledge(model=known, targets=targets, auxiliary=own, training=training)
    write_knowledge(folder / "knowledge", knowledge)
    unused = rest[-120:-20]
    held = held_examples(knowledge, [(str(client), x[parts[client]]) for client in range(clients)])
    write_truth(
        folder / "truth",
        clients=[str(client) for client in range(clients)],
        classes=[str(label) for label in range(classes)],
        counts=np.array([np.bincount(y[rows], minlength=classes) for rows in parts]),
        evaluation=(x[unused], y[unused]),
        targets=targets.fingerprint,
        answers={} if held is None else {"exact": held},
    )
    for client in range(clients):
        note_node(folder / "truth", node=f"node{client}", client=str(client))
    return folder


def write_sums(folder: Path, **options: Any) -> Path:
    """Write the same run as a server of secure aggregation sees it."""
    each = write_exact_run(folder / "each", **options)
    project_record(Record(each / "record"), folder / "record")
    for name in ("knowledge", "truth"):
        (each / name).rename(folder / name)
    return folder


def attacked(folder: Path, trusted: Sequence[str] = (), **options: str) -> Any:
    attack = ATTACKS["exact"].with_options(options)
    return attack.run(Record(folder / "record"), read_knowledge(folder / "knowledge", trusted=trusted), device="cpu")


def judged(folder: Path, **options: str) -> dict[str, Any]:
    """Attack and judge a run folder; findings by metric."""
    attacked(folder, **options).save(folder / "scores" / "exact.npz")
    findings = judge_attacks(read_evidence(folder), setting={}, provenance={})
    return {finding.metric: finding for finding in findings}
