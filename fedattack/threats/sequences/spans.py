"""What the gradient of a linear layer spans: the inputs of the layer, if there are no more of them than it is wide."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor, nn

Floats = NDArray[np.float64]

# Roundings of the largest singular value up to which one is taken for rounding.
_ROUNDINGS = 0.5

# Deviation of the rounding of a weight, in roundings of its size.
_ROUNDING = 0.5

# Where nothing is below rounding, as behind noise, the share of the weakest directions that is left out.
_WEAKEST = 8

# False tokens that an update may bring on average, if inputs lay anywhere.
_FALSE_ALARMS = 0.01

# By how much inputs are nearer to a span than if they lay anywhere, as they have parts in common.
_NEARER = 2.0


@dataclass(frozen=True)
class Span:
    """The span of a gradient."""

    basis: Tensor  # (width, rank): orthonormal.

    @property
    def width(self) -> int:
        """How many numbers an input has."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """How many directions it spans."""
        return self.basis.shape[1]

    def leave(self, inputs: Tensor) -> Tensor:
        """Return what of inputs (…, width), each of length 1, is outside of it."""
        x = nn.functional.normalize(inputs.double(), dim=-1)
        return x - x @ self.basis @ self.basis.T

    def measure(self, inputs: Tensor) -> Tensor:
        """Return how far inputs (…, width) are from it (…,), as a share of their length; those of no length by 1."""
        return torch.where(inputs.any(dim=-1), self.leave(inputs).norm(dim=-1), 1.0)

    def limit(self, inputs: int, most: float) -> float:
        """Return how far an input may be to count as within it, if so many are measured.

        The squared distance of inputs that lie anywhere has a beta distribution.
        """
        left = self.width - self.rank
        if not left or not self.rank:
            return 0.0
        square = float(betaincinv(left / 2, self.rank / 2, _FALSE_ALARMS / max(inputs, 1)))
        return min(most, float(np.sqrt(square)) / _NEARER)


def span_of(update: Floats, start: Floats | None) -> Span:
    """Return the span of a layer's gradient, or of how far it moved.

    Parameters
    ----------
    update
        (width, outputs): one row for each number of an input.
    start
        The weights from which they moved, as rounding is by their size; ``None`` for gradients.
    """
    left, values, _ = np.linalg.svd(update, full_matrices=False)
    epsilon = float(np.finfo(np.float32).eps)
    floor = _ROUNDINGS * epsilon * float(values[0])
    if start is not None:
        # What came back was rounded: the largest singular value of such noise.
        size = _ROUNDING * float(np.sqrt(np.mean(np.square(start)))) * epsilon
        floor = max(floor, size * (np.sqrt(update.shape[0]) + np.sqrt(update.shape[1])))
    rank = int((values > floor).sum())
    width = len(update)
    if rank == width:
        rank = width - max(1, width // _WEAKEST)
    return Span(torch.from_numpy(left[:, :rank].copy()))
