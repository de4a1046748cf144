"""Support vector machines by hand: of what a client sends of one, scikit-learn computes no decision."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier, is_regressor
from sklearn.metrics.pairwise import pairwise_kernels

from fedattack.base.errors import DataError, short
from fedattack.record.format import Arrays

# Kernels that support vector machines name, and the numbers of these that each takes.
_KERNELS: Mapping[str, Sequence[str]] = {
    "linear": (),
    "poly": ("gamma", "degree", "coef0"),
    "rbf": ("gamma",),
    "sigmoid": ("gamma", "coef0"),
}


# What a machine decides by.
_SENT = ("support_vectors_", "dual_coef_", "intercept_", "n_support_")


def find_classes(estimator: Any, y: NDArray[Any]) -> NDArray[np.int64]:
    """Return (n,) the index of each label among an estimator's classes.

    Raises
    ------
    DataError
        If one is none of these.
    """
    columns = np.searchsorted(estimator.classes_, y).clip(max=len(estimator.classes_) - 1)
    if not np.array_equal(estimator.classes_[columns], y):
        raise DataError(f"{name_of(estimator)} was not fitted to all labels of the target records")
    return columns


def name_of(estimator: Any) -> str:
    """Return the name of an estimator's class."""
    return estimator.name if isinstance(estimator, KernelMachine) else type(estimator).__name__


def is_machine(estimator: Any) -> bool:
    """Say whether an estimator of scikit-learn is a support vector machine with a kernel."""
    if isinstance(estimator, KernelMachine):
        return False
    return hasattr(estimator, "support_vectors_") and hasattr(estimator, "dual_coef_") and hasattr(estimator, "kernel")


@dataclass(frozen=True)
class KernelMachine:
    """A support vector machine: f(x) = Σ α k(s, x) + b, one for each pair of classes.

    A linear one may be known by w = Σ α s alone, so that f(x) = w x + b.

    Attributes
    ----------
    name
        Of the estimator's class.
    classes_
        (c,): of a classifier; ``None`` of others.
    is_regression
        Whether it predicts numbers.
    intercept_
        (pairs,): b; one where there are two classes, or none.
    kernel, parameters
        Its name, and its numbers.
    support_vectors_, dual_coef_, n_support_
        (s, …), (c − 1, s), (c,): s and α, class by class, and how many each class has; one row of α, and no count that
        matters, where there is one pair.
    coef_
        (pairs, …): w, in the place of these; empty if it is not known.
    """

    name: str
    classes_: NDArray[Any] | None
    is_regression: bool
    intercept_: NDArray[np.float64]
    kernel: str
    parameters: Mapping[str, float]
    support_vectors_: NDArray[np.float64]
    dual_coef_: NDArray[np.float64]
    n_support_: NDArray[np.int64]
    coef_: NDArray[np.float64]

    @classmethod
    def of(cls, fitted: Any, sent: Arrays | None = None) -> "KernelMachine":
        """Take a fitted machine, with what was ``sent`` in the place of its attributes.

        Raises
        ------
        DataError
            If its kernel is a function of its owner's, or clients do not send all that tells classes apart.
        """
        name = type(fitted).__name__
        if fitted.kernel not in _KERNELS:
            raise DataError(f"{name} has a kernel of its owner's own, which only its client can compute")
        sent = sent or {each: getattr(fitted, each) for each in _SENT}
        classes = fitted.classes_ if is_classifier(fitted) else None
        needed = list(_SENT)
        if fitted.kernel == "linear" and "coef_" in sent:
            needed = ["coef_", "intercept_"]
        elif classes is None or len(classes) == 2:
            needed.remove("n_support_")
        if missing := [each for each in needed if each not in sent]:
            raise DataError(
                f"clients send {short(', '.join(sent), 80)} of {name}, and not its {', '.join(missing)}: no loss "
                "follows from that"
            )
        numbers = {"gamma": getattr(fitted, "_gamma", 0.0), "degree": fitted.degree, "coef0": fitted.coef0}
        values = {each: np.asarray(sent[each], np.float64) for each in needed}
        vectors, none = values.get("support_vectors_", np.zeros((0, 0))), np.zeros(0)
        return cls(
            name,
            classes,
            is_regressor(fitted),
            values["intercept_"].reshape(-1),
            fitted.kernel,
            {each: numbers[each] for each in _KERNELS[fitted.kernel]},
            vectors,
            values.get("dual_coef_", none).reshape(-1, max(1, len(vectors))),
            values.get("n_support_", none).astype(np.int64),
            values.get("coef_", none),
        )

    def decide(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Return f (n, pairs)."""
        if self.coef_.size:
            return np.asarray(x @ self.coef_.reshape(len(self.intercept_), -1).T + self.intercept_)
        values = pairwise_kernels(x, self.support_vectors_, metric=self.kernel, **self.parameters)
        if not len(self.n_support_):
            return np.asarray(values @ self.dual_coef_[:1].T + self.intercept_)
        ends = np.cumsum(self.n_support_)
        blocks = [slice(end - count, end) for count, end in zip(self.n_support_, ends, strict=True)]
        decisions = []
        # α of class i against j is in row j − 1 of its support vectors, and that of j against i in row i of its own.
        for i, j in combinations(range(len(blocks)), 2):
            of_first = values[:, blocks[i]] @ self.dual_coef_[j - 1, blocks[i]]
            decisions.append(of_first + values[:, blocks[j]] @ self.dual_coef_[i, blocks[j]])
        return np.asarray(np.stack(decisions, axis=1) + self.intercept_)

    def losses(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the loss (n,): of a class by its least margin over another one, else a squared error or −Σ α k."""
        decisions = self.decide(x)
        if self.is_regression:
            return np.asarray((decisions[:, 0] - y) ** 2)
        if self.classes_ is None:
            # A density, as scikit-learn's score_samples has it, is without the threshold b.
            return np.asarray(self.intercept_[0] - decisions[:, 0])
        columns = find_classes(self, y)
        if len(self.classes_) == 2:
            # Of two classes what is positive is of the second one, and of more of the first one of a pair.
            decisions = -decisions
        margins = np.full((len(y), len(self.classes_)), np.inf)
        for pair, (i, j) in enumerate(combinations(range(len(self.classes_)), 2)):
            margins[:, i] = np.minimum(margins[:, i], decisions[:, pair])
            margins[:, j] = np.minimum(margins[:, j], -decisions[:, pair])
        return np.asarray(np.logaddexp(0, -margins[np.arange(len(y)), columns]))
