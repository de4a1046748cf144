"""`fedattack project`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import tell
from fedattack.cli.options import AsJson


def project(
    record: Annotated[
        Path, typer.Argument(help="A record in the individual view, or a run folder with several.", metavar="RECORD")
    ],
    out: Annotated[Path, typer.Argument(help="Folder of the new record, or the new run folder.", metavar="OUT")],
    as_json: AsJson = False,
) -> None:
    """Turn a record of single updates into what a server behind secure aggregation would have seen.

    In a run folder, it projects the record of each seed. It does not copy knowledge and truth.

    Examples: `fedattack project runs/first/record runs/sums/record`; `fedattack project runs/first runs/sums`
    """
    from fedattack.record import Record, project_record, records_in

    rounds = 0
    # Records of a run folder keep their names below the new one.
    for name, path in records_in(record).items():
        rounds += len(project_record(Record(path, thinned=True), out / name))
    tell({"record": str(out), "rounds": rounds}, f"{rounds} rounds in [bold]{escape(str(out))}[/bold].", as_json)
