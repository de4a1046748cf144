"""Run a reproduction cell by cell, each an ordinary run folder, so that it can stop and go on."""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.base.errors import ConfigError, DataError, FedAttackError, ReportError
from fedattack.base.files import FolderLock, make_private, write_atomically, write_json, write_sealed
from fedattack.base.machine import MEMORY, read_size
from fedattack.base.settings import Value
from fedattack.base.untrusted import check_folder, read_sealed, remove_inside
from fedattack.base.version import __version__
from fedattack.data import DATASETS, data_root
from fedattack.grids.reproduce.measure import measure, per_round, training_records
from fedattack.grids.reproduce.page import to_markdown
from fedattack.grids.reproduce.picture import to_picture
from fedattack.grids.reproduce.spec import Cell, Job, Reproduction, shown
from fedattack.grids.reproduce.spread import Made, Making, made_elsewhere
from fedattack.grids.reproduce.words import CELLS, DATA_KEYS, check_out, check_words, data_of
from fedattack.record.folder import read_study
from fedattack.report import read_findings, read_run
from fedattack.runs.asked import known_to
from fedattack.runs.checks import options_among
from fedattack.runs.pipeline import attack_folder, choose_attacks, judge_folder
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.settings import leads_out
from fedattack.runs.simulating import choose_seeds, simulate
from fedattack.runs.watch import Watch

_DONE = "cell.json"
_LEFT_OUT = "left out by --only"


def audit_cell(job: Job, device: str, watch: Watch) -> None:
    """Make a cell's run folder, as ``fedattack audit`` does."""
    preset = load_preset(job.cell.preset)
    simulate(preset, job.settings, job.seeds, job.folder, command=job.command, watch=watch, options=job.options)
    trusted = leads_out(job.settings)
    for attack in choose_attacks(preset.attacks, {**preset.options, **job.options}):
        attack_folder(attack, job.folder, device=device, knowledge=lambda part: known_to(part, trusted), watch=watch)
    judge_folder(job.folder, device=device, watch=watch, trusted=trusted)


