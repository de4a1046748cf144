"""Arguments and options that several commands share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from fedattack.cli.console import set_quiet


def _beginning(names: Iterable[str], word: str) -> list[str]:
    return [name for name in names if name.startswith(word)]


def complete_preset(incomplete: str) -> list[str]:
    """List the presets that a shell may put in the place of a word; this and the others import no torch."""
    from fedattack.runs.presets import preset_names

    return _beginning(preset_names(), incomplete)


def complete_attack(incomplete: str) -> list[str]:
    """List the attacks."""
    from fedattack.runs.checks import attack_names

    return _beginning(attack_names(), incomplete)


def complete_reproduction(incomplete: str) -> list[str]:
    """List the reproductions."""
    from fedattack.reproduce import reproduction_names

    return _beginning(reproduction_names(), incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """List the settings as ``key=``; after that, the words that a setting may have."""
    from fedattack.runs.settings import open_settings

    known = open_settings()
    key, separator, _ = incomplete.partition("=")
    if not separator:
        return _beginning([f"{name}=" for name in known], incomplete)
    values = known[key].values if key in known else ()
    return _beginning([f"{key}={value}" for value in values if value != ":"], incomplete)


def complete_runtime(incomplete: str) -> list[str]:
    """List what a preset can run on."""
    from fedattack.runs.checks import RUNTIMES

    return _beginning(RUNTIMES, incomplete)


PresetName = Annotated[
    str,
    typer.Argument(
        help="Name of a preset; `fedattack list` shows them.", metavar="PRESET", autocompletion=complete_preset
    ),
]

AttackName = Annotated[
    str,
    typer.Argument(
        help="Name of an attack; `fedattack list` shows them.", metavar="NAME", autocompletion=complete_attack
    ),
]

ReproductionName = Annotated[
    str,
    typer.Argument(
        help="Name of a reproduction; `fedattack list` shows them.",
        metavar="NAME",
        autocompletion=complete_reproduction,
    ),
]

Folder = Annotated[Path, typer.Argument(help="A run folder: the one that holds record/.", metavar="DIR")]

Out = Annotated[Path, typer.Option("--out", "-o", help="Run folder to create.", metavar="DIR")]

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting of the preset; repeatable.",
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
    ),
]

FirstSeed = Annotated[int | None, typer.Option("--seed", help="First seed; the preset's if not given.", min=0)]

SeedCount = Annotated[int | None, typer.Option("--seeds", help="How many seeds; the preset's if not given.", min=1)]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help='Exit with 3 if this holds: "sia.asr > 0.3"; "sia.asr.low > 0.3", of the interval\'s lower end; '
        '"sia.asr.verdict == leak"; or "verdict == leak", of any headline. Repeatable.',
    ),
]

FailIfClaim = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help='Exit with 3 if this holds: "claim.verdict == contradicted"; "claim.verdict != consistent"; '
        '"claim.epsilon-configured > 10". Repeatable.',
    ),
]

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show neither progress nor notes; warnings stay.", callback=set_quiet),
]

On = Annotated[
    str,
    typer.Option(
        "--on",
        help="What clients and server run on: simulation; processes, which talk over TLS; processes-insecure; "
        "or superlink, the one that FEDATTACK_SUPERLINK names.",
        autocompletion=complete_runtime,
    ),
]

Device = Annotated[str, typer.Option("--device", help="Where attacks compute: auto, cpu or cuda.")]

Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="How the attack computes, such as shadows=exact; repeatable.", metavar="KEY=VALUE"),
]

CellChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting of all cells; repeatable.",
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
    ),
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
