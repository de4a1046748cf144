"""What several commands do: train, attack, report, and hold findings against gates."""

import json
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape

from fedattack.base.errors import FedAttackError, RunError, in_command, short
from fedattack.base.imports import importing
from fedattack.cli.console import err_console, log_warnings, out_console, say, show_page, watch_bars
from fedattack.cli.declared import Declared, pairs

if TYPE_CHECKING:
    from fedattack.attacks import Attack, Knowledge
    from fedattack.audit.finding import Finding
    from fedattack.audit.gate import Condition
    from fedattack.base.failures import Failure
    from fedattack.base.settings import Value
    from fedattack.learning.importing import Asked
    from fedattack.record.folder import Part, RunFolder
    from fedattack.runs.presets import Preset

BAD_INPUT = 2

THRESHOLD_CROSSED = 3

INCOMPLETE = 4
"""All is done and written, but a part of it is damaged or failed, and what was written says so."""


@dataclass(frozen=True)
class Gates:
    """What findings are held against, and where that is written as JUnit XML, if anywhere."""

    conditions: Sequence["Condition"]
    junit: Path | None = None


@dataclass(frozen=True)
class Output:
    """How findings are shown: as JSON, or all of them, and whether the page is printed, too."""

    as_json: bool = False
    everything: bool = False
    pdf: bool = False


def train_preset(
    preset: "Preset",
    settings: Mapping[str, "Value"],
    seeds: Sequence[int],
    out: Path,
    *,
    on: str,
    options: Mapping[str, str] | None = None,
    choose: Callable[[], object] = lambda: None,
) -> set[str]:
    """Simulate; returns what the caller named beyond the folder, which attack and report may then follow.

    ``choose`` chooses the attacks that follow. It imports them, and is called before anything is trained.
    """
    from fedattack.runs.settings import leads_out
    from fedattack.runs.simulating import simulate

    trusted = set(leads_out(settings))
    resume = write_resume_command(out, trust=bool(trusted))
    with tell_how_to_go_on(out, resume), log_warnings(out), watch_bars() as watch:

        def load() -> None:
            from fedattack.audit.judge import judge_of

            for attack in preset.attacks:
                judge_of(attack)
            choose()

        # Called between preparation and training, when sizes are known.
        def before(parts: Sequence["Part"]) -> None:
            from fedattack.runs.forecast import foretell

            choose()
            foretell(preset.attacks, settings, parts, say=watch.say, trusted=trusted)

        simulate(
            preset,
            settings,
            seeds,
            out,
            command=command_line(),
            watch=watch,
            runtime=on,
            options=options,
            load=load,
            before=before,
        )
    return trusted


def attack_run(
    attack: "Attack",
    folder: Path,
    *,
    device: str,
    seed: int = 0,
    skip_damaged: bool = False,
    declared: Declared | None = None,
    trusted: Collection[str] = (),
) -> list[str]:
    """Attack all records of a run folder; returns the files of the scores."""
    from fedattack.runs.asked import known_to
    from fedattack.runs.pipeline import attack_folder

    def knowledge(part: "Part") -> "Knowledge":
        known = known_to(part, trusted)
        if declared is None:
            return known
        return declared.on_top_of(known)

    with log_warnings(folder), watch_bars() as watch:
        return attack_folder(
            attack,
            folder,
            seed=seed,
            device=device,
            skip_damaged=skip_damaged,
            knowledge=knowledge,
            watch=watch,
        )


def attack_each(attacks: Sequence["Attack"], folder: Path, *, device: str, trusted: Collection[str]) -> None:
    """Make all attacks of a preset; the report says of those that fail why.

    Raises
    ------
    FedAttackError
        If they fail and no attack has scores: why the first one did.
    """
    from fedattack.base.failures import Failure, failing_alone
    from fedattack.record.folder import LEFT_OUT, RunFolder
    from fedattack.runs.checks import scored_attacks
    from fedattack.runs.pipeline import remove_scores, say_unmade

    failed: dict[str, Failure] = {}
    for attack in attacks:
        with failing_alone(failed, attack.name):
            attack_run(attack, folder, device=device, trusted=trusted)
    opened = RunFolder(folder)
    for name in failed:
        # Scores of some seeds alone count as none.
        remove_scores(opened.parts, name)
    if failed and not scored_attacks(opened.parts):
        name, first = next(iter(failed.items()))
        first.end(f"{name} was not made")
    left_out = [say_unmade(name, failure.why) for name, failure in failed.items()]
    say_lacking(left_out)
    # A study of before may list attacks that are made now.
    if left_out or LEFT_OUT in opened.study:
        opened.note({**opened.study, LEFT_OUT: left_out})


def report_run(
    folder: "RunFolder",
    device: str,
    gates: Gates,
    output: Output,
    trusted: Collection[str] = (),
) -> None:
    """Judge a run folder, show what was found, and hold it against gates."""
    with importing():
        from fedattack.runs.pipeline import judge_runs

    unmade: dict[str, Failure] = {}
    with log_warnings(folder.path), watch_bars() as watch:
        findings, page = judge_runs(folder, device=device, watch=watch, trusted=trusted, unmade=unmade)
    show_findings(folder.path, findings, page, gates, output, unmade)


