"""Run a grid cell by cell, each an ordinary run folder, so that it can stop and go on."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, Protocol, TypeVar

from fedattack.audit.numbers import count_words
from fedattack.base.errors import ConfigError, FedAttackError
from fedattack.base.files import FolderLock, make_private, write_atomically, write_json
from fedattack.base.untrusted import check_folder, remove_inside
from fedattack.base.version import __version__
from fedattack.grids.cell import Request, check_out
from fedattack.runs.running import now
from fedattack.runs.watch import Watch

State = Literal["done", "failed", "left out", "waiting"]
"""A cell is made and judged; not possible; not asked for, or its data are not there; or still to be made."""

DONE: State = "done"


class Named(Protocol):
    """What any cell has: the name of its folder, and a name for people."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def label(self) -> str: ...  # noqa: D102


C = TypeVar("C", bound=Named)

Made = Callable[[], float]
"""Puts a cell that was made into its folder, or raises why it could not be; returns the minutes that it took."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell, and if it is not done, why."""

    state: State = DONE
    reason: str = ""

    def describe(self) -> dict[str, str]:
        """Say it as JSON can hold it."""
        state = self.state if self.state in ("done", "failed") else "not run"
        return {"state": state, "reason": self.reason}


WAITING = Outcome("waiting", "not reached yet")
"""The outcome of a cell that is to be made."""


@dataclass(kw_only=True)
class Design(ABC, Generic[C]):
    """What a kind of grid declares: its cells, how each is made, and what is written of them.

    Attributes
    ----------
    name
        Begins the names of the files of the results.
    request
        How cells are run.
    cells
        In their order.
    """

    name: str
    request: Request
    cells: Sequence[C]

    def look_for(self, cell: C) -> Outcome:
        """Say whether a cell is there, is to be made, or why it is not."""
        return WAITING

    @abstractmethod
    def make(self, cell: C, watch: Watch) -> None:
        """Make the run folder of a cell."""

    def make_elsewhere(self, cells: Sequence[C]) -> Iterator[tuple[C, Made]]:
        """Make cells on the machines of a cluster; yields each when it ends."""
        raise NotImplementedError

    def close(self, cell: C, minutes: float) -> None:
        """Note that a cell is done."""

    @abstractmethod
    def describe(self, cell: C) -> str:
        """Say in a line what came out of a cell that is done."""

    @abstractmethod
    def gather(self, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
        """Gather what the file of the results holds, from the outcomes by the cells' names."""

    @abstractmethod
    def write_pages(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Write the pages, and the pictures beside them; returns their texts by the names of the files."""

    def write(self, results: Mapping[str, Any]) -> None:
        """Write the results, and the pages that show them."""
        write_json(self.request.folder / f"{self.name}.json", results)
        for file, text in self.write_pages(results).items():
            write_atomically(self.request.folder / file, text.encode())


def run_grid(design: Design[C]) -> dict[str, Any]:
    """Make the cells that are not yet there, and write the results anew after each.

    A cell that is done is not made again; one that was interrupted is.

    Returns
    -------
    dict
        What the file of the results holds.

    Raises
    ------
    ConfigError
        If the folder holds something else, or somebody else is at work in it.
    """
    request = design.request
    with _hold_folder(request):
        # Cells that are there are kept, so that a grid goes on where it was stopped.
        outcomes: dict[str, Outcome] = {}
        finished, waiting = 0, []
        for cell in design.cells:
            outcome = outcomes[cell.name] = design.look_for(cell)
            finished += outcome.state == DONE
            if outcome.state == "waiting":
                waiting.append(cell)
        request.tell(f"{count_words(len(design.cells), 'run')}: {finished} done before, {len(waiting)} to do now")
        results = design.gather(outcomes)
        # Written before the first cell, and after each: a killed grid leaves results of what was done.
        design.write(results)
        for cell, before, outcome in _make_cells(design, waiting):
            outcomes[cell.name] = outcome
            results = design.gather(outcomes)
            design.write(results)
            request.tell(before + (outcome.reason or design.describe(cell)))
    return results


@contextmanager
def _hold_folder(request: Request) -> Iterator[None]:
    """Hold the folder, so that nobody else takes a cell at work for one that was interrupted."""
    out = request.folder
    check_out(out)
    check_folder(out, ConfigError, to_write=True)
    try:
        make_private(request.cells)
        # An existing folder keeps its rights otherwise.
        out.chmod(0o700)
    except OSError as cause:
        raise ConfigError(f"{out} cannot be created ({cause}); choose a folder that can be written") from None
    try:
        # The lock lies in the folder of the cells, which no other command takes.
        lock = FolderLock(request.cells)
    except BlockingIOError:
        raise ConfigError(f"another reproduction is at work in {out}; wait for it, or give --out") from None
    with lock:
        yield


def _make_cells(design: Design[C], waiting: Sequence[C]) -> Iterator[tuple[C, str, Outcome]]:
    """Make cells; yields each with what is to be told before its outcome."""
    request, count = design.request, len(waiting)
    if request.cluster and waiting:
        for number, (cell, made) in enumerate(design.make_elsewhere(waiting), 1):
            yield cell, f"run {number} of {count}: {cell.label}: ", _make_cell(design, cell, made)
        return
    for number, cell in enumerate(waiting, 1):
        request.tell(f"run {number} of {count}: {cell.label}")
        yield cell, "  ", _make_cell(design, cell, partial(_make_here, design, cell))


def _make_here(design: Design[C], cell: C) -> float:
    started = time.monotonic()
    with design.request.watching() as watch:
        design.make(cell, watch)
    return (time.monotonic() - started) / 60


def _make_cell(design: Design[C], cell: C, made: Made) -> Outcome:
    """Make a cell, or say why it cannot be made: the cells after it may well run."""
    request = design.request
    folder = request.cells / cell.name
    # What is left of a cell that was interrupted halfway.
    remove_inside(request.folder, folder, ConfigError)
    outcome = Outcome()
    try:
        minutes = made()
    except FedAttackError as problem:
        outcome = Outcome("failed", f"cannot run: {request.hide_paths(str(problem))}")
    # Records are most of a cell's bytes; findings stay.
    if not request.keep_records:
        remove_inside(request.folder, folder / "record", ConfigError)
    if outcome.state == DONE:
        design.close(cell, minutes)
    return outcome


def state_version(command: str, changes: Sequence[str]) -> dict[str, Any]:
    """State by what, when and by which command results were written."""
    return {"fedattack": __version__, "written": now(), "command": command, "changes": list(changes)}
