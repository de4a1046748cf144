"""A model taken apart: which layers' gradients are products, and the gradients of examples by them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedattack.learning.inputs import Examples
from fedattack.learning.layer_products import Layer, LayerBlock, LayerProduct, columns_at
from fedattack.learning.passes_apart import passes_apart
from fedattack.learning.passes_together import pass_together
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import fix_seed


class LayerModel:
    """A model with what is needed to take its layers' gradients apart.

    Layers are :class:`torch.nn.Linear` and :class:`torch.nn.Conv2d` that a pass uses once. Whether their gradients are
    the products that they should be is tried on some examples; if not, no layer is taken apart. Nor is one of a model
    that takes its examples one by one. A pass over 400 examples of a model of 950,000 parameters with group norm takes
    0.02 s so, and 2.5 s where gradients are computed whole each time.

    Parameters
    ----------
    shadow
        The model.
    start
        (size,): its parameters.
    x, y
        (n, *shape), (n,): some examples with their labels.

    Attributes
    ----------
    layers
        Those whose gradients are kept as products.
    activations
        Numbers that the layers of one example put out.
    together
        Whether one usual pass over a batch gives what comes back to each example. It is several times as fast as a
        pass for each example under ``vmap``. It takes a model of such layers alone, whose examples do not mix. That
        is tried on the examples given, if they are at least two.
    """

    def __init__(self, shadow: ShadowModel, start: Tensor, x: Examples, y: Tensor) -> None:
        self.shadow = shadow
        # Where each parameter's entries lie in a vector of all.
        self.slices: dict[str, slice] = {}
        at = 0
        for name, value in shadow.unflatten(start).items():
            self.slices[name] = slice(at, at + value.numel())
            at += value.numel()
        self.layers, self.activations = self._layers(x[:1].to(shadow.device))
        self.together = len(x) > 1 and self.dense == 0
        self._last = True
        if self.together and not self._are_products(start, x, y):
            # A model that calls Tensor.view on what a convolution gives cannot take channels last.
            self._last = False
            self.together = self._are_products(start, x, y)
        if self.layers and not self.together and not self._are_products(start, x, y):
            self.layers = ()

    @property
    def dense(self) -> int:
        """Numbers of an example's gradient that are in no layer."""
        return self.shadow.size - sum(layer.size for layer in self.layers)

    def _layers(self, x: Examples) -> tuple[tuple[Layer, ...], int]:
        """Find the layers that a pass uses once, and how much all modules put out."""
        seen: dict[str, list[tuple[Tensor, Tensor]]] = {}
        modules = dict(self.shadow.model.named_modules())
        hooks = []
        for name, module in modules.items():
            if not list(module.children()):
                hooks.append(module.register_forward_hook(_noting(name, seen)))
        try:
            with torch.no_grad(), fix_seed(0, self.shadow.device):
                self.shadow.call_model({}, x)
        finally:
            for hook in hooks:
                hook.remove()
        layers: list[Layer] = []
        activations = x.numel()
        for name, passes in seen.items():
            activations += sum(output.numel() for _, output in passes)
            if len(passes) == 1 and _can_be_taken_apart(modules[name]) and not self.shadow.one_by_one:
                layer = self._layer(name, modules[name], *passes[0])
                if layer.positions and layer.weight.stop:
                    layers.append(layer)
        return tuple(layers), activations

    def _layer(self, name: str, module: Any, inputs: Tensor, output: Tensor) -> Layer:
        outputs = len(module.weight)
        return Layer(
            name=name,
            weight=self.slices.get(f"{name}.weight", slice(0, 0)),
            bias=self.slices.get(f"{name}.bias"),
            outputs=outputs,
            inputs=module.weight.numel() // outputs,
            shape=output.shape,
            numbers=inputs.numel() + output.numel(),
            module=module,
        )

    def _are_products(self, start: Tensor, x: Examples, y: Tensor) -> bool:
        device = self.shadow.device
        generator = torch.Generator().manual_seed(0)
        with fix_seed(0, device):
            expected = self.shadow.record_gradients(start, x, y, generator=generator)
        # Both ways draw the same dropout: its masks from the generator, and what a model draws itself from the seed.
        found = torch.zeros_like(expected)
        try:
            with fix_seed(0, device):
                block = self.block(start, x, y, self.shadow.draw_masks((len(x), 1), generator.manual_seed(0)), ())
            block.accumulate(found, torch.eye(len(x), device=device))
        except (RuntimeError, IndexError):
            # Such as where the first axis of what a layer takes is not that of the examples.
            return False
        return bool((found - expected).norm() <= 1e-3 * expected.norm())

    def runs(self, multiplied: Sequence[Layer]) -> list[slice]:
        """Return which columns are kept as they are if the gradients of some layers are multiplied out."""
        products = [layer for layer in self.layers if layer not in multiplied]
        runs: list[slice] = []
        for where in self.slices.values():
            if any(_within(where, layer) for layer in products):
                continue
            if runs and runs[-1].stop == where.start:
                runs[-1] = slice(runs[-1].start, where.stop)
            else:
                runs.append(where)
        return runs

    def block(
        self,
        start: Tensor,
        x: Examples,
        y: Tensor,
        masks: tuple[Tensor, ...],
        multiplied: Sequence[Layer],
        into: Sequence[Tensor] | None = None,
    ) -> LayerBlock:
        """Return the gradients of examples (n, *shape) at ``start``; those of the layers ``multiplied`` as they are.

        The columns of :meth:`runs` are written ``into`` matrices (n, columns), where these are given.
        """
        if self.together:
            others: dict[str, Tensor] = {}
            inputs, deltas = pass_together(self.shadow, self.layers, start, x, y, masks, last=self._last)
        else:
            others, inputs, deltas = passes_apart(self.shadow, self.layers, start, x, y, masks)
        # Some gradients are columns of a matrix: of parameters in no layer, and of layers that are multiplied out.
        runs = self.runs(multiplied)
        if into is None:
            into = [torch.empty((len(x), run.stop - run.start), device=start.device) for run in runs]
        columns = list(zip(runs, into, strict=True))
        for name, values in others.items():
            columns_at(columns, self.slices[name]).copy_(values.flatten(1))
        products = []
        for layer in self.layers:
            came_back = layer.came_back(deltas[layer.name])
            if layer in multiplied:
                LayerProduct(layer, inputs[layer.name], came_back).multiply_out(columns)
            else:
                # What is kept is gone through again and again, and a view with axes moved would be slow each time.
                products.append(LayerProduct(layer, inputs[layer.name], came_back.contiguous()))
        return LayerBlock(self.shadow.size, columns, products)


def _noting(name: str, seen: dict[str, list[tuple[Tensor, Tensor]]]) -> Callable[..., None]:
    """Return a hook that notes each input and output of a module, if they are one tensor each."""

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and len(inputs) == 1 and isinstance(inputs[0], Tensor):
            seen.setdefault(name, []).append((inputs[0], output))

    return note


def _can_be_taken_apart(module: nn.Module) -> bool:
    if type(module) is nn.Linear:
        return True
    if type(module) is not nn.Conv2d:
        return False
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _within(where: slice, layer: Layer) -> bool:
    return where in (layer.weight, layer.bias)
