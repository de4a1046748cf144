"""`fedattack gather`."""

from pathlib import Path
from typing import Annotated

import typer

from fedattack.cli.options import (
    AsJson,
    Device,
    Everything,
    FailIf,
    Groups,
    Holds,
    Memory,
    Options,
    Out,
    OwnExamples,
    OwnLosses,
    OwnUpdate,
    Quiet,
    Sensitive,
    Trust,
    Without,
)


def gather(
    record: Annotated[Path, typer.Argument(help="A record, or the run folder that holds it.", metavar="RECORD")],
    witnesses: Annotated[
        list[Path], typer.Argument(help="Folders that a WitnessMod wrote, of all machines.", metavar="WITNESS…")
    ],
    out: Out,
    model: Annotated[
        str | None, typer.Option(help="The clients' model, instead of the noted one: module:function.")
    ] = None,
    loss: Annotated[str | None, typer.Option(help="The clients' loss, instead of the noted one.")] = None,
    of_app: Annotated[
        Path | None,
        typer.Option("--app", help="Folder of the clients' app; its code is run, to compute losses.", metavar="PATH"),
    ] = None,
    options: Options = None,
    memory: Memory = None,
    device: Device = "auto",
    examples: OwnExamples = None,
    losses: OwnLosses = None,
    update: OwnUpdate = None,
    sensitive: Sensitive = None,
    holds: Holds = None,
    groups: Groups = None,
    without: Without = None,
    fail_if: FailIf = None,
    trust: Trust = False,
    everything: Everything = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Combine a server's record with what witnesses noted on clients' machines; attack it and report, as audit does.

    `fedattack.witness.WitnessMod` writes these notes; copy them to this machine. The folders are data: fedattack
    imports a model that they name only with --trust, even from the working directory.

    Example: `fedattack gather audit/record north/witness south/witness --out runs/mine --trust`
    """
    from fedattack.cli.apps import AppWords, gather_run
    from fedattack.cli.steps import Output
    from fedattack.runs.checks import check_device

    check_device(device)
    choices = AppWords(
        model=model,
        loss=loss,
        examples=examples,
        losses=losses,
        update=update,
        options=options or [],
        memory=memory,
        sensitive=sensitive,
        holds=holds,
        groups=groups,
        without=without or [],
        app=of_app,
    )
    gather_run(record, witnesses, choices, out, device, fail_if, trust=trust, output=Output(as_json, everything))
