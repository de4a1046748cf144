"""The stage `run` of an audit: a copy of somebody's app runs, observed and witnessed, once for each seed."""

import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fedattack.apps import superlink
from fedattack.apps.app import App
from fedattack.apps.order import Order
from fedattack.apps.outside import count_rounds, observe_command, read_app, wrap_app
from fedattack.apps.place import copy_files
from fedattack.apps.witnessing import check_code, describe_besides, list_code, remove_locks, witness_of, witnesses_of
from fedattack.base.errors import ConfigError, RecordError, RunError, short
from fedattack.base.untrusted import check_folder, remove_inside
from fedattack.record import Record
from fedattack.record.folder import STUDY, Part, new_parts, read_study, write_study
from fedattack.runs.code import note_app, note_code
from fedattack.runs.private import private_folder, sweep
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
from fedattack.witness import HoldOut

PlanDeparture = Callable[[str, Part, int, Path], None]
"""Plans what an active server sends, by its name, from a run with an honest one and its seed, into a file."""

# As Python says it of a module that cannot be imported.
_LACKING = re.compile(r"No module named '([\w.]+)'")

_IDENTITY = {
    "app": "another app",
    "seeds": "other seeds",
    "commands": "another command",
    "code": "another version of the app",
}
"""What a command has in common with the run that it goes on with, in the study, and how another one is called."""


def find_stopped(app: App, out: Path, seeds: Sequence[int], command: str) -> dict[str, Any]:
    """Read what a run was with which the same command goes on; nothing if the run folder is new.

    Raises
    ------
    ConfigError
        If there is something else in ``out``, or the run of another app, other seeds or another command.
    """
    out = out.expanduser().absolute()
    study: dict[str, Any] = {}
    if out.is_dir():
        study = read_study(out)
    if "app" not in study:
        check_free(out)
        return {}
    check_folder(out, RecordError, to_write=True)
    wanted = {"app": app.folder.name, "seeds": [*seeds], "commands": [command], "code": app.code}
    for key, title in _IDENTITY.items():
        if study.get(key) != wanted[key]:
            how = _describe_difference(key, study.get(key), wanted[key])
            raise ConfigError(
                f"{out} holds a run of {title}: {how}; give this run another folder, or continue that one "
                f"with the command that began it, which {STUDY} there names"
            )
    return study


def _describe_difference(key: str, before: Any, now: Any) -> str:
    """Say in what a command differs from the run that is there already."""
    if key == "code":
        return "the app's files have changed since it began"
    if key != "commands":
        return f"that one has {_list_plainly(before)}, this one {_list_plainly(now)}"
    ours, theirs = Counter(_split_words(now)), Counter(_split_words(before))
    said = []
    # In the order of each command: an option stands before its value.
    for what, words in (("adds", ours - theirs), ("leaves out", theirs - ours)):
        if words:
            said.append(f"{what} `{short(shlex.join(words.elements()), 60)}`")
    return f"this command {' and '.join(said or ['has the same words in another order'])}"


def _list_plainly(value: Any) -> str:
    if isinstance(value, list):
        return short(", ".join(map(str, value)), 60)
    return short(str(value), 60)


def _split_words(commands: Any) -> list[str]:
    """Split the first of several commands into words; one with an open quote stays whole."""
    command = next(iter(commands or ()), "")
    try:
        return shlex.split(command)
    except ValueError:
        return [command]


def run_app(app: App, order: Order, *, plan: PlanDeparture | None = None, watch: Watch) -> tuple[Part, ...]:
    """Run a copy of an app, once for each seed, observed and witnessed, into the run folder of an order.

    A run that the same command began goes on: seeds that are recorded whole are left alone, others are run anew.
    ``plan`` is asked what an active server sends. The command and the options of attacks are kept for the report, and
    for who attacks again.

    Raises
    ------
    ConfigError
        If ``out`` is taken, holds another run, or another is at work in it.
    RunError
        If a run does not finish.
    """
    out, seeds = order.out.expanduser().absolute(), order.seeds
    before = find_stopped(app, out, seeds, order.command)
    parts = new_parts(out, seeds)
    study: dict[str, Any] = {"commands": [order.command], "seeds": [*seeds], "started": now(), "recorded": []}
    study |= {"app": app.folder.name, "code": app.code}
    if app.numbers:
        study["config"] = dict(app.numbers)
    if order.options:
        study["options"] = dict(order.options)
    if app.command is None:
        study["runtime"] = order.on
    make_folder: Callable[[Path], Any] = new_folder
    if before:
        make_folder = lock_folder
    with make_folder(out):
        sweep(out)
        study |= {key: before[key] for key in ("started", "recorded") if key in before}
        left = []
        for part, seed in zip(parts, seeds, strict=True):
            check_idle(part)
            # Seeds that are whole are kept; others begin anew, as an app's state cannot be gone on with.
            if _is_whole(part, seed, study):
                check_code(part)
                continue
            for folder in (part.record, witness_of(part), part.truth, part.knowledge, out / "scores" / part.name):
                remove_inside(out, folder, ConfigError)
            left.append(([part], partial(_run, app, out, study, part, seed, plan, watch)))
        if left:
            # Before the first run, so that a killed audit can go on.
            write_study(out, study)
            run_in_turn(out, study, left, None, watch)
    return tuple(parts)


