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
    """The leaves of a tree."""

    low: Floats  # (leaves, columns): an example in a leaf has low <= value < high.
    high: Floats
    cover: Floats  # (leaves,): see :class:`~fedattack.threats.trees.booster.Tree`.
    value: Floats

    def take(self, places: NDArray[np.int64]) -> "Leaves":
        """Return some of the leaves."""
        return Leaves(self.low[places], self.high[places], self.cover[places], self.value[places])


def list_leaves(tree: Tree, features: int) -> Leaves:
    """Return the leaves of a tree with their boxes."""
    low = {0: np.full(features, -np.inf)}
    high = {0: np.full(features, np.inf)}
    leaves: list[int] = []
    for node, _ in tree.walk():
        if tree.left[node] < 0:
            leaves.append(node)
            continue
        left, right, feature = int(tree.left[node]), int(tree.right[node]), tree.feature[node]
        low[left], high[left] = low[node], high[node].copy()
        low[right], high[right] = low.pop(node).copy(), high.pop(node)
        if not tree.by_category[node]:
            high[left][feature] = min(high[left][feature], tree.value[node])
            low[right][feature] = max(low[right][feature], tree.value[node])
    rows = np.array(leaves)
    lows = np.stack([low[leaf] for leaf in leaves])
    highs = np.stack([high[leaf] for leaf in leaves])
    return Leaves(lows, highs, tree.cover[rows], tree.value[rows])


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
