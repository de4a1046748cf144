"""Attributes from max-pooled updates: the features and the fully connected networks of attackers and defenders.

Cui et al. 2023 (RecUP-FL), Sections 5.3 and 5.4: an adversary pools the update that it received and classifies what is
left; the defender's own models mimic it. Both sides therefore use what is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning.torch_utils import different, fix_seed, shapes_of, to_tensor

FEATURES = 512
"""Features that an update is pooled to at most, if there are not more parameters than that."""

# A feature that hardly varies is not blown up to the spread of the others.
_FLOOR = 0.01


@dataclass(frozen=True)
class Pooling:
    """Max-pooling of updates: each parameter's entries, in C order, are cut into windows of one width.

    A parameter's last window may be shorter; no window reaches over two parameters.

    Attributes
    ----------
    shapes : tuple of (str, tuple of int)
        Name and shape of each parameter, in the order in which they are laid out.
    width : int
        Entries a window.
    """

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    width: int

    @classmethod
    def of(cls, update: Mapping[str, NDArray[Any]], *, features: int = FEATURES) -> Pooling:
        """Return the pooling of least width that leaves at most ``features`` features of such an update.

        Raises
        ------
        ConfigError
            If there are more parameters than features.
        """
        shapes = shapes_of(update)
        sizes = [math.prod(shape) for shape in shapes.values()]
        if not 0 < len(sizes) <= features:
            raise ConfigError(
                f"pooling of updates: expected 1 to {features} parameters, a feature or more for each; got {len(sizes)}"
            )
        # The least width that could do; the last windows of parameters that are cut short may need some more.
        pooling = cls(tuple(shapes.items()), -(-sum(sizes) // features))
        while pooling.features > features:
            pooling = cls(pooling.shapes, pooling.width + 1)
        return pooling

    @cached_property
    def features(self) -> int:
        """Number of windows."""
        return sum(self._windows_of(shape) for _, shape in self.shapes)

    def _windows_of(self, shape: tuple[int, ...]) -> int:
        """Return the number of windows of one parameter; whole numbers, because shapes may come from a file."""
        return -(-math.prod(shape) // self.width)

    def _positions(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        """Yield the position of each parameter's entries in windows that follow one another."""
        start = 0
        for name, shape in self.shapes:
            yield name, shape, slice(start, start + math.prod(shape))
            start += self._windows_of(shape) * self.width

    def windows(self, update: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Lay an update out as windows (features, width), −∞ where there is no entry.

        Raises
        ------
        ModelError
            If it has other parameters, or parameters of other shapes.
        DataError
            If it has NaN or infinity.
        """
        self.check(update)
        # A maximum over a window leaves out −∞.
        laid = np.full(self.features * self.width, -np.inf, dtype=np.float32)
        for name, _, position in self._positions():
            if not np.isfinite(update[name]).all():
                raise DataError(
                    f"update to be pooled: {name}: expected finite numbers; got NaN or infinity: the training has "
                    "diverged; lower its learning rate"
                )
            laid[position] = update[name].reshape(-1)
        return laid.reshape(self.features, self.width)

    def unlaid(self, windows: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Put windows (features, width) back into arrays by name, which share their memory."""
        laid = windows.reshape(-1)
        return {name: laid[position].reshape(shape) for name, shape, position in self._positions()}

    def pool(self, updates: Iterable[Mapping[str, NDArray[Any]]]) -> NDArray[np.float32]:
        """Return the features (n, features) of n updates, or raise as :meth:`windows`."""
        rows = [self.windows(update).max(axis=1) for update in updates]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self.features)

    def check(self, update: Mapping[str, NDArray[Any]]) -> None:
        """Refuse an update that is not of these parameters, by a ModelError."""
        wanted = dict(self.shapes)
        got = shapes_of(update)
        wrong = different(wanted, got)
        if wrong:
            name = wrong[0]
            raise ModelError(
                f"update: its parameters are not those that were pooled: {name} has shape {got.get(name, 'none')}, "
                f"expected {wanted.get(name, 'none')} ({len(wrong)} differ); give what was made for this model"
            )


