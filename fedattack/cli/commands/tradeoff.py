"""`fedattack tradeoff`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import out_console, say_progress, show_page, tell, watch_bars
from fedattack.cli.options import (
    AsJson,
    Changes,
    Cluster,
    Device,
    KeepRecords,
    Memory,
    PresetName,
    Quiet,
    ResultsOut,
    SeedCount,
)
from fedattack.cli.steps import BAD_INPUT


def tradeoff(
    preset: PresetName,
    out: ResultsOut,
    defences: Annotated[
        list[str] | None,
        typer.Option(
            "--defence",
            help=(
                "A defence with strengths of your choice, or a setting with its values, such as batch-size=16,4; "
                "repeatable. By default, all defences with their usual strengths."
            ),
            metavar="NAME[=S1,S2,…]",
        ),
    ] = None,
    seeds: SeedCount = None,
    changes: Changes = None,
    device: Device = "auto",
    memory: Memory = None,
    cluster: Cluster = "",
    keep_records: KeepRecords = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try defences at several strengths: measure what each costs the model, and how much success it leaves the attacks.

    This writes DIR/tradeoff-PRESET.json, .md, .svg and .html. Each cell, a defence at a strength, is a run folder in
    DIR/cells, as `audit` makes them. Run the same command again to continue where it stopped. It names defences that do
    not work with the preset, with the reason; the exit code is 2 only if you asked for them.

    Example: `fedattack tradeoff quickstart --out runs/tradeoff --defence sparsify=0.9,0.99 --defence dp-gaussian`
    """
    from fedattack.grids.cell import Request, check_request
    from fedattack.grids.tradeoff.grid import check_words
    from fedattack.runs.presets import load_preset

    check_words(load_preset(preset), defences or [], changes or [])
    request = Request(
        out=out,
        changes=changes or [],
        seeds=seeds,
        device=device,
        memory=memory,
        cluster=cluster,
        keep_records=keep_records,
        watching=watch_bars,
        tell=say_progress,
    )
    check_request(request)
    from fedattack.grids.tradeoff.design import tradeoff as run

    results = run(preset, request, wanted=defences or [])
    name = out / f"tradeoff-{preset}"
    tell(results, f"Results: [bold]{escape(str(name))}.md[/bold], .svg, .json and .html", as_json)
    if not as_json:
        show_page("Page", Path(f"{name}.html"))
        for line in results["summary"]:
            out_console.print(f"- {escape(line)}", soft_wrap=True)
    failed = {cell["defence"] for cell in results["cells"] if cell["state"] != "done"}
    # Without words defences that do not fit the preset are no failure.
    if failed and (defences or "none" in failed):
        raise typer.Exit(BAD_INPUT)
