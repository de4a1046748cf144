"""Run somebody's Flower app under witnesses, and attack what its server saw."""

import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.apps import superlink
from fedattack.apps.app import App
from fedattack.apps.asking import Asker
from fedattack.apps.control import control
from fedattack.apps.outside import count_rounds, observe_command, wrap_app
from fedattack.apps.place import copy_files
from fedattack.apps.posing import FEW, Posed, pose
from fedattack.apps.questions import Questions
from fedattack.attacks import ATTACKS, Attack, Knowledge, ModelKnowledge
from fedattack.attacks.needs import InApps
from fedattack.attacks.registry import THREATS
from fedattack.audit.evidence import UNANSWERED
from fedattack.audit.finding import ERROR
from fedattack.audit.judge import judge_of
from fedattack.audit.reach import Prepared
from fedattack.audit.truth import Truth, read_truth
from fedattack.audit.untried import VIEWS, lacking
from fedattack.base.errors import (
    ConfigError,
    DataError,
    FedAttackError,
    NeedsError,
    RecordError,
    RunError,
    TrustError,
    in_command,
    short,
)
from fedattack.base.files import sigterm_raises, write_sealed
from fedattack.base.untrusted import check_folder, read_sealed, remove_inside
from fedattack.record import Record, project_record
from fedattack.record.folder import STUDY, Part, find_parts, new_parts, read_study, write_study
from fedattack.runs.asked import known_to
from fedattack.runs.code import note_code, read_code
from fedattack.runs.forecast import needed_of
from fedattack.runs.pipeline import attack_folder, list_unscored
from fedattack.runs.running import (
    check_clients,
    check_free,
    check_idle,
    is_recorded,
    lock_folder,
    new_folder,
    now,
    open_log,
    run_in_turn,
)
from fedattack.runs.runtimes import RUNTIMES, SUPERLINK
from fedattack.runs.watch import Watch
from fedattack.threats.trees.replies import holds_trees
from fedattack.witness import HoldOut, Witness, WitnessedModel, read_witnesses

WITNESS = "witness"
"""Folder of a run folder that witnesses write in; no attack reads it."""

# Examples of each role that are kept of all clients, and of one: all of them are read at once.
_KEPT, _KEPT_LEAST, _KEPT_MOST = 10_000, 50, 1000

_SUMS = "aggregate"

# What every app is asked first, and among how many headlines.
_FIRST, _HEADLINES = "sia", 2

# Kinds of messages of which a line says that they are not recorded.
_FEW_GAPS = 2

_OF_QUERIES = (
    "Do the embeddings that a party sends give its columns back?",
    "Do the gradients that a party is sent give labels to it?",
)
"""What nobody asks of arrays in replies to queries."""

# Beside the witnesses of a run: that its truth and knowledge are written, and what else was found out meanwhile.
_POSED = "posed.json"

_Line = Annotated[str, StringConstraints(max_length=10_000)]


@with_config(ConfigDict(extra="forbid", strict=True))
class _PosedEntry(TypedDict):
    few: list[_Line]
    notes: list[_Line]
    assumed: list[_Line]
    reasons: dict[_Line, _Line]


_POSED_ENTRY: TypeAdapter[_PosedEntry] = TypeAdapter(_PosedEntry)


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

    for kind, name, known in (("model", model, MODELS), ("loss", loss, LOSSES)):
        if name is not None and name not in known:
            import_callable(name, what=kind, known=known)


def too_few(clients: int) -> str:
    """Say, before a run, that with so few clients no owner can be named beyond accident; empty if there are enough."""
    names = tuple(map(str, range(clients)))
    counts = np.zeros((clients, 1), dtype=np.int64)
    nothing = np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64)
    truth = Truth(names, ("all",), counts, np.array(names), nothing, nodes={}, targets="")
    judge, needed = judge_of(_FIRST), needed_of(_HEADLINES)
    reach = judge.reach([Prepared(truth, Knowledge())], needed) if judge is not None else None
    if reach is None or reach.least <= needed:
        return ""
    outcome = "hardly any" if reach.least <= ERROR else "no"
    return (
        f"{outcome} outcome of {_FIRST} can be a leak: with {clients} clients p is {reach.least:.2g} at best, and "
        f"{needed:.2g} is needed; take {reach.enough}, by --supernodes"
    )


