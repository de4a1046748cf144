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
from fedattack.cli.console import err_console, out_console, show_page, show_table, watch_bars

if TYPE_CHECKING:
    from fedattack.attacks import Attack
    from fedattack.audit.finding import Condition
    from fedattack.grids.whatif.cell import AlteredCell


@dataclass(frozen=True)
class WhatIfWords:
    """What the command line says of altered copies.

    Attributes
    ----------
    secagg, noise, keep
        What to alter.
    seed
        Decides the noise.
    options, memory
        Options of attacks; what one process may hold, as in ``2GiB``.
    keep_records, trust
        Whether copies stay; whether what the run folder names is followed.
    """

    secagg: bool
    noise: Sequence[str]
    keep: Sequence[str]
    seed: int
    options: Sequence[str]
    memory: str | None
    keep_records: bool
    trust: bool


def ask_what_if(
    folder: Path, out: Path, told: WhatIfWords, device: str, fail_if: list[str] | None, as_json: bool
) -> None:
    """Check the words, attack all copies, and show what came out."""
    from fedattack.base.machine import MEMORY, read_size
    from fedattack.grids.whatif.alteration import NOTHING, read_alterations
    from fedattack.grids.whatif.asked import check_room, check_run, options_of_run, siblings
    from fedattack.runs.asked import asked_of_knowledge, asked_of_study
    from fedattack.runs.checks import check_attacks, check_conditions, check_device, options_among

    # Words are checked before torch is imported, and before attacks, which take minutes.
    conditions = commands._conditions(fail_if)
    alterations = read_alterations(told.secagg, told.noise, told.keep)
    check_device(device)
    out = out.expanduser().absolute()
    if out.exists():
        raise ConfigError(f"{out} is there already; give this comparison a folder of its own")
    if out.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{out} lies in {folder}, which stays as it is; give this comparison a folder of its own")
    parts, names = check_run(folder, alterations)
    possible = [*names, *(siblings(names) if told.secagg else [])]
    given = commands._options(told.options, told.memory, possible)
    check_attacks(possible, given)
    check_conditions(conditions, possible, isolating=True)
    check_room(parts, out, [NOTHING, *alterations], keep_records=told.keep_records)
    trusted = set()
    if told.trust:
        trusted = commands._trusted([*asked_of_knowledge(folder), *asked_of_study(folder)])
    wanted = {**options_of_run(folder, possible, trusted), **given}

    def choose(chosen: Sequence[str]) -> "list[Attack]":
        return commands._choose(chosen, options_among(wanted, chosen), device)

    from fedattack.grids.whatif.study import WhatIf, what_if

    job = WhatIf(
        folder=folder,
        parts=parts,
        out=out,
        names=names,
        choose=choose,
        seed=told.seed,
        device=device,
        memory=read_size(told.memory) if told.memory else MEMORY,
        keep_records=told.keep_records,
        trusted=trusted,
        command=commands._command(),
    )
    with watch_bars() as watch:
        results, cells = what_if(job, alterations, watch)
    if as_json:
        print(json.dumps(results, indent=2, allow_nan=False))
    else:
        _show(out, cells)
    if _crossed(conditions, cells[1:]):
        raise typer.Exit(commands.THRESHOLD_CROSSED)


def _show(out: Path, cells: "Sequence[AlteredCell]") -> None:
    from fedattack.grids.whatif.page import glances_of, not_asked_of
    from fedattack.report.words import NOTHING

    for table in glances_of(cells):
        rows = []
        for label, value, interval, verdict in table.rows:
            rows.append((label, verdict if value == NOTHING else f"{value} ({interval}), {verdict}"))
        show_table(f"{table.title} ({table.caption})", ("what if", "result"), rows)
    for line in not_asked_of(cells):
        out_console.print(escape(f"not asked: {line}"), soft_wrap=True)
    show_page("What if", out / "what-if.html")


def _crossed(conditions: "Sequence[Condition]", cells: "Sequence[AlteredCell]") -> bool:
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
                holds = condition.crossed(cell.findings)
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
