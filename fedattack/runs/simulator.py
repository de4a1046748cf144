"""Run a Flower app whose clients are simulated on Ray."""

import subprocess
import time
from pathlib import Path

import psutil

from fedattack.base.errors import ConfigError, RunError
from fedattack.base.machine import free_memory, usable_cpus
from fedattack.runs.runtime import Runtime, free_port

SUPERLINK_START_SECONDS = 60.0

SUPERLINK_START_ATTEMPTS = 3

# Flower feeds at most 32 clients at a time, so further Ray actors would only hold memory.
MAX_CPUS = 32

CLIENT = 2**30
"""Bytes that are reckoned for the process of a simulated client: Python and torch take 0.6 GiB of it."""


def clients_at_once(clients: int) -> int:
    """Count the clients that train side by side: one a CPU, and no more than there is memory for."""
    in_memory = max(1, int(free_memory() // CLIENT))
    return min(usable_cpus(), clients, MAX_CPUS, in_memory)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the process itself listens on the port, and not a stranger that was quicker."""
    deadline = time.monotonic() + SUPERLINK_START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            # The process itself must listen: an answer on the port may come from a stranger.
            connections = psutil.Process(process.pid).net_connections(kind="tcp")
        except psutil.Error:
            return False
        listening = [entry.laddr.port for entry in connections if entry.status == psutil.CONN_LISTEN]
        if port in listening:
            return True
        time.sleep(0.05)
    return False


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
        Default: :func:`clients_at_once`.
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
            cpus = clients_at_once(supernodes)
        if supernodes < 1 or cpus < 1 or gpus_per_client < 0:
            raise ConfigError(
                f"simulation of {app}: expected supernodes >= 1, cpus >= 1 and gpus_per_client >= 0, "
                f"got {supernodes}, {cpus} and {gpus_per_client}; correct the one that is out of range"
            )
        # Each client takes one CPU, so that as many train at a time as Ray has.
        federation = (
            f"num-supernodes={supernodes} client-resources-num-cpus=1 "
            f"client-resources-num-gpus={float(gpus_per_client)} init-args-num-cpus={cpus}"
        )
        self._run_options = ("--federation-config", federation)

    def ensure_up(self) -> None:
        """Start the SuperLink, unless it is up already.

        Raises
        ------
        RunError
            If it does not come up.
        """
        if self._superlink is not None and self._superlink.poll() is None:
            return
        why = ""
        # The port may be taken between finding it and listening: then another one is tried.
        for _ in range(SUPERLINK_START_ATTEMPTS):
            port = free_port()
            self._connect(f"127.0.0.1:{port}", insecure=True)
            self._superlink = self._start(
                "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)
            )
            if _listens(self._superlink, port):
                return
            why = "ended at once"
            if self._superlink.poll() is None:
                why = f"did not start within {SUPERLINK_START_SECONDS:.0f} s, as on a busy machine"
            self._stop()
        raise RunError(f"Flower's SuperLink {why}; run the same command again; the log is in {self.log}")
