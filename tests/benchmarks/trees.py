"""What trees of XGBoost give away of diabetes, which scikit-learn bundles, and what defences change.

``python -m tests.benchmarks.trees`` federates 442 rows of 10 columns over five clients as FedXgbBagging does: each adds
one tree to the common model in each of 20 rounds. It needs XGBoost, which fedattack itself does not. It prints a row
for each way to train: shares of whole rows, of values of rows and of values of columns that the server reads, and the
same for trees beside another client's table.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import xgboost
from sklearn.datasets import load_diabetes

from fedattack.threats.trees.booster import Booster, read_booster
from fedattack.threats.trees.boxes import find_cuts
from fedattack.threats.trees.matching import EXACT, TOLERANCE, match_rows, share_near
from fedattack.threats.trees.reconstruct import SentStep, reconstruct

CLIENTS, ROUNDS = 5, 20
PARAMETERS = {"objective": "reg:squarederror", "nthread": 1, "max_depth": 6, "eta": 0.3, "tree_method": "hist"}

WAYS: dict[str, dict[str, Any]] = {
    "as XGBoost's defaults (depth 6)": {},
    "depth 3": {"max_depth": 3},
    "20 examples a leaf at least": {"min_child_weight": 20},
    "half of the examples a tree": {"subsample": 0.5},
    "columns in 16 public bins": {"bins": 16},
}


def bin_columns(x: np.ndarray, count: int) -> np.ndarray:
    """Return the middles of public bins of equal width in the place of values."""
    low, high = x.min(axis=0), x.max(axis=0)
    width = (high - low) / count
    return (low + (np.floor((x - low) / width).clip(0, count - 1) + 0.5) * width).astype(np.float32)


def append(common: bytes, sent: bytes) -> bytes:
    """Add a client's trees to the common model, as FedXgbBagging does."""
    if not common:
        return sent
    whole, own = json.loads(common), json.loads(sent)
    model, trees = (each["learner"]["gradient_booster"]["model"] for each in (whole, own))
    count = len(model["trees"])
    for place, tree in enumerate(trees["trees"]):
        model["trees"].append(tree | {"id": count + place})
        model["tree_info"].append(0)
    model["gbtree_model_param"]["num_trees"] = str(len(model["trees"]))
    model["iteration_indptr"].append(len(model["trees"]))
    return json.dumps(whole).encode()


def federate(
    parts: list[tuple[np.ndarray, np.ndarray]], parameters: dict[str, Any]
) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield for each round the common model, and what each client sends back."""
    common = b""
    for number in range(ROUNDS):
        replies = []
        for client, (x, y) in enumerate(parts):
            booster = xgboost.Booster(params=parameters | {"seed": 100 * number + client})
            own = xgboost.DMatrix(x, label=y)
            if common:
                booster.load_model(bytearray(common))
                booster.update(own, number)
                last = booster.num_boosted_rounds()
                booster = booster[last - 1 : last]
            else:
                booster = xgboost.train(parameters | {"seed": client}, own, num_boost_round=1)
            replies.append(bytes(booster.save_raw("json")))
        yield common, replies
        for reply in replies:
            common = append(common, reply)


def measure(
    steps: list[SentStep], first: Booster, base_score: float, tables: list[np.ndarray], client: int
) -> np.ndarray:
    """Return (2, 3): rows, values and columns read, of the client itself and of the next one."""
    pooled = np.concatenate(tables).astype(np.float64)
    rows = reconstruct(steps, first, base_score, len(tables[client])).guess()
    rows = np.where(np.isnan(rows), np.median(pooled, axis=0), rows)
    cuts: list[list[float]] = [[] for _ in range(first.features)]
    for step in steps:
        for tree in step.trees:
            for column, value in find_cuts(tree):
                cuts[column].append(value)
    found = []
    for place in (client, (client + 1) % len(tables)):
        true = tables[place].astype(np.float64)
        met = match_rows(rows, true, TOLERANCE * pooled.std(axis=0))
        spans = EXACT * np.ptp(pooled, axis=0)
        near = [share_near(true[:, k], np.sort(cuts[k]), spans[k]) for k in range(first.features)]
        found.append([met.all(axis=1).mean(), met.mean(), np.mean(near)])
    return np.array(found)


def main() -> None:
    """Print a row for each way to train, and after the first what guessing gives."""
    data = load_diabetes(scaled=False)
    order = np.random.default_rng(0).permutation(len(data.target))
    each = len(order) // CLIENTS
    places = [order[client * each : (client + 1) * each] for client in range(CLIENTS)]
    true = [data.data[rows].astype(np.float32) for rows in places]
    print("way | rows, of another table | values, of another table | columns, of another table")
    for name, changes in WAYS.items():
        parameters = PARAMETERS | {key: value for key, value in changes.items() if key != "bins"}
        x = data.data.astype(np.float32)
        if "bins" in changes:
            x = bin_columns(x, changes["bins"])
        parts = [(x[rows], data.target[rows]) for rows in places]
        rounds = list(federate(parts, parameters))
        base = read_booster(rounds[1][0], "common").base_score
        shares = []
        for client in range(CLIENTS):
            steps = []
            for common, replies in rounds:
                before = read_booster(common, "common").trees if common else []
                steps.append(SentStep(read_booster(replies[client], "reply").trees, before))
            first = read_booster(rounds[0][1][client], "reply")
            shares.append(measure(steps, first, base, true, client))
        own, other = np.mean(shares, axis=0)
        text = " | ".join(f"{a:.1%}, {b:.1%}" for a, b in zip(own, other, strict=True))
        print(f"{name} | {text}", flush=True)
    pooled = np.concatenate(true).astype(np.float64)
    tolerance = TOLERANCE * pooled.std(axis=0)
    middle = np.tile(np.median(pooled, axis=0), (each, 1))
    for name, guess in (("the middle of each column", None), ("rows of another client", 1)):
        met = []
        for client in range(CLIENTS):
            rows = middle if guess is None else true[(client + guess) % CLIENTS].astype(np.float64)
            met.append(match_rows(rows, true[client].astype(np.float64), tolerance))
        rows_met, values_met = np.mean([one.all(axis=1).mean() for one in met]), np.mean(met)
        print(f"{name} | {rows_met:.1%} | {values_met:.1%}")


if __name__ == "__main__":
    main()
