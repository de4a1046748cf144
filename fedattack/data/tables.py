"""A user's table or one of OpenML's, declared in TOML, and how columns become inputs.

A table becomes examples of float32 inputs:

- a column of two values is coded 0 and 1;
- a column of more values that are no numbers is one-hot;
- other numbers are standardised by the training split, as are the targets of a regression.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, short
from fedattack.base.untrusted import MAX_INFLATED, open_regular, read_npz, read_toml
from fedattack.data.columns import MAX_VALUES, Column, number_names
from fedattack.data.source import Pool

if TYPE_CHECKING:
    import pandas as pd

TASKS = ("classification", "regression")
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null")
"""Texts that stand for a missing value."""


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
        Columns that are no inputs, but by which examples can be divided among clients.
    sensitive : str
        The sensitive column; empty for none.
    missing : str
        ``refuse`` examples with missing values, or ``impute`` the median of numbers and the commonest category.
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


MAX_CLASSES = 10 * MAX_VALUES
"""A target of more values than this is no classification."""

# The target's name in a table without a header: no input, which are numbered, has it.
_TARGET = "target"

# It becomes the name of a file.
_OPENML_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

_CHOICES: Mapping[str, Sequence[str]] = {"task": TASKS, "missing": ("refuse", "impute")}
_LISTS = {"columns", "categorical", "groups"}
# Columns may be named by their number.
_NAMES = {"target", "sensitive"}
# Key → which types of TOML it may have, and what they are called. All others are texts.
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "version": (int, "whole number"),
    "header": (bool, "true or false"),
    "domain": (dict, "table of lists"),
    **dict.fromkeys(_LISTS, (list, "list")),
    **dict.fromkeys(_NAMES, ((str, int), "text")),
}


def read_declaration(path: Path) -> Declaration:
    """Read the TOML file that declares a table.

    Raises
    ------
    DataError
        If the file is missing, is no TOML, or says something that cannot be.
    """
    settings = _read_settings(path)
    for key, allowed in _CHOICES.items():
        if key in settings and settings[key] not in allowed:
            raise DataError(f"{path}: {key} = {settings[key]!r}: expected {' or '.join(allowed)}")
    if "target" not in settings or ("file" in settings) == ("openml" in settings):
        raise DataError(f"{path}: expected a target, and either a file or an openml name; got {', '.join(settings)}")
    if "openml" in settings and not _OPENML_NAME.fullmatch(settings["openml"]):
        raise DataError(
            f"{path}: openml = {short(settings['openml'], 60)!r}: expected a name of letters, digits, hyphens, dots"
        )
    declared = Declaration(**settings)
    if declared.sensitive and declared.sensitive == declared.target:
        raise DataError(
            f"{path}: the sensitive column is the target, {declared.target!r}, which the attacker knows; declare "
            "another"
        )
    return declared


def _read_settings(path: Path) -> dict[str, Any]:
    """Read the keys of a declaration, with names as texts and lists as tuples of texts."""
    if not path.exists():
        raise DataError(f"{path}: no such file; expected a TOML file that declares a table")
    settings = read_toml(path, DataError, "expected a TOML file that declares a table")
    known = [attribute.name for attribute in fields(Declaration)]
    for key, value in settings.items():
        if key not in known:
            raise DataError(f"{path}: unknown key {short(key, 60)!r}; expected one of {', '.join(known)}")
        types, expected = _TYPES.get(key, (str, "text"))
        if not isinstance(value, types):
            raise DataError(f"{path}: {key} = {short(repr(value), 60)}: expected a {expected}")
    # A column may be named by its number in TOML.
    for key in settings.keys() & _NAMES:
        settings[key] = str(settings[key])
    for key in settings.keys() & _LISTS:
        settings[key] = _texts(settings[key])
    domain = settings.get("domain", {})
    for name, values in domain.items():
        if not isinstance(values, list):
            raise DataError(f"{path}: domain: expected a list of values for each column, such as sex = ['F', 'M']")
        domain[name] = _texts(values)
    return settings


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)


def read_declared(path: Path, root: Path) -> Pool:
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
    # Resolved, as a link may lead out of the folder.
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

    with warnings.catch_warnings():
        # It warns of each attempt that fails, and then ends with the error.
        warnings.simplefilter("ignore", UserWarning)
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
            f"{file}: cannot be read as CSV ({short(str(error), 120)}); expected one example on each line"
        ) from None
    if declared.header:
        names = [str(name).strip() for name in frame.iloc[0]]
        # The header was read as the first record.
        return frame[1:].set_axis(names, axis=1).reset_index(drop=True)
    return _number_columns(frame, declared.target, file)


def _number_columns(frame: pd.DataFrame, target: str, file: Path) -> pd.DataFrame:
    """Name the target by :data:`_TARGET`, and the other columns by numbers from 1."""
    width = frame.shape[1]
    if not target.isdigit() or not 1 <= int(target) <= width:
        raise DataError(f"{file}: target = {target!r}: without a header expected its number, 1 to {width}")
    names = [str(number) for number in range(1, width)]
    # At the target's place, so that the inputs keep their order.
    names.insert(int(target) - 1, _TARGET)
    return frame.set_axis(names, axis=1)


def _npz_frame(file: Path, declared: Declaration) -> pd.DataFrame:
    import pandas as pd

    hint = "save it with numpy.savez(path, x=…, y=…)"
    arrays = read_npz(file, DataError, hint, "x", "y", inflated=MAX_INFLATED)
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
    """Turn a table into examples.

    Parameters
    ----------
    frame : DataFrame
        Columns of texts or of numbers.
    declared : Declaration
        What they mean.
    where : str
        Where the table came from, for messages.

    Returns
    -------
    Pool
        Examples (n, inputs) and the columns that they encode; numbers are not standardised yet.

    Raises
    ------
    DataError
        If a column is missing or there twice. If a value is missing, outside the domain, or no number where one is
        needed. The message names column and example.
    """
    target = declared.target
    if not declared.header and _TARGET in frame:
        target = _TARGET
    inputs = list(declared.columns)
    if not inputs:
        inputs = [name for name in frame if name != target and name not in declared.groups]
    _check_columns(frame, declared, target, inputs, where)
    columns: list[Column] = []
    encoded: list[NDArray[np.float64]] = []
    scaled: list[int] = []
    width = 0
    for name in inputs:
        series = _fill(frame[name], name, declared, where)
        try:
            code = _encode_column(name, series, declared)
        except DataError as cause:
            raise DataError(f"{where}: {cause}") from None
        # Which of the model's inputs this column became.
        positions = range(width, width + code.x.shape[1])
        columns.append(Column(name, tuple(positions), code.domain, code.values))
        encoded.append(code.x)
        # Numbers are standardised after the split, by the training examples.
        if code.is_number:
            scaled += positions
        width += len(positions)
    y, classes = _encode_target(_fill(frame[target], target, declared, where), target, declared.task, where)
    groups = {name: _codes_of(_fill(frame[name], name, declared, where))[1] for name in declared.groups}
    return Pool(
        np.concatenate(encoded, axis=1),
        y,
        classes,
        columns=tuple(columns),
        scaled=tuple(scaled),
        groups=groups,
        sensitive=declared.sensitive,
    )


def _check_columns(frame: pd.DataFrame, declared: Declaration, target: str, inputs: Sequence[str], where: str) -> None:
    """Refuse a table that lacks a column, or has one of them twice."""
    present = list(frame)
    twice = sorted({name for name in present if present.count(name) > 1})
    if twice:
        raise DataError(f"{where}: column {twice[0]!r} is there more than once; rename one")
    needed = {*inputs, *declared.groups, *declared.categorical, *declared.domain}
    if declared.sensitive:
        needed.add(declared.sensitive)
    for name in (target, *sorted(needed)):
        if name not in frame:
            raise DataError(f"{where}: no column {name!r}; expected it among {', '.join(_texts(present))}")
    if target in inputs:
        raise DataError(f"{where}: the target {target!r} is among the columns; leave it out of them")
    if not inputs or len(frame) == 0:
        raise DataError(f"{where}: expected examples with at least one column beside the target; got {frame.shape}")


def _fill(series: pd.Series[Any], name: str, declared: Declaration, where: str) -> pd.Series[Any]:
    """Strip texts, and refuse or fill in what is missing."""
    import pandas as pd

    # Also texts of an .npz or of OpenML.
    is_text = not pd.api.types.is_numeric_dtype(series)
    if is_text:
        series = series.astype(str).str.strip()
    missing = series.isna()
    if is_text:
        missing = series.isin(MISSING)
    if not missing.any():
        return series
    row = int(np.flatnonzero(missing)[0])
    # A target that was made up would be learnt from, and judged by.
    if declared.missing != "impute" or name in (declared.target, _TARGET):
        raise DataError(
            f"{where}: column {name!r} has {int(missing.sum())} missing values, the first in example {row + 1}; fill "
            "them in, drop the examples, or say missing = 'impute' (for columns other than the target)"
        )
    present = series[~missing]
    if len(present) == 0:
        raise DataError(f"{where}: column {name!r} is missing in every example; leave it out of the columns")
    numbers = pd.to_numeric(present, errors="coerce")
    # A column of two numbers is a category, as `_encode_column` codes it.
    by_median = numbers.notna().all() and name not in declared.categorical and numbers.nunique() > 2
    value = numbers.median() if by_median else present.mode().iloc[0]
    if is_text:
        value = str(value)
    return series.mask(missing, value)


@dataclass(frozen=True, eq=False)
class _Encoded:
    """A column as inputs ``x`` (n, k), with its domain (v, k) and the values' names; numbers are to be standardised."""

    x: NDArray[np.float64]
    domain: NDArray[Any] | None
    values: tuple[str, ...]
    is_number: bool = False


