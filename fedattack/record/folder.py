"""The run folder: where a run's record, knowledge, truth, scores and report lie.

One run of one seed::

    DIR/record/  DIR/knowledge/  DIR/truth/  DIR/scores/ATTACK.npz  DIR/findings.json  DIR/run.json  DIR/report.html

Several seeds have one subfolder each in the first four: ``record/seed-0`` and so on. Where a privacy claim was checked,
its answer is ``DIR/claim.json`` and ``DIR/claim.html``.
"""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import RecordError, short
from fedattack.base.files import make_private, write_sealed
from fedattack.base.settings import Value
from fedattack.base.untrusted import PLAIN, check_folder, copy_files, read_sealed
from fedattack.record.format import MANIFEST
from fedattack.record.index import read_index, read_manifest, without_manifest

STUDY = "study.json"
KNOWLEDGE = "knowledge.json"
HOLDINGS = "holdings.json"
DEALT = "dealt"

LEFT_OUT = "left_out"
"""Key of a study, and of ``run.json``: what the report leaves out since it failed."""

_STRICT = ConfigDict(extra="forbid", strict=True)

# Characters of the longest command that a message has room for.
_LONGEST_COMMAND = 160

# Run folders that a message names.
_FEW_RUNS = 5

# Arrays, and notes of witnesses, of a run without an answer.
_MOST_NOTED = 100_000

_Text = Annotated[str, StringConstraints(max_length=10_000)]
# 2⁵³: whole numbers up to it are the same in JSON readers that know floats alone.
_Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
_Value = bool | _Whole | Annotated[float, Field(allow_inf_nan=False)] | _Text
_Seed = Annotated[int, Field(ge=0, lt=2**32)]


@with_config(_STRICT)
class _ControlEntry(TypedDict):
    kind: Literal["trained", "stepped", "whole", "alone", "planted", "shown"]
    amount: _Whole
    is_seen: bool
    replies: NotRequired[Annotated[int, Field(ge=0, le=2**53)]]
    of: NotRequired[Annotated[int, Field(ge=0, le=2**53)]]
    is_cut: NotRequired[bool]


@with_config(_STRICT)
class _StudySentArray(TypedDict):
    array: _Text
    shape: Annotated[list[Annotated[int, Field(ge=0, le=2**53)]], Field(max_length=64)]
    dtype: _Text
    kind: _Text
    clients: Annotated[int, Field(ge=1, le=2**53)]
    least: NotRequired[Annotated[float, Field(allow_inf_nan=False)]]
    most: NotRequired[Annotated[float, Field(allow_inf_nan=False)]]


@with_config(_STRICT)
class _StudySent(TypedDict):
    arrays: Annotated[list[_StudySentArray], Field(max_length=_MOST_NOTED)]
    unread: _Text


@with_config(_STRICT)
class _StudyEntry(TypedDict, total=False):
    preset: _Text
    app: _Text
    code: _Text
    config: dict[_Text, bool | _Whole | Annotated[float, Field(allow_inf_nan=False)]]
    recorded: list[_Seed]
    untried: dict[_Text, _Text]
    remedies: dict[_Text, _Text]
    means: _Text
    mods: Annotated[list[_Text], Field(max_length=_MOST_NOTED)]
    optimizers: Annotated[list[_Text], Field(max_length=_MOST_NOTED)]
    unanswered: _Text
    sent: _StudySent
    witnessed: Annotated[list[_Text], Field(max_length=_MOST_NOTED)]
    left_out: list[_Text]
    controls: dict[_Text, _ControlEntry]
    attacks: list[_Text]
    settings: dict[_Text, _Value]
    seeds: list[_Seed]
    commands: list[_Text]
    runtime: _Text
    options: dict[_Text, _Text]
    started: _Text
    finished: _Text


@with_config(_STRICT)
class _Resumption(TypedDict):
    names: dict[_Text, _Text]
    data: _Text


@with_config(_STRICT)
class _Runs(TypedDict):
    runs: list[dict[_Text, _Value]]


