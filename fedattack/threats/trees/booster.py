"""Read the trees of XGBoost out of what clients send, without XGBoost: as data that anybody may have written."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import DataError, short
from fedattack.base.untrusted import parse_json, validate

MOST_BYTES = 64 * 2**20
"""Bytes of the largest model that is read."""

MOST_TREES, MOST_NODES, MOST_DEPTH, MOST_FEATURES = 10_000, 1_000_000, 64, 100_000
"""Trees of a model, nodes of all its trees, levels of a tree, and columns, that are read at most."""

_HINT = "ask the client's owner which XGBoost wrote it; the other replies can be read without it"
NO_CHILD = -1

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

_Numbers = Annotated[list[float], Field(max_length=MOST_NODES)]
_Whole = Annotated[list[int], Field(max_length=MOST_NODES)]
_Text = Annotated[str, StringConstraints(max_length=200)]


class _TreeForm(TypedDict):
    left_children: _Whole
    right_children: _Whole
    split_indices: _Whole
    split_conditions: _Numbers
    split_type: _Whole
    sum_hessian: _Numbers
    base_weights: _Numbers


class _ModelForm(TypedDict):
    trees: Annotated[list[_TreeForm], Field(max_length=MOST_TREES)]


class _TreesForm(TypedDict):
    model: _ModelForm


class _ParametersForm(TypedDict):
    base_score: _Text
    num_feature: _Text


class _ObjectiveForm(TypedDict):
    name: _Text


class _LearnerForm(TypedDict):
    gradient_booster: _TreesForm
    learner_model_param: _ParametersForm
    objective: _ObjectiveForm


@with_config(ConfigDict(strict=True))
class _BoosterForm(TypedDict):
    learner: _LearnerForm


_FORM: TypeAdapter[_BoosterForm] = TypeAdapter(_BoosterForm)


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree; the root is node 0."""

    left: Places  # (nodes,): the children of each node; -1 for those of a leaf.
    right: Places
    feature: Places  # (nodes,): the column by which a node splits.
    value: Floats  # (nodes,): what of this column is below it goes left; of a leaf what it adds to a prediction.
    cover: Floats  # (nodes,): the sum of the second derivatives of the loss of the examples in it.
    weight: Floats  # (nodes,): the best prediction of a node; of a leaf times the learning rate.
    by_category: NDArray[np.bool_]  # (nodes,): whether a node splits by categories, so that no value bounds it.

    def is_same(self, other: "Tree") -> bool:
        """Say whether another tree has the same nodes."""
        for name in ("left", "right", "feature", "value", "cover"):
            if not np.array_equal(getattr(self, name), getattr(other, name)):
                return False
        return True

    def columns(self) -> Places:
        """Return the columns by which nodes split, ascending, each once."""
        return np.unique(self.feature[self.left != NO_CHILD])

    def renumber(self, columns: Places) -> "Tree":
        """Return the same tree with places among some columns in the place of these; it splits by no others."""
        places = np.searchsorted(columns, self.feature)
        return replace(self, feature=np.where(self.left != NO_CHILD, places, 0))

    def walk(self) -> Iterator[tuple[int, int]]:
        """Yield each node that can be reached from the root, parents first, and its depth."""
        waiting = [(0, 0)]
        while waiting:
            node, depth = waiting.pop()
            yield node, depth
            if self.left[node] != NO_CHILD:
                waiting += [(int(self.right[node]), depth + 1), (int(self.left[node]), depth + 1)]

    def predict(self, x: Floats) -> Floats:
        """Return what the tree adds to the prediction of each example (n, columns)."""
        places = np.zeros(len(x), dtype=np.int64)
        while True:
            inner = np.flatnonzero(self.left[places] != NO_CHILD)
            if not len(inner):
                return self.value[places]
            nodes = places[inner]
            goes_left = x[inner, self.feature[nodes]] < self.value[nodes]
            places[inner] = np.where(goes_left, self.left[nodes], self.right[nodes])


@dataclass(frozen=True, eq=False)
class Booster:
    """A model of trees."""

    trees: Sequence[Tree]  # In the order in which they were made.
    features: int  # How many columns a table has.
    base_score: float  # The prediction before the first tree; a probability where the objective is logistic.
    objective: str  # Its name, such as ``reg:squarederror``.


