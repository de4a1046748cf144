"""Losses of single examples that take soft labels, for attacks that search for labels or differentiate by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.base.errors import DataError
from fedattack.learning.losses import per_record_loss
from fedattack.learning.torch_utils import to_tensor

SoftLoss = Callable[[Tensor, Tensor], Tensor]
"""Takes outputs (n, c) and targets as :func:`soft_targets` makes them, and returns the losses (n,)."""


def _soft_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    # −Σ t_j·log softmax(z)_j with Σ t_j = 1.
    return outputs.logsumexp(dim=1) - (outputs * targets).sum(dim=1)


def _mean_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(targets.shape) - targets).square().mean(dim=1)


SOFT_LOSSES: Mapping[str, SoftLoss] = {"cross-entropy": _soft_cross_entropy, "mse": _mean_squares}
"""Losses that take soft labels, by name."""


def soft_loss(spec: str) -> SoftLoss:
    """Return a loss of single examples that takes soft labels: ``cross-entropy``, ``mse``, or an import path.

    Unlike :func:`fedattack.learning.per_record_loss` it can be differentiated by labels and batched by ``vmap``. A loss
    of the user's own gets the labels as they are, which therefore must be known.
    """
    if spec in SOFT_LOSSES:
        return SOFT_LOSSES[spec]
    return per_record_loss(spec)


def soft_targets(spec: str, y: NDArray[Any], outputs: int) -> Tensor:
    """Return labels as :func:`soft_loss` takes them: one-hot (n, outputs), (n, outputs) values, or ``y`` itself."""
    if spec == "cross-entropy":
        if len(y) and not 0 <= y.min() <= y.max() < outputs:
            raise DataError(f"labels are {y.min()} … {y.max()}; expected 0 … {outputs - 1}, as the model has {outputs}")
        return torch.eye(outputs)[to_tensor(y).long()]
    if spec == "mse":
        return to_tensor(y, dtype=torch.float32).reshape(len(y), -1)
    return to_tensor(y)
