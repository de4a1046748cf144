"""Impute an attribute without any update: the baseline that an attack on updates has to beat."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.knowledge import PartialRecords, Targets

FOLDS = 5
MOST_RECORDS = 5_000
"""If there are more public records, a random sample is learnt from."""


def impute(
    partial: PartialRecords, auxiliary: Targets, *, labels: bool = True, seed: int
) -> tuple[NDArray[np.float64], str]:
    """Guess the attribute from the other columns and the label, by the best of several classifiers.

    Which one is best is decided by cross-validated accuracy on the public records alone.

    Examples of ``auxiliary`` with a value outside the domain are left out; ``labels`` says whether these are looked at.
    Returns beliefs (n, v), rows summing to one, and what the classifier is called.
    """
    from sklearn.model_selection import StratifiedKFold

    rows = _sample_public(auxiliary, seed)
    values, known = values_of(partial, auxiliary.x[rows])
    rows, values = rows[known], values[known]
    beliefs = np.zeros((len(partial), len(partial.domain)))
    if len(np.unique(values)) < 2:
        # What is never seen to vary cannot be learnt to vary.
        beliefs[:, values[0] if len(values) else 0] = 1
        return beliefs, "the only public value"
    x, asked = _list_features(partial, auxiliary, rows, labels=labels)
    folds = None
    smallest = int(np.bincount(values)[np.unique(values)].min())
    if smallest >= 2 and len(rows) >= 2 * FOLDS:
        folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=seed)
    fitted, best = _fit_best(_classifiers(seed), x, values, folds)
    beliefs[:, np.unique(values)] = fitted.predict_proba(asked)
    return beliefs, best


def values_of(partial: PartialRecords, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the attribute of public records, and which of them have a value of the domain."""
    equal = (x[:, None, list(partial.columns)] == partial.domain[None]).all(axis=2)
    return equal.argmax(axis=1), equal.any(axis=1)


def draw_largest(scores: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the position of the largest score in each row (n, v); equals are drawn."""
    best = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(np.where(best, generator.random(scores.shape), -1.0).argmax(axis=1))


def _sample_public(auxiliary: Targets, seed: int) -> NDArray[np.int64]:
    """Choose the public records that are learnt from, in their order."""
    rows = np.arange(len(auxiliary))
    if len(rows) > MOST_RECORDS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, MOST_RECORDS, replace=False))
    return rows


def _list_features(
    partial: PartialRecords, auxiliary: Targets, rows: NDArray[np.int64], *, labels: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what the attribute is told from: of these public records, and of the records that are asked about."""
    classes = 0
    if auxiliary.y.dtype == np.int64:
        classes = int(max(partial.y.max(), auxiliary.y.max())) + 1
    x = _features(auxiliary.x[rows], auxiliary.y[rows] if labels else None, partial.columns, classes)
    return x, _features(partial.x, partial.y if labels else None, partial.columns, classes)


def _fit_best(
    candidates: Mapping[str, Any], x: NDArray[np.float64], wanted: NDArray[Any], folds: Any | None
) -> tuple[Any, str]:
    """Fit the model of the best cross-validated score, the first one without folds; and return its name."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import cross_val_score

    best = next(iter(candidates))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if folds is not None:
            scores = {name: cross_val_score(model, x, wanted, cv=folds).mean() for name, model in candidates.items()}
            best = max(scores, key=lambda name: scores[name])
        return candidates[best].fit(x, wanted), best


def _features(
    x: NDArray[np.float32], y: NDArray[Any] | None, columns: tuple[int, ...], classes: int
) -> NDArray[np.float64]:
    """Join the public columns and the label, one-hot where it is a class."""
    public = np.delete(x, list(columns), axis=1).astype(np.float64)
    if y is None:
        return public
    label = np.eye(classes)[y] if classes else y[:, np.newaxis]
    return np.concatenate([public, label], axis=1, dtype=np.float64)


def _classifiers(seed: int) -> dict[str, Any]:
    """Make the classifiers; the majority is first, so that nothing that is no better is taken for a classifier."""
    from sklearn.dummy import DummyClassifier
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "majority": DummyClassifier(strategy="prior"),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500, C=0.1)),
        "random forest": RandomForestClassifier(200, random_state=seed),
        "gradient boosting": HistGradientBoostingClassifier(random_state=seed, max_iter=50),
        "nearest neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(5)),
    }


def impute_numbers(partial: PartialRecords, auxiliary: Targets, *, seed: int) -> tuple[NDArray[np.float64], str]:
    """Estimate a number from the other columns and the label, by the best of several regressions.

    Which one is best is decided by the cross-validated R² on the public records alone.

    Returns estimates (n,), and what the regression is called.
    """
    from sklearn.model_selection import KFold

    rows = _sample_public(auxiliary, seed)
    numbers = auxiliary.x[rows][:, partial.columns[0]].astype(np.float64)
    rows, numbers = rows[np.isfinite(numbers)], numbers[np.isfinite(numbers)]
    if not len(rows):
        return np.zeros(len(partial)), "no public number"
    x, asked = _list_features(partial, auxiliary, rows)
    folds = None
    if len(rows) >= 2 * FOLDS:
        folds = KFold(FOLDS, shuffle=True, random_state=seed)
    fitted, best = _fit_best(_regressions(seed), x, numbers, folds)
    return np.asarray(fitted.predict(asked), dtype=np.float64), best


def _regressions(seed: int) -> dict[str, Any]:
    """Make the regressions; the mean is first, as the majority is among classifiers."""
    from sklearn.dummy import DummyRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "mean": DummyRegressor(),
        "ridge regression": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
        "random forest": RandomForestRegressor(200, random_state=seed),
        "gradient boosting": HistGradientBoostingRegressor(random_state=seed, max_iter=50),
        "nearest neighbours": make_pipeline(StandardScaler(), KNeighborsRegressor(5)),
    }
