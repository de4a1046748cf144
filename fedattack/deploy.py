"""Run a Flower app as a deployment: a SuperLink and SuperNodes, each a process of its own, here or elsewhere.

:class:`Deployment` starts them on loopback, :class:`Remote` takes those that are up, as in containers. On loopback by
default they talk over TLS, and a SuperNode must show a key that was registered with the SuperLink. Keys and
certificates are made anew for each deployment, lie in its private folder, and are gone with it. Who starts runs is not
asked in either mode: Flower's Control API has no accounts of its own, and whoever can reach the loopback can use it.
"""

import json
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Self

from fedattack.credentials import Certificates, NodeKey, make_certificates, make_node_key
from fedattack.errors import ConfigError, RunError
from fedattack.files import write_atomically
from fedattack.launch import RUN_ID, RunResult, Runtime, free_port, refusal_reason
from fedattack.nodes import NODES

HOST = "127.0.0.1"
START_ATTEMPTS = 3
START_SECONDS = 120.0
# Starting a SuperNode is mostly importing; those of a large federation wait for each other's CPU.
START_SECONDS_PER_NODE = 15.0
POLL_SECONDS = 0.2
# As long as a SuperLink may take to come back.
LOST_SECONDS = 180.0

_ADDRESS = re.compile(r"(?P<scheme>https?)://(?P<address>[^/\s]+:\d+)/?")


class _Federation(Runtime):
    """A :class:`fedattack.launch.Runtime` of SuperNodes that are processes of their own."""

    def __init__(self, app: Path, *, supernodes: int, log: Path) -> None:
        super().__init__(app, log=log)
        if supernodes < 1:
            raise ConfigError(f"deployment of {app}: expected supernodes >= 1, got {supernodes}")
        self.supernodes = supernodes

    def _await_online(self, deadline: float) -> None:
        online = 0
        while time.monotonic() < deadline:
            nodes = _json(self._ask("flwr", "supernode", "list", "--format", "json").stdout).get("nodes", [])
            online = sum(node.get("status") == "online" for node in nodes)
            if online == self.supernodes:
                return
            time.sleep(POLL_SECONDS)
        raise _NotUpError(f"{online} of {self.supernodes} SuperNodes are online")


