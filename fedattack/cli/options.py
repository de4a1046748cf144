"""Arguments and options that several commands share."""

from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedattack.base.cluster import choose
from fedattack.cli.console import set_quiet

if TYPE_CHECKING:
    from fedattack.record import Keep


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
    from fedattack.grids.reproduce import reproduction_names

    return _beginning(reproduction_names(), incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """List the settings as ``key=``; after that, the words that a setting may have."""
    from fedattack.runs.settings import open_settings

    known = open_settings()
    key, separator, _ = incomplete.partition("=")
    if not separator:
        return _beginning([f"{name}=" for name in known], incomplete)
    values = known[key].values if key in known else ()
    # ":" stands for any import path, which a shell cannot complete.
    return _beginning([f"{key}={value}" for value in values if value != ":"], incomplete)


def complete_topic(incomplete: str) -> list[str]:
    """List what ``fedattack list`` can be asked for."""
    from fedattack.cli.listing import TOPICS

    return _beginning(TOPICS, incomplete)


def choose_kept(every: int, clients: str) -> "Keep":
    """Read what is to be kept of a run.

    Clients are a share, or ids of nodes. An id is a whole number above 1, or no number at all.
    """
    from fedattack.record import Keep

    kept: float | tuple[str, ...] = tuple(map(str.strip, clients.split(",")))
    with suppress(ValueError):
        share = float(clients)
        # A share up to 1; a whole number above 1 is an id of a node.
        if share <= 1 or not clients.isdecimal():
            kept = share
    return Keep(every, kept)


def complete_runtime(incomplete: str) -> list[str]:
    """List what a preset or an app can run on."""
    from fedattack.runs.runtimes import RUNTIMES

    return _beginning(RUNTIMES, incomplete)


OF_APP = "An app of your own"
"""Panel of the help with what only an audit of an app takes."""

PresetName = Annotated[
    str,
    typer.Argument(
        help="Name of a preset; `fedattack list` shows them.", metavar="PRESET", autocompletion=complete_preset
    ),
]

PresetOrApp = Annotated[
    list[str],
    typer.Argument(
        help=(
            "Name of a preset, which `fedattack list` shows; the folder of a Flower app; or, after --, the `flwr "
            "run` command that runs it."
        ),
        metavar="PRESET | APP | -- flwr run …",
        autocompletion=complete_preset,
    ),
]

AttackName = Annotated[
    str,
    typer.Argument(
        help="Name of an attack; `fedattack list attacks` shows them.", metavar="NAME", autocompletion=complete_attack
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

ResultsOut = Annotated[
    Path, typer.Option("--out", "-o", help="Folder of the results, which several runs may share.", metavar="DIR")
]

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting of the preset or of all cells, or a key of an app's run config; repeatable.",
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
    ),
]

Sensitive = Annotated[
    str | None,
    typer.Option(
        help="Infer a column of the model's input that the server does not have, such as 3, or sex=3-4; one of more "
        "than 20 values is asked for as a number. By default one column of a table is chosen; none asks for none.",
        metavar="NUMBER",
        rich_help_panel=OF_APP,
    ),
]

Holds = Annotated[
    int | None,
    typer.Option(
        "--property", help="Infer which clients hold examples of this class.", metavar="CLASS", rich_help_panel=OF_APP
    ),
]

Groups = Annotated[
    Path | None,
    typer.Option(
        help="Infer which group each client belongs to; a TOML file lists the groups.",
        metavar="FILE",
        rich_help_panel=OF_APP,
    ),
]

Without = Annotated[
    list[str] | None,
    typer.Option(
        help="Remove something that the attacker knows: auxiliary, training, limits or shares; repeatable.",
        rich_help_panel=OF_APP,
    ),
]

HoldOut = Annotated[
    float | None,
    typer.Option(
        help=(
            "Keep clients from training on a share of their examples, such as 0.1, to test membership if nobody "
            "evaluates. This changes the run."
        ),
        metavar="SHARE",
        rich_help_panel=OF_APP,
    ),
]

OwnExamples = Annotated[
    str | None,
    typer.Option(
        "--examples",
        help="Your function (partition, partitions) that returns a client's examples and labels, and its held-out "
        "examples and labels if it has any; for apps of any framework.",
        metavar="MODULE:FUNCTION",
        rich_help_panel=OF_APP,
    ),
]

OwnLosses = Annotated[
    str | None,
    typer.Option(
        "--losses",
        help="Your function (arrays, examples, labels) that returns the loss of each example.",
        metavar="MODULE:FUNCTION",
        rich_help_panel=OF_APP,
    ),
]

OwnUpdate = Annotated[
    str | None,
    typer.Option(
        "--update",
        help="Your function (arrays, examples, labels, seed) that returns the arrays that a client with these examples "
        "would send.",
        metavar="MODULE:FUNCTION",
        rich_help_panel=OF_APP,
    ),
]

ActiveServer = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Simulate a server that departs from the protocol in the first round: imprint or fishing.",
        metavar="NAME",
        rich_help_panel=OF_APP,
    ),
]


