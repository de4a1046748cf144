"""Examples and labels of a user's own ``.npz`` file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, short
from fedattack.base.untrusted import MAX_INFLATED, read_npz
from fedattack.data.source import Pool


def read_arrays(path: Path) -> Pool:
    """Read the arrays ``x`` and ``y`` of an ``.npz`` file; :func:`fedattack.data.load_dataset` says what they hold.

    Raises
    ------
    DataError
        If the file is missing or damaged, or its arrays do not fit; the message names the array.
    """
    x, y = _read_x_and_y(path)
    labels, classes = _check_labels(path, y)
    if x.ndim < 2 or len(x) != len(labels):
        raise DataError(
            f"{path}: array x: expected {len(labels)} examples as there are in y, with at least one feature axis; "
            f"got shape {x.shape}"
        )
    if 0 in x.shape:
        raise DataError(f"{path}: array x: expected examples that are not empty; got shape {x.shape}")
    # Images have at least two axes beside the examples; bytes of a table are numbers.
    if x.dtype == np.uint8 and x.ndim >= 3:
        return Pool(_channels_first(path, x), labels, classes, images=True)
    return Pool(_finite(path, x), labels, classes)


def _read_x_and_y(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read two arrays of numbers."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected an .npz file with arrays x and y")
    arrays = read_npz(path, DataError, "save it again with numpy.savez(path, x=…, y=…)", inflated=MAX_INFLATED)
    lacking = [key for key in ("x", "y") if key not in arrays]
    if lacking:
        raise DataError(
            f"{path}: no array {' and '.join(lacking)}; expected arrays x and y, got "
            f"{short(', '.join(arrays), 80) or 'none'}; save it with numpy.savez(path, x=…, y=…)"
        )
    for key in ("x", "y"):
        dtype = arrays[key].dtype
        if dtype.kind not in "biuf":
            raise DataError(f"{path}: array {key}: expected numbers; got dtype {dtype}; save it as a numeric array")
    return arrays["x"], arrays["y"]


def _check_labels(path: Path, y: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Return the labels as int64, and the number of classes."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{path}: array y: expected integer labels of shape (n,); got dtype {y.dtype}, shape {y.shape}")
    labels = np.unique(y)
    classes = len(labels)
    if classes < 2 or not np.array_equal(labels, np.arange(classes)):
        got = f"{classes} labels from {labels[0]} to {labels[-1]}" if classes else "none"
        raise DataError(
            f"{path}: array y: expected labels 0 … classes - 1, each at least once, of two classes or more; got {got}; "
            "renumber with numpy.unique(y, return_inverse=True)[1]"
        )
    return y.astype(np.int64), classes


def _channels_first(path: Path, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Bring images (n, H, W) or (n, H, W, C) to (n, C, H, W)."""
    if x.ndim == 3:
        return x[:, np.newaxis]
    if x.ndim != 4 or x.shape[3] > 4:
        raise DataError(
            f"{path}: array x: expected uint8 images of shape (n, H, W) or (n, H, W, C) with 1 to 4 channels; got "
            f"{x.shape}; move the channels last with numpy.moveaxis(x, 1, -1)"
        )
    return np.moveaxis(x, 3, 1)


def _finite(path: Path, x: NDArray[Any]) -> NDArray[np.float32]:
    """Return examples as float32, in which no number is NaN or infinite."""
    with np.errstate(over="ignore"):
        # float64 beyond float32 becomes infinity here, which the check below then finds.
        x = x.astype(np.float32)
    finite = np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if not finite.all():
        rows = np.flatnonzero(~finite)
        raise DataError(
            f"{path}: array x: expected finite float32 numbers; got NaN or infinity in {len(rows)} examples, first "
            f"in example {rows[0]}; drop or fill these"
        )
    return x
