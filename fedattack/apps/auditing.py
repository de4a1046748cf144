"""Run somebody's Flower app under witnesses, and attack what its server saw."""

import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.apps import superlink
from fedattack.apps.app import App
from fedattack.apps.asking import asker
from fedattack.apps.control import control
from fedattack.apps.outside import observe_command, whole_rounds, wrap_app
from fedattack.apps.place import copy_files
from fedattack.apps.posing import FEW, Posed, pose
from fedattack.apps.questions import Questions
from fedattack.attacks import ATTACKS, Attack, Knowledge
from fedattack.attacks.registry import threats
from fedattack.audit.finding import ERROR
from fedattack.audit.judge import judge_of
from fedattack.audit.reach import Prepared
from fedattack.audit.truth import Truth, read_truth
from fedattack.audit.untried import VIEWS, lacking
from fedattack.base.errors import ConfigError, FedAttackError, RunError, short
from fedattack.base.files import make_private, sigterm_raises
from fedattack.record import Record, project_record
from fedattack.record.folder import Part, new_parts, read_study, write_study
from fedattack.record.format import INDEX
from fedattack.runs.asked import known_to
from fedattack.runs.deployment import Deployment
from fedattack.runs.forecast import needed_of
from fedattack.runs.pipeline import attack_folder
from fedattack.runs.runtime import Runtime
from fedattack.runs.simulator import Simulator
from fedattack.runs.watch import Watch
from fedattack.witness import Witness, read_witnesses

WITNESS = "witness"
"""Folder of a run folder that witnesses write in; no attack reads it."""

# Examples of each role that are kept of all clients, and of one: all of them are read at once.
_KEPT, _KEPT_LEAST, _KEPT_MOST = 10_000, 50, 1000

_FIRST = ("sia", "membership")
_LAST = ("labels", "tokens", "plaintext")
_INVERSION = "inversion"
_SUMS = "aggregate"

# Scores that stand beside those of others, and have no question of their own.
_BESIDE = {"attribute": "attribute-baselines"}

# Options by which an audit of an app takes minutes less, and finds hardly less; the guide has what was measured.
_SPARING = {"ara": {"restarts": 1}, "membership": {"shadow_rounds": 10}}

# Kinds of messages of which a line says that they are not recorded.
_FEW_GAPS = 2

_UNASKED = "nobody asked whether embeddings give a party's columns back, or gradients a label to a party"

# Attacks that take minutes are not made where no outcome could be a leak.
_LONG = ("prolin", "private-attribute")


def _simulator(app: Path, clients: int, log: Path) -> Runtime:
    return Simulator(app, supernodes=clients, log=log)


def _processes(app: Path, clients: int, log: Path, *, secure: bool = True) -> Runtime:
    return Deployment(app, supernodes=clients, secure=secure, log=log)


RUNTIMES: Mapping[str, Callable[[Path, int, Path], Runtime]] = {
    "simulation": _simulator,
    "processes": _processes,
    "processes-insecure": partial(_processes, secure=False),
    superlink.SUPERLINK: superlink.remote,
}
"""What an app can run on."""


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


def too_few(clients: int) -> str:
    """Say, before a run, that with so few clients no owner can be named beyond accident; empty if there are enough."""
    names = tuple(map(str, range(clients)))
    counts = np.zeros((clients, 1), dtype=np.int64)
    nothing = np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)
    truth = Truth(names, ("all",), counts, np.array(names), nothing, nodes={}, targets="")
    judge, needed = judge_of(_FIRST[0]), needed_of(len(_FIRST))
    reach = judge.reach([Prepared(truth, Knowledge())], needed) if judge is not None else None
    if reach is None or reach.least <= needed:
        return ""
    outcome = "hardly any" if reach.least <= ERROR else "no"
    return (
        f"{outcome} outcome of {_FIRST[0]} can be a leak: with {clients} clients p is {reach.least:.2g} at best, and "
        f"{needed:.2g} is needed; take {reach.enough}, by --supernodes"
    )


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
        _check_answers(part)
        if app.command is None and on == superlink.SUPERLINK:
            superlink.check_witnessed(Record(part.record), witness_of(part), watch)
    study: dict[str, Any] = {"commands": [command], "seeds": [*seeds], "started": started, "finished": _now()}
    study["app"] = app.folder.name
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
        why = _advised(short(result.client_error, 200))
        if (part.record / "manifest.json").exists() and Record(part.record).silence:
            raise RunError(f"{part.label}: no client answered in any round: {why}")
        watch.say("warning", f"a client failed: {why}")
    whole_rounds(part.record)


