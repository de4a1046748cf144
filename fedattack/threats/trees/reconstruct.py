"""Put a client's table together: which leaf of one tree holds the examples of which leaf of another one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import expit, logit

from fedattack.threats.trees.booster import Booster, Tree
from fedattack.threats.trees.boxes import LOGISTIC, SQUARED, Leaves, enclose_leaves, list_cuts, list_leaves

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

# What a leaf costs that has no place in common with an example's box.
_IMPOSSIBLE = 50.0

_LEAST_RATE = 1e-4

# How much a wrong sum of derivatives costs at most, beside logarithms of shares of boxes.
_MISMATCH = 10.0


@dataclass(frozen=True, eq=False)
class SentStep:
    """What one reply tells: new trees, and the model to which the client added them."""

    trees: Sequence[Tree]  # The client's own new trees.
    before: Sequence[Tree]  # The trees of the model that it was sent.


@dataclass(frozen=True)
class Penalties:
    """By how much the learner shrinks: read off the trees."""

    ridge: float = 1.0  # What is added to the cover of a node, lambda.
    rate: float = 0.3  # The learning rate, eta.


def find_penalties(trees: Sequence[Tree]) -> Penalties:
    """Read ridge and learning rate off the weights of nodes: gradients of children add up to that of their parent."""
    ridges: list[float] = []
    for tree in trees:
        for node in _list_inner(tree, with_leaf=False):
            left, right, weight, cover = tree.left[node], tree.right[node], tree.weight, tree.cover
            below = weight[left] + weight[right] - weight[node]
            above = weight[node] * cover[node] - weight[left] * cover[left] - weight[right] * cover[right]
            if abs(below) > 1e-3 * np.abs(weight).max():
                ridges.append(float(above / below))
    ridge = max(0.0, float(np.median(ridges))) if ridges else Penalties().ridge
    rates: list[float] = []
    for tree in trees:
        for node in _list_inner(tree, with_leaf=True):
            children = np.array([tree.left[node], tree.right[node]])
            of_children = float((tree.weight[children] * (tree.cover[children] + ridge)).sum())
            of_node = float(tree.weight[node] * (tree.cover[node] + ridge))
            if abs(of_node) > 1e-3 * np.abs(tree.weight).max():
                rates.append(of_children / of_node)
    rate = float(np.median(rates)) if rates else Penalties().rate
    return Penalties(ridge, rate if _LEAST_RATE <= rate <= 1 else Penalties().rate)


def _list_inner(tree: Tree, *, with_leaf: bool) -> list[int]:
    """Return the nodes of which both children are leaves, or neither is."""
    found = []
    for node, _ in tree.walk():
        if tree.left[node] >= 0:
            leaves = [bool(tree.left[child] < 0) for child in (tree.left[node], tree.right[node])]
            if leaves == [with_leaf, with_leaf]:
                found.append(node)
    return found


class ReadRows:
    """What is known of a client's examples so far.

    Attributes
    ----------
    low, high
        (n, columns): the box of each example.
    label
        (n,): what it is taken to be labelled with; NaN where the objective does not tell.
    """

    def __init__(self, count: int, cuts: Sequence[Floats]) -> None:
        self.low = np.full((count, len(cuts)), -np.inf)
        self.high = np.full((count, len(cuts)), np.inf)
        self.label = np.full(count, np.nan)
        self._guessed = np.full((count, len(cuts)), np.nan)
        self._cuts = cuts
        self._guess_columns(range(len(cuts)))

    def guess(self) -> Floats:
        """Return (n, columns): of the thresholds in each box the middle one; NaN for a column without any.

        A threshold is a value of the column itself where XGBoost makes histograms. It is the least one of the box.
        """
        return self._guessed

    def _guess_columns(self, columns: Iterable[int]) -> None:
        """Guess the values of some columns anew."""
        for column in columns:
            cuts = self._cuts[column]
            if len(cuts):
                first, end = self._find_places(self.low[:, column], self.high[:, column], column)
                middle = np.clip((first + end - 1) // 2, 0, len(cuts) - 1)
                self._guessed[:, column] = cuts[middle]

    def _find_places(self, low: Floats, high: Floats, column: int) -> tuple[Places, Places]:
        """Return the places among a column's thresholds between which boxes (n,) lie in it; below the first is -1."""
        cuts = self._cuts[column]
        first = np.searchsorted(cuts, low, side="right") - 1
        end = np.searchsorted(cuts, high, side="left")
        return np.maximum(first, -1), np.maximum(end, first + 1)

    def weigh(self, leaves: Leaves) -> Floats:
        """Return (n, leaves): minus the logarithm of the share of each example's box that lies in each leaf.

        Columns are taken for independent, and their thresholds for equally many examples apart.
        """
        costs = np.zeros((len(self.low), len(leaves.cover)))
        for index, column in enumerate(leaves.columns.tolist()):
            low, high = leaves.low[:, index], leaves.high[:, index]
            # A leaf that a column does not bound holds all of each box in it, which costs nothing.
            bound = np.flatnonzero(np.isfinite(low) | np.isfinite(high))
            first, end = self._find_places(self.low[:, column], self.high[:, column], column)
            first_of_leaf, end_of_leaf = self._find_places(low[bound], high[bound], column)
            common = np.minimum(end[:, None], end_of_leaf) - np.maximum(first[:, None], first_of_leaf)
            shares = np.maximum(common, 0) / (end - first)[:, None]
            costs[:, bound] += np.where(shares > 0, -np.log(np.maximum(shares, 1e-12)), _IMPOSSIBLE)
        return costs

    def narrow(self, rows: Places, leaves: Leaves, which: Places) -> None:
        """Put examples into leaves: what their boxes have in common with these is left of them."""
        cells = np.ix_(rows, leaves.columns)
        low = np.maximum(self.low[cells], leaves.low[which])
        high = np.minimum(self.high[cells], leaves.high[which])
        # An example that was put somewhere wrong before keeps what it was taken for.
        fits = (low < high).all(axis=1)
        cells = np.ix_(rows[fits], leaves.columns)
        self.low[cells], self.high[cells] = low[fits], high[fits]
        self._guess_columns(leaves.columns.tolist())


