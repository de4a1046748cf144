"""`fedattack keygen`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import out_console


def keygen(
    file: Annotated[
        Path, typer.Argument(help="File for the private key; the public key gets the same name with .pub.")
    ],
) -> None:
    """Make a key with which observers sign their records: set FEDATTACK_SIGNING_KEY to its file.

    Give the public key, or its fingerprint, to everybody who gets the record: `fedattack check DIR --signer FILE.pub`.

    Example: `fedattack keygen recorder.pem`
    """
    from fedattack.record.signature import make_key, public_file

    name = make_key(file.expanduser())
    out_console.print(
        f"{escape(str(file))} signs as [bold]{name}[/bold]; give {escape(str(public_file(file)))} to whoever checks "
        f"your records."
    )
