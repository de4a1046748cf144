"""What a caller asks of a reproduction, checked before anything is run, and without torch."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedattack.base.errors import ConfigError, instead
from fedattack.base.settings import Value
from fedattack.grids.cell import Cell, check_changes, list_data, write_value
from fedattack.grids.reproduce.spec import Reproduction


def check_words(
    spec: Reproduction, only: Sequence[str], changes: Sequence[str], data: Sequence[str]
) -> tuple[list[Cell], dict[str, Path]]:
    """Check which cells are asked for, what is changed in all of them, and which files stand for datasets.

    Returns
    -------
    list of Cell
        The cells.
    dict
        The files, by name of the dataset.
    """
    taken: set[str] = set()
    for cell in spec.cells:
        taken.update(cell.settings)
    check_changes(changes, taken, "--only")
    return _select_cells(spec, only), _read_files(spec, data)


def _select_cells(spec: Reproduction, only: Sequence[str]) -> list[Cell]:
    wanted: dict[str, list[Value]] = {}
    for text in only:
        column, _, value = text.partition("=")
        if column not in spec.columns:
            words = instead(column, spec.columns)
            raise ConfigError(f"--only {text}: unknown column {column!r} of COLUMN=VALUE: {words}")
        # As texts, so that 1, 1.0 and "1" name the same cell.
        choices = {write_value(choice): choice for choice in spec.choices(column)}
        with suppress(ValueError):
            # As the grid's are shown: 1.0 as 1.
            value = write_value(float(value))
        if value not in choices:
            raise ConfigError(f"--only {text}: {instead(value, choices)}")
        wanted.setdefault(column, []).append(choices[value])
    cells = [cell for cell in spec.cells if cell.lies_in(wanted)]
    if not cells:
        raise ConfigError(f"--only {' '.join(only)}: {spec.name} has no such cell")
    return cells


def _read_files(spec: Reproduction, data: Sequence[str]) -> dict[str, Path]:
    names: set[str] = set()
    for cell in spec.cells:
        names.update(list_data(cell))
    files = {}
    for text in data:
        name, _, path = text.partition("=")
        if name not in names or not path.endswith((".npz", ".toml")):
            words = instead(name, sorted(names))
            raise ConfigError(f"--data {text}: expected NAME=PATH.npz or .toml; as a name {words}")
        files[name] = Path(path).expanduser().absolute()
        if not files[name].is_file():
            raise ConfigError(f"--data {text}: there is no such file; expected an .npz with x and y, or a .toml")
    return files
