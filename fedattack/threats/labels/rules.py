"""Rules that count labels in the gradient of a last layer: iDLG, LLG, and a system of equations.

The cross-entropy's gradient by the last layer is the mean over a batch of (p − onehot(y)) ⊗ h, where p is the softmax
and h what enters the layer. What an example adds depends on its label first of all.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import nn

from fedattack.attacks.last_layer import Outputs, find_last_layer
from fedattack.record.format import Arrays

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MADE = 20
"""Inputs that are given each label of which the attacker has no example."""

# Share of the largest eigenvalue below which a direction is rounding, and of the mean variance that is added to each.
_ROUNDING, _RIDGE = 1e-9, 1e-3

# How much more the sum of all shares counts than the equations.
_SUM = 1e3

# By how much clients must differ for LLG to count half, and how steeply it counts more. Both, and how local steps hide
# differences, were chosen on clients of the bundled digits with like and unlike labels, other ones than the tests'.
_UNLIKE, _STEEPNESS, _HIDDEN = 0.4, 6, 2.0

# A power of a larger ratio would overflow.
_MOST_ALIKE = 1e6


def restore_labels(model: nn.Module, movement: Arrays, records: int) -> Counts:
    """Read the labels (n,) of a batch off its gradient, ascending (iDLG, Section 3).

    The cross-entropy's gradient by the last bias is the mean of p − onehot(y), whose only negative entry is the label
    of a single example. With several examples, labels are taken one after another where it is lowest, each adding back
    the 1/n that it took; this is exact while all classes are predicted alike. Without a bias the row sums of the last
    weights stand in, whose signs are the same after a ReLU.

    Parameters
    ----------
    model
        The architecture.
    movement
        By parameter name.
    records
        n, at least 1.

    Raises
    ------
    NeedsError
        If the model does not end in a linear layer.
    """
    last = find_last_layer(model)
    counts = count_lowest(last.join(movement), records, has_bias=last.bias is not None)
    return np.repeat(np.arange(len(counts)), counts)


def count_lowest(gradient: Floats, records: int, *, has_bias: bool) -> Counts:
    """Count labels (classes,) by iDLG in the gradient of a last layer.

    It is as :meth:`fedattack.attacks.last_layer.LastLayer.join` puts it.
    """
    lowest = gradient[:, -1]
    share = 1 / records
    if not has_bias:
        lowest = gradient.sum(axis=1)
        share = float(-lowest[lowest < 0].sum()) / records
    return take_lowest(lowest, np.zeros(len(lowest), dtype=np.int64), records, -share)


def take_lowest(gradient: Floats, counts: Counts, examples: int, impact: float) -> Counts:
    """Take labels one after another where a gradient is lowest, until there are so many.

    Parameters
    ----------
    gradient
        (classes,): by label.
    counts
        (classes,): labels that are taken already.
    impact
        What one example adds to the gradient of its label, below 0; it is taken back each time.

    Returns
    -------
    ndarray
        (classes,): how often each is taken, with the first ones.
    """
    left, taken = gradient.astype(np.float64).copy(), counts.copy()
    for _ in range(examples - int(counts.sum())):
        label = int(left.argmin())
        taken[label] += 1
        left[label] -= impact
    return taken


def apply_llg(sums: Floats, examples: int, impact: float | None = None, offset: Floats | None = None) -> Counts:
    """Count labels by LLG (Wainakh et al. 2022, as their code has it), or with both terms by LLG+ and LLG*.

    Parameters
    ----------
    sums
        (classes,): row sums of the gradient of the last weights.
    examples
        How many there are.
    impact
        What one example adds to the sum of its label. ``None`` to estimate it: the negative sums over the examples,
        times 1 + 1/classes.
    offset
        (classes,): the sum of a label that no example has; 0 without one.

    Returns
    -------
    ndarray
        (classes,) int64
    """
    if impact is None:
        impact = float(sums[sums < 0].sum()) / examples * (1 + 1 / len(sums))
    left = sums - (0.0 if offset is None else offset)
    # A sum below 0 tells that the label is there: after a ReLU nothing else can make it negative.
    negative = np.flatnonzero(sums < 0)
    first = negative[np.argsort(left[negative], kind="stable")][:examples]
    counts = np.zeros(len(sums), dtype=np.int64)
    counts[first] = 1
    left[first] -= impact
    return take_lowest(left, counts, examples, impact)


def weigh_llg(moved: Floats, common: Floats, travelled: float) -> float:
    """Say how much LLG counts beside rules that know how long a gradient is, from 0 to 1.

    LLG divides by the length that it sees. Where clients hold labels in the same shares and the model fits these, there
    is hardly any gradient, and what LLG divides is noise.

    Parameters
    ----------
    moved, common
        (classes,): gradient of the bias, and the mean of all in the round.
    travelled
        Learning rate times steps: the further a client went, the more its model fits its labels, and the less of how
        clients differ is left in the mean gradient.
    """
    unlike = float(np.abs(moved - common).sum()) / 2 * (1 + _HIDDEN * travelled)
    if unlike == 0:
        return 0.0
    ratio = min(_UNLIKE / unlike, _MOST_ALIKE)
    return 1 / (1 + ratio**_STEEPNESS)


def find_terms(seen: Outputs, labels: Counts | None, examples: int) -> tuple[float, Floats]:
    """Estimate impact and offset of LLG from examples whose gradients the attacker computes.

    Parameters
    ----------
    seen
        What the model computes of them.
    labels
        (n,): their labels; ``None`` for drawn inputs, to which each label is given in turn (LLG*).
    examples
        How many the client has.
    """
    classes = seen.softmax.shape[1]
    weights = seen.inputs.sum(axis=1)
    products = seen.softmax * weights[:, None]
    whole, own = products.mean(axis=0), np.empty(classes)
    offset = np.empty(classes)
    for label in range(classes):
        with_it = _rows_of(labels, label, len(weights))
        own[label] = (products[with_it, label] - weights[with_it]).mean()
        offset[label] = whole[label]
        if labels is not None and (labels != label).any():
            offset[label] = products[labels != label, label].mean()
    return float(own.mean()) / examples * (1 + 1 / classes), offset


def _rows_of(labels: Counts | None, label: int, count: int) -> NDArray[Any]:
    """Return the rows of a label; all rows where it has none."""
    if labels is None or not (labels == label).any():
        return np.arange(count)
    return np.flatnonzero(labels == label)


def solve_shares(path: Sequence[Outputs], labels: Counts | None, gradient: Floats, *, is_scaled: bool = True) -> Floats:
    """Solve for the share of each label: which mixture of labels gives this gradient of the last layer.

    The gradient of a mixture is the mixture of what examples of each label add on average. How much examples of one
    label differ says how much each direction counts (generalised least squares). Only directions are looked at in
    which gradients of the attacker's examples lie, so that nothing is as large as the layer.

    Parameters
    ----------
    path
        What models between start and end of a training compute of the attacker's examples.
    labels
        (n,): their labels; ``None`` for drawn inputs.
    gradient
        (classes, inputs + 1): mean gradient of the client's examples, as
        :meth:`fedattack.attacks.last_layer.LastLayer.join` puts it.
    is_scaled
        Whether the gradient is as long as it says; else it is known up to a factor.

    Returns
    -------
    ndarray
        (classes,): 0 or more, of sum 1.
    """
    classes = gradient.shape[0]
    rows, given = give_labels(labels, len(path[0].softmax), classes)
    errors, inputs = [], []
    for seen in path:
        error = seen.softmax[rows].copy()
        error[np.arange(len(rows)), given] -= 1
        errors.append(error)
        inputs.append(seen.columns[rows])
    gram = np.zeros((len(rows), len(rows)))
    products = np.zeros(len(rows))
    for error, entering in zip(errors, inputs, strict=True):
        products += np.einsum("nk,nk->n", error @ gradient, entering) / len(path)
        for other, others in zip(errors, inputs, strict=True):
            gram += (error @ other.T) * (entering @ others.T) / len(path) ** 2
    coordinates, wanted = _coordinates(gram, products)
    if path[0].has_bias:
        # Gradients of the bias differ least, and lie in directions in which hardly any of the others do.
        coordinates = np.column_stack([coordinates, np.mean(errors, axis=0)])
        wanted = np.append(wanted, gradient[:, -1])
    means = np.stack([coordinates[given == label].mean(axis=0) for label in range(classes)])
    around = coordinates - means[given]
    covariance = around.T @ around / len(around)
    covariance += (_RIDGE * np.trace(covariance) / len(covariance) + 1e-12) * np.eye(len(covariance))
    whiten = np.linalg.cholesky(np.linalg.inv(covariance)).T
    return fit_mixture(whiten @ means.T, whiten @ wanted, is_scaled=is_scaled)


def give_labels(labels: Counts | None, count: int, classes: int) -> tuple[Counts, Counts]:
    """Return rows of examples with a label for each: their own, and some of them for each label that none has."""
    rows = [np.arange(0)]
    given = [np.arange(0)]
    if labels is not None:
        rows.append(np.arange(count))
        given.append(labels)
    for label in range(classes):
        if labels is None or not (labels == label).any():
            made = np.unique(np.linspace(0, count - 1, min(MADE, count)).astype(np.int64))
            rows.append(made)
            given.append(np.full(len(made), label))
    return np.concatenate(rows), np.concatenate(given)


def mean_shares(path: Sequence[Outputs], gradient: Floats, other: Floats) -> Floats:
    """Estimate the shares from drawn inputs, which have no label.

    What a new model makes of any input is about the same, so that the mean softmax less the gradient is the share of
    each label (Geng et al. 2021). The surer a model is of drawn inputs, the less that says, and the more ``other``
    counts.

    Parameters
    ----------
    path, gradient
        As for :func:`solve_shares`.
    other
        (classes,): what another rule counts, as shares.
    """
    softmax = np.mean([seen.softmax for seen in path], axis=0)
    entropies = -(softmax * np.log(np.maximum(softmax, 1e-300))).sum(axis=1)
    weight = float(np.clip(entropies.mean() / np.log(len(other)), 0.0, 1.0))
    shares = subtract_gradient(path, gradient)
    if shares is None:
        return other
    return np.asarray(weight * shares + (1 - weight) * other)


def subtract_gradient(path: Sequence[Outputs], gradient: Floats) -> Floats | None:
    """Return the mean softmax of inputs less the gradient, as shares of the labels (classes,); None if none is left.

    The gradient of a bias is the mean of p − onehot(y). So that is exact where the inputs have the mean p of the
    client's examples. The parameters are as for :func:`solve_shares`.
    """
    if path[0].has_bias:
        moved = gradient[:, -1]
    else:
        inputs = np.mean([seen.inputs.mean(axis=0) for seen in path], axis=0)
        moved = gradient @ inputs / max(float(inputs @ inputs), 1e-300)
    softmax = np.mean([seen.softmax.mean(axis=0) for seen in path], axis=0)
    shares = np.maximum(softmax - moved, 0.0)
    if not shares.sum():
        return None
    return np.asarray(shares / shares.sum())


def correct_together(shares: Floats, prior: Floats) -> Floats:
    """Take from the shares of clients (clients, classes) what is wrong with all of them alike.

    Drawn inputs do not tell what models make of clients' examples, and the error is the same for all clients. So the
    mean of all clients is moved to ``prior`` (classes,), but for as much as the mean of so many clients is expected to
    be off it, by how much they differ (James & Stein 1961). Returns rows of 0 or more, of sum 1.
    """
    mean = shares.mean(axis=0)
    error = mean - prior
    expected = np.square(shares - mean).sum() / (len(shares) - 1) / len(shares)
    kept = min(1.0, float(expected / max(float(np.square(error).sum()), 1e-300)))
    corrected = np.maximum(shares - (1 - kept) * error, 0.0)
    return np.asarray(corrected / corrected.sum(axis=1, keepdims=True))


def _coordinates(gram: Floats, products: Floats) -> tuple[Floats, Floats]:
    """Return vectors (n, directions) with these products, and of the one with ``products`` its part among them."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > _ROUNDING * values[-1]
    # Fewer directions than a third of the examples, so that their covariance is known.
    kept[: -max(1, len(gram) // 3)] = False
    root = np.sqrt(values[kept])
    return vectors[:, kept] * root, (vectors[:, kept].T @ products) / root


def fit_mixture(columns: Floats, wanted: Floats, *, is_scaled: bool = True) -> Floats:
    """Return shares (n,), 0 or more and of sum 1, for which the mixture of columns (size, n) is nearest to a vector.

    Unless it ``is_scaled``, the vector is known up to a factor.
    """
    if not is_scaled:
        amounts, _ = nnls(columns, wanted)
        if not amounts.any():
            return np.full(len(amounts), 1 / len(amounts))
        return np.asarray(amounts / amounts.sum())
    weight = _SUM * (float(np.abs(columns).max()) or 1.0)
    system = np.vstack([columns, np.full(columns.shape[1], weight)])
    shares, _ = nnls(system, np.append(wanted, weight))
    return np.asarray(shares / shares.sum())


def round_counts(shares: Floats, examples: int) -> Counts:
    """Make whole numbers of shares, of the sum ``examples``, by largest remainders."""
    exact = shares * examples
    counts = np.floor(exact).astype(np.int64)
    missing = examples - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts
