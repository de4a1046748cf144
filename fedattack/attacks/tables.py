"""The tables of a model: embeddings, and a first linear layer whose inputs are 0 or 1."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.roles import FEWEST, FIRST, OTHER, TABLE, ArrayRole
from fedattack.base.errors import RecordError
from fedattack.base.structured import LABELS, MASK, SEPARATOR, fields
from fedattack.record import Record
from fedattack.record.format import Parameter

Rows = NDArray[np.int64]

# How the place of what a step only meets, such as labels, begins.
_MET = "met"

# Clients whose movements are compared, fewest and most, and of which share of the rows a table's may move at most.
_FEWEST_CLIENTS, _COMPARED_CLIENTS = 3, 8
_MOST_MOVED = 0.75

# What layers are called that are tables: embed, embedding, embeddings, token_emb.
_EMBEDDING = "emb"


@dataclass(frozen=True)
class TokenTable:
    """An array of a model of which a row is a word, an item or a category.

    Attributes
    ----------
    name
        The array's, among the model's parameters.
    module
        The layer's name.
    by_column
        Whether a word is a column of the array, as in the weights of a linear layer.
    rows
        (n,): the words that are asked about, ascending.
    by_ids
        Whether no layer tells that it is a table: examples hold ids of which each has a row.
    is_tied
        Whether an output layer shares it, as far as gradients showed it.
    """

    name: str
    module: str
    by_column: bool
    rows: Rows
    by_ids: bool = False
    is_tied: bool = False

    def orient(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array with words along its first axis."""
        return array.T if self.by_column else array


def tables_of(model: nn.Module | None, knowledge: Knowledge, record: Record | None) -> list[TokenTable]:
    """Find the tables of the clients' model, or of a record where the attacker can build no model.

    Without a model, tables are those that the gradients of examples showed, where the app gave some. Where no layer, no
    gradient and no name tells of a table, it is the one matrix that has a row for each id that examples hold; or
    those of which each client moves other rows, if no examples are known.
    """
    if model is not None:
        shapes = [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]
        # By modules where there is a model; else by the ids that the attacker's examples hold.
        return find_tables(model, knowledge) or find_tables_by_ids(shapes, knowledge)
    if record is None:
        return []
    if any(role.kind != OTHER for role in knowledge.roles):
        return find_tables_by_roles(knowledge.roles, knowledge)
    shapes = [(parameter.name, parameter.shape) for parameter in record.parameters]
    tables = find_named_tables(record.parameters) or find_tables_by_ids(shapes, knowledge)
    # Where examples are known that hold no ids, nobody could say what a row stands for.
    if not tables and knowledge.targets is None:
        tables = find_moving_tables(record)
    return tables


def find_tables_by_roles(roles: Sequence[ArrayRole], knowledge: Knowledge) -> list[TokenTable]:
    """Find the tables among arrays whose roles gradients showed, the one with most rows first.

    A first layer is a table in those inputs that are 0 or 1 in all examples of the attacker's. In models of several
    forms, a table that others have by the same name is one.
    """
    tables: list[TokenTable] = []
    # The one with most rows first.
    for role in sorted(roles, key=lambda role: -max(role.shape, default=0)):
        if any(table.name == role.name for table in tables):
            continue
        if role.name in (knowledge.frozen or {}) or len(role.shape) != 2:
            continue
        module = role.name.rpartition(".")[0]
        if role.kind == TABLE:
            tables.append(TokenTable(role.name, module, False, np.arange(role.shape[0]), is_tied=role.is_tied))
        elif role.kind == FIRST and role.is_unchanged:
            rows = _find_binary_inputs(knowledge)
            if len(rows):
                tables.append(TokenTable(role.name, module, not role.is_transposed, rows))
    return sorted(tables, key=lambda table: -len(table.rows))


def find_tables_by_ids(shapes: Sequence[tuple[str, tuple[int, ...]]], knowledge: Knowledge) -> list[TokenTable]:
    """Find the matrix, among arrays with their shapes, that has a row for each id that the attacker's examples hold.

    It is none if several would do. The largest id is in the second half of the rows: labels, such as digits, are no
    rows of a layer of many units.
    """
    if knowledge.targets is None:
        return []
    most = [int(ids.max()) for _, ids in list_ids(knowledge.targets.x)]
    tables = []
    for name, shape in shapes:
        if len(shape) != 2 or shape[0] < FEWEST or name in (knowledge.frozen or {}):
            continue
        rows = shape[0]
        # An id in the upper half of the rows: a table of that size is likely the one that these ids are of.
        if any(rows / 2 <= id_ < rows for id_ in most):
            tables.append(TokenTable(name, name.rpartition(".")[0], False, np.arange(rows), by_ids=True))
    # Several tables fit: which of them is meant cannot be told.
    if len(tables) > 1:
        return []
    return tables


