"""Observe a ``flwr run`` from outside: a copy of its app is wrapped and run in its place, and the app stays as it is.

The copy has one more module, which wraps the project's own ServerApp as its owner would have done it. Its
pyproject.toml names this module's ServerApp. Where clients are witnessed, too, another module wraps the ClientApp.
"""

import ast
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import tomli_w
import typer

from fedattack.base.errors import ConfigError, RunError
from fedattack.base.files import make_private, signals_raise
from fedattack.base.untrusted import read_bytes, read_toml, refuse_irregular
from fedattack.record import Record
from fedattack.runs.bundle import app_files, copy_app

if TYPE_CHECKING:
    # Whoever names a preset that there is not is told so before Flower is imported.
    from fedattack.witness import HoldOut

MODULE = "fedattack_observed"
WITNESSED = "fedattack_witnessed"
_PYPROJECT = "pyproject.toml"
_MASKING = ("SecAggPlusWorkflow", "SecAggWorkflow")
_USAGE = "expected the command that runs the app, such as: flwr run . --stream"


@dataclass(frozen=True)
class FlwrRun:
    """The words of a ``flwr run``, and the values of its arguments and options as Flower itself understands them."""

    words: tuple[str, ...]
    parameters: Mapping[str, Any]

    @classmethod
    def parse(cls, words: Sequence[str]) -> "FlwrRun":
        """Read a command line that Flower would take, of an app in a folder."""
        if len(words) < 2 or Path(words[0]).name != "flwr" or words[1] != "run":
            raise ConfigError(f"{' '.join(words) or 'no command'}: {_USAGE}")
        try:
            parameters = _parameters(words[2:])
        except click.ClickException as cause:
            raise ConfigError(f"{' '.join(words)}: {cause.format_message()}") from None
        if parameters["app"].startswith("@"):
            raise ConfigError(
                f"{parameters['app']} is an app of Flower's hub, which the SuperLink fetches itself; fetch it into "
                "a folder, and run that"
            )
        return cls(tuple(words), parameters)

    @property
    def app(self) -> Path:
        """Folder of the app."""
        return Path(self.parameters["app"]).expanduser().resolve()

    @property
    def streams(self) -> bool:
        """Whether the command lasts as long as the run."""
        return bool(self.parameters["stream"])

    def of(self, app: Path) -> list[str]:
        """Return the words of the same run of another app."""
        wanted = {**self.parameters, "app": str(app)}
        arguments = self.words[2:]
        # One word of the command is the app; each is tried in its place.
        candidates = [[*arguments[:index], str(app), *arguments[index + 1 :]] for index in range(len(arguments))]
        # Without any, the app is the current folder.
        candidates.append([str(app), *arguments])
        for candidate in candidates:
            try:
                # Flower's own parser decides: the right candidate differs from the original in the app alone.
                if _parameters(candidate) == wanted:
                    return [*self.words[:2], *candidate]
            except click.ClickException:
                continue
        raise ConfigError(f"{' '.join(self.words)}: cannot tell which word is the app; write it first after `run`")


def _parameters(arguments: Sequence[str]) -> dict[str, Any]:
    from flwr.cli.app import app

    flwr, run = typer.main.get_command(app), None
    # typer makes a group of several commands; `run` is one of them.
    if isinstance(flwr, click.Group):
        run = flwr.get_command(click.Context(flwr), "run")
    if run is None:
        raise ConfigError("this version of Flower has no `flwr run`; install the one that fedattack asks for")
    parameters = dict(run.make_context("flwr run", [*arguments]).params)
    # In Flower 1.26 and older it is a path.
    return parameters | {"app": str(parameters["app"])}


