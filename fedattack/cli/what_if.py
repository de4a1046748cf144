"""`fedattack what-if`: a finished run, attacked again on altered copies of its record."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from fedattack.base.errors import ConfigError
from fedattack.cli import commands
from fedattack.cli.console import err_console, out_console, show_page, show_table

if TYPE_CHECKING:
    from fedattack.attacks import Attack
    from fedattack.audit.gate import Condition
    from fedattack.grids.cell import Request
    from fedattack.grids.whatif.page import AlteredCell


@dataclass(frozen=True)
class WhatIfWords:
    """What the command line says of altered copies.

    Attributes
    ----------
    secagg, noise, keep
        What to alter.
    seed
        Decides the noise.
    options
        Options of attacks.
    trust
        Whether what the run folder names is followed.
    """

    secagg: bool
    noise: Sequence[str]
    keep: Sequence[str]
    seed: int
    options: Sequence[str]
    trust: bool


def ask_what_if(folder: Path, words: WhatIfWords, request: "Request", fail_if: list[str] | None, as_json: bool) -> None:
    """Check the words, attack all copies, and show what came out."""
    from fedattack.grids.whatif.alteration import NOTHING, read_alterations
    from fedattack.grids.whatif.asked import check_room, check_run, list_siblings, options_of_run
    from fedattack.runs.asked import asked_of_knowledge, asked_of_study
    from fedattack.runs.checks import check_attacks, check_conditions, check_device, options_among

    # Words are checked before torch is imported, and before attacks, which take minutes.
    conditions = commands._conditions(fail_if)
    cells = [NOTHING, *read_alterations(words.secagg, words.noise, words.keep)]
    check_device(request.device)
    out = request.folder
    if out.exists():
        raise ConfigError(f"{out} is there already; give this comparison a folder of its own")
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{out} lies in {folder}, which stays as it is; give this comparison a folder of its own")
    parts, attacks = check_run(folder, cells)
    possible = [*attacks, *(list_siblings(attacks) if words.secagg else [])]
    given = commands._options(words.options, request.memory, possible)
    check_attacks(possible, given)
    check_conditions(conditions, possible, isolating=True)
    check_room(parts, out, cells, keep_records=request.keep_records)
    trusted = set()
    if words.trust:
        trusted = commands._trust([*asked_of_knowledge(folder), *asked_of_study(folder)])
    wanted = {**options_of_run(folder, possible), **given}

    def choose(chosen: Sequence[str]) -> "list[Attack]":
        return commands._choose(chosen, options_among(wanted, chosen), request.device)

    from fedattack.grids.whatif.design import Altering, what_if

    design = Altering(
        request=request,
        cells=cells,
        folder=folder,
        parts=parts,
        attacks=attacks,
        choose=choose,
        seed=words.seed,
        trusted=trusted,
        command=commands._command(),
    )
    results = what_if(design)
    found = list(design.found.values())
    if as_json:
        print(json.dumps(results, indent=2, allow_nan=False))
    else:
        _show(out, found)
    if _check_crossed(conditions, found[1:]):
        raise typer.Exit(commands.THRESHOLD_CROSSED)


def _show(out: Path, cells: "Sequence[AlteredCell]") -> None:
    from fedattack.grids.whatif.page import list_glances, list_not_asked
    from fedattack.report.words import NOTHING

    for table in list_glances(cells):
        rows = []
        for label, value, interval, verdict in table.rows:
            rows.append((label, verdict if value == NOTHING else f"{value} ({interval}), {verdict}"))
        show_table(f"{table.title} ({table.caption})", ("what if", "result"), rows)
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
    crossed, unsaid = False, []
    for condition in conditions:
        measured = [cell for cell in cells if cell.measures(condition.name)]
        if not measured:
            unsaid.append(ConfigError(f"--fail-if {condition.text}: this was measured of no altered copy"))
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
