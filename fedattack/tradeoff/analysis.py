"""Which defence is the better one: Pareto fronts, and success at equal learning loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

WIDE = 20
"""From this ratio of the largest learning loss to the smallest on, losses are compared and drawn on a logarithm."""

_PLACES = 1000
# Successes that are as close as this are the same.
_TIE = 1e-9

Curve = tuple[Sequence[float], Sequence[float]]
"""Learning losses of a defence's cells, and the attack's successes there."""


@dataclass(frozen=True)
class Stretch:
    """A range of learning losses in which the same defences have the lowest success, and its share of all compared."""

    low: float
    high: float
    lowest: tuple[str, ...]
    share: float


@dataclass(frozen=True)
class Comparison:
    """Defences held against each other at equal learning loss.

    Attributes
    ----------
    stretches
        In ascending order, over all losses that at least two defences reach.
    shares
        For each defence that meets another: over which share of the losses where it does, its success is the lowest.
    """

    stretches: Sequence[Stretch]
    shares: Mapping[str, float]


def pareto_front(losses: Sequence[float], successes: Sequence[float]) -> list[bool]:
    """Say which points no other one dominates: is at most as high in both, and lower in one.

    Of points that are equal in both, all or none are on the front.
    """
    order = sorted(range(len(losses)), key=lambda place: (losses[place], successes[place]))
    on_front, best = [False] * len(losses), np.inf
    for _, places in groupby(order, key=lambda place: losses[place]):
        alike = list(places)
        least = successes[alike[0]]
        if least < best:
            for place in alike:
                on_front[place] = successes[place] == least
            best = least
    return on_front


def success_at(grid: NDArray[np.float64], curve: Curve) -> NDArray[np.float64]:
    """Interpolate a defence's success at the learning losses `grid`; NaN where it does not reach.

    Cells of the same loss count with their mean.
    """
    losses, places = np.unique(np.asarray(curve[0], dtype=float), return_inverse=True)
    means = np.bincount(places, weights=np.asarray(curve[1], dtype=float)) / np.bincount(places)
    return np.asarray(np.interp(grid, losses, means, left=np.nan, right=np.nan))


def is_wide(losses: Sequence[float]) -> bool:
    """Whether losses are so far apart that a straight axis would hide most of them."""
    return bool(len(losses)) and min(losses) > 0 and max(losses) > WIDE * min(losses)


def compare(curves: Mapping[str, Curve], most: float = np.inf) -> Comparison:
    """Hold defences against each other at equal learning loss, within the losses that each reaches.

    Parameters
    ----------
    curves
        By defence, the cell without defence among each.
    most
        Losses above it are left out: there a model is worse than guessing.
    """
    every = [loss for losses, _ in curves.values() for loss in losses]
    low, high = (min(every), min(max(every), most)) if every else (0.0, 0.0)
    if not low < high:
        return Comparison([], {})
    ends = np.geomspace(low, high, _PLACES + 1) if is_wide([low, high]) else np.linspace(low, high, _PLACES + 1)
    # Between the ends, so that the cell without defence, which all share, is no stretch of its own.
    values = np.stack([success_at((ends[:-1] + ends[1:]) / 2, curve) for curve in curves.values()])
    met = ~np.isnan(values) & (np.sum(~np.isnan(values), axis=0) > 1)
    least = np.where(met, values, np.inf).min(axis=0)
    lowest = met & (values <= least + _TIE)
    names = [tuple(name for name, there in zip(curves, column, strict=True) if there) for column in lowest.T.tolist()]
    stretches, compared = [], int(met.any(axis=0).sum())
    for winners, group in groupby(range(_PLACES), key=lambda place: names[place]):
        places = list(group)
        if winners:
            ends_of = float(ends[places[0]]), float(ends[places[-1] + 1])
            stretches.append(Stretch(*ends_of, winners, len(places) / compared))
    return Comparison(
        stretches,
        {
            name: float(own.sum() / there.sum())
            for name, own, there in zip(curves, lowest, met, strict=True)
            if there.any()
        },
    )
