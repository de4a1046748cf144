"""Give losses by an estimator of scikit-learn, of which clients send fitted attributes.

The app's own handler fits the estimator on the target records in the place of the client's examples. The arrays that a
client sent then take the place of the attributes that they are. Nothing that the client fitted is left in it.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin, is_classifier, is_regressor
from sklearn.metrics import pairwise_distances

from fedattack.apps.player import Along, Handler, UpdatesPlayer
from fedattack.base.errors import DataError, short
from fedattack.learning.importing import one_line
from fedattack.record.format import Arrays
from fedattack.witness.hooks import Hooks
from fedattack.witness.sklearn_source import FITS, WHOLE_FITS, list_estimators, replace_method
from fedattack.witness.tape import read_tape

# Probabilities below are taken for this one: the logarithm of 0 is no loss.
_LEAST = 1e-12


@dataclass(frozen=True)
class _Attribute:
    """A fitted attribute: an array, or the array ``index`` of a list, as networks have one for each layer."""

    name: str
    index: int | None = None

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"

    def read(self, estimator: Any) -> NDArray[Any]:
        value = vars(estimator)[self.name]
        return np.asarray(value if self.index is None else value[self.index])

    def put(self, estimator: Any, array: NDArray[Any]) -> None:
        if self.index is None:
            # An intercept may be one number.
            setattr(estimator, self.name, array if array.ndim else array[()])
        else:
            vars(estimator)[self.name][self.index] = array


@dataclass
class _Fits:
    """The estimators that give losses and that a call of the app fitted, on ``x`` and ``y`` in place of its own."""

    x: NDArray[Any]
    y: NDArray[Any]
    estimators: list[Any] = field(default_factory=list)
    is_inner: bool = False

    def watch(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            # What an estimator fits itself is a part of it.
            if self.is_inner or not gives_losses(estimator):
                return original(estimator, *args, **kwargs)
            if not any(estimator is known for known in self.estimators):
                self.estimators.append(estimator)
            call = inspect.signature(original).bind(estimator, *args, **kwargs)
            for argument, values in (("X", self.x), ("y", self.y), ("sample_weight", np.ones(len(self.x)))):
                if call.arguments.get(argument) is not None:
                    call.arguments[argument] = values
            self.is_inner = True
            try:
                return original(*call.args, **call.kwargs)
            finally:
                self.is_inner = False

        return method


class _FitMet(BaseException):
    """Ends a handler at its first fit; an app that catches exceptions does not catch it."""


def gives_losses(estimator: Any) -> bool:
    """Say whether an estimator has one of the methods that :func:`losses_of` takes a loss from."""
    kinds = is_classifier(estimator) or is_regressor(estimator)
    # Clusterers have their centres only once they are fitted.
    return bool(kinds or hasattr(estimator, "score_samples") or isinstance(estimator, ClusterMixin))


def losses_of(estimator: Any, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the loss (n,) of each example under a fitted estimator.

    Raises
    ------
    DataError
        If it gives none, or some that are not finite.
    """
    name = type(estimator).__name__
    if is_classifier(estimator):
        losses = _losses_of_classes(estimator, x, y)
    elif is_regressor(estimator):
        losses = (np.reshape(estimator.predict(x), len(y)) - y) ** 2
    elif hasattr(estimator, "score_samples"):
        losses = -estimator.score_samples(x)
    elif hasattr(estimator, "cluster_centers_"):
        losses = pairwise_distances(x, estimator.cluster_centers_).min(axis=1)
    else:
        raise DataError(f"{name} gives no loss of an example")
    if wrong := int((~np.isfinite(losses)).sum()):
        raise DataError(f"{name} gives {wrong} of {len(losses)} losses that are not finite")
    return np.asarray(losses, np.float64)