def share_out(cover: Floats, count: int) -> Places:
    """Return how many of so many examples each leaf has, by the largest remainders; one at least while there are."""
    if cover.sum() <= 0:
        return np.zeros(len(cover), dtype=np.int64)
    exact = count * cover / cover.sum()
    found = np.floor(exact + 1e-4).astype(np.int64)
    if count >= len(cover):
        found = np.maximum(found, 1)
    order = np.argsort(found - exact, kind="stable")
    place = 0
    missing = count - int(found.sum())
    while missing > 0:
        found[order[place % len(order)]] += 1
        missing -= 1
        place += 1
    largest = np.argsort(exact - found, kind="stable")
    place = 0
    while missing < 0:
        leaf = largest[place % len(largest)]
        if found[leaf] > (count >= len(cover)):
            found[leaf] -= 1
            missing += 1
        place += 1
    return np.asarray(found)


def reconstruct(
    steps: Sequence[SentStep], first: Booster, base_score: float, count: int, share: float = 1.0
) -> ReadRows:
    """Return what the trees of a client tell of its table.

    Parameters
    ----------
    steps
        Its replies in their order.
    first
        Its first reply, which has the objective, and the score that its first tree begins with.
    base_score
        The score that the later trees begin with: that of the common model.
    count
        How many examples are put together.
    share
        Which part of all these are.
    """
    own: list[Tree] = []
    for step in steps:
        own += step.trees
    table = ReadRows(count, list_cuts(own, first.features))
    reader = _LeafReader(first.objective, find_penalties(own), share)
    for number, step in enumerate(steps):
        begin = base_score if step.before or number else first.base_score
        before = [*step.before]
        for tree in step.trees:
            reader.read(table, tree, before, begin)
            before.append(tree)
    return table


@dataclass(frozen=True)
class _LeafReader:
    """Reads one tree after the other into a table."""

    objective: str
    penalties: Penalties
    share: float

    def read(self, table: ReadRows, tree: Tree, before: Sequence[Tree], base_score: float) -> None:
        """Put each example into a leaf of a tree that was made after those ``before``."""
        nodes = list_leaves(tree)
        counts = self._count(tree.cover[nodes], len(table.low))
        # Where a part of the rows is put together, most leaves of a large tree have none of them.
        leaves, sizes = enclose_leaves(tree, nodes[counts > 0]), counts[counts > 0]
        if not len(sizes):
            return
        slots = np.repeat(np.arange(len(sizes)), sizes)
        margins = self._predict(table, before, base_score)
        sums = -leaves.value / self.penalties.rate * (leaves.cover + self.penalties.ridge) * self.share
        costs = table.weigh(leaves) + self._mismatch(table, margins, sums / sizes)
        rows, chosen = linear_sum_assignment(costs[:, slots])
        which = slots[chosen]
        table.narrow(rows, leaves, which)
        if not before:
            self._label(table, rows, which, sums, sizes, margins)

    def _count(self, cover: Floats, count: int) -> Places:
        """Return how many examples each leaf has."""
        total = count
        if self.objective in SQUARED:
            # Each example counts 1: those that are not there were left out of this tree.
            total = min(count, round(float(cover.sum()) * self.share))
        return share_out(cover, total)

    def _predict(self, table: ReadRows, before: Sequence[Tree], base_score: float) -> Floats:
        """Return (n,): the prediction for each example, as far as its values are known."""
        start = base_score
        if self.objective in LOGISTIC:
            start = float(logit(np.clip(base_score, 1e-6, 1 - 1e-6)))
        margins = np.full(len(table.low), start)
        guessed = table.guess()
        for tree in before:
            margins += tree.predict(guessed)
        return margins

    def _mismatch(self, table: ReadRows, margins: Floats, mean: Floats) -> Floats:
        """Return (n, leaves): what it costs that an example's derivative is not the mean one of a leaf."""
        if np.isnan(table.label).any():
            return np.zeros((len(margins), len(mean)))
        outputs = margins
        if self.objective in LOGISTIC:
            outputs = expit(margins)
        off = np.abs((outputs - table.label)[:, None] - mean)
        scale = max(float(np.abs(outputs - table.label).mean()), 1e-9) / 4
        return np.asarray(np.minimum(off / scale, _MISMATCH))

    def _label(
        self, table: ReadRows, rows: Places, which: Places, sums: Floats, sizes: Places, margins: Floats
    ) -> None:
        """Read labels off the first tree, in which all examples of a leaf have one prediction."""
        if self.objective in SQUARED:
            table.label[rows] = margins[rows] - (sums / sizes)[which]
        elif self.objective in LOGISTIC:
            output = float(expit(margins[0]))
            positive = np.clip(np.rint(sizes * output - sums), 0, sizes).astype(np.int64)
            for leaf in np.unique(which):
                own = rows[which == leaf]
                table.label[own] = np.arange(len(own)) < positive[leaf]
