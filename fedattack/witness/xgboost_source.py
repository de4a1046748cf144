"""What XGBoost's boosters are trained and evaluated on: the matrices that they are given."""

import functools
import json
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xgboost import Booster, DMatrix, QuantileDMatrix

from fedattack.base.errors import DataError
from fedattack.witness.arrays import labels_of
from fedattack.witness.current import current
from fedattack.witness.hooks import Hooks
from fedattack.witness.watch import CallWatch

_CLASSES = ("binary:", "multi:")

_hooks = Hooks()
# In each call of a client, the matrices that are noted already, by whether they were trained on.
_noted: "weakref.WeakKeyDictionary[CallWatch, dict[bool, weakref.WeakSet[DMatrix]]]" = weakref.WeakKeyDictionary()


def install() -> None:
    """Put the hooks in, unless they are in; ``xgboost.train`` itself calls what is hooked."""
    if _hooks.are_in:
        return
    for name, note in (("update", _note_update), ("eval_set", _note_evaluation)):
        _hooks.replace(Booster, name, _watch_method(getattr(Booster, name), note))


def remove() -> None:
    """Take the hooks out again."""
    _hooks.remove()


def _watch_method(original: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Booster, *args: Any, **kwargs: Any) -> Any:
        watch = current()
        # An estimator of scikit-learn's kind is watched as such.
        if watch is not None and watch.local.estimator is None:
            # The matrix comes first in both methods; some projects name it.
            given = [*args, *kwargs.values()]
            watch.guard("what XGBoost was given", note, self, given[0])
        return original(self, *args, **kwargs)

    return method


def _note_update(watch: CallWatch, booster: Booster, matrix: DMatrix) -> None:
    _note(watch, booster, matrix, trained=True)


def _note_evaluation(watch: CallWatch, booster: Booster, matrices: Sequence[tuple[DMatrix, str]]) -> None:
    for matrix, _ in matrices:
        _note(watch, booster, matrix, trained=False)


def _note(watch: CallWatch, booster: Booster, matrix: DMatrix, *, trained: bool) -> None:
    """Note the examples of a matrix, once a call of the client; what is trained on counts as nothing else."""
    if _is_beside(watch):
        return
    noted = _noted.setdefault(watch, {True: weakref.WeakSet(), False: weakref.WeakSet()})
    if matrix in noted[True] or matrix in noted[trained]:
        return
    noted[trained].add(matrix)
    rows, labels = _read_rows(matrix), None
    values = matrix.get_label()
    if len(values):
        labels = labels_of(values, len(rows), classes=_tells_classes(booster))
    watch.state(rows, labels, trained=trained)


def _is_beside(watch: CallWatch) -> bool:
    """Say whether the client was sent numbers and no bytes: then trees are none of what it shares."""
    received = [array for arrays in watch.received() for array in arrays]
    return any(array.dtype != np.uint8 and array.size for array in received)


def _read_rows(matrix: DMatrix) -> NDArray[np.float32]:
    """Return the examples (n, columns); NaN where a value is missing.

    Raises
    ------
    DataError
        If the matrix does not hold them as they were.
    """
    if isinstance(matrix, QuantileDMatrix):
        raise DataError(
            "a QuantileDMatrix only holds quantiles; use a DMatrix, or state what trains by "
            "fedattack.witness.trained_on(x, y)"
        )
    stored = matrix.get_data().tocoo()
    # XGBoost stores a sparse matrix, in which what is not there is missing, and not 0.
    rows = np.full(stored.shape, np.nan, dtype=np.float32)
    rows[stored.row, stored.col] = stored.data
    return rows


def _tells_classes(booster: Booster) -> bool:
    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    return str(objective).startswith(_CLASSES)
