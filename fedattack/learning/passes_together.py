"""What goes into layers and what comes back to them, of all examples from one usual pass over a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedattack.learning.inputs import Examples
from fedattack.learning.layer_products import Layer
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import channels_last


def pass_together(
    shadow: ShadowModel,
    layers: Sequence[Layer],
    start: Tensor,
    x: Examples,
    y: Tensor,
    masks: tuple[Tensor, ...],
    *,
    last: bool,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the inputs (n, 1, …) of the layers and what comes back to their outputs, by the layers' names.

    No example changes the loss of another. The derivative of the sum of losses therefore holds each example's.

    Parameters
    ----------
    shadow, layers
        The model, whose parameters are all in these layers.
    start
        (size,): the parameters.
    x, y, masks
        (n, *shape), (n,), (n, 1, …): examples, labels, and a mask for each dropout.
    last
        Whether images are laid out with their channels last, where poolings and convolutions are faster.
    """
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    hooks = []
    for layer in layers:
        hooks.append(layer.module.register_forward_hook(_keeping(layer.name, inputs, outputs, last=last)))
    x = x.to(shadow.device)
    try:
        of_all = tuple(mask.flatten(0, 1) for mask in masks)
        if last and isinstance(x, Tensor) and x.ndim == 4:
            x = channels_last(x)
        mean = shadow.loss_of(shadow.unflatten(start), x, y.to(shadow.device), of_all)
    finally:
        for hook in hooks:
            hook.remove()
    # The loss is a mean over the batch, and n times as much a sum. Zeros come back where it does not depend on a layer.
    came_back = torch.autograd.grad(len(x) * mean, [*outputs.values()], materialize_grads=True)
    # The second axis is that of a batch of one example, as passes apart have it.
    deltas = {name: values[:, None] for name, values in zip(outputs, came_back, strict=True)}
    return {name: values.detach()[:, None] for name, values in inputs.items()}, deltas


def _keeping(name: str, inputs: dict[str, Tensor], outputs: dict[str, Tensor], *, last: bool) -> Callable[..., Tensor]:
    """Return a hook that keeps a layer's input and output, and asks for the gradient of the latter."""

    def keep(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        inputs[name] = given[0]
        # The parameters ask for no gradient, so that there is no graph yet: it begins at the first layer's output.
        if not output.requires_grad:
            output.requires_grad_()
        outputs[name] = output
        layout = torch.preserve_format
        if last and output.ndim == 4:
            # Poolings are faster so.
            layout = torch.channels_last
        # A copy, because what comes next may change its input in place.
        return output.clone(memory_format=layout)

    return keep
