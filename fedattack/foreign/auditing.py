"""Run somebody's Flower app under witnesses, and attack what its server saw."""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedattack.audit.untried import lacking
from fedattack.errors import ConfigError, FedAttackError, RunError, short
from fedattack.files import make_private, sigterm_raises
from fedattack.folder import Part, new_parts, read_study, write_study
from fedattack.foreign.app import App
from fedattack.foreign.place import copy_files
from fedattack.foreign.posing import FEW, Posed, pose
from fedattack.record import Record
from fedattack.record.format import INDEX
from fedattack.runs.asked import known_to
from fedattack.runs.pipeline import attack_folder
from fedattack.runs.watch import Watch
from fedattack.runtime.base import Runtime
from fedattack.runtime.deployment import Deployment
from fedattack.runtime.outside import observe_command, whole_rounds, wrap_app
from fedattack.runtime.simulator import Simulator
from fedattack.threats import ATTACKS, Attack
from fedattack.threats.registry import threats
from fedattack.witness import read_witnesses

WITNESS = "witness"
"""Folder of a run folder that witnesses write in; no attack reads it."""

# Examples of each role that are kept of all clients, and of one: all of them are read at once.
_KEPT, _KEPT_LEAST, _KEPT_MOST = 10_000, 50, 1000

_FIRST = ("sia", "membership")
_INVERSION = "inversion"


def _simulator(app: Path, clients: int, log: Path) -> Runtime:
    return Simulator(app, supernodes=clients, log=log)


def _processes(app: Path, clients: int, log: Path) -> Runtime:
    return Deployment(app, supernodes=clients, log=log)


def _insecure(app: Path, clients: int, log: Path) -> Runtime:
    return Deployment(app, supernodes=clients, secure=False, log=log)


RUNTIMES: Mapping[str, Callable[[Path, int, Path], Runtime]] = {
    "simulation": _simulator,
    "processes": _processes,
    "processes-insecure": _insecure,
}
"""What an app can run on, so that its clients are witnessed on this machine."""


@dataclass(frozen=True)
class Attacked:
    """What could be asked of a run.

    Attributes
    ----------
    scored
        Attacks that have scores.
    failed
        By attack, why it ended without.
    trusted
        Import paths that the app itself gave.
    """

    scored: tuple[str, ...]
    failed: Mapping[str, str]
    trusted: frozenset[str]


@contextmanager
def importable(app: App) -> Iterator[None]:
    """Let the app's own modules be imported, as they are when it runs; nothing is written beside them."""
    sys.path.insert(0, str(app.folder))
    writes_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_nothing
        # The app's modules may have changed the list, too.
        with suppress(ValueError):
            sys.path.remove(str(app.folder))


def check_named(model: str | None, loss: str | None) -> None:
    """Look whether the model and the loss that the caller names are there, before a run that takes minutes.

    Raises
    ------
    ModelError
        If one of them cannot be imported.
    """
    from fedattack.learning import LOSSES, MODELS
    from fedattack.learning.importing import import_callable

    for what, name, known in (("model", model, MODELS), ("loss", loss, LOSSES)):
        if name is not None and name not in known:
            import_callable(name, what=what, known=known)


def check_free(out: Path) -> Path:
    """Return the absolute path of a folder that is absent or empty.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    out = out.expanduser().absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists already; give this run a folder of its own, or delete that one first")
    return out


def run_app(
    app: App,
    out: Path,
    seeds: Sequence[int],
    *,
    on: str,
    command: str,
    options: Mapping[str, str] | None = None,
    watch: Watch,
) -> list[Part]:
    """Run a copy of an app, once for each seed, observed and witnessed, into the new run folder ``out``.

    Parameters
    ----------
    on
        One of :data:`RUNTIMES`; of no effect where the caller gave the command that runs the app.
    command
        The command line that does all this, kept for the report.
    options
        Options of the attacks that are to follow, kept for whoever makes them again.

    Raises
    ------
    ConfigError
        If ``out`` is taken.
    RunError
        If a run does not finish, or no client answered in it.
    """
    out = check_free(out)
    make_private(out)
    out.chmod(0o700)
    parts = new_parts(out, seeds)
    started = _now()
    for part, seed in zip(parts, seeds, strict=True):
        if app.command is None:
            _run(app, out, part, seed, on, watch)
        else:
            watch.step("train", 0, None)
            observe_command(app.command.words, part.record, {}, witness=witness_of(part), stdout=sys.stderr.fileno())
        if silence := Record(part.record).silence:
            raise RunError(f"{part.label}: {silence}")
    study: dict[str, Any] = {"commands": [command], "seeds": [*seeds], "started": started, "finished": _now()}
    if options:
        study["options"] = dict(options)
    if app.command is None:
        study["runtime"] = on
    write_study(out, study)
    return parts


def _run(app: App, out: Path, part: Part, seed: int, on: str, watch: Watch) -> None:
    config = dict(app.config) | ({"seed": seed} if app.seeded and "seed" not in app.config else {})
    what, index = f"train {part.name or 'rounds'}", part.record / INDEX

    def advance() -> None:
        watch.step(what, index.read_bytes().count(b"\n") if index.exists() else 0, None)

    with sigterm_raises(), tempfile.TemporaryDirectory(prefix="fa-") as folder:
        copy, place = Path(folder) / app.folder.name, Path(folder) / "cwd"
        keep = min(max(_KEPT // app.supernodes, _KEPT_LEAST), _KEPT_MOST)
        wrap_app(app.folder, copy, part.record, {}, witness_of(part), keep, out.resolve())
        copy_files(app.folder, place, without=out.resolve())
        with RUNTIMES[on](copy, app.supernodes, out / "flower.log") as runner:
            # As where the app itself would run: relative paths mean the same, and what it writes is not the owner's.
            runner.cwd = place
            result = runner.run(config, on_poll=advance)
    if result.client_error is not None:
        if (part.record / "manifest.json").exists() and Record(part.record).silence:
            raise RunError(f"{part.label}: no client answered in any round: {short(result.client_error, 200)}")
        watch.say("warning", f"a client failed: {short(result.client_error, 200)}")
    whole_rounds(part.record)


def witness_of(part: Part) -> Path:
    """Return where a run's witnesses write."""
    return part.folder / WITNESS / part.name


