"""What a client can notice about a server that departs from the protocol.

It looks at the model that it receives, and at its own training.

The checks know neither the model's code nor other clients. A server that knows them can evade them; the guide to
servers says what it then still gains.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DepartureError, short

Arrays = Sequence[NDArray[Any]]

# Inputs of a neuron and neurons of a layer from which on directions are compared: fewer may be alike by chance.
_WIDE, _MANY = 8, 8

# The cosine from which on two neurons look in one direction; what part of a layer may have neurons without weights.
_ONE_DIRECTION, _DEAD = 0.999, 0.25

# A number beyond which steps of training get lost in the rounding of single precision.
_LARGE = 2.0**20

# A jump: so many times as far as the client's own training went, and so many times as far as the model is from 0.
_JUMP, _FAR = 10.0, 0.7

# Examples from which on an update that one example could have made is none of chance, and its second singular value.
_SEVERAL, _SECOND = 8, 1e-3


@dataclass(frozen=True)
class Last:
    """What a client keeps of the last round in which it took part.

    Attributes
    ----------
    received
        The arrays that it was sent.
    went
        How far its own training went from there, as a Euclidean norm.
    """

    received: Arrays
    went: float


def check_received(received: Arrays, last: Last | None = None) -> list[str]:
    """List, in one sentence each, what an honest server would hardly have sent; empty if nothing is odd.

    Parameters
    ----------
    received
        The model's arrays, in its order.
    last
        The last round in which this client took part, if there was one.
    """
    # Buffers of counters are integers, which training counts up.
    floats = {index: array for index, array in enumerate(received) if array.dtype.kind == "f" and array.size}
    found = []
    for index, array in floats.items():
        if not np.isfinite(array).all() or float(np.abs(array).max()) > _LARGE:
            found.append(f"array {index} has numbers so large that rounding hides the training")
    # A weight and what follows it, which of a layer is its bias.
    for (index, weight), (_, bias) in pairwise(floats.items()):
        dead = _count_dead(weight, bias)
        if dead > _DEAD * len(weight):
            found.append(f"array {index}: {dead} of {len(weight)} neurons have a bias and no weights")
    for index, array in floats.items():
        # Rows as well as columns: imprinting weights look alike in what they take, or in what they feed.
        if array.ndim == 2 and (_look_alike(array) or _look_alike(array.T)):
            found.append(f"array {index}: neurons differ only in their bias, or pull at the same outputs")
    if last is not None and _jumps(received, last):
        found.append("the model does not follow from the one before: training does not move a model that far")
    return found


def _count_dead(weight: NDArray[Any], bias: NDArray[Any]) -> int:
    """Count the neurons of a layer that have a bias and no weights; of arrays that are no layer there are none."""
    if weight.ndim < 2 or bias.shape != weight.shape[:1]:
        return 0
    return int((~weight.reshape(len(weight), -1).any(axis=1) & (bias != 0)).sum())


def check_moved(moved: Arrays, count: float, last: Last | None = None) -> list[str]:
    """List, in one sentence each, what no honest model does to this client's training.

    Parameters
    ----------
    moved
        The change of each of the model's arrays in training, or the gradient.
    count
        Its number of examples.
    last
        The last round in which this client took part, if there was one. If its training moved nothing then, either, the
        client may not train at all: it is warned only once.
    """
    weights = [(index, array) for index, array in enumerate(moved) if array.dtype.kind == "f" and array.ndim > 1]
    if weights and not any(array.any() for _, array in weights):
        # Nothing moves either where the client has nothing to train on, as `went` of 0 said before.
        return ["training moved no weight"] if last is None or last.went else []
    found = []
    for index, array in weights:
        if count >= _SEVERAL and _is_of_one(array):
            found.append(f"array {index}: {count:g} examples moved it as a single example does")
    return found


def digest_of(arrays: Arrays) -> str:
    """Return a digest of a model, for clients to compare: an honest server sends the same model to all."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def differences(received: Arrays, returned: Arrays) -> list[NDArray[Any]]:
    """Return the change of each array in training; empty if ``returned`` is not a model of these shapes."""
    if [array.shape for array in received] != [array.shape for array in returned]:
        return []
    pairs = zip(received, returned, strict=True)
    return [after.astype(np.float64) - before for before, after in pairs if before.dtype.kind == "f"]


def norm_of(arrays: Arrays) -> float:
    """Return the Euclidean norm of arrays, without counters."""
    total = 0.0
    for array in arrays:
        if array.dtype.kind == "f":
            total += float(np.square(array, dtype=np.float64).sum())
    return float(np.sqrt(total))


def act(found: Sequence[str], received: Arrays, *, refuses: bool) -> None:
    """Refuse a model in which something was found, or log a warning.

    Raises
    ------
    DepartureError
        If ``refuses`` and something was found; the message has all of it, and the model's digest.
    """
    if not found:
        return
    words = (
        f"the server departs from the protocol, or its model is broken: {short('; '.join(found), 200)}; compare the "
        f"model's digest with other clients': {digest_of(received)[:16]}"
    )
    if refuses:
        raise DepartureError(f"{words}; nothing was sent back")
    logging.getLogger("fedattack").warning(words)


def _look_alike(weight: NDArray[Any]) -> bool:
    """Say whether many rows of a matrix that has wide rows look in one direction."""
    rows = weight[weight.any(axis=1)].astype(np.float64)
    if len(rows) < _MANY or rows.shape[1] < _WIDE or not np.isfinite(rows).all():
        return False
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    # Rows of one direction have nearly the same product with a random vector: sorted by it, they are neighbours.
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=rows.shape[1])
    order = np.argsort(rows @ signs, kind="stable")
    cosines = (rows[order[:-1]] * rows[order[1:]]).sum(axis=1)
    return int((cosines > _ONE_DIRECTION).sum()) >= _MANY - 1


def _jumps(received: Arrays, last: Last) -> bool:
    moved = differences(last.received, received)
    # Both must hold: far as training goes, and far as the model is from nothing.
    return bool(moved) and norm_of(moved) > max(_JUMP * last.went, _FAR * norm_of(last.received))


def _is_of_one(moved: NDArray[Any]) -> bool:
    """Say whether a matrix of many rows is a product of a column and a row."""
    matrix = moved.reshape(len(moved), -1).astype(np.float64)
    matrix = matrix[matrix.any(axis=1)]
    if len(matrix) < _MANY or matrix.shape[1] < _WIDE or not np.isfinite(matrix).all():
        return False
    values = np.linalg.svd(matrix, compute_uv=False)
    # A matrix of rank one: the second singular value is next to nothing.
    return bool(values[1] < _SECOND * values[0])
