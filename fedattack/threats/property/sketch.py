"""Sketches of updates: few sums of an update's entries, from which linear features of it are told.

CountSketch (Charikar et al. 2002, "Finding frequent items in data streams"), array by array: entry i of an array is
added, with a sign that is drawn, to sum i mod w of the array's w sums. Inner products of sketches are those of the
arrays on average. They deviate by about 1/√w of the product of the lengths.

Detectors of models of which too few shadow updates fit into memory are fitted on sketches. A linear detector of
sketches is one of updates, too: :meth:`Sketch.back` gives its weights.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Sketch:
    """Project vectors (size,) of a model's parameters onto the sums of each array.

    Attributes
    ----------
    sizes
        Entries of each array by its name, in the order in which a vector holds them.
    numbers
        Sums of a whole sketch at most; each array has one at least.
    seed
        Of the signs, which follow from it and from an array's name.
    """

    sizes: Mapping[str, int]
    numbers: int
    seed: int

    @property
    def size(self) -> int:
        """Entries of a vector."""
        return sum(self.sizes.values())

    @property
    def width(self) -> int:
        """Sums of its sketch."""
        return sum(self.widths.values())

    @cached_property
    def widths(self) -> dict[str, int]:
        """Sums of each array: about as many as of any other, and an array with fewer entries has one for each of them.

        Small arrays, such as biases and a last layer, move most for their size. They are kept whole in this way.
        """
        left, chosen = self.numbers, {}
        ascending = sorted(self.sizes, key=self.sizes.__getitem__)
        for index, name in enumerate(ascending):
            share = max(1, left // (len(ascending) - index))
            if share < self.sizes[name]:
                # Odd, so that sums do not follow the sides of layers.
                share -= share % 2 == 0
            chosen[name] = min(share, self.sizes[name])
            left -= chosen[name]
        return {name: chosen[name] for name in self.sizes}

    @cached_property
    def _signs(self) -> Tensor:
        """(size,): 1 or −1 for each entry of a vector."""
        parts = []
        for name, size in self.sizes.items():
            digest = hashlib.sha256(f"{self.seed} {name}".encode("utf-8", "replace")).digest()
            # NumPy draws the same of a key in all versions. Each drawn number has the signs of 64 entries.
            drawn = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(-(-size // 64))
            bits = np.unpackbits(drawn.astype("<u8").view(np.uint8), bitorder="little")[:size]
            parts.append(2 * bits.view(np.int8) - 1)
        return torch.from_numpy(np.concatenate(parts))

    def _arrays(self) -> Iterator[tuple[slice, int]]:
        """Yield where each array lies in a vector, and its number of sums; empty arrays have none."""
        at = 0
        for name, size in self.sizes.items():
            if size:
                yield slice(at, at + size), self.widths[name]
            at += size

    def of(self, vectors: Tensor) -> Tensor:
        """Return the sketches (n, width) of vectors (n, size)."""
        parts, signs = [], self._signs.to(vectors.device)
        for where, width in self._arrays():
            signed = vectors[:, where] * signs[where]
            padded = torch.nn.functional.pad(signed, (0, -signed.shape[1] % width))
            # Row by row of ``width`` entries: entry i stands in column i mod width.
            parts.append(padded.unflatten(1, (-1, width)).sum(dim=1))
        return torch.cat(parts, dim=1)

    def back(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return weights (…, size) whose products with vectors are those of ``weights`` (…, width) with sketches."""
        out = np.empty((*weights.shape[:-1], self.size), dtype=np.float32)
        signs, at = self._signs.numpy(), 0
        for where, width in self._arrays():
            own = weights[..., at : at + width]
            length = where.stop - where.start
            times = -(-length // width)
            out[..., where] = np.tile(own, times)[..., :length] * signs[where]
            at += width
        return out
