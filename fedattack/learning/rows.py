"""Matrices with a column for each parameter, by their products alone: gradients of examples, updates of clients.

A million parameters and ten thousand examples are 40 GB of gradients. PROLIN's detectors solve linear systems with such
a matrix G, for which Gv, Gᵀw and the columns' squares are enough. Three forms give them exactly, block by block. Where
updates or shadow clients are sketches, :mod:`fedattack.attacks.sketch` stands in, whose products are right on average.

- :class:`Whole`: the matrix itself.
- :class:`GradientRows`: of a linear or convolutional layer a gradient is δaᵀ, summed over the layer's positions. The
  inputs a and what comes back δ are kept in place of the product. What does not fit is computed again in each pass.
- :class:`Centred`: rows less the mean of their group.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedattack.learning.inputs import Examples
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import channels_last, fix_seed

# Examples whose dropout masks are drawn together, as :meth:`ShadowModel.record_gradients` does.
_DRAWN = 128
PASSES = 4
"""Copies of the layers' outputs that a forward and a backward pass hold."""


# A GPU waits for Python between small products: a detector of a LeNet took 45,000 of its calls, and takes 18,000.
_SCRATCH = {"cpu": 2 * 2**20, "cuda": 256 * 2**20}
"""Bytes of what is laid out for one product: on a CPU few enough for its caches."""

_SQUARED = {"cpu": 64, "cuda": 4096}
"""Rows whose squares are taken at a time."""

_MERGED = {"cpu": 512, "cuda": 2**14}
"""Rows that are put together once all are kept."""

_COMPUTED = {"cpu": _DRAWN, "cuda": 32 * _DRAWN}
"""Rows that are computed in one go where all of them are kept, as far as there is memory for what makes them."""


def _size_on(tensor: Tensor, sizes: Mapping[str, int]) -> int:
    """Return the size for a tensor's device: whatever is no CPU takes as much at a time as CUDA does."""
    return sizes.get(tensor.device.type, sizes["cuda"])


class Block(Protocol):
    """Some rows (n, size) of a matrix."""

    def project(self, directions: Tensor) -> Tensor:
        """Return the products (k, n) of directions (k, size) with the rows."""

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """Add weights (k, n) times the rows to ``out`` (k, size); or weights (n,) to ``out`` (size,)."""

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """Add weights (n,) times the squared rows to ``out`` (size,)."""


class Rows(Protocol):
    """A matrix (n, size), which can be gone through again and again."""

    def __len__(self) -> int: ...

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield all rows, block by block, and where each block's rows are."""


@dataclass(frozen=True)
class Whole:
    """A matrix (n, size) that is in memory, as one block."""

    matrix: Tensor

    def __len__(self) -> int:
        return len(self.matrix)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield the matrix."""
        yield slice(0, len(self.matrix)), self

    @property
    def bytes(self) -> int:
        """What it takes of memory."""
        return 4 * self.matrix.numel()

    def project(self, directions: Tensor) -> Tensor:
        """See :class:`Block`."""
        return directions @ self.matrix.T

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`Block`."""
        out += weights @ self.matrix

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`Block`."""
        _add_squares(out, self.matrix, weights)


def _add_squares(out: Tensor, matrix: Tensor, weights: Tensor) -> None:
    """Add weights (n,) times the squared rows to ``out``, a few rows at a time."""
    step = _size_on(matrix, _SQUARED)
    for rows, part in zip(matrix.split(step), weights.split(step), strict=True):
        out += part @ rows.square()


@dataclass(frozen=True)
class Centred:
    """Rows less the mean of their group.

    Attributes
    ----------
    rows
        (n, size).
    means, group
        (groups, size), (n,): each row is of the group of which ``group`` is the number.
    """

    rows: Rows
    means: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        """Yield all rows, block by block."""
        for where, block in self.rows.blocks():
            yield where, _CentredBlock(block, self.means, self.group[where])


@dataclass(frozen=True)
class _CentredBlock:
    block: Block
    means: Tensor
    group: Tensor

    def project(self, directions: Tensor) -> Tensor:
        return self.block.project(directions) - (directions @ self.means.T)[:, self.group]

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        self.block.accumulate(out, weights)
        out -= self._by_group(weights) @ self.means

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """Add Σw(r − m)² = Σwr² − 2mΣwr + m²Σw."""
        self.block.accumulate_squares(out, weights)
        for number, mean in enumerate(self.means):
            own = torch.where(self.group == number, weights, 0)
            total = torch.zeros_like(out)
            self.block.accumulate(total, own)
            out += mean * (own.sum() * mean - 2 * total)

    def _by_group(self, weights: Tensor) -> Tensor:
        total = weights.new_zeros((*weights.shape[:-1], len(self.means)))
        return total.index_add(-1, self.group, weights)


def group_means(rows: Rows, group: Tensor, groups: int, size: int) -> Tensor:
    """Return the mean (groups, size) of each group's rows, in one pass."""
    means = torch.zeros((groups, size), device=group.device)
    often = torch.bincount(group, minlength=groups)
    for where, block in rows.blocks():
        for number, mean in enumerate(means):
            block.accumulate(mean, (group[where] == number) / often[number])
    return means