def show_findings(
    folder: Path,
    findings: Sequence["Finding"],
    page: Path,
    gates: Gates,
    output: Output,
    unmade: Mapping[str, "Failure"],
) -> None:
    """Show what was judged and what is left out, as parts of the page are that are `unmade`; then end the command."""
    from fedattack.report import read_run, render_summary
    from fedattack.report.junit import write_junit
    from fedattack.report.lacking import list_lacking

    run = read_run(folder)
    if gates.junit is not None:
        write_junit(gates.junit, findings, run, gates.conditions)
    lacking = list_lacking(run, unmade)
    with gate_findings(gates.conditions, findings):
        # JSON goes to standard output; all else to standard error.
        if output.as_json:
            print(json.dumps([finding.to_dict() for finding in findings], indent=2, allow_nan=False))
        else:
            out_console.print(render_summary(findings, run, everything=output.everything, folder=in_command(folder)))
            show_page("Report", page)
        if output.pdf:
            # After the answer is shown: a missing browser must not hide it.
            print_page(page, output.as_json)
        say_lacking(lacking)
    end_incomplete(lacking)


def say_lacking(lines: Sequence[str]) -> None:
    """Warn of what a report leaves out."""
    for line in lines:
        say("warning", line)


def end_incomplete(lines: Sequence[str]) -> None:
    """End the command by the exit code that says so, if something is left out."""
    if lines:
        raise typer.Exit(INCOMPLETE)


def read_options(options: Sequence[str] | None, memory: str | None, names: Sequence[str]) -> dict[str, str]:
    """Read --option, and --memory for those attacks that have it; the others hold a few models at a time."""
    from fedattack.runs.checks import check_memory, options_among

    given = dict(pairs("--option", options or []))
    check_memory(memory)
    if memory is not None:
        # Attacks without such an option hold a few models at a time.
        given |= options_among({"memory": memory}, names)
    return given


def choose_attacks_on(names: Sequence[str], options: Mapping[str, str], device: str) -> list["Attack"]:
    """Find attacks, and the device that they compute on; from here on torch is imported."""
    from fedattack.learning import pick_device
    from fedattack.runs.pipeline import choose_attacks

    pick_device(device)
    return choose_attacks(names, options)


def trust_asked(asked: Sequence["Asked"]) -> set[str]:
    """Say what the folder asks for and is now trusted with."""
    for item in asked:
        say("trusted", item.describe())
    return {item.follow() for item in asked}


def trust_knowledge(folder: "RunFolder | None", trust: bool) -> set[str]:
    """Trust what the knowledge in a run folder asks for, if that is wanted; nothing without a folder.

    The code of an app that this machine audited into the folder is trusted anyway, while all is as it was.
    """
    from fedattack.runs.asked import asked_of_knowledge
    from fedattack.runs.code import list_own_code

    if folder is None:
        return set()
    if trust:
        return trust_asked(asked_of_knowledge(folder))
    own = list_own_code(folder)
    for item in own:
        say("note", f"{item.describe()}, as in the audit that made this folder")
    return {item.follow() for item in own}


def write_resume_command(out: Path, *, trust: bool) -> str:
    """Return the command by which a preset's run goes on; ``trust``: whether its settings name something outside."""
    command = f"fedattack resume {in_command(out)}"
    if trust:
        command += " --trust"
    return command


@contextmanager
def tell_how_to_go_on(out: Path, command: str) -> Iterator[None]:
    """Say of a run that ends early, also by a signal, by which command it goes on; not of an app that fails itself."""
    from fedattack.base.files import signals_raise
    from fedattack.record.folder import STUDY
    from fedattack.runs.running import goes_on

    try:
        # Private copies lie in the run folder, and processes of the app compute: neither outlives the command.
        with signals_raise():
            yield
    except (RunError, KeyboardInterrupt, SystemExit) as cause:
        # Without it the preparation ended early, and there is nothing to go on with.
        if (out / STUDY).exists() and (not isinstance(cause, RunError) or goes_on(out)):
            err_console.print(escape(f"note: `{command}` continues after what is recorded"), soft_wrap=True)
        raise


def command_line() -> str:
    """Return the command as it was given."""
    # argv as Python has it, quoted again so that people can paste it.
    return shlex.join(["fedattack", *sys.argv[1:]])


def read_conditions(texts: list[str] | None, *, of_claim: bool = False) -> list["Condition"]:
    """Parse conditions before any long work, so that a typing error does not cost a run."""
    from fedattack.audit.gate import parse_fail_if

    return [parse_fail_if(text, of_claim=of_claim) for text in texts or []]


@contextmanager
def gate_findings(conditions: Sequence["Condition"], findings: Sequence[Any]) -> Iterator[None]:
    """Show findings; then end the command if a condition holds, also where they could not be shown."""
    problem: Exception | None = None
    try:
        yield
    except (FedAttackError, OSError) as cause:
        problem = cause
    crossed = [condition for condition in conditions if condition.is_crossed(findings)]
    # A crossed gate counts more than a page that could not be shown: its exit code is what pipelines ask for.
    if problem is not None and not crossed:
        raise problem
    if problem is not None:
        show_error(problem)
    for condition in crossed:
        err_console.print(f"[red]threshold crossed:[/red] {escape(condition.text)}", soft_wrap=True)
    if crossed:
        raise typer.Exit(THRESHOLD_CROSSED)


def show_error(problem: Exception) -> None:
    """Show in one line why a command ends."""
    err_console.print(f"[red]error:[/red] {escape(short(str(problem)))}", soft_wrap=True)


def print_page(page: Path, as_json: bool) -> None:
    """Print a page to a PDF beside it."""
    from fedattack.report.pdf import write_pdf

    printed = write_pdf(page)
    if not as_json:
        show_page("On paper", printed)
