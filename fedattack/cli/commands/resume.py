"""`fedattack resume`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedattack.base.errors import RecordError, ReportError
from fedattack.cli.console import log_warnings, out_console, show_page, watch_bars
from fedattack.cli.options import AsJson, Cluster, Device, Everything, FailIf, Memory, Options, Quiet, Trust
from fedattack.cli.steps import (
    Gates,
    Output,
    attack_each,
    choose_attacks_on,
    command_line,
    end_incomplete,
    gate_findings,
    read_conditions,
    read_options,
    report_run,
    say_lacking,
    tell_how_to_go_on,
    trust_asked,
    write_resume_command,
)

if TYPE_CHECKING:
    from fedattack.audit.finding import Finding
    from fedattack.audit.gate import Condition

_REPORT = ("findings.json", "run.json", "report.html")


def resume(
    folder: Annotated[
        Path, typer.Argument(help="The run folder of a preset whose simulate or audit was stopped.", metavar="DIR")
    ],
    options: Options = None,
    memory: Memory = None,
    cluster: Cluster = "",
    device: Device = "auto",
    fail_if: FailIf = None,
    trust: Trust = False,
    everything: Everything = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped, then attack and report as audit does.

    Each seed continues after its last whole round, with its settings and its runtime. Attacks that already have scores
    are not repeated, unless you give --option or --memory. A finished run stays unchanged.

    Example: `fedattack resume runs/first`
    """
    from fedattack.record.folder import RunFolder
    from fedattack.runs.asked import asked_of_study
    from fedattack.runs.checks import check_attacks, check_cluster, check_conditions, check_device, options_among
    from fedattack.runs.presets import load_preset
    from fedattack.runs.simulating import is_trained, stopped_study
    from fedattack.runs.simulating import resume as go_on

    conditions = read_conditions(fail_if)
    check_device(device)
    study = stopped_study(folder)
    # The study names it: a preset may have changed since, and its options are taken as they are now.
    preset = load_preset(study["preset"])
    given = read_options(options, memory, preset.attacks)
    wanted = {**preset.options, **study.get("options", {}), **given}
    check_attacks(preset.attacks, wanted)
    judged = {*preset.attacks, *_list_scored(folder)}
    check_conditions(conditions, sorted(judged), isolating=study["settings"]["server"] == "isolating")
    names: Sequence[str] = preset.attacks
    # New options make all attacks anew.
    if is_trained(folder, study) and not given:
        from fedattack.record import Record
        from fedattack.runs.pipeline import list_unscored

        records = {part: Record(part.record, thinned=True) for part in RunFolder(folder).parts}
        names = list_unscored(records, names)
        if not names:
            findings = _read_report(folder)
            if findings is not None:
                _finish(folder, findings, conditions, as_json)
                return
    check_cluster(names)
    chosen = choose_attacks_on(names, options_among(wanted, names), device)
    # Code that the settings name is asked for again: the folder may have been handed over.
    asked = asked_of_study(RunFolder(folder))
    trusted: set[str] = set()
    if trust:
        trusted = trust_asked(asked)
    again = write_resume_command(folder, trust=bool(asked))
    with tell_how_to_go_on(folder, again), log_warnings(folder), watch_bars() as watch:
        go_on(folder, command=command_line(), watch=watch, trusted=trusted)
    attack_each(chosen, folder, device=device, trusted=trusted)
    report_run(RunFolder(folder), device, Gates(conditions), Output(as_json, everything), trusted)


def _list_scored(folder: Path) -> list[str]:
    """List the attacks that have scores, also those that the run did not begin with."""
    from fedattack.record.folder import RunFolder
    from fedattack.runs.checks import scored_attacks

    try:
        return scored_attacks(RunFolder(folder).parts)
    except RecordError:
        # A run that was stopped early has no record, and nothing is scored.
        return []


def _read_report(folder: Path) -> "list[Finding] | None":
    """Return the findings of a whole report; None if it lacks something or is damaged, or scores are newer."""
    from fedattack.report.validate import read_findings, read_run

    # Empty files are what a full disk leaves.
    files = [folder / name for name in _REPORT]
    if not all(file.exists() and file.stat().st_size for file in files):
        return None
    written = min(file.stat().st_mtime for file in files)
    # An attack was made after the report.
    if any(scores.stat().st_mtime > written for scores in folder.glob("scores/**/*.npz")):
        return None
    try:
        read_run(folder)
        return read_findings(folder)
    except ReportError:
        return None


def _finish(folder: Path, findings: Sequence["Finding"], conditions: Sequence["Condition"], as_json: bool) -> None:
    """Say that nothing is left to do; gates are held against the findings that are there."""
    from fedattack.report.lacking import list_lacking
    from fedattack.report.validate import read_run

    lacking = list_lacking(read_run(folder))
    with gate_findings(conditions, findings):
        if as_json:
            print(json.dumps([finding.to_dict() for finding in findings], indent=2, allow_nan=False))
        else:
            out_console.print(f"[bold]{escape(str(folder))}[/bold] is finished: nothing is left to do.", soft_wrap=True)
            show_page("Report", folder / "report.html")
        say_lacking(lacking)
    end_incomplete(lacking)
