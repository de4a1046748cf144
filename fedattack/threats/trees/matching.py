"""Hold what was read of a table against the table, within a tolerance."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

TOLERANCE = 0.319
"""Standard deviations of a column by which a value may be off, as in the code of TimberStrike and of TabLeak."""

EXACT = 0.001
"""Share of a column's range by which a threshold may be off from a value."""

Floats = NDArray[np.float64]


def match_rows(rows: Floats, true: Floats, tolerance: Floats) -> NDArray[np.bool_]:
    """Return (n, columns): which values of true rows are met, where each is held against at most one other row.

    Rows are matched so that as many values as possible are within the tolerance.
    """
    close = np.zeros((len(true), len(rows)), dtype=np.int64)
    for column in range(true.shape[1]):
        close += np.abs(true[:, None, column] - rows[None, :, column]) <= tolerance[column]
    places, others = linear_sum_assignment(close, maximize=True)
    met = np.zeros(true.shape, dtype=np.bool_)
    met[places] = np.abs(true[places] - rows[others]) <= tolerance
    return met


def share_near(values: Floats, cuts: Floats, span: float) -> float:
    """Return the share of values that are next to a threshold."""
    return float(find_near(values, cuts, span).mean())


def find_near(values: Floats, cuts: Floats, span: float) -> NDArray[np.bool_]:
    """Say which values (n,) are next to one of the thresholds, which ascend."""
    if not len(cuts):
        return np.zeros(len(values), dtype=np.bool_)
    places = np.searchsorted(cuts, values).clip(1, max(1, len(cuts) - 1))
    nearest = np.minimum(np.abs(values - cuts[places - 1]), np.abs(values - cuts[np.minimum(places, len(cuts) - 1)]))
    return np.asarray(nearest <= span)
