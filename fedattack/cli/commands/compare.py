"""`fedattack compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from fedattack.base.errors import ConfigError, in_command
from fedattack.cli.console import err_console, out_console, say, show_page, tell
from fedattack.cli.options import AsJson
from fedattack.cli.steps import THRESHOLD_CROSSED, end_incomplete, say_lacking

if TYPE_CHECKING:
    from fedattack.report.worse import Change


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders with findings.", metavar="DIR…")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the comparison.", metavar="DIR")],
    by: Annotated[str | None, typer.Option(help="The setting to compare by; by default, those that differ.")] = None,
    fail_if: Annotated[
        str | None,
        typer.Option(
            "--fail-if",
            help=(
                "worse: exit with 3 if a finding of the second of two runs is surely worse than that of the "
                "first, the baseline."
            ),
            metavar="worse",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the findings of several runs side by side, by the settings in which they differ.

    Examples: `fedattack compare runs/n50 runs/n100 runs/n200 --by clients --out runs/by-clients`;
    `fedattack compare runs/released runs/nightly --fail-if worse --out runs/change`
    """
    if len(folders) < 2:
        raise ConfigError(f"there is nothing to compare in {len(folders)} run folder; expected two or more")
    # The gate compares two audits: other conditions need one.
    if fail_if not in (None, "worse"):
        raise ConfigError(f"--fail-if {fail_if!r}: expected worse; `fedattack report` takes all other gates")
    if fail_if and len(folders) > 2:
        raise ConfigError(f"--fail-if {fail_if}: got {len(folders)} run folders; expected the baseline and the new one")
    for folder in folders:
        if not (folder / "findings.json").exists():
            raise ConfigError(f"{folder} holds no findings.json; run `fedattack report {in_command(folder)}` first")
    from fedattack.report import read_run
    from fedattack.report.compare import compare_runs, read_compared
    from fedattack.report.lacking import list_lacking
    from fedattack.report.worse import find_changes

    changes = None
    if fail_if:
        # The first folder is the baseline.
        changes = find_changes(*(read_compared(folder).findings for folder in folders))
    page = compare_runs(folders, out, by, changes)
    if as_json:
        told: dict[str, Any] = {"page": str(page)}
        if changes is not None:
            told["worse"] = [change.to_dict() for change in changes if change.is_worse]
        tell(told, "", as_json)
    else:
        show_page("Comparison", page)
    lacking: list[str] = []
    for folder in folders:
        lacking += [f"{folder}: {line}" for line in list_lacking(read_run(folder))]
    say_lacking(lacking)
    if changes is not None:
        _gate_changes(changes, as_json)
    end_incomplete(lacking)


def _gate_changes(changes: Sequence["Change"], as_json: bool) -> None:
    # Seeds of one run each say nothing of how runs differ.
    if any(1 in (len(change.before.seeds), len(change.after.seeds)) for change in changes):
        say(
            "note",
            "an audit has only one seed, so this is about these two runs alone; more seeds show how much runs differ",
        )
    worse = [change for change in changes if change.is_worse]
    for change in worse:
        err_console.print(f"[red]threshold crossed:[/red] worse: {escape(change.text)}", soft_wrap=True)
    if worse:
        raise typer.Exit(THRESHOLD_CROSSED)
    if not as_json:
        out_console.print(f"Nothing is surely worse, in {len(changes)} findings that both audits tested.")
