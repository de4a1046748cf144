"""Find examples that share numbers with others, as windows of one series do."""

import numpy as np
from numpy.typing import NDArray

from fedattack.base.structured import flat

_LOOKED_AT = 200
"""Examples of either kind that are looked at."""

_MUCH, _LITTLE = 0.5, 0.05


def share_of_overlapping(free: NDArray[np.generic], trained: NDArray[np.generic]) -> float:
    """Say how many examples that nobody trained on share half of their numbers with one that somebody trained on.

    Numbers that any two examples share, such as the black of images, do not count: then nothing is said. Of both,
    (n, …), some are looked at.
    """
    if not len(free) or not len(trained):
        return 0.0
    # Sets of numbers: how windows are shifted against each other does not matter.
    ours = [set(row) for row in flat(free[:_LOOKED_AT]).tolist()]
    theirs = [set(row) for row in flat(trained[:_LOOKED_AT]).tolist()]
    shares = np.zeros((len(ours), len(theirs)))
    for row, numbers in enumerate(ours):
        shares[row] = [len(numbers & other) / len(numbers) for other in theirs]
    # Numbers that are in most examples anyway, such as 0, tell nothing.
    if float(np.median(shares)) > _LITTLE:
        return 0.0
    return float(np.mean(shares.max(axis=1) >= _MUCH))
