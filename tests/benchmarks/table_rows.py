"""Rows of a table, searched for by fedattack and by the authors of TabLeak (Vero et al. 2023), behind the same updates.

``python -m tests.benchmarks.table_rows --peers FOLDER --out ROWS.jsonl`` takes the Adult data and the network of the
authors, both from their clone in FOLDER. Labels are known to both, as in the paper. A client sends its gradient, or its
model after five epochs. Every batch by one method is a line of ROWS.jsonl; a run that was stopped goes on where it was.
``--only TEXT`` runs the pieces whose name has a text, such as ``gradient-8/ours``.

The authors pool 30 searches of 1,500 gradients each behind a gradient. Here they have ten such searches, and three
behind epochs.

Two guesses look at no update: other rows of the data, and the most common value of each column.
"""

import argparse
import contextlib
import copy
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from fedattack.attacks.coding import TableCoding
from fedattack.learning import LocalSGD
from fedattack.learning.soft_losses import soft_targets
from fedattack.threats.inversion.cells import TOLERANCE
from fedattack.threats.inversion.exchange import right_cells
from fedattack.threats.inversion.gradient_inversion import ONE_GRADIENT, ClientModel, ReplyBatch, Search
from fedattack.threats.inversion.options import POOLED
from fedattack.threats.inversion.table_rows import find_span
from tests.benchmarks.peers.getting import TABLEAK, PeerMissingError
from tests.threats.inversion.inverted import invert

TRAININGS = {"gradient": ONE_GRADIENT, "epochs": LocalSGD(epochs=5, batch_size=0, lr=0.01)}
SIZES = {"gradient": (1, 4, 8, 16, 32, 64, 128), "epochs": (4, 8)}
BATCHES = {"gradient": 3, "epochs": 2}
THEIR_SEARCHES = {"gradient": 10, "epochs": 3}
OUR_STEPS, THEIR_STEPS = 500, 1500

_NETWORK_SEED = 42


@dataclass(frozen=True)
class Piece:
    """One batch by one method."""

    sends: str
    size: int
    batch: int
    method: str

    @property
    def name(self) -> str:
        """Such as ``gradient-8/ours``."""
        return f"{self.sends}-{self.size}/{self.method}"


class Adult:
    """The authors' data and network."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        # The authors' code reads its data by paths that begin in its folder.
        with contextlib.chdir(folder):
            self.data = importlib.import_module("datasets").ADULT()
        self.data.standardize()
        self.x, self.y = self.data.get_Xtrain(), self.data.get_ytrain()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_NETWORK_SEED)
            self.network: nn.Module = importlib.import_module("models").FullyConnected(self.x.shape[1], [100, 100, 2])
        columns = self.data.train_feature_index_map
        x = self.x.numpy()
        self.coding = TableCoding(
            names=tuple(columns),
            columns=tuple(tuple(inputs) for _, inputs in columns.values()),
            is_number=tuple(kind == "cont" for kind, _ in columns.values()),
            low=tuple(x.min(axis=0).tolist()),
            high=tuple(x.max(axis=0).tolist()),
            mean=tuple(x.mean(axis=0).tolist()),
            deviation=tuple(x.std(axis=0).tolist()),
        )

    def rows_of(self, piece: Piece) -> Tensor:
        """Draw a batch; a size has the same rows in every setting."""
        drawn = np.random.default_rng(piece.size).permutation(len(self.x))
        return torch.from_numpy(drawn[piece.batch * piece.size :][: piece.size])

    def movement(self, client: ClientModel, rows: Tensor) -> dict[str, Tensor]:
        """Return what a client sends of rows."""
        state = {name: value.numpy() for name, value in client.model.state_dict().items()}
        targets = soft_targets("cross-entropy", self.y[rows].numpy(), 2)
        moved = client.movement(*client.split(state), self.x[rows], targets)
        return {name: value.detach() for name, value in moved.items()}

    def pair(self, truth: Tensor, found: NDArray[np.float32]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Pair found rows with true ones so that most cells are right.

        Returns
        -------
        tuple of ndarray
            Which cells (n, columns) of the true rows are right, and which found row (n,) stands for each.
        """
        deviation = np.array([self.coding.deviation[inputs[0]] for inputs in self.coding.columns])
        tolerance = np.where(self.coding.is_number, TOLERANCE * deviation, 0.5)
        right = right_cells(self.coding.decode(truth.numpy()), self.coding.decode(found), tolerance)
        rows, paired = linear_sum_assignment(-right.sum(axis=2))
        return right[rows, paired], paired