@dataclass(frozen=True)
class Layer:
    """A layer whose gradient is a product.

    Attributes
    ----------
    name
        Of the module.
    weight, bias
        Where its parameters lie among all.
    outputs, inputs
        Of the weight as a matrix.
    shape
        Of its output for a batch of one example.
    numbers
        How many numbers of an example are kept in place of its gradient.
    module
        The layer itself.
    """

    name: str
    weight: slice
    bias: slice | None
    outputs: int
    inputs: int
    shape: torch.Size
    numbers: int
    module: nn.Module

    @property
    def positions(self) -> int:
        """At how many places the weight is used."""
        return self.shape.numel() // self.outputs

    @property
    def size(self) -> int:
        """Numbers of its gradient."""
        return self.outputs * (self.inputs + (self.bias is not None))

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Return what goes into each position, (n, positions, inputs)."""
        module = self.module
        if isinstance(module, nn.Conv2d):
            images = inputs.flatten(0, 1)
            if images.device.type != "cpu":
                return lay_out_windows(images, module)
            padding = tuple(map(int, module.padding))
            return nn.functional.unfold(images, module.kernel_size, module.dilation, padding, module.stride).mT
        return inputs.reshape(len(inputs), self.positions, self.inputs)

    def came_back(self, deltas: Tensor) -> Tensor:
        """Return the loss's gradient at each position, (n, positions, outputs)."""
        if isinstance(self.module, nn.Conv2d):
            # Without a copy where channels lie last.
            return deltas.flatten(0, 1).permute(0, 2, 3, 1).flatten(1, 2)
        return deltas.reshape(len(deltas), self.positions, self.outputs)


def lay_out_windows(images: Tensor, module: nn.Conv2d) -> Tensor:
    """Return what goes into each position of a convolution, (n, positions, inputs), by one copy of all images.

    On a GPU :func:`torch.nn.functional.unfold` starts a kernel for each image, which takes longer than the copy.
    """
    high, wide = map(int, module.padding)
    windows = nn.functional.pad(images, (wide, wide, high, high))
    for axis in (2, 3):
        kernel, dilation, stride = (sizes[axis - 2] for sizes in (module.kernel_size, module.dilation, module.stride))
        # The window becomes the last axis, of which a dilated kernel sees some entries.
        windows = windows.unfold(axis, (kernel - 1) * dilation + 1, stride)[..., ::dilation]
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