def read_app(app: Path) -> dict[str, Any]:
    """Read the pyproject.toml of a Flower app, which states a ServerApp.

    Raises
    ------
    ConfigError
        If there is none, it is no regular file in that folder, cannot be read, or states no ServerApp.
    """
    path = app / _PYPROJECT
    refuse_irregular(path, ConfigError, app)
    config = read_toml(path, ConfigError, "give the folder of a Flower app")
    try:
        config["tool"]["flwr"]["app"]["components"]["serverapp"].partition(":")
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{app / _PYPROJECT} names no serverapp in [tool.flwr.app.components]; give the folder of a Flower app"
        ) from None
    return config


def wrap_app(
    app: Path,
    to: Path,
    out: Path,
    options: Mapping[str, Any],
    witness: Path | None = None,
    keep: int | None = None,
    run_folder: Path | None = None,
    hold_out: "HoldOut | None" = None,
    plan: Path | None = None,
) -> None:
    """Copy an app and put an observer around its ServerApp.

    Parameters
    ----------
    app, to
        Folder of the app's pyproject.toml, which is only read, and that of the copy.
    out, options
        Folder of the record, absolute, and further options; see :class:`fedattack.observe.ObservedServerApp`.
    witness, keep, hold_out
        Folder, absolute, that what clients and server train and evaluate on is noted in; it is made. A client that
        cannot write there, such as one on another machine, runs as it is. How many examples of each client are kept,
        and which it is kept from training on.
    run_folder
        What may lie in the app's folder and is no part of the app.
    plan
        What an active server sends in place of the model: file of a :class:`fedattack.apps.departing.Plan`.

    Raises
    ------
    ConfigError
        If there is no app, or it states no ServerApp, or clients are to be witnessed and it states no ClientApp.
    """
    config = read_app(app)
    flower = config["tool"]["flwr"]["app"]
    components = flower["components"]
    if witness is not None and not isinstance(components.get("clientapp"), str):
        raise ConfigError(
            f"{app / _PYPROJECT} names no clientapp in [tool.flwr.app.components]; name the app by which its "
            "clients train"
        )
    copy_app(app, to, without=run_folder)
    module, _, server = components["serverapp"].partition(":")
    # repr: values become literals of the module's code, and no code of their own.
    arguments = "".join(f", {name}={value!r}" for name, value in options.items())
    imports = "from fedattack.observe import ObservedServerApp\n"
    inner = server
    if witness is not None:
        imports = f"from fedattack.apps.server import WitnessedServerApp\n{imports}"
        inner = f"WitnessedServerApp({server}, {str(witness)!r})"
    if plan is not None:
        imports = f"from fedattack.apps.departing import DepartingServerApp\n{imports}"
        inner = f"DepartingServerApp({inner}, {str(plan)!r})"
    (to / f"{MODULE}.py").write_text(
        '"""Written by fedattack: the project\'s own ServerApp, observed."""\n\n'
        # The first name of a dotted attribute, such as factory.app, is imported.
        f"from {module} import {server.partition('.')[0]}\n\n"
        f"{imports}\n"
        f"app = ObservedServerApp({inner}, {str(out)!r}{arguments})\n",
        encoding="utf-8",
    )
    components["serverapp"] = f"{MODULE}:app"
    added = [f"{MODULE}.py"]
    if witness is not None:
        make_private(witness)
        module, _, client = components["clientapp"].partition(":")
        kept = ""
        if keep is not None:
            kept = f", keep={keep}"
        if hold_out is not None:
            kept += f", hold_out=HoldOut({hold_out.share!r}, {hold_out.seed!r})"
        (to / f"{WITNESSED}.py").write_text(
            '"""Written by fedattack: the project\'s own ClientApp, witnessed where its auditor can read that."""\n\n'
            "import os\n\n"
            f"_FOLDER = {str(witness)!r}\n"
            "_HERE = os.access(_FOLDER, os.W_OK)\n\n"
            # Clients on machines that do not share the folder run unwitnessed, without an import of fedattack.
            "if _HERE:\n"
            "    from fedattack.witness import HoldOut, WitnessedClientApp, watch_imports\n\n"
            # Before the app's own imports, so that libraries are watched from their first call.
            "    watch_imports()\n\n"
            f"from {module} import {client.partition('.')[0]}\n\n"
            f"app = WitnessedClientApp({client}, _FOLDER{kept}) if _HERE else {client}\n",
            encoding="utf-8",
        )
        components["clientapp"] = f"{WITNESSED}:app"
        added.append(f"{WITNESSED}.py")
    if "fab-include" in flower:
        # What is not included would not be bundled.
        flower["fab-include"] = [*flower["fab-include"], *added]
    (to / _PYPROJECT).write_text(tomli_w.dumps(config), encoding="utf-8")


