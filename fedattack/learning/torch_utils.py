"""Small helpers around torch's global state and numpy's read-only arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@contextmanager
def fix_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and of one device, and put their states back afterwards."""
    # It puts back the states of the devices that are named, and of the CPU.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # torch.manual_seed would seed all other devices as well, whose states are not put back
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def in_mode(model: nn.Module, *, training: bool) -> Iterator[None]:
    """Put a model into training or evaluation mode, and each of its modules back into its own afterwards."""
    # One by one: a client may have frozen a part's batch norm by putting it into evaluation alone.
    modes = {module: module.training for module in model.modules()}
    model.train(training)
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def to_tensor(
    values: NDArray[Any] | Tensor, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Return a tensor of an array; it may share its memory, so it must not be written to."""
    if not isinstance(values, Tensor):
        # torch warns about read-only arrays, such as those of a memory-mapped record
        values = torch.from_numpy(np.require(values, requirements="W"))
    return values.to(device=device, dtype=dtype)


def channels_last(images: Tensor) -> Tensor:
    """Copy images (n, channels, rows, columns) so that channels lie last in memory, with which poolings are faster."""
    # Tensor.contiguous leaves images of one channel as they are, whose strides then do not tell the layers.
    return images.permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format).permute(0, 3, 1, 2)


def activations(model: nn.Module, record: Tensor) -> int:
    """Count the numbers that an example (1, *shape) and what the layers put out for it are, in evaluation mode."""
    counts = [record.numel()]

    def count(_: nn.Module, __: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            counts.append(output.numel())

    layers = [layer for layer in model.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad(), in_mode(model, training=False):
            model(record)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def has_batch_norm(model: nn.Module) -> bool:
    """Say whether a model normalises by the batch."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())


def has_dropout(model: nn.Module) -> bool:
    """Say whether a model drops values at random while it trains."""
    return any(isinstance(part, nn.modules.dropout._DropoutNd) for part in model.modules())


def shapes_of(arrays: Mapping[str, NDArray[Any] | Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array by its name."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def different(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Return the names of which the two have different values, or one has none."""
    return [name for name in {**wanted, **got} if wanted.get(name) != got.get(name)]
