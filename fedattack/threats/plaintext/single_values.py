"""Find values of single examples, such as losses, predictions and embeddings, in what clients send.

The attacker computes what each known example gives under the models that clients sent and were sent, and looks for it
in lists, arrays and single numbers. Whose an example is, it does not know.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.spatial import cKDTree

from fedattack.attacks.accidents import bits_of_matches
from fedattack.attacks.base import Seen
from fedattack.attacks.reply_kinds import are_probabilities
from fedattack.base.errors import FedAttackError, short
from fedattack.base.stored import Finite, Name
from fedattack.record import Record
from fedattack.threats.plaintext.value_sources import Computes, Given, Rows, distinct_rows, list_rows

COUNTING = 4.0
"""Bits by which a value must be surer than the best accident, so that it counts."""

# Bits by which all values of a name together must be surer, so that it is said what they are.
_TOLD = 20.0

# Names that are looked at.
_MOST_NAMES = 64

# Lists of all clients that are told of.
MOST_LISTS = 100_000

# A list of so many rows is named even where nothing is found in it.
_FEWEST_ROWS = 8

# A value is far above the others from so many interquartile ranges above the upper quartile on.
_FAR = 10.0

# Nearest examples that are compared with a row, and how near they are, in parts of the largest number of a column.
_NEIGHBOURS, _LOOSE = 8, 1e-2

# Rows up to which all values are compared.
_FEW_ROWS = 4

# Another example is no rival if it is so many times as far.
_FARTHER = 10.0

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ValueList:
    """What one client sends under one name that may be values of single examples.

    Attributes
    ----------
    node
        Index of the client's node.
    name, type
        The name, and the type of the message that is replied to.
    what, model
        Which values of examples stand there, and under which model; empty where none were found.
    rows
        How many rows there are in a reply, at most.
    by_example
        Whether a reply has as many rows as it says that it has examples.
    far
        Of one number a row: how many are far above all others, at most.
    right, labelled
        Of rows with a number for each class that are known examples: of how many the largest is that of the label,
        and how many they are.
    choices
        Bits that the choice of values and models costs.
    """

    node: Annotated[int, Field(ge=0)]
    name: Name
    type: Name
    what: Name
    model: Name
    rows: Annotated[int, Field(ge=1)]
    by_example: bool
    far: Annotated[int, Field(ge=0)]
    right: Annotated[int, Field(ge=0)]
    labelled: Annotated[int, Field(ge=0)]
    choices: Annotated[Finite, Field(ge=0)]


@dataclass
class Told:
    """Lists of values, and of each the examples that it tells.

    Attributes
    ----------
    lists
        What clients send.
    index, targets, bits, alone
        For each example that is told: the index of the list, the example's own, by how many bits it is surer than an
        accident, and whether no other example comes as near.
    why
        Why nothing was computed of examples; empty where it was.
    """

    lists: list[ValueList] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    bits: list[float] = field(default_factory=list)
    alone: list[bool] = field(default_factory=list)
    why: str = ""


@dataclass
class _Hit:
    """In which replies of one client, by their index, an example stands under one name, and by how many bits."""

    surplus: dict[int, float] = field(default_factory=dict)
    alone: bool = False
    right: bool | None = None

    def count_bits(self, replies: int) -> float:
        """Return the bits of all hits together: these are some of so many replies."""
        return sum(self.surplus.values()) - _count_choices(replies, len(self.surplus))


@dataclass
class _OfName:
    """All that clients send under one name, and what was found in it."""

    rows: list[Rows] = field(default_factory=list)
    # By what values are, under which model, and node: the examples that stand there.
    hits: dict[tuple[str, str], dict[str, dict[int, _Hit]]] = field(default_factory=dict)
    tried: set[tuple[str, str]] = field(default_factory=set)


def find_values(seen: Seen, record: Record, nodes: Mapping[str, int]) -> Told:
    """Find the values of known examples in what clients send.

    Parameters
    ----------
    record
        With all arrays of replies, also those that are none of a model.
    nodes
        Index of each node.
    """
    names: dict[tuple[str, str], _OfName] = defaultdict(_OfName)
    for rows in list_rows(record):
        if (rows.name, rows.type) in names or len(names) < _MOST_NAMES:
            names[rows.name, rows.type].rows.append(rows)
    told = Told()
    if not names:
        return told
    targets = seen.knowledge.targets
    try:
        computes, told.why = _choose(seen, names)
    except FedAttackError as cause:
        computes, told.why = None, short(str(cause), 300)
    labels = None
    if targets is not None and targets.y.ndim == 1:
        labels = targets.y
    # One reply of each client after the other: where not all can be asked about, all clients are.
    if computes is not None:
        for of_name, index, rows in _take_turns(names.values()):
            for given in computes.give(rows):
                _match(of_name, index, rows, given, labels)
    tried = sum(len(of_name.tried) for of_name in names.values())
    for of_name in names.values():
        _tell(told, of_name, nodes, len(targets or ()), math.log2(max(tried, 1)))
    return told


def _choose(seen: Seen, names: Mapping[tuple[str, str], _OfName]) -> tuple[Computes | None, str]:
    """Return what computes values of examples; where nothing does, why not."""
    if seen.knowledge.targets is None:
        return None, "no example of a client is known"
    if seen.knowledge.model is None and seen.knowledge.answers is None:
        return None, "nothing gives the losses or outputs of known examples"
    # It imports torch, which a record without any list need not wait for.
    from fedattack.threats.plaintext.given_values import choose_computing

    widths = {rows.values.shape[1] for of_name in names.values() for rows in of_name.rows}
    return choose_computing(seen, widths), ""


def _take_turns(names: Iterable[_OfName]) -> list[tuple[_OfName, int, Rows]]:
    """List rows with their index, the first reply of each node before the second ones; lists before single numbers."""
    ordered: list[tuple[int, bool, _OfName, int, Rows]] = []
    for of_name in names:
        turns: dict[str, int] = defaultdict(int)
        for index, rows in enumerate(of_name.rows):
            ordered.append((turns[rows.node], len(rows.values) == 1, of_name, index, rows))
            turns[rows.node] += 1
    # Sorting keeps the order of what is alike.
    return [(of_name, index, rows) for *_, of_name, index, rows in sorted(ordered, key=lambda entry: entry[:2])]


def _match(of_name: _OfName, index: int, rows: Rows, given: Given, labels: NDArray[Any] | None) -> None:
    """Add the examples whose values stand in rows, those of this index under the name."""
    key = given.what, given.model
    of_name.tried.add(key)
    # A list of numbers may hold several of each example, one after another.
    table = distinct_rows(rows.values.reshape(-1, given.values.shape[1]))
    finite = np.isfinite(given.values).all(axis=1)
    examples = np.flatnonzero(finite)
    values = given.values[examples]
    if not len(table) or len(examples) < 2 or not np.ptp(values, axis=0).any():
        return
    errors = np.maximum(given.errors[examples], 2 * rows.precision * np.abs(values))
    scale = np.abs(values).max(axis=0)
    scale[scale == 0] = 1.0
    nearest = _seek_nearest(table / scale, values / scale)
    row, column = np.nonzero(nearest < len(values))
    near = nearest[row, column]
    # In units of the error that rounding explains: from 1 on it is another value.
    apart = np.max(np.abs(table[row] - values[near]) / np.maximum(errors[near], np.finfo(float).tiny), axis=1)
    met = apart <= 1
    if not met.any():
        return
    found = np.unique(near[met])
    bits = bits_of_matches(values[found], errors[found], values) - math.log2(len(table) * given.ways)
    together = np.bincount(row[met], minlength=len(table))
    hits = of_name.hits.setdefault(key, {}).setdefault(rows.node, {})
    for item, surplus in zip(found.tolist(), bits.tolist(), strict=True):
        at = row[met & (near == item)]
        # Columns may depend on each other: what several examples give alike is no rarer than these are.
        if together[at].max() > 1:
            surplus = min(surplus, math.log2((len(values) + 1) / (together[at].max() * len(table) * given.ways)))
        if surplus < COUNTING:
            continue
        others = apart[np.isin(row, at) & (near != item)]
        hit = hits.setdefault(int(examples[item]), _Hit())
        hit.surplus[index] = max(surplus, hit.surplus.get(index, 0.0))
        # Another example that gives about the same leaves open which of both it is, unless another reply tells.
        hit.alone = hit.alone or bool((others > _FARTHER).all())
        if labels is not None and labels.dtype.kind in "iu" and table.shape[1] > labels.max() > 0:
            hit.right = int(table[at[0]].argmax()) == int(labels[examples[item]])


def _seek_nearest(rows: Floats, values: Floats) -> NDArray[np.int64]:
    """Return the values that are nearest to each row, (rows, some), by the largest difference in a column.

    In the place of one that is not near stands the number of all values.
    """
    neighbours = min(_NEIGHBOURS, len(values))
    if len(rows) > _FEW_ROWS:
        tree = cKDTree(values, compact_nodes=False, balanced_tree=False)
        _, nearest = tree.query(rows, k=neighbours, p=np.inf, distance_upper_bound=_LOOSE)
        return np.asarray(nearest.reshape(len(rows), neighbours))
    # A tree takes longer to build than few rows to compare.
    distances = np.abs(rows[:, None] - values).max(axis=2)
    nearest = np.argsort(distances, axis=1)[:, :neighbours]
    is_near = np.take_along_axis(distances, nearest, axis=1) < _LOOSE
    return np.where(is_near, nearest, len(values))


def _sum_up(hits: Mapping[int, _Hit], replies: int, examples: int) -> float:
    """Return by how many bits all hits of one client are surer than accidents: these are some of all examples."""
    bits = sum(hit.count_bits(replies) for hit in hits.values())
    return max(0.0, bits - _count_choices(examples, len(hits)) - 1)


def _count_choices(many: int, some: int) -> float:
    """Return the bits of the choice of some among many."""
    return math.log2(math.comb(many, some))


def _tell(told: Told, of_name: _OfName, nodes: Mapping[str, int], examples: int, choices: float) -> None:
    """Add what clients send under one name: the values under the model of which most is found, if that is no accident.

    Parameters
    ----------
    examples
        How many are known.
    choices
        Bits of the choice of values and models.
    """
    replies: dict[str, int] = defaultdict(int)
    for rows in of_name.rows:
        replies[rows.node] += 1

    best, most = ("", ""), choices + _TOLD
    for key, by_node in of_name.hits.items():
        bits = sum(_sum_up(hits, replies[node], examples) for node, hits in by_node.items())
        if bits > most:
            best, most = key, bits
    if not best[0] and not any(map(_is_list, of_name.rows)):
        return
    for node in [*replies][: MOST_LISTS - len(told.lists)]:
        of_node = [rows for rows in of_name.rows if rows.node == node]
        # Nothing is found under the empty name.
        hits = of_name.hits.get(best, {}).get(node, {})
        right = [hit.right for hit in hits.values() if hit.right is not None]
        what, model = best if hits else ("", "")
        told.lists.append(
            ValueList(
                node=nodes[node],
                name=short(of_node[0].name, 200),
                type=of_node[0].type,
                what=what,
                model=model,
                rows=max(len(rows.values) for rows in of_node),
                by_example=any(rows.by_example for rows in of_node),
                far=max(map(_count_far, of_node)),
                right=sum(right),
                labelled=len(right),
                choices=choices,
            )
        )
        for target, hit in sorted(hits.items()):
            told.index.append(len(told.lists) - 1)
            told.targets.append(target)
            told.bits.append(hit.count_bits(replies[node]))
            told.alone.append(hit.alone)


def _is_list(rows: Rows) -> bool:
    """Say whether rows are one for each example, by their number or by what they are."""
    return rows.by_example or (len(rows.values) >= _FEWEST_ROWS and are_probabilities(rows.values))


def _count_far(rows: Rows) -> int:
    """Count the values that are far above all others, of one number a row."""
    if rows.values.shape[1] != 1 or len(rows.values) < _FEWEST_ROWS:
        return 0
    lower, upper = np.quantile(rows.values, (0.25, 0.75))
    return int((rows.values > upper + _FAR * (upper - lower)).sum())
