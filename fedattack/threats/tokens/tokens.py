"""Read which rows of a model's tables moved: the words, items or categories that a client holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.matching import check_model, is_finite
from fedattack.attacks.replies import list_updates, spread_replies, why_left_out
from fedattack.attacks.tables import TokenTable, tables_of
from fedattack.base.errors import FedAttackError, NeedsError, RecordError
from fedattack.base.stored import Axes, Name, Number
from fedattack.learning.importing import Asked
from fedattack.record import Record
from fedattack.record.format import Arrays
from fedattack.threats.tokens.moved import Flags, find_moved, measure
from fedattack.threats.tokens.options import TokensOptions
from fedattack.threats.tokens.tracing import trace

_TABLES = (
    "it needs an embedding, ten inputs of 0 or 1 in a first linear layer, or a matrix with a row for each id of "
    "examples"
)
_NO_TABLE = (
    "it needs a table: an array in which the example decides which rows move; gradients of single examples from the "
    "app's own step show none"
)


@dataclass(frozen=True)
class FoundTable:
    """A table of the model: its name, how many rows are asked about, and how unmoved rows were told."""

    name: Name
    rows: Annotated[int, Field(ge=1)]
    how: tuple[Name, ...]


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows that are named of clients.

    Attributes
    ----------
    clients
        Nodes of the record.
    tables
        The tables, that with most rows first.
    rounds, targets
        Numbers of the rounds that were looked at, and the fingerprint of the targets that the attacker knows.
    rows, in_table, whose
        (named,): for each row that is named of a client its number in its table, the table, and the client.
    asked, asked_tables
        (asked,): the rows that are asked about, and their tables.
    seen
        (clients,): of which clients an update was looked at.
    """

    clients: tuple[Name, ...]
    tables: Annotated[tuple[FoundTable, ...], Field(min_length=1)]
    rounds: tuple[Number, ...]
    targets: Name
    rows: Annotated[NDArray[np.int64], Axes("named", low=0)]
    in_table: Annotated[NDArray[np.int64], Axes("named", low=0, called="tables", into="tables")]
    whose: Annotated[NDArray[np.int64], Axes("named", low=0, into="clients")]
    asked: Annotated[NDArray[np.int64], Axes("asked", low=0)]
    asked_tables: Annotated[NDArray[np.int64], Axes("asked", low=0, into="tables")]
    seen: Annotated[NDArray[np.bool_], Axes("clients")]


class MovedRows(Attack):
    """Which rows of embeddings, and which inputs of a one-hot first layer, each client's updates moved."""

    options = TokensOptions()
    found = NamedRows
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture, or its names of arrays",
        "what a row of a table stands for",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where a model has no table."""
        known = knowledge.model
        if known is not None and isinstance(known.spec, Asked):
            return []
        try:
            tables = tables_of(_build(knowledge), knowledge, record)
        except FedAttackError as cause:
            return [str(cause)]
        if not tables:
            return [_say_that_none(knowledge)]
        return []

    def attack(self, seen: Seen) -> NamedRows:
        """Look at all tables, one after the other."""
        record, knowledge = seen.record, seen.knowledge
        model = _build(knowledge)
        if model is not None:
            check_model(model, record)
        tables = tables_of(model, knowledge, record)
        if not tables:
            raise NeedsError(f"attack {self.name}: {_say_that_none(knowledge)}")
        found: list[_FoundRows] = []
        for table in tables:
            found.append(_find_rows(self.options, record, table, _is_tied(model, table), seen.notes))
            seen.progress(len(found), len(tables))
        clients_seen = np.any([of_table.seen for of_table in found], axis=0)
        if not clients_seen.any():
            raise NeedsError(
                f"attack {self.name} needs updates of a table, and {record.path} holds none that can be used"
                f"{why_left_out(seen.notes)}"
            )
        rows, in_table, whose = _join_named(tables, found)
        described = []
        for table, of_table in zip(tables, found, strict=True):
            described.append(FoundTable(table.name, len(table.rows), tuple(sorted(of_table.how))))
        return NamedRows(
            clients=tuple(record.nodes),
            tables=tuple(described),
            rounds=tuple(sorted(set().union(*(of_table.rounds for of_table in found)))),
            targets=knowledge.asked(),
            rows=rows,
            in_table=in_table,
            whose=whose,
            asked=np.concatenate([table.rows for table in tables]),
            asked_tables=np.repeat(np.arange(len(tables)), [len(table.rows) for table in tables]),
            seen=clients_seen,
        )


def _say_that_none(knowledge: Knowledge) -> str:
    """Say what was looked for, and where it was not found."""
    if knowledge.model is None and knowledge.roles:
        return _NO_TABLE
    if knowledge.model is None:
        return (
            f"{_TABLES}; the attacker cannot build the model, and no array's name, shape or movement points to a table"
        )
    return f"{_TABLES}; none was found in this model"


def _build(knowledge: Knowledge) -> nn.Module | None:
    if knowledge.model is None:
        return None
    return knowledge.model.build()


@dataclass
class _FoundRows:
    """What was found of one table."""

    count: int  # Rows that are asked about.
    # (clients, bytes): which of them a client is taken to hold, a bit each: a table may have a million rows.
    named: NDArray[np.uint8]
    seen: Flags  # (clients,): whether an update of it was looked at.
    rounds: set[int] = field(default_factory=set)  # Numbers of the rounds of these.
    how: set[str] = field(default_factory=set)  # How rows were told that examples did not move.

    def of(self, client: int) -> Flags:
        """Return which rows (rows,) a client is taken to hold."""
        return np.unpackbits(self.named[client], count=self.count).astype(np.bool_)


def _join_named(tables: Sequence[TokenTable], parts: Sequence[_FoundRows]) -> NDArray[np.int64]:
    """Return (3, named): of each row that is named its number, its table and whose it is."""
    named: list[NDArray[np.int64]] = []
    for place, part in enumerate(parts):
        for client in range(len(part.named)):
            rows = tables[place].rows[np.flatnonzero(part.of(client))]
            named.append(np.stack([rows, np.full(len(rows), place), np.full(len(rows), client)]))
    return np.concatenate(named, axis=1)


def _is_tied(model: nn.Module | None, table: TokenTable) -> bool:
    """Say whether another layer shares the table's array, as far as that is known."""
    if model is None or table.by_ids:
        return table.is_tied
    own = model.get_submodule(table.module).weight
    holders = 0
    for layer in model.modules():
        holders += any(parameter is own for parameter in layer.parameters(recurse=False))
    return holders > 1


