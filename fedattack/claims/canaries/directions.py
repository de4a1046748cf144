"""The random directions that canary clients send, and how a released update is held against them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import RecordError
from fedattack.record import Round

Arrays = Mapping[str, NDArray[Any]]

# It keeps directions apart from other draws with the same seed.
_STREAM = 0xCA7A
# Numbers that are drawn at once, for all canaries together; and entries of each at least.
_DRAWN = 2**22
_ENTRIES = 2**10


def blocks(seed: int, canaries: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, slice, NDArray]]:
    """Draw standard normal entries of canaries' directions, block by block, which bounds the memory.

    A block of a canary is the same whoever else is drawn: its stream is that of the seed, the canary and the array.

    Parameters
    ----------
    seed
        Known to the canaries and to the auditor alone.
    canaries
        Their numbers, from 0.
    sizes
        Entries of each array, in the order in which arrays are sent; 0 for those that are left alone, such as integers.

    Yields
    ------
    int, slice, ndarray
        The array's position, which entries of it when laid flat, and their values, (canaries, entries).
    """
    length = max(_ENTRIES, _DRAWN // max(1, len(canaries)))
    for position, size in enumerate(sizes):
        # A stream for each canary and array: blocks go on where the last one ended.
        streams = [np.random.default_rng((seed, _STREAM, canary, position)) for canary in canaries]
        for start in range(0, size, length):
            count = min(length, size - start)
            drawn = np.stack([stream.standard_normal(count, dtype=np.float32) for stream in streams])
            yield position, slice(start, start + count), drawn


def sizes_of(arrays: Mapping[str, NDArray]) -> list[int]:
    """Return how many entries of each array a canary moves: all of floats, none of others."""
    sizes = []
    for array in arrays.values():
        sizes.append(array.size if np.issubdtype(array.dtype, np.floating) else 0)
    return sizes


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
        raise RecordError(f"{round_.where}: the model after it lacks arrays of the one before; record the run again")
    return before, after


def shapes_of(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array of a model."""
    return {name: array.shape for name, array in arrays.items()}


def move_arrays(arrays: Mapping[str, NDArray], seed: int, canary: int, length: float) -> dict[str, NDArray]:
    """Return arrays that are moved by ``length`` in the direction of a canary, which is uniform on the sphere.

    Entries are added in double precision and rounded once.
    """
    sizes = sizes_of(arrays)
    square = 0.0
    for _, _, drawn in blocks(seed, [canary], sizes):
        square += float(np.square(drawn, dtype=np.float64).sum())
    # Normal entries, scaled to the length, are uniform on the sphere.
    scale = length / math.sqrt(square) if square else 0.0
    result = {name: np.array(array) for name, array in arrays.items()}
    flat = [array.reshape(-1) for array in result.values()]
    for position, part, drawn in blocks(seed, [canary], sizes):
        here = flat[position][part].astype(np.float64) + scale * drawn[0].astype(np.float64)
        flat[position][part] = here.astype(flat[position].dtype)
    return result


class Products:
    """Inner products of canaries' directions with one another and with a vector, collected array by array."""

    def __init__(self, count: int) -> None:
        self.entries = 0
        self._gram = np.zeros((count, count))
        self._along = np.zeros(count)
        self._square = 0.0

    def add(self, directions: NDArray, vector: NDArray) -> None:
        """Take in some entries: of directions (count, n), and of the vector (n,)."""
        wide, along = directions.astype(np.float64), vector.astype(np.float64)
        self.entries += wide.shape[1]
        # One that is not finite is left out in the end.
        with np.errstate(over="ignore", invalid="ignore"):
            # Gram matrix and inner products add up block by block, so that no direction is whole in memory.
            self._gram += wide @ wide.T
            self._along += wide @ along
        self._square += float(np.square(along).sum())

    def scores(self) -> NDArray[np.float64]:
        """Return the t statistic of each direction in the regression of the vector on all of them.

        A canary that did not take part has a direction that is uniform on the sphere, and independent of the vector and
        of the other canaries. What of it is orthogonal to them is uniform there, too. So its statistic has Student's
        distribution with n − count degrees of freedom, exactly, whatever the vector and the others are (Fisher 1915).

        Without the other canaries this is the cosine of Andrew et al. (2024), times √n: Student's t is that cosine g as
        g·√((n − 1)/(1 − g²)).

        Directions that are zero, not finite, or follow from others tell nothing: they are left out, with a score of 0.
        """
        scores = np.zeros(len(self._gram))
        lengths = np.sqrt(np.diag(self._gram))
        kept = _choose_independent(self._gram, lengths)
        # Scaled to correlations first: directions may differ in length by orders of magnitude.
        inverse = np.linalg.inv(self._gram[np.ix_(kept, kept)] / np.outer(lengths[kept], lengths[kept]))
        along = self._along[kept] / lengths[kept]
        coefficients = inverse @ along
        rest = max(float(self._square - along @ coefficients), 0.0)
        # Ordinary least squares: residual variance times the diagonal of the inverse.
        error = np.sqrt(rest / (self.entries - len(kept)) * np.diag(inverse))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = coefficients / error
        scores[kept] = np.nan_to_num(found, nan=0.0, posinf=_LARGEST, neginf=-_LARGEST)
        return scores

    def of_first(self, count: int) -> Products:
        """Return those of the first so many directions alone."""
        first = Products(count)
        first.entries, first._square = self.entries, self._square
        first._gram, first._along = self._gram[:count, :count], self._along[:count]
        return first

    @property
    def freedom(self) -> int:
        """Degrees of freedom: entries − canaries."""
        return self.entries - len(self._gram)


# The t statistic where nothing is left beside the canaries.
_LARGEST = 1e6
# Directions of length 1 of which so little, squared, is orthogonal to the others follow from them, but for rounding.
_DEPENDENT = 1e-10


def _choose_independent(gram: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.intp]:
    """Choose directions that are independent, by a Cholesky decomposition with pivots."""
    from scipy.linalg import lapack

    usable = np.flatnonzero(np.isfinite(lengths) & (lengths > 0))
    scaled = gram[np.ix_(usable, usable)] / np.outer(lengths[usable], lengths[usable])
    _, order, rank, _ = lapack.dpstrf(scaled, tol=_DEPENDENT)
    # LAPACK counts from 1.
    return np.sort(usable[order[:rank] - 1])
