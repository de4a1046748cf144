"""The released model before and after a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedattack.base.errors import RecordError
from fedattack.record import Round

Arrays = Mapping[str, NDArray[Any]]


def models_of(round_: Round) -> tuple[Arrays, Arrays] | None:
    """Return the model before a round and after it; None if the record lacks one.

    Raises
    ------
    RecordError
        If they have other arrays.
    """
    before, after = round_.common, round_.after
    if before is None or after is None:
        return None
    if shapes_of(before) != shapes_of(after):
        raise RecordError(
            f"{round_.where}: the model after it has not the arrays of the one before; record the run anew"
        )
    return before, after


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a model."""
    return {name: array.shape for name, array in arrays.items()}
