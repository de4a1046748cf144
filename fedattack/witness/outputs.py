"""What a model returned last in a call of a client: the client may send it, or give it to another model."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.witness.arrays import Arrays
from fedattack.witness.sample import hash_rows

KEPT = 2**20
"""Numbers that a model returned, up to which the latest are kept until the call of the client ends."""

INPUTS = 2**24
"""Numbers of the inputs of these, up to which they are kept, too: a client may send what it predicts of public ones."""

MADE = 2**18
"""Rows that one model made for another, up to which they are known once their outputs are not kept any more."""


@dataclass(frozen=True)
class _Output:
    """What a model returned for a batch: its shape, and what gives the numbers, and those of what it took."""

    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]
    input_shape: tuple[int, ...] = ()
    read_inputs: Callable[[], NDArray[Any]] | None = None

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def count_inputs(self) -> int:
        """How many numbers its inputs have, if they are kept."""
        return 0 if self.read_inputs is None else math.prod(self.input_shape)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return math.prod(self.shape[1:])


class ModelOutputs:
    """The latest outputs of one model, the latest last, and hashes of rows of earlier ones.

    Parameters
    ----------
    seed
        Key of the hashes.
    is_taken
        Says whether another model takes rows of so many numbers: of these alone the hashes are needed.
    """

    def __init__(self, seed: int, is_taken: Callable[[int], bool]) -> None:
        self._seed = seed
        self._is_taken = is_taken
        self._kept: deque[_Output] = deque()
        self._count = 0
        # Numbers of the inputs that are kept.
        self._inputs = 0
        # By width.
        self._hashes: dict[int, set[bytes]] = {}

    def add(
        self,
        shape: tuple[int, ...],
        read: Callable[[], NDArray[Any]],
        input_shape: tuple[int, ...] = (),
        read_inputs: Callable[[], NDArray[Any]] | None = None,
    ) -> None:
        """Keep what the model returned, and let go of what it returned long ago.

        ``read_inputs`` gives what it took, where it predicts and is not trained.
        """
        output = _Output(shape, read, input_shape, read_inputs)
        self._kept.append(output)
        self._inputs += output.count_inputs
        self._let_go_of_inputs()
        self._count += output.count
        while self._count > KEPT:
            oldest = self._kept.popleft()
            self._count -= oldest.count
            self._inputs -= oldest.count_inputs
            hashes = self._hashes.setdefault(oldest.width, set())
            # Most models' outputs are no other's inputs, and hashing takes time.
            if len(hashes) < MADE and self._is_taken(oldest.width):
                hashes.update(hash_rows(oldest.read(), self._seed))

    def read(self) -> Arrays:
        """Return what the model returned last, batch by batch."""
        return [output.read() for output in self._kept]

    def _let_go_of_inputs(self) -> None:
        """Forget the oldest inputs, as long as there are too many."""
        for index, output in enumerate(self._kept):
            if self._inputs <= INPUTS:
                break
            self._inputs -= output.count_inputs
            self._kept[index] = replace(output, read_inputs=None)

    def read_inputs(self, batches: range) -> NDArray[Any] | None:
        """Return what the model took for some of the outputs of :meth:`read`; ``None`` if that was not kept."""
        kept = [self._kept[index].read_inputs for index in batches]
        arrays = [read() for read in kept if read is not None]
        if len(arrays) < len(kept) or len({(array.shape[1:], array.dtype) for array in arrays}) != 1:
            return None
        return np.concatenate(arrays)

    def hash_rows(self, width: int) -> set[bytes]:
        """Return the hashes of the rows that the model returned of so many numbers."""
        # A copy, to which what is still kept is added.
        hashes = set(self._hashes.get(width, ()))
        for output in self._kept:
            if output.width == width:
                hashes.update(hash_rows(output.read(), self._seed))
        return hashes
