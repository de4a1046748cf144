"""The Krylov space of Σ and μ⁺ − μ⁻, in which a detector's direction is sought, by products with a matrix of rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedattack.learning.rows import Rows
from fedattack.threats.property.disaggregation import Array

_SIZES = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24)
_SHRINKAGE = (1e-4, 1e-3, 1e-2, 1e-1)
# Parameters whose gradient hardly varies are not blown up to the spread of the others.
_FLOOR = 0.1
_TINY = 1e-30


@dataclass(frozen=True)
class KrylovSpace:
    """The Krylov space of one question: ``basis`` (k, size), and of scaled parameters Σ in it (k, k) and ‖μ⁺ − μ⁻‖."""

    basis: Tensor
    covariance: Array
    length: float

    def coefficients(self) -> Iterator[Array]:
        """Solve (Σ + κI)c = μ⁺ − μ⁻ in spaces of growing size, for several κ."""
        for size in _SIZES:
            if size > len(self.basis):
                return
            block = self.covariance[:size, :size]
            # The first vector of the basis is μ⁺ − μ⁻ itself, brought to length 1.
            right = np.zeros(size)
            right[0] = self.length
            for shrinkage in _SHRINKAGE:
                solution = np.zeros(len(self.basis))
                if self.length * block[0, 0] > 0:
                    solution[:size] = np.linalg.solve(block + shrinkage * block[0, 0] * np.eye(size), right)
                yield solution


def span_spaces(
    rows: Rows,
    weights: Tensor,
    differences: Tensor,
    most: int,
    extra: Sequence[tuple[Rows, Tensor]] = (),
) -> list[KrylovSpace]:
    """Span the spaces of (Σ, d) for many d side by side (Lanczos, fully reorthogonalised).

    Parameters are first brought to about one spread, as a logistic regression would have them. Half as many steps then
    go as far. Only vectors are scaled, never the matrix.

    Parameters
    ----------
    rows, weights
        (n, size), (n,) summing to one: Σ is their weighted covariance.
    differences
        (questions, size): each question's μ⁺ − μ⁻; it is overwritten.
    most
        Steps at most.
    extra
        For each question, centred rows (k, size) that add to its Σ, and their weights (k,).
    """
    mean = torch.zeros_like(differences[0])
    variance = torch.zeros_like(mean)
    for where, block in rows.blocks():
        block.accumulate(mean, weights[where])
        block.accumulate_squares(variance, weights[where])
    variance -= mean**2
    scale = (variance / variance.mean().clamp_min(_TINY) + _FLOOR).rsqrt()
    del variance
    # With the scale as a diagonal S, the space is that of SΣS and Sd.
    current = differences.mul_(scale)
    lengths = current.norm(dim=1)
    current /= lengths.clamp_min(_TINY)[:, None]
    steps = min(most, current.shape[1], len(rows) - 1)
    basis = torch.empty((steps, *current.shape), device=current.device)
    # In the basis that Lanczos makes, SΣS is tridiagonal: these are its diagonal, and what stands beside it.
    diagonal, beside = [], []
    for step in range(steps):
        basis[step] = current
        image = _covariance_times(current * scale, rows, weights, mean, extra)
        image *= scale
        diagonal.append((image * current).sum(dim=1))
        # Exact arithmetic would need the last two vectors alone. In single precision the others come back.
        for vector in basis[: step + 1]:
            image -= (image * vector).sum(dim=1, keepdim=True) * vector
        length = image.norm(dim=1)
        beside.append(length)
        current = image.div_(length.clamp_min(_TINY)[:, None])
    on, off = to_host(torch.stack(diagonal)), to_host(torch.stack(beside))
    # ⟨Sc, r⟩ = ⟨c, Sr⟩: with the scale in it, the basis is multiplied with rows as they are.
    basis *= scale
    spaces = []
    for question in range(len(differences)):
        steps = len(basis)
        # beyond an invariant subspace there is only rounding
        ended = np.flatnonzero(off[:, question] <= 1e-6 * on[0, question])
        if len(ended):
            steps = int(ended[0]) + 1
        inner = off[: steps - 1, question]
        covariance = np.diag(on[:steps, question]) + np.diag(inner, 1) + np.diag(inner, -1)
        spaces.append(KrylovSpace(basis[:steps, question], covariance, float(lengths[question])))
    return spaces


def _covariance_times(
    vectors: Tensor, rows: Rows, weights: Tensor, mean: Tensor, extra: Sequence[tuple[Rows, Tensor]]
) -> Tensor:
    """Return Σ times each question's vector (questions, size).

    Σv = Σᵢ wᵢ(rᵢ − m)(rᵢ − m)ᵀv. With cᵢ = wᵢ(rᵢ − m)ᵀv this is Σᵢ cᵢrᵢ − (Σᵢ cᵢ)m, so that no row need be centred.
    """
    image = torch.zeros_like(vectors)
    along = (vectors @ mean)[:, None]
    total = torch.zeros_like(along[:, 0])
    for where, block in rows.blocks():
        centred = block.project(vectors) - along
        part = weights[where]
        block.accumulate(image, centred * part)
        total = total + centred @ part
    image -= total[:, None] * mean
    for question, (varied, often) in enumerate(extra):
        for where, block in varied.blocks():
            own = block.project(vectors[question : question + 1])[0]
            block.accumulate(image[question], own * often[where])
    return image


def project_rows(rows: Rows, directions: Tensor) -> Array:
    """Return the rows' products (n, k) with directions (k, size)."""
    return np.concatenate([to_host(block.project(directions).T) for _, block in rows.blocks()])


def to_host(values: Tensor) -> Array:
    """Return a tensor of whatever device as an array in double precision."""
    return values.double().cpu().numpy()
