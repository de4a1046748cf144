"""A source of data: how a dataset is read and downloaded, and what it gives before it is split."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.data.columns import Column

Attribute = tuple[tuple[str, ...], NDArray[Any]]
"""What an attribute's values are called, and each example's value (n,), an index into these (int64)."""


@dataclass(frozen=True, eq=False)
class Pool:
    r"""All examples of a source.

    Attributes
    ----------
    x, y : ndarray, shape (n, \*input_shape) and (n,)
        Examples, as they came or encoded, and their labels in 0 … classes - 1 (int64) or targets (floats).
    images : bool
        Whether the examples are images, which are standardised per channel.
    test_records : int
        How many examples at the end are the test set that the source comes with; 0 for none.
    scaled : tuple of int
        Input columns that are standardised.
    classes, columns, groups, sensitive, private
        As in :class:`fedattack.data.Dataset`, but ``groups`` does not repeat ``private``.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    classes: int
    images: bool = False
    test_records: int = 0
    columns: tuple[Column, ...] = ()
    scaled: tuple[int, ...] = ()
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sensitive: str = ""
    private: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A built-in dataset: what it is, and how it is read and downloaded.

    Attributes
    ----------
    name : str
        What a person calls it by.
    description : str
        One line for a person choosing a dataset.
    read : callable
        Takes the seed and the data folder, and returns a :class:`Pool`.
    download : callable or None
        Takes the data folder; None where there is nothing to download.
    by_hand : str
        What a user has to do for data that fedattack does not download.
    position : int
        Where it stands in lists of datasets: the lowest comes first.
    """

    name: str
    description: str
    read: Callable[[int, Path], Pool]
    download: Callable[[Path], None] | None = None
    by_hand: str = ""
    position: int = 100


Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Images (n, channels, height, width) and their labels (n,)."""


def read_images(
    name: str, folder: Path, files: Iterable[Sequence[str]], parse: Callable[[list[Path]], Images], classes: int
) -> Pool:
    """Read a dataset of images whose training set and test set have their own files.

    ``files`` are the names of the files of the training set in ``folder``, and of those of the test set. ``parse``
    reads the files of one set, and raises if they are damaged.

    Raises
    ------
    DataError
        If files are missing or damaged.
    """
    sets = []
    for names in files:
        paths = [folder / file for file in names]
        if not all(path.is_file() for path in paths):
            raise DataError(
                f"dataset {name!r} is not in {folder}: expected {', '.join(names)}; run `fedattack download {name}`"
            )
        try:
            x, y = parse(paths)
            # Labels outside the classes would fail later, in the loss.
            if len(x) != len(y) or not len(y) or y.max() >= classes:
                raise ValueError("images and labels do not fit")
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise DataError(
                f"dataset {name!r} in {folder} is damaged; delete that folder, then run `fedattack download {name}`"
            ) from error
        sets.append((x, y))
    (x_train, y_train), (x_test, y_test) = sets
    x = np.concatenate([x_train, x_test])
    return Pool(x, np.concatenate([y_train, y_test]), classes, images=True, test_records=len(y_test))


def one_line(error: BaseException) -> str:
    """Put what an error says on one line."""
    return " ".join(str(error).split())
