"""Columns of tabular records: which inputs encode them, and which values they may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.errors import DataError

if TYPE_CHECKING:
    from fedattack.data.datasets import Dataset

MAX_VALUES = 100
"""A column of more values than this is not enumerated: it has no domain."""


@dataclass(frozen=True, eq=False)
class Column:
    """One column of a table and the model inputs that encode it.

    Attributes
    ----------
    name : str
        The column's name, or its number from 1.
    inputs : tuple of int
        The inputs, one for a number or for two values (coded 0 and 1), one per value for more (one-hot).
    domain : ndarray of float32, shape (v, len(inputs)), or None
        How each possible value is encoded; None for a column of more than :data:`MAX_VALUES` values.
    values : tuple of str
        The values for people, in the order of ``domain``.
    """

    name: str
    inputs: tuple[int, ...]
    domain: NDArray[np.float32] | None = None
    values: tuple[str, ...] = ()

    def codes(self, x: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index in ``domain`` of each record's value.

        Parameters
        ----------
        x : ndarray, shape (n, d)
            Encoded records.

        Raises
        ------
        DataError
            If a record has a value outside the domain, or there is no domain.
        """
        if self.domain is None:
            raise DataError(
                f"column {self.name!r} has more than {MAX_VALUES} values, too many to enumerate; expected a column of "
                "few values; put its numbers into classes, or choose another column"
            )
        own = x[:, list(self.inputs)]
        codes = np.full(len(own), -1, dtype=np.int64)
        for index, value in enumerate(self.domain):
            codes[(own == value).all(axis=1)] = index
        if (codes < 0).any():
            row = int(np.flatnonzero(codes < 0)[0])
            raise DataError(
                f"column {self.name!r}: record {row} is encoded as {own[row].tolist()}, which is no value of the "
                f"domain {', '.join(self.values)}; mend the record or declare the value"
            )
        return codes


@dataclass(frozen=True, eq=False)
class PrivateColumn:
    """An attribute of records, an input or not: what an attacker may want to know of their owner.

    Attributes
    ----------
    values : tuple of str
        The values for people.
    train, test : ndarray of int64, shape (n,)
        Each training and each test record's value, an index into ``values``.
    """

    values: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


def plain_column(x: NDArray[Any], index: int) -> Column:
    """Describe column ``index`` of records (n, d) that nobody declared."""
    found = np.unique(x[:, index])
    if len(found) > MAX_VALUES:
        return Column(str(index + 1), (index,))
    return Column(str(index + 1), (index,), found.astype(np.float32)[:, np.newaxis], tuple(f"{v:g}" for v in found))


def sensitive_column(data: Dataset, name: str) -> Column:
    """Return a column whose values are to be inferred.

    Parameters
    ----------
    data : Dataset
        The records.
    name : str
        The column's name, or its number from 1.

    Raises
    ------
    DataError
        If there is no such column, or it has too many values to enumerate, is constant in the training records, or
        is the target under another name.
    """
    column = data.column(name)
    codes = column.codes(data.x_train)
    present = np.unique(codes)
    if len(present) < 2:
        raise DataError(
            f"{data.name}: sensitive column {name!r} is {column.values[present[0]]} in all training records, so there "
            f"is nothing to infer; choose another of {_some(data.column_names)}"
        )
    if _tells(codes, data.y_train, data.task):
        raise DataError(
            f"{data.name}: sensitive column {name!r} is the target itself under another name, which the attacker "
            f"knows; choose another of {_some(data.column_names)}"
        )
    return column


def _tells(codes: NDArray[np.int64], y: NDArray[Any], task: str) -> bool:
    """Whether a column and the target are one and the same but for their coding."""
    if task == "regression":
        return bool(len(np.unique(y)) == len(np.unique(codes)) and abs(np.corrcoef(codes, y)[0, 1]) > 1 - 1e-9)
    pairs = np.unique(np.stack([codes, y]), axis=1).shape[1]
    return bool(pairs == len(np.unique(codes)) == len(np.unique(y)))


def find_column(columns: Sequence[Column], name: str, where: str) -> Column:
    """Find a column by its name or, failing that, its number from 1.

    Raises
    ------
    DataError
        If there is none.
    """
    for column in columns:
        if column.name == name:
            return column
    if name.isascii() and name.isdigit() and 1 <= int(name) <= len(columns):
        return columns[int(name) - 1]
    raise DataError(
        f"{where}: no column {name!r}; expected one of {_some([column.name for column in columns])}, or a number from "
        f"1 to {len(columns)}"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 20 else f"{', '.join(names[:10])}, … {names[-1]}"
