"""What SecAgg+ rounds away, by the formula of the plan's docstring."""

import numpy as np

from strategies.secure_aggregation import CLIPPING, STEPS


def rmse(plan, counts):
    step = 2 * CLIPPING / STEPS
    return float(step * plan.max_weight / counts.mean() / np.sqrt(6 * len(counts)))