def reproduce(
    what: Reproduction,
    out: Path,
    *,
    only: Sequence[str] = (),
    changes: Sequence[str] = (),
    data: Sequence[str] = (),
    seeds: int | None = None,
    device: str = "auto",
    memory: str = "",
    cluster: str = "",
    keep_records: bool = False,
    watching: Callable[[], AbstractContextManager[Watch]],
    tell: Callable[[str], None] = lambda line: None,
    audit: Callable[[Job, str, Watch], None] = audit_cell,
    write: Callable[[Reproduction, Path, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run what is not yet there, and write ``NAME.json``, ``NAME.md`` and ``NAME.svg`` anew after every cell.

    Cells lie in ``out/cells``, where several reproductions may share them. One that is finished is not run again; one
    that was interrupted is.

    Parameters
    ----------
    what
        The reproduction.
    out
        Its folder.
    only
        ``column=value``: run these cells alone. Values of one column add up, columns narrow down.
    changes
        ``key=value``: settings of all cells.
    data
        ``name=path.npz`` or ``.toml``: files that stand for datasets.
    seeds
        Number of seeds; the presets' if None.
    device
        Where attacks compute.
    memory
        What an attack's work may hold, such as ``300MB``; empty for the presets' own.
    cluster
        Address of a Ray cluster on whose machines cells are made, or ``auto``; empty for this machine.
    keep_records
        Keep each cell's record, which may take gigabytes, after it is judged.
    watching
        Shows the progress of one cell.
    tell
        Called with a line before and after each cell.
    audit
        Makes a cell's run folder.
    write
        Given `what`, `out` and the results, writes something else in place of those files.

    Returns
    -------
    dict
        What ``NAME.json`` holds.

    Raises
    ------
    ConfigError
        If an argument fits nothing, `out` holds something else, or cells in it were run with other settings; or if
        there is no such cluster, or its machines do not fit.
    """
    folder = Path(out).expanduser().absolute()
    selected, files = check_words(what, only, changes, data)
    runner = _Runner(what, folder, selected, changes, files, seeds, memory, keep_records, write or write_pages)
    with runner.alone():
        waiting = runner.look()
        finished = sum(state.done for state in runner.states.values())
        tell(f"{len(what.cells)} cells: {finished} are there, {len(waiting)} to run")
        runner.write()
        if cluster and waiting:
            ended = made_elsewhere(waiting, Making(audit, device, keep_records), cluster, _bytes(memory))
            for count, (job, made) in enumerate(ended, 1):
                runner.take(job, made)
                runner.write()
                tell(f"cell {count} of {len(waiting)}: {job.cell.label}: {runner.summary(job.cell)}")
            return runner.results()
        for count, job in enumerate(waiting, 1):
            tell(f"cell {count} of {len(waiting)}: {job.cell.label}")
            with watching() as watch:
                runner.run(job, partial(audit, job, device, watch))
            runner.write()
            tell(f"  {runner.summary(job.cell)}")
    return runner.results()


def _bytes(memory: str) -> int:
    return read_size(memory) if memory else MEMORY


def write_pages(what: Reproduction, out: Path, results: dict[str, Any]) -> None:
    """Write ``NAME.svg``, if there is something to draw, ``NAME.md`` and ``NAME.json``."""
    picture = to_picture(what, results)
    if picture:
        write_atomically(out / f"{what.name}.svg", picture.encode())
    write_atomically(out / f"{what.name}.md", to_markdown(what, results, picture=bool(picture)).encode())
    write_json(out / f"{what.name}.json", results)


@dataclass
class _State:
    """What is known of a cell: whether it is done, or why not."""

    done: bool = False
    reason: str = ""
    failed: bool = False


@dataclass
class _Runner:
    """Knows which cells are there, and runs the others."""

    what: Reproduction
    out: Path
    selected: Sequence[Cell]
    changes: Sequence[str]
    files: Mapping[str, Path]
    seeds: int | None
    memory: str
    keep_records: bool
    writer: Callable[[Reproduction, Path, dict[str, Any]], None]
    states: dict[str, _State] = field(default_factory=dict)
    read: dict[str, dict[str, Any]] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder, so that nobody else takes a cell at work for one that was interrupted."""
        check_out(self.out)
        check_folder(self.out, ConfigError, to_write=True)
        try:
            make_private(self._cells)
            self.out.chmod(0o700)
        except OSError as cause:
            raise ConfigError(f"{self.out} cannot be created ({cause}); choose a folder that can be written") from None
        try:
            lock = FolderLock(self._cells)
        except BlockingIOError:
            raise ConfigError(f"another reproduction is at work in {self.out}; wait for it, or give --out") from None
        with lock:
            yield

    def look(self) -> list[Job]:
        """Look at what is there; returns the jobs that are left to do."""
        waiting: list[Job] = []
        for cell in self.what.cells:
            state = _State(reason=_LEFT_OUT)
            self.states[cell.name] = state
            try:
                job = self._job(cell)
            except ConfigError as problem:
                if cell in self.selected:
                    state.reason, state.failed = f"cannot run: {problem}", True
                continue
            if self._finished(job):
                state.done = True
            elif cell in self.selected:
                lacking = self._lacks(cell, str(job.settings["data-root"]))
                state.reason = lacking or "not reached yet"
                if not lacking:
                    waiting.append(job)
        return waiting

    def _lacks(self, cell: Cell, root: str) -> str:
        """Say which data a cell lacks, or nothing."""
        for name in data_of(cell):
            if name not in self.files and name not in self.lacking:
                self.lacking[name] = _describe_lacking(name, Path(root) if root else data_root())
            if self.lacking.get(name):
                return self.lacking[name]
        return ""

    def run(self, job: Job, audit: Callable[[], None]) -> None:
        """Make a cell, or keep why it cannot be made."""
        self._clear(job)
        started = time.monotonic()
        try:
            audit()
        except FedAttackError as problem:
            self._failed(job, problem)
            return
        if not self.keep_records:
            remove_inside(self.out, job.folder / "record", ConfigError)
        self._is_done(job, (time.monotonic() - started) / 60)

    def take(self, job: Job, made: Made | FedAttackError) -> None:
        """Take a cell that was made elsewhere, or keep why it could not be made."""
        self._clear(job)
        if isinstance(made, FedAttackError):
            self._failed(job, made)
        else:
            made.write(job.folder)
            self._is_done(job, made.minutes)

    def _clear(self, job: Job) -> None:
        """Remove what is left of a cell that was interrupted halfway."""
        if job.folder.exists():
            remove_inside(self.out, job.folder, ConfigError)

    def _failed(self, job: Job, problem: FedAttackError) -> None:
        # The cells after this one may well run; paths would tell of this machine.
        state = self.states[job.cell.name]
        state.reason, state.failed = f"cannot run: {str(problem).replace(str(self.out), 'DIR')}", True

    def _is_done(self, job: Job, minutes: float) -> None:
        write_sealed(job.folder / _DONE, {"minutes": minutes})
        self.states[job.cell.name] = _State(done=True)

    def summary(self, cell: Cell) -> str:
        """Say in a line what came out of a cell."""
        state = self.states[cell.name]
        if not state.done:
            return state.reason
        entry = self._entry(cell)
        first = self.what.first
        measured = entry["numbers"][first.name]
        if measured["value"] is None:
            return f"{entry['minutes']:.1f} min"
        stated = f", paper {first.scale * measured['paper']['mean']:.1f}" if measured["paper"] else ""
        return f"{first.title} {first.scale * measured['value']:.1f}{stated}, {entry['minutes']:.1f} min"

    def write(self) -> None:
        """Write the results so far."""
        self.writer(self.what, self.out, self.results())

    def results(self) -> dict[str, Any]:
        """Gather everything that is there."""
        return {
            "reproduction": self.what.name,
            "title": self.what.title,
            "paper": self.what.paper,
            "fedattack": __version__,
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": self._command,
            "changes": list(self.changes),
            "columns": list(self.what.columns),
            "cells": list(map(self._entry, self.what.cells)),
        }

    def _entry(self, cell: Cell) -> dict[str, Any]:
        state = self.states[cell.name]
        if not state.done:
            return {
                "cell": cell.name,
                "place": dict(cell.place),
                "state": "failed" if state.failed else "not run",
                "reason": state.reason,
                "numbers": {name: {"paper": asdict(stated)} for name, stated in cell.paper.items()},
            }
        if cell.name not in self.read:
            self.read[cell.name] = self._measured(cell)
        return self.read[cell.name]

    def _measured(self, cell: Cell) -> dict[str, Any]:
        folder = self._cells / cell.name
        done = read_sealed(folder / _DONE, _DONE_FORM, ReportError, "delete the folder to run the cell again")
        findings, run = read_findings(folder), read_run(folder)
        numbers = {}
        for name, number in self.what.numbers.items():
            numbers[name] = measure(number, findings, run, cell.paper.get(name))
        job = self._job(cell)
        entry: dict[str, Any] = {
            "cell": cell.name,
            "place": dict(cell.place),
            "state": "done",
            "data": _data_name(str(job.settings["dataset"])),
            "training_records": training_records(run),
            "seeds": list(job.seeds),
            "minutes": done["minutes"],
            "command": job.command,
            "numbers": numbers,
        }
        if self.what.figure.kind == "rounds":
            entry["per_round"] = per_round(self.what.numbers[self.what.figure.y], findings)
        return entry

    @property
    def _cells(self) -> Path:
        return self.out / CELLS

    @property
    def _command(self) -> str:
        """The command that makes all that is there, which may have been made bit by bit, on any machine."""
        arguments = repeated("--seeds", [self.seeds] if self.seeds else [])
        arguments += repeated("--set", self.changes)
        arguments += repeated("--data", [f"{name}={path.name}" for name, path in self.files.items()])
        arguments += repeated("--memory", [self.memory] if self.memory else [])
        return shlex.join(["fedattack", "reproduce", self.what.name, "--out", "DIR", *arguments])

    def _job(self, cell: Cell) -> Job:
        preset = load_preset(cell.preset)
        changes = [f"{key}={self._value(key, value)}" for key, value in cell.settings.items()]
        changes += self.changes
        settings, seeds = resolve_settings(preset, changes), choose_seeds(preset, None, self.seeds)
        arguments = repeated("--seeds", [self.seeds] if self.seeds else [])
        arguments += repeated("--set", map(_without_folder, changes))
        given = options_among({"memory": self.memory}, preset.attacks) if self.memory else {}
        options = {**given, **cell.options}
        arguments += repeated("--option", map("=".join, options.items()))
        command = shlex.join(["fedattack", "audit", preset.name, "--out", cell.name, *arguments])
        return Job(cell, self._cells / cell.name, settings, seeds, command, options)

    def _value(self, key: str, value: Value) -> str:
        return str(self.files.get(str(value), value)) if key in DATA_KEYS else shown(value)

    def _finished(self, job: Job) -> bool:
        """Whether a cell is there and whole.

        Raises
        ------
        ConfigError
            If it is, but was run with other settings: a table must not mix them.
        """
        if not (job.folder / _DONE).exists():
            return False
        try:
            read_findings(job.folder)
            read_run(job.folder)
            study = read_study(job.folder)
        except FedAttackError:
            return False
        expected = {**job.settings, "seeds": list(job.seeds)}
        run_with = {**study.get("settings", {}), "seeds": study.get("seeds")}
        for key in sorted({*expected, *run_with}):
            before, now = run_with.get(key), expected.get(key)
            if before != now:
                raise ConfigError(
                    f"{job.folder} was run with {key} = {before}, and now it is {now}; give the same settings again, "
                    "or another --out, or delete that folder"
                )
        return True


class _Done(TypedDict):
    minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)]


_DONE_FORM: TypeAdapter[_Done] = TypeAdapter(_Done)


def repeated(option: str, values: Iterable[object]) -> list[str]:
    """Write the arguments that give a command an option once for each value."""
    arguments = []
    for value in values:
        arguments += [option, str(value)]
    return arguments


def _describe_lacking(name: str, root: Path) -> str:
    """Say what it takes to have a dataset, if it is not there."""
    by_file = f"--data {name}=PATH.npz"
    if name not in DATASETS:
        return f"needs {by_file}"
    if DATASETS[name].download is None:
        return ""
    try:
        DATASETS[name].read(0, root)
    except DataError:
        return f"needs `fedattack download {name}`, or {by_file}"
    return ""


def _data_name(text: str) -> str:
    """Name data without the folder of their file, which is this machine's."""
    return Path(text).name if text.endswith((".npz", ".toml")) else text


def _without_folder(change: str) -> str:
    key, _, text = change.partition("=")
    return f"{key}={_data_name(text)}"
