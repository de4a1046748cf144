"""`fedattack audit` of somebody's Flower app, and `fedattack gather`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError, FedAttackError, in_command
from fedattack.cli import steps
from fedattack.cli.console import say, say_progress, watch_bars

if TYPE_CHECKING:
    from fedattack.apps.app import App
    from fedattack.apps.auditing import Attacked
    from fedattack.apps.posing import Posed
    from fedattack.apps.questions import Questions
    from fedattack.attacks import Attack
    from fedattack.record.folder import Part


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
        What is asked besides, and what the attacker does not know; see :class:`fedattack.apps.questions.Questions`.
    hold_out
        Share of each client's examples that it is kept from training on.
    server
        An active server in the place of the app's own.
    app
        Folder of the app of a run that is gathered.
    """

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
    app: Path | None = None

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
            ("--hold-out", self.hold_out),
        ):
            if value is not None:
                raise ConfigError(f"{name} is about an app of your own; a preset has --set, see `fedattack list`")
        if self.server is not None:
            raise ConfigError(f"--server is about an app of your own; of a preset say --set server={self.server}")


def app_of_words(words: Sequence[str], choices: AppWords) -> "App | None":
    """Find the app that the command line names; None if it is a preset.

    Raises
    ------
    ConfigError
        If it is neither, or cannot be audited.
    """
    from fedattack.apps.app import app_of, app_of_command, is_app

    if len(words) > 1 or Path(words[0]).name == "flwr":
        for name, given in (("--set", choices.changes), ("--supernodes", choices.supernodes)):
            if given:
                raise ConfigError(f"{name} goes into the command after --, as `flwr run` takes it")
        if len(choices.seeds) > 1 or choices.on != "simulation":
            raise ConfigError("--seeds and --on are for an app's folder; a command runs once, where it says")
        return app_of_command(words)
    if not is_app(words[0]):
        return None
    app = app_of(Path(words[0]), choices.changes, choices.supernodes)
    if len(choices.seeds) > 1 and "seed" in app.config:
        raise ConfigError(
            f"--set seed={app.config['seed']} would make {len(choices.seeds)} runs of one seed; leave it out, and each "
            "run has a seed of its own, or take --seeds 1"
        )
    return app


def audit_app(app: "App", choices: AppWords, out: Path, device: str, gates: "steps.Gates", as_json: bool) -> None:
    """Run an app under witnesses, make all attacks that apply, judge, and say what did not apply."""
    from fedattack.apps import auditing, superlink
    from fedattack.audit.numbers import count_words
    from fedattack.runs.running import lock_folder
    from fedattack.runs.runtimes import SUPERLINK

    # Words are checked before a run, which takes minutes.
    asking = _Asking.of(choices, device, gates, as_json)
    app = replace(app, hold_out=choices.hold_out or 0.0, server=choices.server or "", device=device)
    if app.server and (app.command is not None or choices.on != "simulation"):
        raise ConfigError(
            "--server is for an app's folder and --on simulation alone: nobody else's clients are to be attacked"
        )
    out, command = out.expanduser().absolute(), steps.command_line()
    stopped = auditing.find_stopped(app, out, choices.seeds, command)
    if choices.on == SUPERLINK and "finished" not in stopped:
        superlink.check_reach(app, out)
        # How many clients the app is simulated with says nothing of a federation that is up.
        online = choices.supernodes or superlink.count_online(app)
        app = replace(app, supernodes=online, counted=True, counted_by="")
    if app.command is None:
        runs = count_words(len(choices.seeds), "run")
        say("note", f"{app.folder.name}: {app.supernodes} clients, {runs} on {choices.on}")
        if app.counted_by:
            say(
                "note",
                f"Flower's own configuration says that many ({app.counted_by}); --supernodes N takes another number",
            )
        if not app.counted:
            say(
                "note",
                "neither the app nor Flower's own configuration says how many clients it has; --supernodes N takes "
                "another number",
            )
        if warning := auditing.too_few(app.supernodes):
            say("warning", warning)
    with steps.tell_how_to_go_on(out, command), auditing.importable(app):
        auditing.check_named(choices.model, choices.loss)
        with _explained(out, device), watch_bars() as watch:
            parts = auditing.run_app(
                app,
                out,
                choices.seeds,
                on=choices.on,
                command=command,
                options=asking.options,
                watch=watch,
            )
        try:
            with _explained(out, device), lock_folder(out), watch_bars() as watch:
                posed = auditing.pose_all(
                    parts, model=choices.model, loss=choices.loss, asked=asking.questions, app=app, watch=watch
                )
                attacked = auditing.attack_all(parts, posed, asking.choose, device, watch)
                auditing.control_all(app, parts, attacked, watch)
            asking.report(out, attacked, posed)
        finally:
            _say_private(out, parts)


