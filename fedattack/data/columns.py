"""Columns of tabular examples: which inputs encode them, and which values they may take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError

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
        The inputs: one for a number or for two values (coded 0 and 1), one per value for more (one-hot).
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
        """Return the index in ``domain`` of each example's value, shape (n,).

        Parameters
        ----------
        x : ndarray, shape (n, d)
            Encoded examples.

        Raises
        ------
        DataError
            If an example has a value outside the domain, or there is no domain.
        """
        if self.domain is None:
            raise DataError(
                f"column {self.name!r} has more than {MAX_VALUES} values, too many to enumerate; expected a column of "
                "few values; put its numbers into classes, or choose another column"
            )
        encoded = x[:, list(self.inputs)]
        codes = np.full(len(encoded), -1, dtype=np.int64)
        for code, value in enumerate(self.domain):
            codes[(encoded == value).all(axis=1)] = code
        outside = np.flatnonzero(codes < 0)
        if len(outside):
            row = int(outside[0])
            raise DataError(
                f"column {self.name!r}: example {row} is encoded as {encoded[row].tolist()}, which is no value of the "
                f"domain {', '.join(self.values)}; mend the example or declare the value"
            )
        return codes


@dataclass(frozen=True, eq=False)
class PrivateColumn:
    """A private attribute of examples, an input or not: what an attacker may want to know of their owner.

    Attributes
    ----------
    values : tuple of str
        The values for people.
    train, test : ndarray of int64, shape (n,)
        Each training and each test example's value, an index into ``values``.
    """

    values: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


def numbered_column(x: NDArray[Any], name: str, where: str) -> Column:
    """Describe a column of examples (n, d) that declare none, by its number from 1.

    Raises
    ------
    DataError
        If there is none; the message begins with ``where``.
    """
    width = x.shape[1]
    if not _is_number(name, width):
        raise DataError(f"{where}: no column {name!r}; expected a number from 1 to {width}")
    index = int(name) - 1
    values = np.unique(x[:, index])
    if len(values) > MAX_VALUES:
        return Column(str(index + 1), (index,))
    return Column(str(index + 1), (index,), values.astype(np.float32)[:, np.newaxis], number_names(values))


def find_column(columns: Sequence[Column], name: str, where: str) -> Column:
    """Find a column by its name or, failing that, its number from 1.

    Raises
    ------
    DataError
        If there is none; the message begins with ``where``.
    """
    for column in columns:
        if column.name == name:
            return column
    if _is_number(name, len(columns)):
        return columns[int(name) - 1]
    names = [column.name for column in columns]
    raise DataError(
        f"{where}: no column {name!r}; expected one of {list_names(names)}, or a number from 1 to {len(columns)}"
    )


def _is_number(name: str, count: int) -> bool:
    """Say whether ``name`` is a number from 1 to ``count``."""
    return name.isascii() and name.isdigit() and 1 <= int(name) <= count


def number_names(numbers: NDArray[Any]) -> tuple[str, ...]:
    """Write numbers (n,) for people."""
    return tuple(f"{number:g}" for number in numbers)


def list_names(names: Sequence[str]) -> str:
    """List names in a message: of more than 20, the first ten and the last."""
    if len(names) <= 20:
        return ", ".join(names)
    return f"{', '.join(names[:10])}, … {names[-1]}"
