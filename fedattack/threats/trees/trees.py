"""Read clients' tables off boosted trees: the values of columns, and whole rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedattack.attacks.base import PLANTED, Attack, Plants, Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.replies import why_left_out
from fedattack.base.errors import NeedsError
from fedattack.base.stored import Axes, Name, Number
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.trees.booster import Tree
from fedattack.threats.trees.boxes import count_examples, list_cuts
from fedattack.threats.trees.linking import link_trees
from fedattack.threats.trees.options import TreesOptions
from fedattack.threats.trees.planting import plant_trees
from fedattack.threats.trees.reconstruct import Floats, Places, SentStep, reconstruct
from fedattack.threats.trees.replies import ReplyReader, SentTrees, may_hold_trees

_NO_TREES = "it needs replies that hold trees of XGBoost, as one array of bytes, and these clients send other arrays"

# Numbers of the rows that are put together, of all clients.
_MOST_NUMBERS = 2**24

# Predictions of one tree for all rows of a client.
_MOST_PREDICTIONS = 2**23


@dataclass(frozen=True, eq=False)
class ReadTables:
    """Tables that were read off trees.

    Attributes
    ----------
    clients
        Nodes whose trees were read.
    features
        How many columns a table has.
    objective
        What the trees are trained for.
    trees
        How many trees of its own each client sent.
    rounds, targets
        Numbers of the rounds of these, and the fingerprint of the targets that the attacker knows.
    rows, whose
        (rows, columns) and (rows,): the rows of all clients that were put together, NaN where no tree of a client
        splits by a column, and their clients.
    cuts, cut_columns, cut_whose
        (cuts,): thresholds, their columns in the table, and their clients.
    linked, owners, sent_in
        (linked,): for each tree of the common model after the first round to which client a participant puts it, by its
        thresholds, whose it is, and its round.
    columns
        (columns,): which columns of the table are in the rows, those by which a tree splits. Older scores lack it, and
        have all.
    """

    clients: tuple[Name, ...]
    features: Annotated[int, Field(ge=1)]
    objective: Name
    trees: tuple[Annotated[int, Field(ge=0)], ...]
    rounds: tuple[Number, ...]
    targets: Name
    rows: Annotated[NDArray[np.floating], Axes("rows", "columns", nan=True)]
    whose: Annotated[NDArray[np.int64], Axes("rows", low=0, into="clients")]
    cuts: Annotated[NDArray[np.floating], Axes("cuts")]
    cut_columns: Annotated[NDArray[np.int64], Axes("cuts", low=0)]
    cut_whose: Annotated[NDArray[np.int64], Axes("cuts", low=0, into="clients")]
    linked: Annotated[NDArray[np.int64], Axes("linked", low=0, into="clients")]
    owners: Annotated[NDArray[np.int64], Axes("linked", low=0, into="clients")]
    sent_in: Annotated[NDArray[np.int64], Axes("linked", low=0)]
    columns: Annotated[NDArray[np.int64] | None, Axes("columns", low=0)] = None

    @property
    def columns_read(self) -> NDArray[np.int64]:
        """(columns,): which columns of the table those of the rows are."""
        if self.columns is None:
            return np.arange(self.rows.shape[1])
        return self.columns

    def fault(self) -> str:
        """Expect columns that the table has, and a number of trees for each client."""
        if self.columns_read.max(initial=-1) < self.features and len(self.trees) == len(self.clients):
            return ""
        return (
            f"rows of {self.rows.shape[1]} columns, {self.features} features, {len(self.clients)} clients and "
            f"{len(self.trees)} numbers of trees do not fit each other"
        )


class TreesOfTables(Attack, Plants):
    """What thresholds, leaf values and covers of a client's trees tell of its table."""

    options = TreesOptions()
    found = ReadTables
    knows: ClassVar[tuple[str, ...]] = ("nothing: it reads the trees that clients send",)
    asks_peers: ClassVar[bool] = True
    planted: ClassVar[str] = PLANTED

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where replies are no bytes."""
        if not len(record) or may_hold_trees(record):
            return []
        return [_NO_TREES]

    def plant(self, reply: Arrays, rows: NDArray[np.float32], count: int) -> Arrays:
        """Put trees in a reply's place that split by so many of a client's own values of each column."""
        return plant_trees(reply, rows, count)

    def attack(self, seen: Seen) -> ReadTables:
        """Read the trees of each client, and put its table together."""
        record, notes = seen.record, seen.notes
        reader = ReplyReader(record, self.options.replies)
        by_node: dict[str, list[SentTrees]] = {}
        for reply in reader.read():
            by_node.setdefault(reply.node, []).append(reply)
        notes += reader.notes
        if not by_node:
            raise NeedsError(f"attack {self.name}: {_NO_TREES}{why_left_out(notes)}")
        features = _count_features(by_node)
        by_node = {node: _take_fitting(replies, features, notes) for node, replies in by_node.items()}
        nodes = [node for node in record.nodes if by_node.get(node)]
        columns, rows = self._limit(by_node, notes)
        tables = []
        for node in nodes:
            tables.append(_read_table(by_node[node], columns, rows, notes))
            seen.progress(len(tables), len(nodes))
        every = list(chain.from_iterable(by_node.values()))
        arrays = _join_tables(tables) | link_trees(by_node, nodes, notes)
        return ReadTables(
            clients=tuple(nodes),
            features=features,
            objective=by_node[nodes[0]][0].booster.objective,
            trees=tuple(sum(len(reply.trees) for reply in by_node[node]) for node in nodes),
            rounds=tuple(sorted({reply.number for reply in every})),
            targets=seen.knowledge.asked(),
            columns=columns,
            **arrays,
        )

    def _limit(self, by_node: Mapping[str, Sequence[SentTrees]], notes: list[str]) -> tuple[Places, int]:
        """Return the columns of the rows that are put together, and how many rows of each client these are.

        They are those by which trees split, so that nothing is as large as what a client says of its table.
        """
        counts: Counter[int] = Counter()
        for replies in by_node.values():
            counts.update(_split_columns(replies).tolist())
        most = max(1, _MOST_NUMBERS // len(by_node))
        if len(counts) > most:
            notes.append(f"{most:,} of {len(counts):,} columns are used: those by which most clients split")
        # The first ones of those by which as many clients split.
        chosen = sorted(counts, key=lambda column: (-counts[column], column))[:most]
        rows = max(1, _MOST_NUMBERS // (len(by_node) * max(len(chosen), 1)))
        if rows < self.options.rows:
            notes.append(f"{rows:,} rows of each client are rebuilt: there are {len(chosen):,} columns")
        return np.array(sorted(chosen), dtype=np.int64), min(rows, self.options.rows)


def _count_features(by_node: Mapping[str, Sequence[SentTrees]]) -> int:
    """Return how many columns a table has: what most clients say first, and of what as many say the least."""
    counts = Counter(replies[0].booster.features for replies in by_node.values())
    return min(counts, key=lambda features: (-counts[features], features))


def _take_fitting(replies: Sequence[SentTrees], features: int, notes: list[str]) -> list[SentTrees]:
    """Leave out replies whose trees split by a column that most clients do not have, with a note."""
    fitting = []
    others = set()
    for reply in replies:
        if reply.booster.features != features:
            others.add(reply.booster.features)
        if _split_columns([reply]).max(initial=-1) < features:
            fitting.append(reply)
    node = replies[0].node
    if others:
        notes.append(f"client {node} says that a table has {max(others):,} columns, and most clients say {features:,}")
    if len(fitting) < len(replies):
        notes.append(f"client {node}: {len(replies) - len(fitting)} replies left out: they split by other columns")
    return fitting


def _split_columns(replies: Sequence[SentTrees]) -> Places:
    """Return the columns by which a client's own trees split, ascending."""
    columns = [np.zeros(0, dtype=np.int64)]
    for reply in replies:
        columns += [tree.columns() for tree in reply.trees]
    return np.unique(np.concatenate(columns))