def ours(adult: Adult, piece: Piece) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """Search by fedattack's default number of starts."""
    rows = adult.rows_of(piece)
    client = ClientModel(adult.network, "cross-entropy", TRAININGS[piece.sends])
    movement = {name: value.numpy() for name, value in adult.movement(client, rows).items()}
    weight, bias = [*movement.values()][:2]
    span = find_span(np.column_stack([weight, bias]).astype(np.float64), piece.size)
    state = {name: value.numpy() for name, value in client.model.state_dict().items()}
    batch = ReplyBatch(state, movement, piece.size, adult.y[rows].numpy(), span=span)
    how = Search("table", OUR_STEPS * POOLED, POOLED, coding=adult.coding)
    (found,) = invert(client, [batch], tuple(adult.x.shape[1:]), how, seed=piece.batch)
    return found.x, found.unsure


def authors(adult: Adult, piece: Piece) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """Search by the authors' code, as their paper sets it, with fewer searches."""
    attacks = importlib.import_module("attacks")
    by_epochs = importlib.import_module("attacks.fed_avg_inversion_attack")
    by_gradient = importlib.import_module("attacks.gradient_inversion_attack")
    _bound_copies(by_gradient)
    rows = adult.rows_of(piece)
    client = ClientModel(adult.network, "cross-entropy", TRAININGS[piece.sends])
    sent, labels = [*adult.movement(client, rows).values()], adult.y[rows]
    torch.manual_seed(piece.batch)
    # Their code draws from NumPy's global state.
    np.random.seed(piece.batch)  # noqa: NPY002
    searches = THEIR_SEARCHES[piece.sends]
    common = {"reconstruction_loss": "cosine_sim", "dataset": adult.data, "softmax_trick": True, "sigmoid_trick": True}
    if piece.sends == "gradient":
        found = attacks.invert_grad(
            net=adult.network,
            training_criterion=nn.CrossEntropyLoss(),
            true_grad=sent,
            true_label=labels,
            true_data=adult.x[rows],
            max_iterations=THEIR_STEPS,
            post_selection=searches,
            pooling="median+softmax",
            **common,
        )
        return found.detach().numpy(), None
    training = TRAININGS[piece.sends]
    after = []
    for parameter, moved in zip(adult.network.parameters(), sent, strict=True):
        after.append(parameter.detach() - training.lr * moved)
    rebuilt, losses = [], []
    for _ in range(searches):
        one, loss = by_epochs.fed_avg_attack(
            copy.deepcopy(adult.network),
            [after],
            training.epochs,
            piece.size,
            training.lr,
            per_client_ground_truth_data=[adult.x[rows]],
            per_client_ground_truth_labels=[labels],
            attack_iterations=THEIR_STEPS,
            temperature_mode="constant",
            **common,
        )
        rebuilt.append(one[0].detach())
        losses.append(loss[0])
    best = rebuilt[int(np.argmin(losses))]
    pooled = attacks.ensembling.pooled_ensemble(rebuilt, best, adult.data, pooling="median")
    return pooled.detach().numpy(), None


def _bound_copies(module: Any) -> None:
    """Let the authors' last step copy what newer versions of PyTorch do not let it write into."""
    bound = module.continuous_sigmoid_bound

    def on_copy(x: Tensor, dataset: Any, T: float = 1.0) -> Tensor:
        return bound(x.detach().clone() if x.is_leaf else x, dataset, T)

    if bound.__name__ != on_copy.__name__:
        module.continuous_sigmoid_bound = on_copy