class ControlLength(StrEnum):
    """How long positive controls may take. The typer that the oldest Flower needs knows no ``Literal``."""

    SHORT = "short"
    FULL = "full"


Control = Annotated[
    ControlLength,
    typer.Option(
        "--control",
        help=(
            "How long positive controls of attacks that show nothing may take: as long as the app's own run, or half "
            "a minute (short); or as long as they need (full)."
        ),
        rich_help_panel=OF_APP,
    ),
]

FirstSeed = Annotated[int | None, typer.Option("--seed", help="First seed; by default the preset's, or 0.", min=0)]

SeedCount = Annotated[
    int | None, typer.Option("--seeds", help="Number of seeds; by default the preset's, or 1.", min=1)
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

Everything = Annotated[
    bool,
    typer.Option(
        "--all",
        help="Show all findings, the grounds of verdicts, and why questions were not asked; by default, only headlines "
        "and leaks.",
    ),
]

FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help=(
            'Exit with 3 if the condition holds: "sia.asr > 0.3"; "sia.asr.low > 0.3", about the interval\'s '
            'lower end; "sia.asr.verdict == leak"; or "verdict == leak", about any question. Repeatable.'
        ),
    ),
]

Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        help="Also write a JUnit file for continuous integration, with a test case for each question and each "
        "--fail-if.",
        metavar="FILE",
    ),
]

FailIfClaim = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help='Exit with 3 if the condition holds: "claim.verdict == contradicted"; "claim.verdict != consistent"; '
        '"claim.epsilon-configured > 10". Repeatable.',
    ),
]

Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Show no progress and no notes; warnings stay.", callback=set_quiet),
]

On = Annotated[
    str,
    typer.Option(
        "--on",
        help=(
            "Where clients and server run: simulation; processes, which talk over TLS; processes-insecure; or "
            "superlink, which FEDATTACK_SUPERLINK names."
        ),
        autocompletion=complete_runtime,
    ),
]

Device = Annotated[str, typer.Option("--device", help="Where attacks and an app's clients compute: auto, cpu or cuda.")]

Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", help="Set an option of an attack, such as shadows=exact; repeatable.", metavar="KEY=VALUE"
    ),
]

Memory = Annotated[
    str | None,
    typer.Option(
        help=(
            "Memory for an attack in each process, such as 2GiB (the default) or 300MB, in addition to 0.4 GiB "
            "for Python and torch; with less memory it is slower. Short for --option memory=…"
        )
    ),
]

Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        help=(
            "Share the work with the machines of a Ray cluster: HOST:PORT, ray://HOST:PORT or auto. Work that "
            "gains nothing from it runs here."
        ),
        metavar="ADDRESS|auto",
        envvar="FEDATTACK_CLUSTER",
        callback=choose,
    ),
]

KeepRecords = Annotated[
    bool,
    typer.Option("--keep-records", help="Keep the records, which may take gigabytes; findings are always kept."),
]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import the code and read the files that the folder names. The command lists them first.",
    ),
]

Every = Annotated[int, typer.Option("--every", help="Keep every K-th round, starting with the first.", metavar="K")]

Clients = Annotated[
    str,
    typer.Option(
        "--clients",
        help="Keep the replies of a share of each round's clients, such as 0.1, or of the nodes with these ids: ID,ID.",
        metavar="SHARE|IDS",
    ),
]

SkipDamaged = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave out damaged rounds instead of refusing the record.")
]

Pdf = Annotated[
    bool,
    typer.Option(
        "--pdf", help="Also print the report to report.pdf, with Chromium, Chrome, Edge or Brave, if one is installed."
    ),
]