@dataclass(frozen=True, eq=False)
class Network:
    """A fully connected network with ReLUs between its layers, that takes features as they are.

    Attributes
    ----------
    layers : tuple of (ndarray, ndarray)
        Weights (outputs, inputs) and biases (outputs,) of each layer, float32, C order.
    """

    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]

    @property
    def hidden(self) -> tuple[int, ...]:
        """Widths between the layers."""
        return tuple(len(bias) for _, bias in self.layers[:-1])

    def logits(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs (…, values) for features (…, inputs)."""
        value = features
        for weights, bias in self.layers[:-1]:
            value = np.maximum(value @ weights.T + bias, 0)
        weights, bias = self.layers[-1]
        return value @ weights.T + bias

    def beliefs(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the softmax (…, values) of the outputs."""
        logits = self.logits(features).astype(np.float64)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(shares / shares.sum(axis=-1, keepdims=True))

    def ascent(self, features: NDArray[np.float32], value: int) -> NDArray[np.float32]:
        """Return the direction (inputs,) in which the cross-entropy of ``value`` grows, at features (inputs,).

        It is the gradient divided by the probability of the likeliest other value. The gradient itself is 0 in float32
        where the network is sure, and callers need its sign alone.
        """
        # Forward, with a note of which units are active; then back through these alone: the gradient of a ReLU network
        # by hand, without PyTorch, for defences on a client.
        active = []
        activations = features
        for weights, bias in self.layers[:-1]:
            activations = weights @ activations
            activations += bias
            active.append(activations > 0)
            activations *= active[-1]
        weights, bias = self.layers[-1]
        logits = weights @ activations + bias
        # With p the probabilities, the cross-entropy's gradient by the logits is p − e_value. Its entry at ``value`` is
        # minus the sum of the others, and all are scaled by the largest of these.
        logits[value] = -np.inf
        gradient = np.exp(logits - logits.max())
        gradient[value] = -gradient.sum()
        for (weights, _), mask in zip(self.layers[:0:-1], active[::-1], strict=True):
            gradient = gradient @ weights
            gradient *= mask
        return np.asarray(gradient @ self.layers[0][0], dtype=np.float32)


@dataclass(frozen=True)
class Fit:
    """How networks are trained (Section 5.4: SGD with a learning rate of 0.01, 80 epochs).

    Attributes
    ----------
    epochs, batch_size, lr, momentum
        Of SGD on the cross-entropy.
    """

    epochs: int = 80
    batch_size: int = 32
    lr: float = 0.01
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.lr > 0 or not 0 <= self.momentum < 1:
            raise ConfigError(
                "training on pooled updates: expected epochs and batch_size of at least 1, lr above 0 and momentum in "
                f"[0, 1); got {self.epochs}, {self.batch_size}, {self.lr} and {self.momentum}"
            )


def train_network(
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    *,
    values: int,
    hidden: Sequence[int],
    seed: int,
    fit: Fit | None = None,
) -> Network:
    """Train a fully connected network to tell labels from features; the global random state is left as it was.

    It is trained on standardised features. The standardisation is then folded into its first layer.

    Parameters
    ----------
    features, labels : ndarray, shape (n, d), (n,)
        Pooled updates, and integers in 0 … values − 1.
    hidden : sequence of int
        Widths of the hidden layers.
    seed : int
        Of the initial parameters and the order of the examples.
    fit : Fit, optional
        The paper's by default.

    Raises
    ------
    ConfigError, DataError
        If a width is less than 1; if the labels do not fit the features, or fewer than two occur.
    """
    fit = fit or Fit()
    if not hidden or min(hidden) < 1:
        raise ConfigError(f"network on pooled updates: expected hidden widths of at least 1; got {list(hidden)}")
    check_labels(features, labels, values)
    mean, deviation = standardisation(features)
    generator = torch.Generator().manual_seed(seed)
    with fix_seed(seed, torch.device("cpu")):
        widths = (features.shape[1], *hidden, values)
        linear = [nn.Linear(before, after) for before, after in pairwise(widths)]
        network = nn.Sequential()
        for layer in linear:
            network.extend([layer, nn.ReLU()])
        # No activation behind the logits.
        network = network[:-1]
        x = to_tensor((features - mean) / deviation, dtype=torch.float32)
        y = to_tensor(labels).long()
        optimizer = torch.optim.SGD(network.parameters(), lr=fit.lr, momentum=fit.momentum)
        for _ in range(fit.epochs):
            for rows in torch.randperm(len(x), generator=generator).split(fit.batch_size):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
    layers = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in linear]
    weights, bias = layers[0]
    # W((x − m)/s) + b = (W/s)x + (b − (W/s)m).
    scaled = weights / deviation.astype(np.float64)
    layers[0] = (scaled.astype(np.float32), (bias - scaled @ mean).astype(np.float32))
    return Network(tuple((np.ascontiguousarray(weights), bias.copy()) for weights, bias in layers))


def standardisation(features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean and what to divide by, (d,) each, of features (n, d)."""
    mean = features.mean(axis=0, dtype=np.float64)
    deviation = features.std(axis=0, dtype=np.float64)
    # By the mean spread of all: a feature of an unused unit is 0 in every update.
    floor = _FLOOR * float(np.sqrt(np.mean(deviation**2))) or 1.0
    return mean.astype(np.float32), np.maximum(deviation, floor).astype(np.float32)


def check_labels(features: NDArray[Any], labels: NDArray[Any], values: int) -> None:
    """Refuse labels that leave nothing to learn, or are not one in 0 … values − 1 for each update, by a DataError."""
    fits = labels.shape == (len(features),) and np.issubdtype(labels.dtype, np.integer)
    if not fits or (len(labels) and not 0 <= labels.min() <= labels.max() < values):
        limits = f", {labels.min()} … {labels.max()}" if labels.size else ""
        raise DataError(
            f"labels of updates: expected {len(features)} whole numbers in 0 … {values - 1}; got dtype {labels.dtype}, "
            f"shape {labels.shape}{limits}"
        )
    if len(np.unique(labels)) < 2:
        raise DataError(
            f"labels of updates: expected at least two values among {len(labels)} updates; got fewer, which leave "
            "nothing to learn; take updates of clients with other values too"
        )