_STUDY: TypeAdapter[_StudyEntry] = TypeAdapter(_StudyEntry)
_RESUMPTION: TypeAdapter[_Resumption] = TypeAdapter(_Resumption)
_RUNS: TypeAdapter[_Runs] = TypeAdapter(_Runs)


@dataclass(frozen=True)
class Part:
    """One seed's share of a run folder; ``name`` is empty when the folder holds a single run."""

    folder: Path
    name: str

    @property
    def record(self) -> Path:
        """Folder of the record."""
        return self.folder / "record" / self.name

    @property
    def knowledge(self) -> Path:
        """Folder of what the attacker knows."""
        return self.folder / "knowledge" / self.name

    @property
    def truth(self) -> Path:
        """Folder of the truth."""
        return self.folder / "truth" / self.name

    @property
    def zoo(self) -> Path:
        """Folder of the model zoos by which clients defend themselves."""
        return self.folder / "zoo" / self.name

    @property
    def dealt(self) -> Path:
        """File of what clients train on, for as long as they do."""
        return self.folder / DEALT / f"{self.name or 'run'}.safetensors"

    @property
    def resumption(self) -> Path:
        """File that tells a resumed run's server what it goes on with."""
        return self.folder / "resumption" / f"{self.name or 'run'}.json"

    def scores(self, attack: str) -> Path:
        """File of an attack's scores."""
        return self.folder / "scores" / self.name / f"{attack}.npz"

    @property
    def place(self) -> str:
        """Where the record lies in the run folder, with slashes on every system."""
        return self.record.relative_to(self.folder).as_posix()

    @property
    def label(self) -> str:
        """The part's name for people."""
        return self.name or "the run"


def new_parts(folder: Path, seeds: Sequence[int]) -> list[Part]:
    """Name the parts of a new run folder."""
    return [Part(folder, "" if len(seeds) == 1 else f"seed-{seed}") for seed in seeds]


class RunFolder:
    """A run folder that is opened once: what was read of it is kept, however many ask.

    Attributes
    ----------
    path
        The folder.

    Raises
    ------
    RecordError
        If it is no folder, or a link.
    """

    def __init__(self, path: Path) -> None:
        check_folder(path, RecordError)
        self.path = path

    @cached_property
    def study(self) -> dict[str, Any]:
        """What was run, as :func:`read_study` reads it and with what it raises; :meth:`note` changes it."""
        return read_study(self.path)

    def note(self, study: dict[str, Any]) -> None:
        """Keep what was run in place of what was noted before."""
        write_study(self.path, study)
        self.study = study

    @cached_property
    def parts(self) -> list[Part]:
        """The seeds, by their records.

        Raises
        ------
        RecordError
            If there is no record at all, or one of them is gone or is not that of its seed.
        """
        for line in (*self.lost.values(), *self.misplaced.values()):
            raise RecordError(line)
        return self.parts_there

    @cached_property
    def parts_there(self) -> list[Part]:
        """The seeds whose records are there; :attr:`lost` and :attr:`misplaced` say which are not, or are another's.

        Raises
        ------
        RecordError
            If there is no record at all.
        """
        return _parts_of(self.path, self.path / "record")

    @cached_property
    def manifests(self) -> dict[Path, dict[str, Any]]:
        """By record its manifest; without those that cannot be read, of which whoever reads the record tells."""
        manifests = {}
        for part in self.parts_there:
            with suppress(RecordError):
                manifests[part.record] = read_manifest(part.record)
        return manifests

    @property
    def unfinished(self) -> str:
        """How the audit of an app goes on that was stopped before its attacks were made; empty for all other folders.

        The folder may be of anybody: a command is shown only where it is one call of `fedattack audit` and no more.
        """
        study = self.study
        # The stage that attacks notes them, and a page without an answer notes that there are none.
        if "app" not in study or "attacks" in study or (self.path / "scores").exists():
            return ""
        count = sum(map(_count_rounds, new_parts(self.path, study.get("seeds", ()))))
        said = "no round is recorded"
        if count:
            said = f"{count} round{'s' if count > 1 else ''} recorded so far"
        said = f"{self.path}: the audit of {short(study['app'], 60)} has not ended ({said}). Continue it"
        command = _find_audit_command(study.get("commands", ()))
        if command:
            return f"{said}: `{command}`"
        return f"{said} by the command that began it, which {STUDY} there names"

    def check_ended(self) -> None:
        """Refuse the folder of an app's audit that has not ended.

        Raises
        ------
        RecordError
            If it is one; see :attr:`unfinished`.
        """
        if self.unfinished:
            raise RecordError(self.unfinished)

    @property
    def misplaced(self) -> dict[Path, str]:
        """By record that is not its seed's how it shows: another one is the same, or it has another seed."""
        seeds = self.study.get("seeds", [])
        # The names that these seeds have in a new run folder; a record from elsewhere has other ones, and is not
        # checked.
        seed_of = {part.record: seed for seed, part in zip(seeds, new_parts(self.path, seeds), strict=True)}
        first: dict[str, Path] = {}
        misplaced = {}
        for record, manifest in self.manifests.items():
            # The first of two equal records counts as the one that belongs there.
            twin = first.setdefault(manifest["id"], record)
            seed, wanted = manifest["seed"], seed_of.get(record)
            if twin != record:
                misplaced[record] = (
                    f"{record} and {twin} are the same record; put the record of each seed back in its place"
                )
            elif seed is not None and wanted is not None and seed != wanted:
                misplaced[record] = (
                    f"{record} is another record: it has the seed {seed}, and {STUDY} names the seed {wanted} there; "
                    "put the record of each seed back in its place"
                )
        return misplaced

    @property
    def lost(self) -> dict[Path, str]:
        """By record that is gone how it shows: its manifest is gone, or the study names its seed."""
        lost = {path: _without_manifest(path) for path in without_manifest(self.path / "record")}
        there = {part.record for part in self.parts_there}
        seeds = self.study.get("seeds", [])
        for seed, part in zip(seeds, new_parts(self.path, seeds), strict=True):
            if part.record not in there and part.record not in lost:
                lost[part.record] = (
                    f"{part.record} is not there, and {STUDY} names the seed {seed}; put the record back, or make it "
                    "with `fedattack resume`"
                )
        return lost


