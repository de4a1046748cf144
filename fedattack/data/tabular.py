"""Tables: scikit-learn's, OpenML's, Shokri's, drawn ones, and the user's own, declared in TOML.

A table becomes records of float32 inputs: a column of two values is coded 0 and 1, one of more values that are no
numbers is one-hot, and other numbers are standardised by the training split, as are the targets of a regression.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.data._pool import Pool
from fedattack.data.columns import MAX_VALUES, Column
from fedattack.errors import DataError, short
from fedattack.untrusted import open_regular, read_npz, read_text

if TYPE_CHECKING:
    import pandas as pd

TASKS = ("classification", "regression")
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")
"""Texts that stand for a missing value."""

REGRESSION_USERS = 10
REGRESSION_RECORDS = 1_500
REGRESSION_FEATURES = 20


@dataclass(frozen=True)
class Declaration:
    """What a table's columns mean, as a TOML file says it.

    Attributes
    ----------
    target : str
        Name of the target's column; for a file without a header its number from 1.
    task : str
        ``classification`` or ``regression``.
    file : str
        A CSV file, or an ``.npz`` with arrays ``x`` (n, d) and ``y`` (n,); relative to the TOML file.
    openml : str
        Name of an OpenML dataset in place of a file.
    version : int
        Its version there.
    header : bool
        Whether the CSV's first line names its columns. If not, they are numbered from 1, without the target.
    columns : tuple of str
        The columns that are inputs of the model; empty for all but the target and ``groups``. For an ``.npz``, the
        names of all columns.
    categorical : tuple of str
        Columns whose numbers are names of categories; columns of other texts are so without being listed.
    groups : tuple of str
        Columns that are no inputs, but by which records can be divided among clients.
    sensitive : str
        The sensitive column; empty for none.
    missing : str
        ``refuse`` records with missing values, or ``impute`` the median of numbers and the commonest category.
    domain : mapping of str to tuple of str
        All values that a column may take, for those for which it is stated.
    """

    target: str
    task: str = "classification"
    file: str = ""
    openml: str = ""
    version: int = 1
    header: bool = True
    columns: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    sensitive: str = ""
    missing: str = "refuse"
    domain: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


ADULT = Declaration(target="class", openml="adult", version=2, sensitive="sex", missing="impute")
"""The Adult census data (UCI), as OpenML has them; see :class:`Declaration`."""

ADULT_PRIVATE = ("race", "sex")
ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "class"),
)
"""Of UCI's files, which do not name them."""


