"""Trees that give away what a client holds, for a positive control of the attack."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.base.untrusted import parse_json
from fedattack.record.format import Arrays
from fedattack.threats.trees.booster import NO_CHILD, read_booster
from fedattack.threats.trees.replies import read_bytes_of

_Nodes = dict[str, list[Any]]


def plant_trees(reply: Mapping[str, NDArray[Any]], table: NDArray[np.float32], count: int) -> Arrays:
    """Put trees in the place of a reply's that split by a client's own values, one tree a column.

    Parameters
    ----------
    reply
        What the client sent.
    table
        (n, columns): what it trains on.
    count
        How many values of each column it splits by, at most.

    Raises
    ------
    DataError
        If the reply holds no trees of so many columns.
    """
    data = read_bytes_of(reply)
    if data is None or read_booster(data, "a reply").features != table.shape[1]:
        raise DataError(f"a reply holds no trees of {table.shape[1]} columns")
    model = parse_json(data.decode())
    grown = []
    for column, values in enumerate(table.T):
        # The least value parts nothing.
        cuts = np.unique(values)[1:]
        chosen = np.unique(np.linspace(0, len(cuts) - 1, min(count, len(cuts))).astype(int))
        grown.append(_grow(column, values, cuts[chosen]))
    model["learner"]["gradient_booster"]["model"]["trees"] = grown
    (name,) = reply
    return {name: np.frombuffer(json.dumps(model).encode(), dtype=np.uint8)}


def _grow(column: int, values: NDArray[np.float32], cuts: NDArray[np.float32]) -> _Nodes:
    """Grow a tree of the least depth that splits one column at all of these values."""
    tree: _Nodes = {
        "left_children": [],
        "right_children": [],
        "split_indices": [],
        "split_conditions": [],
        "split_type": [],
        "sum_hessian": [],
        "base_weights": [],
    }

    def add(inside: NDArray[np.float32], cuts: NDArray[np.float32]) -> int:
        place = len(tree["left_children"])
        middle = len(cuts) // 2
        cut = float(cuts[middle]) if len(cuts) else 0.0
        node = (NO_CHILD, NO_CHILD, column, cut, 0, float(len(inside)), 0.0)
        for key, value in zip(tree, node, strict=True):
            tree[key].append(value)
        if len(cuts):
            tree["left_children"][place] = add(inside[inside < cuts[middle]], cuts[:middle])
            tree["right_children"][place] = add(inside[inside >= cuts[middle]], cuts[middle + 1 :])
        return place

    add(values, cuts)
    return tree