def _check_answers(part: Part) -> None:
    """Look whether clients answered what is recorded.

    Raises
    ------
    RunError
        If none did.
    """
    record = Record(part.record)
    if not len(record):
        raise RunError(f"{part.label}: the server sent no training message{_beside_training(record)}")
    if record.silence:
        statuses = {seen.status for round_ in record for seen in round_.observations}
        beside = _beside_training(record) if statuses == {"missing"} else ""
        raise RunError(f"{part.label}: {_advised(record.silence)}{beside}")


def _beside_training(record: Record) -> str:
    """Say what passed beside training, and which questions about it nobody asks; empty if nothing passed."""
    types = dict.fromkeys(others.type for others in record.others)
    said = [short(gap, 120) for gap in record.gaps[:_FEW_GAPS]]
    if types:
        said.insert(0, f"of {short(', '.join(types), 60)} what was in plaintext is recorded")
    if any(entry["way"] == "reply" and entry["arrays"] for entry in record.unrecorded):
        said.append(_UNASKED)
    return "".join(f"; {line}" for line in said)


def _advised(why: str) -> str:
    """Add what to do where clients, and not the server, have an environment that lacks fedattack."""
    if f"No module named '{__name__.partition('.')[0]}" not in why:
        return why
    return f"{why}; clients note what they train on by fedattack: call `pip install fedattack` where they run"


def witness_of(part: Part) -> Path:
    """Return where a run's witnesses write."""
    return part.folder / WITNESS / part.name


def witnesses_of(part: Part) -> list[Witness]:
    """Read what was witnessed of a run; nothing where no client was."""
    folder = witness_of(part)
    return read_witnesses(folder) if folder.exists() else []


def pose_all(
    parts: Sequence[Part],
    *,
    model: str | None = None,
    loss: str | None = None,
    seed: int = 0,
    asked: Questions | None = None,
    app: App | None = None,
    watch: Watch | None = None,
) -> list[Posed]:
    """Write truth and knowledge of all runs from what was witnessed.

    Parameters
    ----------
    model, loss
        Taken in the place of what was witnessed.
    app, watch
        What is asked for losses where the attacker can build no model, and who is told of the progress.

    Raises
    ------
    FedAttackError
        If nothing was witnessed that can be asked about, or clients send no numbers.
    """
    posed = []
    for part in parts:
        if what := _what_is_sent(Record(part.record)):
            raise RunError(
                f"{part.label}: clients send {what}, and no attack reads them"
                + (
                    _beside_training(Record(part.record))
                    or "; it would take arrays of numbers that a model of PyTorch has"
                )
            )
        witnesses, ask = witnesses_of(part), asker(app, watch)
        posed.append(pose(part, witnesses, model=model, loss=loss, seed=seed, asked=asked, ask=ask))
    return posed


