"""A run whose clients train a small model, and send values that it gives their single examples."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedattack.attacks import Knowledge, ModelKnowledge, Targets
from fedattack.audit.truth import NOBODY
from fedattack.learning import train_local
from fedattack.learning.torch_utils import fix_seed
from fedattack.record import Exchange, RecordWriter, Reply
from fedattack.record.others import Others
from tests.worlds.attacked import count_labels, state, write_known

CLIENTS, EACH, SIZE, CLASSES, ROUNDS = 6, 20, 16, 4, 2
TRAINING = {"lr": 0.2, "epochs": 1, "batch_size": 5}
MODEL = ModelKnowledge(spec="mlp", input_shape=(SIZE,), classes=CLASSES, hidden=8)

Says = Callable[[nn.Module, torch.Tensor, torch.Tensor], Mapping[str, Any]]
"""Given a model, examples and labels, what a reply holds beside the model: lists and numbers, or arrays."""


def nothing(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {}


def losses(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    """What PyTorch itself says, in float32."""
    return {"losses": functional.cross_entropy(model(x), y, reduction="none").tolist()}


def write_values_run(
    folder: Path, trains: Says = losses, evaluates: Says = nothing, *, whose: int = 0, seed: int = 0, known: bool = True
) -> Path:
    """Write record, knowledge and truth.

    ``whose`` clients further on is the one whose examples a reply speaks of: 0 for its own. Without ``known`` nobody
    knows the model.
    """
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(2 * CLIENTS * EACH, SIZE)).astype(np.float32)
    y = draw.integers(CLASSES, size=len(x))
    parts = np.arange(len(x)).reshape(2 * CLIENTS, EACH)
    with fix_seed(seed, torch.device("cpu")):
        model = MODEL.build()
    common = state(model)
    writer = RecordWriter(folder / "record", seed=seed, facts={"lr": 0.1})
    others: list[Others] = []
    for number in range(1, ROUNDS + 1):
        start, replies = common, []
        for client in range(CLIENTS):
            load(model, start)
            train_local(model, x[parts[client]], y[parts[client]], seed=client, **TRAINING)
            spoken = (client + whose) % CLIENTS
            arrays, metrics = _say(trains, model, x[parts[spoken]], y[parts[spoken]])
            replies.append(Reply(f"node{client}", "ok", state(model) | arrays, EACH, metrics))
        common = {name: np.mean([reply.arrays[name] for reply in replies], axis=0) for name in common}
        writer.write(Exchange(number, start, replies, others=others))
        load(model, common)
        others = []
        for client in range(CLIENTS):
            rows = parts[CLIENTS + (client + whose) % CLIENTS]
            arrays, metrics = _say(evaluates, model, x[rows], y[rows])
            others.append(
                Others("evaluate", "reply", (f"node{client}",), metrics | {"num-examples": EACH}, arrays=arrays)
            )
    writer.close(final=common, others=others)
    owners = [str(row // EACH) if row < CLIENTS * EACH else NOBODY for row in range(len(x))]
    origins = ["" if row < CLIENTS * EACH else str(row // EACH - CLIENTS) for row in range(len(x))]
    order = draw.permutation(len(x))
    held = {"owners": [owners[row] for row in order], "evaluation": (x[parts[-1]], y[parts[-1]])}
    held["origins"] = [origins[row] for row in order]
    knowledge = Knowledge(model=MODEL if known else None, targets=Targets(x[order], y[order]))
    return write_known(folder, knowledge, count_labels(y, parts[:CLIENTS], CLASSES), **held)


def load(model: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})


def _say(says: Says, model: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays and metrics of what is said."""
    model.eval()
    with torch.no_grad():
        said = says(model, torch.from_numpy(x), torch.from_numpy(y))
    arrays = {name: value.numpy() for name, value in said.items() if isinstance(value, torch.Tensor)}
    return arrays, {name: value for name, value in said.items() if name not in arrays}