class Deployment(_Federation):
    """A :class:`fedattack.launch.Runtime` of real processes: one SuperLink, and a SuperNode for each client.

    SuperNode *i* has the node config ``partition-id=i num-partitions=N``, as a simulated client has. It trains with
    one thread unless ``OMP_NUM_THREADS`` says otherwise. All are polled until they are up, and end with the context.

    Parameters
    ----------
    app, log
        As for :class:`fedattack.launch.Runtime`; all processes write to the one log.
    supernodes : int
        Number of SuperNodes.
    secure : bool
        Whether to use TLS and SuperNode authentication. Without, everything on this machine can join and listen.

    Raises
    ------
    ConfigError
        If the app has no pyproject.toml or there is no SuperNode.
    """

    def __init__(self, app: Path, *, supernodes: int, secure: bool = True, log: Path) -> None:
        super().__init__(app, supernodes=supernodes, log=log)
        self.secure = secure
        self._nodes: list[subprocess.Popen[bytes]] = []

    def ensure_up(self) -> None:
        """Start SuperLink and SuperNodes, unless they are up, and wait until all nodes are online.

        Raises
        ------
        RunError
            If one of them ends, or is not up in time.
        """
        if self._superlink is not None and all(item.poll() is None for item in (self._superlink, *self._nodes)):
            return
        for attempt in range(1, START_ATTEMPTS + 1):
            self._stop()
            try:
                self._bring_up()
            except _NotUpError as cause:
                self._stop()
                if attempt == START_ATTEMPTS or not isinstance(cause, _EndedError):
                    raise RunError(f"the deployment did not come up: {cause}; see the end of {self.log}") from None
            else:
                return

    def _bring_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS + START_SECONDS_PER_NODE * self.supernodes
        folder = self._private("keys") / str(time.monotonic_ns())
        certificates = make_certificates(folder, [HOST, "localhost"], days=30) if self.secure else None
        port = free_port()
        self._superlink = self._start(
            *("flower-superlink", "--host", HOST, "--port", str(port), "--disable-runtime-dependency-installation"),
            *_superlink_options(certificates),
        )
        scheme = "http" if certificates is None else "https"
        self._await_health("the SuperLink", self._superlink, f"{scheme}://{HOST}:{port}", certificates, deadline)
        if certificates is None:
            self._connect(f"{HOST}:{port}", insecure=True)
        else:
            self._connect(f"{HOST}:{port}", **{"root-certificates": str(certificates.authority)})
        addresses = [self._start_node(index, port, certificates, folder) for index in range(self.supernodes)]
        for index, (node, address) in enumerate(zip(self._nodes, addresses, strict=True)):
            self._await_health(f"SuperNode {index}", node, address, None, deadline)
        self._await_online(deadline)

    def _start_node(self, index: int, superlink: int, certificates: Certificates | None, folder: Path) -> str:
        """Start a SuperNode, registered if that is asked for; returns where its health is told."""
        options: tuple[str, ...] = ("--insecure",)
        if certificates is not None:
            key = make_node_key(folder, f"node-{index}")
            self._register(key)
            options = (
                *("--root-certificates", str(certificates.authority)),
                *("--auth-supernode-private-key", str(key.private)),
            )
        # Each has a home of its own, as on a machine of its own: they unpack the app there, side by side.
        home = self._private(f"node-{index}")
        home.mkdir(exist_ok=True)
        port = free_port()
        process = self._start(
            *("flower-supernode", "--superlink", f"{HOST}:{superlink}", "--host", HOST, "--port", str(port)),
            *("--node-config", f"partition-id={index} num-partitions={self.supernodes}"),
            *options,
            environment={"FLWR_HOME": str(home), "OMP_NUM_THREADS": self._environment.get("OMP_NUM_THREADS", "1")},
        )
        self._nodes.append(process)
        return f"http://{HOST}:{port}"

    def _stop(self) -> None:
        super()._stop()
        for node in self._nodes:
            node.wait()
        self._nodes = []

    def _register(self, key: NodeKey) -> None:
        answer = self._ask("flwr", "supernode", "register", str(key.public), "--format", "json")
        if answer.returncode or not _json(answer.stdout).get("success"):
            said = refusal_reason((answer.stdout + answer.stderr).decode("utf-8", "replace"))
            raise _NotUpError(f"the SuperLink did not register {key.public.name}: {said}")

    def _await_health(
        self,
        what: str,
        process: subprocess.Popen[bytes],
        address: str,
        certificates: Certificates | None,
        deadline: float,
    ) -> None:
        trusted = None if certificates is None else ssl.create_default_context(cafile=str(certificates.authority))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
        )
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise _EndedError(f"{what} ended with exit code {process.returncode}")
            try:
                with opener.open(f"{address}/health", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(POLL_SECONDS)
        raise _NotUpError(f"{what} is not healthy")


class Remote(_Federation):
    """A :class:`fedattack.launch.Runtime` of a SuperLink and SuperNodes that somebody else started, and that stay up.

    The ServerApp runs where the SuperLink has it run, and must find the run config's absolute paths there.

    Parameters
    ----------
    app, log
        As for :class:`fedattack.launch.Runtime`; the log has what ``flwr run`` shows of each run.
    supernodes : int
        Number of SuperNodes to wait for.
    superlink : str
        Address of the SuperLink, ``https://HOST:PORT``, or ``http://HOST:PORT`` for one without TLS.
    authority : Path, optional
        Certificate of the authority that signed the SuperLink's; by default those that the system trusts.
    notes : Path, optional
        Has a folder for each client, which the client sees as the root folder: with what it noted of itself under the
        paths ``truth`` and ``knowledge`` of the run config. It is added to ours as it comes.
    shared : Path, optional
        Clients see this folder at the same path: the run's model zoos are copied there for them.

    Raises
    ------
    ConfigError
        If the app has no pyproject.toml, there is no SuperNode, or the address is none.
    """

    def __init__(
        self,
        app: Path,
        *,
        supernodes: int,
        superlink: str,
        authority: Path | None = None,
        notes: Path | None = None,
        shared: Path | None = None,
        log: Path,
    ) -> None:
        super().__init__(app, supernodes=supernodes, log=log)
        found = _ADDRESS.fullmatch(superlink)
        if found is None:
            raise ConfigError(f"SuperLink {superlink}: expected https://HOST:PORT, or http://HOST:PORT without TLS")
        self.superlink = found["address"]
        self._connection: dict[str, str | bool] = {}
        if found["scheme"] == "http":
            self._connection["insecure"] = True
        elif authority is not None:
            self._connection["root-certificates"] = str(authority.resolve())
        self._notes = notes
        self._shared = shared

    @classmethod
    def of_environment(cls, app: Path, *, supernodes: int, log: Path) -> Self:
        """Take the SuperLink from ``FEDATTACK_SUPERLINK``, the rest from ``…_AUTHORITY``, ``…_NOTES`` and ``…_SHARED``.

        Raises
        ------
        ConfigError
            If no SuperLink is named.
        """
        superlink, authority, notes, shared = (
            os.environ.get(f"FEDATTACK_{name}", "") for name in ("SUPERLINK", "AUTHORITY", "NOTES", "SHARED")
        )
        if not superlink:
            raise ConfigError(
                "no SuperLink is named: expected its address in FEDATTACK_SUPERLINK, such as https://superlink:8000"
            )
        return cls(
            app,
            supernodes=supernodes,
            superlink=superlink,
            authority=Path(authority) if authority else None,
            notes=Path(notes) if notes else None,
            shared=Path(shared) if shared else None,
            log=log,
        )

    def ensure_up(self) -> None:
        """Wait until all nodes are online.

        Raises
        ------
        RunError
            If they are not in time.
        """
        self._connect(self.superlink, **self._connection)
        try:
            self._await_online(time.monotonic() + START_SECONDS + START_SECONDS_PER_NODE * self.supernodes)
        except _NotUpError as cause:
            raise RunError(f"SuperLink {self.superlink}: {cause}; expected all; see its own log") from None

    def run(
        self,
        run_config: Mapping[str, str | int | float | bool],
        *,
        timeout: float | None = None,
        on_poll: Callable[[], None] | None = None,
    ) -> RunResult:
        """Run the app once, as :meth:`fedattack.launch.Runtime.run` does; what is given up is stopped there too."""
        self.log.touch()
        logged = self.log.stat().st_size
        folders = [Path(str(run_config[key])) for key in ("truth", "knowledge") if run_config.get(key)]

        def poll() -> None:
            # At once, so that a run that is stopped has them too.
            self._fetch_notes(folders)
            if on_poll is not None:
                on_poll()

        try:
            result = super().run({**run_config, **self._share_zoos(run_config)}, timeout=timeout, on_poll=poll)
        except BaseException:
            with self.log.open("rb") as file:
                file.seek(logged)
                started = RUN_ID.search(file.read().decode("utf-8", "replace"))
            if started:
                self._ask("flwr", "stop", started[1])
            raise
        self._fetch_notes(folders)
        return result

    def _lost(self, run_id: str, reason: str, poll: Callable[[], None]) -> tuple[str, str]:
        """Wait for a SuperLink that was stopped: started again with its database, it goes on with the run."""
        deadline = time.monotonic() + LOST_SECONDS
        while time.monotonic() < deadline:
            status, details = self._status(run_id)
            if status.startswith("finished:"):
                return status, details
            if status != "lost":
                deadline = time.monotonic() + LOST_SECONDS
            poll()
            time.sleep(POLL_SECONDS)
        return "lost", reason

    def _share_zoos(self, run_config: Mapping[str, Any]) -> dict[str, str]:
        """Copy the zoos to where clients see them; returns what that changes in the run config."""
        zoos = Path(str(run_config.get("zoo", "")))
        if self._shared is None or not zoos.is_absolute() or not zoos.is_dir():
            return {}
        copy = self._shared / zoos.relative_to(zoos.anchor)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(zoos, copy)
        return {"zoo": str(copy)}

    def _fetch_notes(self, folders: Iterable[Path]) -> None:
        if self._notes is None:
            return
        for folder, client in product(folders, sorted(self._notes.resolve().iterdir())):
            for note in (client / folder.relative_to(folder.anchor) / NODES).glob("*.json"):
                # A client must not have files of ours copied by a link.
                if note.resolve().is_relative_to(client) and not (folder / NODES / note.name).exists():
                    (folder / NODES).mkdir(parents=True, exist_ok=True)
                    write_atomically(folder / NODES / note.name, note.read_bytes())


class _NotUpError(Exception):
    """A part of a deployment that did not come up."""


class _EndedError(_NotUpError):
    """A process that ended at once, as where a stranger was quicker and took its port."""


def _superlink_options(certificates: Certificates | None) -> tuple[str, ...]:
    if certificates is None:
        return ("--insecure",)
    return (
        *("--ssl-ca-certfile", str(certificates.authority)),
        *("--ssl-certfile", str(certificates.certificate)),
        *("--ssl-keyfile", str(certificates.key)),
        "--enable-supernode-auth",
    )


def _json(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