def guess_rows(adult: Adult, piece: Piece) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """Take other rows of the data."""
    drawn = np.random.default_rng(piece.size).permutation(len(adult.x))
    # The batches of a size are the first ones.
    return adult.x.numpy()[drawn[-(piece.batch + 1) * piece.size :][: piece.size]], None


def guess_common(adult: Adult, piece: Piece) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """Take the most common category of each column, and the median of its numbers."""
    x = adult.x.numpy()
    row = np.median(x, axis=0)
    for is_number, inputs in zip(adult.coding.is_number, adult.coding.columns, strict=True):
        own = list(inputs)
        if not is_number:
            row[own] = np.eye(len(own))[x[:, own].mean(axis=0).argmax()]
    return np.repeat(row[np.newaxis], piece.size, axis=0).astype(np.float32), None


METHODS: dict[str, Callable[[Adult, Piece], tuple[NDArray[np.float32], NDArray[np.float64] | None]]] = {
    "ours": ours,
    "authors": authors,
    "random": guess_rows,
    "common": guess_common,
}


def pieces() -> Iterator[Piece]:
    """List every batch with each method."""
    for sends, sizes in SIZES.items():
        for size in sizes:
            for batch in range(BATCHES[sends]):
                for method in METHODS:
                    yield Piece(sends, size, batch, method)


def measured(adult: Adult, piece: Piece) -> dict[str, Any]:
    """Search for a batch, and count the right cells."""
    began = time.process_time()
    found, unsure = METHODS[piece.method](adult, piece)
    seconds = time.process_time() - began
    right, paired = adult.pair(adult.x[adult.rows_of(piece)], found)
    surest = None
    if unsure is not None:
        order = np.argsort(unsure[paired], axis=None, kind="stable")
        surest = float(right.ravel()[order[: max(len(order) // 2, 1)]].mean())
    row = {**vars(piece), "cells": float(right.mean()), "rows": float(right.all(axis=1).mean())}
    return {**row, "surest": surest, "seconds": round(seconds, 1)}


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the means over batches."""
    for sends, size, method in dict.fromkeys((row["sends"], row["size"], row["method"]) for row in rows):
        own = [row for row in rows if (row["sends"], row["size"], row["method"]) == (sends, size, method)]
        cells, whole = (100 * np.mean([row[key] for row in own]) for key in ("cells", "rows"))
        line = f"{sends}, {size:2} rows, {method:8} {cells:5.1f} % of cells, {whole:5.1f} % of rows"
        if own[0]["surest"] is not None:
            line += f", {100 * np.mean([row['surest'] for row in own]):5.1f} % of the surest half of cells"
        print(f"{line}; {np.mean([row['seconds'] for row in own]):.0f} s a batch, {len(own)} batches")


def main() -> None:
    """Measure what is not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description="Rows of a table beside TabLeak; see the module's docstring.")
    parser.add_argument("--peers", type=Path, required=True, help="folder that has the authors' clone, or will have it")
    parser.add_argument("--out", type=Path, required=True, help="a JSON line for each piece; those there are not rerun")
    parser.add_argument("--only", default="", help="run pieces whose name has this text")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # The authors' files print progress and set a threading layer for processes that they start.
    os.environ.setdefault("MKL_THREADING_LAYER", "GNU")
    try:
        adult = Adult(TABLEAK.find(asked.peers))
    except PeerMissingError as reason:
        print(f"rows of tables are not measured: {reason}")
        return
    rows: list[dict[str, Any]] = []
    if asked.out.is_file():
        rows = [json.loads(line) for line in asked.out.read_text(encoding="utf-8").splitlines()]
    for piece in pieces():
        done = any(all(row[key] == value for key, value in vars(piece).items()) for row in rows)
        if done or asked.only not in piece.name:
            continue
        rows.append(measured(adult, piece))
        with asked.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(rows[-1]) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