class LayerModel:
    """A model with what is needed to take its layers' gradients apart.

    Layers are :class:`torch.nn.Linear` and :class:`torch.nn.Conv2d` that a pass uses once. Whether their gradients are
    the products that they should be is tried on some examples; if not, no layer is taken apart. Nor is one of a model
    that takes its examples one by one. Of a model of 950,000 parameters with group norm a pass over 400 examples takes
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
        self.places: dict[str, slice] = {}
        at = 0
        for name, value in shadow.unflatten(start).items():
            self.places[name] = slice(at, at + value.numel())
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
            weight=self.places.get(f"{name}.weight", slice(0, 0)),
            bias=self.places.get(f"{name}.bias"),
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
        for place in self.places.values():
            if any(_within(place, layer) for layer in products):
                continue
            if runs and runs[-1].stop == place.start:
                runs[-1] = slice(runs[-1].start, place.stop)
            else:
                runs.append(place)
        return runs

    def block(
        self,
        start: Tensor,
        x: Examples,
        y: Tensor,
        masks: tuple[Tensor, ...],
        multiplied: Sequence[Layer],
        into: Sequence[Tensor] | None = None,
    ) -> "LayerBlock":
        """Return the gradients of examples (n, *shape) at ``start``; those of the layers ``multiplied`` as they are.

        The columns of :meth:`runs` are written ``into`` matrices (n, columns), where these are given.
        """
        if self.together:
            others: dict[str, Tensor] = {}
            inputs, deltas = self._pass_together(start, x, y, masks)
        else:
            others, inputs, deltas = self._passes_apart(start, x, y, masks)
        runs = self.runs(multiplied)
        if into is None:
            into = [torch.empty((len(x), run.stop - run.start), device=start.device) for run in runs]
        columns = list(zip(runs, into, strict=True))
        for name, values in others.items():
            _columns_at(columns, self.places[name]).copy_(values.flatten(1))
        products = []
        for layer in self.layers:
            came_back = layer.came_back(deltas[layer.name])
            if layer in multiplied:
                _Product(layer, inputs[layer.name], came_back).multiply_out(columns)
            else:
                products.append(_Product(layer, inputs[layer.name], came_back.contiguous()))
        return LayerBlock(self.shadow.size, columns, products)

    def _pass_together(
        self, start: Tensor, x: Examples, y: Tensor, masks: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the inputs (n, 1, …) of the layers and what comes back to their outputs, from one pass.

        No example changes the loss of another. The derivative of the sum of losses therefore holds each example's.
        """
        device = self.shadow.device
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        hooks = []
        for layer in self.layers:
            hooks.append(layer.module.register_forward_hook(_keeping(layer.name, inputs, outputs, last=self._last)))
        x = x.to(device)
        try:
            of_all = tuple(mask.flatten(0, 1) for mask in masks)
            if self._last and isinstance(x, Tensor) and x.ndim == 4:
                x = channels_last(x)
            mean = self.shadow.loss_of(self.shadow.unflatten(start), x, y.to(device), of_all)
        finally:
            for hook in hooks:
                hook.remove()
        came_back = torch.autograd.grad(len(x) * mean, [*outputs.values()], materialize_grads=True)
        deltas = {name: values[:, None] for name, values in zip(outputs, came_back, strict=True)}
        return {name: values.detach()[:, None] for name, values in inputs.items()}, deltas

    def _passes_apart(
        self, start: Tensor, x: Examples, y: Tensor, masks: tuple[Tensor, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Return gradients of parameters in no layer, and inputs and what comes back, from a pass for each example."""
        device = self.shadow.device
        parameters = self.shadow.unflatten(start)
        if self.shadow.one_by_one:
            return self.shadow.gradients(parameters, x[:, None].to(device), y[:, None].to(device), masks), {}, {}
        free, held = dict(parameters), {}
        for layer in self.layers:
            for name in (f"{layer.name}.weight", f"{layer.name}.bias"):
                if name in free:
                    held[name] = free.pop(name).detach()
        taps = {layer.name: torch.zeros(layer.shape, device=device) for layer in self.layers}

        def loss_of(
            wanted: tuple[dict[str, Tensor], dict[str, Tensor]], x: Examples, y: Tensor, masks: tuple[Tensor, ...]
        ) -> tuple[Tensor, dict[str, Tensor]]:
            free, taps = wanted
            seen: dict[str, Tensor] = {}
            hooks = [layer.module.register_forward_hook(_tapping(layer.name, taps, seen)) for layer in self.layers]
            try:
                return self.shadow.loss_of({**held, **free}, x, y, masks), seen
            finally:
                for hook in hooks:
                    hook.remove()

        of_each = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0, 0), randomness="different")
        (others, deltas), inputs = of_each((free, taps), x[:, None].to(device), y[:, None].to(device), masks)
        return others, {name: values.detach() for name, values in inputs.items()}, deltas


def _noting(name: str, seen: dict[str, list[tuple[Tensor, Tensor]]]) -> Callable[..., None]:
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and len(inputs) == 1 and isinstance(inputs[0], Tensor):
            seen.setdefault(name, []).append((inputs[0], output))

    return note


def _tapping(name: str, taps: dict[str, Tensor], seen: dict[str, Tensor]) -> Callable[..., Tensor]:
    """Return a hook that notes a layer's input and adds zeros to its output, whose gradient is then asked for."""

    def tap(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        seen[name] = inputs[0]
        return output + taps[name]

    return tap


def _keeping(name: str, inputs: dict[str, Tensor], outputs: dict[str, Tensor], *, last: bool) -> Callable[..., Tensor]:
    """Return a hook that keeps a layer's input and output, and asks for the gradient of the latter."""

    def keep(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
        inputs[name] = given[0]
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


def _can_be_taken_apart(module: nn.Module) -> bool:
    if type(module) is nn.Linear:
        return True
    if type(module) is not nn.Conv2d:
        return False
    return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def _within(place: slice, layer: Layer) -> bool:
    return place in (layer.weight, layer.bias)


def _columns_at(columns: Sequence[tuple[slice, Tensor]], place: slice) -> Tensor:
    """Return the columns (n, numbers) of parameters that lie within one of the runs of columns."""
    for run, matrix in columns:
        if run.start <= place.start and place.stop <= run.stop:
            return matrix[:, place.start - run.start : place.stop - run.start]
    raise AssertionError("every parameter that is in no product is in a run")


@dataclass(frozen=True)
class _Product:
    """A layer's gradients of n examples: ``inputs`` as they came, ``deltas`` (n, positions, outputs)."""

    layer: Layer
    inputs: Tensor
    deltas: Tensor

    @property
    def bytes(self) -> int:
        return 4 * (self.inputs.numel() + self.deltas.numel())

    @property
    def totals(self) -> Tensor:
        """What comes back to all positions together, (n, outputs): a bias's gradients."""
        if self.layer.positions == 1:
            return self.deltas[:, 0]
        return self.deltas.sum(dim=1)

    def _parts(self, numbers: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, inputs (m, positions, inputs) and deltas, few enough that ``numbers`` for each of them fit."""
        step = max(1, _size_on(self.deltas, _SCRATCH) // (4 * numbers))
        for first in range(0, len(self.deltas), step):
            rows = slice(first, first + step)
            yield rows, self.layer.laid_out(self.inputs[rows]), self.deltas[rows]

    def multiply_out(self, columns: Sequence[tuple[slice, Tensor]]) -> None:
        """Write the gradients themselves into the columns that are theirs."""
        layer = self.layer
        weight = _columns_at(columns, layer.weight)
        for rows, inputs, deltas in self._parts(layer.positions * layer.inputs + layer.size):
            torch.bmm(deltas.mT, inputs, out=weight[rows].unflatten(1, (layer.outputs, layer.inputs)))
        if layer.bias is not None:
            _columns_at(columns, layer.bias).copy_(self.totals)

    def project(self, directions: Tensor) -> Tensor:
        layer, count = self.layer, len(directions)
        weights = directions[:, layer.weight].unflatten(1, (layer.outputs, layer.inputs))
        out = directions.new_empty((count, len(self.deltas)))
        for rows, inputs, deltas in self._parts(layer.positions * (layer.inputs + count * layer.outputs)):
            moved = inputs.flatten(0, 1) @ weights.mT
            out[:, rows] = (moved * deltas.flatten(0, 1)).view(count, len(deltas), -1).sum(dim=2)
        if layer.bias is not None:
            out += directions[:, layer.bias] @ self.totals.T
        return out

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        layer = self.layer
        matrices = out[:, layer.weight].unflatten(1, (layer.outputs, layer.inputs))
        for rows, inputs, deltas in self._parts(layer.positions * (layer.inputs + layer.outputs)):
            for total, weight in zip(matrices, weights[:, rows, None, None], strict=True):
                total.addmm_((weight * deltas).flatten(0, 1).T, inputs.flatten(0, 1))
        if layer.bias is not None:
            out[:, layer.bias] += weights @ self.totals

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        layer = self.layer
        if layer.positions == 1:
            squares = (weights[:, None] * self.deltas[:, 0].square()).T @ layer.laid_out(self.inputs)[:, 0].square()
            out[layer.weight] += squares.flatten()
        else:
            for rows, inputs, deltas in self._parts(layer.positions * layer.inputs + 2 * layer.size):
                out[layer.weight] += weights[rows] @ (deltas.mT @ inputs).flatten(1).square_()
        if layer.bias is not None:
            out[layer.bias] += weights @ self.totals.square()


@dataclass(frozen=True)
class LayerBlock:
    """Gradients of some examples: columns of the matrix as they are, and layers' as products."""

    size: int
    columns: list[tuple[slice, Tensor]]
    products: list[_Product]

    @property
    def bytes(self) -> int:
        """What it takes of memory."""
        return sum(4 * values.numel() for _, values in self.columns) + sum(product.bytes for product in self.products)

    def __len__(self) -> int:
        return len(self._first)

    @property
    def _first(self) -> Tensor:
        if not self.columns:
            return self.products[0].deltas
        _, matrix = self.columns[0]
        return matrix

    def multiplied_out(self) -> Tensor:
        """Return the gradients (n, size) themselves."""
        matrix = self._first.new_empty((len(self), self.size))
        for where, values in self.columns:
            matrix[:, where] = values
        for product in self.products:
            product.multiply_out([(slice(0, self.size), matrix)])
        return matrix

    def of(self, rows: slice) -> "LayerBlock":
        """Return some of the examples, without a copy."""
        columns = [(where, values[rows]) for where, values in self.columns]
        products = []
        for product in self.products:
            products.append(_Product(product.layer, product.inputs[rows], product.deltas[rows]))
        return LayerBlock(self.size, columns, products)

    def project(self, directions: Tensor) -> Tensor:
        """See :class:`Block`."""
        parts = []
        for where, values in self.columns:
            parts.append(directions[:, where] @ values.T)
        for product in self.products:
            parts.append(product.project(directions))
        return torch.stack(parts).sum(dim=0)

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`Block`."""
        if weights.ndim == 1:
            self.accumulate(out[None], weights[None])
            return
        for where, values in self.columns:
            out[:, where] += weights @ values
        for product in self.products:
            product.accumulate(out, weights)

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`Block`."""
        for where, values in self.columns:
            _add_squares(out[where], values, weights)
        for product in self.products:
            product.accumulate_squares(out, weights)


_B = TypeVar("_B", Whole, LayerBlock)


class KeptRows(ABC, Generic[_B]):
    """Rows, one for each of n examples, that are kept from pass to pass as far as there is room.

    Parameters
    ----------
    count
        n.
    generator
        Makes the generator of dropout masks.
    room
        Bytes for what is kept. What does not fit is computed again in each pass.
    """

    def __init__(self, count: int, generator: Callable[[], torch.Generator], room: float) -> None:
        self.count = count
        self.generator = generator
        self.room = room
        self.computed = _DRAWN
        # by the first row: blocks, and the state in which the draws of their masks leave the generator
        self._kept: dict[int, tuple[list[tuple[slice, _B]], Tensor]] = {}

    def __len__(self) -> int:
        return self.count

    def blocks(self) -> Iterator[tuple[slice, _B]]:
        """Yield all rows, block by block; see :class:`Rows`."""
        generator = self.generator()
        for first in range(0, len(self), self.computed):
            if first in self._kept:
                blocks, state = self._kept[first]
                generator.set_state(state)
                yield from blocks
                continue
            made: list[tuple[slice, _B]] = []
            for where, block in self.compute(first, min(first + self.computed, len(self)), generator):
                self.room -= block.bytes
                if self.room >= 0:
                    made.append((where, block))
                yield where, block
            if self.room >= 0:
                self._kept[first] = made, generator.get_state()

    @abstractmethod
    def compute(self, first: int, last: int, generator: torch.Generator) -> Iterator[tuple[slice, _B]]:
        """Compute the rows of some examples; of at most :data:`_DRAWN` the masks are drawn together."""


class GradientRows(KeptRows[LayerBlock]):
    """Gradients (n, size) of examples at one point, within a bound of memory.

    Parameters
    ----------
    model
        The model, taken apart.
    start
        (size,): parameters.
    x, y
        (n, *shape), (n,): examples and labels.
    generator
        Makes the generator of dropout masks, which are those of :meth:`ShadowModel.record_gradients`.
    room
        Bytes for what is kept from pass to pass. What does not fit is computed again in each.
    scratch
        Bytes for what is computed at a time.
    """

    def __init__(
        self,
        model: LayerModel,
        start: Tensor,
        x: Examples,
        y: Tensor,
        generator: Callable[[], torch.Generator],
        *,
        room: float,
        scratch: float,
    ) -> None:
        super().__init__(len(x), generator, room)
        self.model = model
        self.start = start
        self.x = x
        self.y = y
        # Layers are multiplied out whose gradients are smaller than what makes them up; and where there is room, those
        # of many positions, whose gradients are faster to multiply with.
        small = tuple(layer for layer in model.layers if layer.size < layer.numbers)
        large = tuple(layer for layer in model.layers if layer.positions > 1 or layer in small)
        self._all_fit = room >= 4 * numbers_kept(model, large) * len(x)
        self.multiplied = large if self._all_fit else small
        at_once = 4 * (PASSES * model.activations + 3 * numbers_kept(model, large))
        fitting = int(max(1, scratch // at_once))
        if self._all_fit:
            most = min(fitting, _size_on(start, _COMPUTED))
            self.computed = max(1, most // _DRAWN) * _DRAWN
        self.chunk = min(self.computed, fitting)
        self._merged: list[tuple[slice, LayerBlock]] = []
        # where all rows fit, their columns are written into one matrix for each run of them
        self._columns: list[tuple[slice, Tensor]] = []
        if self._all_fit:
            for run in model.runs(self.multiplied):
                self._columns.append((run, torch.empty((len(x), run.stop - run.start), device=start.device)))

    def blocks(self) -> Iterator[tuple[slice, LayerBlock]]:
        """Yield all rows, block by block; see :class:`Rows`."""
        if self._merged:
            yield from self._merged
            return
        yield from super().blocks()
        if self._all_fit:
            self._merge()

    def _merge(self) -> None:
        """Put the blocks together, all of which are kept: fewer products, of larger matrices, are faster."""
        made = [block for blocks, _ in self._kept.values() for _, block in blocks]
        self._kept.clear()
        products = []
        for parts in zip(*[block.products for block in made], strict=True):
            inputs, deltas = torch.cat([part.inputs for part in parts]), torch.cat([part.deltas for part in parts])
            products.append(_Product(parts[0].layer, inputs, deltas))
        whole = LayerBlock(self.model.shadow.size, self._columns, products)
        step = _size_on(self.start, _MERGED)
        for first in range(0, len(self), step):
            rows = slice(first, min(first + step, len(self)))
            self._merged.append((rows, whole.of(rows)))

    def compute(self, first: int, last: int, generator: torch.Generator) -> Iterator[tuple[slice, LayerBlock]]:
        """See :class:`KeptRows`."""
        shadow = self.model.shadow
        drawn = [shadow.draw_masks((min(_DRAWN, last - at), 1), generator) for at in range(first, last, _DRAWN)]
        masks = drawn[0]
        if len(drawn) > 1:
            masks = tuple(map(torch.cat, zip(*drawn, strict=True)))
        for begin in range(first, last, self.chunk):
            rows = slice(begin, min(begin + self.chunk, last))
            own = tuple(mask[begin - first : rows.stop - first] for mask in masks)
            # what draws its own dropout must draw the same in each pass, and else anew
            with fix_seed(generator.initial_seed() + begin, shadow.device):
                into = [matrix[rows] for _, matrix in self._columns] or None
                block = self.model.block(self.start, self.x[rows], self.y[rows], own, self.multiplied, into)
            yield rows, block


def numbers_kept(model: LayerModel, multiplied: Sequence[Layer] = ()) -> int:
    """Return how many numbers are kept of an example if the gradients of some layers are multiplied out."""
    total = model.dense
    for layer in model.layers:
        if layer in multiplied:
            total += layer.size
        else:
            total += min(layer.numbers, layer.size)
    return total
