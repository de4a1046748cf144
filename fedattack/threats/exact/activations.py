"""Which examples out of sums belong to one client, by the neurons that they move (Marchand et al. 2023, SRATTA).

How a neuron of the first layer moved is a sum of the examples that moved it at any client. Once examples are known, the
sum is taken apart into them.

- An example that moved a neuron was trained on in that round, and its client took part.
- Where no example of a client is above zero, the neuron does not move at that client. So an example that is below zero
  at the start and moves the neuron later is of a client that another example woke first. If the examples above zero at
  the start are all of one client, those that came later are of the same.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components
from sklearn.linear_model import orthogonal_mp

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

# Examples that are taken to move a neuron together, at most.
_MOST = 20

# How far beyond its noise the part of an example must be, in standard deviations.
_SURE = 6.0

# How far from zero what leaves a neuron must be, as a part of what its numbers add up to.
_BORDER = 1e-4

# How nearly examples that move one neuron may depend on each other.
_WORST = 1e6


@dataclass(frozen=True)
class MovedNeuron:
    """A neuron whose movement in a sum is that of known examples.

    Attributes
    ----------
    before, later
        Which examples moved it: those that were above zero at the start, and those that were not.
    """

    before: Rows
    later: Rows


def explain_neurons(
    moved: Floats, start: Floats, rounding: Floats, examples: Floats, errors: Floats
) -> list[MovedNeuron]:
    """Take apart how neurons moved, where known examples explain it down to rounding.

    Parameters
    ----------
    moved, start
        (neurons, inputs + 1): how weights and bias moved, and where they began.
    rounding
        (neurons,): how far an entry of ``moved`` may be off.
    examples, errors
        (n, inputs), (n,): what was read off, and how far an entry may be off.
    """
    columns = np.column_stack([examples, np.ones(len(examples))]).T
    of_one_length = columns / np.linalg.norm(columns, axis=0)
    basis = np.linalg.svd(of_one_length, full_matrices=False)[0]
    beyond = np.linalg.norm(moved - moved @ basis @ basis.T, axis=1)
    # An error of an example moves the sum by its part, which is about the movement of the bias.
    limits = np.sqrt(len(columns)) * (rounding + errors.max() * np.abs(moved[:, -1]))
    neurons = np.flatnonzero((beyond <= limits) & (np.linalg.norm(moved, axis=1) > limits))
    most = min(_MOST, len(examples), len(columns) // 3)
    explained = []
    for neuron in neurons.tolist():
        with warnings.catch_warnings():
            # It ends early where fewer examples explain all.
            warnings.simplefilter("ignore", RuntimeWarning)
            parts = orthogonal_mp(of_one_length, moved[neuron], n_nonzero_coefs=most)
        members = _choose_members(columns, moved[neuron], np.flatnonzero(parts), float(limits[neuron]))
        outputs = examples[members] @ start[neuron, :-1] + start[neuron, -1]
        sizes = np.abs(examples[members]) @ np.abs(start[neuron, :-1]) + np.abs(start[neuron, -1])
        if len(members) and (np.abs(outputs) > _BORDER * sizes).all():
            explained.append(MovedNeuron(members[outputs > 0], members[outputs < 0]))
    return explained


def _choose_members(columns: Floats, moved: Floats, candidates: Rows, limit: float) -> Rows:
    """Return which candidates moved a neuron; none where they do not explain it, or one is in doubt."""
    chosen = columns[:, candidates]
    if np.linalg.cond(chosen) > _WORST:
        return candidates[:0]
    inverse = np.linalg.pinv(chosen)
    parts = inverse @ moved
    beyond = np.abs(parts) / (np.linalg.norm(inverse, axis=1) * limit / np.sqrt(len(moved)))
    is_explained = np.linalg.norm(moved - chosen @ parts) <= limit
    in_doubt = (beyond > _SURE / 2) & (beyond <= _SURE)
    if not is_explained or in_doubt.any():
        return candidates[:0]
    return np.asarray(candidates[beyond > _SURE])


def group_examples(count: int, neurons: list[MovedNeuron]) -> Rows:
    """Return numbers of groups (count,), one for all examples that are of one client; many are alone in theirs."""
    groups = np.arange(count)
    while True:
        together = np.eye(count, dtype=np.bool_)
        for neuron in neurons:
            if len(np.unique(groups[neuron.before])) == 1:
                # One client alone has examples that were above zero.
                first = neuron.before[0]
                together[first, neuron.before] = True
                together[first, neuron.later] = True
        merged = connected_components(together, directed=False)[1]
        if merged.max(initial=-1) == groups.max(initial=-1):
            return np.asarray(merged, dtype=np.int64)
        groups = merged
