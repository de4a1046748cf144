"""The example-weighted mean of the replies, computed to the last bit as Flower's FedAvg computes it.

Most servers average, so the common model of a round is already in the record: it is the mean of the replies of the
round before. Keeping it again would cost a tenth of the disk with ten clients a round. The writer therefore compares
the model that it sees with this mean and keeps a note in its place if they agree, and the model otherwise (a median, a
server-side optimiser, noise, another version of Flower). A mean treats every entry alike, so that it is enough to
compare some thousand entries of each array; the note holds the checksum of the whole model, and a reader that computes
the mean compares with that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.record.format import Arrays
from fedattack.record.tensors import raw_bytes


def _message(array: NDArray[Any], weight: float) -> NDArray[Any]:
    # Flower's Message-API strategies multiply by a Python float, which NumPy rounds to the array's own precision.
    return np.asarray(array * weight)


def _legacy(array: NDArray[Any], weight: float) -> NDArray[Any]:
    # Its legacy FedAvg multiplies in double precision and rounds the product.
    return np.asarray(np.multiply(array, np.float64(weight)), dtype=array.dtype)


RECIPES: Mapping[str, Callable[[NDArray[Any], float], NDArray[Any]]] = {"message": _message, "legacy": _legacy}


def weighted_mean(replies: Iterable[Arrays], weights: Sequence[float], recipe: str) -> dict[str, NDArray[Any]]:
    """Average ``replies`` in their order, one reply in memory at a time.

    Parameters
    ----------
    replies
        Each client's arrays by name, in the order in which the server took them.
    weights
        Number of examples of each reply.
    recipe
        ``"message"`` or ``"legacy"``: which generation of Flower to match bit for bit.
    """
    scale = RECIPES[recipe]
    total = sum(weights)
    mean: dict[str, NDArray[Any]] = {}
    for reply, weight in zip(replies, weights, strict=True):
        for name, array in reply.items():
            part = scale(array, weight / total)
            if name in mean:
                mean[name] += part
            else:
                mean[name] = part
    return mean


_SAMPLED = 4096


def sample(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Take up to some thousand entries of each array, spread over all of it; small arrays are taken whole."""
    return {
        name: array if array.size <= _SAMPLED else array.reshape(-1)[:: array.size // _SAMPLED]
        for name, array in arrays.items()
    }


def identical(left: Arrays, right: Arrays) -> bool:
    """Whether two sets of arrays agree in names, dtypes, shapes and every bit (NaN equals the same NaN)."""
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and raw_bytes(left[name]) == raw_bytes(right[name])
        for name in left
    )
