"""Which defence is the better one: Pareto fronts, and success at equal learning loss."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.grids.page import Results, list_done

WIDE = 20
"""From this ratio of the largest learning loss to the smallest on, losses are compared and drawn on a logarithm."""

_STEPS = 1000
# Successes that are as close as this are the same.
_TIE = 1e-9

Curve = tuple[Sequence[float], Sequence[float]]
"""Learning losses of a defence's cells, and the attack's successes there."""


@dataclass(frozen=True)
class Comparison:
    """Defences held against each other at equal learning loss.

    Attributes
    ----------
    losses
        The lowest and the highest loss that two defences reach; None where no two reach the same.
    shares
        For each defence that meets another: over which share of the losses where it does, its success is the lowest.
    """

    losses: tuple[float, float] | None
    shares: Mapping[str, float]


def pareto_front(losses: Sequence[float], successes: Sequence[float]) -> list[bool]:
    """Say which points no other one dominates: is at most as high in both, and lower in one.

    Points that are equal in both are either all on the front, or none of them is.
    """
    # From the lowest loss on, a point is on the front if its success is below that of all points before it.
    order = sorted(range(len(losses)), key=lambda i: (losses[i], successes[i]))
    on_front, best = [False] * len(losses), np.inf
    for _, group in groupby(order, key=losses.__getitem__):
        alike = list(group)
        least = successes[alike[0]]
        if least < best:
            for i in alike:
                on_front[i] = successes[i] == least
            best = least
    return on_front


def success_at(grid: NDArray[np.float64], curve: Curve) -> NDArray[np.float64]:
    """Interpolate a defence's success at the learning losses `grid`; NaN where it does not reach.

    Cells of the same loss count with their mean.
    """
    # np.interp takes each loss once: cells of the same loss are summed, and divided by how many they are.
    losses, indices = np.unique(np.asarray(curve[0], dtype=float), return_inverse=True)
    means = np.bincount(indices, weights=np.asarray(curve[1], dtype=float)) / np.bincount(indices)
    # Means of cells with the same loss.
    return np.asarray(np.interp(grid, losses, means, left=np.nan, right=np.nan))


def is_wide(losses: Sequence[float]) -> bool:
    """Whether losses are so far apart that a straight axis would hide most of them."""
    return bool(len(losses)) and min(losses) > 0 and max(losses) > WIDE * min(losses)


def compare(curves: Mapping[str, Curve], most: float = np.inf) -> Comparison:
    """Hold defences against each other at equal learning loss, within the losses that each reaches.

    Losses above `most` are left out: there a model is worse than guessing.
    """
    every: list[float] = []
    for losses, _ in curves.values():
        every += losses
    low, high = min(every, default=0.0), min(max(every, default=0.0), most)
    if not low < high:
        return Comparison(None, {})
    # On a logarithm, equal ratios of losses weigh alike, as they are drawn.
    space = np.geomspace if is_wide([low, high]) else np.linspace
    ends = space(low, high, _STEPS + 1)
    # Between the ends, so that the cell without defence, which all share, is no stretch of its own.
    middles = (ends[:-1] + ends[1:]) / 2
    values = np.stack([success_at(middles, curve) for curve in curves.values()])
    there = ~np.isnan(values)
    # Where fewer than two defences reach a loss, there is nothing to compare.
    met = there & (np.sum(there, axis=0) > 1)
    least = np.where(met, values, np.inf).min(axis=0)
    lowest = met & (values <= least + _TIE)
    # Each column is a loss at which some defences meet.
    compared = np.flatnonzero(met.any(axis=0))
    # Nobody meets anywhere: defences that reach losses of their own alone.
    if not len(compared):
        return Comparison(None, {})
    shares = {}
    for name, lowest_there, met_there in zip(curves, lowest, met, strict=True):
        if met_there.any():
            shares[name] = float(lowest_there.sum() / met_there.sum())
    return Comparison((float(ends[compared[0]]), float(ends[compared[-1] + 1])), shares)


def measured_cells(results: Results, number: Results) -> list[Any]:
    """Return the cells that have both a learning loss and the success of an attack."""
    cells = []
    for cell in list_done(results):
        success = cell["attacks"].get(number["name"], {}).get("value")
        if cell["loss"]["value"] is not None and success is not None:
            cells.append(cell)
    return cells


def success_of(cell: Results, number: Results) -> float:
    """Return an attack's success in a cell, so that more is worse."""
    value: float = cell["attacks"][number["name"]]["value"]
    # Turned round, so that more is always worse for the clients.
    return -value if number["less_is_worse"] else value


def losses_of(cells: Iterable[Results]) -> list[Any]:
    """Return the learning losses of cells; None where there is none."""
    return [cell["loss"]["value"] for cell in cells]


def attacks_of(cells: Iterable[Results], number: Results) -> list[Results]:
    """Return what an attack reached in cells."""
    return [cell["attacks"][number["name"]] for cell in cells]
