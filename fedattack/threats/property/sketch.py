"""A random projection of updates, for detectors of models that are too large to train shadow clients again and again.

CountSketch (Charikar et al. 2002): every entry is added to one of ``width`` sums, with a sign that is drawn. Inner
products of sketches are those of the vectors on average; they deviate by about 1/√width of the product of the lengths.
A linear detector of sketches is one of updates, too: :meth:`Sketch.back` gives its weights.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Sketch:
    """Project vectors (size,) onto ``width`` sums: of the entries that stand ``width`` apart, with drawn signs.

    Parameters
    ----------
    size, width
        Entries of a vector, and of its sketch.
    seed
        Of the signs.
    device
        Where vectors are.
    """

    def __init__(self, size: int, width: int, *, seed: int, device: torch.device | str = "cpu") -> None:
        self.size = size
        self.width = min(size, width)
        drawn = torch.randint(2, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.int8)
        self._signs = (2 * drawn - 1).to(device)

    def of(self, vectors: Tensor) -> Tensor:
        """Return the sketches (n, width) of vectors (n, size)."""
        padded = torch.nn.functional.pad(vectors * self._signs, (0, -self.size % self.width))
        return padded.reshape(len(vectors), -1, self.width).sum(dim=1)

    def back(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return weights (…, size) whose products with vectors are those of ``weights`` (…, width) with sketches."""
        times = -(-self.size // self.width)
        repeated = np.tile(weights, times)[..., : self.size]
        repeated *= self._signs.cpu().numpy()
        return repeated
