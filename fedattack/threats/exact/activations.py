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
    """A neuron whose movement in a sum is that of known examples."""

    before: Rows  # Which examples moved it: those that were above zero at the start, and those that were not.
    later: Rows


class ReadExamples:
    """Examples that were read off, by which movements of neurons are explained.

    Parameters
    ----------
    examples, errors
        (n, inputs), (n,): what was read off, n at least 1, and how far an entry may be off.
    """

    def __init__(self, examples: Floats, errors: Floats) -> None:
        self._examples, self._error = examples, float(errors.max())
        self._columns = np.column_stack([examples, np.ones(len(examples))]).T
        self._directions = self._columns / np.linalg.norm(self._columns, axis=0)
        self._basis = np.linalg.svd(self._directions, full_matrices=False)[0]
        self._most = max(1, min(_MOST, len(examples), len(self._columns) // 3))

    def explain_neurons(self, moved: Floats, start: Floats, rounding: Floats) -> list[MovedNeuron]:
        """Take apart how neurons moved, where these examples explain it down to rounding.

        Parameters
        ----------
        moved, start
            (neurons, inputs + 1): how weights and bias moved, and where they began.
        rounding
            (neurons,): how far an entry of ``moved`` may be off.
        """
        beyond = np.linalg.norm(moved - moved @ self._basis @ self._basis.T, axis=1)
        # An error of an example moves the sum by its part, which is about the movement of the bias.
        limits = np.sqrt(len(self._columns)) * (rounding + self._error * np.abs(moved[:, -1]))
        explained = []
        for neuron in np.flatnonzero((beyond <= limits) & (np.linalg.norm(moved, axis=1) > limits)).tolist():
            candidates = self._find_candidates(moved[neuron])
            members = _choose_members(self._columns, moved[neuron], candidates, float(limits[neuron]))
            examples = self._examples[members]
            outputs = examples @ start[neuron, :-1] + start[neuron, -1]
            sizes = np.abs(examples) @ np.abs(start[neuron, :-1]) + np.abs(start[neuron, -1])
            if len(members) and (np.abs(outputs) > _BORDER * sizes).all():
                explained.append(MovedNeuron(members[outputs > 0], members[outputs < 0]))
        return explained

    def _find_candidates(self, moved: Floats) -> Rows:
        """Return the few examples that explain a movement best."""
        with warnings.catch_warnings():
            # It ends early where fewer examples explain all.
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.flatnonzero(orthogonal_mp(self._directions, moved, n_nonzero_coefs=self._most))


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
