"""The first fully connected layer of a model: whether it takes the input itself, and what follows it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.knowledge import Knowledge, ModelKnowledge
from fedattack.attacks.roles import FIRST, HEAD
from fedattack.base.errors import FedAttackError, NeedsError, short
from fedattack.learning.inputs import examples_of, returned_for
from fedattack.learning.returned import output_in
from fedattack.learning.torch_utils import in_mode

Floats = NDArray[np.float64]

# Drawn examples that are put through the model to see what its layers take.
_DRAWN = 8


@dataclass(frozen=True)
class FirstLayer:
    """The first layer of a model, which is fully connected, has a bias, and takes the input, or what is as good.

    Attributes
    ----------
    weight, bias
        Names of its arrays.
    inputs, neurons
        Numbers that enter and leave it.
    is_relu
        Whether a neuron below zero passes nothing on, so that the example does not move its row.
    is_transposed
        Whether a neuron is a column of the weights.
    scale, shift
        What enters is the input times ``scale`` plus ``shift``: one number for all, or one for each.
    columns
        Which of the example's numbers the input is; empty for all.
    """

    weight: str
    bias: str
    inputs: int
    neurons: int
    is_relu: bool
    is_transposed: bool = False
    scale: tuple[float, ...] = (1.0,)
    shift: tuple[float, ...] = (0.0,)
    columns: tuple[int, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """Names of its arrays."""
        return self.weight, self.bias

    def fits(self, arrays: Mapping[str, Any]) -> bool:
        """Say whether arrays hold this layer, in its shapes."""
        shape = (self.neurons, self.inputs)
        if self.is_transposed:
            shape = shape[::-1]
        fits = all(name in arrays for name in self.names) and arrays[self.weight].shape == shape
        return fits and arrays[self.bias].size == self.neurons

    def join(self, arrays: Mapping[str, Any]) -> Floats:
        """Return weights and bias as one matrix (neurons, inputs + 1); the bias is the last column."""
        weight = np.asarray(arrays[self.weight], dtype=np.float64)
        if self.is_transposed:
            weight = weight.T
        return np.column_stack([weight, np.asarray(arrays[self.bias], dtype=np.float64).reshape(-1)])

    def unscale_weights(self, joined: Floats) -> Floats:
        """Return weights and bias (neurons, inputs + 1) of the layer that takes the input before it is scaled."""
        weight, bias = joined[:, :-1], joined[:, -1]
        # w · (a x + c) + b = (a w) · x + (b + w · c)
        shifted = bias + weight @ np.broadcast_to(self.shift, self.inputs)
        return np.column_stack([weight * np.asarray(self.scale), shifted])

    def unscale_movement(self, moved: Floats) -> Floats:
        """Return how that layer's weights and bias would have moved, by gradients that are the input and 1."""
        weight = (moved[:, :-1] - moved[:, -1:] * np.asarray(self.shift)) / np.asarray(self.scale)
        return np.column_stack([weight, moved[:, -1]])

    @property
    def coarsening(self) -> float:
        """By how much more an entry may be off where the scale is taken back, 1 or more."""
        scale, shift = np.abs(self.scale), np.abs(self.shift)
        return max(1.0, float((1 + shift.max()) / scale.min()))


@dataclass
class _FirstCall:
    """The first call of a layer that has parameters."""

    name: str
    layer: nn.Module
    given: Tensor
    returned: Tensor


def find_known_first_layer(knowledge: Knowledge) -> FirstLayer:
    """Find the first layer of the clients' model, or by the roles of arrays where the attacker can build none.

    For models of several forms it is that of the first form that has one.

    Raises
    ------
    NeedsError
        As :func:`find_first_layer`; or if no array, by the gradients of examples, is one that takes the example.
    """
    if knowledge.model is not None:
        return find_first_layer(knowledge.model)
    for layer in find_layers_by_form(knowledge).values():
        return layer
    raise NeedsError(
        "it needs a first layer that is fully connected, has a bias and receives the input; by the gradients of "
        "single examples, no array is one"
    )


def find_layers_by_form(knowledge: Knowledge) -> dict[int, FirstLayer]:
    """Find by the roles of arrays the first layer of each form of model that has one."""
    found: dict[int, FirstLayer] = {}
    for role in knowledge.roles:
        if role.kind == FIRST and not role.is_bias and len(role.shape) == 2:
            neurons, inputs = role.shape[::-1] if role.is_transposed else role.shape
            how = role.is_relu, role.is_transposed, role.scale, role.shift, role.columns
            layer = FirstLayer(role.name, role.bias, inputs, neurons, *how)
            # The one of several, such as a wide and a deep part, that gives away most numbers.
            before = found.get(role.form, layer)
            found[role.form] = max(before, layer, key=lambda layer: (layer.inputs, layer.neurons))
    return dict(sorted(found.items()))


