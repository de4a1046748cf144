"""`fedattack reproduce`."""

from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import say_progress, tell, watch_bars
from fedattack.cli.options import (
    AsJson,
    Changes,
    Cluster,
    Device,
    KeepRecords,
    Memory,
    Quiet,
    ReproductionName,
    ResultsOut,
    SeedCount,
)
from fedattack.cli.steps import BAD_INPUT


def reproduce(
    name: ReproductionName,
    out: ResultsOut,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            help="Run only these cells of the table, such as dataset=digits; repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    changes: Changes = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="A file that replaces a dataset, .npz or .toml; repeatable.", metavar="NAME=PATH"),
    ] = None,
    seeds: SeedCount = None,
    device: Device = "auto",
    memory: Memory = None,
    cluster: Cluster = "",
    keep_records: KeepRecords = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Rerun a paper's table or figure, and write our numbers beside the paper's: DIR/NAME.md, .json and .svg.

    Each cell is a run folder in DIR/cells, as `audit` makes them. The results are written again after each cell. Run
    the same command again to continue where it stopped. A cell's record is deleted once it is judged.

    Examples: `fedattack reproduce sia-table3 --out runs/paper --only dataset=synthetic --only framework=fedavg`;
    `fedattack reproduce sia-fig4 --out runs/paper --data mnist=mnist10k.npz`
    """
    from fedattack.grids.cell import Request, check_request
    from fedattack.grids.reproduce import load_reproduction
    from fedattack.grids.reproduce.asked import check_words

    spec = load_reproduction(name)
    check_words(spec, only or [], changes or [], data or [])
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
    from fedattack.grids.reproduce.design import reproduce as run

    results = run(spec, request, only=only or [], data=data or [])
    tell(results, f"Results: [bold]{escape(str(out / name))}.md[/bold]", as_json)
    states = [cell["state"] for cell in results["cells"]]
    # Left-out cells are no failure, unless nothing is done.
    if "failed" in states or "done" not in states:
        raise typer.Exit(BAD_INPUT)
