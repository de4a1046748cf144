"""Datasets that are drawn from the seed: the SIA paper's, and a regression after LEAF."""

from pathlib import Path

import numpy as np

from fedattack.data.source import Pool, Source
from fedattack.data.tables import Declaration, encode

RECORDS = 100_000
FEATURES = 60
CLASSES = 10

REGRESSION_USERS = 10
REGRESSION_RECORDS = 1_500
REGRESSION_FEATURES = 20


def synthetic(seed: int, root: Path) -> Pool:
    """Draw the IID Synthetic data of section 4.1 of the SIA paper, which are FedProx's ``synthetic_iid`` in one pool.

    Examples are x ~ N(0, Σ) with Σ diagonal, Σ_jj = j^-1.2 (j from 1). Labels are argmax softmax(W x + b), with one W
    and b ~ N(0, 1). The softmax is left out, since it does not move the largest entry.
    """
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(FEATURES, CLASSES))
    bias = rng.normal(size=CLASSES)
    # The covariance Σ_kk = k^(−1.2), as in FedProx.
    deviation = np.arange(1, FEATURES + 1) ** -0.6
    x = rng.normal(size=(RECORDS, FEATURES)) * deviation
    y = np.argmax(x @ weights + bias, axis=1)
    return Pool(x, y.astype(np.int64), CLASSES)


def synthetic_regression(seed: int, root: Path) -> Pool:
    """Draw a regression as LEAF draws its synthetic classification (Caldas et al. 2018, Appendix A.1).

    - Each of ten users has weights w = Q u. Q ~ N(0, 1) is common to all, and u ~ N(0, I) has two dimensions.
    - A user's examples are x ~ N(v, Σ) around a centre v ~ N(b, I), b ~ N(0, 1), with Σ diagonal, Σ_jj = j^-1.2.
    - The target is the one output [x, 1]·w + N(0, 0.1²), where LEAF takes the largest of several outputs.
    - The first column, ``s``, is the sensitive one: it is cut at zero to 0 and 1 before the target is computed.
    - ``user`` is a column to divide by and no input.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    common = rng.normal(size=(REGRESSION_FEATURES + 1, 2))
    deviation = np.arange(1, REGRESSION_FEATURES + 1) ** -0.6
    names = ["s", *(f"x{index}" for index in range(2, REGRESSION_FEATURES + 1))]
    frames = []
    for user in range(REGRESSION_USERS):
        weights = common @ rng.normal(size=2)
        centre = rng.normal(rng.normal(), 1.0, size=REGRESSION_FEATURES)
        x = rng.normal(size=(REGRESSION_RECORDS, REGRESSION_FEATURES)) * deviation + centre
        # A binary column, so that there is something to infer.
        x[:, 0] = x[:, 0] > 0
        y = x @ weights[:-1] + weights[-1] + rng.normal(0, 0.1, size=REGRESSION_RECORDS)
        frames.append(pd.DataFrame(x, columns=names).assign(y=y, user=user))
    declared = Declaration(target="y", task="regression", sensitive="s", groups=("user",))
    return encode(pd.concat(frames, ignore_index=True), declared, "synthetic-regression")


SOURCES = (
    Source(
        "synthetic",
        "the SIA paper's IID Synthetic, 100,000 examples of 60 features, 10 classes, drawn from the seed",
        synthetic,
        position=1,
    ),
    Source(
        "synthetic-regression",
        "a regression drawn from the seed as LEAF draws, 15,000 examples of 20 columns, 10 users, sensitive column s",
        synthetic_regression,
        position=52,
    ),
)
