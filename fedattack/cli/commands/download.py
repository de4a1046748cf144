"""`fedattack download`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import out_console


def download(
    dataset: Annotated[str, typer.Argument(help="Name of a dataset; `fedattack list data` shows them.")],
    root: Annotated[Path | None, typer.Option(help="Folder to put it in; by default the cache.")] = None,
) -> None:
    """Download a dataset. No other command downloads data.

    Example: `fedattack download mnist`
    """
    from fedattack.data import download_dataset

    out_console.print(f"{dataset} is in [bold]{escape(str(download_dataset(dataset, root=root)))}[/bold].")
