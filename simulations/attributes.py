"""Attributes of the examples: the sensitive column, private attributes, and columns that examples are divided by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.data import Dataset
from fedattack.data.columns import Column, PrivateColumn
from fedattack.data.dataset import sensitive_column
from fedattack.runs.settings import StudySettings

# The value of `sensitive` that stands for the column that the data's source declares.
_DECLARED = "declared"


def find_sensitive(data: Dataset, settings: StudySettings) -> Column:
    """Return the column that is to be inferred.

    Raises
    ------
    DataError
        If there is no such column, or it cannot be inferred; see :func:`fedattack.data.dataset.sensitive_column`.
    """
    name = data.sensitive if settings.sensitive == _DECLARED else settings.sensitive
    if not name:
        raise DataError(
            f"{data.name} declares no sensitive column; set sensitive to the name or number of one of its columns"
        )
    return sensitive_column(data, name)


def find_private(
    data: Dataset, settings: StudySettings, parts: Sequence[NDArray[np.int64]]
) -> dict[str, PrivateColumn]:
    """Return the private attributes that are to be inferred, by name.

    Raises
    ------
    DataError
        If the data has no such attribute, or a client's examples have several of its values.
    """
    names = [name.strip() for name in settings.private.split(",") if name.strip()]
    for name in names:
        if name not in data.private:
            known = ", ".join(data.private) or "none; colour-digits has some"
            raise DataError(f"private = {name!r}: {data.name} has the private attributes {known}")
        codes = data.private[name].train
        mixed = [client for client, part in enumerate(parts) if len(np.unique(codes[part])) > 1]
        if mixed:
            raise DataError(
                f"private = {name!r}: examples of client {mixed[0]} have several of its values; expected one; set "
                f"partition=column:{','.join(names)}, or lower records-per-client or clients"
            )
    return {name: data.private[name] for name in names}


def column_values(data: Dataset, name: str) -> NDArray[Any]:
    """Return all examples' values of a column, input or not, or of several, separated by commas.

    Test examples follow training examples. Values are floats only where there are too many to enumerate.
    """
    if "," in name:
        columns = [column_values(data, part.strip()) for part in name.split(",")]
        combinations = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)[1]
        return combinations.reshape(-1)
    if name in data.groups:
        return np.concatenate([data.groups[name], data.test_groups[name]])
    column = data.column(name)
    x = np.concatenate([data.x_train, data.x_test])
    if column.domain is None:
        return x[:, column.inputs[0]]
    return column.codes(x)