def find_moving_tables(record: Record) -> list[TokenTable]:
    """Find the matrices of which each client moves some rows, and other ones than other clients, by a record alone.

    A neuron that is below zero for all examples of a client stands still, too. But so does its entry of the bias, if
    the layer has one.
    """
    moved: dict[str, list[NDArray[np.bool_]]] = {}
    seen: set[str] = set()
    for round_ in record:
        for reply in round_.observations:
            is_usable = reply.arrays is not None and reply.received is not None and reply.node not in seen
            if is_usable and len(seen) < _COMPARED_CLIENTS:
                seen.add(reply.node)
                for name, rows in _list_moved(reply.received or {}, reply.arrays or {}):
                    moved.setdefault(name, []).append(rows)
    tables = []
    for parameter in record.parameters:
        patterns = moved.get(parameter.name, [])
        is_matrix = len(parameter.shape) == 2 and parameter.shape[0] >= FEWEST
        if is_matrix and len(patterns) >= _FEWEST_CLIENTS and len({len(rows) for rows in patterns}) == 1:
            others = [of_array for name, of_array in moved.items() if name != parameter.name]
            if _tells_clients(np.stack(patterns)) and not any(_is_same(patterns, other) for other in others):
                module = parameter.name.rpartition(".")[0]
                tables.append(TokenTable(parameter.name, module, False, np.arange(parameter.shape[0])))
    return sorted(tables, key=lambda table: -len(table.rows))


def _list_moved(start: Mapping[str, NDArray[Any]], end: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the names of arrays that have the same shape before and after, and which rows of them moved."""
    for name, before in start.items():
        try:
            first, last = np.asarray(before), np.asarray(end[name])
        except (KeyError, RecordError):
            continue
        if first.shape == last.shape and first.ndim and first.dtype.kind == "f":
            yield name, (first != last).reshape(len(first), -1).any(axis=1)


def _tells_clients(patterns: NDArray[np.bool_]) -> bool:
    """Say whether rows (clients, rows) move that differ from client to client, and most clients leave some alone."""
    usable = patterns[patterns.any(axis=1)]
    if len(usable) < _FEWEST_CLIENTS or np.median(usable.mean(axis=1)) > _MOST_MOVED:
        return False
    return bool(len(np.unique(usable, axis=0)) == len(usable))


def _is_same(patterns: Sequence[NDArray[np.bool_]], others: Sequence[NDArray[np.bool_]]) -> bool:
    """Say whether the rows of two arrays move together in all clients, as those of a layer and of its bias do."""
    return len(patterns) == len(others) and all(map(np.array_equal, patterns, others))


def list_ids(x: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the places of examples that hold whole numbers from 0 on and are neither masks nor labels, with these."""
    # `input_ids` first, as libraries of language models call their tokens.
    for name in sorted(fields(x), key=lambda name: name != "input_ids"):
        ids = np.asarray(x[name])
        is_other = name.split(SEPARATOR)[-1] in (MASK, *LABELS) or name.startswith(_MET)
        if not is_other and ids.dtype.kind in "iu" and ids.size and ids.min() >= 0:
            yield name, ids


def find_named_tables(parameters: Sequence[Parameter]) -> list[TokenTable]:
    """Find the tables among named arrays: matrices whose layer is called an embedding."""
    tables = []
    for parameter in parameters:
        module, _, last = parameter.name.rpartition(".")
        # PyTorch and its libraries name the array of an embedding `weight`.
        is_named = _EMBEDDING in module.lower() and last == "weight"
        if is_named and len(parameter.shape) == 2 and parameter.shape[0] >= FEWEST:
            tables.append(TokenTable(parameter.name, module, False, np.arange(parameter.shape[0])))
    return sorted(tables, key=lambda table: -len(table.rows))


def find_tables(model: nn.Module, knowledge: Knowledge) -> list[TokenTable]:
    """Find the tables of a model of :data:`FEWEST` words or more, the one with most words first.

    An embedding's row for padding is not asked about, since it never moves, and neither is a table that is frozen. A
    first linear layer is a table in those inputs that are 0 or 1 in all examples of the attacker's.
    """
    tables: list[TokenTable] = []
    seen: set[int] = set()
    for name, layer in model.named_modules():
        # Tied weights, as of an embedding and an output layer, are one table.
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and id(layer.weight) not in seen:
            seen.add(id(layer.weight))
            rows = np.arange(layer.num_embeddings)
            if layer.padding_idx is not None:
                # No gradient reaches the row of the padding.
                rows = np.delete(rows, layer.padding_idx)
            tables.append(TokenTable(_name_of(name), name, False, rows))
    tables += _find_one_hot(model, knowledge)
    asked = [table for table in tables if len(table.rows) >= FEWEST and table.name not in (knowledge.frozen or {})]
    return sorted(asked, key=lambda table: -len(table.rows))


def _find_one_hot(model: nn.Module, knowledge: Knowledge) -> Iterator[TokenTable]:
    """Yield the first linear layer, if it takes inputs of 0 or 1."""
    binary = _find_binary_inputs(knowledge)
    if not len(binary) or knowledge.model is None:
        return
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            # The input itself, and not what layers before made of it.
            if layer.in_features == math.prod(knowledge.model.input_shape):
                yield TokenTable(_name_of(name), name, True, binary)
            return


def _find_binary_inputs(knowledge: Knowledge) -> Rows:
    """Return the inputs that are 0 or 1 in all examples of the attacker's, and not always 1.

    There are none if fewer than :data:`FEWEST` are ever 1: pixels at the rim of images are always 0, and no words.
    """
    known = [each.x for each in (knowledge.targets, knowledge.auxiliary) if each is not None and len(each)]
    if not known or any(fields(x) or x.ndim != 2 for x in known):
        return np.zeros(0, dtype=np.int64)
    x = np.concatenate(known)
    # A column of ones alone is a constant, and no choice of a category.
    is_binary = ((x == 0) | (x == 1)).all(axis=0) & (x == 0).any(axis=0)
    if (is_binary & (x == 1).any(axis=0)).sum() < FEWEST:
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(is_binary)


def _name_of(module: str) -> str:
    return f"{module}.weight" if module else "weight"
