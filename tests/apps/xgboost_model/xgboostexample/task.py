"""xgboostexample: data."""

import numpy as np
from sklearn.datasets import load_breast_cancer

SIZES = [40, 60, 80, 100]
HELD_OUT = 20
PARAMS = {"objective": "binary:logistic", "eval_metric": "auc", "max_depth": 3, "nthread": 1, "tree_method": "hist"}


def load_data(site: int):
    """Return what a site trains on, and what it evaluates on."""
    data = load_breast_cancer()
    start = sum(SIZES[:site]) + HELD_OUT * site
    x = data.data[start : start + SIZES[site] + HELD_OUT].astype(np.float32)
    y = data.target[start : start + SIZES[site] + HELD_OUT]
    return (x[HELD_OUT:], y[HELD_OUT:]), (x[:HELD_OUT], y[:HELD_OUT])
