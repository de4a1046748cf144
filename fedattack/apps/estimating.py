"""Give losses by an estimator of scikit-learn, of which clients send fitted attributes.

The app's own handler fits the estimator on the target records in the place of the client's examples. The arrays that a
client sent then take the place of the attributes that they are. Nothing that the client fitted is left in it. See
:mod:`fedattack.apps.fitted`.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from fedattack.apps.fitted import Content, find_content, gives_losses, losses_of, name_of
from fedattack.apps.player import Along, Handler, UpdatesPlayer
from fedattack.base.errors import DataError, short
from fedattack.learning.importing import one_line
from fedattack.record.format import Arrays
from fedattack.witness.hooks import Hooks
from fedattack.witness.sklearn_source import FITS, WHOLE_FITS, list_estimators, replace_method
from fedattack.witness.tape import read_tape


@dataclass
class _Fits:
    """The estimators that give losses and that a call of the app fitted, on ``x`` and ``y`` in place of its own.

    For a pipeline it is the last step, as witnesses see it: examples are what this step takes.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    estimators: list[Any] = field(default_factory=list)
    is_inner: bool = False
    has_pipeline: bool = False
    _last: Any = None

    def watch(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def method(estimator: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(estimator, Pipeline) and not self.is_inner:
                return self._fit_steps(original, estimator, *args, **kwargs)
            is_step = self._last is not None and estimator is not self._last
            # What an estimator fits itself is a part of it.
            if self.is_inner or is_step or not gives_losses(estimator):
                return original(estimator, *args, **kwargs)
            call = inspect.signature(original).bind(estimator, *args, **kwargs)
            # What makes examples for another one takes others.
            given: Any = call.arguments.get("X")
            if np.shape(given)[1:] != self.x.shape[1:]:
                return original(estimator, *args, **kwargs)
            if not any(estimator is known for known in self.estimators):
                self.estimators.append(estimator)
            for argument, values in (("X", self.x), ("y", self.y), ("sample_weight", np.ones(len(self.x)))):
                if call.arguments.get(argument) is not None:
                    call.arguments[argument] = values
            self.is_inner = True
            try:
                return original(*call.args, **call.kwargs)
            finally:
                self.is_inner = False

        return method

    def _fit_steps(self, original: Callable[..., Any], pipeline: Pipeline, *args: Any, **kwargs: Any) -> Any:
        """Fit a pipeline, whose steps before the last one take the client's own examples."""
        before, self._last, self.has_pipeline = self._last, pipeline.steps[-1][1], True
        try:
            return original(pipeline, *args, **kwargs)
        finally:
            self._last = before


class _FitMet(BaseException):
    """Ends a handler at its first fit; an app that catches exceptions does not catch it."""


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
        self._has_pipeline = False
        chosen = np.arange(len(y)), _choose_others(y)
        # Two fits on different examples, of the same classes: what agrees in both agrees not by chance.
        fits = [self._fit(weights, rows) for rows in chosen]
        (reply, estimators), (other_reply, others) = fits
        if len(estimators) != len(others):
            raise DataError("the app fits a different number of estimators when it is called again")
        found: list[tuple[Any, Any, Content]] = []
        for estimator, other in zip(estimators, others, strict=True):
            cases = ((reply, estimator), (other_reply, other))
            if content := find_content(cases, [self._x[rows, ...] for rows in chosen], [y[rows] for rows in chosen]):
                found.append((estimator, other, content))
        names = ", ".join(dict.fromkeys(map(name_of, estimators)))
        if not found:
            raise DataError(f"no array of a reply is an unchanged fitted attribute of {short(names, 80)}")
        if len(found) > 1:
            raise DataError(
                f"a reply holds attributes of several estimators ({short(names, 80)}), and fedattack does not know "
                "which one it belongs to"
            )
        self._estimator, other, self._content = found[0]
        self._name = name_of(self._estimator)
        self._left = [name for name in reply if name not in self._content.names]
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
        self._has_pipeline |= fits.has_pipeline
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
        try:
            return self._content.put(estimator, arrays)
        except DataError:
            raise
        except Exception as cause:
            raise DataError(f"{self._name} cannot take what clients send of it: {one_line(cause)}") from None

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
        yield self._content.describe(self._name)
        if self._has_pipeline:
            yield f"{self._name} is the last step of a pipeline: its examples are the outputs of the steps before it"
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
