"""Which rows of a table moved because examples moved them, and not by weight decay or noise.

There are five cases, told apart by the rows themselves:

- An output layer shares the table, and most rows moved: it pushes all words one way that are not to be said. Those are
  named that moved the other way, or aside. How far a row moved tells little: under Adam those that nobody uses move
  furthest.
- Some rows stand exactly still: the others were moved.
- All rows moved, and some moved by one factor of themselves (weight decay of SGD and AdamW), or by one length against
  their signs (that of Adam): these stand still but for the decay, and the others were moved.
- All rows moved, most as normal noise does: those are named that moved further.
- Else all are named.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

STILL, DECAY, NOISE, TIED, ALL = "stood still", "weight decay", "noise", "tied output", "none stood still"
"""How rows that were not moved by examples are told."""

# Rows that are looked at together.
_AT_ONCE = 2**15

# Roundings of a number by which a row may differ from what decay makes of it.
_ROUNDINGS = 32.0

# How much the way that Adam's decay goes may differ.
_UNEVEN = 0.1

# How well the shape of most rows' lengths must be that of noise.
_ALIKE = 0.2
_SHAPE = (0.1, 0.25, 0.5)

# Fewer rows than this have no shape.
_FEWEST = 20


@dataclass(frozen=True)
class RowMovement:
    """How the rows of a table moved."""

    still: Flags  # (rows,): whether the row, which is not zero, did not move at all.
    lengths: Floats  # (rows,): squared length of its movement.
    # (rows,): by which factor of itself it moved, and how far the rest is from rounding: at most 1 if it is that.
    slope: Floats
    spread: Floats
    # (rows,): how far it moved against its signs, and how much entries differ in that, as a share. Entries that are
    # nearly 0 do not count.
    step: Floats
    uneven: Floats
    # (rows,): how far it moved the way that most rows moved; ``None`` where no output shares the table.
    along: Floats | None
    width: int  # Entries of a row.


def measure(start: NDArray[Any], end: NDArray[Any], *, tied: bool, is_gradient: bool = False) -> RowMovement:
    """Measure how rows moved, some at a time.

    Parameters
    ----------
    start
        (rows, width): the table as it was sent.
    end
        The table that came back, or its gradient.
    tied
        Whether an output layer shares the table.
    is_gradient
        Which of both ``end`` is.
    """
    epsilon = 0.0
    along: Floats | None = None
    parts = []
    if end.dtype.kind == "f":
        epsilon = float(np.finfo(end.dtype).eps)
    for before, moved in _read_parts(start, end, is_gradient):
        largest = np.abs(moved)
        if not is_gradient:
            largest = np.maximum(np.abs(before), np.abs(before + moved))
        parts.append(_measure_rows(before, moved, largest * epsilon + 1e-300))
    still, lengths, slope, spread, step, uneven = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if tied:
        along = _measure_along(start, end, is_gradient)
    return RowMovement(still.astype(np.bool_), lengths, slope, spread, step, uneven, along, start.shape[1])


def _read_parts(start: NDArray[Any], end: NDArray[Any], is_gradient: bool) -> Iterator[tuple[Floats, Floats]]:
    """Yield rows before, and how they moved."""
    for first in range(0, len(start), _AT_ONCE):
        rows = slice(first, first + _AT_ONCE)
        before, moved = start[rows].astype(np.float64), end[rows].astype(np.float64)
        if not is_gradient:
            moved -= before
        yield before, moved


def _measure_along(start: NDArray[Any], end: NDArray[Any], is_gradient: bool) -> Floats:
    """Return (rows,): how far each moved along the mean way of all."""
    way = np.zeros(start.shape[1])
    for _, moved in _read_parts(start, end, is_gradient):
        way += (moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-300)).sum(axis=0)
    way /= max(float(np.linalg.norm(way)), 1e-300)
    return np.concatenate([moved @ way for _, moved in _read_parts(start, end, is_gradient)])


def _measure_rows(before: Floats, moved: Floats, rounding: Floats) -> tuple[Floats, ...]:
    lengths = (moved**2).sum(axis=1)
    own = (before**2).sum(axis=1)
    slope = (moved * before).sum(axis=1) / np.where(own > 0, own, 1.0)
    spread = (np.abs(moved - slope[:, None] * before) / rounding).max(axis=1, initial=0) / _ROUNDINGS
    against = -moved * np.sign(before)
    step = np.median(against, axis=1)
    # An entry that is nearly 0 may have changed its sign on the way.
    is_far = np.abs(before) > 2 * np.abs(step)[:, None]
    differs = np.where(is_far, np.abs(against - step[:, None]), 0.0).max(axis=1, initial=0)
    uneven = np.where(2 * is_far.sum(axis=1) > before.shape[1], differs, np.inf) / np.maximum(np.abs(step), 1e-300)
    still = (lengths == 0) & (own > 0)
    return still.astype(np.float64), lengths, slope, spread, step, uneven


def find_moved(movement: RowMovement, *, false_alarms: float) -> tuple[Flags, str]:
    """Return which rows examples moved (rows,), and how the others were told.

    Parameters
    ----------
    false_alarms
        Where all rows move: of those that are named, the share that may be false on average.
    """
    decayed = _find_decayed(movement)
    if movement.along is not None and 2 * (movement.still | decayed).sum() < len(decayed):
        return _find_pushed(movement.along, movement.lengths, false_alarms), TIED
    if movement.still.any():
        return movement.lengths > 0, STILL
    if decayed.any():
        return ~decayed & (movement.lengths > 0), DECAY
    lengths, width = movement.lengths, movement.width
    if len(lengths) >= _FEWEST and _is_noise(lengths, width):
        scale = float(np.median(lengths)) / stats.chi2.median(width)
        return name_few(stats.chi2.sf(lengths / scale, width), false_alarms), NOISE
    return movement.lengths > 0, ALL


def _find_decayed(movement: RowMovement) -> Flags:
    """Return which rows moved by decay alone: by the same factor of themselves, or the same length against signs."""
    nothing = np.zeros(len(movement.lengths), dtype=np.bool_)
    if movement.width < 2:
        return nothing
    by_factor = (movement.spread <= 1) & (movement.slope < 0)
    if by_factor.any():
        factor = np.median(movement.slope[by_factor])
        return np.asarray(by_factor & (np.abs(movement.slope - factor) <= 0.05 * abs(factor)))
    by_length = (movement.uneven <= _UNEVEN) & (movement.step > 0)
    if by_length.any():
        length = np.median(movement.step[by_length])
        return np.asarray(by_length & (np.abs(movement.step - length) <= _UNEVEN * length))
    return nothing


def _is_noise(lengths: Floats, width: int) -> bool:
    """Say whether the shorter half of the rows has squared lengths of normal noise, which is then most rows'."""
    scales = np.quantile(lengths, _SHAPE) / stats.chi2.ppf(_SHAPE, width)
    return bool(scales.min() > 0 and scales.max() <= (1 + _ALIKE) * scales.min())