def pose_all(parts: Sequence[Part], *, model: str | None = None, loss: str | None = None, seed: int = 0) -> list[Posed]:
    """Write truth and knowledge of all runs from what was witnessed.

    Parameters
    ----------
    model, loss
        Taken in the place of what was witnessed.

    Raises
    ------
    FedAttackError
        If nothing was witnessed that can be asked about, or clients send no numbers.
    """
    posed = []
    for part in parts:
        if _is_bytes(Record(part.record)):
            raise RunError(
                f"{part.record}: clients send bytes, such as the trees of XGBoost, and no attack reads them; it would "
                "take arrays of numbers that a model of PyTorch has"
            )
        folder = witness_of(part)
        witnesses = read_witnesses(folder) if folder.exists() else []
        posed.append(pose(part, witnesses, model=model, loss=loss, seed=seed))
    return posed


def _is_bytes(record: Record) -> bool:
    """Say whether what clients send are the bytes of a file, and no weights."""
    return bool(record.parameters) and all(
        parameter.dtype == "uint8" and len(parameter.shape) == 1 for parameter in record.parameters
    )


def attack_all(
    parts: Sequence[Part],
    posed: Sequence[Posed],
    choose: Callable[[Sequence[str]], Sequence[Attack]],
    device: str,
    watch: Watch,
) -> Attacked:
    """Make every attack whose needs are met.

    Parameters
    ----------
    choose
        Returns attacks by their names, with the caller's options.

    Raises
    ------
    RunError
        If none could be made.
    """
    trusted = {str(each.knowledge.model.spec) for each in posed if each.knowledge.model is not None}
    trusted |= {str(each.knowledge.model.loss) for each in posed if each.knowledge.model is not None}
    failed: dict[str, str] = {}
    scored = []
    for attack in choose(_that_apply(parts[0], posed, failed)):
        if attack.name == _INVERSION:
            attack = attack.with_options({"clients": ",".join(posed[0].few)})
        try:
            attack_folder(
                attack, parts[0].folder, device=device, knowledge=lambda part: known_to(part, trusted), watch=watch
            )
        except FedAttackError as cause:
            failed[attack.name] = str(cause)
            continue
        scored.append(attack.name)
    if not scored:
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise RunError(f"no attack could be made of {parts[0].record}: {reasons}")
    # The report begins with the first of them.
    folder = parts[0].folder
    study = {**read_study(folder), "attacks": scored}
    if _INVERSION in scored:
        # Whoever attacks the run again asks about the same clients.
        study["options"] = {**study.get("options", {}), "clients": ",".join(posed[0].few)}
    write_study(folder, study)
    return Attacked(tuple(scored), failed, frozenset(trusted))


def _that_apply(part: Part, posed: Sequence[Posed], failed: dict[str, str]) -> list[str]:
    """List the attacks whose needs are met, what each threat is asked by first; notes why one is left out."""
    record, names = Record(part.record, thinned=True), []
    for threat in threats().values():
        for name in threat.judges:
            if not lacking(ATTACKS[name], record, posed[0].knowledge):
                names.append(name)
    if _INVERSION in names and (len(posed) > 1 or not posed[0].few):
        names.remove(_INVERSION)
        failed[_INVERSION] = (
            f"it is tried on clients of {FEW} examples or fewer, in one run, beside examples that nobody trained on"
        )
    return sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
