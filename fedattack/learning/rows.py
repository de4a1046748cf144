"""Matrices with a column for each parameter, by their products alone: gradients of examples, updates of clients.

A million parameters and ten thousand examples are 40 GB of gradients. PROLIN's detectors solve linear systems with such
a matrix G, for which Gv, Gᵀw and the columns' squares are enough. Three forms give them exactly, block by block.

- :class:`Whole`: the matrix itself.
- :class:`fedattack.learning.gradient_rows.GradientRows`: gradients of examples, whose layers' are kept as products.
- :class:`Centred`: rows less the mean of their group.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_SQUARED = {"cpu": 64, "cuda": 4096}
"""Rows whose squares are taken at a time."""


def size_on(tensor: Tensor, sizes: Mapping[str, int]) -> int:
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

    def project(self, directions: Tensor) -> Tensor:
        """See :class:`Block`."""
        return directions @ self.matrix.T

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`Block`."""
        out += weights @ self.matrix

    def accumulate_squares(self, out: Tensor, weights: Tensor) -> None:
        """See :class:`Block`."""
        add_squares(out, self.matrix, weights)


def add_squares(out: Tensor, matrix: Tensor, weights: Tensor) -> None:
    """Add weights (n,) times the squared rows to ``out``, a few rows at a time."""
    # The squares of all rows at once would take as much memory as the rows.
    step = size_on(matrix, _SQUARED)
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
        # ⟨d, r − m⟩ = ⟨d, r⟩ − ⟨d, m⟩, with the mean of each row's own group.
        return self.block.project(directions) - (directions @ self.means.T)[:, self.group]

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        # Σw(r − m) = Σwr − Σ(Σw)m, the second sum over groups, each with the weights of its rows.
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