def _is_whole(part: Part, seed: int, study: Mapping[str, Any]) -> bool:
    """Whether a seed is recorded to its end; what a SuperLink was asked to stop may look like it."""
    return is_recorded(part) and (study.get("runtime") != SUPERLINK or seed in study.get("recorded", ()))


def _run(
    app: App,
    out: Path,
    study: dict[str, Any],
    part: Part,
    seed: int,
    plan: PlanDeparture | None,
    watch: Watch,
    advance: Callable[[], None],
) -> None:
    on = study.get("runtime", "")
    if app.server and plan is not None:
        client_error = _run_departing(app, out, part, seed, on, plan, watch, advance)
    elif app.command is None:
        client_error = _run_copy(app, out, part, seed, on, advance)
    else:
        client_error = None
        advance()
        with private_folder(out) as folder:
            observe_command(
                app.command.words,
                part.record,
                {},
                witness=witness_of(part),
                hold_out=_held_out(app, seed),
                stdout=sys.stderr.fileno(),
                folder=folder,
            )
    advance()
    _check_answers(part, client_error, watch)
    if on != SUPERLINK and app.command is None:
        # All of the run's processes have ended, and no client can wait for a file of these.
        remove_locks(witness_of(part))
    if on == SUPERLINK:
        superlink.check_witnessed(Record(part.record), witness_of(part), watch)
    note_code(out, list_code(witness.model for witness in witnesses_of(part)))
    note_app(out, app.folder, app.code)
    # Noted after all checks: a run that a SuperLink stopped may have a whole record.
    study["recorded"].append(seed)
    write_study(out, study)


def _held_out(app: App, seed: int) -> HoldOut | None:
    if not app.hold_out:
        return None
    return HoldOut(app.hold_out, seed)


def _run_departing(
    app: App, out: Path, part: Part, seed: int, on: str, plan: PlanDeparture, watch: Watch, advance: Callable[[], None]
) -> str | None:
    """Run a copy of an app with an active server, which learns what to send from a run with an honest one."""
    with private_folder(out) as folder:
        watch.say("note", f"--server {app.server}: an honest run comes first, to learn the clients' model")
        # Its record and witnesses go with the private folder.
        (honest,) = new_parts(folder, [seed])
        _check_answers(honest, _run_copy(app, out, honest, seed, on, advance), watch)
        file = folder / "plan.safetensors"
        plan(app.server, honest, seed, file)
        return _run_copy(app, out, part, seed, on, advance, file)


def _run_copy(
    app: App, out: Path, part: Part, seed: int, on: str, advance: Callable[[], None], plan: Path | None = None
) -> str | None:
    """Run a copy of an app, by a plan with an active server; returns what a client failed by."""
    server: dict[str, Any] = {}
    if plan is not None:
        server = {"server": app.server, "facts": {"departures": 1}}
    config = dict(app.config)
    if app.seeded:
        # An app that takes a seed and whose caller set none gets that of the run.
        config.setdefault("seed", seed)
    with private_folder(out) as folder:
        copy, cwd = folder / app.folder.name, folder / "cwd"
        held_out = _held_out(app, seed)
        # out.resolve(): the run folder may lie in the app's own, and must not be bundled with it.
        wrap_app(app.folder, copy, part.record, server, witness_of(part), app.keep, out.resolve(), held_out, plan)
        copy_files(app.folder, cwd, without=out.resolve())
        with RUNTIMES[on](copy, app.supernodes, app.device, open_log(out)) as runner:
            # As where the app itself would run: relative paths mean the same, and what it writes is not the owner's.
            runner.cwd = cwd
            with _explaining_imports(app):
                return runner.run(config, on_poll=advance)


@contextmanager
def _explaining_imports(app: App) -> Iterator[None]:
    """Say of a run that failed since the app's own module is not there where its name is stated."""
    try:
        yield
    except RunError as cause:
        lacking = _LACKING.search(str(cause))
        if lacking is None:
            raise
        components = read_app(app.folder)["tool"]["flwr"]["app"]["components"]
        for key in ("clientapp", "serverapp"):
            module = str(components.get(key, "")).partition(":")[0]
            # The module itself, or a package that it lies in.
            if f"{module}.".startswith(f"{lacking[1]}."):
                raise RunError(
                    f"{cause}; {key} in [tool.flwr.app.components] of pyproject.toml names it: correct it there"
                ) from None
        raise


def _check_answers(part: Part, client_error: str | None, watch: Watch) -> None:
    """Look whether the run ended in good order, and clients answered what is recorded."""
    check_clients(part, client_error, watch, explain=_explain)
    count_rounds(part.record)


def _explain(problem: str, record: Record | None) -> str:
    """Add to why clients failed what to do, and to why none answered in a record what passed besides."""
    # Clients, and not the server, may have an environment that lacks fedattack.
    if "No module named 'fedattack" in problem:
        problem += "; clients need fedattack to note what they train on: run `pip install fedattack` where they run"
    if record is not None:
        statuses = {seen.status for round_ in record for seen in round_.observations}
        if statuses == {"missing"}:
            problem += describe_besides(record)
    return problem