def count_known_outputs(knowledge: Knowledge) -> int:
    """Return how many outputs the clients' model has; 0 where neither a model nor a head's role says so."""
    if knowledge.model is not None:
        return knowledge.model.classes
    heads = [role for role in knowledge.roles if role.kind == HEAD and role.is_bias]
    return max((math.prod(role.shape) for role in heads), default=0)


def find_first_layer(known: ModelKnowledge) -> FirstLayer:
    """Find the first layer of the clients' model by putting drawn examples through it.

    Raises
    ------
    NeedsError
        If the layer that the input meets first is not fully connected, has no bias, or takes something else.
    """
    model = known.build()
    # Drawn and not constant: a change of the input, such as a normalisation, then shows in the values.
    x = np.random.default_rng(0).normal(size=(_DRAWN, *known.input_shape)).astype(np.float32)
    call, output = _see_first_call(model, x)
    name = call.name or "the model itself"
    layer = call.layer
    if not isinstance(layer, nn.Linear):
        raise NeedsError(f"it needs a first layer that is fully connected; here it is {name}, {type(layer).__name__}")
    if layer.bias is None:
        raise NeedsError(f"it needs a first layer with a bias; {name} has none")
    flat = x.reshape(_DRAWN, -1)
    # Equal to the bit: a layer that sees the input itself gives it back by its gradient.
    if call.given.shape != flat.shape or not torch.equal(call.given, torch.from_numpy(flat)):
        raise NeedsError(f"it needs a first layer that receives the input unchanged; before {name} it is changed")
    prefix = f"{call.name}." if call.name else ""
    is_relu = _passes_nothing_below_zero(call.returned, output)
    return FirstLayer(f"{prefix}weight", f"{prefix}bias", layer.in_features, layer.out_features, is_relu)


def _see_first_call(model: nn.Module, x: NDArray[np.float32]) -> tuple[_FirstCall, Tensor]:
    """Put examples through the model; return the first call of a layer with parameters, and the model's output."""
    calls: list[_FirstCall] = []
    handles = []
    for name, layer in model.named_modules():
        # recurse=False: a container has no parameters of its own.
        if next(layer.parameters(recurse=False), None) is not None:

            def keep(layer: nn.Module, given: tuple[Any, ...], returned: Any, name: str = name) -> Any:
                if not (given and isinstance(given[0], Tensor) and isinstance(returned, Tensor)):
                    return None
                calls.append(_FirstCall(name, layer, given[0].detach().clone(), returned))
                # What follows may write into it.
                return returned.clone()

            handles.append(layer.register_forward_hook(keep))
    try:
        with torch.enable_grad(), in_mode(model, training=False):
            output = output_in(returned_for(model, examples_of(x)))
    except (FedAttackError, RuntimeError, TypeError, ValueError, IndexError) as cause:
        raise NeedsError(
            f"it calls the model, but the model refuses random examples: {short(str(cause), 100)}"
        ) from None
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise NeedsError("it needs a first layer that is fully connected, but no layer receives the input")
    return calls[0], output


def _passes_nothing_below_zero(entered: Tensor, output: Tensor) -> bool:
    """Say whether the output depends on what leaves the first layer where that is above zero, and nowhere else."""
    # Without parameters in the graph nothing can be said.
    if not output.requires_grad:
        return False
    # sin of the output: a plain sum could cancel, as the sum of a softmax does. In double precision, so that it does
    # not vanish.
    gradient = torch.autograd.grad(output.double().sin().sum(), entered, allow_unused=True)[0]
    if gradient is None:
        return False
    below = entered <= 0
    # A ReLU passes no gradient where its input is below zero.
    is_passed = gradient != 0
    return bool(below.any() and not (is_passed & below).any() and (is_passed & ~below).any())


def find_own_neurons(starts: Sequence[Floats]) -> NDArray[np.bool_]:
    """Return which neurons are alive in one client alone, (clients, neurons), by the layers that each was sent.

    What moves them in the sum is that client's. Layers are as :meth:`FirstLayer.join` gives them.
    """
    # A neuron whose weights are all 0 was switched off for this client.
    alive = np.array([start[:, :-1].any(axis=1) for start in starts])
    return np.asarray(alive & (alive.sum(axis=0) == 1))
