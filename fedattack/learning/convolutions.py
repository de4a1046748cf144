"""Convolutions of small images: as products of matrices, and without the weights that no image reaches.

ResNet-18 has six tenths of its weights there if images are 32 pixels wide. Its last layers see one pixel, and eight of
nine weights lie outside.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import torch
from torch import Tensor, nn

Cut = tuple[slice, ...]
"""What is left of a weight (outputs, inputs, rows, columns)."""

# Positions of all images up to which a product is faster. For a convolution, oneDNN lays all weights out anew in each
# pass, which takes longer than to multiply with them a few times (measured on the layers of ResNet-18, 1 to 16 images).
_FEW = 32


class SmallConv2d(nn.Conv2d):
    """A convolution that is one product of matrices where there are few positions, and else as PyTorch's."""

    def forward(self, x: Tensor) -> Tensor:
        """Convolve images (n, channels, rows, columns)."""
        if x.ndim != 4 or x.device.type != "cpu":
            return super().forward(x)
        rows, columns = (_positions(self, size, axis) for axis, size in enumerate(x.shape[2:]))
        if not 0 < len(x) * rows * columns <= _FEW:
            return super().forward(x)
        padding = tuple(map(int, self.padding))
        windows = nn.functional.unfold(x, self.kernel_size, self.dilation, padding, self.stride).mT
        out = nn.functional.linear(windows, self.weight.flatten(1), self.bias)
        return out.mT.reshape(len(x), -1, rows, columns)


def multiply_few_positions(model: nn.Module) -> None:
    """Let the convolutions of a model be products of matrices where they have few positions."""
    for part in model.modules():
        if _is_plain(part):
            # Parameters and hooks stay: :mod:`torch.nn.utils.parametrize` changes classes likewise.
            part.__class__ = SmallConv2d


def leave_unreached_out(model: nn.Module, shape: tuple[int, ...]) -> dict[str, Cut]:
    """Leave weights of convolutions out that meet padding alone if examples have a shape; their gradients are 0.

    Returns
    -------
    dict of str to tuple of slice
        By the name of a weight what is left of it. Weights that are whole are not there.
    """
    sizes: dict[nn.Conv2d, set[torch.Size]] = defaultdict(set)
    hooks = []
    for part in model.modules():
        if _is_plain(part):
            hooks.append(part.register_forward_pre_hook(lambda part, given: sizes[part].add(given[0].shape[1:])))
    try:
        with torch.no_grad():
            # Two examples, because some normalisations take no single one.
            model(torch.zeros((2, *shape), device=next(model.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    often = Counter(id(value) for _, value in model.named_parameters(remove_duplicate=False))
    cuts = {}
    for name, part in model.named_modules():
        if not isinstance(part, nn.Conv2d) or len(sizes[part]) != 1 or often[id(part.weight)] != 1:
            continue
        (size,) = sizes[part]
        kept = [_reached(part, width, axis) for axis, width in enumerate(size[1:])] if len(size) == 3 else []
        cut = (slice(None), slice(None), *kept)
        if part.weight[cut].shape != part.weight.shape:
            cuts[f"{name}.weight" if name else "weight"] = cut
            _cut(part, kept)
    return cuts


def _is_plain(part: nn.Module) -> bool:
    # No subclass, which may do anything else.
    if not isinstance(part, nn.Conv2d) or type(part) not in (nn.Conv2d, SmallConv2d):
        return False
    # A weight that is computed from others is no parameter.
    return (
        isinstance(part.weight, nn.Parameter)
        and part.groups == 1
        and part.padding_mode == "zeros"
        and not isinstance(part.padding, str)
    )


def _positions(part: nn.Conv2d, size: int, axis: int) -> int:
    """Return at how many places of an axis the kernel lies."""
    within = size + 2 * int(part.padding[axis]) - part.dilation[axis] * (part.kernel_size[axis] - 1) - 1
    return within // part.stride[axis] + 1


def _reached(part: nn.Conv2d, size: int, axis: int) -> slice:
    """Return which of the kernel's weights along an axis lie on one of ``size`` pixels at some position."""
    kernel, padding, dilation = part.kernel_size[axis], int(part.padding[axis]), part.dilation[axis]
    positions = range(_positions(part, size, axis))
    reached = []
    for weight in range(kernel):
        pixels = [position * part.stride[axis] - padding + weight * dilation for position in positions]
        if any(0 <= pixel < size for pixel in pixels):
            reached.append(weight)
    if not reached:
        return slice(0, kernel)
    first, last = reached[0], reached[-1]
    # Padding is alike on both sides. What is left must have the same positions.
    left = padding - first * dilation
    spanned = dilation * (last - first) + 1
    if left < 0 or (size + 2 * left - spanned) // part.stride[axis] + 1 != len(positions):
        return slice(0, kernel)
    return slice(first, last + 1)


def _cut(part: nn.Conv2d, kept: list[slice]) -> None:
    """Leave a part of the kernel's rows and columns."""
    rows, columns = kept
    part.weight = nn.Parameter(part.weight.detach()[:, :, rows, columns].clone())
    above, left = map(int, part.padding)
    part.padding = (above - rows.start * part.dilation[0], left - columns.start * part.dilation[1])
    part.kernel_size = (rows.stop - rows.start, columns.stop - columns.start)
