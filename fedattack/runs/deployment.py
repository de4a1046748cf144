"""Run a Flower app as a deployment: a SuperLink and SuperNodes, each a process of its own on this machine.

By default they talk over TLS, and a SuperNode must show a key that was registered with the SuperLink. Keys and
certificates are made anew for each deployment, lie in its private folder, and are removed with it. Neither mode checks
who starts runs: Flower's Control API has no accounts of its own, and whoever can reach the loopback can use it.
"""

import json
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from fedattack.base.errors import ConfigError, RunError
from fedattack.runs.credentials import Certificates, NodeKey, make_certificates, make_node_key
from fedattack.runs.logs import refusal_reason
from fedattack.runs.runtime import Runtime, free_port

HOST = "127.0.0.1"

START_ATTEMPTS = 3

START_SECONDS = 120.0

# Starting a SuperNode is mostly importing; those of a large federation wait for each other's CPU.
START_SECONDS_PER_NODE = 15.0

POLL_SECONDS = 0.2


class SuperNodeRuntime(Runtime):
    """A :class:`fedattack.runs.runtime.Runtime` of SuperNodes that are processes of their own."""

    def __init__(self, app: Path, *, supernodes: int, log: Path) -> None:
        super().__init__(app, log=log)
        if supernodes < 1:
            raise ConfigError(f"deployment of {app}: expected supernodes >= 1, got {supernodes}")
        self.supernodes = supernodes

    def _await_online(self, deadline: float) -> None:
        online = 0
        while time.monotonic() < deadline:
            online = self._count_online()
            if online == self.supernodes:
                return
            time.sleep(POLL_SECONDS)
        raise NotUpError(f"{online} of {self.supernodes} SuperNodes are online")

    def _count_online(self) -> int:
        nodes = as_object(self._ask("flwr", "supernode", "list", "--format", "json").stdout).get("nodes", [])
        return sum(node.get("status") == "online" for node in nodes)


class Deployment(SuperNodeRuntime):
    """A :class:`fedattack.runs.runtime.Runtime` of real processes: one SuperLink, and a SuperNode for each client.

    SuperNode *i* has the node config ``partition-id=i num-partitions=N``, as a simulated client has. It trains with
    one thread unless ``OMP_NUM_THREADS`` says otherwise. All are polled until they are up, and end with the context.

    Parameters
    ----------
    app, log
        As for :class:`fedattack.runs.runtime.Runtime`; all processes write to the one log.
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
        processes = [self._superlink, *self._nodes]
        # poll() is None while a process runs.
        if all(process is not None and process.poll() is None for process in processes):
            return
        for attempt in range(1, START_ATTEMPTS + 1):
            self._stop()
            try:
                self._bring_up()
            except NotUpError as cause:
                self._stop()
                # Another try helps where a process ended at once, as when its port was taken; slowness gets no second
                # wait.
                if attempt == START_ATTEMPTS or not isinstance(cause, _EndedError):
                    raise RunError(f"the deployment did not come up: {cause}; see the end of {self.log}") from None
            else:
                return

    def _bring_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS + START_SECONDS_PER_NODE * self.supernodes
        # Keys of each attempt lie apart, since they are never overwritten.
        folder = self._private("keys") / str(time.monotonic_ns())
        certificates = make_certificates(folder, [HOST, "localhost"], days=30) if self.secure else None
        port = free_port()
        self._superlink = self._start(
            # Without it the SuperLink would try to install the app's dependencies from the network.
            *("flower-superlink", "--host", HOST, "--port", str(port), "--disable-runtime-dependency-installation"),
            *_superlink_options(certificates),
        )
        scheme = "http" if certificates is None else "https"
        self._await_health("the SuperLink", self._superlink, f"{scheme}://{HOST}:{port}", certificates, deadline)
        if certificates is None:
            self._connect(f"{HOST}:{port}", insecure=True)
        else:
            self._connect(f"{HOST}:{port}", **{"root-certificates": str(certificates.authority)})
        # All are started before any is waited for: they import side by side.
        addresses = [self._start_node(index, port, certificates, folder) for index in range(self.supernodes)]
        for index, (node, address) in enumerate(zip(self._nodes, addresses, strict=True)):
            self._await_health(f"SuperNode {index}", node, address, None, deadline)
        self._await_online(deadline)

    def _start_node(self, index: int, superlink: int, certificates: Certificates | None, folder: Path) -> str:
        """Start a SuperNode, registered if certificates are given; returns the address that reports its health."""
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
        # Registration must come before the node connects, which is refused otherwise.
        answer = self._ask("flwr", "supernode", "register", str(key.public), "--format", "json")
        if answer.returncode or not as_object(answer.stdout).get("success"):
            reason = refusal_reason((answer.stdout + answer.stderr).decode("utf-8", "replace"))
            raise NotUpError(f"the SuperLink did not register {key.public.name}: {reason}")

    def _await_health(
        self,
        what: str,
        process: subprocess.Popen[bytes],
        address: str,
        certificates: Certificates | None,
        deadline: float,
    ) -> None:
        trusted = None if certificates is None else ssl.create_default_context(cafile=str(certificates.authority))
        # Without a proxy of the environment: the health is asked on the loopback.
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
        raise NotUpError(f"{what} is not healthy")


class NotUpError(Exception):
    """A part of a deployment that did not come up."""


class _EndedError(NotUpError):
    """A process that ended at once, for example because a stranger was quicker and took its port."""


def _superlink_options(certificates: Certificates | None) -> tuple[str, ...]:
    if certificates is None:
        return ("--insecure",)
    return (
        *("--ssl-ca-certfile", str(certificates.authority)),
        *("--ssl-certfile", str(certificates.certificate)),
        *("--ssl-keyfile", str(certificates.key)),
        "--enable-supernode-auth",
    )


def as_object(text: bytes) -> dict[str, Any]:
    """Read a JSON object that a command printed; empty if it printed something else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    return value
