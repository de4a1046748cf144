"""The examples of a run: all of them, those that occur once, and the public ones."""

from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.data import Dataset, load_dataset
from fedattack.runs.settings import StudySettings
from simulations.seeds import PUBLIC_STREAM, generator

# As much of the training split may be set aside as public records; the rest is the clients'.
_PUBLIC_SHARE = 0.25


@lru_cache(maxsize=2)
def load_records(dataset: str, size: int, data_root: str, seed: int) -> Dataset:
    """Load a dataset once per process; ``size`` 0 and an empty root stand for all of it and the usual folder."""
    return load_dataset(dataset, seed=seed, size=size or None, root=Path(data_root) if data_root else None)


def singles(data: Dataset) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the training and of the test examples that occur once in both together."""
    keys = [record.tobytes() for record in (*data.x_train, *data.x_test)]
    count = Counter(keys)
    single = np.array([count[key] == 1 for key in keys])
    train = len(data.x_train)
    return np.flatnonzero(single[:train]), np.flatnonzero(single[train:])


def choose_public_rows(data: Dataset, settings: StudySettings) -> NDArray[np.int64]:
    """Choose training examples that occur once to be public, where no dataset of public records is named."""
    most = int(_PUBLIC_SHARE * len(data.y_train))
    return _draw(singles(data)[0], most, settings)


def load_public_records(data: Dataset, settings: StudySettings) -> NDArray[np.float32]:
    """Draw public records (n, *shape) from the dataset that is named.

    Raises
    ------
    DataError
        If they are of another shape than the clients' examples.
    """
    records = load_records(settings.public, 0, settings.data_root, settings.seed).x_train
    if records.shape[1:] != data.input_shape:
        raise DataError(
            f"public = {settings.public}: its examples have shape {records.shape[1:]}, expected {data.input_shape} "
            f"as in {data.name}; choose another public dataset, or leave it empty"
        )
    return records[_draw(np.arange(len(records)), len(records), settings)]


def _draw(rows: NDArray[np.int64], most: int, settings: StudySettings) -> NDArray[np.int64]:
    shuffled = generator(settings.seed, PUBLIC_STREAM).permutation(rows)
    return shuffled[: min(settings.public_records, most)]
