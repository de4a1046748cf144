"""Norms of the rows of arrays that a server sends beside a model, as gradients of embeddings in split learning.

Li et al. 2022, "Label leakage and protection in two-party split learning": where one of two classes is rare, a model is
less sure of its examples, and the gradients of their embeddings are longer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import RecordError
from fedattack.record import Record

T = TypeVar("T")

# Rows of an array at least and at most, and numbers of one.
FEWEST_ROWS, _MOST_ROWS, _MOST_NUMBERS = 8, 2**16, 2**24

# Arrays of a node that are looked at, spread over the run.
_MOST_ARRAYS = 6


@dataclass(frozen=True, eq=False)
class RowNorms:
    """Norms of the rows of one array that a node was sent: (rows,)."""

    node: str
    type: str
    name: str
    norms: NDArray[np.float64]


def list_row_norms(record: Record) -> list[RowNorms]:
    """List the norms of arrays with rows that nodes were sent and that do not come back, some of each name."""
    by_name: dict[tuple[str, str, str], list[RowNorms]] = {}
    for array in _find_norms(record):
        by_name.setdefault((array.node, array.type, array.name), []).append(array)
    kept = []
    for arrays in by_name.values():
        kept += spread_over(arrays)
    return kept


def spread_over(arrays: Sequence[T]) -> list[T]:
    """Return some of many arrays, from the first to the last."""
    chosen = np.linspace(0, len(arrays) - 1, min(_MOST_ARRAYS, len(arrays))).astype(int)
    return [arrays[index] for index in chosen.tolist()]


def _find_norms(record: Record) -> Iterator[RowNorms]:
    """Yield the norms of all such arrays."""
    for others in record.others:
        if others.way == "sent":
            for name, array in others.arrays.items():
                if has_rows(array):
                    norms = _norms_of(array)
                    yield from (RowNorms(node, others.type, name, norms) for node in others.nodes)
    for round_ in record:
        for reply in round_.observations:
            # What comes back is a model.
            names = {*(reply.received or {})} - {*(reply.arrays or {})}
            for name in sorted(names):
                try:
                    array = (reply.received or {})[name]
                except RecordError:
                    # Who judges says which file is damaged.
                    continue
                if reply.status == "ok" and has_rows(array):
                    yield RowNorms(reply.node, "train", name, _norms_of(array))


def has_rows(array: NDArray[np.generic]) -> bool:
    """Say whether an array may have a row of numbers for each example."""
    return (
        array.dtype.kind == "f"
        and array.ndim == 2
        and FEWEST_ROWS <= len(array) <= _MOST_ROWS
        and array.size <= _MOST_NUMBERS
    )


def _norms_of(array: NDArray[np.generic]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(np.nan_to_num(array.astype(np.float64)), axis=1))
