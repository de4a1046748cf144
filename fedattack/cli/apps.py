"""`fedattack audit` of somebody's Flower app, and `fedattack gather`."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError, in_command
from fedattack.base.imports import importing_beside
from fedattack.cli import steps
from fedattack.cli.console import log_warnings, say, say_progress, watch_bars

if TYPE_CHECKING:
    from fedattack.apps.app import App
    from fedattack.apps.auditing import Judged
    from fedattack.apps.order import Order
    from fedattack.attacks import Attack
    from fedattack.record.folder import Part
    from fedattack.runs.watch import Watch

ENOUGH_CLIENTS = 5
"""So many clients can always be told apart beyond accident."""


@dataclass(frozen=True)
class AppWords:
    """What the command line says of an app's run, as the options of `fedattack audit` and `fedattack gather` do."""

    changes: Sequence[str] = ()
    supernodes: int | None = None
    on: str = ""
    seeds: Sequence[int] = ()
    model: str | None = None
    loss: str | None = None
    options: Sequence[str] = ()
    memory: str | None = None
    sensitive: str | None = None
    holds: int | None = None
    groups: Path | None = None
    without: Sequence[str] = ()
    hold_out: float | None = None
    server: str | None = None
    control: str = "short"
    app: Path | None = None
    examples: str | None = None
    losses: str | None = None
    update: str | None = None

    def check_preset(self) -> None:
        """Refuse what only an app takes."""
        for name, value in (
            ("--supernodes", self.supernodes),
            ("--model", self.model),
            ("--loss", self.loss),
            ("--examples", self.examples),
            ("--losses", self.losses),
            ("--update", self.update),
            ("--sensitive", self.sensitive),
            ("--property", self.holds),
            ("--groups", self.groups),
            ("--without", self.without),
            ("--hold-out", self.hold_out),
        ):
            # None and an empty list stand for options that were not given.
            if value is not None and value != []:
                raise ConfigError(
                    f"{name} is for an app of your own; a preset has --set, see `fedattack list settings`"
                )
        if self.control != "short":
            raise ConfigError("--control is for an app of your own; presets have no positive control")
        if self.server is not None:
            raise ConfigError(f"--server is for an app of your own; for a preset say --set server={self.server}")


def app_of_words(words: Sequence[str], choices: AppWords) -> "App | None":
    """Find the app that the command line names; None if it is a preset."""
    from fedattack.apps.app import app_of, app_of_command, is_app

    # A word `flwr`, or several words: a command after --.
    if len(words) > 1 or Path(words[0]).name == "flwr":
        for name, given in (("--set", choices.changes), ("--supernodes", choices.supernodes)):
            if given:
                raise ConfigError(f"{name} belongs in the command after --, in the form that `flwr run` takes")
        if len(choices.seeds) > 1 or choices.on != "simulation":
            raise ConfigError(
                "--seeds and --on are for an app's folder; a command after -- runs once, and says itself where"
            )
        return app_of_command(words)
    if not is_app(words[0]):
        return None
    app = app_of(Path(words[0]), choices.changes, choices.supernodes)
    if len(choices.seeds) > 1 and "seed" in app.config:
        raise ConfigError(
            f"--set seed={app.config['seed']} would make {len(choices.seeds)} runs with one seed; leave it out, so "
            "that each run has a seed of its own, or use --seeds 1"
        )
    return app


def audit_app(
    app: "App", choices: AppWords, out: Path, device: str, gates: "steps.Gates", output: "steps.Output"
) -> None:
    """Run an app under witnesses, make all attacks that apply, judge, and say what did not apply."""
    from fedattack.apps import superlink
    from fedattack.apps.order import check_named, importable
    from fedattack.apps.running import find_stopped
    from fedattack.record.folder import RunFolder
    from fedattack.runs.code import note_folder
    from fedattack.runs.runtimes import SUPERLINK

    # Words are checked before a run, which takes minutes.
    out, command = out.expanduser().absolute(), steps.command_line()
    if app.folder.is_relative_to(out.resolve()):
        raise ConfigError(
            f"--out {out}: the app itself is there; give the run a folder of its own, such as runs/{app.folder.name}"
        )
    app = replace(app, hold_out=choices.hold_out or 0.0, server=choices.server or "", device=device)
    order = _order(choices, out, command, device, gates)
    order.asked.functions.check_there(app.folder)
    if app.server and (app.command is not None or choices.on != "simulation"):
        raise ConfigError(
            "--server needs an app's folder and --on simulation: fedattack attacks no clients of other people"
        )
    # Raises where the folder holds another command's run.
    stopped = find_stopped(app, out, choices.seeds, command)
    if choices.on == SUPERLINK and "finished" not in stopped:
        superlink.check_reach(app, out)
        # How many clients the app is simulated with says nothing of a federation that is up.
        online = choices.supernodes or superlink.count_online(app)
        app = replace(app, supernodes=online, counted=True, counted_by="")
    if app.command is None:
        _say_size(app, len(choices.seeds), choices.on)
    with steps.tell_how_to_go_on(out, command), log_warnings(out):
        with importable(app):
            check_named(choices.model, choices.loss)
        # finally: what witnesses saw of private training is told also where a gate ends the command.
        try:
            with watch_bars() as watch:
                judged = _run_and_audit(order, app, watch)
            note_folder(RunFolder(out))
            steps.show_findings(order.out, judged.findings, judged.page, gates, output, judged.unmade)
        finally:
            _say_private(order)


