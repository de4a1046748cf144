"""What a model returned last in a call of a client: the client may send it, or give it to another model."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from fedattack.witness.arrays import Arrays
from fedattack.witness.sample import hash_rows

KEPT = 2**20
"""Numbers that a model returned, up to which the latest are kept until the call of the client ends."""

MADE = 2**18
"""Rows that one model made for another, up to which they are known once their outputs are not kept any more."""


@dataclass(frozen=True)
class _Output:
    """What a model returned for a batch: its shape, and what gives the numbers."""

    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

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
        # By width.
        self._hashes: dict[int, set[bytes]] = {}

    def add(self, shape: tuple[int, ...], read: Callable[[], NDArray[Any]]) -> None:
        """Keep what the model returned, and let go of what it returned long ago."""
        output = _Output(shape, read)
        self._kept.append(output)
        self._count += output.count
        while self._count > KEPT:
            oldest = self._kept.popleft()
            self._count -= oldest.count
            hashes = self._hashes.setdefault(oldest.width, set())
            # Most models' outputs are no other's inputs, and hashing takes time.
            if len(hashes) < MADE and self._is_taken(oldest.width):
                hashes.update(hash_rows(oldest.read(), self._seed))

    def read(self) -> Arrays:
        """Return what the model returned last, batch by batch."""
        return [output.read() for output in self._kept]

    def hash_rows(self, width: int) -> set[bytes]:
        """Return the hashes of the rows that the model returned of so many numbers."""
        # A copy, to which what is still kept is added.
        hashes = set(self._hashes.get(width, ()))
        for output in self._kept:
            if output.width == width:
                hashes.update(hash_rows(output.read(), self._seed))
        return hashes
