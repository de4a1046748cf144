"""Read the numbers, lists and texts that replies hold in plaintext, and put numbers of one family together."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.structured import is_finite_number
from fedattack.record import Record
from fedattack.threats.plaintext.spread import LEAST, group_names

MOST = 2**20
"""Numbers of the longest vector that is read."""

# Sizes of numbers that bytes are taken for.
_USUAL = 1e-6, 1e6

# Numbers that are standardised at once.
_AT_ONCE = 2**22

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Plain:
    """What a reply holds in plaintext, or several that are alike: what many nodes sent is read once."""

    nodes: tuple[str, ...]  # Whose reply it is; that of a training is one node's.
    type: str  # ``train``, or Flower's type of another message.
    values: Mapping[str, Any]  # By their names, all metrics and configs, with the example count.
    count: float | None  # The example count; ``None`` without one.


def plain_replies(record: Record) -> Iterator[Plain]:
    """Yield what replies of a record hold in plaintext, those to evaluations and queries last."""
    for round_ in record:
        for seen in round_.observations:
            if seen.plaintext:
                yield Plain((seen.node,), "train", seen.plaintext, seen.count)
    for others in record.others:
        if others.way == "reply" and others.metrics:
            yield Plain(others.nodes, others.type, others.metrics, None)


def families_of(values: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Put the names of numbers together that differ in running numbers alone; see :func:`group_names`."""
    return group_names(name for name, value in values.items() if is_finite_number(value))


def vectors_of(values: Mapping[str, Any]) -> dict[str, Vector]:
    """Return all vectors that may hold values of an example: families of numbers, lists, and bytes as numbers."""
    vectors: dict[str, Vector] = {}
    for stem, names in families_of(values).items():
        vectors[stem] = np.array([float(values[name]) for name in names])
    for name, value in values.items():
        if isinstance(value, list):
            flat = _flat(value)
            if flat is not None:
                vectors[name] = flat
        elif isinstance(value, bytes):
            vectors[name] = _of_bytes(value)
    return {
        name: vector for name, vector in vectors.items() if LEAST <= len(vector) <= MOST and np.isfinite(vector).all()
    }


def _flat(value: list[Any]) -> Vector | None:
    """Return a list of numbers, or of such lists, as a vector; ``None`` for one of something else."""
    flat: list[float] = []
    left = [value]
    while left:
        entry = left.pop()
        if isinstance(entry, list):
            left += reversed(entry)
        elif is_finite_number(entry):
            flat.append(float(entry))
        else:
            return None
    return np.array(flat)


def _of_bytes(value: bytes) -> Vector:
    """Read bytes as floating-point numbers if all of them are of a usual size, else as whole numbers."""
    for dtype in ("<f4", "<f8"):
        if len(value) % np.dtype(dtype).itemsize == 0:
            numbers = np.frombuffer(value, dtype).astype(np.float64)
            usual = (np.abs(numbers) >= _USUAL[0]) & (np.abs(numbers) <= _USUAL[1])
            if (usual | (numbers == 0)).all():
                return numbers
    return np.frombuffer(value, np.uint8).astype(np.float64)


def parts_of(vector: Vector, size: int) -> Vector:
    """Cut a vector into examples of a size, (examples, size); none where it does not hold whole ones."""
    if size < LEAST or not len(vector) or len(vector) % size:
        return np.zeros((0, size))
    return vector.reshape(-1, size)


def likeness(vectors: NDArray[Any], examples: NDArray[Any]) -> NDArray[np.float32]:
    """Return how alike vectors (n, size) and examples (m, size) are, up to a scale and an offset: |correlation|.

    What is the same throughout is like nothing.
    """
    return np.asarray(np.abs(_standard(vectors) @ _standard(examples).T))


def _standard(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Centre rows and scale them to length 1, some at once: the steps take several times what the rows do."""
    scaled = np.empty(rows.shape, dtype=np.float32)
    at_once = max(1, _AT_ONCE // max(1, rows.shape[1]))
    for start in range(0, len(rows), at_once):
        block = rows[start : start + at_once]
        centred = block.astype(np.float64) - block.mean(axis=1, keepdims=True, dtype=np.float64)
        norms = np.linalg.norm(centred, axis=1, keepdims=True)
        scaled[start : start + at_once] = np.where(norms > 1e-9, centred / np.maximum(norms, 1e-9), 0.0)
    return scaled