def _find_rows(options: TokensOptions, record: Record, table: TokenTable, tied: bool, notes: list[str]) -> _FoundRows:
    """Read one table in all updates that are looked at."""
    nodes = {node: place for place, node in enumerate(record.nodes)}
    rows = len(table.rows)
    found = _FoundRows(rows, np.zeros((len(nodes), -(-rows // 8)), np.uint8), np.zeros(len(nodes), dtype=np.bool_))
    chosen = spread_replies(record, options.replies)
    part: list[Flags] = []
    sums: list[Flags] = []
    count = len(record) if record.view == "aggregate" else options.replies
    for round_ in record:
        for replies, start, sent, where in list_updates(round_, chosen.get(round_.seq, set())):
            false_alarms, is_gradient = options.false_alarms / count, round_.protocol == "fedsgd"
            moved = _read_table(table, start, sent, is_gradient, tied, false_alarms, where)
            if isinstance(moved, str):
                notes.append(moved)
                continue
            held, how = moved
            taking_part = np.zeros(len(nodes), dtype=np.bool_)
            taking_part[[nodes[reply.node] for reply in replies]] = True
            found.seen |= taking_part
            found.rounds.add(round_.number)
            found.how.add(how)
            if record.view == "aggregate":
                part.append(taking_part)
                sums.append(held)
            else:
                found.named[taking_part] |= np.packbits(held)
    if sums:
        found.named = np.stack([np.packbits(held) for held in trace(np.stack(part), np.stack(sums))])
    return found


def _read_table(
    table: TokenTable,
    start: Arrays | None,
    sent: Arrays | None,
    is_gradient: bool,
    tied: bool,
    false_alarms: float,
    where: str,
) -> tuple[Flags, str] | str:
    """Return which of the rows that are asked about moved, and how the others were told; or why nothing can be said."""
    if start is None or sent is None:
        return f"{where}: what model was sent, or what came back, is not in the record"
    try:
        before, after = np.asarray(start[table.name]), np.asarray(sent[table.name])
    except (KeyError, RecordError):
        return f"{where}: {table.name} is not in it, or cannot be read"
    if before.shape != after.shape or before.ndim != 2:
        return f"{where}: {table.name} has the shape {after.shape}; expected {before.shape}"
    if table.rows.max() >= len(table.orient(before)):
        # Clients of another architecture may have a smaller table.
        return f"{where}: {table.name} has {len(table.orient(before))} rows; expected {table.rows.max() + 1} or more"
    if not is_finite([before, after]):
        return f"{where}: {table.name} holds numbers that are not finite"
    before, after = table.orient(before), table.orient(after)
    movement = measure(before, after, tied=tied, is_gradient=is_gradient)
    moved, how = find_moved(movement, false_alarms=false_alarms)
    return moved[table.rows], how