def _read_table(
    replies: Sequence[SentTrees], columns: Places, most: int, notes: list[str]
) -> tuple[Floats, Sequence[tuple[int, Floats]]]:
    """Return the rows of one client, (rows, columns), and by column its thresholds."""
    first = replies[0]
    count = first.count or count_examples(first.booster)
    if count > most:
        notes.append(
            f"client {first.node}: {most:,} of about {count:,} rows are rebuilt; --option rows=N sets another number"
        )
    own = _split_columns(replies)
    known: dict[int, Tree] = {}

    def renumber(trees: Sequence[Tree]) -> list[Tree]:
        renumbered = []
        for tree in trees:
            # A model that was sent to the client is the same in many replies.
            if id(tree) not in known:
                known[id(tree)] = tree.renumber(every)
            renumbered.append(known[id(tree)])
        return renumbered

    commons = [reply.common for reply in replies if reply.common is not None]
    sent = [tree.columns() for common in commons for tree in common.trees]
    every = np.unique(np.concatenate([own, *sent]))
    steps = []
    for reply in replies:
        before = () if reply.common is None else reply.common.trees
        steps.append(SentStep(renumber(reply.trees), renumber(before)))
    short_steps = _limit_predictions(steps)
    left = sum(len(step.trees) for step in steps) - sum(len(step.trees) for step in short_steps)
    if left:
        notes.append(f"client {first.node}: the last {left:,} trees only give thresholds: there are too many")
    base_score = commons[0].base_score if commons else first.booster.base_score
    table = reconstruct(
        short_steps,
        replace(first.booster, features=len(every)),
        base_score,
        min(count, most),
        min(1.0, most / max(count, 1)),
    )
    rows = np.full((min(count, most), len(columns)), np.nan)
    shared = np.intersect1d(columns, own)
    rows[:, np.searchsorted(columns, shared)] = table.guess()[:, np.searchsorted(every, shared)]
    cuts = list_cuts([tree for step in steps for tree in step.trees], len(every))
    return rows, [(column, own_cuts) for column, own_cuts in zip(every.tolist(), cuts, strict=True)]


def _limit_predictions(steps: Sequence[SentStep]) -> list[SentStep]:
    """Keep as many trees as can be put together: each asks what all trees before it predict."""
    left = _MOST_PREDICTIONS
    kept = []
    for step in steps:
        trees = []
        for index, tree in enumerate(step.trees):
            left -= len(step.before) + index + 1
            if left < 0:
                break
            trees.append(tree)
        kept.append(SentStep(trees, step.before))
    return kept


def _join_tables(tables: Sequence[tuple[Floats, Sequence[tuple[int, Floats]]]]) -> dict[str, NDArray[Any]]:
    """Put the clients' rows, and thresholds by column, one after another, and say whose each is."""
    empty = np.zeros(0, dtype=np.int64)
    arrays: dict[str, list[NDArray[Any]]] = {
        "rows": [],
        "whose": [],
        "cuts": [np.zeros(0)],
        "cut_columns": [empty],
        "cut_whose": [empty],
    }
    for client, (rows, cuts) in enumerate(tables):
        arrays["rows"].append(rows)
        arrays["whose"].append(np.full(len(rows), client, np.int64))
        for column, values in cuts:
            arrays["cuts"].append(values)
            arrays["cut_columns"].append(np.full(len(values), column, np.int64))
            arrays["cut_whose"].append(np.full(len(values), client, np.int64))
    return {name: np.concatenate(of_clients) for name, of_clients in arrays.items()}