def _run_and_audit(order: "Order", app: "App", watch: "Watch") -> "Judged":
    """Run an app, and import meanwhile what only attacks and judges need."""
    from fedattack.apps.order import importable
    from fedattack.apps.running import run_app

    run: Callable[[], tuple[Part, ...]] | None = None
    # What an active server sends is planned by an attack.
    if not app.server:
        ran: Future[tuple[Part, ...]] = Future()
        run = ran.result
        with importing_beside(lambda: import_module("fedattack.apps.auditing")):
            try:
                ran.set_result(run_app(app, order, watch=watch))
            except Exception as cause:
                # An audit explains it on a page, as far as it can.
                ran.set_exception(cause)
    from fedattack.apps.auditing import audit

    with importable(app):
        return audit(order, app, watch, run)


def _say_size(app: "App", seeds: int, on: str) -> None:
    """Say how many clients are simulated, who says so, and whether they are enough."""
    from fedattack.audit.numbers import count_words

    say("note", f"{app.folder.name}: {app.supernodes} clients, {count_words(seeds, 'run')} on {on}")
    source = ""
    if app.counted_by:
        source = f"Flower's own configuration says so ({app.counted_by})"
    elif not app.counted:
        source = "neither the app nor Flower's own configuration says how many clients it has"
    if source:
        say("note", f"{source}; to take another number, use --supernodes N")
    if app.supernodes < ENOUGH_CLIENTS:
        # It asks a judge, with which torch is imported.
        from fedattack.apps.choosing import describe_too_few

        if warning := describe_too_few(app.supernodes):
            say("warning", warning)


def gather_run(
    record: Path,
    folders: Sequence[Path],
    choices: AppWords,
    out: Path,
    device: str,
    fail_if: list[str] | None,
    *,
    trust: bool,
    output: "steps.Output",
) -> None:
    """Put a record and witnesses from several machines together, make all attacks that apply, and judge."""
    from fedattack.apps.app import app_of
    from fedattack.apps.auditing import audit_gathered
    from fedattack.apps.gathering import gather
    from fedattack.apps.order import check_named
    from fedattack.record.folder import RunFolder
    from fedattack.runs.asked import asked_of_knowledge

    gates, app = steps.Gates(steps.read_conditions(fail_if)), None
    # Before anything is copied: a wrong app is told of first.
    if choices.app is not None:
        app = app_of(choices.app)
    order = _order(choices, out, steps.command_line(), device, gates)
    if app is not None:
        order.asked.functions.check_there(app.folder)
    elif given := [*order.asked.functions.given()]:
        raise ConfigError(f"{given[0]} names a function of the clients' app; add --app PATH")
    check_named(choices.model, choices.loss)
    with log_warnings(out):
        posed = gather(record, folders, out, command=order.command, asked=order.asked, trust=trust, app=app)
        if trust:
            steps.trust_asked(asked_of_knowledge(RunFolder(out)))
        with watch_bars() as watch:
            judged = audit_gathered(order, posed, watch)
    steps.show_findings(order.out, judged.findings, judged.page, gates, output, judged.unmade)


def _order(choices: AppWords, out: Path, command: str, device: str, gates: "steps.Gates") -> "Order":
    """Read what all attacks that apply are asked and given; words are checked before anything runs."""
    from fedattack.apps.functions import OwnFunctions
    from fedattack.apps.order import Order
    from fedattack.apps.questions import Questions
    from fedattack.runs.checks import attack_names, check_attacks, check_conditions, options_among

    asked = Questions.of_words(choices.sensitive, choices.holds, choices.groups, choices.without)
    functions = OwnFunctions(choices.examples, choices.losses, choices.update)
    functions.check()
    if functions.losses is not None and choices.model is not None:
        raise ConfigError("--model and --losses both say how losses are computed; give only one of them")
    asked = replace(asked, model=choices.model, loss=choices.loss, functions=functions)
    options = steps.read_options(choices.options, choices.memory, attack_names())
    check_attacks(attack_names(), options)
    check_conditions(gates.conditions, attack_names(), isolating=False)

    # Called when it is known which attacks apply; torch is imported there.
    def make(names: Sequence[str]) -> "list[Attack]":
        return steps.choose_attacks_on(names, options_among(options, names), device)

    return Order(out, asked, options, make, device, choices.seeds, choices.on, command, choices.control == "full")


def _say_private(order: "Order") -> None:
    """Hand over what was seen of differentially private training to `fedattack claim`."""
    from fedattack.apps.private import count_rounds, write_claim
    from fedattack.apps.witnessing import witnesses_of
    from fedattack.record import Record
    from fedattack.record.folder import new_parts
    from fedattack.runs.running import is_recorded

    part = new_parts(order.out, order.seeds)[0]
    if not is_recorded(part):
        return
    path = write_claim(order.out, witnesses_of(part), count_rounds(Record(part.record)))
    if path is not None:
        say_progress(
            f"clients train with differential privacy: write the claimed epsilon and delta into {path}, then call "
            f"`fedattack claim {in_command(order.out)} --claim {in_command(path)}`"
        )
