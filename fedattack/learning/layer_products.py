"""Gradients of layers as products: a linear or convolutional layer's gradient is δaᵀ, summed over its positions.

The inputs a and what comes back δ are kept in place of the product, which is larger.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedattack.learning.rows import add_squares, size_on

# A GPU waits for Python between small products: a detector of a LeNet took 45,000 of its calls, and takes 18,000.
_SCRATCH = {"cpu": 2 * 2**20, "cuda": 256 * 2**20}
"""Bytes of what is laid out for one product: on a CPU few enough for its caches."""


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

    def moved_by(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Return what k weights (k, outputs, inputs) put out at each position, (k, n, positions, outputs)."""
        module = self.module
        # A GPU's convolutions take TF32 by default, with three digits.
        if not isinstance(module, nn.Conv2d) or inputs.device.type != "cpu":
            laid_out = self.laid_out(inputs)
            return (laid_out.flatten(0, 1) @ weights.mT).view(len(weights), *laid_out.shape[:2], -1)
        kernels = weights.flatten(0, 1).unflatten(1, module.weight.shape[1:])
        out = nn.functional.conv2d(inputs.flatten(0, 1), kernels, None, module.stride, module.padding, module.dilation)
        by_weight = out.permute(0, 2, 3, 1).reshape(len(inputs), self.positions, *weights.shape[:2])
        return by_weight.permute(2, 0, 1, 3)

    def write_gradients(self, inputs: Tensor, deltas: Tensor, out: Tensor) -> None:
        """Write the gradients (n, outputs, inputs) of examples from what came in and back."""
        module = self.module
        steps = isinstance(module, nn.Conv2d) and (*module.stride, *module.dilation)
        if steps == (1, 1, 1, 1) and inputs.device.type == "cpu":
            _multiply_row_by_row(inputs.flatten(0, 1), deltas, module, out)
        else:
            torch.bmm(deltas.mT, self.laid_out(inputs), out=out)

    def came_back(self, deltas: Tensor) -> Tensor:
        """Return the loss's gradient at each position, (n, positions, outputs)."""
        if isinstance(self.module, nn.Conv2d):
            # Without a copy where channels lie last.
            return deltas.flatten(0, 1).permute(0, 2, 3, 1).flatten(1, 2)
        return deltas.reshape(len(deltas), self.positions, self.outputs)


def _multiply_row_by_row(images: Tensor, deltas: Tensor, module: Any, out: Tensor) -> None:
    """Write gradients (n, outputs, inputs) of a convolution whose windows move by one pixel, a kernel's row at a time.

    Windows of one row of the kernel are those of the row before, one row of the image further. They are laid out once
    for all rows, which takes a fifth of the copies of :func:`torch.nn.functional.unfold` for a kernel of five rows.
    """
    down, across = map(int, module.padding)
    if down or across:
        images = nn.functional.pad(images, (across, across, down, down))
    count, channels, height, width = images.shape
    rows, columns = module.kernel_size
    wide, positions = width - columns + 1, deltas.shape[1]
    shifted = images.new_empty((count, channels, columns, height, wide))
    for column in range(columns):
        shifted[:, :, column] = images[:, :, :, column : column + wide]
    shifted = shifted.view(count, channels * columns, height * wide)
    came_back = deltas.mT.contiguous()
    kernels = out.unflatten(2, (channels, rows, columns))
    for row in range(rows):
        windows = shifted[:, :, row * wide : row * wide + positions]
        kernels[:, :, :, row] = torch.bmm(came_back, windows.mT).unflatten(2, (channels, columns))


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


def columns_at(columns: Sequence[tuple[slice, Tensor]], where: slice) -> Tensor:
    """Return the columns (n, numbers) of parameters that lie within one of the runs of columns."""
    for run, matrix in columns:
        if run.start <= where.start and where.stop <= run.stop:
            return matrix[:, where.start - run.start : where.stop - run.start]
    raise AssertionError("every parameter that is in no product is in a run")