def _encode_column(name: str, series: pd.Series[Any], declared: Declaration) -> _Encoded:
    numbers = _numbers(series)
    stated = declared.domain.get(name)
    if name in declared.categorical or not np.isfinite(numbers).all():
        # One entry that is no number makes the column one of categories.
        return _encode_categories(name, *_codes_of(series, stated, name))
    values = np.unique(numbers) if stated is None else _read_stated_numbers(name, stated, numbers)
    # Two values are 0 and 1, as sex or yes and no, and not standardised.
    if len(values) == 2:
        return _encode_categories(name, number_names(values), np.searchsorted(values, numbers))
    x = numbers[:, np.newaxis]
    if len(values) > MAX_VALUES:
        return _Encoded(x, None, (), is_number=True)
    # The domain stays in double precision until it is scaled as the records are.
    return _Encoded(x, values[:, np.newaxis], number_names(values), is_number=True)


def _encode_categories(name: str, values: tuple[str, ...], codes: NDArray[np.int64]) -> _Encoded:
    """Code two values as 0 and 1, and more of them one-hot."""
    count = len(values)
    if count > MAX_VALUES:
        raise DataError(
            f"column {name!r} has {count} different values that are no numbers, such as {values[0]!r} and "
            f"{values[-1]!r}; expected numbers, or at most {MAX_VALUES} categories; mend it or leave it out of columns"
        )
    if count <= 2:
        domain = np.arange(count, dtype=np.float32)[:, np.newaxis]
        return _Encoded(codes[:, np.newaxis].astype(np.float64), domain, values)
    # Rows of the identity matrix are one-hot codes.
    return _Encoded(np.eye(count)[codes], np.eye(count, dtype=np.float32), values)


