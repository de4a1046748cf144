"""Make a run folder of a record and of what witnesses wrote on the clients' own machines.

The folders were copied from elsewhere, so that they are data: what does not belong to the record is refused or told.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedattack.apps.app import App
from fedattack.apps.asking import Asker, ask_examples
from fedattack.apps.holding import hold
from fedattack.apps.posing import Posed, pose
from fedattack.apps.questions import NOTHING_BESIDES, Questions
from fedattack.attacks import ModelKnowledge
from fedattack.base.errors import ConfigError, RecordError, RunError, TrustError, short
from fedattack.base.files import make_private, signals_raise
from fedattack.base.untrusted import check_folder
from fedattack.record import Record
from fedattack.record.folder import Part, find_parts, read_study, write_study
from fedattack.record.format import MANIFEST, RUN
from fedattack.record.project import copy_record
from fedattack.runs.private import guarded_folder, sweep_named
from fedattack.runs.running import check_free
from fedattack.witness import SERVER, SeenExamples, Witness, read_witnesses
from fedattack.witness.sample import hash_rows
from fedattack.witness.store import RUN_FOLDER

_RUN_ID = re.compile("[0-9]{1,20}")


@dataclass(frozen=True, eq=False)
class Found:
    """A witness, and the folder that the caller named it by."""

    folder: Path
    witness: Witness

    @property
    def name(self) -> str:
        """What its client is called."""
        return self.witness.client or self.witness.node


def gather(
    source: Path,
    folders: Sequence[Path],
    out: Path,
    *,
    command: str,
    asked: Questions = NOTHING_BESIDES,
    trust: bool = False,
    app: App | None = None,
) -> list[Posed]:
    """Make the new run folder ``out``: a copy of the record, knowledge and truth.

    Parameters
    ----------
    source
        A record, or a run folder, of which the records alone are read.
    folders
        What witnesses wrote: each the folder of a :class:`fedattack.witness.WitnessMod`, or of one of its runs.
    command
        The command line that does all this, kept for the report.
    trust, app
        Whether to import the model and the loss that the witnesses name; and the clients' app, which is asked for
        losses where the attacker can build no model.

    Raises
    ------
    ConfigError
        If ``out`` is taken, or the witnesses are not those of this run. Then nothing is written.
    TrustError
        If the witnesses name code that the caller does not trust.
    FedAttackError
        If the record is damaged, or nothing was witnessed that can be asked about.
    """
    out = check_free(out)
    records = _list_records(source)
    check = None
    # The caller's own names are no code of the witnesses.
    if not trust:
        check = partial(_refuse_code, asked)
    posed = []
    with _making_whole(out) as folder:
        for name, path in records:
            part, record = Part(folder, name), Record(path, thinned=True)
            # Before anything is copied: a record without an answer has no truth to tell.
            if record.silence:
                raise RunError(f"{path}: {record.silence}")
            notes: list[str] = []
            witnesses: Sequence[Witness] = _choose_witnesses(_read_found(folders, record), record, notes)
            copy_record(record, part.record)
            if app is not None:
                witnesses = ask_examples(Asker(app, functions=asked.functions), part, witnesses, notes)
            holding = hold(witnesses, record)
            posed.append(pose(part, holding, asked, notes=notes, app=app, check=check))
        first, last = Record(records[0][1], thinned=True), Record(records[-1][1], thinned=True)
        study = {"commands": [command], "started": first.manifest["started"], "finished": last.manifest["ended"] or ""}
        seeds = read_study(source).get("seeds", ())
        # Seeds of a run folder stand in its study; a record from elsewhere has its own.
        if len(seeds) == len(records):
            study["seeds"] = [*seeds]
        write_study(folder, study)
    return posed


@contextmanager
def _making_whole(out: Path) -> Iterator[Path]:
    """Yield a folder that takes its place when all is in it; nothing is left of it if something fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{out.name}.gathering-"
    sweep_named(out.parent, prefix)
    # Beside its place and on the same disk, so that `rename` is atomic.
    with signals_raise(), guarded_folder(out.parent, prefix) as temporary:
        folder = temporary / "run"
        make_private(folder)
        yield folder
        folder.rename(out)


def _list_records(source: Path) -> list[tuple[str, Path]]:
    """List a run's records, each with the name of its part."""
    check_folder(source, RecordError)
    if (source / MANIFEST).exists():
        return [("", source)]
    return [(part.name, part.record) for part in find_parts(source)]


def _refuse_code(asked: Questions, known: ModelKnowledge) -> None:
    """Refuse code that only the witnesses name."""
    from fedattack.learning import LOSSES, MODELS

    for kind, value, own, built_in in (
        ("model", known.spec, asked.model, MODELS),
        ("loss", known.loss, asked.loss, LOSSES),
    ):
        # What the caller typed is trusted as typed; built-in names are no code.
        if value != own and value not in built_in:
            raise TrustError(
                f"the witnesses name the {kind} {short(str(value), 80)}, which would be imported and run on this "
                f"machine: add --trust, or name one of your own by --{kind}"
            )