def _losses_of_classes(estimator: Any, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return −log p of each label, or log(1 + exp(−margin)), where there are no probabilities."""
    columns = np.searchsorted(estimator.classes_, y).clip(max=len(estimator.classes_) - 1)
    if not np.array_equal(estimator.classes_[columns], y):
        raise DataError(f"{type(estimator).__name__} was not fitted to all labels of the target records")
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


@contextmanager
def _hooked(watch: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    hooks = Hooks()
    try:
        for estimator in {*list_estimators(BaseEstimator)}:
            for name in (*FITS, *WHOLE_FITS):
                if name in vars(estimator):
                    replace_method(hooks, estimator, name, watch)
        yield
    finally:
        hooks.remove()


def meets_fit(handler: Handler, weights: Arrays) -> bool:
    """Say whether the first that an app trains is an estimator that gives losses, and no model of PyTorch."""

    def end(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            if gives_losses(estimator):
                raise _FitMet
            return original(estimator, *args, **kwargs)

        return method

    # A handler may import estimators itself: they are there in the second call.
    for _ in range(2):
        try:
            with _hooked(end):
                read_tape(lambda: handler(weights))
        except _FitMet:
            return True
        except Exception:  # noqa: S112 - what it raises is said when it is asked for losses
            continue
        return False
    return False


class EstimatorPlayer(UpdatesPlayer):
    """Gives losses by the app's estimator, with what a client sent in the place of its attributes.

    Parameters
    ----------
    handler, weights
        The app's training, and the arrays that it is sent.
    x, y
        (n, …), (n,): the targets.

    Raises
    ------
    DataError
        If the arrays of a reply are not the attributes of one estimator, one to one, or its losses do not follow them.
    """

    gives_gradients = False

    def __init__(self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> None:
        super().__init__(_as_reals(x), y)
        self._handler = handler
        everything = np.arange(len(y))
        # Two fits on different examples, of the same classes: what agrees in both agrees not by chance.
        fits = [self._fit(weights, rows) for rows in (everything, _choose_others(y))]
        (reply, estimators), (other_reply, others) = fits
        if len(estimators) != len(others):
            raise DataError("the app fits another number of estimators when it is called again")
        found: list[tuple[Any, Any, dict[str, _Attribute]]] = []
        for estimator, other in zip(estimators, others, strict=True):
            if matched := _match(((reply, estimator), (other_reply, other))):
                found.append((estimator, other, matched))
        names = ", ".join(dict.fromkeys(type(one).__name__ for one in estimators))
        if not found:
            raise DataError(f"no array of a reply is an unchanged fitted attribute of {short(names, 80)}")
        if len(found) > 1:
            raise DataError(
                f"a reply holds attributes of several estimators ({short(names, 80)}), and fedattack does not know "
                "of which one"
            )
        self._estimator, other, self._places = found[0]
        self._name = type(self._estimator).__name__
        self._left = [name for name in reply if name not in self._places]
        self._check_follows(reply, other)

    def _fit(self, weights: Arrays, rows: NDArray[np.int64], seed: int = 0) -> tuple[Arrays, list[Any]]:
        """Let the app train on some of the targets, and return its reply and what it fitted."""
        return self._fit_on(weights, self._x[rows, ...], self._y[rows], seed)

    def _fit_on(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> tuple[Arrays, list[Any]]:
        fits = _Fits(x, y)
        try:
            with _hooked(fits.watch):
                arrays = self._handler.read_arrays(self._handler(weights, seed))
        except DataError:
            raise
        except Exception as cause:
            raise DataError(f"the app cannot train on the target records: {one_line(cause)}") from None
        if not fits.estimators:
            raise DataError("the app fits no estimator of scikit-learn when it is called again")
        return arrays, fits.estimators

    def _check_follows(self, reply: Arrays, other: Any) -> None:
        """Refuse an estimator whose losses are not those of what is sent, whatever else it holds."""
        own = self._try_losses(self._estimator)
        before = self._try_losses(other)
        after = self._try_losses(self._put(other, reply))
        if np.array_equal(before, after) and not np.array_equal(own, before):
            raise DataError(f"the losses of {self._name} do not depend on the attributes that clients send of it")
        self._is_whole = bool(np.allclose(own, after, rtol=1e-6, atol=1e-9))

    def _try_losses(self, estimator: Any) -> NDArray[np.float64]:
        try:
            return losses_of(estimator, self._x, self._y)
        except DataError:
            raise
        except Exception as cause:
            raise DataError(
                f"{self._name} gives no losses when it takes the attributes that clients send: {one_line(cause)}"
            ) from None

    def _put(self, estimator: Any, arrays: Arrays) -> Any:
        """Return a copy of an estimator with other arrays in the place of its attributes."""
        copy = deepcopy(estimator)
        for name, attribute in self._places.items():
            if name not in arrays:
                raise DataError(f"{short(name, 60)}, which is the {attribute} of {self._name}, is missing")
            known, array = attribute.read(copy), np.asarray(arrays[name])
            if array.size != known.size:
                raise DataError(
                    f"{short(name, 60)} has shape {array.shape}, but the {attribute} of {self._name} has shape "
                    f"{known.shape} when it is fitted to the target records"
                )
            attribute.put(copy, array.reshape(known.shape).astype(known.dtype))
        return copy

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        self._playing = self._put(self._estimator, weights)
        self._weights = weights

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (n,) under the weights that were taken last."""
        return self._try_losses(self._playing)

    def update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> Arrays:
        """Return what the client would reply had it these examples: the app itself fits its estimator to them."""
        arrays, _ = self._fit_on(weights, _as_reals(x), y, seed)
        return arrays

    def along(self, updates: Sequence[Arrays]) -> Along:
        """Refuse: a fit has no gradients of single examples."""
        raise DataError("a fit of scikit-learn has no gradients of single examples")

    def list_assumptions(self) -> Iterator[str]:
        """Say what stands for what, and what of the estimator no client sends."""
        sent = ", ".join(f"{name} as its {attribute}" for name, attribute in self._places.items())
        yield f"losses come from the app's own {self._name}, with the values that a client sends: {short(sent, 200)}"
        if self._left:
            yield f"{short(', '.join(self._left), 80)}, which clients also send, is not an attribute of {self._name}"
        if not self._is_whole:
            yield f"the attributes of {self._name} that no client sends were fitted to the target records"


def _choose_others(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return rows without half of all, or of the commonest class: no class is gone, and shares are others."""
    rows = np.arange(len(y))
    if y.dtype.kind == "f":
        return rows[::2]
    _, first, inverse, counts = np.unique(y, return_index=True, return_inverse=True, return_counts=True)
    commonest = np.flatnonzero(inverse == np.argmax(counts))
    return np.union1d(first, np.setdiff1d(rows, commonest[1::2]))


def _as_reals(x: NDArray[Any]) -> NDArray[Any]:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _list_attributes(estimator: Any) -> Iterator[_Attribute]:
    """Yield the public fitted attributes that are numbers, arrays of them, or lists of such arrays."""
    for name, value in vars(estimator).items():
        if not name.endswith("_") or name.startswith("_"):
            continue
        if isinstance(value, np.ndarray | np.floating) and value.dtype.kind in "fiu":
            yield _Attribute(name)
        elif isinstance(value, list) and all(isinstance(each, np.ndarray) for each in value):
            for index in range(len(value)):
                yield _Attribute(name, index)


def _match(cases: Sequence[tuple[Arrays, Any]]) -> dict[str, _Attribute]:
    """Return by their names which attribute of an estimator arrays of its replies are, in all of the cases.

    Raises
    ------
    DataError
        If an array is several attributes, or an attribute several arrays.
    """
    matched: dict[str, _Attribute] = {}
    first = cases[0][1]
    for name in cases[0][0]:
        equal = [
            attribute
            for attribute in _list_attributes(first)
            if all(name in reply and _is_attribute(reply[name], attribute, fitted) for reply, fitted in cases)
        ]
        if len(equal) > 1:
            raise DataError(
                f"{short(name, 60)} equals {' and '.join(map(str, equal))} of {type(first).__name__}, and "
                "fedattack does not know which of these clients send"
            )
        if equal and equal[0] in matched.values():
            raise DataError(f"a reply holds the {equal[0]} of {type(first).__name__} more than once")
        if equal:
            matched[name] = equal[0]
    return matched


def _is_attribute(sent: NDArray[Any], attribute: _Attribute, estimator: Any) -> bool:
    """Say whether an array is an attribute, bit for bit in its own type, in that shape or another."""
    try:
        known = attribute.read(estimator)
    except (KeyError, IndexError):
        return False
    if sent.size != known.size or not sent.size:
        return False
    # Who has no example of a class sends 0 for its mean, which is not a number.
    return bool(np.array_equal(np.nan_to_num(sent).ravel(), np.nan_to_num(known).ravel().astype(sent.dtype)))