def _numbers(series: pd.Series[Any]) -> NDArray[np.float64]:
    """Read values as numbers (n,); NaN stands for what is none."""
    import pandas as pd

    numbers: NDArray[np.float64] = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
    return numbers


def _read_stated_numbers(name: str, stated: Sequence[str], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
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
            f"column {name!r}: example {row + 1} has the value {values[row]}, outside the domain {', '.join(stated)}; "
            "mend the example or state the value in the domain"
        )


def _codes_of(
    series: pd.Series[Any], stated: Sequence[str] | None = None, name: str = ""
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Turn categories into codes (n,), in alphabetical order or in that of the stated domain."""
    texts = series.astype(str).to_numpy(dtype=np.str_)
    if stated is None:
        names = np.unique(texts)
    else:
        names = np.array(stated, dtype=np.str_)
        _check_domain(name, stated, np.isin(texts, names), texts.tolist())
    values = tuple(names.tolist())
    code_of = {value: code for code, value in enumerate(values)}
    return values, np.array([code_of[text] for text in texts.tolist()], dtype=np.int64)


def _encode_target(series: pd.Series[Any], name: str, task: str, where: str) -> tuple[NDArray[Any], int]:
    """Return labels (n,) and the number of classes, or the targets (n,) of a regression and 1."""
    numbers = _numbers(series)
    finite = np.isfinite(numbers)
    if task == "regression":
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise DataError(
                f"{where}: target {name!r}: example {row + 1} has {series.iloc[row]!r}; expected a finite number, as "
                "the task is regression"
            )
        if np.ptp(numbers) == 0:
            raise DataError(f"{where}: target {name!r} is {numbers[0]:g} in all examples; there is nothing to learn")
        return numbers, 1
    # Numbers in their order, so that class 10 comes after class 2.
    targets = numbers if finite.all() else series.astype(str).to_numpy(dtype=np.str_)
    values, labels = np.unique(targets, return_inverse=True)
    if not 2 <= len(values) <= MAX_CLASSES:
        raise DataError(
            f"{where}: target {name!r} has {len(values)} different values; expected 2 to {MAX_CLASSES} classes, or "
            "say task = 'regression'"
        )
    return labels.astype(np.int64), len(values)