def _find_pushed(along: Floats, lengths: Floats, false_alarms: float) -> Flags:
    """Return which rows moved against the way of most, or far aside, in length and in direction."""
    aside = np.maximum(lengths - along**2, 0)
    against = name_few(_tail(-along), false_alarms / 2) & (along < 0)
    length, direction = _logarithm(aside), _logarithm(aside) - _logarithm(along**2)
    return against | (name_few(_tail(length), false_alarms / 2) & name_few(_tail(direction), false_alarms / 2))


def _logarithm(values: Floats) -> Floats:
    return np.asarray(np.log(np.maximum(values, 1e-300)))


def _tail(values: Floats) -> Floats:
    """Return how likely a value is as high by accident, if most are about normal.

    Only the lower half says how wide they are: the higher ones may be of used rows.
    """
    middle, low = np.quantile(values, (0.5, 0.16))
    return np.asarray(stats.norm.sf((values - middle) / max(middle - low, 1e-300)))


def name_few(p: Floats, false_alarms: float) -> Flags:
    """Name rows so that on average at most this share of the named ones is false (Benjamini and Hochberg 1995)."""
    order = np.argsort(p, kind="stable")
    passed = np.flatnonzero(p[order] <= false_alarms * np.arange(1, len(p) + 1) / len(p))
    named = np.zeros(len(p), dtype=np.bool_)
    if len(passed):
        named[order[: passed[-1] + 1]] = True
    return named
