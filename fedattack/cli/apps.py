"""`fedattack audit` of somebody's Flower app, and `fedattack gather`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedattack.cli import commands
from fedattack.cli.console import say, say_progress, watch_bars
from fedattack.errors import ConfigError

if TYPE_CHECKING:
    from fedattack.audit.finding import Condition
    from fedattack.folder import Part
    from fedattack.foreign.app import App
    from fedattack.foreign.auditing import Attacked
    from fedattack.threats import Attack

# What would make a threat's attacks apply, where they lack something.
_REMEDIES = {
    "inversion": "clients of few examples that train by plain SGD, and somebody who evaluates on others",
    "property": "sums alone, as under SecAgg+ or from `fedattack project`; then `fedattack attack prolin` with "
    "--auxiliary and --property",
    "attribute": "a column to ask for: `fedattack attack aia` with --partial",
    "group": "`fedattack attack private-attribute` with --auxiliary and --attributes",
}


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
    """

    changes: Sequence[str]
    supernodes: int | None
    on: str
    seeds: Sequence[int]
    model: str | None
    loss: str | None
    options: Sequence[str]
    memory: str | None

    def check_preset(self) -> None:
        """Refuse what only an app takes.

        Raises
        ------
        ConfigError
            If there is any.
        """
        for name, value in (("--supernodes", self.supernodes), ("--model", self.model), ("--loss", self.loss)):
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
    app = app_of(Path(words[0]), told.changes, told.supernodes)
    if len(told.seeds) > 1 and "seed" in app.config:
        raise ConfigError(
            f"--set seed={app.config['seed']} would make {len(told.seeds)} runs of one seed; leave it out, and each "
            "run has a seed of its own, or take --seeds 1"
        )
    return app


def audit_app(app: "App", told: AppWords, out: Path, device: str, fail_if: list[str] | None, as_json: bool) -> None:
    """Run an app under witnesses, make all attacks that apply, judge, and say what did not apply."""
    from fedattack.foreign import auditing

    # Words are checked before a run, which takes minutes.
    asking = _Asking.of(told, device, fail_if, as_json)
    out = auditing.check_free(out)
    if app.command is None:
        say("note", f"{app.folder.name}: {app.supernodes} clients, {len(told.seeds)} run on {told.on}")
    with auditing.importable(app), watch_bars() as watch:
        auditing.check_named(told.model, told.loss)
        parts = auditing.run_app(
            *(app, out, told.seeds), on=told.on, command=commands._command(), options=asking.options, watch=watch
        )
        posed = auditing.pose_all(parts, model=told.model, loss=told.loss)
        attacked = auditing.attack_all(parts, posed, asking.choose, device, watch)
    with auditing.importable(app):
        try:
            asking.report(out, attacked)
        finally:
            _say_private(out, parts)


def gather_run(
    record: Path,
    folders: Sequence[Path],
    told: AppWords,
    out: Path,
    device: str,
    fail_if: list[str] | None,
    *,
    trust: bool,
    as_json: bool,
) -> None:
    """Put a record and witnesses from several machines together, make all attacks that apply, and judge."""
    from fedattack.foreign import auditing
    from fedattack.foreign.gathering import gather
    from fedattack.runs.asked import asked_of_knowledge

    asking = _Asking.of(told, device, fail_if, as_json)
    auditing.check_named(told.model, told.loss)
    command = commands._command()
    parts, posed = gather(record, folders, out, command=command, model=told.model, loss=told.loss, trust=trust)
    if trust:
        commands._trusted(asked_of_knowledge(out))
    with watch_bars() as watch:
        attacked = auditing.attack_all(parts, posed, asking.choose, device, watch)
    asking.report(out, attacked)


@dataclass(frozen=True)
class _Asking:
    """How all attacks that apply are made, and what becomes of their findings."""

    options: Mapping[str, str]
    conditions: Sequence["Condition"]
    device: str
    as_json: bool

    @classmethod
    def of(cls, told: AppWords, device: str, fail_if: list[str] | None, as_json: bool) -> "_Asking":
        from fedattack.runs.checks import attack_names, check_attacks, check_conditions

        conditions = commands._conditions(fail_if)
        given = commands._options(told.options, told.memory, attack_names())
        check_attacks(attack_names(), given)
        check_conditions(conditions, attack_names(), isolating=False)
        return cls(given, conditions, device, as_json)

    def choose(self, names: Sequence[str]) -> list["Attack"]:
        from fedattack.runs.checks import options_among

        return commands._choose(names, options_among(self.options, names), self.device)

    def report(self, out: Path, attacked: "Attacked") -> None:
        try:
            commands._report(out, self.device, self.conditions, self.as_json, attacked.trusted)
        finally:
            _say_untried(out, attacked)


def _say_private(out: Path, parts: "Sequence[Part]") -> None:
    """Hand over what was seen of differentially private training to `fedattack claim`."""
    from fedattack.foreign.auditing import witness_of
    from fedattack.foreign.private import write_claim
    from fedattack.record import Record
    from fedattack.witness import read_witnesses

    path = write_claim(out, read_witnesses(witness_of(parts[0])), len(Record(parts[0].record)))
    if path is not None:
        say_progress(
            f"clients train with differential privacy: write the epsilon and delta that are claimed into {path}, then "
            f"call `fedattack claim {out} --claim {path}`"
        )


def _say_untried(out: Path, attacked: "Attacked") -> None:
    """Say what was not asked, why, and what would make it apply."""
    from fedattack.report import read_run
    from fedattack.threats.registry import threat_of, threats

    if not (out / "run.json").exists():
        return
    reasons = {}
    for name, why in attacked.failed.items():
        threat = threat_of(name)
        if threat is not None:
            reasons[threat.question] = why
    remedies = {threat.question: _REMEDIES.get(threat.name) for threat in threats().values()}
    for entry in read_run(out)["untried"]:
        question = entry["question"]
        line = f"not asked: {question} {reasons.get(question, entry['why'])}"
        say_progress(f"{line}; it would take {remedies[question]}" if remedies.get(question) else line)
