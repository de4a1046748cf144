"""Losses of fitted estimators of scikit-learn, and how what clients send stands in these."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from sklearn.base import ClusterMixin, clone, is_classifier, is_regressor
from sklearn.metrics import pairwise_distances

from fedattack.apps.machines import KernelMachine, find_classes, is_machine, name_of
from fedattack.base.errors import DataError, short
from fedattack.record.format import Arrays

# Probabilities below are taken for this one: the logarithm of 0 is no loss.
_LEAST = 1e-12


def gives_losses(estimator: Any) -> bool:
    """Say whether an estimator has one of the methods that :func:`losses_of` takes a loss from."""
    if is_classifier(estimator) or is_regressor(estimator):
        return True
    # Clusterers have their centres, and transformers their components, only once they are fitted.
    is_transformer = hasattr(estimator, "inverse_transform") and hasattr(estimator, "n_components")
    has_method = hasattr(estimator, "score_samples") or hasattr(estimator, "kneighbors")
    return has_method or is_transformer or isinstance(estimator, ClusterMixin)


def losses_of(estimator: Any, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the loss (n,) of each example under a fitted estimator, or a :class:`KernelMachine`.

    Raises
    ------
    DataError
        If it gives none, or some that are not finite.
    """
    name = name_of(estimator)
    if is_machine(estimator):
        losses = KernelMachine.of(estimator).losses(x, y)
    elif isinstance(estimator, KernelMachine):
        losses = estimator.losses(x, y)
    elif is_classifier(estimator):
        losses = _losses_of_classes(estimator, x, y)
    elif is_regressor(estimator):
        losses = (np.reshape(estimator.predict(x), len(y)) - y) ** 2
    elif hasattr(estimator, "score_samples"):
        losses = -estimator.score_samples(x)
    elif hasattr(estimator, "cluster_centers_"):
        losses = pairwise_distances(x, estimator.cluster_centers_).min(axis=1)
    elif hasattr(estimator, "kneighbors"):
        losses = estimator.kneighbors(x, n_neighbors=1)[0][:, 0]
    elif hasattr(estimator, "inverse_transform"):
        losses = ((estimator.inverse_transform(estimator.transform(x)) - x) ** 2).sum(axis=1)
    else:
        raise DataError(f"{name} gives no loss of an example")
    if wrong := int((~np.isfinite(losses)).sum()):
        raise DataError(f"{name} gives {wrong} of {len(losses)} losses that are not finite")
    return np.asarray(losses, np.float64)