@contextmanager
def _explained(out: Path, device: str) -> Iterator[None]:
    """Write a page, too, where no question can be answered: it says what was tried, and what reached the server."""
    from fedattack.apps import auditing
    from fedattack.runs.pipeline import judge_folder

    try:
        yield
    except FedAttackError as cause:
        if auditing.note_unanswered(out, str(cause)):
            with watch_bars() as watch:
                _, page = judge_folder(out, device=device, watch=watch)
            say_progress(f"no question was answered; {page} says what was tried, and what reached the server")
        raise


def gather_run(
    record: Path,
    folders: Sequence[Path],
    choices: AppWords,
    out: Path,
    device: str,
    fail_if: list[str] | None,
    *,
    trust: bool,
    as_json: bool,
) -> None:
    """Put a record and witnesses from several machines together, make all attacks that apply, and judge."""
    from fedattack.apps import auditing
    from fedattack.apps.app import app_of
    from fedattack.apps.gathering import gather
    from fedattack.runs.asked import asked_of_knowledge

    asking = _Asking.of(choices, device, steps.Gates(steps.read_conditions(fail_if)), as_json)
    auditing.check_named(choices.model, choices.loss)
    command = steps.command_line()
    parts, posed = gather(
        record,
        folders,
        out,
        command=command,
        model=choices.model,
        loss=choices.loss,
        asked=asking.questions,
        trust=trust,
        app=None if choices.app is None else app_of(choices.app),
    )
    if trust:
        steps.trust_asked(asked_of_knowledge(out))
    with _explained(out, device), watch_bars() as watch:
        attacked = auditing.attack_all(parts, posed, asking.choose, device, watch)
    asking.report(out, attacked, posed)


@dataclass(frozen=True)
class _Asking:
    """How all attacks that apply are made, and what becomes of their findings."""

    questions: "Questions"
    options: Mapping[str, str]
    gates: "steps.Gates"
    device: str
    as_json: bool

    @classmethod
    def of(cls, choices: AppWords, device: str, gates: "steps.Gates", as_json: bool) -> "_Asking":
        from fedattack.apps.questions import Questions
        from fedattack.runs.checks import attack_names, check_attacks, check_conditions

        questions = Questions.of_words(choices.sensitive, choices.holds, choices.groups, choices.without)
        given = steps.read_options(choices.options, choices.memory, attack_names())
        check_attacks(attack_names(), given)
        check_conditions(gates.conditions, attack_names(), isolating=False)
        return cls(questions, given, gates, device, as_json)

    def choose(self, names: Sequence[str]) -> list["Attack"]:
        from fedattack.runs.checks import options_among

        return steps.choose_attacks_on(names, options_among(self.options, names), self.device)

    def report(self, out: Path, attacked: "Attacked", posed: "Sequence[Posed]") -> None:
        try:
            steps.report_run(out, self.device, self.gates, self.as_json, attacked.trusted)
        finally:
            _say_beside(out, posed[0].assumed)


def _say_private(out: Path, parts: "Sequence[Part]") -> None:
    """Hand over what was seen of differentially private training to `fedattack claim`."""
    from fedattack.apps.auditing import witnesses_of
    from fedattack.apps.private import write_claim
    from fedattack.record import Record

    path = write_claim(out, witnesses_of(parts[0]), len(Record(parts[0].record)))
    if path is not None:
        say_progress(
            f"clients train with differential privacy: write the epsilon and delta that are claimed into {path}, then "
            f"call `fedattack claim {in_command(out)} --claim {in_command(path)}`"
        )


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
