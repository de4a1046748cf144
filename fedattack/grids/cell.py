"""What all grids of runs have in common: the request, the cells, and the numbers that are read off each.

Everything here is checked before anything is run, and without torch, which takes seconds.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedattack.audit.finding import PROPORTION
from fedattack.base.errors import ConfigError
from fedattack.base.machine import MEMORY, read_size
from fedattack.base.settings import Value
from fedattack.runs.checks import check_data, check_device, check_memory
from fedattack.runs.presets import read_changes
from fedattack.runs.watch import Watch

CELLS = "cells"
"""Folder of the cells, in that of the results."""

DATA_KEYS = ("dataset", "public")
"""Settings that name data, for which a file may stand."""

_UNFIT = re.compile(r"[^A-Za-z0-9.-]+")

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Request:
    """How the cells of a grid are run.

    Attributes
    ----------
    out
        Folder of the results.
    changes
        ``key=value``: settings of all cells.
    seeds
        Number of seeds; the presets' if None.
    device
        Where attacks compute.
    memory
        What an attack's work may hold, such as ``300MB``; the usual if None.
    cluster
        Address of a Ray cluster on whose machines cells are made, or ``auto``; empty for this machine.
    keep_records
        Keep each cell's record, which may take gigabytes, after it is judged.
    watching
        Shows the progress of one cell.
    tell
        Called with a line before and after each cell.
    """

    out: Path
    changes: Sequence[str] = ()
    seeds: int | None = None
    device: str = "auto"
    memory: str | None = None
    cluster: str = ""
    keep_records: bool = False
    watching: Callable[[], AbstractContextManager[Watch]] = lambda: nullcontext(Watch())
    tell: Callable[[str], None] = lambda line: None

    @property
    def folder(self) -> Path:
        """Absolute path of the folder of the results."""
        return self.out.expanduser().absolute()

    @property
    def bytes_of_memory(self) -> int:
        """What an attack's work may hold in bytes."""
        return read_size(self.memory) if self.memory else MEMORY

    @property
    def cells(self) -> Path:
        """Folder of the run folders of the cells."""
        return self.folder / CELLS

    def hide_paths(self, text: str) -> str:
        """Take the paths of this machine out of a reason."""
        # Results are shown to others: they hold no path of this machine.
        return text.replace(str(self.folder), "DIR")


@dataclass(frozen=True)
class Stated:
    """A number that a paper states, in the units of ours: its mean, and its standard deviation if it has one."""

    mean: float
    sd: float | None


@dataclass(frozen=True)
class Number:
    """A number that is read off each cell.

    Attributes
    ----------
    name, title
        Its key, and its name for people.
    finding
        The finding whose value it is, such as ``sia.asr``; or empty.
    curve
        The curve in ``run.json`` at whose end it stands, one value per seed, such as ``accuracy``; or empty.
    fact
        Keys that lead to it in ``run.json``, joined by dots; or empty.
    baseline
        Which of the finding's baselines is meant, in place of its value; or empty.
    units
        ``proportion``, shown in per cent, or any text.
    """

    name: str
    title: str
    finding: str = ""
    baseline: str = ""
    curve: str = ""
    fact: str = ""
    units: str = PROPORTION

    def __post_init__(self) -> None:
        if sum(map(bool, (self.finding, self.curve, self.fact))) != 1:
            raise ConfigError(f"the number {self.name!r} needs one of finding, curve and fact")

    @property
    def scale(self) -> float:
        """What it is multiplied with to be shown."""
        return 100 if self.units == PROPORTION else 1


@dataclass(frozen=True)
class Cell:
    """One run of a grid that is trained.

    Attributes
    ----------
    preset, settings
        What is run, with what is changed in the preset.
    place
        Value of each column; ``–`` where it has none.
    paper
        The paper's numbers by name, as far as it has them.
    options
        Of the attacks, besides the preset's.
    """

    preset: str
    settings: Mapping[str, Value]
    place: Mapping[str, Value]
    paper: Mapping[str, Stated] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the cell's folder: the same run has the same one in every grid."""
        # Only what departs from the preset: cells of several papers share a run.
        changed = {**self.settings, **self.options}
        parts = [self.preset]
        if "dataset" in changed:
            parts.append(write_value(changed.pop("dataset")))
        for key, value in sorted(changed.items()):
            parts.append(f"{key}-{write_value(value)}")
        # What is no plain character of a folder's name becomes a hyphen.
        return "_".join(map(partial(_UNFIT.sub, "-"), parts))

    @property
    def label(self) -> str:
        """Name of the cell for people."""
        return " · ".join(map(write_value, self.place.values()))

    def lies_in(self, values: Mapping[str, Sequence[Value]]) -> bool:
        """Whether each of some columns has one of the given values."""
        return all(self.place[column] in choices for column, choices in values.items())


@dataclass(frozen=True)
class Job:
    """A cell with everything that decides its numbers."""

    cell: Cell
    folder: Path
    settings: Mapping[str, Value]
    seeds: Sequence[int]
    command: str
    options: Mapping[str, str] = field(default_factory=dict)


def check_request(request: Request) -> None:
    """Check how cells are to be run, and where results are to be written."""
    check_memory(request.memory)
    check_device(request.device)
    check_out(request.out)


def check_changes(changes: Sequence[str], taken: Collection[str], option: str) -> None:
    """Check changes of all cells' settings; those of which the grid is made, `taken`, are chosen by another option."""
    for change in changes:
        for key in read_changes([change]):
            if key in taken:
                raise ConfigError(f"--set {change}: {key} belongs to the grid; choose its values with {option}")
    check_data(changes)


def check_out(out: Path) -> None:
    """Check that results may be written to a folder: it is absent, is empty, or holds cells."""
    out = out.expanduser().absolute()
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if used and not (out / CELLS).is_dir():
        raise ConfigError(f"{out} holds something else; give this reproduction a folder of its own")


def list_data(cell: Cell) -> list[str]:
    """Name the datasets that a cell needs."""
    return [str(cell.settings[key]) for key in DATA_KEYS if cell.settings.get(key)]


def write_value(value: Value) -> str:
    """Write a setting's value: 100.0 as 100."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def write_command(*words: str, **options: Iterable[object]) -> str:
    """Write a command of fedattack, with each option once for each value that it has."""
    command = ["fedattack", *words]
    for name, values in options.items():
        for value in values:
            if value:
                command += [f"--{name}", str(value)]
    return shlex.join(command)


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Gather items that have the same key, in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def select_keys(mapping: Mapping[str, V], keys: Iterable[str]) -> dict[str, V]:
    """Take those of some keys that a mapping has, in the order in which they are given."""
    return {key: mapping[key] for key in keys if key in mapping}
