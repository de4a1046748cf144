"""Boxes: what a path from the root to a leaf says of the examples in that leaf, column by column."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.threats.trees.booster import Booster, Tree

Floats = NDArray[np.float64]

# Objectives of which it is known what an example adds to a cover.
LOGISTIC = ("binary:logistic", "reg:logistic", "binary:logitraw")
SQUARED = ("reg:squarederror", "reg:linear")


@dataclass(frozen=True, eq=False)
class Leaves:
    """Some leaves of a tree, with their boxes in the columns by which it splits."""

    columns: NDArray[np.int64]  # (columns,): those by whose values the tree splits, ascending.
    low: Floats  # (leaves, columns): an example in a leaf has low <= value < high.
    high: Floats
    cover: Floats  # (leaves,): see :class:`~fedattack.threats.trees.booster.Tree`.
    value: Floats


def list_leaves(tree: Tree) -> NDArray[np.int64]:
    """Return the nodes that are leaves, (leaves,)."""
    return np.array([node for node, _ in tree.walk() if tree.left[node] < 0])


def enclose_leaves(tree: Tree, nodes: NDArray[np.int64]) -> Leaves:
    """Return these leaves with their boxes, which are as large as paths to them are long."""
    parents: dict[int, int] = {}
    columns: set[int] = set()
    for node, _ in tree.walk():
        if tree.left[node] >= 0:
            parents[int(tree.left[node])] = parents[int(tree.right[node])] = node
            if not tree.by_category[node]:
                columns.add(int(tree.feature[node]))
    index_of = {column: index for index, column in enumerate(sorted(columns))}
    low = np.full((len(nodes), len(columns)), -np.inf)
    high = np.full((len(nodes), len(columns)), np.inf)
    for row, leaf in enumerate(nodes.tolist()):
        node = leaf
        while node in parents:
            above = parents[node]
            if not tree.by_category[above]:
                index = index_of[int(tree.feature[above])]
                if node == tree.left[above]:
                    high[row, index] = min(high[row, index], tree.value[above])
                else:
                    low[row, index] = max(low[row, index], tree.value[above])
            node = above
    return Leaves(np.array(sorted(columns), dtype=np.int64), low, high, tree.cover[nodes], tree.value[nodes])


def find_cuts(tree: Tree) -> set[tuple[int, float]]:
    """Return the thresholds of a tree, each with its column."""
    found: set[tuple[int, float]] = set()
    for node, _ in tree.walk():
        if tree.left[node] >= 0 and not tree.by_category[node]:
            found.add((int(tree.feature[node]), float(tree.value[node])))
    return found


def list_cuts(trees: Sequence[Tree], features: int) -> list[Floats]:
    """Return for each column the thresholds of all trees, ascending, each once."""
    found: list[set[float]] = [set() for _ in range(features)]
    for tree in trees:
        for column, value in find_cuts(tree):
            found[column].add(value)
    return [np.array(sorted(values)) for values in found]


def count_examples(first: Booster) -> int:
    """Return how many examples a client has by the cover of its first tree; 0 where the objective does not tell."""
    if not first.trees:
        return 0
    return round(float(first.trees[0].cover[0]) / curvature(first.objective, first.base_score))


def curvature(objective: str, prediction: float) -> float:
    """Return what one example adds to a cover at a prediction; 1 where it is not known."""
    if objective in LOGISTIC:
        return max(prediction * (1 - prediction), 1e-6)
    return 1.0
