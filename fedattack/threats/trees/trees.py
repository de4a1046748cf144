"""Read clients' tables off boosted trees: the values of columns, and whole rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.attacks.base import Attack, Plants, Progress, Scores
from fedattack.attacks.form import ArrayForm, Form, Name, Number
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.replies import why_left_out
from fedattack.base.errors import NeedsError
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


class _TreesFacts(TypedDict):
    clients: list[Name]
    features: Annotated[int, Field(ge=1)]
    objective: Name
    trees: list[Annotated[int, Field(ge=0)]]
    rounds: list[Number]
    targets: Name


class TreesOfTables(Attack, Plants):
    """What thresholds, leaf values and covers of a client's trees tell of its table.

    Scores hold

    - ``rows`` (rows, columns), the rows of all clients that were put together, NaN where no tree of a client splits by
      a column; ``whose`` (rows,), an index into the clients;
    - ``columns`` (columns,): which columns of the table these are, those by which a tree splits. Older scores lack
      it, and have all;
    - the thresholds: ``cuts`` (cuts,), ``cut_columns`` (cuts,) and ``cut_whose`` (cuts,);
    - about the trees of the common model after the first round: ``linked`` (trees,) and ``owners`` (trees,), to which
      client a participant puts each, by its thresholds, and whose it is; ``sent_in`` (trees,), its round.
    """

    options = TreesOptions()
    form: ClassVar[Form] = Form(
        TypeAdapter(_TreesFacts),
        {
            "rows": ArrayForm("f", ("rows", "columns"), nan=True),
            "columns": ArrayForm("i", ("columns",), low=0, optional=True),
            "whose": ArrayForm("i", ("rows",), low=0),
            "cuts": ArrayForm("f", ("cuts",)),
            "cut_columns": ArrayForm("i", ("cuts",), low=0),
            "cut_whose": ArrayForm("i", ("cuts",), low=0),
            "linked": ArrayForm("i", ("linked",), low=0),
            "owners": ArrayForm("i", ("linked",), low=0),
            "sent_in": ArrayForm("i", ("linked",), low=0),
        },
        {},
    )
    knows: ClassVar[tuple[str, ...]] = ("nothing, to read trees",)
    asks_peers: ClassVar[bool] = True

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say besides where replies are no bytes."""
        found = self.needs.unfit(record, knowledge)
        if not len(record) or may_hold_trees(record):
            return found
        return [*found, _NO_TREES]

    def plant(self, reply: Arrays, rows: NDArray[np.float32], count: int) -> Arrays:
        """Put trees in a reply's place that split by so many of a client's own values of each column."""
        return plant_trees(reply, rows, count)

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        reader = ReplyReader(record, self.options.replies)
        by_node: dict[str, list[SentTrees]] = {}
        for reply in reader.read():
            by_node.setdefault(reply.node, []).append(reply)
        if not by_node:
            raise NeedsError(f"attack {self.name}: {_NO_TREES}{why_left_out(reader.notes)}")
        notes = reader.notes
        features = _count_features(by_node)
        by_node = {node: _take_fitting(replies, features, notes) for node, replies in by_node.items()}
        nodes = [node for node in record.nodes if by_node.get(node)]
        columns, rows = self._limit(by_node, notes)
        tables = []
        for node in nodes:
            tables.append(_read_table(by_node[node], columns, rows, notes))
            progress(len(tables), len(nodes))
        trees = []
        for node in nodes:
            trees.append(sum(len(reply.trees) for reply in by_node[node]))
        every = list(chain.from_iterable(by_node.values()))
        return Scores(
            attack=self.name,
            arrays=_join_tables(tables) | {"columns": columns} | link_trees(by_node, nodes, notes),
            facts={
                "clients": nodes,
                "features": features,
                "objective": by_node[nodes[0]][0].booster.objective,
                "trees": trees,
                "rounds": sorted({reply.number for reply in every}),
                "targets": knowledge.asked(),
            },
            notes=tuple(notes),
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
            notes.append(f"of {len(counts):,} columns {most:,} are put together: those by which most clients split")
        # Of those by which as many clients split the first ones.
        chosen = sorted(counts, key=lambda column: (-counts[column], column))[:most]
        rows = max(1, _MOST_NUMBERS // (len(by_node) * max(len(chosen), 1)))
        if rows < self.options.rows:
            notes.append(f"of each client {rows:,} rows are put together: there are {len(chosen):,} columns")
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
            f"client {first.node}: of about {count:,} rows {most:,} are put together; --option rows=N takes "
            "another number"
        )
    own = _split_columns(replies)
    known: dict[int, Tree] = {}

    def renumber(trees: Sequence[Tree]) -> list[Tree]:
        found = []
        for tree in trees:
            # A model that was sent to the client is the same in many replies.
            if id(tree) not in known:
                known[id(tree)] = tree.renumber(every)
            found.append(known[id(tree)])
        return found

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
        notes.append(f"client {first.node}: the last {left:,} trees tell thresholds alone: there are too many")
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
        for place, tree in enumerate(step.trees):
            left -= len(step.before) + place + 1
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
    for place, (rows, cuts) in enumerate(tables):
        arrays["rows"].append(rows)
        arrays["whose"].append(np.full(len(rows), place, np.int64))
        for column, values in cuts:
            arrays["cuts"].append(values)
            arrays["cut_columns"].append(np.full(len(values), column, np.int64))
            arrays["cut_whose"].append(np.full(len(values), place, np.int64))
    return {name: np.concatenate(parts) for name, parts in arrays.items()}
