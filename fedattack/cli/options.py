"""Arguments and options that several commands share."""

from collections.abc import Iterable
from contextlib import suppress
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


PresetName = Annotated[
    str,
    typer.Argument(
        help="Name of a preset; `fedattack list` shows them.", metavar="PRESET", autocompletion=complete_preset
    ),
]

PresetOrApp = Annotated[
    list[str],
    typer.Argument(
        help="Name of a preset, which `fedattack list` shows; the folder of a Flower app; or, after --, the `flwr run` "
        "that runs it.",
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
    Path, typer.Option("--out", "-o", help="Folder of the results; several may share one.", metavar="DIR")
]

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change a setting of the preset, or of all cells, or a key of an app's run config; repeatable.",
        metavar="KEY=VALUE",
        autocompletion=complete_setting,
    ),
]

Sensitive = Annotated[
    str | None,
    typer.Option(
        help="Of an app: ask what stands in a column of the model's input, such as 3, or sex=3-4.", metavar="NUMBER"
    ),
]

Holds = Annotated[
    int | None,
    typer.Option("--property", help="Of an app: ask which clients hold examples of a class.", metavar="CLASS"),
]

Groups = Annotated[
    Path | None,
    typer.Option(help="Of an app: ask which group a client is in, as a TOML file says it.", metavar="FILE"),
]

Without = Annotated[
    list[str] | None,
    typer.Option(help="What the attacker of an app does not know: auxiliary, training, limits, shares."),
]

HoldOut = Annotated[
    float | None,
    typer.Option(
        help="Of an app: keep clients from training on a share of their examples, such as 0.1, so that membership can "
        "be asked where nobody evaluates. It changes the run.",
        metavar="SHARE",
    ),
]

ActiveServer = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Simulate an app with a server that departs from the protocol in the first round: imprint or fishing.",
        metavar="NAME",
    ),
]

FirstSeed = Annotated[int | None, typer.Option("--seed", help="First seed; the preset's if not given.", min=0)]

SeedCount = Annotated[int | None, typer.Option("--seeds", help="How many seeds; the preset's if not given.", min=1)]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

Everything = Annotated[
    bool, typer.Option("--all", help="Show all findings, and what verdicts rest on; without, headlines and leaks.")
]

FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        help='Exit with 3 if this holds: "sia.asr > 0.3"; "sia.asr.low > 0.3", of the interval\'s lower end; '
        '"sia.asr.verdict == leak"; or "verdict == leak", of any question. Repeatable.',
    ),
]

Junit = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        help="Write a JUnit file, too: a test case for each question and each --fail-if, for servers of continuous "
        "integration.",
        metavar="FILE",
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

Device = Annotated[str, typer.Option("--device", help="Where attacks and an app's clients compute: auto, cpu or cuda.")]

Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="How the attack computes, such as shadows=exact; repeatable.", metavar="KEY=VALUE"),
]

Memory = Annotated[
    str | None,
    typer.Option(
        help="What the attack's work may hold in each process, such as 2GiB (the default) or 300MB, beside 0.4 GiB of "
        "Python and torch; with less it is slower. Short for --option memory=…"
    ),
]

Cluster = Annotated[
    str,
    typer.Option(
        "--cluster",
        help="A Ray cluster whose machines share the work: HOST:PORT, ray://HOST:PORT or auto. What does not gain by "
        "it runs here.",
        metavar="ADDRESS|auto",
        envvar="FEDATTACK_CLUSTER",
        callback=choose,
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

Every = Annotated[int, typer.Option("--every", help="Keep every K-th round, the first one included.", metavar="K")]

Clients = Annotated[
    str,
    typer.Option(
        "--clients",
        help="Keep the replies of a share of each round's clients, such as 0.1, or of nodes by their ids: ID,ID.",
        metavar="SHARE|IDS",
    ),
]

SkipDamaged = Annotated[bool, typer.Option("--skip-damaged", help="Leave out damaged rounds instead of refusing.")]

Pdf = Annotated[
    bool,
    typer.Option(
        "--pdf", help="Print the report to report.pdf, too: by Chromium, Chrome, Edge or Brave, if installed."
    ),
]