def read_declaration(path: Path) -> Declaration:
    """Read the TOML file that declares a table.

    Raises
    ------
    DataError
        If the file is missing, is no TOML, or says something that cannot be.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file; expected a TOML file that declares a table")
    try:
        table = tomllib.loads(read_text(path, DataError, "expected a TOML file that declares a table"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as TOML ({short(str(error), 100)}); mend the file") from None
    known = {item.name: item for item in fields(Declaration)}
    for key, value in table.items():
        if key not in known:
            raise DataError(f"{path}: unknown key {short(key, 60)!r}; expected one of {', '.join(known)}")
        if not isinstance(value, _TYPES.get(key, str)):
            raise DataError(f"{path}: {key} = {short(repr(value), 60)}: expected a {_KINDS.get(key, 'text')}")
    given: dict[str, Any] = {
        key: tuple(map(str, value)) if key in _LISTS else str(value) if key in ("target", "sensitive") else value
        for key, value in table.items()
    }
    if "domain" in given:
        if not all(isinstance(values, list) for values in given["domain"].values()):
            raise DataError(f"{path}: domain: expected a list of values for each column, such as sex = ['F', 'M']")
        given["domain"] = {name: tuple(map(str, values)) for name, values in given["domain"].items()}
    for key, allowed in (("task", TASKS), ("missing", ("refuse", "impute"))):
        if key in given and given[key] not in allowed:
            raise DataError(f"{path}: {key} = {given[key]!r}: expected {' or '.join(allowed)}")
    if "target" not in given or ("file" in given) == ("openml" in given):
        raise DataError(f"{path}: expected a target, and either a file or an openml name; got {', '.join(given)}")
    if "openml" in given and not _OPENML.fullmatch(given["openml"]):
        raise DataError(
            f"{path}: openml = {short(given['openml'], 60)!r}: expected a name of letters, digits, hyphens, dots"
        )
    declared = Declaration(**given)
    if declared.sensitive and declared.sensitive == declared.target:
        raise DataError(
            f"{path}: the sensitive column is the target, {declared.target!r}, which the attacker knows; declare "
            "another"
        )
    return declared


# It becomes the name of a file.
_OPENML = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LISTS = ("columns", "categorical", "groups")
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "version": int,
    "header": bool,
    "domain": dict,
    **dict.fromkeys(_LISTS, list),
    # Columns may be named by number.
    **dict.fromkeys(("target", "sensitive"), (str, int)),
}
_KINDS = {
    "version": "whole number",
    "header": "true or false",
    "domain": "table of lists",
    **dict.fromkeys(_LISTS, "list"),
}


def read_toml(path: Path, root: Path) -> Pool:
    """Read the table that a TOML file declares; one of OpenML's from the data folder ``root``.

    Raises
    ------
    DataError
        If the file is missing or does not fit what is declared of it.
    """
    declared = read_declaration(path)
    if declared.openml:
        return read_openml(declared, root, str(path))
    file = path.parent / declared.file
    if not file.resolve().is_relative_to(path.parent.resolve()):
        raise DataError(f"{path}: file = {short(declared.file, 80)!r} is elsewhere; put it beside this file, or below")
    frame = _npz_frame(file, declared) if file.suffix == ".npz" else _csv_frame(file, declared)
    return encode(frame, declared, str(file))


def read_openml(declared: Declaration, root: Path, name: str) -> Pool:
    """Read a table of OpenML that :func:`download_openml` put into ``root``."""
    file = _openml_file(declared, root)
    if not file.is_file():
        raise DataError(f"dataset {name!r} is not in {root}: expected {file.name}; run `fedattack download {name}`")
    return encode(_csv_frame(file, declared), declared, str(file))


def download_openml(declared: Declaration, root: Path) -> None:
    """Fetch a table from OpenML into ``root``, as a CSV file; not again if it is there."""
    file = _openml_file(declared, root)
    if file.is_file():
        return
    from sklearn.datasets import fetch_openml

    bunch = fetch_openml(
        declared.openml, version=declared.version, data_home=None, cache=False, as_frame=True, target_column=None
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".part")
    bunch.data.to_csv(partial, index=False)
    partial.replace(file)


def _openml_file(declared: Declaration, root: Path) -> Path:
    return root / "openml" / f"{declared.openml}-v{declared.version}.csv"


def _csv_frame(file: Path, declared: Declaration) -> pd.DataFrame:
    """Read a CSV as texts: what is a number is for :func:`encode` to find out."""
    import pandas as pd

    try:
        with open_regular(file) as stream:
            # Pandas would rename columns of one name, so that the header is read as a record.
            frame = pd.read_csv(stream, header=None, dtype=str, keep_default_na=False, skipinitialspace=True)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; expected the CSV that is declared") from None
    except (OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"{file}: cannot be read as CSV ({short(str(error), 120)}); expected one record a line"
        ) from None
    if declared.header:
        names = [str(name).strip() for name in frame.iloc[0]]
        return frame[1:].set_axis(names, axis=1).reset_index(drop=True)
    if not declared.target.isdigit() or not 1 <= int(declared.target) <= frame.shape[1]:
        raise DataError(
            f"{file}: target = {declared.target!r}: without a header expected its number, 1 to {frame.shape[1]}"
        )
    place = int(declared.target) - 1
    names = [str(index + 1 if index < place else index) for index in range(frame.shape[1])]
    # The target is named so that no input has its name.
    frame.columns = [_TARGET if index == place else name for index, name in enumerate(names)]
    return frame


_TARGET = "target"


def _npz_frame(file: Path, declared: Declaration) -> pd.DataFrame:
    import pandas as pd

    arrays = read_npz(file, DataError, "save it with numpy.savez(path, x=…, y=…)", "x", "y")
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 2 or y.shape != x.shape[:1] or x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf":
        raise DataError(
            f"{file}: expected numbers x of shape (n, d) and y of shape (n,); got {x.dtype} {x.shape} and {y.dtype} "
            f"{y.shape}"
        )
    names = declared.columns or tuple(str(index + 1) for index in range(x.shape[1]))
    if len(names) != x.shape[1]:
        raise DataError(f"{file}: columns names {len(names)} columns, but x has {x.shape[1]}; name all of them")
    # A regression's x may hold a column of the target's name only by mistake, which pandas would not notice.
    if declared.target in names:
        raise DataError(f"{file}: target {declared.target!r} is a column of x; name y otherwise")
    return pd.DataFrame(x, columns=list(names)).assign(**{declared.target: y})


def encode(frame: pd.DataFrame, declared: Declaration, where: str) -> Pool:
    """Turn a table into records.

    Parameters
    ----------
    frame : DataFrame
        Columns of texts or of numbers.
    declared : Declaration
        What they mean.
    where : str
        Where the table came from, for messages.

    Raises
    ------
    DataError
        If a column is missing or there twice, or a value is missing, outside the domain, or no number where one is
        needed; the message names column and record.
    """
    target = declared.target if declared.header or _TARGET not in frame else _TARGET
    inputs = list(declared.columns) or [name for name in frame if name != target and name not in declared.groups]
    twice = sorted({name for name in frame if list(frame).count(name) > 1})
    if twice:
        raise DataError(f"{where}: column {twice[0]!r} is there more than once; rename one")
    named = {*inputs, *declared.groups, *declared.categorical, *declared.domain, *filter(None, [declared.sensitive])}
    for name in (target, *sorted(named)):
        if name not in frame:
            raise DataError(f"{where}: no column {name!r}; expected it among {', '.join(map(str, frame))}")
    if target in inputs:
        raise DataError(f"{where}: the target {target!r} is among the columns; leave it out of them")
    if not inputs or len(frame) == 0:
        raise DataError(f"{where}: expected records with at least one column beside the target; got {frame.shape}")
    tables: list[NDArray[np.float64]] = []
    columns: list[Column] = []
    scaled: list[int] = []
    for name in inputs:
        series = _filled(frame[name], name, declared, where)
        try:
            table, domain, values, is_number = _encode_column(name, series, declared)
        except DataError as cause:
            raise DataError(f"{where}: {cause}") from None
        start = sum(part.shape[1] for part in tables)
        own = tuple(range(start, start + table.shape[1]))
        columns.append(Column(name, own, domain, values))
        scaled += own if is_number else ()
        tables.append(table)
    y, classes = _encode_target(_filled(frame[target], target, declared, where), target, declared.task, where)
    groups = {name: _codes_of(_filled(frame[name], name, declared, where))[1] for name in declared.groups}
    return Pool(
        np.concatenate(tables, axis=1),
        y,
        classes,
        columns=tuple(columns),
        scaled=tuple(scaled),
        groups=groups,
        sensitive=declared.sensitive,
    )


def _filled(series: pd.Series[Any], name: str, declared: Declaration, where: str) -> pd.Series[Any]:
    """Strip texts, and refuse or fill in what is missing."""
    import pandas as pd

    texts = not pd.api.types.is_numeric_dtype(series)
    series = series.astype(str).str.strip() if texts else series
    missing = series.isin(MISSING) if texts else series.isna()
    if not missing.any():
        return series
    row = int(np.flatnonzero(missing)[0])
    # A target that was made up would be learnt from, and judged by.
    if declared.missing != "impute" or name in (declared.target, _TARGET):
        raise DataError(
            f"{where}: column {name!r} has {int(missing.sum())} missing values, the first in record {row + 1}; fill "
            "them in, drop the records, or say missing = 'impute' (for columns other than the target)"
        )
    there = series[~missing]
    numbers = pd.to_numeric(there, errors="coerce")
    if len(there) == 0:
        raise DataError(f"{where}: column {name!r} is missing in every record; leave it out of the columns")
    by_median = numbers.notna().all() and name not in declared.categorical and numbers.nunique() > 2
    fill = numbers.median() if by_median else there.mode().iloc[0]
    return series.mask(missing, str(fill) if texts else fill)


def _encode_column(
    name: str, series: pd.Series[Any], declared: Declaration
) -> tuple[NDArray[np.float64], NDArray[np.float32] | None, tuple[str, ...], bool]:
    """Encode one column; returns its inputs (n, …), its domain, its values' names, and whether it is to be scaled."""
    import pandas as pd

    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
    stated = declared.domain.get(name)
    if name not in declared.categorical and np.isfinite(numbers).all():
        found = np.unique(numbers)
        if stated is not None:
            found = _stated_numbers(name, stated, numbers)
        if len(found) != 2:
            few = len(found) <= MAX_VALUES
            domain = found.astype(np.float64)[:, np.newaxis] if few else None
            return numbers[:, np.newaxis], domain, tuple(f"{v:g}" for v in found) if few else (), True  # type: ignore[return-value]
        names, codes = tuple(f"{value:g}" for value in found), np.searchsorted(found, numbers)
    else:
        names, codes = _codes_of(series, stated, name)
    if len(names) <= 2:
        return codes[:, np.newaxis].astype(np.float64), np.arange(len(names), dtype=np.float32)[:, None], names, False
    if len(names) > MAX_VALUES:
        raise DataError(
            f"column {name!r} has {len(names)} different values that are no numbers, such as {names[0]!r} and "
            f"{names[-1]!r}; expected numbers, or at most {MAX_VALUES} categories; mend it or leave it out of columns"
        )
    return np.eye(len(names))[codes], np.eye(len(names), dtype=np.float32), names, False


