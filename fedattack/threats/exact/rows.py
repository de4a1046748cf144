"""Examples of single neurons: what one example alone moves, moves by that example.

How the weights of a neuron of the first layer move is a sum of examples, and how its bias moves is the sum of their
weights. If one example alone activates the neuron, the quotient is that example. Else it is a mixture. The attacker
tells the one from the other in two ways:

- Two neurons have the same quotient. Mixtures of two neurons have other weights, unless all examples pull at the first
  layer in one direction, as where the model has one output, or two of a softmax.
- All its numbers are values that the attacker's own examples have, where features have few values. Mixtures lie
  between.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fedattack.threats.exact.known_values import KnownValues

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

# How far an entry of a candidate may be off, as a part of its feature's span.
_COARSEST = 1e-3

# By how much more an entry may seem to be off where its numbers are known values: these tell more than a bound does.
_SLACK = 4.0

# Neighbours in the order of a projection that a candidate is compared with.
_NEIGHBOURS = 8

# Part of the largest span by which two quotients may differ at least, whatever their rounding.
_LEAST = 1e-6

# So many neurons that differ by their bias alone are no accident.
_BINS = 8


@dataclass(frozen=True)
class Candidates:
    """Quotients of neurons."""

    x: Floats  # (n, inputs): the quotients.
    errors: Floats  # (n,): how far an entry may be off.
    neurons: Rows  # (n,): of which neuron, and of which update.
    updates: Rows

    def take(self, chosen: NDArray[np.bool_]) -> "Candidates":
        """Return some of them."""
        return Candidates(self.x[chosen], self.errors[chosen], self.neurons[chosen], self.updates[chosen])


@dataclass(frozen=True)
class RowExamples:
    """Examples that single neurons gave."""

    x: Floats  # (n, inputs), (n,): the examples, and how far an entry may be off.
    errors: Floats
    seen: tuple[frozenset[int], ...]  # For each the updates in which a neuron gave it.
    agree: NDArray[np.bool_]  # (n,): whether two neurons gave it; else it has known values.


def find_bins(start: Floats) -> list[Rows]:
    """Return the neurons that look in one direction and begin at different places, each list in the order of these.

    An honest model has none. Neighbours are moved by what lies between their places alone.
    """
    weights, biases = start[:, :-1], start[:, -1]
    alive = np.flatnonzero(weights.any(axis=1))
    lengths = np.linalg.norm(weights[alive], axis=1, keepdims=True)
    directions = (weights[alive] / lengths).round(4) + 0.0
    _, groups, sizes = np.unique(directions, axis=0, return_inverse=True, return_counts=True)
    groups = groups.reshape(-1)
    found = []
    for group in np.flatnonzero(sizes >= _BINS):
        rows = alive[groups == group]
        found.append(rows[np.argsort(-biases[rows] / lengths[groups == group, 0], kind="stable")])
    return found


def subtract_neighbours(moved: Floats, rounding: Floats, bins: list[Rows]) -> tuple[Rows, Floats, Floats]:
    """Return of neurons in bins how each moved without what moved the next; which neurons, and how far it may be off.

    Parameters
    ----------
    moved, rounding
        As of :func:`divide`.
    bins
        Of :func:`find_bins`. What moves a neuron moves all before it alike.
    """
    parts, errors = [], []
    for rows in bins:
        own, noise = moved[rows].copy(), rounding[rows].copy()
        own[:-1] -= moved[rows[1:]]
        noise[:-1] += rounding[rows[1:]]
        parts.append(own)
        errors.append(noise)
    return np.concatenate(bins), np.concatenate(parts), np.concatenate(errors)


def divide(
    moved: Floats, start: Floats, rounding: Floats, update: int, known: KnownValues, *, is_active: bool
) -> Candidates:
    """Divide how weights moved by how the bias did, for each neuron where that is precise enough.

    Parameters
    ----------
    moved, start
        (neurons, inputs + 1): how weights and bias moved, and where they began.
    rounding
        (neurons,): how far an entry of ``moved`` may be off.
    update
        Its number.
    is_active
        Whether a neuron must be above zero for an example that moves it: after one step of a ReLU layer.
    """
    bias = np.abs(moved[:, -1])
    coarsest = max(_COARSEST * float(known.spans.max()), _SLACK * known.coarsest)
    neurons = np.flatnonzero(bias * coarsest > rounding)
    x = moved[neurons, :-1] / moved[neurons, -1:]
    largest = np.maximum(np.abs(x).max(axis=1, initial=0), 1.0)
    errors = rounding[neurons] * (1 + largest) / bias[neurons]
    good = np.isfinite(x).all(axis=1) & (errors <= coarsest)
    if is_active:
        outputs = (x * start[neurons, :-1]).sum(axis=1) + start[neurons, -1]
        good &= outputs > -np.abs(start[neurons, :-1]).sum(axis=1) * errors
    return Candidates(x, errors, neurons, np.full(len(neurons), update)).take(good)


def join(parts: list[Candidates], inputs: int) -> Candidates:
    """Put candidates of several updates together."""
    none = Candidates(np.zeros((0, inputs)), np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.int64))
    parts = [none, *parts]
    return Candidates(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.errors for part in parts]),
        np.concatenate([part.neurons for part in parts]),
        np.concatenate([part.updates for part in parts]),
    )


def choose(candidates: Candidates, known: KnownValues, *, tells_apart: bool) -> RowExamples:
    """Choose the candidates that are examples, each once.

    Parameters
    ----------
    tells_apart
        Whether two neurons that agree show an example: whether examples pull in more than one direction.
    """
    snapped, has_known = known.snap(candidates.x, candidates.errors)
    groups = _find_equal(candidates, known)
    if has_known.any():
        # What has the same known values is one example, however coarse the quotients are.
        same = np.unique(snapped[has_known], axis=0, return_inverse=True)[1].reshape(-1)
        groups = _merge(groups, np.flatnonzero(has_known), same)
    x, errors, seen, agree = [], [], [], []
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if not len(members):
            continue
        precise = members[3 * candidates.errors[members] <= _COARSEST * known.spans.max()]
        several = tells_apart and len(np.unique(candidates.neurons[precise])) > 1
        if not several and not has_known[members].any():
            continue
        best = members[candidates.errors[members].argmin()]
        example, error = candidates.x[best], float(candidates.errors[best])
        with_known = members[has_known[members]]
        if len(with_known):
            example, error = snapped[with_known[candidates.errors[with_known].argmin()]], 0.0
        x.append(example)
        errors.append(error)
        seen.append(frozenset(candidates.updates[members].tolist()))
        agree.append(several)
    inputs = candidates.x.shape[1]
    found = np.array(x, dtype=np.float64).reshape(-1, inputs)
    return RowExamples(found, np.array(errors, dtype=np.float64), tuple(seen), np.array(agree, dtype=np.bool_))


def _merge(groups: Rows, members: Rows, same: Rows) -> Rows:
    """Put the groups of members together that are of the same other groups."""
    ends = groups[members], len(groups) + same
    size = len(groups) + int(same.max()) + 1
    graph = coo_array((np.ones(len(members)), ends), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1][groups], dtype=np.int64)


def _find_equal(candidates: Candidates, known: KnownValues) -> Rows:
    """Return numbers of candidates (n,), one for all that are equal but for rounding."""
    count, inputs = candidates.x.shape
    if not count:
        return np.zeros(0, dtype=np.int64)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=inputs) / np.sqrt(inputs)
    order = np.argsort(candidates.x @ signs, kind="stable")
    left: list[Rows] = []
    right: list[Rows] = []
    for step in range(1, min(_NEIGHBOURS, count - 1) + 1):
        one, other = order[:-step], order[step:]
        apart = np.abs(candidates.x[one] - candidates.x[other]).max(axis=1)
        off = 2 * (candidates.errors[one] + candidates.errors[other]) + _LEAST * known.spans.max()
        equal = apart <= np.minimum(off, 2 * _COARSEST * known.spans.max())
        left.append(one[equal])
        right.append(other[equal])
    pairs = np.concatenate([*left, order[:0]]), np.concatenate([*right, order[:0]])
    graph = coo_array((np.ones(len(pairs[0])), pairs), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)
