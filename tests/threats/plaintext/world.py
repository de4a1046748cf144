"""A run whose replies say what a test wants beside the model; its models tell nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.audit.finding import Finding
from fedattack.audit.truth import NOBODY
from fedattack.record import Exchange, RecordWriter, Reply
from fedattack.record.others import Others
from tests.worlds.attacked import attack_and_judge, count_labels, write_known

CLIENTS, EACH, SIZE, ROUNDS = 6, 20, 16, 3
MODEL = ModelKnowledge(spec="mlp", input_shape=(SIZE,), classes=4, hidden=8)

Says = Callable[[int, int, np.ndarray], Mapping[str, Any]]
"""Given a client, a round and the client's examples, what stands beside the model."""


Adds = Callable[[int, np.ndarray, np.ndarray], Mapping[str, np.ndarray]]
"""Given a client, its examples and their labels, further arrays of its reply."""


def pixels(client: int, number: int, x: np.ndarray) -> dict[str, Any]:
    """The first example, pixel by pixel, in another scale and rounded."""
    values = np.round(255 * x[0] + 40, 1)
    return {"loss": 0.5 / number + client} | {f"px{place}": float(value) for place, value in enumerate(values)}


def plain(client: int, number: int, x: np.ndarray) -> dict[str, Any]:
    return {"loss": 0.5 / number + client, "accuracy": 0.1 * number}


def write_plain_run(
    folder: Path,
    says: Says = pixels,
    *,
    protocol: str = "fedavg",
    clients: int = CLIENTS,
    beside: str = "train",
    arrays: Mapping[str, np.ndarray] | None = None,
    adds: Adds | None = None,
    seed=0,
) -> Path:
    """Write record, knowledge and truth; ``beside`` is the type of message whose replies say it.

    ``arrays`` stand in replies to evaluations, which the record names and does not hold. ``adds`` gives arrays that
    replies to training hold beside the model's.
    """
    draw = np.random.default_rng(seed)
    x = draw.uniform(size=(2 * clients * EACH, SIZE)).astype(np.float32)
    y = draw.integers(4, size=len(x))
    own = [x[client * EACH : (client + 1) * EACH] for client in range(clients)]
    common = {"predictions": np.zeros((5, 4), np.float32)}
    if protocol != "fedmd":
        common = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.float32)}
    writer = RecordWriter(folder / "record", seed=seed, facts={"lr": 0.1}, protocol=protocol)
    if arrays is not None:
        writer.unrecorded.count("evaluate", "reply", arrays=arrays)
    for number in range(1, ROUNDS + 1):
        replies, others = [], []
        for client in range(clients):
            values = says(client, number, own[client])
            sent = {name: array + draw.normal(size=array.shape).astype(np.float32) for name, array in common.items()}
            if adds is not None:
                sent |= adds(client, own[client], y[client * EACH : (client + 1) * EACH])
            replies.append(Reply(f"node{client}", "ok", sent, EACH, values if beside == "train" else {}))
            if beside != "train":
                others.append(Others(beside, "reply", (f"node{client}",), values))
        common = {name: array + np.float32(number) for name, array in common.items()}
        writer.write(Exchange(number, None if protocol == "fedmd" else common, replies, others=others))
    writer.close()
    order = draw.permutation(len(x))
    owners = [str(row // EACH) if row < clients * EACH else NOBODY for row in range(len(x))]
    targets = Targets(x[order], y[order])
    counts = count_labels(y, np.arange(clients * EACH).reshape(clients, EACH), 4)
    held = {"owners": [owners[row] for row in order], "evaluation": (x[clients * EACH :], y[clients * EACH :])}
    return write_known(folder, Knowledge(model=MODEL, targets=targets), counts, **held)


def judged_all(folder: Path, **options: str) -> dict[str, Finding]:
    """Attack and judge a run folder, and return all findings by their metrics."""
    return attack_and_judge("plaintext", folder, **options)


def judged(folder: Path) -> Finding:
    """Attack and judge a run folder, and return the headline."""
    return judged_all(folder)["own-examples"]
