"""Arrays of numbers as clients hold them: states of models, inputs, labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.witness.sample import Label

Arrays = list[NDArray[Any]]
State = list[tuple[str, NDArray[Any]]]


def plain(values: Any) -> NDArray[Any]:
    """Return numbers as an array.

    Raises
    ------
    DataError
        If they are no dense numbers.
    """
    # A tensor, without an import of PyTorch: NumPy refuses one that has a gradient, or lies on a GPU.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    array = np.asarray(values)
    # A sparse matrix becomes an array of one object, and texts stay texts: neither can be hashed as numbers.
    if array.dtype.kind not in "biuf":
        raise DataError(f"expected numbers, got {type(values).__name__} of {array.dtype}")
    return array


def labels_of(values: NDArray[Any], count: int, *, classes: bool = False) -> Sequence[Label] | None:
    """Return a label for each example, or ``None`` if there is not one number for each.

    Parameters
    ----------
    values
        Whole numbers are classes, others are what a regression is to predict.
    count
        Number of examples.
    classes
        Whether whole numbers of floating type are classes, too.
    """
    if values.size != count or len(values) != count:
        return None
    flat = values.reshape(-1)
    if flat.dtype.kind in "biu" or (classes and bool((flat == np.floor(flat)).all())):
        labels: list[int] = flat.astype(np.int64).tolist()
        return labels
    if not np.isfinite(flat).all():
        return None
    reals: list[float] = flat.astype(np.float64).tolist()
    return reals


def same(one: Arrays, other: Arrays) -> bool:
    """Say whether a state is another, bit for bit and in the order of its arrays, once that has the types of the first.

    Under SecAgg+ clients are sent float64, which their models round.
    """
    if [array.shape for array in one] != [array.shape for array in other]:
        return False
    # By bytes, not by value: NaN is equal to itself then, and 0.0 is not −0.0.
    return all(a.tobytes() == b.astype(a.dtype, copy=False).tobytes() for a, b in zip(one, other, strict=True))


def find_indices(whole: Arrays, exchanged: Arrays) -> list[int] | None:
    """Return which arrays of a state were exchanged, bit for bit and in their order; ``None`` if some are not of it.

    What a client exchanges may be a part of its model, such as an adapter.
    """
    indices, index = [], 0
    for array in exchanged:
        # The first that fits: of two equal arrays of a state, such as two biases of zeros, either will do.
        while index < len(whole) and not same([whole[index]], [array]):
            index += 1
        if index == len(whole):
            return None
        indices.append(index)
        index += 1
    return indices or None
