"""What a client itself states about its training, if no framework is watched."""

from typing import Any

from fedattack.base.errors import DataError
from fedattack.witness.arrays import labels_of, plain
from fedattack.witness.current import current
from fedattack.witness.watch import CallWatch


def trained_on(x: Any, y: Any = None) -> None:
    """State on which examples a client trains, if no framework is watched; does nothing if nobody watches.

    Parameters
    ----------
    x
        (n, …): inputs as the model takes them; anything that ``numpy.asarray`` takes.
    y
        (n,): their labels, whole numbers for classes; ``None`` if there are none.
    """
    _note_stated(x, y, True)


def evaluated_on(x: Any, y: Any = None) -> None:
    """State which examples a client only evaluates; see :func:`trained_on`."""
    _note_stated(x, y, False)


def _note_stated(x: Any, y: Any, trained: bool) -> None:
    watch = current()
    if watch is not None:
        watch.guard("what trained_on or evaluated_on was given", _state, x, y, trained)


def _state(watch: CallWatch, x: Any, y: Any, trained: bool) -> None:
    rows = plain(x)
    # One number an example may as well be one example of several numbers.
    if rows.ndim < 2:
        raise DataError(f"expected one row for each example, got an array of shape {rows.shape}")
    labels = None if y is None else labels_of(plain(y), len(rows))
    if y is not None and labels is None:
        watch.note("the labels that trained_on or evaluated_on was given are not one number for each example: left out")
    watch.state(rows, labels, trained=trained)