def _what_is_sent(record: Record) -> str:
    """Say what clients send in the place of weights; empty if they send arrays of numbers, or it is not known."""
    # A server behind secure aggregation sees no replies.
    if record.view == _SUMS or record.silence:
        return ""
    for round_ in record:
        for reply in round_.observations:
            if reply.status == "ok" and reply.arrays:
                kinds = {(array.dtype, array.ndim) for array in reply.arrays.values()}
                return "bytes, such as the trees of XGBoost" if kinds == {(np.dtype(np.uint8), 1)} else ""
    plain = any(reply.metrics for round_ in record for reply in round_.observations)
    return "metrics and settings without arrays" if plain else "empty replies to training messages"


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
    spared: dict[str, str] = {}
    for attack in choose(_that_apply(parts, posed, failed)):
        if attack.name == _INVERSION:
            attack = attack.with_options({"clients": ",".join(posed[0].few)})
        sparing = _sparing(attack, len(Record(parts[0].record, thinned=True)))
        if sparing:
            attack = attack.with_options(sparing)
            watch.say(
                "note", f"{attack.name}: {_as_options(sparing)}, as apps are audited; a larger number takes longer"
            )
        try:
            if Record(parts[0].record, thinned=True).view in attack.needs.views:
                _attack(attack, parts[0].folder, trusted, device, watch)
            else:
                _attack_sums(attack, parts, trusted, device, watch)
        except FedAttackError as cause:
            failed[attack.name] = str(cause)
            watch.say("warning", f"{attack.name} was not made: {short(str(cause), 300)}")
            continue
        scored.append(attack.name)
        spared |= sparing
    if not scored:
        tried = [name for name in _FIRST if name in failed] or [*failed]
        reasons = "; ".join(f"{name}: {failed[name]}" for name in tried)
        raise RunError(f"no attack could be made of {parts[0].record}: {reasons}")
    untried = _untried(scored, failed, parts[0], posed)
    # The report begins with the first of them.
    folder = parts[0].folder
    study = {**read_study(folder), "attacks": scored, "untried": untried}
    # Whoever attacks the run again does so likewise, and asks about the same clients.
    options = spared | study.get("options", {})
    if _INVERSION in scored:
        options["clients"] = ",".join(posed[0].few)
    if options:
        study["options"] = options
    write_study(folder, study)
    return Attacked(tuple(scored), failed, frozenset(trusted))


def control_all(app: App, parts: Sequence[Part], attacked: Attacked, watch: Watch) -> None:
    """Find out whether attacks that show nothing would have seen a leak, and note it for the report."""
    found = control(app, parts, [witnesses_of(part) for part in parts], attacked.trusted, watch)
    write_study(parts[0].folder, {**read_study(parts[0].folder), "controls": found})


def _sparing(attack: Attack, rounds: int) -> dict[str, str]:
    """Return the options of :data:`_SPARING` that the caller did not choose, and that make a difference."""
    sparing = {}
    for key, value in _SPARING.get(attack.name, {}).items():
        if getattr(attack, key) is None and (key != "shadow_rounds" or value < rounds):
            sparing[key] = str(value)
    return sparing


def _as_options(options: Mapping[str, str]) -> str:
    return " ".join(f"--option {key}={value}" for key, value in options.items())


def _attack(attack: Attack, folder: Path, trusted: Collection[str], device: str, watch: Watch) -> None:
    attack_folder(attack, folder, device=device, knowledge=lambda part: known_to(part, trusted), watch=watch)


def _attack_sums(attack: Attack, parts: Sequence[Part], trusted: Collection[str], device: str, watch: Watch) -> None:
    """Attack what a server behind secure aggregation would have seen of the same runs."""
    for part in parts:
        what = f"{attack.name} on {part.name or 'the record'}"
        with tempfile.TemporaryDirectory(prefix="fa-") as folder:
            scores = attack.run(
                project_record(Record(part.record), Path(folder) / "record"),
                known_to(part, trusted),
                device=device,
                progress=lambda done, total, what=what: watch.step(what, done, total),  # type: ignore[misc]
            )
        note = f"{attack.name} was given sums alone, computed from the replies as if secure aggregation had been on"
        replace(scores, notes=(note, *scores.notes)).save(part.scores(attack.name))