def _read_found(folders: Sequence[Path], record: Record) -> list[Found]:
    """Read what witnesses wrote in the record's run, each node once."""
    run = _run_of(record)
    found: dict[str, Found] = {}
    for folder in folders:
        witnesses = read_witnesses(_folder_of_run(folder, run, record))
        if not witnesses:
            raise ConfigError(f"{folder} holds no witness; give the folder that a WitnessMod wrote into")
        for witness in witnesses:
            _check(witness, folder)
            # The same node in two folders: one of them may be an older copy.
            if (other := found.get(witness.node)) is not None:
                raise ConfigError(
                    f"the node {short(witness.node, 60)} is in both {other.folder} and {folder}; give only one of them"
                )
            found[witness.node] = Found(folder, witness)
    runs = {each.witness.run for each in found.values() if each.witness.run}
    if run:
        runs.add(run)
    if len(runs) > 1:
        listed = short(", ".join(sorted(runs)), 100)
        raise ConfigError(f"{record.path} and the witnesses belong to several runs ({listed}); give those of one run")
    return [*found.values()]


def _run_of(record: Record) -> str:
    """Return Flower's id of the run, or nothing if the record does not say it."""
    run = str(record.facts.get(RUN, ""))
    # The fact comes from the record: it becomes part of a path, and must be a number.
    if _RUN_ID.fullmatch(run):
        return run
    return ""


def _folder_of_run(folder: Path, run: str, record: Record) -> Path:
    """Return where the witnesses of a run are: in a folder of their own, or in the one that was named."""
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give a folder that a witness has written")
    check_folder(folder, ConfigError)
    runs = sorted(path for path in folder.glob(f"{RUN_FOLDER}*") if path.is_dir())
    if not runs:
        return folder
    wanted = folder / f"{RUN_FOLDER}{run}"
    if run and wanted not in runs:
        listed = short(", ".join(path.name for path in runs), 100)
        raise ConfigError(f"{folder} has witnesses of {listed}, but {record.path} is of run {run}")
    if not run and len(runs) > 1:
        raise ConfigError(
            f"{record.path} does not say to which run it belongs; name the folder of one run, such as {runs[0]}"
        )
    if not run:
        return runs[0]
    return wanted


def _check(witness: Witness, folder: Path) -> None:
    """Refuse what no witness writes, and names that mean something else in the truth."""
    where = f"{folder}: the witness of node {short(witness.node, 60)}"
    for seen in (witness.trained, witness.evaluated):
        if not _is_a_sample(seen):
            # Hashes decide who holds what: a folder that was changed by hand could name any holder.
            raise ConfigError(f"{where}: its hashes do not match its examples; copy the folder again")
        if sum(seen.counts.values()) > seen.total:
            raise ConfigError(
                f"{where}: its counts of classes add up to more than its number of examples; copy the folder again"
            )
    if witness.client.startswith("node ") or witness.client == SERVER:
        # These names stand for strangers and the server in the truth.
        raise ConfigError(f"{where}: a client cannot be called {short(witness.client, 60)!r}; change its partition-id")


def _is_a_sample(seen: SeenExamples) -> bool:
    hashes = list(map(bytes, seen.hashes))
    # The keys in ascending order, as they tell up to which one a witness lists all.
    return hashes == sorted({*hashes}) and (not hashes or hash_rows(seen.x, 0) == hashes)


def _choose_witnesses(found: Sequence[Found], record: Record, notes: list[str]) -> list[Witness]:
    """Return the witnesses that speak of the record's clients, each client under a name of its own."""
    trained = [each for each in found if each.witness.trained.total and each.witness.node != SERVER]
    others = _find_unrecorded(trained, record)
    if others:
        names = short(", ".join(each.name for each in others), 60)
        notes.append(f"witnesses of clients that the record never saw are left out ({len(others)}): {names}")
    if not _run_of(record) or not all(each.witness.run for each in trained):
        notes.append("the record or a witness does not name its run; only their nodes show that they belong together")
    trained = [each for each in trained if each not in others]
    apart = _find_namesakes(trained, record)
    if apart:
        notes.append(
            f"several clients call themselves {short(', '.join(sorted(apart)), 60)}: each is named by its node instead"
        )
    chosen = []
    for each in found:
        if each.name in apart and each not in others:
            chosen.append(replace(each.witness, client=""))
        elif each not in others:
            chosen.append(each.witness)
    return chosen


def _find_unrecorded(trained: Sequence[Found], record: Record) -> list[Found]:
    """Return the witnesses of clients that are not in the record; all of them are those of another run."""
    # In a record of some rounds a client may be missing that trained in others.
    if record.keep.every != 1:
        return []
    others = [each for each in trained if each.witness.node not in record.nodes]
    if others and others == trained:
        raise ConfigError(
            f"{record.path} has none of the {len(others)} nodes of the witnesses, such as "
            f"{short(others[0].witness.node, 60)}: they belong to another run"
        )
    return others


def _find_namesakes(found: Sequence[Found], record: Record) -> set[str]:
    """Return the names that several clients have: nodes on several machines, or such as took part side by side.

    Otherwise several nodes of one name are one client, which was started again.
    """
    nodes = {each.witness.node for each in found}
    alike = set()
    for name, count in Counter(each.name for each in found).items():
        group = [each for each in found if each.name == name]
        of_group = {each.witness.node for each in group}
        # Two nodes in one round are two clients, whatever they call themselves.
        together = any(len(of_group & {*round_.sampled}) > 1 for round_ in record)
        if count > 1 and (together or len({each.folder for each in group}) > 1):
            alike.add(name)
        # A client whose name is another client's node would be taken for it.
        if name in nodes - of_group:
            alike.add(name)
    return alike
