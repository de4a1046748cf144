"""`fedattack what-if`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedattack.base.errors import ConfigError
from fedattack.cli.console import err_console, out_console, say_progress, show_page, show_table, watch_bars
from fedattack.cli.options import AsJson, Device, FailIf, Memory, Options, Quiet, Trust
from fedattack.cli.steps import (
    THRESHOLD_CROSSED,
    choose_attacks_on,
    command_line,
    read_conditions,
    read_options,
    trust_asked,
    trust_knowledge,
)

if TYPE_CHECKING:
    from fedattack.attacks import Attack
    from fedattack.audit.gate import Condition
    from fedattack.grids.whatif.altered import AlteredCell


def what_if(
    folder: Annotated[Path, typer.Argument(help="A run folder that was attacked, with its truth.", metavar="RUN")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the comparison; it is created.", metavar="DIR")],
    secagg: Annotated[
        bool, typer.Option("--secagg", help="As if secure aggregation had been on: the server only sees sums.")
    ] = False,
    noise: Annotated[
        list[str] | None,
        typer.Option(
            "--noise",
            help="As if Gaussian noise of this standard deviation had been added to each update; repeatable.",
            metavar="SIGMA",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep",
            help=(
                "As if each update had kept this share of its entries, the largest ones, with the others set to "
                "0; repeatable."
            ),
            metavar="SHARE",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.", min=0)] = 0,
    options: Options = None,
    memory: Memory = None,
    device: Device = "auto",
    keep_records: Annotated[
        bool, typer.Option("--keep-records", help="Keep the altered copies, each about as large as the record.")
    ] = False,
    trust: Trust = False,
    fail_if: FailIf = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the attacks of a finished run as if its clients had been defended, and compare.

    It trains nothing, and changes nothing in RUN: it alters copies of the record, attacks them and judges. It writes
    DIR/what-if.html, .md and .json, and a report of each copy. The page says what this cannot tell; `tradeoff` trains
    again. --fail-if applies to the altered copies.

    Example: `fedattack what-if runs/first --secagg --noise 0.01 --noise 0.1 --keep 0.1 --out runs/what-if`
    """
    from fedattack.grids.cell import Request
    from fedattack.grids.whatif.alteration import NOTHING, read_alterations
    from fedattack.grids.whatif.asked import check_room, check_run, list_siblings, options_of_run
    from fedattack.record.folder import RunFolder
    from fedattack.runs.asked import asked_of_study
    from fedattack.runs.checks import check_attacks, check_conditions, check_device, options_among

    request = Request(
        out, device=device, memory=memory, keep_records=keep_records, watching=watch_bars, tell=say_progress
    )
    # Words are checked before torch is imported, and before attacks, which take minutes.
    conditions = read_conditions(fail_if)
    cells = [NOTHING, *read_alterations(secagg, noise or [], keep or [])]
    check_device(request.device)
    out = request.folder
    if out.exists():
        raise ConfigError(f"{out} already exists; give this comparison a folder of its own")
    # Resolved: a link may lead into the run.
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{out} lies in {folder}, which must not change; give this comparison a folder elsewhere")
    opened = RunFolder(folder)
    opened.check_ended()
    parts, attacks = check_run(folder, cells)
    # Attacks on sums that ask the same are possible after --secagg.
    possible = [*attacks, *(list_siblings(attacks) if secagg else [])]
    given = read_options(options, request.memory, possible)
    check_attacks(possible, given)
    check_conditions(conditions, possible, isolating=True)
    check_room(parts, out, cells, keep_records=request.keep_records)
    trusted = trust_knowledge(opened, trust)
    if trust:
        trusted |= trust_asked(asked_of_study(opened))
    wanted = {**options_of_run(folder, possible), **given}

    def choose(chosen: Sequence[str]) -> "list[Attack]":
        return choose_attacks_on(chosen, options_among(wanted, chosen), request.device)

    from fedattack.grids.whatif.design import Altering, what_if

    design = Altering(
        request=request,
        cells=cells,
        folder=folder,
        parts=parts,
        attacks=attacks,
        choose=choose,
        seed=seed,
        trusted=trusted,
        command=command_line(),
    )
    results = what_if(design)
    # The first cell is the run as it was.
    found = list(design.found.values())
    if as_json:
        print(json.dumps(results, indent=2, allow_nan=False))
    else:
        _show(out, found)
    if _check_crossed(conditions, found[1:]):
        raise typer.Exit(THRESHOLD_CROSSED)


def _show(out: Path, cells: "Sequence[AlteredCell]") -> None:
    from fedattack.grids.whatif.altered import list_not_asked
    from fedattack.grids.whatif.page import list_glances, list_sentences
    from fedattack.report.words import NOTHING

    for line in list_sentences(cells):
        out_console.print(escape(line), soft_wrap=True)
    out_console.print()
    for table in list_glances(cells):
        rows = []
        for label, result, chance, null, verdict in table.rows:
            if result == NOTHING:
                rows.append((label, verdict, ""))
            else:
                rows.append((label, f"{result}, {verdict}", f"{chance}; {null}"))
        show_table(f"{table.title} ({table.caption})", ("what if", "result", "chance; null run"), rows)
    for line in list_not_asked(cells):
        out_console.print(escape(f"not asked: {line}"), soft_wrap=True)
    show_page("What if", out / "what-if.html")


def _check_crossed(conditions: "Sequence[Condition]", cells: "Sequence[AlteredCell]") -> bool:
    """Say which conditions hold for an altered copy, and whether any does; the run as it was is not asked.

    Raises
    ------
    ConfigError
        If a condition holds for none, and of one copy or of all it cannot be said.
    """
    # What cannot be said ends the command only where nothing is crossed.
    crossed, unsaid = False, []
    for condition in conditions:
        measured = [cell for cell in cells if cell.measures(condition.name)]
        if not measured:
            unsaid.append(ConfigError(f"--fail-if {condition.text}: no altered copy measures this"))
        for cell in measured:
            try:
                holds = condition.is_crossed(cell.findings)
            except ConfigError as problem:
                unsaid.append(problem)
                continue
            if holds:
                crossed = True
                line = f"{condition.text} ({cell.alteration.label})"
                err_console.print(f"[red]threshold crossed:[/red] {escape(line)}", soft_wrap=True)
    if unsaid and not crossed:
        raise unsaid[0]
    return crossed