def read_booster(data: bytes, where: str) -> Booster:
    """Read a model as ``save_raw("json")`` of XGBoost writes it.

    Raises
    ------
    DataError
        If the bytes are something else, or larger than is read; in one line that begins with ``where``.
    """
    if len(data) > MOST_BYTES:
        raise DataError(f"{where}: the model has {len(data):,} bytes; expected at most {MOST_BYTES:,}; {_HINT}")
    try:
        value = parse_json(data)
    except ValueError as cause:
        raise DataError(
            f"{where}: expected a model of XGBoost in JSON, got {_describe(data)} ({short(str(cause), 80)}); let "
            'clients send save_raw("json")'
        ) from None
    form = validate(_FORM, value, where, DataError, _HINT)["learner"]
    parameters = form["learner_model_param"]
    features = _read_number(parameters["num_feature"], f"{where}: num_feature")
    if not 1 <= features <= MOST_FEATURES or features != int(features):
        raise DataError(f"{where}: num_feature: expected 1 to {MOST_FEATURES:,} columns, got {features:g}; {_HINT}")
    trees: list[Tree] = []
    nodes = 0
    for place, tree in enumerate(form["gradient_booster"]["model"]["trees"]):
        nodes += len(tree["left_children"])
        if nodes > MOST_NODES:
            raise DataError(f"{where}: the trees have more than {MOST_NODES:,} nodes; {_HINT}")
        trees.append(_read_tree(tree, int(features), f"{where}, tree {place}"))
    # Since XGBoost 3.1 there is a list of one number for each output.
    base_score = _read_number(parameters["base_score"].strip("[]"), f"{where}: base_score")
    return Booster(trees, int(features), base_score, form["objective"]["name"])


def _describe(data: bytes) -> str:
    if not data:
        return "nothing"
    return "XGBoost's binary format UBJSON" if data[:2] in (b"{L", b"{i") else f"{len(data):,} other bytes"


def _read_number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: expected one number, got {short(text, 40)!r}; {_HINT}")
    return number


def _read_tree(form: Mapping[str, object], features: int, where: str) -> Tree:
    sizes = {name: len(values) for name, values in form.items() if isinstance(values, list)}
    count = sizes["left_children"]
    for name, size in sizes.items():
        if size != count:
            raise DataError(f"{where}: {name} has {size:,} entries, and left_children {count:,}; {_HINT}")
    if not count:
        raise DataError(f"{where}: it has no node; {_HINT}")
    tree = Tree(
        left=_read_whole(form, where, "left_children"),
        right=_read_whole(form, where, "right_children"),
        feature=_read_whole(form, where, "split_indices"),
        value=_read_floats(form, where, "split_conditions"),
        cover=_read_floats(form, where, "sum_hessian"),
        weight=_read_floats(form, where, "base_weights"),
        by_category=_read_whole(form, where, "split_type") != 0,
    )
    if (tree.cover < 0).any():
        raise DataError(f"{where}: sum_hessian: expected 0 or more, got {tree.cover.min():g}; {_HINT}")
    _check_nodes(tree, features, where)
    return tree


def _read_whole(form: Mapping[str, object], where: str, name: str) -> Places:
    try:
        return np.array(form[name], dtype=np.int64)
    except OverflowError:
        raise DataError(f"{where}: {name} holds a number that is neither a node nor a column; {_HINT}") from None


def _read_floats(form: Mapping[str, object], where: str, name: str) -> Floats:
    try:
        numbers = np.array(form[name], dtype=np.float64)
    except OverflowError:
        numbers = np.array([math.inf])
    # XGBoost itself holds no more than single precision.
    if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
        raise DataError(f"{where}: {name} holds a number that is not finite; {_HINT}")
    # Decimals that XGBoost wrote are read as it reads them.
    return numbers.astype(np.float32).astype(np.float64)


def _check_nodes(tree: Tree, features: int, where: str) -> None:
    """Refuse children that are none, nodes with two parents, cycles, what is too deep, and columns that are none."""
    count = len(tree.left)
    is_leaf = tree.left == NO_CHILD
    for children in (tree.left, tree.right):
        if (is_leaf != (children == NO_CHILD)).any() or ((children < 1) | (children >= count))[~is_leaf].any():
            raise DataError(f"{where}: a node has one child, or one outside 1 … {count - 1}; {_HINT}")
    if ((tree.feature < 0) | (tree.feature >= features))[~is_leaf].any():
        raise DataError(f"{where}: a node splits by a column outside 0 … {features - 1}; {_HINT}")
    seen = np.zeros(count, dtype=np.bool_)
    for node, depth in tree.walk():
        if seen[node]:
            raise DataError(f"{where}: node {node} has two parents, or is its own descendant; {_HINT}")
        if depth > MOST_DEPTH:
            raise DataError(f"{where}: it has more than {MOST_DEPTH} levels; {_HINT}")
        seen[node] = True
