"""The Adult census data, from OpenML or in UCI's files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.base.errors import DataError
from fedattack.data.source import Pool, Source, one_line
from fedattack.data.tables import Declaration, download_openml, encode, read_openml

if TYPE_CHECKING:
    import pandas as pd

ADULT = Declaration(target="class", openml="adult", version=2, sensitive="sex", missing="impute")
"""What OpenML's columns mean; UCI's get the same names."""

PRIVATE = ("race", "sex")

UCI_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "class"),
)
"""The columns of UCI's files, which do not name them."""


def adult(seed: int, root: Path) -> Pool:
    """Read the Adult census data, with an income of more than 50,000 dollars a year or not as the task.

    Race and sex are private attributes, and inputs all the same. RecUP-FL hides what an update tells of the race of
    clients whose model is trained on all columns (Cui et al. 2023, Section 6.1). ``sex`` is the sensitive column, too.

    Where the data folder ``root`` has ``adult/adult.data`` or ``adult/adult.test`` of UCI, both are read, the latter as
    the test set. Otherwise OpenML's table is read, which ``fedattack download adult`` puts there.

    Raises
    ------
    DataError
        If there are neither, or they are damaged.
    """
    folder = root / "adult"
    train_file, test_file = folder / "adult.data", folder / "adult.test"
    if train_file.is_file() or test_file.is_file():
        pool = _read_uci(train_file, test_file, str(folder))
    else:
        pool = read_openml(ADULT, root, "adult")
    columns = {column.name: column for column in pool.columns}
    private = {name: (columns[name].values, columns[name].codes(pool.x)) for name in PRIVATE}
    return replace(pool, private=private)


def _read_uci(train_file: Path, test_file: Path, where: str) -> Pool:
    """Read UCI's two files as one pool, whose last examples are the test set."""
    import pandas as pd

    train = _uci_frame(train_file)
    test = _uci_frame(test_file)
    pool = encode(pd.concat([train, test], ignore_index=True), ADULT, where)
    return replace(pool, test_records=len(test))


def _uci_frame(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        # The test set begins with a line for people, and ends its labels with a full stop.
        frame = pd.read_csv(file, header=None, dtype=str, keep_default_na=False, skipinitialspace=True, comment="|")
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read as CSV ({one_line(error)}); fetch it again from UCI") from None
    # UCI writes a missing value as "?", so that an empty cell is a broken line.
    if frame.shape[1] != len(UCI_COLUMNS) or frame.eq("").to_numpy().any():
        raise DataError(f"{file}: expected {len(UCI_COLUMNS)} columns in each line; fetch it again from UCI")
    frame.columns = [*UCI_COLUMNS]
    return frame.assign(**{"class": frame["class"].str.rstrip(".")})


SOURCES = (
    Source(
        "adult",
        "48,842 persons of 14 columns, income in 2 classes, sensitive column sex, private attributes race and sex, "
        "from OpenML or in UCI's files",
        adult,
        partial(download_openml, ADULT),
        position=60,
    ),
)