def find_parts(folder: Path) -> list[Part]:
    """Find the parts of a run folder that nothing else is read of; see :attr:`RunFolder.parts`.

    Raises
    ------
    RecordError
        If there is no record at all, or one of them is gone or is not that of its seed.
    """
    return RunFolder(folder).parts


def explain_lack(folder: Path) -> str:
    """Say of a folder that it holds no record, and what to do: go on with its audit, or give a run folder in it."""
    if unfinished := RunFolder(folder).unfinished:
        return unfinished
    inside = []
    # A pattern finds nothing in a folder that is not there.
    for path in sorted(folder.glob("*")):
        # Names that nobody can take for something else, as they are shown.
        if PLAIN.fullmatch(path.name) and ((path / STUDY).is_file() or (path / "record" / MANIFEST).is_file()):
            inside.append(path)
    if len(inside) == 1:
        return f"{folder} holds no record itself, and {inside[0].name} in it is a run folder; give {inside[0]}"
    if inside:
        names = ", ".join(path.name for path in inside[:_FEW_RUNS])
        if len(inside) > _FEW_RUNS:
            names += ", …"
        return f"{folder} holds no record itself, but run folders: {names}; give one of them, such as {inside[0]}"
    return (
        f"{folder} holds no record: expected {MANIFEST} in it, in {folder / 'record'}, or in one folder per seed "
        "there; point at what an observer, `fedattack audit` or `fedattack simulate` wrote"
    )


def _find_audit_command(commands: Sequence[str]) -> str:
    """Return the command that began an audit; empty if a message cannot show it, or it would do anything else."""
    command = next(iter(commands), "")
    if len(command) > _LONGEST_COMMAND or not command.isprintable():
        return ""
    try:
        words = shlex.split(command)
    except ValueError:
        # A quote is left open.
        return ""
    # Whoever wrote the folder may have meant harm: a command with an operator of the shell changes when it is joined.
    # What stands behind -- is a command of its own.
    if words[:2] != ["fedattack", "audit"] or shlex.join(words) != command or "--" in words:
        return ""
    return command


