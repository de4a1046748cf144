"""Noise that is there twice: in two clients, in two rounds, in two arrays of one update.

Take two updates u₁ and u₂, where the noise n of u₂ is drawn after u₁ is known, or apart from it. What is left of u₂
across the direction of u₁ is at least as long as what is left of n, whose square is a χ² with one degree of freedom
less. It is too short where u₂ holds the noise of u₁ again, whatever its sign and its scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.recorded.draws import Draws
from fedattack.claims.recorded.looking import Head

LEAST = 64
"""Entries of an array that is compared; fewer tell too little after a correction for many tests."""

# Entries of one array that are kept at most, and in which arrays of one update are compared.
_MOST_KEPT = 1 << 16
_ACROSS_ARRAYS = 1 << 12
# Numbers that are kept of all updates together, unless these have hundreds of arrays.
_BUDGET = 1 << 26
MOST_UPDATES = 1 << 13
"""Updates of a run that are compared: the first ones."""


@dataclass(frozen=True)
class UpdateHeads:
    """The first entries of a client's update, array by array.

    ``share``: of the claimed scale, which its noise has at least; below 1 if the server may have made it smaller.
    """

    node: str
    round: int
    heads: Mapping[str, Head]
    share: float = 1.0


@dataclass(frozen=True)
class Repeat:
    """The noise of ``second`` is that of ``first``, in one array, or in two of one update."""

    first: UpdateHeads
    second: UpdateHeads
    name: str
    other: str


def choose_length(arrays: int, updates: int) -> int:
    """Say how many entries of each array to keep, of an update of so many arrays, and of so many updates."""
    return max(LEAST, min(_MOST_KEPT, _BUDGET // (arrays * min(updates, MOST_UPDATES))))


def count_tests(kept: Sequence[UpdateHeads]) -> int:
    """Count the comparisons that :func:`repeats_in` makes."""
    return sum(int(pairs.sum()) for _, pairs in _list_comparisons(kept))


def repeats_in(kept: Sequence[UpdateHeads], draws: Draws, scale: float, error: float) -> Iterator[Repeat]:
    """Find noise that is there twice; of each update and array one other that has it.

    Parameters
    ----------
    kept
        Updates of one run.
    draws, scale
        The noise that is claimed.
    error
        Probability of each comparison that it is wrong.
    """
    for group, pairs in _list_comparisons(kept):
        stack = np.stack([head.values for head in group.heads]).astype(np.float64)
        slack = np.array([head.slack for head in group.heads])
        scales = scale * np.array([update.share for update in group.of])
        least = scales**2 * draws.least_across(stack.shape[1], error)
        short = (np.sqrt(_squares_across(stack)) + slack) ** 2 < least
        short &= pairs
        for second in np.flatnonzero(short.any(axis=0)).tolist():
            first = int(short[:, second].argmax())
            yield Repeat(group.of[first], group.of[second], group.names[first], group.names[second])


@dataclass(frozen=True)
class _ArrayGroup:
    """Arrays of the same length that are compared with each other."""

    of: Sequence[UpdateHeads]
    names: Sequence[str]
    heads: Sequence[Head]


Pairs = NDArray[np.bool_]
"""(first, second): which are compared."""


def _list_comparisons(kept: Sequence[UpdateHeads]) -> Iterator[tuple[_ArrayGroup, Pairs]]:
    """Give what is compared; the second one's noise is no older than the first update."""
    by_round: dict[int, list[UpdateHeads]] = {}
    by_node: dict[str, list[UpdateHeads]] = {}
    for update in kept:
        by_round.setdefault(update.round, []).append(update)
        by_node.setdefault(update.node, []).append(update)
    for together in by_round.values():
        for group in _group_by_array(together):
            yield group, ~np.eye(len(group.of), dtype=bool)
    for in_turn in by_node.values():
        for group in _group_by_array(in_turn):
            yield group, np.triu(np.ones((len(group.of), len(group.of)), dtype=bool), 1)
        yield from _pair_arrays(in_turn[0])


def _group_by_array(updates: Sequence[UpdateHeads]) -> Iterator[_ArrayGroup]:
    names = dict.fromkeys(name for update in updates for name in update.heads)
    for name in names:
        having = [update for update in updates if name in update.heads]
        heads = [update.heads[name] for update in having]
        if len(having) > 1 and heads[0].values.size >= LEAST:
            yield _ArrayGroup(having, [name] * len(having), heads)


def _pair_arrays(update: UpdateHeads) -> Iterator[tuple[_ArrayGroup, Pairs]]:
    """Compare each array with those that are no shorter, as far as both go."""
    names = [name for name, head in update.heads.items() if head.values.size >= LEAST]
    names.sort(key=lambda name: update.heads[name].values.size)
    for index, name in enumerate(names[:-1]):
        length = min(update.heads[name].values.size, _ACROSS_ARRAYS)
        longer = names[index:]
        heads = [Head(update.heads[each].values[:length], update.heads[each].slack) for each in longer]
        pairs = np.zeros((len(longer), len(longer)), dtype=bool)
        pairs[0, 1:] = pairs[1:, 0] = True
        yield _ArrayGroup([update] * len(longer), longer, heads), pairs


def _squares_across(stack: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (rows, rows): what is left of the second row's square across the first one."""
    products = stack @ stack.T
    squares = np.diag(products).copy()
    along = products**2 / np.where(squares > 0, squares, 1.0)[:, None]
    return np.maximum(squares[None, :] - along, 0.0)
