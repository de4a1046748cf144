"""What scikit-learn's estimators are fitted on, and what they only predict.

Classifiers and regressors are models. Others, such as clusterers, mixtures, transformers and neighbours, have
statistics of their examples: these count as what a client trains where it trains no model.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from fedattack.witness.arrays import State, labels_of, plain, same
from fedattack.witness.current import current
from fedattack.witness.hooks import Hooks
from fedattack.witness.sample import hash_rows
from fedattack.witness.seen import ONLY_APP, WitnessedModel
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.watch import MODELS, CallWatch, FittedEstimator

FITS = ("fit", "partial_fit")
# Each example of these must come back.
WHOLE_FITS = ("fit_transform", "fit_predict")
_BY_ROW = ("X", "y", "sample_weight")
_METHODS = (*FITS, *WHOLE_FITS, "score", "score_samples", "predict", "predict_proba", "decision_function")

NO_LABEL = 0
"""Stands for the label of an example where nothing is learned of labels."""

# Numbers of a sparse matrix up to which its rows are noted.
_DENSE = 2**26
_LINEAR = {"SGDClassifier", "LogisticRegression", "LogisticRegressionCV"}
_MEAN_SQUARES = {"SGDRegressor", "LinearRegression", "Ridge", "MLPRegressor"}

_hooks = Hooks()
_wrapped: set[tuple[type, str]] = set()
_met: set[type] = set()


def install() -> None:
    """Wrap the methods of all estimators that are loaded by now."""
    # Before each call of a client there may be new ones, and mostly there are none.
    for estimator in {*list_estimators(BaseEstimator)} - _met:
        _met.add(estimator)
        # The method stands in the class that defines it, which several estimators may share.
        for cls in estimator.__mro__:
            for name in _METHODS:
                if name in vars(cls) and (cls, name) not in _wrapped:
                    _wrapped.add((cls, name))
                    replace_method(_hooks, cls, name, _watch_method)


def remove() -> None:
    """Put the methods back."""
    _hooks.remove()
    _wrapped.clear()
    _met.clear()


def list_estimators(cls: type) -> Iterator[type]:
    """Yield a class and all that are derived from it."""
    yield cls
    children: list[type] = cls.__subclasses__()
    for child in children:
        yield from list_estimators(child)


def replace_method(
    hooks: Hooks, cls: type, name: str, watch: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Put what ``watch`` makes of a method's name and the method into its place."""
    # Methods that some estimators have only with some options are descriptors that hold the function.
    method = vars(cls)[name]
    owner, attribute = (cls, name) if isinstance(method, FunctionType) else (method, "fn")
    function = getattr(method, "fn", method)
    if isinstance(function, FunctionType):
        hooks.replace(owner, attribute, watch(name, function))


def _watch_method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = current()
        # The steps of a pipeline are seen one by one: what its last one takes is scaled by those before.
        if watch is None or watch.local.estimator is not None or isinstance(self, Pipeline):
            return original(self, *args, **kwargs)
        model = watch.guard("an estimator", _model_of, self)
        if model is None:
            return _watch_fitted(watch, name, original, self, args, kwargs)
        # What it calls itself, such as the steps of a pipeline, is no model of the client.
        watch.local.estimator = self
        held_out = None
        kept_args, kept_kwargs = args, kwargs
        if watch.hold_out is not None and name in FITS:
            chosen = watch.guard("what is held out", _hold_out, original, self, args, kwargs)
            if chosen is not None:
                held_out, kept_args, kept_kwargs = chosen
        try:
            result = original(self, *kept_args, **kept_kwargs)
        finally:
            watch.local.estimator = None
        if name in FITS and not _state(self):
            watch.guard("an estimator", _fitted_of, self)
        watch.guard(f"what {model.name}.{name} was given", _note, model, name, args, kwargs, held_out)
        return result

    return method


def _watch_fitted(
    watch: CallWatch, name: str, original: Callable[..., Any], estimator: Any, args: Any, kwargs: Any
) -> Any:
    """Call a method of an estimator that is no model, and note what it took."""
    # What it calls itself is no estimator of the client.
    watch.local.estimator = estimator
    try:
        result = original(estimator, *args, **kwargs)
    finally:
        watch.local.estimator = None
    what = f"what {type(estimator).__name__}.{name} was given"
    watch.guard(what, _note_fitted, estimator, name in (*FITS, *WHOLE_FITS), args, kwargs)
    return result


def _model_of(watch: CallWatch, estimator: Any) -> SeenModel | None:
    if not (is_classifier(estimator) or is_regressor(estimator)):
        return None
    known = watch.model_of(estimator, lambda: _make_model(watch, estimator))
    if known is not None and not known.received and not known.batches.uses:
        arrays = [array for _, array in _state(estimator)]
        known.received = any(arrays and same(arrays, state) for state in watch.received())
    return known


def _fitted_of(watch: CallWatch, estimator: Any) -> SeenModel:
    """Return what is seen of an estimator that is no model; what it has of its examples stands in its attributes."""
    if id(estimator) not in watch.fitted:
        weights, statistics = functools.partial(_state, estimator), functools.partial(_list_statistics, estimator)
        seen = _make_model(watch, estimator)
        watch.fitted[id(estimator)] = FittedEstimator(estimator, weights, statistics, seen)
    return watch.fitted[id(estimator)].seen