def refuse_masked(app: Path) -> None:
    """Refuse to record single replies of an app that makes a SecAgg+ workflow: they are masked."""
    for path in app_files(app):
        for name in _list_called(path):
            if name in _MASKING:
                raise ConfigError(
                    f"{path.relative_to(app)} makes a {name}, whose server sees no single reply; leave out --view, "
                    "so that fedattack records sums when SecAgg+ runs"
                )


def _list_called(path: Path) -> Iterator[str]:
    """Yield the names of what a file calls; none of a file that is no Python."""
    if path.suffix != ".py":
        return
    code = read_bytes(path, ConfigError, "expected a module of the app")
    # What Python makes of code takes far more memory than the code.
    if not any(name.encode() in code for name in _MASKING):
        return
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        # Called as an attribute of a module, or by its own name.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def observe_command(
    words: Sequence[str],
    out: Path,
    options: Mapping[str, Any],
    *,
    witness: Path | None = None,
    hold_out: "HoldOut | None" = None,
    stdout: int | None = None,
    folder: Path | None = None,
) -> int | None:
    """Run a ``flwr run`` whose server is observed, its output at ``stdout`` as :func:`subprocess.run` takes it.

    Parameters
    ----------
    words
        The command.
    out
        Folder of the record; ``strftime`` directives are filled in when the run starts.
    options, witness, hold_out
        As for :func:`wrap_app`.
    folder
        Empty folder for the copy of the app, which the caller removes; a temporary one without.

    Returns
    -------
    int or None
        The number of rounds that were recorded; None if the command only starts the run, so that nobody knows yet.

    Raises
    ------
    ConfigError
        If the command is no ``flwr run`` of an app in a folder, the folder of the record is taken, or single replies
        are asked for of an app that makes a SecAgg+ workflow.
    RunError
        If the command fails, or ends with a run that left no whole record.
    """
    run = FlwrRun.parse(words)
    out = out.expanduser().absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already exists; record into a folder of its own, or delete that one first")
    if options.get("view") == "individual":
        refuse_masked(run.app)
    # It counts where this command is the one that starts the local SuperLink; a fresh environment lacks fedattack.
    environment = {"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", **os.environ}
    with signals_raise(), ExitStack() as undo:
        if folder is None:
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="fa-")))
        copy = folder / run.app.name
        wrap_app(run.app, copy, out, options, witness, hold_out=hold_out)
        try:
            code = subprocess.run(run.of(copy), env=environment, stdout=stdout, check=False).returncode
        except OSError as cause:
            raise RunError(f"{words[0]} cannot be run ({cause.strerror}); install flwr") from None
    if code:
        raise RunError(f"{' '.join(words)} ended with exit code {code}; its own output shows the reason")
    # A path with % is one that the server fills in, such as a date.
    if not run.streams or "%" in str(out):
        return None
    return count_rounds(out)


def count_rounds(out: Path) -> int:
    """Count the rounds of a run's whole record; `flwr run` ends with 0 even if the ServerApp crashed."""
    if not (out / "manifest.json").exists():
        raise RunError(
            f"the run left no record in {out}; its ServerApp must run on this machine, in an environment that has "
            "fedattack: start its SuperLink with --disable-runtime-dependency-installation"
        )
    record = Record(out, thinned=True)
    if record.status != "complete":
        raise RunError(f"the record in {out} ended early ({record.manifest['error']}); {len(record)} rounds are whole")
    return len(record)