def find_stopped(app: App, out: Path, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """Read what a run was with which the same command goes on; nothing if the run folder is new.

    Raises
    ------
    ConfigError
        If there is something else in ``out``, or the run of another app, other seeds or another command.
    """
    out = out.expanduser().absolute()
    study = read_study(out) if out.is_dir() else {}
    if "app" not in study:
        check_free(out)
        return {}
    check_folder(out, RecordError, to_write=True)
    wanted = {"app": app.folder.name, "seeds": [*seeds], "commands": [command], "code": app.code}
    for key, title in (("app", "app"), ("seeds", "seeds"), ("commands", "command"), ("code", "code of the app")):
        if study.get(key) != wanted[key]:
            got = "it was changed since" if key == "code" else f"got {short(str(wanted[key]), 80)}"
            raise ConfigError(
                f"{out} holds a run of another {title} and goes on by the command that began it alone, which {STUDY} "
                f"there names: expected {short(str(study.get(key)), 80)}, {got}; give this run a folder of its own"
            )
    return study


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
    """Run a copy of an app, once for each seed, observed and witnessed, into the run folder ``out``.

    A run that the same command began goes on: seeds that are recorded whole are left alone, others are run anew.

    Parameters
    ----------
    on
        One of :data:`fedattack.runs.runtimes.RUNTIMES`; of no effect where the caller gave the command that runs the
        app.
    command
        The command line that does all this, kept for the report.
    options
        Options of the attacks that are to follow, kept for whoever makes them again.

    Raises
    ------
    ConfigError
        If ``out`` is taken, holds another run, or another is at work in it.
    RunError
        If a run does not finish.
    """
    out = out.expanduser().absolute()
    is_stopped = bool(find_stopped(app, out, seeds, command))
    parts = new_parts(out, seeds)
    study: dict[str, Any] = {"commands": [command], "seeds": [*seeds], "started": now(), "recorded": []}
    study |= {"app": app.folder.name, "code": app.code}
    if options:
        study["options"] = dict(options)
    if app.command is None:
        study["runtime"] = on
    with lock_folder(out) if is_stopped else new_folder(out):
        if is_stopped:
            before = read_study(out)
            study |= {key: before[key] for key in ("started", "recorded") if key in before}
        left = []
        for part, seed in zip(parts, seeds, strict=True):
            check_idle(part)
            if _is_whole(part, seed, study):
                _check_code(part)
            else:
                left.append((part, seed))
        for part, _ in left:
            for folder in (part.record, witness_of(part), part.truth, part.knowledge, out / "scores" / part.name):
                remove_inside(out, folder, ConfigError)
        if left:
            write_study(out, study)
            runs = [([part], partial(_run, app, out, study, part, seed, watch)) for part, seed in left]
            run_in_turn(out, study, runs, None, watch)
    return parts


def _held_out(app: App, seed: int) -> HoldOut | None:
    return HoldOut(app.hold_out, seed) if app.hold_out else None


def _check_code(part: Part) -> None:
    """Refuse code that a run's witnesses name, unless they named it when this machine ran it: the folder is data."""
    for name in sorted(_code_of(witness.model for witness in witnesses_of(part)) - read_code(part.folder)):
        raise TrustError(
            f"{witness_of(part)} names {short(name, 80)}, which would be imported, and did not when this machine ran "
            f"the app; `fedattack gather {in_command(part.folder)} {in_command(witness_of(part))} --out DIR` says how "
            "to trust it"
        )


def _code_of(models: Iterable[WitnessedModel | ModelKnowledge | None]) -> set[str]:
    """Return the import paths of models and of their losses."""
    code: set[str] = set()
    for model in models:
        if model is not None:
            code |= {str(name) for name in (model.spec, model.loss) if name is not None and ":" in str(name)}
    return code


def _is_whole(part: Part, seed: int, study: Mapping[str, Any]) -> bool:
    """Whether a seed is recorded to its end; what a SuperLink was asked to stop may look like it."""
    return is_recorded(part) and (study.get("runtime") != SUPERLINK or seed in study.get("recorded", ()))


def _run(
    app: App, out: Path, study: dict[str, Any], part: Part, seed: int, watch: Watch, advance: Callable[[], None]
) -> None:
    on, client_error = study.get("runtime", ""), None
    if app.server:
        client_error = _run_departing(app, out, part, seed, on, watch, advance)
    elif app.command is None:
        client_error = _run_copy(app, out, part, seed, on, advance)
    else:
        advance()
        observe_command(
            app.command.words,
            part.record,
            {},
            witness=witness_of(part),
            hold_out=_held_out(app, seed),
            stdout=sys.stderr.fileno(),
        )
    advance()
    _check_answers(part, client_error, watch)
    if on == SUPERLINK:
        superlink.check_witnessed(Record(part.record), witness_of(part), watch)
    note_code(out, _code_of(witness.model for witness in witnesses_of(part)))
    study["recorded"].append(seed)
    write_study(out, study)


def _run_departing(
    app: App, out: Path, part: Part, seed: int, on: str, watch: Watch, advance: Callable[[], None]
) -> str | None:
    """Run a copy of an app with an active server, which learns what to send from a run with an honest one.

    Raises
    ------
    ConfigError
        If the model does not allow it.
    """
    from fedattack.apps.departing import Plan

    with tempfile.TemporaryDirectory(prefix="fa-") as folder:
        watch.say("note", f"--server {app.server}: an honest run comes first, which shows the clients' model")
        (honest,) = new_parts(Path(folder), [seed])
        _check_answers(honest, _run_copy(app, out, honest, seed, on, advance), watch)
        try:
            (posed,) = pose_all([honest])
        except FedAttackError as cause:
            raise ConfigError(f"--server {app.server} needs to know the clients' model: {cause}") from None
        plan = Path(folder) / "plan.safetensors"
        Plan.of(app.server, Record(honest.record), posed.knowledge, seed).write(plan)
        return _run_copy(app, out, part, seed, on, advance, plan)


def _run_copy(
    app: App, out: Path, part: Part, seed: int, on: str, advance: Callable[[], None], plan: Path | None = None
) -> str | None:
    """Run a copy of an app, by a plan with an active server; returns what a client failed by."""
    server: dict[str, Any] = {} if plan is None else {"server": app.server, "facts": {"departures": 1}}
    config = dict(app.config) | ({"seed": seed} if app.seeded and "seed" not in app.config else {})
    with sigterm_raises(), tempfile.TemporaryDirectory(prefix="fa-") as folder:
        copy, place = Path(folder) / app.folder.name, Path(folder) / "cwd"
        keep = min(max(_KEPT // app.supernodes, _KEPT_LEAST), _KEPT_MOST)
        held_out = _held_out(app, seed)
        wrap_app(app.folder, copy, part.record, server, witness_of(part), keep, out.resolve(), held_out, plan)
        copy_files(app.folder, place, without=out.resolve())
        with RUNTIMES[on](copy, app.supernodes, app.device, open_log(out)) as runner:
            # As where the app itself would run: relative paths mean the same, and what it writes is not the owner's.
            runner.cwd = place
            return runner.run(config, on_poll=advance)


def _check_answers(part: Part, client_error: str | None, watch: Watch) -> None:
    """Look whether the run ended in good order, and clients answered what is recorded.

    Raises
    ------
    RunError
        If not.
    """
    check_clients(part, client_error, watch, explain=_explain)
    count_rounds(part.record)
    record = Record(part.record)
    if not len(record):
        raise RunError(f"{part.label}: the server sent no training message{_beside_training(record)}")


def _explain(problem: str, record: Record | None) -> str:
    """Add to why clients failed what to do, and to why none answered in a record what passed besides."""
    # Clients, and not the server, may have an environment that lacks fedattack.
    if f"No module named '{__name__.partition('.')[0]}" in problem:
        problem += "; clients note what they train on by fedattack: call `pip install fedattack` where they run"
    if record is None:
        return problem
    statuses = {seen.status for round_ in record for seen in round_.observations}
    return problem + (_beside_training(record) if statuses == {"missing"} else "")


def note_unanswered(out: Path, why: str) -> bool:
    """Note, for the page, why no question could be answered; returns whether there is a run that it can be said of."""
    try:
        parts = find_parts(out)
        records = [Record(part.record, thinned=True) for part in parts]
    except FedAttackError:
        return False
    untried = dict.fromkeys(THREATS, "no attack was made, for the reason above")
    if any(_has_arrays_of_queries(record) for record in records):
        untried |= dict.fromkeys(
            _OF_QUERIES, "fedattack has no attack on what clients of vertical or split learning send"
        )
    write_study(out, {**read_study(out), "attacks": [], "untried": untried, UNANSWERED: short(why, 500)})
    return True


def _has_arrays_of_queries(record: Record) -> bool:
    return any(entry["way"] == "reply" and entry["arrays"] for entry in record.unrecorded)


def _beside_training(record: Record) -> str:
    """Say what passed beside training, and which questions about it nobody asks; empty if nothing passed."""
    types = dict.fromkeys(others.type for others in record.others)
    said = [short(gap, 120) for gap in record.gaps[:_FEW_GAPS]]
    if types:
        said.insert(0, f"of {short(', '.join(types), 60)} what was in plaintext is recorded")
    if _has_arrays_of_queries(record):
        said.append("nobody asked whether these arrays give a party's columns or labels back")
    return "".join(f"; {line}" for line in said)


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
    asked: Questions | None = None,
    app: App | None = None,
    watch: Watch | None = None,
) -> list[Posed]:
    """Write truth and knowledge of all runs from what was witnessed; where that is done, it is read.

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
        if (witness_of(part) / _POSED).exists():
            posed.append(_read_posed(part, {*read_code(part.folder), *filter(None, (model, loss))}))
            continue
        if kind := _what_is_sent(Record(part.record)):
            raise NeedsError(
                f"{part.label}: clients send {kind}, and no attack reads them"
                + (
                    _beside_training(Record(part.record))
                    or "; it would take arrays of numbers that a model of PyTorch has"
                )
            )
        for half in (part.truth, part.knowledge):
            remove_inside(part.folder, half, ConfigError)
        witnesses, ask = witnesses_of(part), None if app is None else Asker(app, watch)
        found = pose(part, witnesses, model=model, loss=loss, asked=asked, ask=ask)
        entry = {"few": found.few, "notes": found.notes, "assumed": found.assumed, "reasons": dict(found.reasons)}
        note_code(part.folder, _code_of([found.knowledge.model]))
        write_sealed(witness_of(part) / _POSED, entry)
        posed.append(found)
    return posed


def _read_posed(part: Part, trusted: Collection[str]) -> Posed:
    """Read what was posed before the audit was stopped."""
    entry = read_sealed(witness_of(part) / _POSED, _POSED_ENTRY, DataError, "delete it, and give the command again")
    known = known_to(part, trusted)
    for asked in known.asks():
        raise asked.refuse()
    return Posed(known, tuple(entry["few"]), tuple(entry["notes"]), tuple(entry["assumed"]), entry["reasons"])


def _what_is_sent(record: Record) -> str:
    """Say what clients send in the place of weights; empty if they send arrays of numbers, or it is not known."""
    # A server behind secure aggregation sees no replies.
    if record.view == _SUMS or record.silence:
        return ""
    for round_ in record:
        for reply in round_.observations:
            if reply.status == "ok" and reply.arrays:
                kinds = {(array.dtype, array.ndim) for array in reply.arrays.values()}
                if kinds != {(np.dtype(np.uint8), 1)} or holds_trees(record):
                    return ""
                return "bytes, such as the trees of XGBoost in another form than JSON"
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
    NeedsError
        If none could be made.
    """
    trusted: set[str] = set()
    for each in posed:
        if each.knowledge.model is not None:
            trusted |= {str(each.knowledge.model.spec), str(each.knowledge.model.loss)}
    failed: dict[str, str] = {}
    scored = []
    spared: dict[str, str] = {}
    rounds = len(Record(parts[0].record, thinned=True))
    for attack in choose(_that_apply(parts, posed, failed)):
        if attack.in_apps.of_few:
            attack = attack.with_options({"clients": ",".join(posed[0].few)})
        sparing = _sparing(attack, rounds)
        if sparing:
            attack = attack.with_options(sparing)
            watch.say(
                "note", f"{attack.name}: {_as_options(sparing)}, as apps are audited; a larger number takes longer"
            )
        if why := _make(attack, parts, trusted, device, watch):
            failed[attack.name] = why
            continue
        scored.append(attack.name)
        spared |= sparing
    if not scored:
        raise NeedsError(f"no attack could be made of {parts[0].record}: {_join_reasons(failed)}")
    untried = _list_not_asked(scored, failed, parts[0], posed)
    # The report begins with the first of them.
    folder = parts[0].folder
    study = {**read_study(folder), "attacks": scored, "untried": untried}
    study.pop(UNANSWERED, None)
    # Whoever attacks the run again does so likewise, and asks about the same clients.
    options = spared | study.get("options", {})
    if any(ATTACKS[name].in_apps.of_few for name in scored):
        options["clients"] = ",".join(posed[0].few)
    if options:
        study["options"] = options
    write_study(folder, study)
    return Attacked(tuple(scored), failed, frozenset(trusted))


def _join_reasons(failed: Mapping[str, str]) -> str:
    """Say why the attacks that come first in a report could not be made, or all if these were none of them."""
    by_place = sorted(failed, key=lambda name: ATTACKS[name].in_apps.place)
    tried = [name for name in by_place if ATTACKS[name].in_apps.place < InApps().place] or by_place
    return "; ".join(f"{name}: {failed[name]}" for name in tried)


def control_all(app: App, parts: Sequence[Part], attacked: Attacked, watch: Watch) -> None:
    """Find out whether attacks that show nothing would have seen a leak, and note it for the report, once."""
    if "controls" in read_study(parts[0].folder):
        return
    found = control(app, parts, [witnesses_of(part) for part in parts], attacked.trusted, watch)
    noted = {attack: vars(one) for attack, one in found.items()}
    write_study(parts[0].folder, {**read_study(parts[0].folder), "controls": noted})


def _sparing(attack: Attack, rounds: int) -> dict[str, str]:
    """Return the options of audits of apps that the caller did not choose, and that make a difference."""
    sparing = {}
    for key, value in attack.in_apps.options.items():
        if getattr(attack, key) is None and (key != "shadow_rounds" or value < rounds):
            sparing[key] = str(value)
    return sparing


def _as_options(options: Mapping[str, str]) -> str:
    return " ".join(f"--option {key}={value}" for key, value in options.items())


def _make(attack: Attack, parts: Sequence[Part], trusted: Collection[str], device: str, watch: Watch) -> str:
    """Attack all runs, unless that was done before the audit was stopped; returns why it cannot be done, if so."""
    if not list_unscored(parts, [attack.name]):
        return ""
    folder = parts[0].folder
    try:
        if Record(parts[0].record, thinned=True).view in attack.needs.views:
            attack_folder(attack, folder, device=device, knowledge=lambda part: known_to(part, trusted), watch=watch)
        else:
            _attack_sums(attack, parts, trusted, device, watch)
    except FedAttackError as cause:
        watch.say("warning", f"{attack.name} was not made: {short(str(cause), 300)}")
        return str(cause)
    return ""


def _attack_sums(attack: Attack, parts: Sequence[Part], trusted: Collection[str], device: str, watch: Watch) -> None:
    """Attack what a server behind secure aggregation would have seen of the same runs."""
    for part in parts:
        step = f"{attack.name} on {part.name or 'the record'}"
        with tempfile.TemporaryDirectory(prefix="fa-") as folder:
            scores = attack.run(
                project_record(Record(part.record), Path(folder) / "record"),
                known_to(part, trusted),
                device=device,
                progress=lambda done, total, step=step: watch.step(step, done, total),  # type: ignore[misc]
            )
        note = f"{attack.name} was given sums alone, computed from the replies as if secure aggregation had been on"
        replace(scores, notes=(note, *scores.notes)).save(part.scores(attack.name))


def _that_apply(parts: Sequence[Part], posed: Sequence[Posed], failed: dict[str, str]) -> list[str]:
    """List the attacks whose needs are met, what each threat is asked by first; notes why one is left out."""
    record, knowledge, names = Record(parts[0].record, thinned=True), posed[0].knowledge, []
    for threat in THREATS.values():
        asked = [name for name in threat.judges if not _lacks(name, record, knowledge)]
        for name in asked:
            if why := _not_made(name, parts, posed):
                failed[name] = why
            else:
                names.append(name)
        if asked:
            # What is judged beside others has no question of its own.
            names += [name for name in threat.attacks if name not in threat.judges]
    return sorted(names, key=lambda name: (ATTACKS[name].in_apps.place, name))


def _not_made(name: str, parts: Sequence[Part], posed: Sequence[Posed]) -> str:
    """Say why an attack whose needs are met is not made; empty if it is."""
    how = ATTACKS[name].in_apps
    if name in posed[0].reasons:
        return posed[0].reasons[name]
    if how.of_few and (len(posed) > 1 or not posed[0].few):
        return f"it is tried on clients of {FEW} examples or fewer, in one run, beside examples that nobody trained on"
    return _out_of_reach(name, parts, posed) if how.is_slow else ""


def _lacks(name: str, record: Record, knowledge: Knowledge) -> list[str]:
    """Say what an attack lacks; a property is asked of sums, which single replies make."""
    missing = lacking(ATTACKS[name], record, knowledge)
    if ATTACKS[name].in_apps.of_sums and record.view != _SUMS:
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


def _list_not_asked(
    scored: Sequence[str], failed: Mapping[str, str], part: Part, posed: Sequence[Posed]
) -> dict[str, str]:
    """Say of each threat that was not asked why, and what it would take, as the terminal and the page show it."""
    record, found = Record(part.record, thinned=True), {}
    for threat in THREATS.values():
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