def _note_fitted(watch: CallWatch, estimator: Any, fits: bool, args: Any, kwargs: Any) -> None:
    """Note the examples that an estimator without classes and values took."""
    if not fits and len(watch.fitted) >= MODELS:
        return
    seen, named = _fitted_of(watch, estimator), _name_arguments(args, kwargs)
    x = _rows(named.get("X"))
    # Encoders of labels take these alone.
    if x.ndim < 2:
        return
    y = named.get("y")
    labels = None
    if y is not None:
        labels = labels_of(np.asarray(y), len(x)) if np.asarray(y).dtype.kind in "biu" else None
    batch = seen.start(x, trains=fits)
    batch.labels = labels or [NO_LABEL] * len(x)
    if fits:
        batch.differentiated = True
        seen.step()


def _rows(values: Any) -> NDArray[Any]:
    """Return examples as an array; a sparse matrix that is not too large becomes a dense one."""
    if hasattr(values, "toarray") and math.prod(values.shape) <= _DENSE:
        values = values.toarray()
    return plain(values)


def _list_statistics(estimator: Any) -> State:
    """Return the arrays that an estimator has of what it was fitted on: public attributes that end in ``_``."""
    statistics: State = []
    for name, value in vars(estimator).items():
        is_fitted = name.endswith("_") and not name.startswith("_")
        if is_fitted and isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            statistics.append((name, value))
    return statistics


def _make_model(watch: CallWatch, estimator: Any) -> SeenModel:
    model = SeenModel(watch, estimator, type(estimator).__name__, type(estimator))
    model.state = functools.partial(_state, estimator)
    model.describe = _describe
    return model


def _hold_out(
    watch: CallWatch, fit: Callable[..., Any], estimator: Any, args: Any, kwargs: Any
) -> tuple[NDArray[np.bool_], tuple[Any, ...], dict[str, Any]] | None:
    """Return which examples are held out, and arguments without them; ``None`` where all stay."""
    named = _name_arguments(args, kwargs)
    hashes = hash_rows(_rows(named["X"]), watch.seed)
    chosen = watch.hold_out.choose(hashes) if watch.hold_out is not None else np.zeros(len(hashes), bool)
    if is_classifier(estimator) and named.get("y") is not None:
        # A class that is gone would change the model's shape.
        _, first = np.unique(np.asarray(named["y"]), return_index=True)
        chosen[first] = False
    if not chosen.any() or chosen.all():
        return None
    watch.note_held_out()
    rows = np.flatnonzero(~chosen)
    call = inspect.signature(fit).bind(estimator, *args, **kwargs)
    for name, value in call.arguments.items():
        if name in _BY_ROW and value is not None:
            call.arguments[name] = _safe_indexing(value, rows)
    return chosen, call.args[1:], call.kwargs


def _name_arguments(args: Any, kwargs: Any) -> dict[str, Any]:
    """Return what a method of an estimator was called with, by the names that all of them give."""
    return dict(zip(("X", "y"), args, strict=False)) | dict(kwargs)


def _note(
    watch: CallWatch,
    model: SeenModel,
    name: str,
    args: Any,
    kwargs: Any,
    held_out: NDArray[np.bool_] | None,
) -> None:
    named = _name_arguments(args, kwargs)
    x, y = _rows(named["X"]), named.get("y")
    labels = None
    if y is not None and name in (*FITS, "score"):
        values = np.asarray(y)
        classes = bool(is_classifier(model.model))
        if values.dtype.kind in "biuf":
            # Whole numbers that a regressor predicts, such as prices, are no classes.
            labels = labels_of(values if classes else values.astype(np.float64), len(x), classes=classes)
        if labels is None:
            watch.note(f"the labels of {model.name} are not one number for each example: they are unknown")
    batch = model.start(x, trains=name in FITS)
    batch.labels, batch.held_out = labels, held_out
    if name in FITS:
        batch.differentiated = True
        # A fit is its own optimizer: what it was given is trained on.
        model.step()
        watch.steps += 1


def _state(estimator: Any) -> State:
    """Return the arrays that projects send of an estimator, in their usual order."""
    state: State = []
    for name in ("coef_", "intercept_", "coefs_", "intercepts_"):
        value = getattr(estimator, name, None)
        if isinstance(value, np.ndarray):
            state.append((name, value))
        elif isinstance(value, list):
            # Networks (MLPClassifier) have an array for each layer.
            state += [(f"{name}{index}", array) for index, array in enumerate(value)]
    return state


def _describe(model: SeenModel) -> WitnessedModel:
    estimator: Any = model.model
    classes = len(getattr(estimator, "classes_", [0]))
    spec, arguments = None, {}
    why = f"{model.name} is not a model of PyTorch; give one whose parameters have the same shapes in the same order"
    if model.name in _LINEAR and _shapes(estimator) == [(classes, *model.input_shape), (classes,)]:
        spec, arguments = "torch.nn:Linear", {"in_features": model.input_shape[0], "out_features": classes}
        why = ""
    loss = "mse" if model.name in _MEAN_SQUARES else None
    if model.name == "MLPClassifier" or (model.name in _LINEAR and _is_logistic(estimator)):
        loss = "cross-entropy"
    if loss is None:
        why = "; ".join(filter(None, [why, f"the loss of {model.name} has no name"]))
    if not _state(estimator):
        why = f"{model.name} has no weights that follow a loss: {ONLY_APP}"
    return WitnessedModel(spec, arguments, model.input_shape, classes, loss, why)


def _is_logistic(estimator: Any) -> bool:
    return getattr(estimator, "loss", "log_loss") == "log_loss"


def _shapes(estimator: Any) -> list[tuple[int, ...]]:
    shapes: list[NDArray[Any]] = [array for _, array in _state(estimator)]
    return [tuple(array.shape) for array in shapes]
