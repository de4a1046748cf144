"""What goes into layers and what comes back to them, from a pass for each example; the other gradients whole."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedattack.learning.inputs import Examples
from fedattack.learning.layer_products import Layer
from fedattack.learning.shadows import ShadowModel


def passes_apart(
    shadow: ShadowModel, layers: Sequence[Layer], start: Tensor, x: Examples, y: Tensor, masks: tuple[Tensor, ...]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return gradients of parameters in no layer, and inputs and what comes back, from a pass for each example.

    What comes back to a layer's output is the gradient of zeros that are added to it, *taps*. They are arguments of the
    loss, so that ``torch.func.grad`` gives their gradients beside those of parameters. The weights of the layers are
    held still: nothing of the size of their gradients is ever made.

    Parameters
    ----------
    shadow, layers
        The model, and the layers whose gradients are to be products.
    start
        (size,): the parameters.
    x, y, masks
        (n, *shape), (n,), (n, 1, …): examples, labels, and a mask for each dropout.
    """
    device = shadow.device
    parameters = shadow.unflatten(start)
    if shadow.one_by_one:
        return shadow.gradients(parameters, x[:, None].to(device), y[:, None].to(device), masks), {}, {}
    free, still = dict(parameters), {}
    for layer in layers:
        for name in (f"{layer.name}.weight", f"{layer.name}.bias"):
            if name in free:
                still[name] = free.pop(name).detach()
    taps = {layer.name: torch.zeros(layer.shape, device=device) for layer in layers}

    def loss_of(
        wanted: tuple[dict[str, Tensor], dict[str, Tensor]], x: Examples, y: Tensor, masks: tuple[Tensor, ...]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        free, taps = wanted
        seen: dict[str, Tensor] = {}
        # Within grad and vmap the taps are other tensors than outside: those that are differentiated must be added.
        hooks = [layer.module.register_forward_hook(_tapping(layer.name, taps, seen)) for layer in layers]
        try:
            return shadow.loss_of({**still, **free}, x, y, masks), seen
        finally:
            for hook in hooks:
                hook.remove()

    of_each = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0, 0), randomness="different")
    (others, deltas), inputs = of_each((free, taps), x[:, None].to(device), y[:, None].to(device), masks)
    return others, {name: values.detach() for name, values in inputs.items()}, deltas


def _tapping(name: str, taps: dict[str, Tensor], seen: dict[str, Tensor]) -> Callable[..., Tensor]:
    """Return a hook that notes a layer's input and adds zeros to its output, whose gradient is then asked for."""

    def tap(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        seen[name] = inputs[0]
        return output + taps[name]

    return tap
