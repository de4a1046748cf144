"""What a caller asks of a reproduction, checked before anything is run, and without torch."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path

from fedattack.base.errors import ConfigError, instead
from fedattack.base.settings import Value
from fedattack.grids.reproduce.spec import Cell, Reproduction, shown
from fedattack.runs.checks import check_data
from fedattack.runs.settings import open_settings

DATA_KEYS = ("dataset", "public")
"""Settings that name data, which ``--data`` may replace by a file."""

CELLS = "cells"
"""Folder of the cells, in that of the results."""


def check_out(out: Path) -> None:
    """Check that results may be written to a folder: it is absent, is empty, or holds cells.

    Raises
    ------
    ConfigError
        If it holds something else.
    """
    out = out.expanduser().absolute()
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used and not (out / CELLS).is_dir():
        raise ConfigError(f"{out} holds something else; give this reproduction a folder of its own")


def check_words(
    what: Reproduction, only: Sequence[str], changes: Sequence[str], data: Sequence[str]
) -> tuple[list[Cell], dict[str, Path]]:
    """Check which cells are asked for, what is changed in all of them, and which files stand for datasets.

    Returns
    -------
    list of Cell
        The cells.
    dict
        The files, by name of the dataset.

    Raises
    ------
    ConfigError
        If an argument fits nothing, or a file is not there.
    """
    _check_changes(what, changes)
    return _select_cells(what, only), _files(what, data)


def _select_cells(what: Reproduction, only: Sequence[str]) -> list[Cell]:
    wanted: dict[str, list[Value]] = {}
    for text in only:
        column, _, value = text.partition("=")
        if column not in what.columns:
            words = instead(column, what.columns, listed=False)
            raise ConfigError(f"--only {text}: unknown column {column!r} of COLUMN=VALUE: {words}")
        choices = {shown(choice): choice for choice in what.choices(column)}
        if _write_number(value) not in choices:
            raise ConfigError(f"--only {text}: {instead(value, choices, listed=False)}")
        wanted.setdefault(column, []).append(choices[_write_number(value)])
    cells = [cell for cell in what.cells if cell.lies_in(wanted)]
    if not cells:
        raise ConfigError(f"--only {' '.join(only)}: {what.name} has no such cell")
    return cells


def _write_number(text: str) -> str:
    """Write a number as the grid's are shown: 1.0 as 1."""
    try:
        return shown(float(text))
    except ValueError:
        return text


def _check_changes(what: Reproduction, changes: Sequence[str]) -> None:
    known = open_settings()
    fixed = set(chain.from_iterable(map(attrgetter("settings"), what.cells)))
    for text in changes:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"--set {text}: expected key=value")
        if key not in known:
            raise ConfigError(f"--set {text}: unknown key {key!r}: {instead(key, known)}")
        if key in fixed:
            raise ConfigError(f"--set {text}: {key} belongs to the grid of {what.name}; choose cells with --only")
        known[key].parse(value)
    check_data(changes)


def _files(what: Reproduction, data: Sequence[str]) -> dict[str, Path]:
    names = set(chain.from_iterable(map(data_of, what.cells)))
    files = {}
    for text in data:
        name, _, path = text.partition("=")
        if name not in names or not path.endswith((".npz", ".toml")):
            words = instead(name, sorted(names), listed=False)
            raise ConfigError(f"--data {text}: expected NAME=PATH.npz or .toml; as a name {words}")
        files[name] = Path(path).expanduser().absolute()
        if not files[name].is_file():
            raise ConfigError(f"--data {text}: there is no such file; expected an .npz with x and y, or a .toml")
    return files


def data_of(cell: Cell) -> list[str]:
    """Name the datasets that a cell needs."""
    return list(map(str, filter(None, map(cell.settings.get, DATA_KEYS))))
