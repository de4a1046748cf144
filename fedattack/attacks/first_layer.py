"""The first fully connected layer of a model: whether it takes the input itself, and what follows it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.knowledge import ModelKnowledge
from fedattack.base.errors import FedAttackError, NeedsError, short
from fedattack.learning.inputs import examples_of, returned_for
from fedattack.learning.returned import output_in
from fedattack.learning.torch_utils import in_mode

Floats = NDArray[np.float64]

# Drawn examples that are put through the model to see what its layers take.
_DRAWN = 8


@dataclass(frozen=True)
class FirstLayer:
    """The first layer of a model, which is fully connected, has a bias, and takes the input itself.

    Attributes
    ----------
    weight, bias
        Names of its arrays.
    inputs, neurons
        Numbers that enter and leave it.
    is_relu
        Whether a neuron below zero passes nothing on, so that the example does not move its row.
    """

    weight: str
    bias: str
    inputs: int
    neurons: int
    is_relu: bool

    @property
    def names(self) -> tuple[str, str]:
        """Names of its arrays."""
        return self.weight, self.bias

    def fits(self, arrays: Mapping[str, Any]) -> bool:
        """Say whether arrays hold this layer, in its shapes."""
        shapes = {self.weight: (self.neurons, self.inputs), self.bias: (self.neurons,)}
        return all(name in arrays and arrays[name].shape == shape for name, shape in shapes.items())

    def join(self, arrays: Mapping[str, Any]) -> Floats:
        """Return weights and bias as one matrix (neurons, inputs + 1); the bias is the last column."""
        weight = np.asarray(arrays[self.weight], dtype=np.float64)
        return np.column_stack([weight, np.asarray(arrays[self.bias], dtype=np.float64)])


@dataclass
class _FirstCall:
    """The first call of a layer that has parameters."""

    name: str
    layer: nn.Module
    given: Tensor
    returned: Tensor


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
    return bool(below.any() and (gradient[below] == 0).all() and (gradient[~below] != 0).any())


def find_own_neurons(starts: Sequence[Floats]) -> NDArray[np.bool_]:
    """Return which neurons are alive in one client alone, (clients, neurons), by the layers that each was sent.

    What moves them in the sum is that client's. Layers are as :meth:`FirstLayer.join` gives them.
    """
    # A neuron whose weights are all 0 was switched off for this client.
    alive = np.array([start[:, :-1].any(axis=1) for start in starts])
    return np.asarray(alive & (alive.sum(axis=0) == 1))
