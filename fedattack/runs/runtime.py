"""Run a Flower app through the real ``flwr run``, apart from everything else on the machine.

``flwr run`` by itself shares one background SuperLink among all projects of a machine, leaves it running, and exits 0
when the ServerApp crashed. A :class:`Runtime` starts a SuperLink of its own on a free port with a private
``FLWR_HOME``, asks it how each run ended, and takes every process down with it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from fedattack.base.errors import ConfigError, RunError
from fedattack.record.signature import SIGNING_KEY
from fedattack.runs import reaper
from fedattack.runs.bundle import copy_app
from fedattack.runs.credentials import make_secret
from fedattack.runs.logs import RUN_ID, client_error, failure_reason, refusal_reason
from fedattack.runs.private import end_guard, start_guard

POLL_SECONDS = 0.25

_PYPROJECT = "pyproject.toml"

RAY_TOKEN = "ray-token"  # noqa: S105 - the name of a file
"""File of a runtime's private folder: the token without which its Ray refuses every request."""

# A Unix socket's path may have 107 bytes; Ray appends up to 68 to its folder, and ours is 12 longer than its parent.
MAX_TEMPORARY_FOLDER_BYTES = 107 - 68 - 12


def free_port() -> int:
    """Find a port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        # Port 0 lets the system choose. Another process may take it before it is used: callers try again.
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _temporary_folder() -> Path:
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_TEMPORARY_FOLDER_BYTES:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
    return Path(tempfile.mkdtemp(prefix="fa-", dir=parent))


def _ended_within(seconds: float, process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _environment(home: Path) -> dict[str, str]:
    environment = dict(os.environ)
    for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
        # The caller's own cluster, and its token, which would come before that of this run.
        environment.pop(name, None)
    # A notebook's kernel sets it. Flower's answers in JSON are then coloured, and cannot be read.
    environment.pop("FORCE_COLOR", None)
    key = environment.get(SIGNING_KEY)
    if key:
        # The app runs in a folder of its own, where a relative path would mean another file.
        environment[SIGNING_KEY] = str(Path(key).expanduser().absolute())
    for name in ("NO_PROXY", "no_proxy"):
        # Flower's HTTP client would send requests for 127.0.0.1 to a configured proxy.
        hosts = [environment.get(name, ""), "127.0.0.1,localhost"]
        environment[name] = ",".join(filter(None, hosts))
    return environment | {
        # The programs of this environment come first, such as its own `flwr`.
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        # Lines of the log are written at once, also those of a process that is killed.
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        # Ray would hide GPUs from workers that ask for none, by CUDA_VISIBLE_DEVICES="".
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home / RAY_TOKEN),
        # Whatever the name says: with 0, Ray takes 127.0.0.1 for this machine's address, and listens nowhere else.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_TMPDIR": str(home),
        # Ray would start a worker a CPU in advance, which no client uses: theirs have an environment of their own.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _check_types(run_config: Mapping[str, object]) -> None:
    for key, value in run_config.items():
        # tomli_w would write lists and tables, too, which Flower refuses late.
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"run config key {key!r}: expected a string, integer, float or boolean, "
                f"got {type(value).__name__}; convert it first"
            )


class Runtime(ABC):
    """Runs one Flower app, once or several times, through ``flwr run`` and a SuperLink of its own.

    Use it as a context manager. When the context is left, every process that was started for it ends and its private
    folder is removed; only the log stays. That holds for an exception and for the death of this process, too. Several
    may work at the same time.

    The app's processes run in an empty folder. Paths in the run config must therefore be absolute, and modules in the
    caller's folder cannot hide the app's.

    Parameters
    ----------
    app : Path
        Folder of the app's pyproject.toml. It is read when the context is entered and never written to.
    log : Path
        File that the output of all runs is appended to.

    Attributes
    ----------
    cwd : Path or None
        Where the app's processes run in place of the empty folder; set it before the first run.

    Raises
    ------
    ConfigError
        If the app has no pyproject.toml.
    """

    cwd: Path | None = None

    def __init__(self, app: Path, *, log: Path) -> None:
        if not (app / _PYPROJECT).is_file():
            raise ConfigError(f"Flower app {app}: expected a folder with a pyproject.toml, found none; give its path")
        self.app = app.resolve()
        self.log = log.resolve()
        self._run_options: tuple[str, ...] = ()
        self._home: Path | None = None
        self._environment: dict[str, str] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._superlink: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._home = _temporary_folder()
        self._environment = _environment(self._home)
        try:
            # First of all: from here on nothing outlives this process.
            self._guard = start_guard(self._home)
            (self._home / "cwd").mkdir()
            make_secret(self._home / RAY_TOKEN)
            copy_app(self.app, self._home / "app")
            self._drop_connections()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def declare(self, defaults: Mapping[str, str | int | float | bool]) -> None:
        """Add keys to those that the copy of the app declares, with their defaults: Flower refuses all others."""
        project = self._read_project()
        config = project["tool"]["flwr"]["app"]["config"]
        if {*defaults} - {*config}:
            # The app's own defaults win over those that are added.
            project["tool"]["flwr"]["app"]["config"] = {**defaults, **config}
            self._write_project(project)

    def _drop_connections(self) -> None:
        """Remove the federations that an older app names from its copy.

        ``flwr run`` would make one of them its connection, in place of this runtime's: often the local SuperLink that
        all projects of a machine share, for whose start it waits for 15 seconds and no longer.
        """
        project = self._read_project()
        flower = project.get("tool", {}).get("flwr", {})
        if flower.pop("federations", None) is not None:
            self._write_project(project)

    def _read_project(self) -> dict[str, Any]:
        return tomllib.loads((self._private("app") / _PYPROJECT).read_text(encoding="utf-8"))

    def _write_project(self, project: Mapping[str, Any]) -> None:
        (self._private("app") / _PYPROJECT).write_text(tomli_w.dumps(project), encoding="utf-8")

    def run(
        self,
        run_config: Mapping[str, str | int | float | bool],
        *,
        on_poll: Callable[[], None] = lambda: None,
    ) -> str | None:
        """Run the app once and wait for its end.

        Parameters
        ----------
        run_config : mapping
            Values for keys that the app declares in ``[tool.flwr.app.config]``.
        on_poll : callable, optional
            Called about four times a second while the run goes on. An exception that it raises ends the run.

        Returns
        -------
        str or None
            The exception that a ClientApp raised last, if any did. Flower goes on without that client's reply.

        Raises
        ------
        ConfigError
            If a value is not a string, an integer, a float or a boolean.
        RunError
            If flwr refuses the run (an unknown key, a broken app), the ServerApp or ClientApp crashes so that the
            run fails.
        """
        _check_types(run_config)
        self.ensure_up()
        config = self._private("run.toml")
        config.write_text(tomli_w.dumps(dict(run_config)), encoding="utf-8")
        # The log is shared by several runs: what this one writes begins here.
        log_size = self.log.stat().st_size
        client = self._start(
            *("flwr", "run", str(self._private("app")), "--stream", "-c", str(config)),
            *self._run_options,
        )

        try:
            while not _ended_within(POLL_SECONDS, client):
                on_poll()
        except BaseException:
            # `flwr stop` would leave the ServerApp at work until its next heartbeat, half a minute later.
            self._stop()
            client.wait()
            raise
        log = self._logged_since(log_size)
        run_id = RUN_ID.search(log)
        if run_id is None:
            reason = refusal_reason(log).rstrip(".")
            if "config" in reason.lower():
                reason += "; compare the run config with [tool.flwr.app.config] in the app's pyproject.toml"
            raise RunError(f"flwr did not start the run: {reason}; the whole log is in {self.log}")
        if client.returncode == 0:
            status, details = self._status(run_id[1])
        else:
            status, details = self._read_lost(run_id[1], refusal_reason(log), on_poll)
        if not status.startswith("finished:"):
            self._stop()
        if status != "finished:completed":
            raise RunError(
                f"the Flower run did not complete ({status}): {failure_reason(log, details)}; "
                f"the whole log is in {self.log}"
            )
        return client_error(log)

    def _logged_since(self, size: int) -> str:
        with self.log.open("rb") as file:
            file.seek(size)
            return file.read().decode("utf-8", "replace")

    def _private(self, name: str) -> Path:
        if self._home is None:
            raise RuntimeError(f"a {type(self).__name__} runs apps only inside its with statement")
        return self._home / name

    def _command(self, *words: str) -> list[str]:
        program = shutil.which(words[0], path=self._environment["PATH"])
        if program is None:
            raise RunError(
                f"command {words[0]} is neither beside {sys.executable} nor on PATH; install flwr[simulation]"
            )
        return [program, *words[1:]]

    def _start(self, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a program in the background; ``environment`` comes on top of that of all."""
        with self.log.open("ab") as sink:
            return subprocess.Popen(
                self._command(*words),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=self.cwd or self._private("cwd"),
                env={**self._environment, **(environment or {})},
                # A session of its own: Ctrl-C in the terminal reaches this process alone, which ends the others in
                # order.
                start_new_session=True,
            )

    @abstractmethod
    def ensure_up(self) -> None:
        """Start the processes that the app needs, unless they are up already.

        Raises
        ------
        RunError
            If it does not come up.
        """

    def _connect(self, address: str, **connection: str | bool) -> None:
        """Let ``flwr`` talk to the SuperLink at ``HOST:PORT``."""
        # Flower reads its connections from this file in FLWR_HOME.
        profile = {"default": "private", "private": {"address": address, **connection}}
        self._private("config.toml").write_text(tomli_w.dumps({"superlink": profile}), encoding="utf-8")

    def _read_lost(self, run_id: str, reason: str, poll: Callable[[], None]) -> tuple[str, str]:
        """Return status and details of a run that ``flwr run`` has lost, such as when the SuperLink has died."""
        return "lost", reason

    def _status(self, run_id: str) -> tuple[str, str]:
        answer = self._ask("flwr", "ls", "--run-id", run_id, "--format", "json")
        try:
            # `flwr ls` prints other words where it fails, with exit code 0.
            run = json.loads(answer.stdout)["runs"][0]
            return run["status"], run["status-details"]
        except (ValueError, LookupError):
            return "lost", refusal_reason(answer.stdout.decode("utf-8", "replace"))

    def _ask(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end, and return its answer on standard output."""
        return subprocess.run(
            self._command(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=self._private("cwd"),
            env=self._environment,
            start_new_session=True,
            check=False,
        )

    def _stop(self) -> None:
        """End every process; the next run starts a SuperLink again."""
        reaper.reap(self._private(""))
        if self._superlink is not None:
            # wait() takes the zombie away.
            self._superlink.wait()
            self._superlink = None

    def _close(self) -> None:
        if self._home is None:
            return
        self._stop()
        shutil.rmtree(self._home, ignore_errors=True)
        self._home = None
        if self._guard is not None:
            end_guard(self._guard)
