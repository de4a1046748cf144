"""Read clients' tables off boosted trees: the values of columns, and whole rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.attacks.base import Attack, Progress, Scores
from fedattack.attacks.form import ArrayForm, Form, Name, Number
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.replies import why_left_out
from fedattack.base.errors import NeedsError
from fedattack.record import Record
from fedattack.threats.trees.boxes import count_examples, list_cuts
from fedattack.threats.trees.linking import link_trees
from fedattack.threats.trees.options import TreesOptions
from fedattack.threats.trees.reconstruct import Floats, SentStep, reconstruct
from fedattack.threats.trees.replies import ReplyReader, SentTrees, may_hold_trees

_NO_TREES = "it needs replies that hold trees of XGBoost, as one array of bytes, and these clients send other arrays"


class _TreesFacts(TypedDict):
    clients: list[Name]
    features: Annotated[int, Field(ge=1)]
    objective: Name
    trees: list[Annotated[int, Field(ge=0)]]
    rounds: list[Number]
    targets: Name


@dataclass(frozen=True)
class TreesOfTables(TreesOptions, Attack):
    """What thresholds, leaf values and covers of a client's trees tell of its table.

    Scores hold ``rows`` (rows, columns), the rows of all clients that were put together, NaN where no tree splits by a
    column; ``whose`` (rows,), an index into the clients; and the thresholds: ``cuts`` (cuts,), ``cut_columns`` (cuts,)
    and ``cut_whose`` (cuts,). ``linked`` (trees,) and ``owners`` (trees,) are about the trees of the common model after
    the first round: to which client a participant puts each, by its thresholds, and whose it is; ``sent_in`` (trees,)
    is its round.
    """

    form: ClassVar[Form] = Form(
        TypeAdapter(_TreesFacts),
        {
            "rows": ArrayForm("f", ("rows", "columns"), nan=True),
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

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say besides where replies are no bytes."""
        found = self.needs.unfit(record, knowledge)
        if not len(record) or may_hold_trees(record):
            return found
        return [*found, _NO_TREES]

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        reader = ReplyReader(record, self.replies)
        by_node: dict[str, list[SentTrees]] = {}
        for reply in reader.read():
            by_node.setdefault(reply.node, []).append(reply)
        if not by_node:
            raise NeedsError(f"attack {self.name}: {_NO_TREES}{why_left_out(reader.notes)}")
        notes = reader.notes
        every = list(chain.from_iterable(by_node.values()))
        features = max(reply.booster.features for reply in every)
        nodes = [node for node in record.nodes if node in by_node]
        tables = []
        for node in nodes:
            replies = [reply for reply in by_node[node] if reply.booster.features == features]
            if len(replies) < len(by_node[node]):
                notes.append(f"client {node}: some replies left out: their trees have fewer columns than {features}")
            tables.append(self._read_table(replies, features, notes))
            progress(len(tables), len(nodes))
        trees = []
        for node in nodes:
            trees.append(sum(len(reply.trees) for reply in by_node[node]))
        return Scores(
            attack=self.name,
            arrays=_join_tables(tables) | link_trees(by_node, nodes),
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

    def _read_table(
        self, replies: Sequence[SentTrees], features: int, notes: list[str]
    ) -> tuple[Floats, Sequence[Floats]]:
        """Return the rows of one client, (rows, columns), and the thresholds of each column."""
        if not replies:
            return np.zeros((0, features)), [np.zeros(0)] * features
        first = replies[0]
        count = first.count or count_examples(first.booster)
        if count > self.rows:
            notes.append(
                f"client {first.node}: of about {count:,} rows {self.rows:,} are put together; --option rows=N takes "
                "another number"
            )
        steps = []
        for reply in replies:
            steps.append(SentStep(reply.trees, () if reply.common is None else reply.common.trees))
        commons = [reply.common for reply in replies if reply.common is not None]
        base_score = commons[0].base_score if commons else first.booster.base_score
        table = reconstruct(
            steps, first.booster, base_score, min(count, self.rows), min(1.0, self.rows / max(count, 1))
        )
        own = [tree for reply in replies for tree in reply.trees]
        return table.guess(), list_cuts(own, features)


def _join_tables(tables: Sequence[tuple[Floats, Sequence[Floats]]]) -> dict[str, NDArray[Any]]:
    """Put the clients' rows, and thresholds by column, one after another, and say whose each is."""
    arrays: dict[str, list[NDArray[Any]]] = {"rows": [], "whose": [], "cuts": [], "cut_columns": [], "cut_whose": []}
    for place, (rows, cuts) in enumerate(tables):
        arrays["rows"].append(rows)
        arrays["whose"].append(np.full(len(rows), place, np.int64))
        for column, values in enumerate(cuts):
            arrays["cuts"].append(values)
            arrays["cut_columns"].append(np.full(len(values), column, np.int64))
            arrays["cut_whose"].append(np.full(len(values), place, np.int64))
    return {name: np.concatenate(parts) for name, parts in arrays.items()}
