"""Which rows of a model's tables clients really used, and which sequences of ids they hold: what judges need."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.roles import find_words
from fedattack.attacks.tables import TokenTable, list_ids, tables_of
from fedattack.base.errors import FedAttackError
from fedattack.base.structured import MASK, leaves_of
from fedattack.learning.inputs import examples_of, returned_for
from fedattack.learning.torch_utils import in_mode
from fedattack.record import Record

# Examples that are put through a model together.
_AT_ONCE = 256


def used_rows(
    knowledge: Knowledge, examples: Iterable[tuple[str, NDArray[Any]]], record: Record | None = None
) -> Mapping[str, NDArray[Any]] | None:
    """Return the rows that each client's examples use, by putting them through the model.

    Where the attacker can build no model, an example's ids are taken for rows of the largest table of the record.

    Parameters
    ----------
    examples
        For each client of which all training examples are known, its name and these.

    Returns
    -------
    dict or None
        ``names`` (tables,), ``rows`` (m,), ``tables`` (m,) and ``owners`` (m,): a row of a table once for each client
        that uses it; and ``whole`` (clients,), the clients that are spoken of. ``None`` where the model has no table,
        or cannot be built or called.
    """
    model = None
    try:
        if knowledge.model is not None:
            model = knowledge.model.build()
        # A record alone tells tables by their names, or by the ids in examples.
        tables = tables_of(model, knowledge, record)
    except FedAttackError:
        return None
    if not tables:
        return None
    if model is None:
        # Without a model nothing tells which of several tables an id is looked up in: the largest is taken.
        tables = tables[:1]
    rows: list[NDArray[np.int64]] = []
    indices: list[NDArray[np.int64]] = []
    owners: list[str] = []
    whole: list[str] = []
    for client, x in examples:
        used = _list_ids(tables[0], x) if model is None or tables[0].by_ids else _list_used(model, tables, x)
        if used is None:
            return None
        whole.append(client)
        for index, ids in enumerate(used):
            rows.append(ids)
            indices.append(np.full(len(ids), index))
            owners += [client] * len(ids)
    if not whole:
        return None
    return {
        "names": np.array([table.name for table in tables], dtype=np.str_),
        "rows": np.concatenate(rows),
        "tables": np.concatenate(indices),
        "owners": np.array(owners, dtype=np.str_),
        "whole": np.array(whole, dtype=np.str_),
    }


def find_ids(model: nn.Module, x: NDArray[Any]) -> tuple[str, int] | None:
    """Find where in examples the ids stand that a model looks up, token by token.

    Returns
    -------
    tuple of str and int, or None
        Their place, and how many rows the largest table has that takes ids of examples as they are. ``None`` if no
        table does, or the model cannot be called.
    """
    tables = []
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Embedding):
            tables.append(TokenTable("", name, False, np.arange(layer.num_embeddings)))
    # Token embeddings have most rows; positions and types of tokens have few.
    tables.sort(key=lambda table: -len(table.rows))
    # Two examples are enough to see which input enters which table.
    seen = _see_ids(model, tables, x[:2])
    for table, ids in zip(tables, seen or (), strict=False):
        for place, leaf in leaves_of(x[:2]).items():
            # The very ids of one input, as a whole: not a slice, nor positions that the model counts itself.
            if leaf.ndim == 2 and any(np.array_equal(leaf, entered) for entered in ids):
                return place, len(table.rows)
    return None


def trained_sequences(
    knowledge: Knowledge, examples: Iterable[tuple[str, NDArray[Any]]]
) -> Mapping[str, NDArray[Any]] | None:
    """Return the sequences of ids of each client's examples, of which ``examples`` are as for :func:`used_rows`.

    Where the attacker can build no model, ids are those of the table of words that the gradients of examples showed.

    Returns
    -------
    dict or None
        ``tokens`` (m,), the ids of all sequences one after another; ``lengths`` (sequences,) and ``owners``
        (sequences,), and ``whole`` (clients,), the clients that are spoken of. ``None`` where examples hold no ids that
        a table of the model takes.
    """
    model, place = None, ""
    try:
        if knowledge.model is not None:
            model = knowledge.model.build()
        else:
            place = find_words(knowledge.roles).ids
    except FedAttackError:
        return None
    tokens: list[NDArray[np.int64]] = []
    owners: list[str] = []
    whole: list[str] = []
    for client, x in examples:
        if not len(x):
            return None
        if model is not None:
            ids_at = find_ids(model, x)
            if ids_at is None:
                return None
            place = ids_at[0]
        ids = leaves_of(x)[place]
        masks = _mask_of(x)
        whole.append(client)
        for row in range(len(ids)):
            mask = None
            if masks is not None:
                mask = masks[row]
            tokens.append(_keep_unmasked(ids[row], mask).astype(np.int64))
            owners.append(client)
    if not whole:
        return None
    return {
        "tokens": np.concatenate(tokens),
        # Sequences have any lengths: they lie one after the other, and their lengths tell them apart.
        "lengths": np.array([len(sequence) for sequence in tokens], dtype=np.int64),
        "owners": np.array(owners, dtype=np.str_),
        "whole": np.array(whole, dtype=np.str_),
    }


def _list_ids(table: TokenTable, x: NDArray[Any]) -> list[NDArray[np.int64]] | None:
    """Return the ids in examples (rows,), ascending, if there is a place that holds rows of a table; else ``None``."""
    for _, ids in list_ids(x):
        # An id beyond the table cannot be looked up in it.
        if ids.max() < len(table.rows):
            return [np.unique(_keep_unmasked(ids, _mask_of(x))).astype(np.int64)]
    return None


def _mask_of(x: NDArray[Any]) -> NDArray[Any] | None:
    """Return the mask of examples; ``None`` where they have none."""
    for place, leaf in leaves_of(x).items():
        if place == MASK or is_mask(leaf):
            return np.asarray(leaf)
    return None


def is_mask(leaf: NDArray[Any]) -> bool:
    """Say whether numbers (n, tokens) are a mask that has no name, as where it is a model's second argument.

    A mask begins with 1 and ends with 1 or 0, and types of tokens begin with 0.
    """
    if leaf.ndim != 2 or leaf.shape[1] < 2 or leaf.dtype.kind not in "biuf":
        return False
    is_binary = np.isin(leaf, (0, 1)).all() and (leaf[:, 0] == 1).all()
    # In double precision: whole numbers of computers without signs have no differences below 0.
    return bool(is_binary and (np.diff(leaf.astype(np.float64), axis=1) <= 0).all())


def _keep_unmasked(ids: NDArray[Any], mask: NDArray[Any] | None) -> NDArray[Any]:
    """Return the ids (m,) that no mask hides."""
    if mask is None or mask.shape != ids.shape:
        return ids.reshape(-1)
    # Padding has the mask 0, and no token of the client.
    return ids[mask > 0]


def _list_used(model: nn.Module, tables: Sequence[TokenTable], x: NDArray[Any]) -> list[NDArray[np.int64]] | None:
    """Return for each table the rows that examples use, ascending; ``None`` if the model cannot be called."""
    used: list[set[int]] = [set() for _ in tables]
    for first in range(0, len(x), _AT_ONCE):
        batch = x[first : first + _AT_ONCE]
        seen = _see_ids(model, tables, batch)
        if seen is None:
            return None
        mask = _mask_of(batch)
        for index, table in enumerate(tables):
            if table.by_column:
                # A column that is 0 in all examples has no gradient: its row of the table is not used.
                used[index].update(np.flatnonzero((batch != 0).any(axis=0)).tolist())
            for ids in seen[index]:
                used[index].update(_keep_unmasked(ids, mask).tolist())
    rows = []
    for table, own in zip(tables, used, strict=True):
        # Rows that are padding are none that anybody asks about.
        rows.append(np.intersect1d(np.array(sorted(own), dtype=np.int64), table.rows))
    return rows


def _see_ids(model: nn.Module, tables: Sequence[TokenTable], x: NDArray[Any]) -> list[list[NDArray[np.int64]]] | None:
    """Put examples through the model, and return the ids that enter each embedding."""
    seen: list[list[NDArray[np.int64]]] = [[] for _ in tables]
    handles = []
    for index, table in enumerate(tables):
        if not table.by_column:

            def keep(_: nn.Module, given: tuple[Tensor, ...], named: Mapping[str, Tensor], index: int = index) -> None:
                # Whether ids come by position or by name, the first is meant.
                (ids, *_others) = (*given, *named.values())
                seen[index].append(ids.numpy())

            # A hook before the call sees the ids as they are looked up.
            handles.append(model.get_submodule(table.module).register_forward_pre_hook(keep, with_kwargs=True))
    try:
        if handles:
            with torch.no_grad(), in_mode(model, training=False):
                returned_for(model, examples_of(x))
    except (FedAttackError, RuntimeError, TypeError, ValueError, IndexError):
        return None
    finally:
        for handle in handles:
            handle.remove()
    return seen
