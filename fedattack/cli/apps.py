"""`fedattack audit` of somebody's Flower app."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.cli import commands
from fedattack.cli.console import say, say_progress, watch_bars
from fedattack.errors import ConfigError

if TYPE_CHECKING:
    from fedattack.foreign.app import App


@dataclass(frozen=True)
class AppWords:
    """What the command line says of an app's run.

    Attributes
    ----------
    changes, supernodes, on
        Values of its run config, how many clients to simulate, and what on.
    seeds
        One run each.
    model, loss
        Taken in the place of what is witnessed.
    options, memory
        Options of attacks; what one process of an attack may hold, as in ``2GiB``.
    sensitive, holds, groups, without
        What is asked besides, and what the attacker does not know; see :class:`fedattack.foreign.questions.Questions`.
    """

    changes: Sequence[str]
    supernodes: int | None
    on: str
    seeds: Sequence[int]
    model: str | None
    loss: str | None
    options: Sequence[str]
    memory: str | None
    sensitive: str | None = None
    holds: int | None = None
    groups: Path | None = None
    without: Sequence[str] = ()

    def check_preset(self) -> None:
        """Refuse what only an app takes.

        Raises
        ------
        ConfigError
            If there is any.
        """
        for name, value in (
            ("--supernodes", self.supernodes),
            ("--model", self.model),
            ("--loss", self.loss),
            ("--sensitive", self.sensitive),
            ("--property", self.holds),
            ("--groups", self.groups),
            ("--without", self.without or None),
        ):
            if value is not None:
                raise ConfigError(f"{name} is about an app of your own; a preset has --set, see `fedattack list`")


def app_of_words(words: Sequence[str], told: AppWords) -> "App | None":
    """Find the app that the command line names; None if it is a preset.

    Raises
    ------
    ConfigError
        If it is neither, or cannot be audited.
    """
    from fedattack.foreign.app import app_of, app_of_command, is_app

    if len(words) > 1 or Path(words[0]).name == "flwr":
        for name, given in (("--set", told.changes), ("--supernodes", told.supernodes)):
            if given:
                raise ConfigError(f"{name} goes into the command after --, as `flwr run` takes it")
        if len(told.seeds) > 1 or told.on != "simulation":
            raise ConfigError("--seeds and --on are for an app's folder; a command runs once, where it says")
        return app_of_command(words)
    if not is_app(words[0]):
        return None
    if told.on == "superlink":
        raise ConfigError("--on superlink: an app's clients are witnessed on this machine alone; take another --on")
    return app_of(Path(words[0]), told.changes, told.supernodes)


def audit_app(app: "App", told: AppWords, out: Path, device: str, fail_if: list[str] | None, as_json: bool) -> None:
    """Run an app under witnesses, make all attacks that apply, judge, and say what did not apply."""
    from fedattack.foreign import auditing
    from fedattack.foreign.questions import Questions
    from fedattack.runs.checks import attack_names, check_attacks, check_conditions, options_among

    # Words are checked before a run, which takes minutes.
    conditions = commands._conditions(fail_if)
    asked = Questions.of_words(told.sensitive, told.holds, told.groups, told.without)
    given = commands._options(told.options, told.memory, attack_names())
    check_attacks(attack_names(), given)
    check_conditions(conditions, attack_names(), isolating=False)
    out = auditing.check_free(out)
    if app.command is None:
        runs = "1 run" if len(told.seeds) == 1 else f"{len(told.seeds)} runs"
        say("note", f"{app.folder.name}: {app.supernodes} clients, {runs} on {told.on}")
        if not app.counted:
            say("note", "the app does not say how many clients it has; --supernodes takes another number")
        if warning := auditing.too_few(app.supernodes):
            say("warning", warning)
    with auditing.importable(app), watch_bars() as watch:
        auditing.check_named(told.model, told.loss)
        parts = auditing.run_app(app, out, told.seeds, on=told.on, command=commands._command(), watch=watch)
        posed = auditing.pose_all(parts, model=told.model, loss=told.loss, asked=asked)

        def choose(names: Sequence[str]) -> "list[commands.Attack]":
            return commands._choose(names, options_among(given, names), device)

        attacked = auditing.attack_all(parts, posed, choose, device, watch)
    with auditing.importable(app):
        report = partial(commands._report, out, device, conditions, as_json, attacked.trusted)
        try:
            report()
        finally:
            _say_beside(out, posed[0].assumed)


def _say_beside(out: Path, assumed: Sequence[str]) -> None:
    """Say what the attacker is assumed to know, and what was not asked and why, as the page does."""
    from fedattack.report import read_run

    if not (out / "run.json").exists():
        return
    run = read_run(out)
    for known in run["threat_model"]["knows"]:
        say_progress(f"assumed to be known: {known}")
    for line in assumed:
        say_progress(f"note: {line}")
    for entry in run["untried"]:
        say_progress(f"not asked: {entry['question']} {entry['why']}")
