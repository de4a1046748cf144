"""Load and download datasets: built-in ones by name, a user's ``.npz`` file, or a table that a TOML file declares."""

import os
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, instead
from fedattack.data import tables
from fedattack.data.arrays import read_arrays
from fedattack.data.columns import Column, PrivateColumn
from fedattack.data.dataset import Dataset
from fedattack.data.source import Pool, Source, one_line
from fedattack.data.sources import DATASETS

MIN_RECORDS = 10
"""Fewer examples than this are refused: neither split would say anything."""

Split = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Rows of the training examples (n,) and of the test examples (m,)."""


def data_root() -> Path:
    """Return the folder of downloaded datasets: ``$FEDATTACK_DATA``, else ``fedattack`` in the user's cache folder."""
    if chosen := os.environ.get("FEDATTACK_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fedattack"


def load_dataset(
    name: str, *, seed: int = 0, root: Path | None = None, size: int | None = None, test_fraction: float = 0.2
) -> Dataset:
    """Load a dataset, without touching the network.

    Parameters
    ----------
    name : str
        A name in :data:`DATASETS`, the path of a ``.toml`` file that declares a table, or of an ``.npz`` file. For the
        table see :class:`fedattack.data.tables.Declaration`. The ``.npz`` file has arrays ``x`` and ``y``: ``x`` of
        uint8 with shape (n, H, W) or (n, H, W, C) holds images. Any other numeric ``x`` is kept as it is, in float32.
        ``y`` holds integer labels 0 … classes - 1, each of them at least once.
    seed : int
        Draws the subsample and the split, and for ``synthetic`` the examples.
    root : Path, optional
        Folder of downloaded datasets; :func:`data_root` by default.
    size : int, optional
        Number of examples kept, drawn from training and test examples together, in their own proportion where the
        dataset comes with a test set.
    test_fraction : float
        Share of test examples for datasets that come without a test set (0.2 as in section 4.1 of the SIA paper). The
        split keeps the share of every class where each has enough examples for that.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If the name is unknown, files are missing or damaged, arrays do not fit, or there are too few examples.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must lie between 0 and 1; got {test_fraction}")
    pool = _read(name, seed, root)
    _check_size(name, len(pool.y), size)
    # Scales below are those of the training split alone, so that no test example is told.
    train, test = _split(pool, seed, size, test_fraction)
    pool = _scale_columns(pool, train)
    y = _scale_targets(pool.y, train)
    x_train = pool.x[train].astype(np.float32, order="C")
    x_test = pool.x[test].astype(np.float32, order="C")
    if pool.images:
        _scale_channels(x_train, x_test)
    private = {key: PrivateColumn(values, codes[train], codes[test]) for key, (values, codes) in pool.private.items()}
    groups = {key: group[train] for key, group in pool.groups.items()}
    test_groups = {key: group[test] for key, group in pool.groups.items()}
    groups |= {key: column.train for key, column in private.items()}
    test_groups |= {key: column.test for key, column in private.items()}
    return Dataset(
        name=Path(name).stem if name.endswith((".npz", ".toml")) else name,
        x_train=x_train,
        y_train=y[train],
        x_test=x_test,
        y_test=y[test],
        classes=pool.classes,
        columns=pool.columns,
        groups=groups,
        test_groups=test_groups,
        sensitive=pool.sensitive,
        private=private,
    )


def check_name(name: str) -> None:
    """Check that there may be such a dataset: a name that is known, or a file that is there.

    Raises
    ------
    DataError
        If there is not.
    """
    if not name.endswith((".npz", ".toml")):
        _source(name)
    elif not Path(name).expanduser().is_file():
        raise DataError(f"{name}: there is no such file; expected an .npz with x and y, or a .toml of a table")


def download_dataset(name: str, *, root: Path | None = None) -> Path:
    """Download a dataset into the data folder; files that are there already are not fetched again.

    Parameters
    ----------
    name : str
        A name in :data:`DATASETS`, or the path of a ``.toml`` file that names a dataset of OpenML.
    root : Path, optional
        Folder to download into; :func:`data_root` by default.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    DataError
        If the dataset is unknown or needs no download, or the download fails.
    """
    # Here, as TLS takes a tenth of the time of `fedattack check`, which downloads nothing.
    import http.client

    folder = root or data_root()
    download = _download_of(name, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        download(folder)
    # What the downloaders of torchvision and scikit-learn, and archives, may raise.
    except (OSError, RuntimeError, EOFError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile) as error:
        reason = one_line(error) or type(error).__name__
        raise DataError(
            f"could not download {name!r} into {folder}: {reason}; check the network connection and the free space, "
            "then run the same command again"
        ) from error
    return folder


def _download_of(name: str, folder: Path) -> Callable[[Path], None]:
    """Return what downloads a dataset, or refuse one that is not downloaded."""
    download: Callable[[Path], None] | None
    if name.endswith(".toml"):
        declared = tables.read_declaration(Path(name).expanduser())
        download = partial(tables.download_openml, declared) if declared.openml else None
    else:
        source = _source(name)
        if source.by_hand:
            raise DataError(f"dataset {name!r} is not downloaded by fedattack: {source.by_hand}, in {folder}")
        download = source.download
    if download is None:
        raise DataError(f"dataset {name!r} needs no download; use it by its name")
    return download


def _read(name: str, seed: int, root: Path | None) -> Pool:
    """Read all examples of a dataset, or of a user's file."""
    if name.endswith(".npz"):
        return read_arrays(Path(name).expanduser())
    if name.endswith(".toml"):
        return tables.read_declared(Path(name).expanduser(), root or data_root())
    return _source(name).read(seed, root or data_root())


def _source(name: str) -> Source:
    if name not in DATASETS:
        words = instead(name, DATASETS, listed="data")
        raise DataError(f"unknown dataset {name!r}: {words}; the path of an .npz or .toml file also works")
    return DATASETS[name]


def _check_size(name: str, records: int, size: int | None) -> None:
    if records < MIN_RECORDS:
        raise DataError(f"{name}: too few examples: expected at least {MIN_RECORDS}, got {records}")
    if size is not None and not MIN_RECORDS <= size <= records:
        raise DataError(f"{name}: size must lie between {MIN_RECORDS} and its {records} examples; got {size}")


def _split(pool: Pool, seed: int, size: int | None, test_fraction: float) -> Split:
    """Draw which examples are kept, and which of them are test examples."""
    rng = np.random.default_rng(seed)
    # A test set that comes with the data is kept, as papers report on it.
    records = len(pool.y)
    if pool.test_records:
        return _keep_split(records, pool.test_records, size, rng)

    from sklearn.model_selection import train_test_split

    # Sorted, so that size alone decides which rows are kept, and not their order.
    rows = np.arange(records) if size is None else np.sort(rng.choice(records, size, replace=False))
    y = pool.y[rows]
    stratify = y if _can_stratify(y, test_fraction) else None
    try:
        train, test = train_test_split(rows, test_size=test_fraction, random_state=seed, stratify=stratify)
    except ValueError as error:
        raise DataError(f"cannot split {len(rows)} examples with test_fraction {test_fraction}: {error}") from error
    return train, test


def _keep_split(records: int, test_records: int, size: int | None, rng: np.random.Generator) -> Split:
    """Keep the test set that a source comes with; of both splits, draw ``size`` examples in their proportion."""
    first_test = records - test_records
    train, test = np.arange(first_test), np.arange(first_test, records)
    if size is None:
        return train, test
    test_size = min(max(round(size * test_records / records), 1), size - 1)
    train = np.sort(rng.choice(train, size - test_size, replace=False))
    test = np.sort(rng.choice(test, test_size, replace=False))
    return train, test


def _can_stratify(y: NDArray[Any], test_fraction: float) -> bool:
    """Say whether each class has enough examples for both splits to keep its share."""
    if not np.issubdtype(y.dtype, np.integer):
        return False
    _, counts = np.unique(y, return_counts=True)
    smaller_split = min(test_fraction, 1 - test_fraction) * len(y)
    # Each class needs an example in the smaller split.
    return bool(counts.min() >= 2 and smaller_split >= len(counts))


def _scale_targets(y: NDArray[Any], train: NDArray[np.int64]) -> NDArray[Any]:
    """Standardise the targets of a regression by the training split; labels stay as they are."""
    if np.issubdtype(y.dtype, np.integer):
        return y
    mean = y[train].mean()
    # Equal targets have no scale.
    deviation = y[train].std() or 1.0
    return np.asarray((y - mean) / deviation, dtype=np.float32)


def _scale_columns(pool: Pool, train: NDArray[np.int64]) -> Pool:
    """Standardise columns of numbers by the training split."""
    if not pool.scaled:
        return pool
    scaled = list(pool.scaled)
    numbers = pool.x[train][:, scaled]
    mean, deviation = np.zeros(pool.x.shape[1]), np.ones(pool.x.shape[1])
    mean[scaled] = numbers.mean(axis=0)
    deviation[scaled] = numbers.std(axis=0)
    deviation[deviation == 0] = 1.0
    columns = tuple(_scale_domain(column, mean, deviation) for column in pool.columns)
    return replace(pool, x=(pool.x - mean) / deviation, columns=columns)


def _scale_domain(column: Column, mean: NDArray[np.float64], deviation: NDArray[np.float64]) -> Column:
    """Scale the values of a domain as the examples are scaled, so that they stay equal to the examples' values."""
    if column.domain is None:
        return column
    inputs = list(column.inputs)
    domain = (column.domain - mean[inputs]) / deviation[inputs]
    return replace(column, domain=domain.astype(np.float32))


def _scale_channels(x_train: NDArray[np.float32], x_test: NDArray[np.float32]) -> None:
    """Standardise images (n, C, H, W) in place, each channel by the training split's mean and standard deviation.

    To bring them to 0 … 1 first would make no difference.
    """
    for channel in range(x_train.shape[1]):
        mean = x_train[:, channel].mean(dtype=np.float64)
        # A channel of one single value has no scale of its own.
        deviation = x_train[:, channel].std(dtype=np.float64) or 1.0
        for x in (x_train, x_test):
            x[:, channel] -= mean
            x[:, channel] /= deviation
