"""How far a movement is from the one that a client sent, with a slope in closed form.

A model has millions of parameters, and a batch few examples. Sums and products of movements then take as long as the
passes that make the movements. Autograd would differentiate each of them by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedattack.threats.attribute.gradient_matching import along_first

Parts = Sequence[Tensor]
"""A vector for each of P searches, in parts (P, …)."""


def half_squared_distance(moved: Parts, wanted: Parts, scale: Tensor, *, unit: bool) -> Tensor:
    """Return ½‖v − t‖² for each of P searches, (P,); it can be differentiated once.

    Parameters
    ----------
    moved, wanted
        The parts of movements m, and of t.
    scale
        (P,): v is scale · m. It keeps squares of small movements from underflowing.
    unit
        Bring v to length 1 then.
    """
    return _Distance.apply(unit, scale, *moved, *wanted)  # type: ignore[no-any-return]


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unit: bool, scale: Tensor, *parts: Tensor) -> Tensor:
        moved, wanted = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        scaled = [part * along_first(scale, part) for part in moved]
        factor = torch.ones_like(scale)
        if unit:
            factor = (inner_products(scaled, scaled) + torch.finfo(scale.dtype).tiny).rsqrt()
        # t − v, and not v − t: this takes one pass.
        apart = []
        for target, part in zip(wanted, scaled, strict=True):
            apart.append(torch.addcmul(target, part, along_first(factor, part), value=-1))
        ctx.unit, ctx.scale, ctx.factor, ctx.scaled, ctx.apart = unit, scale, factor, scaled, apart
        return inner_products(apart, apart) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        # With u = scale · m, v = factor · u and d = v − t, the gradient along u is factor · d, where v has any length.
        # Where it has length 1, what lies along v makes no difference: factor · (d − ⟨v, d⟩v).
        along = -slope * ctx.scale * ctx.factor
        back = torch.zeros_like(along)
        if ctx.unit:
            back = -along * ctx.factor**2 * inner_products(ctx.scaled, ctx.apart)
        gradients = []
        for apart, scaled in zip(ctx.apart, ctx.scaled, strict=True):
            gradient = apart * along_first(along, apart)
            if ctx.unit:
                gradient.addcmul_(scaled, along_first(back, scaled))
            gradients.append(gradient)
        return None, None, *gradients, *[None] * len(gradients)


def inner_products(one: Parts, other: Parts) -> Tensor:
    """Return the inner products (P,) of vectors in parts."""
    products = []
    for a, b in zip(one, other, strict=True):
        if a.ndim > 2:
            # A product of rows, without a copy. They are short enough for single precision; their sum is pairwise.
            products.append(torch.linalg.vecdot(a.flatten(2), b.flatten(2)).sum(1))
        else:
            products.append((a * b).reshape(len(a), -1).sum(1))
    return torch.stack(products).sum(0)
