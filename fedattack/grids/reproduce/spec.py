"""What a reproduction is: a grid of runs, the numbers that are read off each, and what the paper has there.

Each is a TOML file in ``simulations/reproductions``::

    title, paper, about        what it is, which table or figure of which paper, how to read it
    columns                    what tells the cells apart, in the order of the table
    [[numbers]]                a number of each cell: the value of a finding, the end of a curve in run.json, or a fact
    [figure]                   what is drawn
    [[groups]]                 a preset, and the grid of settings that it is run with
      place                    values of columns that are no settings
      grid                     values of settings, every combination of which is a cell; ``--KEY`` is an option of the
                               attacks, and KEY its column
      settings                 settings of all cells, and options likewise
      with.VALUE               further settings where the grid's first setting has that value
      paper.NUMBER             the paper's numbers where the grid's first setting has a value: the rest of the grid in
                               order, the last setting fastest, as ``mean±sd``, ``mean`` or ``–``; bars are for the eye
    [[like]]                   cells of another reproduction
      of, where                its name, and which values of its columns
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Self

from fedattack.base.errors import ConfigError, instead
from fedattack.base.settings import Value
from fedattack.grids.cell import Cell, Number, Stated, select_keys, write_value
from fedattack.runs.app import app_folder

ABSENT = "–"
"""What stands for a value that is not there."""

_STATED = re.compile(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?")
_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Drawing:
    """What the figure shows.

    Attributes
    ----------
    kind
        ``points``: our `y` with intervals beside the paper's, cell by cell. ``curves``: `y` against the number, or the
        column of numbers, `x`. ``rounds``: the series ``per_round`` of the finding behind `y`.
    panels
        Columns of which each combination of values has a panel.
    lines
        The column whose values are told apart in a panel, of which ``points`` has none.
    x, y
        Names of a number or a column.
    beside
        Further numbers that ``curves`` without lines draws in each panel beside `y`.
    inverse
        Whether 1/`x` is drawn, on a logarithmic axis.
    """

    kind: str
    panels: Sequence[str]
    y: str
    lines: str = ""
    x: str = ""
    beside: Sequence[str] = ()
    inverse: bool = False


@dataclass(frozen=True)
class Reproduction:
    """A table or a figure of a paper."""

    name: str
    title: str
    paper: str
    about: str
    columns: Sequence[str]
    numbers: Mapping[str, Number]
    figure: Drawing
    cells: Sequence[Cell]

    @property
    def first(self) -> Number:
        """The number that a reproduction is about."""
        return next(iter(self.numbers.values()))

    def choices(self, column: str) -> list[Value]:
        """Values that a column has, each once, in the table's order."""
        values = _list_values(self.cells, column)
        if ABSENT in values:
            values.remove(ABSENT)
        return values

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises
        ------
        ConfigError
            If it is no TOML, lacks a key or has one too many, or a row of the paper's numbers does not fit the grid.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
            columns = table["columns"]
            table["numbers"] = {entry["name"]: Number(**entry) for entry in table["numbers"]}
            table["figure"] = Drawing(**table["figure"])
            cells: list[Cell] = []
            for group in table.pop("groups", ()):
                cells += _make_cells(columns, table["numbers"], **group)
            for entry in table.pop("like", ()):
                # Another reproduction's cells, such as of the same runs in another table.
                for cell in cls.read(path.with_name(f"{entry['of']}.toml")).cells:
                    if cell.lies_in(entry.get("where", {})):
                        paper = select_keys(cell.paper, table["numbers"])
                        cells.append(replace(cell, place={key: cell.place[key] for key in columns}, paper=paper))
            return cls(name=path.stem, cells=_sort_cells(columns, cells), **table)
        except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, ConfigError) as cause:
            raise ConfigError(
                f"{path} is not a reproduction ({cause}); compare it with the others in its folder"
            ) from None


def reproduction_names() -> list[str]:
    """List the reproductions."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_reproduction(name: str) -> Reproduction:
    """Read a reproduction.

    Raises
    ------
    ConfigError
        If there is none of that name, or its file is damaged.
    """
    if name not in reproduction_names():
        words = instead(name, reproduction_names(), listed="presets")
        raise ConfigError(f"unknown reproduction {name!r}: {words}")
    return Reproduction.read(_folder() / f"{name}.toml")


def _folder() -> Path:
    return app_folder() / "simulations" / "reproductions"


def _sort_cells(columns: Sequence[str], cells: Sequence[Cell]) -> list[Cell]:
    """Sort cells by the columns from left to right; values come in the order in which they are first named."""
    ordered = list(cells)
    # From the last column to the first: a stable sort by each ends sorted by all.
    for column in reversed(columns):
        named = _list_values(cells, column)
        ordered.sort(key=lambda cell: named.index(cell.place[column]))
    return ordered


def _list_values(cells: Sequence[Cell], column: str) -> list[Value]:
    return list(dict.fromkeys(cell.place[column] for cell in cells))


def _make_cells(
    columns: Sequence[str],
    numbers: Mapping[str, Number],
    *,
    preset: str,
    grid: Mapping[str, Sequence[Value]],
    place: Mapping[str, Value] = _NONE,
    settings: Mapping[str, Value] = _NONE,
    paper: Mapping[str, Mapping[str, str]] = _NONE,
    **further: Any,
) -> Iterator[Cell]:
    """Make a cell of each combination of a group's settings."""
    extra: Mapping[str, Mapping[str, Value]] = further.pop("with", {})
    if further:
        raise ConfigError(f"a group has unknown keys {', '.join(further)}")
    first, *rest = grid.values()
    texts = list(map(write_value, first))
    for table in (extra, *paper.values()):
        for key in table:
            if key not in texts:
                raise ConfigError(f"{key!r} is none of the values {', '.join(texts)}")
    for value, text in zip(first, texts, strict=True):
        # The first setting of a group runs over the rows of the paper's table.
        combinations = list(product([value], *rest))
        stated: list[dict[str, Stated]] = [{} for _ in combinations]
        for name, rows in paper.items():
            if text in rows:
                _add_stated(stated, numbers[name], rows[text])
        for combination, of_paper in zip(combinations, stated, strict=True):
            chosen = {**settings, **dict(zip(grid, combination, strict=True)), **extra.get(text, {})}
            options: dict[str, str] = {}
            for key in list(chosen):
                # A key that begins with -- is an option of the attack, and no setting.
                if key.startswith("--"):
                    options[key.removeprefix("--")] = write_value(chosen.pop(key))
            values = {**dict.fromkeys(columns, ABSENT), **chosen, **options, **place}
            yield Cell(preset, chosen, select_keys(values, columns), of_paper, options)


def _add_stated(cells: Sequence[dict[str, Stated]], number: Number, row: str) -> None:
    """Add what the paper states of a number to its numbers of each cell."""
    # Bars set columns apart for people.
    entries = row.replace("|", " ").split()
    if len(entries) != len(cells):
        raise ConfigError(f"the paper's numbers {row!r} are {len(entries)}; expected {len(cells)}")
    for cell, entry in zip(cells, entries, strict=True):
        if entry == ABSENT:
            continue
        match = _STATED.fullmatch(entry)
        if match is None:
            raise ConfigError(f"{entry!r} among the paper's numbers: expected mean±sd, mean or –")
        mean, sd = match.groups()
        spread = None if sd is None else float(sd) / number.scale
        cell[number.name] = Stated(float(mean) / number.scale, spread)
