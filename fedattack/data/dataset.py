"""A dataset: the training and the test examples of one task."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.data.columns import Column, PrivateColumn, find_column, list_names, numbered_column

TARGET_BINS = 5
"""Into how many classes of about equal size the targets of a regression are put where classes are needed."""


@dataclass(frozen=True, eq=False)
class Dataset:
    r"""Training and test examples of one task.

    Attributes
    ----------
    name : str
        The name that it was loaded by, or the stem of its ``.npz`` or ``.toml`` file.
    x_train, x_test : ndarray of float32, shape (n, \*input_shape)
        Examples. Images are (n, channels, height, width), with mean 0 and standard deviation 1 per channel over the
        training split. Tabular examples are (n, features), as they came or as their columns are declared.
    y_train, y_test : ndarray of int64 or float32, shape (n,)
        Labels in 0 … classes - 1, or the targets of a regression, with mean 0 and standard deviation 1 over the
        training split.
    classes : int
        Number of classes; 1, the number of outputs, for a regression.
    columns : tuple of Column
        What the inputs of tabular examples mean, if that is declared.
    groups : mapping of str to ndarray of int64, shape (n,)
        Columns of the training examples that are no input, by which examples can be divided among clients.
    test_groups : mapping of str to ndarray of int64, shape (n,)
        The same columns of the test examples.
    sensitive : str
        Name of the column that the data's source declares as sensitive; empty for none.
    private : mapping of str to PrivateColumn
        Attributes of the examples that an attacker may look for; no inputs, but in the case of Adult. They are among
        ``groups`` as well.
    """

    name: str
    x_train: NDArray[np.float32]
    y_train: NDArray[Any]
    x_test: NDArray[np.float32]
    y_test: NDArray[Any]
    classes: int
    columns: tuple[Column, ...] = ()
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    test_groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sensitive: str = ""
    private: Mapping[str, PrivateColumn] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """``classification`` or ``regression``."""
        return "classification" if np.issubdtype(self.y_train.dtype, np.integer) else "regression"

    @cached_property
    def labels(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Classes of the training examples (n,), and their names; of a regression, fifths of its targets."""
        if self.task == "classification":
            return self.y_train, tuple(str(label) for label in range(self.classes))
        names = tuple(f"target, fifth {index + 1}" for index in range(TARGET_BINS))
        return self._fifths(self.y_train), names

    @property
    def test_labels(self) -> NDArray[np.int64]:
        """Classes of the test examples (n,), by the same names as :attr:`labels`."""
        return self.y_test if self.task == "classification" else self._fifths(self.y_test)

    def _fifths(self, y: NDArray[Any]) -> NDArray[np.int64]:
        # The edges of the training split, for the test split, too: no test example moves them.
        edges = np.quantile(self.y_train, np.arange(1, TARGET_BINS) / TARGET_BINS)
        return np.searchsorted(edges, y, side="right")

    @property
    def column_names(self) -> list[str]:
        """Names of the columns; numbers from 1 where none are declared."""
        declared = [column.name for column in self.columns]
        return declared or [str(index + 1) for index in range(math.prod(self.input_shape))]

    def column(self, name: str) -> Column:
        """Return a column by its name, or its number from 1.

        Raises
        ------
        DataError
            If there is no such column, or the examples are no tables.
        """
        if self.columns:
            return find_column(self.columns, name, self.name)
        if self.x_train.ndim != 2:
            raise DataError(
                f"{self.name}: its examples have shape {self.input_shape} and so no columns; expected a table, such as "
                "diabetes, or a file declared in TOML"
            )
        return numbered_column(np.concatenate([self.x_train, self.x_test]), name, self.name)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.x_train.shape[1:])

    @property
    def limits(self) -> tuple[tuple[float, float], ...] | None:
        """Least and largest input of each channel of images, its black and white as they are scaled; none of tables."""
        if len(self.input_shape) != 3:
            return None
        # In images all pixels of a channel; the axes are (n, channels, height, width).
        axes = (0, 2, 3)
        low = np.minimum(self.x_train.min(axis=axes), self.x_test.min(axis=axes))
        high = np.maximum(self.x_train.max(axis=axes), self.x_test.max(axis=axes))
        return tuple(zip(low.tolist(), high.tolist(), strict=True))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the shapes, types and bytes of the four arrays: equal data, equal fingerprint."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            # dtype.str holds the order of bytes, so that equal bytes of other types differ.
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def sensitive_column(data: Dataset, name: str) -> Column:
    """Return a column whose values are to be inferred.

    Parameters
    ----------
    data : Dataset
        The examples.
    name : str
        The column's name, or its number from 1.

    Raises
    ------
    DataError
        If there is no such column, or it has too many values to enumerate. If it is constant in the training examples,
        or the target under another name.
    """
    column = data.column(name)
    codes = column.codes(data.x_train)
    present = np.unique(codes)
    if len(present) < 2:
        raise DataError(
            f"{data.name}: sensitive column {name!r} is {column.values[present[0]]} in all training examples, so there "
            f"is nothing to infer; choose another of {list_names(data.column_names)}"
        )
    if _is_target(codes, data.y_train, data.task):
        raise DataError(
            f"{data.name}: sensitive column {name!r} is the target itself under another name, which the attacker "
            f"knows; choose another of {list_names(data.column_names)}"
        )
    return column


def _is_target(codes: NDArray[np.int64], y: NDArray[Any], task: str) -> bool:
    """Say whether a column (n,) and the target (n,) are the same but for their coding."""
    values, targets = len(np.unique(codes)), len(np.unique(y))
    if values != targets:
        return False
    if task == "regression":
        # A target that is the column times a factor is correlated with it perfectly.
        return bool(abs(np.corrcoef(codes, y)[0, 1]) > 1 - 1e-9)
    pairs = np.unique(np.stack([codes, y], axis=1), axis=0)
    # As many pairs as values: each value goes with one target.
    return len(pairs) == values
