"""`fedattack export`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import tell
from fedattack.cli.options import AsJson
from fedattack.cli.steps import end_incomplete, say_lacking


def export(
    folder: Annotated[Path, typer.Argument(help="A run folder with a report.", metavar="DIR")],
    mlflow: Annotated[
        str | None,
        typer.Option(
            help=(
                "Add a run to this MLflow: a folder, which is made, or a tracking URI such as http://HOST:PORT. "
                "The environment variable MLFLOW_EXPERIMENT_NAME names the experiment; by default it is "
                "fedattack."
            ),
            metavar="FOLDER|URI",
        ),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Write TensorBoard events into this new folder.", metavar="FOLDER")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a report's findings, its curves by round and its page into MLflow, TensorBoard or both.

    You need fedattack[mlflow] or fedattack[tensorboard]. Findings name clients: whoever can read the tracker can read
    them.

    Example: `fedattack export runs/first --mlflow runs/mlflow --tensorboard runs/tensorboard/first`
    """
    from fedattack.runs import trackers

    trackers.check_trackers(mlflow, tensorboard)
    # Read once, for both trackers.
    report = trackers.read_report(folder)
    written = {}
    if mlflow:
        written["mlflow"] = trackers.write_mlflow(report, mlflow)
    if tensorboard:
        written["tensorboard"] = trackers.write_tensorboard(report, tensorboard)
    lines = [f"Exported to {name}: [bold]{escape(where)}[/bold]" for name, where in written.items()]
    tell(written, "\n".join(lines), as_json)
    say_lacking(report.lacking)
    end_incomplete(report.lacking)