@dataclass(frozen=True)
class LayerProduct:
    """A layer's gradients of n examples: ``inputs`` as they came, ``deltas`` (n, positions, outputs)."""

    layer: Layer
    inputs: Tensor
    deltas: Tensor

    @property
    def bytes(self) -> int:
        """What it takes of memory."""
        return 4 * (self.inputs.numel() + self.deltas.numel())

    @property
    def totals(self) -> Tensor:
        """What comes back to all positions together, (n, outputs): a bias's gradients."""
        if self.layer.positions == 1:
            return self.deltas[:, 0]
        return self.deltas.sum(dim=1)

    def _parts(self, numbers: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield rows, inputs and deltas, few enough that ``numbers`` for each of them fit."""
        step = max(1, size_on(self.deltas, _SCRATCH) // (4 * numbers))
        for first in range(0, len(self.deltas), step):
            rows = slice(first, first + step)
            yield rows, self.inputs[rows], self.deltas[rows]

    def multiply_out(self, columns: Sequence[tuple[slice, Tensor]]) -> None:
        """Write the gradients themselves into the columns that are theirs."""
        layer = self.layer
        weight = columns_at(columns, layer.weight)
        for rows, inputs, deltas in self._parts(layer.positions * layer.inputs + layer.size):
            layer.write_gradients(inputs, deltas, weight[rows].unflatten(1, (layer.outputs, layer.inputs)))
        if layer.bias is not None:
            columns_at(columns, layer.bias).copy_(self.totals)

    def project(self, directions: Tensor) -> Tensor:
        """See :class:`fedattack.learning.rows.Block`."""
        # The product of a matrix V with Σ δaᵀ, summed over positions, is Σ δᵀVa.
        layer, count = self.layer, len(directions)
        weights = directions[:, layer.weight].unflatten(1, (layer.outputs, layer.inputs))
        out = directions.new_empty((count, len(self.deltas)))
        for rows, inputs, deltas in self._parts(layer.positions * (layer.inputs + count * layer.outputs)):
            out[:, rows] = (layer.moved_by(weights, inputs) * deltas).sum(dim=(2, 3))
        if layer.bias is not None:
            out += directions[:, layer.bias] @ self.totals.T
        return out

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`fedattack.learning.rows.Block`."""
        # Σ w Σ δaᵀ, over examples and their positions, is one product of matrices with a row for each position.
        layer = self.layer
        matrices = out[:, layer.weight].unflatten(1, (layer.outputs, layer.inputs))
        for rows, inputs, deltas in self._parts(layer.positions * (layer.inputs + layer.outputs)):
            laid_out = layer.laid_out(inputs).flatten(0, 1)
            for total, weight in zip(matrices, weights[:, rows, None, None], strict=True):
                total.addmm_((weight * deltas).flatten(0, 1).T, laid_out)
        if layer.bias is not None:
            out[:, layer.bias] += weights @ self.totals

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`fedattack.learning.rows.Block`."""
        layer = self.layer
        if layer.positions == 1:
            # The entries' squares of δaᵀ are those of δ times those of a. A sum of several such products has none such.
            squares = (weights[:, None] * self.deltas[:, 0].square()).T @ layer.laid_out(self.inputs)[:, 0].square()
            out[layer.weight] += squares.flatten()
        else:
            for rows, inputs, deltas in self._parts(layer.positions * layer.inputs + 2 * layer.size):
                out[layer.weight] += weights[rows] @ (deltas.mT @ layer.laid_out(inputs)).flatten(1).square_()
        if layer.bias is not None:
            out[layer.bias] += weights @ self.totals.square()


@dataclass(frozen=True)
class LayerBlock:
    """Gradients of some examples: columns of the matrix as they are, and layers' as products."""

    size: int
    columns: list[tuple[slice, Tensor]]
    products: list[LayerProduct]

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

    def of(self, rows: slice) -> "LayerBlock":
        """Return some of the examples, without a copy."""
        columns = [(where, values[rows]) for where, values in self.columns]
        products = []
        for product in self.products:
            products.append(LayerProduct(product.layer, product.inputs[rows], product.deltas[rows]))
        return LayerBlock(self.size, columns, products)

    def project(self, directions: Tensor) -> Tensor:
        """See :class:`fedattack.learning.rows.Block`."""
        parts = []
        for where, values in self.columns:
            parts.append(directions[:, where] @ values.T)
        for product in self.products:
            parts.append(product.project(directions))
        return torch.stack(parts).sum(dim=0)

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`fedattack.learning.rows.Block`."""
        if weights.ndim == 1:
            self.accumulate(out[None], weights[None])
            return
        for where, values in self.columns:
            out[:, where] += weights @ values
        for product in self.products:
            product.accumulate(out, weights)

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`fedattack.learning.rows.Block`."""
        for where, values in self.columns:
            add_squares(out[where], values, weights)
        for product in self.products:
            product.accumulate_squares(out, weights)