def _that_apply(parts: Sequence[Part], posed: Sequence[Posed], failed: dict[str, str]) -> list[str]:
    """List the attacks whose needs are met, what each threat is asked by first; notes why one is left out."""
    record, knowledge, names = Record(parts[0].record, thinned=True), posed[0].knowledge, []
    for threat in threats().values():
        asked = [name for name in threat.judges if not _lacks(name, record, knowledge)]
        if asked and threat.name in _BESIDE:
            asked.append(_BESIDE[threat.name])
        names += asked
    if _INVERSION in names and (len(posed) > 1 or not posed[0].few):
        names.remove(_INVERSION)
        failed[_INVERSION] = (
            f"it is tried on clients of {FEW} examples or fewer, in one run, beside examples that nobody trained on"
        )
    for name in _LONG:
        if name in names and (why := _out_of_reach(name, parts, posed)):
            names.remove(name)
            failed[name] = why
    return sorted(names, key=_place_of)


def _place_of(name: str) -> tuple[int, int, str]:
    """Return by what attacks are sorted: the report begins with the first of them."""
    first = _FIRST.index(name) if name in _FIRST else len(_FIRST)
    last = _LAST.index(name) + 1 if name in _LAST else 0
    return first, last, name


def _lacks(name: str, record: Record, knowledge: Knowledge) -> list[str]:
    """Say what an attack lacks; a property is asked of sums, which single replies make."""
    missing = lacking(ATTACKS[name], record, knowledge)
    if name == "prolin" and record.view != _SUMS:
        missing = [line for line in missing if line != VIEWS[_SUMS]]
    return missing


def _out_of_reach(name: str, parts: Sequence[Part], posed: Sequence[Posed]) -> str:
    """Say why no outcome of an attack could be a leak; empty if one could."""
    judge = judge_of(name)
    prepared = [Prepared(read_truth(part.truth), each.knowledge) for part, each in zip(parts, posed, strict=True)]
    reach = judge.reach(prepared, ERROR) if judge is not None else None
    if reach is None or reach.least <= ERROR:
        return ""
    return f"with {reach.size} no outcome could be a leak (p is {reach.least:.2g} at best); {reach.enough} would do"


def _untried(scored: Sequence[str], failed: Mapping[str, str], part: Part, posed: Sequence[Posed]) -> dict[str, str]:
    """Say of each threat that was not asked why, and what it would take, as the terminal and the page show it."""
    record, found = Record(part.record, thinned=True), {}
    for threat in threats().values():
        if {*threat.attacks} & {*scored}:
            continue
        declared = [each.reasons[threat.name] for each in posed if threat.name in each.reasons]
        tried = [failed[name] for name in threat.attacks if name in failed]
        if declared or tried:
            found[threat.name] = (declared or tried)[0]
            continue
        missing = min((_lacks(name, record, posed[0].knowledge) for name in threat.judges), key=len, default=[])
        if missing:
            found[threat.name] = "; ".join(missing) + _remedy(threat.name, posed[0].knowledge)
    return found


def _remedy(threat: str, knowledge: Knowledge) -> str:
    """Say what would make a threat's attacks apply, or that nothing would."""
    structure, targets, model = knowledge.structure(), knowledge.targets, knowledge.model
    if targets is None or model is None:
        return ""
    if threat == "attribute":
        if structure:
            return "; it is asked of tables alone"
        if targets.x.ndim != 2:
            return f"; it is asked of tables alone, and the model takes examples of shape {targets.x.shape[1:]}"
        return "; it would take --sensitive NUMBER, a column of the model's input"
    if threat == "property" and (targets.y.dtype.kind == "f" or model.classes == 1):
        return "; it is asked of classes alone, and these examples have none"
    held_out = "" if knowledge.auxiliary is not None else ", and clients that evaluate on examples of their own"
    remedies = {
        "property": f"--property CLASS, of which some clients hold examples and others do not{held_out}",
        "group": f"--groups FILE.toml, which says which clients belong together{held_out}",
    }
    if not structure:
        remedies["inversion"] = "clients of few examples that train by plain SGD, and somebody who evaluates on others"
    return f"; it would take {remedies[threat]}" if threat in remedies else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
