"""Rows of tables: categories are searched for as shares, and what several searches found is pooled cell by cell.

Vero et al. 2023, "TabLeak: tabular data leakage in federated learning". A softmax over the inputs of a column keeps its
shares between 0 and 1. The rows of several searches are matched to those of the best one by a linear assignment; the
pooled shares of a cell, and how far its numbers spread, say how sure of it the attacker is.

Three things differ from the paper, each of which finds more:

- Shares start near those that the column has among all people, and numbers near its mean.
- A search counts in the pool by how near it came. In the paper all count alike, and many poor ones outvote a good one.
- Where a first fully connected layer takes the rows, what it learnt is made of them: see :func:`find_span`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedattack.attacks.coding import TableCoding

Floats = NDArray[np.float64]

# Logarithms of shares stay within this; single precision then tells them all.
_LARGEST = 20.0
_LEAST_WEIGHT = 1e-30
# Shares of values that nobody has, when a search starts.
_LEAST_SHARE = 1e-3
# A direction of the batch is not told from noise that is as large as this share of it, squared.
_HIDDEN = 0.05
# Single precision, squared.
_ROUNDING = 1e-12


class Relaxation:
    """Rows of a table as a differentiable function of free numbers (…, inputs)."""

    def __init__(self, coding: TableCoding, device: torch.device) -> None:
        width = len(coding.low)
        same, alone, numbers = np.zeros((width, width)), np.zeros(width), np.zeros(width, dtype=bool)
        for inputs, is_number in zip(coding.columns, coding.is_number, strict=True):
            own = list(inputs)
            same[np.ix_(own, own)] = 1
            # If one input has two values, the other one has the free number 0.
            alone[own] = float(len(own) == 1)
            numbers[own] = is_number
        self._same = torch.from_numpy(same).float().to(device)
        self._alone = torch.from_numpy(alone).float().to(device)
        self._is_number = torch.from_numpy(numbers).to(device)
        self._low, self._high, self._mean, deviation = (
            torch.tensor(values, device=device) for values in (coding.low, coding.high, coding.mean, coding.deviation)
        )
        self._span = self._high - self._low
        # Nobody has a category whose input never moves.
        self._moves = (self._span > 0).float()
        self._scale = torch.where(deviation > 0, deviation, 1)

    def start(self, noise: Tensor) -> Tensor:
        """Return free numbers from which a search starts, made of standard normal noise."""
        share = ((self._mean - self._low) / torch.where(self._span > 0, self._span, 1)).clamp(0, 1)
        share = _LEAST_SHARE + (1 - 2 * _LEAST_SHARE) * share
        logarithm = torch.where(self._alone > 0, share.logit(), share.log())
        return torch.where(self._is_number, noise, logarithm + noise)

    def rows(self, free: Tensor) -> Tensor:
        """Return the rows."""
        weight = self._moves * free.clamp(-_LARGEST, _LARGEST).exp()
        # A column of which nothing moves has no weight.
        share = weight / (weight @ self._same + self._alone).clamp(min=_LEAST_WEIGHT)
        return torch.where(self._is_number, self._mean + self._scale * free, self._low + self._span * share)

    def inside(self, free: Tensor) -> Tensor:
        """Return free numbers whose rows are in their range."""
        low, high = (self._low - self._mean) / self._scale, (self._high - self._mean) / self._scale
        return torch.where(self._is_number, free.clamp(low, high), free.clamp(-_LARGEST, _LARGEST))


@dataclass(frozen=True)
class PooledRows:
    """What several searches found together: rows (n, inputs), and how unsure each cell is, (n, columns) in 0 … 1."""

    x: NDArray[np.float32]
    unsure: Floats


def pool_rows(coding: TableCoding, found: NDArray[np.float32], objectives: Floats) -> PooledRows:
    """Pool what searches found.

    A cell of categories is as unsure as the entropy of its pooled shares, as a share of the largest. A number is as
    unsure as its deviation over the searches, as a share of that over all people.

    Parameters
    ----------
    coding
        The table's columns.
    found
        (searches, n, inputs): rows whose categories are shares.
    objectives
        (searches,): logarithms of distances; NaN where a search diverged, which then does not count.
    """
    best = int(np.nanargmin(objectives)) if np.isfinite(objectives).any() else 0
    # A logarithm less one is a distance so many times larger.
    weights = np.nan_to_num(np.exp(objectives[best] - objectives))
    if not weights.any():
        weights[best] = 1
    weights /= weights.sum()
    low, high, deviation = np.array(coding.low), np.array(coding.high), np.array(coding.deviation)
    span = np.where(high > low, high - low, 1)
    used = np.flatnonzero(weights)
    cells = (np.nan_to_num(found[used]).astype(np.float64) - low) / span
    scale = np.where(deviation > 0, deviation, 1) / span
    # The best search has the largest weight, and so is among those used.
    reference = cells[weights[used].argmax()]
    matched = np.stack([_match(coding, reference, other, scale) for other in cells])
    weights = weights[used]
    count = matched.shape[1]
    pooled, unsure = np.zeros((count, len(low))), np.zeros((count, len(coding.columns)))
    for column, inputs in enumerate(coding.columns):
        own = list(inputs)
        values = matched[:, :, own]
        mean = np.tensordot(weights, values, axes=1)
        if coding.is_number[column]:
            pooled[:, own[0]] = _medians(values[:, :, 0], weights)
            spread = np.sqrt(np.tensordot(weights, (values - mean) ** 2, axes=1))[:, 0]
            unsure[:, column] = np.minimum(spread / scale[own[0]], 1)
            continue
        shares = np.clip(mean, 0, 1)
        if len(own) == 1:
            pooled[:, own[0]] = shares[:, 0] > 0.5
            shares = np.concatenate([1 - shares, shares], axis=1)
        else:
            pooled[np.arange(count), np.array(own)[shares.argmax(axis=1)]] = 1
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-12)
        entropy = -(shares * np.log(np.maximum(shares, 1e-12))).sum(axis=1)
        possible = max(int((high > low)[own].sum()), 2)
        unsure[:, column] = np.clip(entropy / np.log(possible), 0, 1)
    return PooledRows((low + (high - low) * pooled).astype(np.float32), unsure)


def _match(coding: TableCoding, rows: Floats, others: Floats, scale: Floats) -> Floats:
    """Return other rows in the order of the rows (n, inputs) that they are most like, column by column."""
    cost = np.zeros((len(rows), len(others)))
    for inputs, is_number in zip(coding.columns, coding.is_number, strict=True):
        own = list(inputs)
        apart = np.abs(rows[:, None, own] - others[None, :, own])
        if is_number:
            cost += np.minimum(apart[..., 0] / scale[own[0]], 1)
        else:
            # Shares that have nothing in common are 2 apart, and two values in one input 1.
            cost += apart.sum(axis=2) / min(len(own), 2)
    _, order = linear_sum_assignment(cost)
    return np.asarray(others[order])


def _medians(values: Floats, weights: Floats) -> Floats:
    """Return the weighted median (n,) of values (searches, n)."""
    order = np.argsort(values, axis=0, kind="stable")
    cumulated = np.cumsum(weights[order], axis=0)
    first = (cumulated >= 0.5 - 1e-12).argmax(axis=0)
    columns = np.arange(values.shape[1])
    return np.asarray(values[order[first, columns], columns])


@dataclass(frozen=True)
class Span:
    """What a batch's rows, each with a 1 behind it, are sums of.

    Attributes
    ----------
    basis
        (n, inputs + 1): orthonormal.
    floor
        How far from it a row may be because of noise, squared, as a share of its length.
    """

    basis: NDArray[np.float32]
    floor: float


def find_span(moved: Floats, records: int) -> Span | None:
    """Return what the rows of a batch are sums of, as the movement of a first fully connected layer tells it.

    A neuron moves by a sum of rows, and its bias by the sum of their weights, in each of any number of steps of SGD. So
    rows of the movement and rows of the batch span the same space if there are more neurons than examples.

    Parameters
    ----------
    moved
        (neurons, inputs + 1): how the layer's weights moved, and its bias, which is the last column.
    records
        Examples in the batch.

    Returns
    -------
    Span or None
        ``None`` where the batch is too large, or where what else moved the layer hides it.
    """
    if records >= min(moved.shape):
        return None
    _, sizes, basis = np.linalg.svd(moved, full_matrices=False)
    if not sizes[records - 1] > 0:
        return None
    floor = (sizes[records] / sizes[records - 1]) ** 2
    if floor > _HIDDEN:
        return None
    return Span(basis[:records].astype(np.float32), float(max(floor, _ROUNDING)))


def leave_span(rows: Tensor, basis: Tensor) -> Tensor:
    """Return how far rows (n, inputs), each with a 1 behind it, are from a basis (n, inputs + 1): a share, squared."""
    joined = torch.cat([rows, torch.ones_like(rows[..., :1])], dim=-1)
    inside = joined @ basis.mT
    outside = joined - inside @ basis
    return outside.square().sum((-2, -1)) / joined.square().sum((-2, -1))
