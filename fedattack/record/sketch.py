"""A sketch of an update: few sums of its entries, from which sums of updates and linear features are told.

CountSketch (Charikar et al. 2002, "Finding frequent items in data streams"), array by array: entry i of an array is
added, with a sign that is drawn, to sum i mod w of the array's w sums. Inner products of sketches are those of the
arrays on average. They deviate by about 1/√w of the product of the lengths. A sketch is linear: that of a sum is the
sum of the sketches.

Recorders keep sketches by this definition, and detectors take their own shadow updates' sketches by it.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.record.format import Arrays, Parameter

# Less than this share of a model's numbers, and fewer than so many, are warned of. Half of LeNet's 22k cost detectors
# 0.2 points of accuracy, and a quarter 1.1: `python -m tests.benchmarks.prolin --only sketches`. The bound in numbers,
# for large models, was tried on 644k alone, where whole updates are told nearly without an error (0.999, and 0.997).
_SHARE, _ENOUGH = 0.4, 20_000

# Entries that are worked on at a time.
_BLOCK = 2**20


@dataclass(frozen=True)
class SketchPlan:
    """How updates of a model are sketched.

    Attributes
    ----------
    sizes
        Entries of each array that is sketched, by its name.
    numbers
        Sums of a whole sketch at most; each array has one at least.
    seed
        Of the signs, which follow from it and from an array's name.
    """

    sizes: Mapping[str, int]
    numbers: int
    seed: int

    @classmethod
    def of(cls, parameters: Iterable[Parameter], numbers: int, seed: int) -> "SketchPlan":
        """Plan for the arrays of a model; those of whole numbers, and empty ones, are in no sketch."""
        floats = [parameter for parameter in parameters if parameter.dtype.startswith("float") and parameter.size]
        return cls({parameter.name: parameter.size for parameter in floats}, numbers, seed)

    @property
    def remark(self) -> str:
        """A warning where sketches are so short that an attack finds less in them; empty for others."""
        size = sum(self.sizes.values())
        enough = min(math.ceil(_SHARE * size), _ENOUGH)
        if self.numbers >= enough:
            return ""
        return (
            f"sketches of {self.numbers:,} numbers of updates of {size:,} are short: detectors of properties may lose "
            f"more than a point of accuracy; take {enough:,} numbers or more"
        )

    @cached_property
    def widths(self) -> dict[str, int]:
        """Sums of each array: about as many as of any other, and an array with fewer entries has one for each of them.

        Small arrays, such as biases and a last layer, move most for their size. They are kept whole in this way.
        """
        left, chosen = self.numbers, {}
        ascending = sorted(self.sizes, key=lambda name: self.sizes[name])
        for position, name in enumerate(ascending):
            share = max(1, left // (len(ascending) - position))
            if share < self.sizes[name]:
                # Odd, so that sums do not follow the sides of layers.
                share -= share % 2 == 0
            chosen[name] = min(share, self.sizes[name])
            left -= chosen[name]
        return {name: chosen[name] for name in self.sizes}

    def signs(self, name: str) -> NDArray[np.uint8]:
        """Return the signs of an array's entries, a bit each; 1 is a plus. NumPy draws the same in all versions."""
        key = int.from_bytes(hashlib.sha256(f"{self.seed} {name}".encode("utf-8", "replace")).digest()[:16], "little")
        drawn = np.random.Philox(key=key).random_raw(-(-self.sizes[name] // 64))
        return drawn.astype("<u8").view(np.uint8)

    def sketch(self, after: Arrays, before: Arrays | None) -> dict[str, NDArray[np.float32]] | None:
        """Sketch how far all arrays moved; ``None`` if they are not those of the plan."""
        for name, size in self.sizes.items():
            for arrays in (after, before or {}):
                if name not in arrays or arrays[name].size != size or arrays[name].dtype.kind not in "biuf":
                    return None
        return {name: self.moved(name, after[name], (before or {})[name], w) for name, w in self.widths.items()} or None

    def moved(self, name: str, after: NDArray[Any], before: NDArray[Any], width: int) -> NDArray[np.float32]:
        """Sketch how far an array moved, ``after`` − ``before``, in ``width`` sums.

        It holds one block of an array in double precision at a time. What is infinite or no number makes sums that are
        no numbers.
        """
        later, earlier, signs = after.reshape(-1), before.reshape(-1), self.signs(name)
        total = np.zeros(width)
        # Whole rows of sums, and whole bytes of signs.
        step = width * 8 * max(1, _BLOCK // (8 * width))
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, later.size, step):
                part = later[first : first + step].astype(np.float64)
                part -= earlier[first : first + step]
                bits = np.unpackbits(signs[first // 8 :][: -(-part.size // 8)], bitorder="little")[: part.size]
                part *= 2.0 * bits - 1
                rows = part.size // width
                total += part[: rows * width].reshape(rows, width).sum(axis=0)
                total[: part.size - rows * width] += part[rows * width :]
            return total.astype(np.float32)
