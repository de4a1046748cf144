"""Trace rows that moved in sums to clients, by who took part when: group testing.

A client may hold a row only if the row moved in every sum that it took part in. It holds the row for certain if in one
of these sums nobody else may. What then is left unexplained goes to whoever explains most of it (Aldridge, Baldassini
and Johnson 2014, Group testing algorithms: bounds and simulations, SCOMP).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]


def trace(part: Flags, moved: Flags) -> Iterator[Flags]:
    """Yield for each client which rows (rows,) are taken to be its own.

    Clients that explain equally much of a row are all named.

    Parameters
    ----------
    part
        (sums, clients): who is in which.
    moved
        (sums, rows): which rows moved.
    """
    # Rows that moved in the same sums are traced together.
    patterns, which = np.unique(moved, axis=1, return_inverse=True)
    named = np.zeros((part.shape[1], patterns.shape[1]), dtype=np.bool_)
    for place, pattern in enumerate(patterns.T):
        named[:, place] = _trace_row(part, pattern)
    for of_client in named:
        yield of_client[which.reshape(-1)]


def find_possible(part: Flags, pattern: Flags) -> Flags:
    """Return who may hold a row (clients,): all that took part, and never in a sum in which it did not move."""
    return np.asarray(part.any(axis=0) & ~part[~pattern].any(axis=0))


def _trace_row(part: Flags, pattern: Flags) -> Flags:
    possible = find_possible(part, pattern)
    candidates = part[pattern] & possible
    alone = candidates[candidates.sum(axis=1) == 1]
    named = alone.any(axis=0)
    unexplained = candidates[~(candidates & named).any(axis=1)]
    while len(unexplained) and unexplained.any():
        explains = unexplained.sum(axis=0)
        named = named | (explains == explains.max())
        unexplained = unexplained[~(unexplained & named).any(axis=1)]
    return np.asarray(named)
