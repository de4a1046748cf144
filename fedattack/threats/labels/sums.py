"""Take sums over many rounds apart: whose labels they are, by who took part when."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# How much the mean of all sums counts beside a round in which a client is alone.
_PRIOR = 1e-3


def separate(weights: Floats, shares: Floats) -> Floats:
    """Return the shares of each client, whose weighted mean in each update is nearest to what was seen.

    Parameters
    ----------
    weights
        (updates, clients): which part of an update is whose; each row has the sum 1.
    shares
        (updates, classes): shares of the labels in each update.

    Returns
    -------
    ndarray
        (clients, classes): 0 or more, each row of sum 1. Clients that always appear together get the same; a client
        that is in no update gets the mean of all.
    """
    mean = shares.mean(axis=0)
    system = weights.T @ weights + _PRIOR * np.eye(weights.shape[1])
    found = mean + np.linalg.solve(system, weights.T @ (shares - mean))
    return np.stack([project_to_shares(row) for row in found])


def project_to_shares(row: Floats) -> Floats:
    """Return the nearest vector of numbers 0 or more, of sum 1 (Duchi et al. 2008, Figure 1)."""
    ordered = np.sort(row)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(row) + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    return np.asarray(np.maximum(row - excess[last], 0.0))