def _stated_numbers(name: str, stated: Sequence[str], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    try:
        domain = np.array([float(value) for value in stated])
    except ValueError:
        raise DataError(
            f"column {name!r} holds numbers, but its domain is {', '.join(stated)}; state numbers"
        ) from None
    _check_domain(name, stated, np.isin(numbers, domain), numbers.tolist())
    return np.unique(domain)


def _check_domain(name: str, stated: Sequence[str], inside: NDArray[np.bool_], values: Sequence[Any]) -> None:
    if not inside.all():
        row = int(np.flatnonzero(~inside)[0])
        raise DataError(
            f"column {name!r}: record {row + 1} has the value {values[row]}, outside the domain {', '.join(stated)}; "
            "mend the record or state the value in the domain"
        )


def _codes_of(
    series: pd.Series[Any], stated: Sequence[str] | None = None, name: str = ""
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Turn categories into numbers, in their own order or in that of the stated domain."""
    texts = series.astype(str).to_numpy(dtype=np.str_)
    names = np.unique(texts) if stated is None else np.array(stated, dtype=np.str_)
    if stated is not None:
        _check_domain(name, stated, np.isin(texts, names), texts.tolist())
    place = {text: index for index, text in enumerate(names.tolist())}
    return tuple(names.tolist()), np.array([place[text] for text in texts.tolist()], dtype=np.int64)


def _encode_target(series: pd.Series[Any], name: str, task: str, where: str) -> tuple[NDArray[Any], int]:
    import pandas as pd

    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
    if task == "regression":
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise DataError(
                f"{where}: target {name!r}: record {row + 1} has {series.iloc[row]!r}; expected a finite number, as "
                "the task is regression"
            )
        if np.ptp(numbers) == 0:
            raise DataError(f"{where}: target {name!r} is {numbers[0]:g} in all records; there is nothing to learn")
        return numbers, 1
    if np.isfinite(numbers).all():
        found, labels = np.unique(numbers, return_inverse=True)
    else:
        found, labels = np.unique(series.astype(str).to_numpy(dtype=np.str_), return_inverse=True)
    if not 2 <= len(found) <= MAX_VALUES * 10:
        raise DataError(
            f"{where}: target {name!r} has {len(found)} different values; expected 2 to {MAX_VALUES * 10} classes, or "
            "say task = 'regression'"
        )
    return labels.astype(np.int64), len(found)


def adult(seed: int, root: Path) -> Pool:
    """Read the Adult census data, with an income of more than 50,000 dollars a year or not as the task.

    Race and sex are private attributes, and inputs all the same: RecUP-FL hides what an update tells of the race of
    clients whose model is trained on all columns (Cui et al. 2023, Section 6.1). ``sex`` is the sensitive column, too.

    Parameters
    ----------
    seed : int
        Not used.
    root : Path
        The data folder. With UCI's own files there, ``adult/adult.data`` and ``adult/adult.test``, these are read, the
        latter as the test set; else OpenML's, which :func:`download_openml` has put there.

    Raises
    ------
    DataError
        If there are neither, or they are damaged.
    """
    files = [root / "adult" / name for name in ("adult.data", "adult.test")]
    if any(file.is_file() for file in files):
        import pandas as pd

        train, test = (_uci_frame(file) for file in files)
        frame = pd.concat([train, test], ignore_index=True)
        pool = replace(encode(frame, ADULT, str(files[0].parent)), own_test=len(test))
    else:
        pool = read_openml(ADULT, root, "adult")
    columns = {column.name: column for column in pool.columns}
    return replace(pool, private={name: (columns[name].values, columns[name].codes(pool.x)) for name in ADULT_PRIVATE})


def _uci_frame(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        # the test set begins with a line for people, and ends its labels with a full stop
        frame = pd.read_csv(file, header=None, dtype=str, keep_default_na=False, skipinitialspace=True, comment="|")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: cannot be read as CSV ({reason}); fetch it again from UCI") from None
    if frame.shape[1] != len(ADULT_COLUMNS) or frame.eq("").to_numpy().any():
        raise DataError(f"{file}: expected {len(ADULT_COLUMNS)} columns in each line; fetch it again from UCI")
    frame.columns = [*ADULT_COLUMNS]
    return frame.assign(**{"class": frame["class"].str.rstrip(".")})


def diabetes(seed: int, root: Path) -> Pool:
    """Read scikit-learn's diabetes (442 patients, 10 columns, a regression); its sensitive column is ``sex``."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(as_frame=True, scaled=False)
    return encode(bunch.frame, Declaration(target="target", task="regression", sensitive="sex"), "diabetes")


def breast_cancer(seed: int, root: Path) -> Pool:
    """Read scikit-learn's breast cancer (569 tumours, 30 numbers, benign or malignant) with a binary column.

    None of its columns is one of few values, so that ``symmetry error`` is cut at its median: that is the column
    declared as sensitive. Of all columns cut so, the others tell the least of it (a random forest is right for 74 %).
    """
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    name = "symmetry error"
    frame[name] = np.where(frame[name] > frame[name].median(), "high", "low")
    declared = Declaration(target="target", sensitive=name, domain={name: ("low", "high")})
    return encode(frame, declared, "breast-cancer")


def synthetic_regression(seed: int, root: Path) -> Pool:
    """Draw a regression as LEAF draws its synthetic classification (Caldas et al. 2018, Appendix A.1).

    Each of ten users has weights w = Q u, with Q ~ N(0, 1) common to all and u ~ N(0, I) of two dimensions, and records
    x ~ N(v, Σ) around its own v ~ N(b, I), b ~ N(0, 1), with Σ diagonal, Σ_jj = j^-1.2. Where LEAF takes the largest of
    several outputs, the target is the one output [x, 1]·w + N(0, 0.1²). The first column, ``s``, is the sensitive one:
    it is cut at zero to 0 and 1 before the target is computed. ``user`` is a column to divide by and no input.
    """
    import pandas as pd

    rng = np.random.default_rng(seed)
    common = rng.normal(size=(REGRESSION_FEATURES + 1, 2))
    deviation = np.arange(1, REGRESSION_FEATURES + 1) ** -0.6
    frames = []
    for user in range(REGRESSION_USERS):
        weights = common @ rng.normal(size=2)
        centre = rng.normal(rng.normal(), 1.0, size=REGRESSION_FEATURES)
        x = rng.normal(size=(REGRESSION_RECORDS, REGRESSION_FEATURES)) * deviation + centre
        x[:, 0] = x[:, 0] > 0
        y = x @ weights[:-1] + weights[-1] + rng.normal(0, 0.1, size=REGRESSION_RECORDS)
        names = ["s", *(f"x{index}" for index in range(2, REGRESSION_FEATURES + 1))]
        frames.append(pd.DataFrame(x, columns=names).assign(y=y, user=user))
    declared = Declaration(target="y", task="regression", sensitive="s", groups=("user",))
    return encode(pd.concat(frames, ignore_index=True), declared, "synthetic-regression")


@dataclass(frozen=True)
class Shokri:
    """A dataset of Shokri et al. 2017 as they distribute it: no header, first the class from 1, then zeros and ones.

    The class stands in quotes in Location-30 and without in Purchase-100.
    """

    name: str
    archive: str
    member: str
    shape: tuple[int, int]

    def read(self, seed: int, root: Path) -> Pool:
        """Read the file, unpacked, from its folder in the data folder."""
        import pandas as pd

        file = root / self.name / self.member
        if not file.is_file():
            raise DataError(
                f"dataset {self.name!r} is not in {root}: expected {self.name}/{self.member}, the file in "
                f"{self.archive}; run `fedattack download {self.name}` or put it there"
            )
        classes, width = self.shape
        try:
            table = pd.read_csv(file, header=None, dtype=np.uint8).to_numpy()
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{file}: cannot be read as {self.name} ({reason}); fetch it again") from None
        labels, x = table[:, 0].astype(np.int64) - 1, table[:, 1:]
        if x.shape[1] != width or labels.min() < 0 or labels.max() >= classes or x.max() > 1:
            raise DataError(
                f"{file}: expected a class from 1 to {classes} and {width} zeros and ones a line; got {x.shape[1]} "
                f"columns beside classes {labels.min() + 1} to {labels.max() + 1}; fetch it again"
            )
        return Pool(x, labels, classes)

    def download(self, root: Path) -> None:
        """Fetch the archive and unpack its one file."""
        folder = root / self.name
        if (folder / self.member).is_file():
            return
        import tarfile
        import urllib.request

        folder.mkdir(parents=True, exist_ok=True)
        url = f"https://raw.githubusercontent.com/privacytrustlab/datasets/master/{self.archive}"
        archive = folder / self.archive
        urllib.request.urlretrieve(url, archive)
        with tarfile.open(archive) as tar:
            for item in tar:
                # Only this file's bytes are taken, whatever else or wherever the archive would put it.
                if item.isfile() and Path(item.name).name == self.member and (source := tar.extractfile(item)):
                    (folder / self.member).write_bytes(source.read())
                    archive.unlink()
                    return
        raise OSError(f"{self.archive} holds no file {self.member}")
