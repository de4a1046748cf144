"""Run a Flower app through the real ``flwr run``, apart from everything else on the machine.

``flwr run`` by itself shares one background SuperLink among all projects of a machine, leaves it running, and exits 0
when the ServerApp crashed. A :class:`Runtime` starts a SuperLink of its own on a free port with a private
``FLWR_HOME``, asks it how each run ended, and takes every process down with it. In a :class:`Simulator` the clients run
on Ray; :mod:`fedattack.deploy` has the one in which they are SuperNodes.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import tomli_w

from fedattack import _reaper
from fedattack.errors import ConfigError, RunError
from fedattack.record.signature import SIGNING_KEY

POLL_SECONDS = 0.25
SUPERLINK_START_SECONDS = 60.0
SUPERLINK_START_ATTEMPTS = 3
# Flower feeds at most 32 clients at a time, so further Ray actors would only hold memory.
MAX_CPUS = 32
# A Unix socket's path may have 107 bytes; Ray appends up to 68 to its folder, and ours is 12 longer than its parent.
MAX_TEMPORARY_FOLDER_BYTES = 107 - 68 - 12
# What flwr may put into a bundle at all; fab-include can only narrow it down.
APP_SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}
APP_NAMES = {"LICENSE", ".gitignore", ".editorconfig"}

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RAY_PREFIX = re.compile(r"^\(\w+ pid=\d+[^)]*\) ", re.MULTILINE)
_FRAME = re.compile(r'\s+File ".*", line \d+')
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(\([\w.]+\))?(:|$)")
RUN_ID = re.compile(r"Successfully started run (\d+)")
_REFUSED = re.compile(r"Could not start run: (?!for )(.+)")
_CLIENT_FAILURE = re.compile(
    "An exception was raised when processing a message by RayBackend|ClientApp raised an exception"
)
_SERVER_FAILURE = re.compile(r"(?:Simulation|ServerApp) failed with exception: *(.*)", re.DOTALL)
_WRAPPERS = {
    "RuntimeError: Simulation Runtime crashed.",
    "RuntimeError: An error was encountered. Ending simulation.",
}


@dataclass(frozen=True)
class RunResult:
    """A run that completed.

    Attributes
    ----------
    run_id : str
        Flower's id of the run.
    status : str
        Flower's status of the run, ``finished:completed``.
    seconds : float
        Wall time from the call to the end, the start of the SuperLink included where it was not yet running.
    log : Path
        The file that holds the whole log of this and all other runs of the simulator.
    client_error : str or None
        The exception that a ClientApp raised last, if any did. Flower goes on without that client's reply.
    """

    run_id: str
    status: str
    seconds: float
    log: Path
    client_error: str | None


def federation_config(supernodes: int, cpus: int, gpus_per_client: float) -> str:
    """Return the ``--federation-config`` of a simulation in which each client takes one CPU.

    Parameters
    ----------
    supernodes : int
        Number of simulated clients.
    cpus : int
        CPUs that Ray may use, which is the number of clients that train at the same time.
    gpus_per_client : float
        Share of a GPU that each client takes; 0 for none.

    Returns
    -------
    str
    """
    return (
        f"num-supernodes={supernodes} client-resources-num-cpus=1 "
        f"client-resources-num-gpus={float(gpus_per_client)} init-args-num-cpus={cpus}"
    )


def exceptions_in(log: str) -> list[str]:
    """Return the exception line (``Type: message``) of every traceback in a log, in order.

    Terminal colours and Ray's process prefixes are dropped, and so are the exceptions that Flower wraps around the
    one that matters.
    """
    found = []
    in_traceback = False
    for line in _RAY_PREFIX.sub("", _ANSI.sub("", log)).splitlines():
        if _FRAME.match(line):
            in_traceback = True
        elif in_traceback and _EXCEPTION.match(line):
            in_traceback = False
            found.append(line.strip())
    return [line for line in found if line not in _WRAPPERS]


def client_error(log: str) -> str | None:
    """Return the exception that a ClientApp raised last in a log, or None when none did."""
    *_, rest = ["", *_CLIENT_FAILURE.split(log)[1:]]
    raised = exceptions_in(rest)
    return raised[0] if raised else None


def failure_reason(log: str, details: str) -> str:
    """Say in one line why a run failed.

    Parameters
    ----------
    log : str
        The log of the run.
    details : str
        Flower's details of the run's status. They lack the exception's type, but are all there is when a process
        died without a word.

    Returns
    -------
    str
    """
    known = _SERVER_FAILURE.match(details)
    raised = exceptions_in(log) if known else []
    # In a deployment the processes write at once, and what comes last need not be the server's.
    of_server = [line for line in raised if known and known[1] and known[1] in line]
    reason = (of_server or raised or [" ".join(details.split())])[-1]
    of_client = client_error(log)
    if of_client is not None and of_client != reason:
        reason += f" (a client had failed before with {of_client})"
    return reason


def refusal_reason(log: str) -> str:
    """Say in one line why ``flwr run`` did not start a run, from the log of that command and its SuperLink."""
    plain = _ANSI.sub("", log)
    boxed = [line.strip("│ ") for line in plain.splitlines() if line.startswith("│")]
    cause = _REFUSED.search(plain)
    if cause:
        boxed.append(cause[1])
    return " ".join(boxed) or (plain.strip().splitlines() or ["no output"])[-1]


def usable_cpus() -> int:
    """Count the CPUs of this process; ``PYTHON_CPU_COUNT`` says another number, as for Python from 3.13 on."""
    told = os.environ.get("PYTHON_CPU_COUNT", "")
    if told.isdecimal() and int(told):
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_port() -> int:
    """Find a port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _temporary_folder() -> Path:
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_TEMPORARY_FOLDER_BYTES:
        parent = "/tmp"  # noqa: S108 - mkdtemp makes a private folder in it
    return Path(tempfile.mkdtemp(prefix="fa-", dir=parent))


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the process itself, and not a stranger that was quicker, listens on the port."""
    deadline = time.monotonic() + SUPERLINK_START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            connections = psutil.Process(process.pid).net_connections(kind="tcp")
        except psutil.Error:
            return False
        if any(entry.status == psutil.CONN_LISTEN and entry.laddr.port == port for entry in connections):
            return True
        time.sleep(0.05)
    return False


def _ended_within(seconds: float, process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def copy_app(source: Path, target: Path) -> None:
    """Copy what flwr may bundle.

    ``flwr run`` walks the whole folder, a virtual environment included, for each run, and rewrites an old-style
    pyproject.toml in place; the caller's folder may be huge or read-only.
    """
    for folder, subfolders, files in os.walk(source):
        here = Path(folder)
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith(".") and name != "__pycache__" and not (here / name / "pyvenv.cfg").exists()
        ]
        for name in files:
            path = here / name
            if (path.suffix in APP_SUFFIXES or name in APP_NAMES) and not path.is_symlink():
                copy = target / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)


def _environment(home: Path) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    local = "127.0.0.1,localhost"
    if key := environment.get(SIGNING_KEY):
        # The app runs in a folder of its own, where a relative path would mean something else.
        environment[SIGNING_KEY] = str(Path(key).expanduser().absolute())
    return environment | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONIOENCODING": "utf-8",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_TMPDIR": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Flower's HTTP client would send requests for 127.0.0.1 to a configured proxy.
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), local])),
        "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy"), local])),
    }


class Runtime(ABC):
    """What runs one Flower app, several times if wanted, through ``flwr run`` and a SuperLink of its own.

    Use it as a context manager. When the context is left, by an exception or the death of this process too, every
    process that was started for it ends and its private folder is removed; only the log stays. Several may work at the
    same time.

    The app's processes run in an empty folder, so paths in the run config must be absolute, and modules in the
    caller's folder cannot stand in for the app's.

    Parameters
    ----------
    app : Path
        Folder of the app's pyproject.toml. It is read when the context is entered and never written to.
    log : Path
        File that the output of all runs is appended to.

    Raises
    ------
    ConfigError
        If the app has no pyproject.toml.
    """

    def __init__(self, app: Path, *, log: Path) -> None:
        if not (app / "pyproject.toml").is_file():
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
            self._guard = subprocess.Popen(
                [sys.executable, "-P", _reaper.__file__, str(self._home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            (self._home / "cwd").mkdir()
            copy_app(self.app, self._home / "app")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def run(
        self,
        run_config: Mapping[str, str | int | float | bool],
        *,
        timeout: float | None = None,
        on_poll: Callable[[], None] | None = None,
    ) -> RunResult:
        """Run the app once and wait for its end.

        Parameters
        ----------
        run_config : mapping
            Values for keys that the app declares in ``[tool.flwr.app.config]``.
        timeout : float, optional
            Seconds after which the run is ended.
        on_poll : callable, optional
            Called about four times a second while the run goes on. An exception that it raises ends the run.

        Returns
        -------
        RunResult

        Raises
        ------
        ConfigError
            If a value is not a string, an integer, a float or a boolean.
        RunError
            If flwr refuses the run (an unknown key, a broken app), the ServerApp or ClientApp crashes so that the
            run fails, or the timeout passes.
        """
        for key, value in run_config.items():
            if not isinstance(value, str | int | float):
                raise ConfigError(
                    f"run config key {key!r}: expected a string, integer, float or boolean, "
                    f"got {type(value).__name__}; convert it first"
                )
        started = time.monotonic()
        self.ensure_up()
        config = self._private("run.toml")
        config.write_text(tomli_w.dumps(dict(run_config)), encoding="utf-8")
        already_logged = self.log.stat().st_size
        client = self._start(
            *("flwr", "run", str(self._private("app")), "--stream", "-c", str(config)),
            *self._run_options,
        )

        def poll() -> None:
            if timeout is not None and time.monotonic() - started > timeout:
                raise RunError(f"the Flower run was not over after {timeout:g} s and was ended; see {self.log}")
            if on_poll is not None:
                on_poll()

        try:
            while not _ended_within(POLL_SECONDS, client):
                poll()
        except BaseException:
            # `flwr stop` would leave the ServerApp at work until its next heartbeat, half a minute later.
            self._stop()
            client.wait()
            raise
        with self.log.open("rb") as file:
            file.seek(already_logged)
            log = file.read().decode("utf-8", "replace")
        run_id = RUN_ID.search(log)
        if run_id is None:
            raise RunError(
                f"flwr did not start the run: {refusal_reason(log)}; "
                f"check the run config against [tool.flwr.app.config] in {self.app / 'pyproject.toml'}, "
                f"the whole log is in {self.log}"
            )
        status, details = (
            self._status(run_id[1]) if client.returncode == 0 else self._lost(run_id[1], refusal_reason(log), poll)
        )
        if not status.startswith("finished:"):
            self._stop()
        if status != "finished:completed":
            raise RunError(
                f"the Flower run did not complete ({status}): {failure_reason(log, details)}; "
                f"the whole log is in {self.log}"
            )
        return RunResult(run_id[1], status, time.monotonic() - started, self.log, client_error(log))

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
                cwd=self._private("cwd"),
                env={**self._environment, **(environment or {})},
                start_new_session=True,
            )

    @abstractmethod
    def ensure_up(self) -> None:
        """Start what the app runs on, unless it is up already.

        Raises
        ------
        RunError
            If it does not come up.
        """

    def _connect(self, address: str, **connection: str | bool) -> None:
        """Let ``flwr`` talk to the SuperLink at ``HOST:PORT``."""
        profile = {"default": "private", "private": {"address": address, **connection}}
        self._private("config.toml").write_text(tomli_w.dumps({"superlink": profile}), encoding="utf-8")

    def _lost(self, run_id: str, reason: str, poll: Callable[[], None]) -> tuple[str, str]:
        """Say what became of a run that ``flwr run`` has lost, as where the SuperLink has died."""
        return "lost", reason

    def _status(self, run_id: str) -> tuple[str, str]:
        """Return Flower's status of a run and its details."""
        answer = self._ask("flwr", "ls", "--run-id", run_id, "--format", "json")
        try:
            run = json.loads(answer.stdout)["runs"][0]
            return run["status"], run["status-details"]
        except (ValueError, LookupError):
            return "lost", refusal_reason(answer.stdout.decode("utf-8", "replace"))

    def _ask(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        """Run a program to its end, which says something to its standard output."""
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
        _reaper.reap(self._private(""))
        if self._superlink is not None:
            self._superlink.wait()
            self._superlink = None

    def _close(self) -> None:
        if self._home is None:
            return
        self._stop()
        shutil.rmtree(self._home, ignore_errors=True)
        self._home = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()


class Simulator(Runtime):
    """A :class:`Runtime` whose clients are simulated on Ray.

    Parameters
    ----------
    app, log
        As for :class:`Runtime`.
    supernodes : int
        Number of simulated clients.
    cpus : int, optional
        CPUs for the clients; each takes one, and trains with one thread unless ``OMP_NUM_THREADS`` says otherwise.
        Default: the CPUs of this process (:func:`usable_cpus`), at most one per client and 32.
    gpus_per_client : float
        Share of a GPU that each client takes.

    Raises
    ------
    ConfigError
        If the app has no pyproject.toml or a number is out of its range.
    """

    def __init__(
        self, app: Path, *, supernodes: int, cpus: int | None = None, gpus_per_client: float = 0.0, log: Path
    ) -> None:
        super().__init__(app, log=log)
        if cpus is None:
            cpus = min(usable_cpus(), supernodes, MAX_CPUS)
        if supernodes < 1 or cpus < 1 or gpus_per_client < 0:
            raise ConfigError(
                f"simulation of {app}: expected supernodes >= 1, cpus >= 1 and gpus_per_client >= 0, "
                f"got {supernodes}, {cpus} and {gpus_per_client}; correct the one that is out of range"
            )
        self._run_options = ("--federation-config", federation_config(supernodes, cpus, gpus_per_client))

    def ensure_up(self) -> None:
        """Start the SuperLink, unless it is up already.

        Raises
        ------
        RunError
            If it does not come up.
        """
        if self._superlink is not None and self._superlink.poll() is None:
            return
        for _ in range(SUPERLINK_START_ATTEMPTS):
            port = free_port()
            self._connect(f"127.0.0.1:{port}", insecure=True)
            self._superlink = self._start(
                "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)
            )
            if _listens(self._superlink, port):
                return
            self._stop()
        raise RunError(f"no SuperLink came up on this machine; see the end of {self.log}")