def _losses_of_classes(estimator: Any, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return −log p of each label, or log(1 + exp(−margin)), where there are no probabilities."""
    columns = find_classes(estimator, y)
    rows = np.arange(len(y))
    if hasattr(estimator, "predict_proba"):
        probabilities = np.asarray(estimator.predict_proba(x), np.float64)
        losses: NDArray[np.float64] = -np.log(probabilities[rows, columns].clip(min=_LEAST))
        return losses
    if not hasattr(estimator, "decision_function"):
        raise DataError(f"{type(estimator).__name__} returns only classes, and no probabilities or margins")
    scores = np.asarray(estimator.decision_function(x), np.float64)
    if scores.ndim == 1:
        margins = np.where(columns == 1, scores, -scores)
    elif scores.shape[1] == len(estimator.classes_):
        others = scores.copy()
        others[rows, columns] = -np.inf
        margins = scores[rows, columns] - others.max(axis=1)
    else:
        raise DataError(f"{type(estimator).__name__} decides between pairs of classes: a single class has no margin")
    return np.asarray(np.logaddexp(0, -margins))


@dataclass(frozen=True)
class Attribute:
    """A fitted attribute: an array, or the array ``index`` of a list, as networks have one for each layer."""

    name: str
    index: int | None = None

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"

    def read(self, estimator: Any) -> NDArray[Any]:
        """Return its numbers; an AttributeError or IndexError if it is not there."""
        value = getattr(estimator, self.name)
        return np.asarray(value if self.index is None else value[self.index])

    def put(self, estimator: Any, array: NDArray[Any]) -> None:
        """Put an array in its place."""
        if self.index is None:
            # An intercept may be one number.
            setattr(estimator, self.name, array if array.ndim else array[()])
        else:
            getattr(estimator, self.name)[self.index] = array


class Content(ABC):
    """How the arrays of a reply make an estimator.

    Attributes
    ----------
    names
        The arrays that have a part in it.
    """

    names: Sequence[str]

    @abstractmethod
    def put(self, estimator: Any, arrays: Arrays) -> Any:
        """Return what :func:`losses_of` takes: a fitted estimator, with what is sent in the place of its own.

        Raises
        ------
        DataError
            If an array is missing, or of a shape that does not fit.
        """

    @abstractmethod
    def describe(self, name: str) -> str:
        """Say what stands where in the estimator of this name."""


class Attributes(Content):
    """Arrays that are fitted attributes, by their names."""

    def __init__(self, places: Mapping[str, Attribute]) -> None:
        self._places = places
        self.names = [*places]

    def put(self, estimator: Any, arrays: Arrays) -> Any:
        """Put arrays in the place of attributes of a copy, and what follows from them beside."""
        for name, attribute in self._places.items():
            if name not in arrays:
                raise DataError(f"{short(name, 60)}, which is the {attribute} of {name_of(estimator)}, is missing")
        if is_machine(estimator):
            # As many support vectors as each client has.
            return KernelMachine.of(
                estimator, {str(attribute): np.asarray(arrays[name]) for name, attribute in self._places.items()}
            )
        copy = deepcopy(estimator)
        for name, attribute in self._places.items():
            known, array = attribute.read(copy), np.asarray(arrays[name])
            if array.size != known.size:
                raise DataError(
                    f"{short(name, 60)} has shape {array.shape}, but the {attribute} of {name_of(estimator)} has "
                    f"shape {known.shape} when it is fitted to the target records"
                )
            attribute.put(copy, array.reshape(known.shape).astype(known.dtype))
        _derive(copy, {str(attribute) for attribute in self._places.values()})
        return copy

    def describe(self, name: str) -> str:
        """Say which array is which attribute."""
        sent = ", ".join(f"{array} as its {attribute}" for array, attribute in self._places.items())
        return f"losses come from the app's own {name}, with the values that a client sends: {short(sent, 200)}"


class Rows(Content):
    """Arrays that are the very rows that an estimator was given, and their labels, as those of nearest neighbours."""

    def __init__(self, x: str, y: str | None) -> None:
        self._x, self._y = x, y
        self.names = [name for name in (x, y) if name is not None]

    def put(self, estimator: Any, arrays: Arrays) -> Any:
        """Fit an estimator like this one to the rows."""
        if missing := [name for name in self.names if name not in arrays]:
            raise DataError(f"{short(missing[0], 60)}, which {name_of(estimator)} was fitted to, is missing")
        x, y = np.asarray(arrays[self._x], np.float64), None
        if self._y is not None:
            y = np.asarray(arrays[self._y]).reshape(-1)
        return clone(estimator).fit(x, y)

    def describe(self, name: str) -> str:
        """Say what is fitted to what."""
        return (
            f"clients send the rows that {name} is fitted to, as {short(', '.join(self.names), 80)}: fedattack "
            "fits it to these rows again"
        )


def _derive(estimator: Any, put: set[str]) -> None:
    """Set what an estimator computes with, and what follows from attributes that were ``put``."""
    if "covariances_" in put and "precisions_cholesky_" not in put and hasattr(estimator, "precisions_cholesky_"):
        estimator.precisions_cholesky_ = _root_precisions(estimator.covariances_, estimator.covariance_type)
    if "covariance_" in put and "precision_" not in put and hasattr(estimator, "precision_"):
        estimator.precision_ = linalg.pinvh(estimator.covariance_, check_finite=False)


def _root_precisions(covariances: NDArray[Any], kind: str) -> NDArray[Any]:
    """Return the upper R with R Rᵀ = Σ⁻¹ of each covariance Σ of a mixture, as it holds them."""
    if kind in ("diag", "spherical"):
        return np.asarray(1 / np.sqrt(covariances))
    if kind == "tied":
        return np.asarray(_root_precisions(covariances[None], "full")[0])
    lower = np.linalg.cholesky(covariances)
    return np.asarray(np.swapaxes(np.linalg.inv(lower), -1, -2))


def find_content(
    cases: Sequence[tuple[Arrays, Any]], x: Sequence[NDArray[Any]], y: Sequence[NDArray[Any]]
) -> Content | None:
    """Find how the arrays of replies make an estimator; ``None`` if none of them has a part in it.

    Parameters
    ----------
    cases
        Replies, each with the fitted estimator; what agrees in all of them agrees not by chance.
    x, y
        What the estimator was given in each case.

    Raises
    ------
    DataError
        If an array is several attributes, or an attribute several arrays.
    """
    replies = [reply for reply, _ in cases]
    rows = [name for name in replies[0] if _are_same(name, replies, x)]
    labels = [name for name in replies[0] if _are_same(name, replies, y)]
    if rows and not is_machine(cases[0][1]):
        return Rows(rows[0], labels[0] if labels else None)
    places = _match(cases)
    return Attributes(places) if places else None


def _are_same(name: str, replies: Sequence[Arrays], given: Sequence[NDArray[Any]]) -> bool:
    return all(name in reply and _are_numbers(reply[name], one) for reply, one in zip(replies, given, strict=True))


def _list_attributes(estimator: Any) -> Iterator[Attribute]:
    """Yield the public fitted attributes that are numbers, arrays of them, or lists of such arrays."""
    names = [*vars(estimator)]
    if is_machine(estimator):
        # Properties: of which class support vectors are, and what a linear machine makes of them.
        names.append("n_support_")
        if estimator.kernel == "linear":
            names.append("coef_")
    for name in names:
        if not name.endswith("_") or name.startswith("_"):
            continue
        value = getattr(estimator, name)
        if isinstance(value, np.ndarray | np.floating) and value.dtype.kind in "fiu":
            yield Attribute(name)
        elif isinstance(value, list) and all(isinstance(each, np.ndarray) for each in value):
            for index in range(len(value)):
                yield Attribute(name, index)


def _match(cases: Sequence[tuple[Arrays, Any]]) -> dict[str, Attribute]:
    """Return by their names which attribute of an estimator arrays of its replies are, in all of the cases."""
    matched: dict[str, Attribute] = {}
    first = cases[0][1]
    for name in cases[0][0]:
        equal = [
            attribute
            for attribute in _list_attributes(first)
            if all(name in reply and _is_attribute(reply[name], attribute, fitted) for reply, fitted in cases)
        ]
        if len(equal) > 1:
            raise DataError(
                f"{short(name, 60)} equals {' and '.join(map(str, equal))} of {name_of(first)}, and fedattack does "
                "not know which of these clients send"
            )
        if equal and equal[0] in matched.values():
            raise DataError(f"a reply holds the {equal[0]} of {name_of(first)} more than once")
        if equal:
            matched[name] = equal[0]
    return matched


def _is_attribute(sent: NDArray[Any], attribute: Attribute, estimator: Any) -> bool:
    """Say whether an array is an attribute, in that shape or another."""
    try:
        known = attribute.read(estimator)
    except (AttributeError, IndexError):
        return False
    return _are_numbers(sent, known)


def _are_numbers(sent: NDArray[Any], known: NDArray[Any]) -> bool:
    """Say whether an array holds these numbers, bit for bit in its own type."""
    if sent.size != known.size or not sent.size:
        return False
    # Who has no example of a class sends 0 for its mean, which is not a number.
    return bool(np.array_equal(np.nan_to_num(sent).ravel(), np.nan_to_num(known).ravel().astype(sent.dtype)))
