"""The last linear layer of a classifier: which arrays it has, and what enters and leaves it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.base.errors import NeedsError
from fedattack.learning.inputs import examples_of, returned_for
from fedattack.learning.torch_utils import in_mode
from fedattack.record.format import Arrays

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer of a model."""

    layer: nn.Linear  # The module.
    weight: str  # Names of its arrays; ``None`` for a bias that there is not.
    bias: str | None

    @property
    def classes(self) -> int:
        """Outputs of the layer."""
        return self.layer.out_features

    def join(self, arrays: Mapping[str, Any]) -> Floats:
        """Return weights and bias of it as one matrix (classes, inputs + 1); the bias comes last, if there is one."""
        weight = np.asarray(arrays[self.weight], dtype=np.float64)
        if self.bias is None:
            return weight
        return np.column_stack([weight, np.asarray(arrays[self.bias], dtype=np.float64)])


def find_last_layer(model: nn.Module) -> LastLayer:
    """Find the last linear layer of a model.

    Raises
    ------
    NeedsError
        If the model has no linear layer.
    """
    found = None
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            prefix = f"{name}." if name else ""
            bias = None if layer.bias is None else f"{prefix}bias"
            found = LastLayer(layer, f"{prefix}weight", bias)
    if found is None:
        raise NeedsError("labels are read from the gradient of a last linear layer, and this model has none")
    return found


@dataclass(frozen=True)
class Outputs:
    """What a model computes of some inputs."""

    softmax: Floats  # (n, classes): what the last layer gives.
    inputs: Floats  # (n, inputs): what enters the last layer.
    has_bias: bool  # Whether the layer has a bias.

    @property
    def columns(self) -> Floats:
        """(n, inputs + 1): what enters the layer, with a last column of ones for its bias, if it has one."""
        if not self.has_bias:
            return self.inputs
        return np.column_stack([self.inputs, np.ones(len(self.inputs))])


def compute_outputs(model: nn.Module, last: LastLayer, state: Arrays, x: NDArray[Any]) -> Outputs | None:
    """Compute what enters and leaves the last layer, at some parameters.

    Returns
    -------
    Outputs or None
        ``None`` if the layer is not called once for each example, as in models of sequences.
    """
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], returned: Tensor) -> None:
        calls.append((given[0].detach(), returned.detach()))

    handle = last.layer.register_forward_hook(keep)
    try:
        with torch.no_grad(), in_mode(model, training=False):
            returned_for(model, examples_of(x))
    finally:
        handle.remove()
    if len(calls) != 1 or calls[0][0].ndim != 2 or len(calls[0][0]) != len(x):
        return None
    inputs, logits = calls[0]
    softmax = torch.softmax(logits.double(), dim=1)
    return Outputs(softmax.numpy(), inputs.double().numpy(), last.bias is not None)


def interpolate(start: Arrays, end: Arrays, share: float) -> dict[str, NDArray[Any]]:
    """Return the model that lies between two; arrays that are no floating-point numbers are those of the start."""
    between = {}
    for name, before in start.items():
        value = np.asarray(before)
        if value.dtype.kind == "f" and name in end:
            value = ((1 - share) * value + share * np.asarray(end[name])).astype(value.dtype)
        between[name] = value
    return between