def _count_rounds(part: Part) -> int:
    """Count the whole rounds of a record that may not be there yet; none of one that cannot be read."""
    try:
        lines = read_index(part.record, read_manifest(part.record)).lines
    except RecordError:
        return 0
    return sum(not line.unfinished for line in lines)


def _without_manifest(record: Path) -> str:
    return f"{record} is a record without its {MANIFEST}; put it back, or move the rest away"


def _parts_of(folder: Path, records: Path) -> list[Part]:
    if records.exists() and (folder / MANIFEST).exists():
        raise RecordError(f"{folder} is a record and contains another one, {records}: point at the one that you mean")
    if (records / MANIFEST).exists():
        return [Part(folder, "")]
    names = sorted(path.parent.name for path in records.glob(f"*/{MANIFEST}"))
    odd = [name for name in names if not PLAIN.fullmatch(name)]
    if odd:
        raise RecordError(f"{records}: {odd[0]!a} is not a plain name of a folder, such as seed-0; rename it")
    if not names and (lost := without_manifest(records)):
        raise RecordError(_without_manifest(lost[0]))
    if not names:
        raise RecordError(explain_lack(folder))
    # Shorter names first: seed-2 stands before seed-10.
    return [Part(folder, name) for name in sorted(names, key=lambda name: (len(name), name))]


def write_study(folder: Path, study: dict[str, Any]) -> None:
    """Keep what was run: preset, settings, seeds, commands, times."""
    write_sealed(folder / STUDY, study)


def read_study(folder: Path) -> dict[str, Any]:
    """Read :func:`write_study`'s file; empty for a record that came from elsewhere.

    Raises
    ------
    RecordError
        If it is damaged, or not of the form that is written: seeds are numbers, settings are plain values; or if a link
        leaves the folder.
    """
    check_folder(folder, RecordError)
    if not (folder / STUDY).exists():
        return {}
    study = read_sealed(folder / STUDY, _STUDY, RecordError, "delete it to go on without the facts of the run")
    if len(set(study.get("seeds", ()))) != len(study.get("seeds", ())):
        raise RecordError(f"{folder / STUDY}: seeds: one occurs twice")
    return dict(study)


def write_resumption(file: Path, nodes: Mapping[str, str], data: str) -> None:
    """Tell the server of a resumed run by which names the record knows the clients' nodes, and the data's fingerprint.

    It is told so for the record's sake alone: Flower gives nodes new ids, and the record is to keep the first ones.
    """
    make_private(file.parent)
    write_sealed(file, {"names": {client: node for node, client in nodes.items()}, "data": data})


def read_resumption(file: Path) -> tuple[dict[str, str], str]:
    """Read :func:`write_resumption`'s file: the nodes' names by client, and the data's fingerprint."""
    resumption = read_sealed(file, _RESUMPTION, RecordError, "resume the run again")
    return resumption["names"], resumption["data"]


def write_runs(file: Path, runs: Sequence[Mapping[str, Value]]) -> None:
    """Tell the app what each of several runs that follow each other has of its own in its run config."""
    make_private(file.parent)
    write_sealed(file, {"runs": [dict(run) for run in runs]})


def read_runs(file: Path) -> list[dict[str, Value]]:
    """Read :func:`write_runs`' file."""
    return read_sealed(file, _RUNS, RecordError, "resume the run again")["runs"]


def copy_zoos(source: Path, to: Path) -> None:
    """Copy the model zoos in a folder, one for each attribute, and nothing else that lies there.

    Raises
    ------
    RecordError
        If one lacks a file, or they do not fit on the disk.
    """
    names = []
    # Links are not followed: `copy_files` refuses what is no regular file.
    for described in sorted(source.glob("*/zoo.json")):
        attribute = described.parent.name
        names += [f"{attribute}/zoo.json", f"{attribute}/zoo.safetensors"]
    if names:
        copy_files(names, source, to, RecordError)
