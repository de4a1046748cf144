"""Grids whose cells are trained, attacked and judged, each as ``fedattack audit`` does."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from fedattack.audit.finding import Finding
from fedattack.base.errors import ConfigError, DataError, FedAttackError, ReportError
from fedattack.base.files import write_sealed
from fedattack.base.untrusted import read_sealed
from fedattack.data import DATASETS, data_root
from fedattack.grids.cell import DATA_KEYS, Cell, Job, Number, list_data, write_command, write_value
from fedattack.grids.engine import DONE, WAITING, Design, Made, Outcome
from fedattack.grids.spread import make_on_cluster
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

Audit = Callable[[Job, str, Watch], None]
"""Makes a cell's run folder; the second argument is where attacks compute."""


class _Done(TypedDict):
    minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)]


_DONE_FORM: TypeAdapter[_Done] = TypeAdapter(_Done)


def audit_cell(job: Job, device: str, watch: Watch) -> None:
    """Make a cell's run folder, as ``fedattack audit`` does."""
    preset = load_preset(job.cell.preset)
    simulate(preset, job.settings, job.seeds, job.folder, command=job.command, watch=watch, options=job.options)
    trusted = leads_out(job.settings)
    for attack in choose_attacks(preset.attacks, {**preset.options, **job.options}):
        # Knowledge is read with what the settings of this very cell name, and no more.
        attack_folder(attack, job.folder, device=device, knowledge=lambda part: known_to(part, trusted), watch=watch)
    judge_folder(job.folder, device=device, watch=watch, trusted=trusted)


@dataclass(kw_only=True)
class TrainedDesign(Design[Cell]):
    """Cells that are trained.

    Attributes
    ----------
    audit
        Makes a cell's run folder.
    selected
        The cells that are asked for; all if None.
    files
        Files that stand for datasets, by name.
    """

    audit: Audit
    selected: Collection[Cell] | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    _lacking: dict[str, str] = field(default_factory=dict, init=False)
    _entries: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    @abstractmethod
    def read_cell(self, job: Job, findings: Sequence[Finding], run: Mapping[str, Any]) -> dict[str, Any]:
        """Read what the results hold of a cell that is done."""

    def plan(self, cell: Cell) -> Job:
        """Resolve everything that decides a cell's numbers."""
        preset = load_preset(cell.preset)
        changes, public = [], []
        for key, value in cell.settings.items():
            text = write_value(value)
            # Data may be replaced by the caller's files.
            if key in DATA_KEYS:
                text = str(self.files.get(text, text))
            changes.append(f"{key}={text}")
            public.append(f"{key}={name_data(text)}")
        for change in self.request.changes:
            key, _, text = change.partition("=")
            changes.append(change)
            public.append(f"{key}={name_data(text)}")
        # The command is shown to others, and so names files without their folders; what is run has whole paths.
        settings, seeds = resolve_settings(preset, changes), choose_seeds(preset, None, self.request.seeds)
        options = dict(cell.options)
        # An attack's own option goes before what the caller gives all of them.
        if self.request.memory:
            options = options_among({"memory": self.request.memory}, preset.attacks) | options
        given: dict[str, Iterable[object]] = {
            "seeds": [self.request.seeds],
            "set": public,
            "option": map("=".join, options.items()),
        }
        command = write_command("audit", preset.name, "--out", cell.name, **given)
        return Job(cell, self.request.cells / cell.name, settings, seeds, command, options)

    def look_for(self, cell: Cell) -> Outcome:
        """Say whether a cell is there, is to be made, or why it is not."""
        selected = self.selected is None or cell in self.selected
        left_out = Outcome("left out", "left out by --only")
        try:
            job = self.plan(cell)
        except ConfigError as problem:
            return Outcome("failed", f"cannot run: {problem}") if selected else left_out
        # A cell that is there counts, whether it is asked for now or not.
        if _is_finished(job):
            return Outcome()
        if not selected:
            return left_out
        lacking = self._name_lacking(cell, str(job.settings["data-root"]))
        return Outcome("left out", lacking) if lacking else WAITING

    def _name_lacking(self, cell: Cell, root: str) -> str:
        for name in list_data(cell):
            if name in self.files:
                continue
            if name not in self._lacking:
                self._lacking[name] = _describe_lacking(name, Path(root or data_root()))
            if self._lacking[name]:
                return self._lacking[name]
        return ""

    def make(self, cell: Cell, watch: Watch) -> None:
        """Make the run folder of a cell."""
        self.audit(self.plan(cell), self.request.device, watch)

    def make_elsewhere(self, cells: Sequence[Cell]) -> Iterator[tuple[Cell, Made]]:
        """Make cells on the machines of a cluster; yields each when it ends."""
        jobs = list(map(self.plan, cells))
        for job, made in make_on_cluster(jobs, self.audit, self.request):
            yield job.cell, made

    def close(self, cell: Cell, minutes: float) -> None:
        """Note that a cell is done."""
        write_sealed(self.request.cells / cell.name / _DONE, {"minutes": minutes})

    def read_entry(self, cell: Cell) -> dict[str, Any]:
        """Read what the results hold of a cell that is done, and how it was made."""
        if cell.name not in self._entries:
            job = self.plan(cell)
            done = read_sealed(job.folder / _DONE, _DONE_FORM, ReportError, "delete the folder to run the cell again")
            entry = {"cell": cell.name, "state": DONE, "seeds": list(job.seeds), "minutes": done["minutes"]}
            entry["command"] = job.command
            read = self.read_cell(job, read_findings(job.folder), read_run(job.folder))
            self._entries[cell.name] = entry | read
        return self._entries[cell.name]

    def describe_number(self, cell: Cell, number: Number, measured: Mapping[str, Any]) -> str:
        """Say in a line what a number of a cell is, if it has one, and how long the cell took."""
        took = f"{self.read_entry(cell)['minutes']:.1f} min"
        if measured["value"] is None:
            return took
        text = f"{number.title} {number.scale * measured['value']:.1f}"
        if measured.get("paper"):
            text += f", paper {number.scale * measured['paper']['mean']:.1f}"
        return f"{text}, {took}"


def name_data(text: str) -> str:
    """Name data without the folder of their file, which is this machine's."""
    return Path(text).name if text.endswith((".npz", ".toml")) else text


def _is_finished(job: Job) -> bool:
    if not (job.folder / _DONE).exists():
        return False
    try:
        read_findings(job.folder)
        read_run(job.folder)
        study = read_study(job.folder)
    except FedAttackError:
        return False
    # A cell of other settings is neither used nor written over: it took minutes, and may be meant.
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


def _describe_lacking(name: str, root: Path) -> str:
    by_file = f"--data {name}=PATH.npz"
    if name not in DATASETS:
        return f"needs {by_file}"
    if DATASETS[name].download is not None:
        try:
            # Reading shows whether it is whole; nothing is downloaded here.
            DATASETS[name].read(0, root)
        except DataError:
            return f"needs `fedattack download {name}`, or {by_file}"
    return ""
