"""The example-weighted mean of the replies, computed to the last bit as Flower's FedAvg computes it.

Most servers average, so the common model of a round is already in the record: it is the mean of the replies of the
round before. Keeping it again would cost a tenth of the disk with ten clients a round.

- The writer compares the common model with this mean. If they agree it keeps a note, and otherwise the model: that of a
  median, a server-side optimiser, noise, another version of Flower.
- A mean treats every entry alike, so that some thousand entries of each array are enough to compare.
- The note holds the checksum of the whole model. A reader that computes the mean compares with that.
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


def mean_of(replies: Iterable[Arrays], weights: Sequence[float], recipe: str) -> dict[str, NDArray[Any]]:
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
            # Weights are divided before they are multiplied, as Flower does: another order rounds differently.
            part = scale(array, weight / total)
            if name in mean:
                mean[name] += part
            else:
                mean[name] = part
    return mean


_SAMPLED = 4096


def sample(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Take up to some thousand entries of each array, spread over all of it; small arrays are taken whole."""
    sampled = dict(arrays)
    for name, array in sampled.items():
        if array.size > _SAMPLED:
            # Every k-th entry: at least 4,096 of them, from the whole array.
            sampled[name] = array.reshape(-1)[:: array.size // _SAMPLED]
    return sampled


def identical(left: Arrays, right: Arrays) -> bool:
    """Whether two sets of arrays agree in names, dtypes, shapes and every bit (NaN equals the same NaN)."""
    if list(left) != list(right):
        return False
    for name, array in left.items():
        other = right[name]
        if array.dtype != other.dtype or array.shape != other.shape:
            return False
        # Bytes and not ==, by which NaN would differ from itself, and −0 equal 0.
        if raw_bytes(array) != raw_bytes(other):
            return False
    return True
