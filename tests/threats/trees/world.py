"""Clients that send boosted trees of their part of the bundled diabetes table; neither XGBoost nor Flower is run."""

import json
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from fedattack.attacks import Knowledge, Targets
from fedattack.record import Exchange, RecordWriter, Reply
from tests.worlds import attacked as world
from tests.worlds.attacked import write_known

CLIENTS, EACH, ROUNDS = 5, 30, 3
RATE, RIDGE = 0.3, 1.0


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return diabetes: 442 rows of 10 columns, single precision, and what is predicted."""
    data = load_diabetes(scaled=False)
    order = np.random.default_rng(0).permutation(len(data.target))
    return data.data[order].astype(np.float32), data.target[order]


def grow(x: np.ndarray, gradient: np.ndarray, depth: int = 3) -> dict:
    """Grow one tree of squared error as XGBoost does by histograms: a threshold is the least value on the right."""
    names = ["left_children", "right_children", "split_indices", "split_conditions", "split_type", "sum_hessian"]
    names.append("base_weights")
    tree: dict = {name: [] for name in names}

    def add(rows: np.ndarray, levels: int) -> int:
        place = len(tree["left_children"])
        weight = -gradient[rows].sum() / (len(rows) + RIDGE)
        leaf = (-1, -1, 0, RATE * weight, 0, len(rows), RATE * weight)
        for name, value in zip(names, leaf, strict=True):
            tree[name].append(value)
        best = max(
            (
                (score(rows[x[rows, column] < cut]) + score(rows[x[rows, column] >= cut]), column, float(cut))
                for column in range(x.shape[1])
                for cut in np.unique(x[rows, column])[1:]
            ),
            default=None,
        )
        if levels and best is not None and best[0] > score(rows):
            _, column, cut = best
            tree["split_indices"][place], tree["split_conditions"][place] = column, cut
            tree["base_weights"][place] = weight
            tree["left_children"][place] = add(rows[x[rows, column] < np.float32(cut)], levels - 1)
            tree["right_children"][place] = add(rows[x[rows, column] >= np.float32(cut)], levels - 1)
        return place

    def score(rows: np.ndarray) -> float:
        return float(gradient[rows].sum() ** 2 / (len(rows) + RIDGE))

    add(np.arange(len(x)), depth)
    return tree


def predict(tree: dict, x: np.ndarray) -> np.ndarray:
    """Return what a tree adds to each example, one after the other."""
    found = []
    for row in x:
        node = 0
        while tree["left_children"][node] >= 0:
            below = row[tree["split_indices"][node]] < np.float32(tree["split_conditions"][node])
            node = tree["left_children" if below else "right_children"][node]
        found.append(tree["split_conditions"][node])
    return np.array(found)


def as_json(trees: list[dict], features: int, base_score: float, objective: str = "reg:squarederror") -> dict:
    """Return a model as ``save_raw("json")`` of XGBoost writes it."""
    return {
        "learner": {
            "gradient_booster": {"model": {"trees": trees}, "name": "gbtree"},
            "learner_model_param": {"base_score": f"[{base_score!r}]", "num_feature": str(features)},
            "objective": {"name": objective},
        },
        "version": [3, 2, 0],
    }


def as_array(model: dict | None) -> np.ndarray:
    """Return the bytes of a model; none before the first round."""
    return np.frombuffer(b"" if model is None else json.dumps(model).encode(), dtype=np.uint8)


def write_trees_run(
    folder: Path,
    *,
    clients=CLIENTS,
    rounds=ROUNDS,
    depth=3,
    cyclic=False,
    of_truth=lambda x: x,
    sent=lambda client, number, array: array,
) -> Path:
    """Write record, knowledge and truth; ``of_truth`` says what tables the truth holds."""
    x, y = table()
    parts = [slice(client * EACH, (client + 1) * EACH) for client in range(clients)]
    writer = RecordWriter(folder / "record")
    base = float(y[parts[0]].mean())
    common: list[dict] = []
    for number in range(1, rounds + 1):
        before = list(common)
        received = {"0": as_array(as_json(before, x.shape[1], base) if before else None)}
        replies = []
        for client in [(number - 1) % clients] if cyclic else range(clients):
            own_x, own_y = x[parts[client]], y[parts[client]]
            begin = base if before else float(own_y.mean())
            margins = begin + sum((predict(tree, own_x) for tree in before), np.zeros(EACH))
            tree = grow(own_x, margins - own_y, depth)
            model = as_json([*before, tree] if cyclic else [tree], x.shape[1], begin)
            common.append(tree)
            replies.append(Reply(f"node{client}", "ok", {"0": sent(client, number, as_array(model))}, EACH))
        writer.write(Exchange(number, received, replies))
    writer.close()
    knowledge = Knowledge(targets=Targets(x[-20:], y[-20:].astype(np.float32)))
    owners = np.repeat(np.array([str(client) for client in range(clients)]), EACH)
    answers = {"trees": {"x": of_truth(x[: clients * EACH]), "owners": owners}}
    return write_known(folder, knowledge, np.full((clients, 1), EACH), answers=answers)


attacked = partial(world.attack, "trees")
judged = partial(world.attack_and_judge, "trees")
