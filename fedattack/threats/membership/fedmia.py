"""FedMIA: hold a client's measurement against those of the other clients, who did not train on the example.

Zhu et al. 2025, "FedMIA: An effective membership inference attack exploiting 'all for one' principle in federated
learning". In each round, the other clients' measurements of an example say how it looks to who did not train on it. A
one-tailed test says how far out the client's own measurement lies. Its probabilities are averaged over rounds.

The paper's code takes mean and variance of the other clients, and a normal distribution. Three things differ here:

- Somebody else may hold the example, too. The largest of the others' measurements is left out of mean and variance, so
  that one other holder does not hide this one. Models that the attacker trained itself hold no target, and all count.
- Few clients give a poor variance. Each example's is drawn towards the typical one of all examples, and the test is
  Student's (Smyth 2004, "moderated t").
- Losses are put on the logit scale, on which they are about normal (Carlini et al. 2022).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

Floats = NDArray[np.float64]

LARGEST_LOSS = 700.0
"""A loss above this counts as this, so that one diverged model does not drown the other rounds."""

# Below this the loss is rounding.
_LEAST_LOSS = 1e-30

# For how many measurements the typical variance counts.
_PRIOR = 4.0

# Fewer others have no variance.
FEWEST_OTHERS = 2


def logits_of(losses: Floats) -> Floats:
    """Return log(p / (1 − p)) of the probability p = exp(−loss) that the example's label got; NaN stays NaN.

    Any other loss that is not negative goes through the same formula, which keeps the order of its values.
    """
    clipped = np.clip(losses, _LEAST_LOSS, LARGEST_LOSS)
    return np.asarray(-(clipped + np.log(-np.expm1(-clipped))))


def against_others(values: Floats) -> Floats:
    """Test each client's measurement against those of the other clients of the round.

    Parameters
    ----------
    values
        (targets, clients): measurements of one round, larger for members; NaN where a client was not seen. A client
        with some NaN has diverged: it counts as not seen, and is nothing to hold others against.

    Returns
    -------
    ndarray
        (targets, clients): the probability of a smaller measurement by a client that did not train on the example, near
        1 for likely members. NaN where a client was not seen, or fewer than two others were.
    """
    probabilities = np.full(values.shape, np.nan)
    seen = np.flatnonzero(~np.isnan(values).any(axis=0))
    if len(seen) <= FEWEST_OTHERS:
        return probabilities
    probabilities[:, seen] = _against_rest(values[:, seen])
    return probabilities


def _against_rest(values: Floats) -> Floats:
    """Test each column against all others but the largest; one sort serves all, for clients may be many.

    The result is a score rather than a calibrated probability: leaving out the largest makes it bold, most of all with
    few others.
    """
    clients = values.shape[1]
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    # Without the value at a rank, the largest of the others is the last one, or for the last one the one before.
    rank = np.arange(clients)
    kept = max(clients - 2, FEWEST_OTHERS)
    # Distances to one of the values: sums of these round little.
    base = ordered[:, [clients // 2]]
    distances = ordered - base
    left_out = distances[:, np.minimum(rank, kept)]
    mean = (distances[:, : kept + 1].sum(axis=1, keepdims=True) - left_out) / kept
    squares = np.square(distances[:, : kept + 1]).sum(axis=1, keepdims=True) - np.square(left_out)
    centre, variance = np.empty(values.shape), np.empty(values.shape)
    np.put_along_axis(centre, order, base + mean, axis=1)
    np.put_along_axis(variance, order, np.maximum(squares - kept * mean**2, 0.0) / (kept - 1), axis=1)
    return _test_moderated(values, centre, variance, kept)


def below_others(values: Floats, others: Floats) -> Floats:
    """Return P(other < value), by a moderated t test, where none of the others trained on the target.

    Parameters
    ----------
    values
        (targets, clients): measurements, NaN where a client was not seen.
    others
        (targets, m): what did not train on the target measures, m ≥ 2.

    Returns
    -------
    ndarray
        (targets, clients)
    """
    centre = others.mean(axis=1, keepdims=True)
    return _test_moderated(values, centre, others.var(axis=1, ddof=1, keepdims=True), others.shape[1])


def _test_moderated(values: Floats, centre: Floats, variance: Floats, count: int) -> Floats:
    """Return the moderated t test's probabilities, of mean and variance of so many others.

    Variances of a column are drawn towards the median of the column.
    """
    freedom = count - 1
    typical = np.median(variance, axis=0)
    pooled = (_PRIOR * typical + freedom * variance) / (_PRIOR + freedom)
    # Where all others measure the same, what is as they are is as likely a member as not.
    scale = np.sqrt(np.maximum(pooled, np.finfo(float).tiny) * (1 + 1 / count))
    return np.asarray(t.cdf((values - centre) / scale, _PRIOR + freedom))


def mean_where_seen(values: Floats) -> Floats:
    """Return the mean over the first axis of what is not NaN; NaN where nothing is: that is no evidence either way."""
    seen = ~np.isnan(values)
    count = seen.sum(axis=0)
    total = np.where(seen, values, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(count > 0, total / count, np.nan))
