"""Datasets by name, from a user's ``.npz`` file, or from a table that a TOML file declares.

Nothing here reads a pickle. Torchvision's MNIST family would unpickle a ``processed`` folder left by its versions
before 0.9, so only the idx files in ``raw`` are read. Torchvision's CIFAR reader unpickles the python version of the
archive, so the binary version is downloaded instead and parsed with numpy.
"""

from __future__ import annotations

import hashlib
import http.client
import math
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.data import audio, coloured, faces, tabular
from fedattack.data._pool import Pool as _Pool
from fedattack.data.columns import Column, PrivateColumn, find_column, plain_column
from fedattack.errors import DataError, short
from fedattack.untrusted import read_npz

MIN_RECORDS = 10
"""Fewer records than this are refused: neither split would say anything."""

SYNTHETIC_RECORDS = 100_000
SYNTHETIC_FEATURES = 60
SYNTHETIC_CLASSES = 10

TARGET_BINS = 5
"""Into how many classes of about equal size the targets of a regression are put where classes are needed."""


@dataclass(frozen=True, eq=False)
class Dataset:
    r"""Training and test records of one task.

    Attributes
    ----------
    name : str
        The name that it was loaded by, or the stem of its ``.npz`` file.
    x_train, x_test : ndarray of float32, shape (n, \*input_shape)
        Records. Images are (n, channels, height, width), with mean 0 and standard deviation 1 per channel over the
        training split; tabular records are (n, features), as they came or as their columns are declared.
    y_train, y_test : ndarray of int64 or float32, shape (n,)
        Labels in 0 … classes - 1, or the targets of a regression, with mean 0 and standard deviation 1 over the
        training split.
    classes : int
        Number of classes; 1, the number of outputs, for a regression.
    columns : tuple of Column
        What the inputs of tabular records mean, if that is declared.
    groups : mapping of str to ndarray of int64, shape (n,)
        Columns of the training records that are no input, by which records can be divided among clients.
    sensitive : str
        Name of the column that the data's source declares as sensitive; empty for none.
    private : mapping of str to PrivateColumn
        Attributes of the records that an attacker may look for; no inputs, but in the case of Adult. They are among
        ``groups`` as well.
    """

    name: str
    x_train: NDArray[np.float32]
    y_train: NDArray[Any]
    x_test: NDArray[np.float32]
    y_test: NDArray[Any]
    classes: int
    columns: tuple[Column, ...] = ()
    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    sensitive: str = ""
    private: Mapping[str, PrivateColumn] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """``classification`` or ``regression``."""
        return "classification" if np.issubdtype(self.y_train.dtype, np.integer) else "regression"

    @cached_property
    def labels(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """Classes of the training records (n,), and their names; of a regression, fifths of its targets."""
        if self.task == "classification":
            return self.y_train, tuple(str(label) for label in range(self.classes))
        edges = np.quantile(self.y_train, np.arange(1, TARGET_BINS) / TARGET_BINS)
        names = tuple(f"target, fifth {index + 1}" for index in range(TARGET_BINS))
        return np.searchsorted(edges, self.y_train, side="right"), names

    @property
    def column_names(self) -> list[str]:
        """Names of the columns; numbers from 1 where none are declared."""
        declared = [column.name for column in self.columns]
        return declared or [str(index + 1) for index in range(math.prod(self.input_shape))]

    def column(self, name: str) -> Column:
        """Return a column by its name, or its number from 1.

        Raises
        ------
        DataError
            If there is no such column, or the records are no tables.
        """
        if self.columns:
            return find_column(self.columns, name, self.name)
        if self.x_train.ndim != 2:
            raise DataError(
                f"{self.name}: its records have shape {self.input_shape} and so no columns; expected a table, such as "
                "diabetes, or a file declared in TOML"
            )
        if not (name.isascii() and name.isdigit() and 1 <= int(name) <= self.input_shape[0]):
            raise DataError(f"{self.name}: no column {name!r}; expected a number from 1 to {self.input_shape[0]}")
        index = int(name) - 1
        return plain_column(np.concatenate([self.x_train, self.x_test]), index)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.x_train.shape[1:])

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the shapes, types and bytes of the four arrays: equal data, equal fingerprint."""
        digest = hashlib.sha256()
        for array in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class DatasetSource:
    """A row of :data:`DATASETS`: what a dataset is and how it is read and downloaded.

    Attributes
    ----------
    description : str
        One line for a person choosing a dataset.
    read : callable
        Takes the seed and the data folder.
    download : callable or None
        Takes the data folder; None where there is nothing to download.
    by_hand : str
        What a user has to do for data that fedattack does not download.
    """

    description: str
    read: Callable[[int, Path], _Pool]
    download: Callable[[Path], None] | None = None
    by_hand: str = ""


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
        A name in :data:`DATASETS`, the path of a ``.toml`` file that declares a table (see
        :class:`fedattack.data.tabular.Declaration`), or of an ``.npz`` file with arrays ``x`` and ``y``. There ``x``
        of uint8
        with shape (n, H, W) or (n, H, W, C) holds images; any other numeric ``x`` is kept as it is, in float32. ``y``
        holds integer labels 0 … classes - 1, each of them at least once.
    seed : int
        Draws the subsample and the split, and for ``synthetic`` the records.
    root : Path, optional
        Folder of downloaded datasets; :func:`data_root` by default.
    size : int, optional
        Number of records kept, drawn from training and test records together, in their own proportion where the
        dataset comes with a test set.
    test_fraction : float
        Share of test records for datasets that come without a test set (0.2 as in section 4.1 of the SIA paper). The
        split keeps the share of every class where each has enough records for that.

    Returns
    -------
    Dataset

    Raises
    ------
    DataError
        If the name is unknown, files are missing or damaged, arrays do not fit, or there are too few records.
    """
    if not 0 < test_fraction < 1:
        raise DataError(f"test_fraction must lie between 0 and 1; got {test_fraction}")
    if name.endswith(".npz"):
        path = Path(name).expanduser()
        pool, label = _read_npz(path), path.stem
    elif name.endswith(".toml"):
        path = Path(name).expanduser()
        pool, label = tabular.read_toml(path, root or data_root()), path.stem
    else:
        pool, label = _source(name).read(seed, root or data_root()), name
    _check_size(name, len(pool.y), size)

    train, test = _split(pool, seed, size, test_fraction)
    pool = _scale(pool, train)
    x_train, x_test = (pool.x[rows].astype(np.float32, order="C") for rows in (train, test))
    if pool.images:
        _standardise(x_train, x_test)
    groups = {name: group[train] for name, group in pool.groups.items()}
    private = {name: PrivateColumn(values, codes[train], codes[test]) for name, (values, codes) in pool.private.items()}
    groups |= {name: column.train for name, column in private.items()}
    return Dataset(
        label,
        x_train,
        pool.y[train],
        x_test,
        pool.y[test],
        pool.classes,
        pool.columns,
        groups,
        pool.sensitive,
        private,
    )


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
    folder = root or data_root()
    download = _download_of(name)
    if name in DATASETS and DATASETS[name].by_hand:
        raise DataError(f"dataset {name!r} is not downloaded by fedattack: {DATASETS[name].by_hand} in {folder}")
    if download is None:
        raise DataError(f"dataset {name!r} needs no download: it is at hand; use it by its name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        download(folder)
    except (OSError, RuntimeError, EOFError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"could not download {name!r} into {folder}: {reason}; check the network connection and the free space, "
            "then run the same command again"
        ) from error
    return folder


def _download_of(name: str) -> Callable[[Path], None] | None:
    if not name.endswith(".toml"):
        return _source(name).download
    declared = tabular.read_declaration(Path(name).expanduser())
    return partial(tabular.download_openml, declared) if declared.openml else None


def _source(name: str) -> DatasetSource:
    if name not in DATASETS:
        raise DataError(
            f"unknown dataset {name!r}; expected one of {', '.join(DATASETS)}, or the path of an .npz or .toml file"
        )
    return DATASETS[name]


def _check_size(name: str, records: int, size: int | None) -> None:
    if records < MIN_RECORDS:
        raise DataError(f"{name}: too few records: expected at least {MIN_RECORDS}, got {records}")
    if size is not None and not MIN_RECORDS <= size <= records:
        raise DataError(f"{name}: size must lie between {MIN_RECORDS} and its {records} records; got {size}")


def _split(
    pool: _Pool, seed: int, size: int | None, test_fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the training and of the test split."""
    rng = np.random.default_rng(seed)
    records = len(pool.y)
    if pool.own_test:
        cut = records - pool.own_test
        train, test = np.arange(cut), np.arange(cut, records)
        if size is not None:
            kept = min(max(round(size * pool.own_test / records), 1), size - 1)
            train = np.sort(rng.choice(train, size - kept, replace=False))
            test = np.sort(rng.choice(test, kept, replace=False))
        return train, test

    from sklearn.model_selection import train_test_split

    rows = np.arange(records) if size is None else np.sort(rng.choice(records, size, replace=False))
    counts = np.unique(pool.y[rows], return_counts=True)[1]
    smaller_split = min(test_fraction, 1 - test_fraction) * len(rows)
    has_classes = np.issubdtype(pool.y.dtype, np.integer)
    stratify = pool.y[rows] if has_classes and counts.min() >= 2 and smaller_split >= len(counts) else None
    try:
        train, test = train_test_split(rows, test_size=test_fraction, random_state=seed, stratify=stratify)
    except ValueError as error:
        raise DataError(f"cannot split {len(rows)} records with test_fraction {test_fraction}: {error}") from error
    return train, test


def _scale(pool: _Pool, train: NDArray[np.int64]) -> _Pool:
    """Standardise columns of numbers, and the targets of a regression, by the training split."""
    if not np.issubdtype(pool.y.dtype, np.integer):
        mean, deviation = pool.y[train].mean(), pool.y[train].std() or 1.0
        pool = replace(pool, y=((pool.y - mean) / deviation).astype(np.float32))
    if not pool.scaled:
        return pool
    scaled = list(pool.scaled)
    mean, deviation = np.zeros(pool.x.shape[1]), np.ones(pool.x.shape[1])
    mean[scaled], deviation[scaled] = pool.x[train][:, scaled].mean(axis=0), pool.x[train][:, scaled].std(axis=0)
    deviation[deviation == 0] = 1.0
    # The values of a domain go the same way, so that they stay equal to the records' own.
    columns = tuple(
        column
        if column.domain is None
        else replace(
            column, domain=((column.domain - mean[[*column.inputs]]) / deviation[[*column.inputs]]).astype(np.float32)
        )
        for column in pool.columns
    )
    return replace(pool, x=(pool.x - mean) / deviation, columns=columns)


def _standardise(x_train: NDArray[np.float32], x_test: NDArray[np.float32]) -> None:
    """Scale images (n, C, H, W) in place by the training split's mean and standard deviation per channel.

    To bring them to 0 … 1 first would make no difference.
    """
    for channel in range(x_train.shape[1]):
        mean = x_train[:, channel].mean(dtype=np.float64)
        # A channel of one single value has no scale of its own.
        deviation = x_train[:, channel].std(dtype=np.float64) or 1.0
        for x in (x_train, x_test):
            x[:, channel] -= mean
            x[:, channel] /= deviation


def _read_npz(path: Path) -> _Pool:
    if not path.is_file():
        raise DataError(f"{path}: no such file; expected an .npz file with arrays x and y")
    arrays = read_npz(path, DataError, "save it again with numpy.savez(path, x=…, y=…)")
    missing = [key for key in ("x", "y") if key not in arrays]
    if missing:
        raise DataError(
            f"{path}: no array {' and '.join(missing)}; expected arrays x and y, got "
            f"{short(', '.join(arrays), 80) or 'none'}; save it with numpy.savez(path, x=…, y=…)"
        )
    x, y = arrays["x"], arrays["y"]
    for key, array in (("x", x), ("y", y)):
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: array {key}: expected numbers; got dtype {array.dtype}; save it as a numeric array"
            )

    labels, classes = _check_labels(path, y)
    if x.ndim < 2 or len(x) != len(labels):
        raise DataError(
            f"{path}: array x: expected {len(labels)} records as there are in y, with at least one feature axis; "
            f"got shape {x.shape}"
        )
    if 0 in x.shape:
        raise DataError(f"{path}: array x: expected records that are not empty; got shape {x.shape}")
    if x.dtype == np.uint8 and x.ndim >= 3:
        return _Pool(_channels_first(path, x), labels, classes, images=True)
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    if not np.isfinite(x).all():
        rows = np.flatnonzero(~np.isfinite(x.reshape(len(x), -1)).all(axis=1))
        raise DataError(
            f"{path}: array x: expected finite float32 numbers; got NaN or infinity in {len(rows)} records, first "
            f"in record {rows[0]}; drop or fill these"
        )
    return _Pool(x, labels, classes)


def _check_labels(path: Path, y: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Return the labels as int64, and the number of classes."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{path}: array y: expected integer labels of shape (n,); got dtype {y.dtype}, shape {y.shape}")
    found = np.unique(y)
    if len(found) < 2 or not np.array_equal(found, np.arange(len(found))):
        got = f"{len(found)} labels from {found[0]} to {found[-1]}" if len(found) else "none"
        raise DataError(
            f"{path}: array y: expected labels 0 … classes - 1, each at least once, of two classes or more; got {got}; "
            "renumber with numpy.unique(y, return_inverse=True)[1]"
        )
    return y.astype(np.int64), len(found)


def _channels_first(path: Path, x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if x.ndim == 3:
        return x[:, np.newaxis]
    if x.ndim != 4 or x.shape[3] > 4:
        raise DataError(
            f"{path}: array x: expected uint8 images of shape (n, H, W) or (n, H, W, C) with 1 to 4 channels; got "
            f"{x.shape}; move the channels last with numpy.moveaxis(x, 1, -1)"
        )
    return np.moveaxis(x, 3, 1)


def _digits(seed: int, root: Path) -> _Pool:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _Pool(digits.images[:, np.newaxis], digits.target.astype(np.int64), classes=10, images=True)


def _synthetic(seed: int, root: Path) -> _Pool:
    """Draw the IID Synthetic data of section 4.1 of the SIA paper, which are FedProx's ``synthetic_iid`` in one pool.

    Records x ~ N(0, Sigma) with Sigma diagonal, Sigma_jj = j^-1.2 (j from 1), and labels argmax softmax(W x + b) with
    one W and b ~ N(0, 1). The softmax is left out, since it does not move the largest entry.
    """
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(SYNTHETIC_FEATURES, SYNTHETIC_CLASSES))
    bias = rng.normal(size=SYNTHETIC_CLASSES)
    deviation = np.arange(1, SYNTHETIC_FEATURES + 1) ** -0.6
    x = rng.normal(size=(SYNTHETIC_RECORDS, SYNTHETIC_FEATURES)) * deviation
    y = np.argmax(x @ weights + bias, axis=1)
    return _Pool(x, y.astype(np.int64), SYNTHETIC_CLASSES)


def _missing(name: str, folder: Path, files: Iterable[str]) -> DataError:
    return DataError(
        f"dataset {name!r} is not in {folder}: expected {', '.join(files)}; run `fedattack download {name}`"
    )


def _join(
    train: tuple[NDArray[Any], NDArray[np.int64]], test: tuple[NDArray[Any], NDArray[np.int64]], classes: int
) -> _Pool:
    x = np.concatenate([train[0], test[0]])
    y = np.concatenate([train[1], test[1]])
    return _Pool(x, y, classes, images=True, own_test=len(test[1]))


@dataclass(frozen=True)
class _Idx:
    """A dataset of torchvision's MNIST family."""

    name: str
    torchvision_class: str
    train_prefix: str
    test_prefix: str
    classes: int
    options: Mapping[str, str] = field(default_factory=dict)
    transposed: bool = False

    def read(self, seed: int, root: Path) -> _Pool:
        folder = root / self.torchvision_class / "raw"
        return _join(self._part(folder, self.train_prefix), self._part(folder, self.test_prefix), self.classes)

    def _part(self, folder: Path, prefix: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        from torchvision.datasets.mnist import read_image_file, read_label_file

        files = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
        if not all((folder / file).is_file() for file in files):
            raise _missing(self.name, folder, files)
        try:
            images = read_image_file(str(folder / files[0])).numpy()
            labels = read_label_file(str(folder / files[1])).numpy()
        except (AssertionError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise _damaged(self.name, folder) from error
        if len(images) != len(labels) or not len(labels) or labels.max() >= self.classes:
            raise _damaged(self.name, folder)
        if self.transposed:
            images = images.transpose(0, 2, 1)
        return images[:, np.newaxis], labels

    def download(self, root: Path) -> None:
        from torchvision import datasets

        base = getattr(datasets, self.torchvision_class)
        # The constructor downloads, but first looks for the pickles of old versions. The class keeps its name because
        # torchvision names the folder after it.
        without_pickles = type(base.__name__, (base,), {"_check_legacy_exist": lambda self: False})
        without_pickles(str(root), download=True, **self.options)


@dataclass(frozen=True)
class _Cifar:
    """The binary version of CIFAR-10 or CIFAR-100: rows of one or two label bytes and 3 x 32 x 32 pixel bytes."""

    name: str
    archive: str
    md5: str
    folder: str
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    label_bytes: int
    classes: int

    def read(self, seed: int, root: Path) -> _Pool:
        folder = root / self.folder
        return _join(self._part(folder, self.train_files), self._part(folder, self.test_files), self.classes)

    def _part(self, folder: Path, files: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if not all((folder / file).is_file() for file in files):
            raise _missing(self.name, folder, files)
        data = np.concatenate([np.fromfile(folder / file, dtype=np.uint8) for file in files])
        width = self.label_bytes + 3 * 32 * 32
        if not len(data) or len(data) % width:
            raise _damaged(self.name, folder)
        rows = data.reshape(-1, width)
        # CIFAR-100 has the coarse label first and then the fine one, which is the label of the task.
        labels = rows[:, self.label_bytes - 1].astype(np.int64)
        if labels.max() >= self.classes:
            raise _damaged(self.name, folder)
        return rows[:, self.label_bytes :].reshape(-1, 3, 32, 32), labels

    def download(self, root: Path) -> None:
        if all((root / self.folder / file).is_file() for file in self.train_files + self.test_files):
            return
        from torchvision.datasets.utils import download_and_extract_archive

        url = f"https://www.cs.toronto.edu/~kriz/{self.archive}"
        download_and_extract_archive(url, str(root), filename=self.archive, md5=self.md5)


def _damaged(name: str, folder: Path) -> DataError:
    return DataError(
        f"dataset {name!r} in {folder} is damaged; delete that folder, then run `fedattack download {name}`"
    )


_MNIST = partial(_Idx, train_prefix="train", test_prefix="t10k", classes=10)

_MNIST_FILES = _MNIST("mnist", "MNIST")


def _colour_digits(seed: int, root: Path) -> _Pool:
    return coloured.colour_images(coloured.doubled(_digits(seed, root)), seed)


def _colour_mnist(seed: int, root: Path) -> _Pool:
    own = root / "mnist.npz"
    return coloured.colour_images(_read_npz(own) if own.is_file() else _MNIST_FILES.read(seed, root), seed)


_DOWNLOADED: Mapping[str, tuple[str, _Idx | _Cifar | tabular.Shokri]] = {
    "mnist": ("handwritten digits, 70,000 grey images of 28 x 28", _MNIST_FILES),
    "fashion-mnist": ("clothes, 70,000 grey images of 28 x 28", _MNIST("fashion-mnist", "FashionMNIST")),
    "emnist": (
        "handwritten letters and digits (balanced split), 131,600 grey images of 28 x 28, 47 classes",
        _Idx(
            "emnist",
            "EMNIST",
            train_prefix="emnist-balanced-train",
            test_prefix="emnist-balanced-test",
            classes=47,
            options={"split": "balanced"},
            # EMNIST stores its images with rows and columns exchanged; upright they match MNIST's.
            transposed=True,
        ),
    ),
    "cifar10": (
        "10 kinds of objects, 60,000 colour images of 32 x 32",
        _Cifar(
            "cifar10",
            archive="cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
            train_files=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
            test_files=("test_batch.bin",),
            label_bytes=1,
            classes=10,
        ),
    ),
    "cifar100": (
        "100 kinds of objects, 60,000 colour images of 32 x 32",
        _Cifar(
            "cifar100",
            archive="cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder="cifar-100-binary",
            train_files=("train.bin",),
            test_files=("test.bin",),
            label_bytes=2,
            classes=100,
        ),
    ),
    "location30": (
        "visits of 5,010 persons to 446 places and kinds of place, 30 classes",
        tabular.Shokri("location30", "dataset_location.tgz", "bangkok", (30, 446)),
    ),
    "purchase100": (
        "197,324 customers and 600 goods, 100 classes",
        tabular.Shokri("purchase100", "dataset_purchase.tgz", "dataset_purchase", (100, 600)),
    ),
}

DATASETS: Mapping[str, DatasetSource] = {
    "digits": DatasetSource("handwritten digits, 1,797 grey images of 8 x 8, bundled with scikit-learn", _digits),
    "synthetic": DatasetSource(
        "the SIA paper's IID Synthetic, 100,000 records of 60 features, 10 classes, drawn from the seed", _synthetic
    ),
    **{
        name: DatasetSource(description, files.read, files.download)
        for name, (description, files) in _DOWNLOADED.items()
    },
    "colour-digits": DatasetSource(
        "digits in colour, 1,797 images of 3 x 16 x 16; private attributes colour and thickness, drawn from the seed",
        _colour_digits,
    ),
    "colour-mnist": DatasetSource(
        "MNIST in colour (or mnist.npz in the data folder); private attributes colour and thickness, drawn from the "
        "seed",
        _colour_mnist,
        _MNIST_FILES.download,
    ),
    "diabetes": DatasetSource(
        "442 patients of 10 columns, a regression, sensitive column sex, bundled with scikit-learn", tabular.diabetes
    ),
    "breast-cancer": DatasetSource(
        "569 tumours of 30 columns, 2 classes, sensitive column symmetry error, bundled with scikit-learn",
        tabular.breast_cancer,
    ),
    "synthetic-regression": DatasetSource(
        "a regression drawn from the seed as LEAF draws, 15,000 records of 20 columns, 10 users, sensitive column s",
        tabular.synthetic_regression,
    ),
    "adult": DatasetSource(
        "48,842 persons of 14 columns, income in 2 classes, sensitive column sex, private attributes race and sex, "
        "from OpenML or in UCI's files",
        tabular.adult,
        partial(tabular.download_openml, tabular.ADULT),
    ),
    "lfw": DatasetSource(
        "13,143 faces in colour, 3 x 62 x 47, smiling or not; private attributes race, gender, age, glasses and hair, "
        "from lfw_attributes.txt, which is not downloaded",
        faces.lfw,
        faces.download_lfw,
    ),
    "celeba": DatasetSource(
        "20,000 faces in colour, 3 x 32 x 32, male or not; private attributes age, glasses and smile; from your folder",
        faces.celeba,
        by_hand=faces.CELEBA_BY_HAND,
    ),
    "audiomnist": DatasetSource(
        "6,000 spoken digits as spectrograms, 64 x 64; private attributes gender, native and both as identity; from "
        "your folder",
        audio.audiomnist,
        by_hand=audio.BY_HAND,
    ),
}
