"""The command line: all commands, and one line for whatever goes wrong."""

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import click
import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from fedattack.base.errors import ConfigError, FedAttackError, RunError, short
from fedattack.base.extra import what_to_install
from fedattack.base.failures import is_of_memory
from fedattack.base.imports import end_without_collections
from fedattack.base.version import __version__
from fedattack.cli.commands.attack import attack
from fedattack.cli.commands.audit import audit
from fedattack.cli.commands.check import check
from fedattack.cli.commands.claim import claim
from fedattack.cli.commands.compare import compare
from fedattack.cli.commands.download import download
from fedattack.cli.commands.export import export
from fedattack.cli.commands.gather import gather
from fedattack.cli.commands.keygen import keygen
from fedattack.cli.commands.list_all import list_all
from fedattack.cli.commands.observe import observe
from fedattack.cli.commands.project import project
from fedattack.cli.commands.report import report
from fedattack.cli.commands.reproduce import reproduce
from fedattack.cli.commands.resume import resume
from fedattack.cli.commands.shrink import shrink
from fedattack.cli.commands.simulate import simulate
from fedattack.cli.commands.tradeoff import tradeoff
from fedattack.cli.commands.what_if import what_if
from fedattack.cli.console import err_console
from fedattack.cli.steps import BAD_INPUT, show_error


class AuditCommand(TyperCommand):
    """A command that needs all that ``fedattack[audit]`` installs, and says so before it does anything."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises
        ------
        ConfigError
            If the extra is not installed.
        """
        # Before options are looked at: a server's environment would fail at the first import.
        if lacking := what_to_install(ctx.command_path):
            raise ConfigError(lacking)
        return super().invoke(ctx)


class BeginCommand(AuditCommand):
    """`fedattack audit`, which shows how to begin where nothing is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line; without one, show three ways to begin and end as bad input does."""
        # A shell that completes a word parses what stands before it.
        if not args and not ctx.resilient_parsing:
            err_console.print(escape(_WAYS), soft_wrap=True, highlight=False)
            ctx.exit(BAD_INPUT)
        return super().parse_args(ctx, args)


class Commands(TyperGroup):
    """All commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # click itself says what a misspelt command may mean. Typer, from 0.20 on, would say it again.
        self.suggest_commands = False


_WAYS = """What do you want to audit? Three ways to begin:

  fedattack audit quickstart --out runs/first
      an example that comes with fedattack; it takes minutes
  fedattack audit path/to/app --out runs/mine
      your own Flower app: the folder with its pyproject.toml
  fedattack audit --out runs/mine -- flwr run path/to/app --stream
      the command that runs your app

`fedattack list` shows more examples, and `fedattack audit --help` all options."""

app = typer.Typer(
    name="fedattack",
    cls=Commands,
    help="Measure what a Flower federated-learning deployment leaks to its server.",
    epilog="Begin with `fedattack audit quickstart --out runs/first`, then open runs/first/report.html. "
    "`fedattack COMMAND --help` explains a command.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Audit": (audit, report, check, list_all),
    "Your deployment": (observe, gather, resume, keygen),
    "Claims": (claim,),
    "Compare and export": (compare, export, what_if, tradeoff),
    "Research": (reproduce, simulate, attack, project, shrink, download),
}
"""The commands, by the panels of the help."""

_OF_RECORDS = (observe, check, keygen, project, shrink)
"""Commands that a server's own environment has, too, in which nothing is attacked."""

for _panel, _commands in _PANELS.items():
    for _command in _commands:
        # A Python function cannot be called `list` beside the built-in.
        _name = {"list_all": "list"}.get(_command.__name__)
        _kind: type[TyperCommand] = AuditCommand
        if _command in _OF_RECORDS:
            _kind = TyperCommand
        elif _command is audit:
            _kind = BeginCommand
        app.command(_name, cls=_kind, rich_help_panel=_panel)(_command)


def _version(value: bool) -> None:
    if value:
        print(f"fedattack {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _limit_met(problem: Exception) -> str:
    """Say which limit of this machine, and no fault of the program, ended a command; empty if it was none."""
    if isinstance(problem, ModuleNotFoundError):
        return what_to_install("this command")
    if isinstance(problem, RecursionError):
        return "something in the input is nested too deeply to be read; remove some levels"
    if isinstance(problem, UnicodeEncodeError):
        # The part of the text that has no place in the encoding.
        text = problem.object[problem.start : problem.end]
        return f"{text!a} cannot be written as {problem.encoding}; rename whatever has it in its name"
    if is_of_memory(problem):
        reason = short(str(problem), 120) or "no more memory could be allocated"
        return f"there is not enough memory for this ({reason}); end other programs, or raise the limit (ulimit -v)"
    return ""


def _in_one_line(problem: click.ClickException) -> str:
    """Say what of the command line is wrong as everything else is said, and not in a box below the usage."""
    # Usage errors know their command.
    context = getattr(problem, "ctx", None)
    said = problem.format_message().rstrip(".")
    if context is not None:
        said += f"; see `{context.command_path} --help`"
    return said


def _write_any_text() -> None:
    """Show what the terminal's encoding has no character for by its number."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal of ASCII still shows what was found.
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line: one line and exit code 2 on bad input, 3 on a crossed gate, 4 if something is left out."""
    _write_any_text()
    # Threads of torch that wait for each other sleep: by default they take a core meanwhile, also from other programs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_without_collections()
    try:
        # standalone_mode=False: click raises, and this function says what and ends.
        code = app(prog_name="fedattack", standalone_mode=False)
    except (FedAttackError, OSError) as problem:
        # Whatever the system refuses (a folder of somebody else, a full disk) is no fault of the program.
        show_error(problem)
        code = BAD_INPUT
    except click.exceptions.Abort:
        err_console.print("interrupted")
        # 128 + SIGINT, as shells count.
        code = 130
    except click.ClickException as problem:
        # Older versions of click have no such error, and show the help at once.
        if isinstance(problem, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            problem.show()
        else:
            show_error(ConfigError(_in_one_line(problem)))
        code = BAD_INPUT
    except (ImportError, MemoryError, RuntimeError, UnicodeEncodeError) as problem:
        line = _limit_met(problem)
        if not line:
            # A fault of the program keeps its traceback.
            raise
        show_error(RunError(line))
        code = BAD_INPUT
    sys.exit(code or 0)
