"""What the buffers of batch normalisation tell of a client's examples.

In training, a layer of batch normalisation keeps running statistics. After a step they are (1 − momentum) · before +
momentum · those of the batch. A client that sends its whole state sends them, too. From before and after, a server has
the mean and the variance of the batch in every channel (Hatamizadeh et al. 2023, "Do gradient inversion attacks make
federated learning unsafe?").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedattack.attacks.matching import is_finite

MEAN, VARIANCE, COUNT = "running_mean", "running_var", "num_batches_tracked"

# Keeps layers finite whose inputs are all 0.
_LEAST = 1e-12


def find_tracked(model: nn.Module) -> dict[str, _BatchNorm]:
    """Return the layers that keep running statistics, by what the names of their buffers begin with."""
    layers = {}
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            layers[f"{name}." if name else ""] = layer
    return layers


def step_weights(momentum: float | None, steps: int) -> NDArray[np.float64]:
    """Return how much the batch of each step counts in what the buffers gained: (steps,), summing to one.

    Without a momentum, PyTorch takes the mean of all batches so far.
    """
    if momentum is None:
        return np.full(steps, 1 / steps)
    counts = (1 - momentum) ** np.arange(steps - 1, -1, -1.0)
    return np.asarray(counts / counts.sum())


def compute_statistics(prefix: str, x: Tensor) -> dict[str, Tensor]:
    """Return the mean and the unbiased variance (channels,) of a layer's inputs (n, channels, …), by buffer."""
    axes = [axis for axis in range(x.ndim) if axis != 1]
    return {prefix + MEAN: x.mean(axes), prefix + VARIANCE: x.var(axes)}


def read_statistics(
    model: nn.Module, received: Mapping[str, NDArray[Any]], sent: Mapping[str, NDArray[Any]], steps: int
) -> dict[str, NDArray[np.float32]]:
    """Return the statistics of a client's batches, as its buffers before and after its steps tell them.

    For several steps it is their mean, weighted by :func:`step_weights`. The variance is the unbiased one.

    Parameters
    ----------
    model
        The architecture.
    received, sent
        The states before and after.
    steps
        How many steps the client is taken to make.

    Returns
    -------
    dict of str to ndarray
        (channels,) by the names of the buffers. A layer is left out if its buffers are not there or not finite, if
        they stay as they were, or if it counted another number of batches.
    """
    statistics: dict[str, NDArray[np.float32]] = {}
    for prefix, layer in find_tracked(model).items():
        names = [prefix + MEAN, prefix + VARIANCE, prefix + COUNT]
        if not {*names} <= received.keys() & sent.keys():
            continue
        old = [received[name].astype(np.float64) for name in names]
        new = [sent[name].astype(np.float64) for name in names]
        if not (is_finite(old) and is_finite(new)):
            continue
        # A mean of clients' counters is cut off when a client loads it.
        before, after = int(old[2]), int(new[2])
        stays = np.array_equal(old[0], new[0]) and np.array_equal(old[1], new[1])
        if stays or before < 0 or after - before != steps:
            continue
        kept = before / after if layer.momentum is None else (1 - layer.momentum) ** steps
        if kept == 1:
            continue
        with np.errstate(over="ignore"):
            gained = [((new[kind] - kept * old[kind]) / (1 - kept)).astype(np.float32) for kind in (0, 1)]
        if is_finite(gained):
            statistics |= zip(names[:2], gained, strict=True)
    return statistics


def distances(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Tensor:
    """Return how far statistics (P, channels) by buffer are apart, (P,): the mean over layers and both kinds.

    Squares are counted as shares of the layer's own: of the inputs' mean square, and of the square of the variance.
    """
    shares = []
    for name, target in wanted.items():
        size = target.square()
        if name.endswith(MEAN):
            size = size + wanted[name.removesuffix(MEAN) + VARIANCE].abs()
        shares.append((found[name] - target).square().sum(1) / size.sum(1).clamp(min=_LEAST))
    return sum(shares[1:], shares[0]) / len(shares)
