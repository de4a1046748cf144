"""Adversaries that infer a private attribute of a client from its update: Stru-NN, Unkwn-NN, SVM and random forest.

Cui et al. 2023 (RecUP-FL), Section 5.4, after Melis et al. 2019. An adversary trains a classifier on max-pooled updates
that it computes itself from auxiliary records, at the model of the round that it attacks. A static adversary trains on
such updates as they are, an adaptive one on updates that it has put through the clients' defence first.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.errors import ConfigError, DataError
from fedattack.learning import LocalSGD
from fedattack.learning.losses import mean_loss
from fedattack.learning.pooled_updates import (
    FEATURES,
    Fit,
    Pooling,
    check_labels,
    standardisation,
    train_network,
)
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import to_tensor

Update = Mapping[str, NDArray[np.float32]]
Beliefs = Callable[[NDArray[np.float32]], NDArray[np.float64]]
"""Pooled updates (n, features) → probabilities of the attribute's values (n, values)."""

TREES = 120
STRUCTURE_KNOWN = (512, 512)
STRUCTURE_UNKNOWN = (1024, 1024, 512, 128)


class _Trainer(Protocol):
    def __call__(
        self, features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit | None
    ) -> Beliefs: ...


def _network(*hidden: int) -> _Trainer:
    def train(
        features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit | None
    ) -> Beliefs:
        return train_network(features, labels, values=values, hidden=hidden, seed=seed, fit=fit).beliefs

    return train


def _svm(features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit | None) -> Beliefs:
    """Train an SVM with an RBF kernel; beliefs are the softmax of its margins, which is uncalibrated."""
    from sklearn.svm import SVC

    mean, deviation = standardisation(features)
    machine = SVC(kernel="rbf", decision_function_shape="ovr").fit((features - mean) / deviation, labels)

    def beliefs(asked: NDArray[np.float32]) -> NDArray[np.float64]:
        margins = machine.decision_function((asked - mean) / deviation)
        if margins.ndim == 1:
            margins = np.stack([-margins, margins], axis=1) / 2
        shares = np.exp(margins - margins.max(axis=1, keepdims=True))
        return _spread(shares / shares.sum(axis=1, keepdims=True), machine.classes_, values)

    return beliefs


def _forest(
    features: NDArray[np.float32], labels: NDArray[np.int64], values: int, seed: int, fit: Fit | None
) -> Beliefs:
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(TREES, random_state=seed).fit(features, labels)
    return lambda asked: _spread(forest.predict_proba(asked), forest.classes_, values)


def _spread(shares: NDArray[np.float64], classes: NDArray[np.int64], values: int) -> NDArray[np.float64]:
    """Give values that did not occur in training a probability of 0."""
    beliefs = np.zeros((len(shares), values))
    beliefs[:, classes] = shares
    return beliefs


ADVERSARIES: Mapping[str, _Trainer] = {
    "stru-nn": _network(*STRUCTURE_KNOWN),
    "unkwn-nn": _network(*STRUCTURE_UNKNOWN),
    "svm": _svm,
    "random-forest": _forest,
}
"""The adversaries by name. Stru-NN has an architecture of the kind that the defender's zoo holds."""


@dataclass(frozen=True)
class Inference:
    """What an adversary says of n updates.

    Attributes
    ----------
    decisions : ndarray of int64, shape (n,)
        The likeliest value.
    beliefs : ndarray, shape (n, values)
        Probabilities; rows sum to one, but only those of the forest are frequencies.
    """

    decisions: NDArray[np.int64]
    beliefs: NDArray[np.float64]


@dataclass(frozen=True)
class Adversary:
    """A trained adversary."""

    pooling: Pooling
    classifier: Beliefs

    def infer(self, updates: Iterable[Update]) -> Inference:
        """Infer the attribute of n updates.

        Raises
        ------
        ModelError, DataError
            If an update has other parameters than those of the training, or is not finite.
        """
        beliefs = self.classifier(self.pooling.pooled(updates))
        return Inference(beliefs.argmax(axis=1), beliefs)


def train_adversary(
    name: str,
    updates: Sequence[Update],
    labels: NDArray[np.int64],
    *,
    values: int,
    seed: int,
    features: int = FEATURES,
    fit: Fit | None = None,
) -> Adversary:
    """Train an adversary on updates of which it knows the attribute.

    Parameters
    ----------
    name : str
        One of :data:`ADVERSARIES`.
    updates : sequence of mapping
        n updates at the model of one round, of the attacker's own records; defended ones make it adaptive.
    labels : ndarray of int, shape (n,)
        In 0 … values − 1.
    values : int
        How many values the attribute has.
    seed : int
        Of everything drawn.
    features : int
        Features that an update is pooled to, at most.
    fit : Fit, optional
        How networks are trained; the others do not use it.

    Raises
    ------
    ConfigError
        If there is no such adversary.
    DataError
        If updates and labels do not fit each other.
    """
    if name not in ADVERSARIES:
        raise ConfigError(f"unknown adversary {name!r}; expected one of {', '.join(ADVERSARIES)}")
    check_labels(np.empty(len(updates)), labels, values)
    pooling = Pooling.of(updates[0], features=features)
    return Adversary(pooling, ADVERSARIES[name](pooling.pooled(updates), labels, values, seed, fit))


def auxiliary_updates(
    model: nn.Module,
    start: Mapping[str, NDArray[np.float32]],
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    attribute: NDArray[np.int64],
    training: LocalSGD,
    *,
    clients: int,
    records: int,
    seed: int,
    loss: str = "cross-entropy",
    device: str = "cpu",
) -> tuple[list[dict[str, NDArray[np.float32]]], NDArray[np.int64]]:
    """Compute the updates of clients made up from auxiliary records, each of one value of the attribute.

    Parameters
    ----------
    model : nn.Module
        The clients' architecture.
    start : mapping
        The common model of the round that is attacked.
    x, y, attribute : ndarray, shape (n, …), (n,), (n,)
        Auxiliary records, their labels and their attribute.
    training : LocalSGD
        How clients train.
    clients, records : int
        How many clients, and records of each. Values of the attribute are dealt to clients as they occur in
        ``attribute``; a client's records are drawn from those of its value, none twice.
    seed : int
        Of all draws.
    loss, device : str
        What clients minimise; where to compute.

    Returns
    -------
    list of dict, ndarray of int64, shape (clients,)
        Updates, and each client's value.

    Raises
    ------
    DataError
        If a value has fewer records than a client holds.
    """
    found, counts = np.unique(attribute, return_counts=True)
    if len(found) == 0 or counts.min() < records or records < 1:
        raise DataError(
            f"auxiliary updates: expected at least {max(records, 1)} records of each value; got "
            f"{dict(zip(found.tolist(), counts.tolist(), strict=True))}; take fewer records for each client"
        )
    rng = np.random.default_rng(seed)
    labels = rng.choice(found, size=clients, p=counts / counts.sum())
    own = {value: np.flatnonzero(attribute == value) for value in found.tolist()}
    rows = np.stack([rng.choice(own[value], size=records, replace=False) for value in labels.tolist()])
    shadow = ShadowModel(model, x[0], mean_loss(loss), device=device)
    updates = shadow.updates(
        shadow.flatten(start),
        to_tensor(x[rows], dtype=torch.float32),
        to_tensor(y[rows]),
        training,
        generator=torch.Generator().manual_seed(int(rng.integers(2**31))),
    )
    unflattened = [shadow.unflatten(update) for update in updates.cpu()]
    return [{name: value.numpy() for name, value in update.items()} for update in unflattened], labels
