"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

PresetName = Annotated[str, typer.Argument(help="Name of a preset; `fedattack list` shows them.", metavar="PRESET")]

Folder = Annotated[Path, typer.Argument(help="A run folder: the one that holds record/.", metavar="DIR")]

Out = Annotated[Path, typer.Option("--out", help="Run folder to create.", metavar="DIR")]

Changes = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting of the preset; repeatable.", metavar="KEY=VALUE")
]

FirstSeed = Annotated[int | None, typer.Option("--seed", help="First seed; the preset's if not given.", min=0)]

SeedCount = Annotated[int | None, typer.Option("--seeds", help="How many seeds; the preset's if not given.", min=1)]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

FailIf = Annotated[
    list[str] | None,
    typer.Option("--fail-if", help='Exit with 3 if this holds, for example "sia.asr > 0.3"; repeatable.'),
]

On = Annotated[
    str,
    typer.Option(
        "--on",
        help="What clients and server run on: simulation; processes, which talk over TLS; processes-insecure; "
        "or superlink, the one that FEDATTACK_SUPERLINK names.",
    ),
]

Device = Annotated[str, typer.Option("--device", help="Where attacks compute: auto, cpu or cuda.")]

Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="How the attack computes, such as shadows=exact; repeatable.", metavar="KEY=VALUE"),
]

CellChanges = Annotated[
    list[str] | None, typer.Option("--set", help="Change a setting of all cells; repeatable.", metavar="KEY=VALUE")
]

KeepRecords = Annotated[
    bool,
    typer.Option("--keep-records", help="Keep what the servers saw, gigabytes perhaps; the findings are always kept."),
]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Follow what the folder names: import its code, read its files elsewhere. What that is is said first.",
    ),
]

SkipDamaged = Annotated[bool, typer.Option("--skip-damaged", help="Leave out damaged rounds instead of refusing.")]

Pdf = Annotated[
    bool,
    typer.Option(
        "--pdf", help="Print the report to report.pdf, too: by Chromium, Chrome, Edge or Brave, if installed."
    ),
]
