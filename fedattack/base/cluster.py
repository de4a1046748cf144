"""A Ray cluster that is given: pieces of work go to its machines, and Ray starts again what is lost.

What a piece takes and what it gives travel as data through Ray. The machines need no folder in common with this one.
"""

import hashlib
import logging
import os
import re
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from fedattack.base.errors import MESSAGE, ConfigError, FedAttackError, RunError, short
from fedattack.base.extra import missing
from fedattack.base.version import __version__

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

log = logging.getLogger(__name__)

TRIES = 4
"""How often a piece is tried that is lost: with its machine, or killed for lack of memory."""

_ADDRESS = re.compile(r"auto|(ray://)?[^\s/:]+:[0-9]{1,5}")
_PROBE_SECONDS = 120.0
_CAUSE = 100


class _ClusterChoice:
    """The cluster of this command, set anew by each that takes --cluster; and the one that this process uses."""

    # On a class, as a module's name would need `global`; nothing is ever made of it.
    address = ""
    connected = ""


def choose(address: str) -> str:
    """Let this process send its pieces to a cluster, or to none if empty; a ConfigError if it is no address."""
    if address and not _ADDRESS.fullmatch(address):
        raise ConfigError(f"--cluster {short(address, 80)}: expected auto, HOST:PORT or ray://HOST:PORT")
    _ClusterChoice.address = address
    return address


def chosen() -> str:
    """Return the address that was chosen; empty for this machine alone."""
    return _ClusterChoice.address


@dataclass(frozen=True)
class Cluster:
    """A cluster to which this process is connected.

    Attributes
    ----------
    cpus, memory
        CPUs and bytes of each machine that does work.
    gpus
        GPUs of all machines.
    """

    address: str
    cpus: Sequence[int]
    memory: Sequence[float]
    gpus: float

    def at_once(self, room: float) -> int:
        """How many pieces of one CPU and so many bytes run at the same time; at least 1."""
        # On each machine as many as its CPUs and its memory allow.
        return max(1, sum(min(cpus, int(free // room)) for cpus, free in zip(self.cpus, self.memory, strict=True)))


def connect(address: str, paths: Sequence[str] = ()) -> Cluster:
    """Connect to a cluster, and check that its machines can do what this one asks of them.

    Parameters
    ----------
    address
        ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``.
    paths
        Files and folders that each machine must have where they are here.

    Raises
    ------
    ConfigError
        If nobody answers there, or a machine has other versions of Python, Ray or fedattack, lacks packages or paths.
    """
    # Ray would say at length what a later version will do about GPUs, and try again without end what lacks memory.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_task_oom_retries", str(TRIES - 1))
    import ray

    # ray.init takes seconds, and one process has one connection.
    if not ray.is_initialized():
        try:
            _knock(address)
            _be_brief()
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as cause:
            raise ConfigError(f"--cluster {address}: {_why_not(cause)}") from None
        _ClusterChoice.connected = address
    elif address not in ("auto", _ClusterChoice.connected):
        raise ConfigError(f"--cluster {address}: this process uses another Ray cluster; end that by ray.shutdown()")
    machines = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    # All are asked before any answer is waited for.
    asked = [(node["NodeManagerHostname"], _ask(node["NodeID"], paths)) for node in machines]
    for host, answer in asked:
        try:
            fault = find_misfit(ray.get(answer, timeout=_PROBE_SECONDS), describe_machine())
        except ray.exceptions.RayTaskError:
            fault = "has no fedattack of this build"
        except (ray.exceptions.RayError, OSError) as cause:
            raise ConfigError(
                f"--cluster {address}: a machine does not answer: {_name_of(cause)}; look at `ray status`"
            ) from None
        if fault:
            raise ConfigError(f"--cluster {address}: machine {host} {fault}; give all machines one image")
    cpus, memory, gpus = [], [], 0.0
    for node in machines:
        cpus.append(int(node["Resources"]["CPU"]))
        memory.append(node["Resources"].get("memory", 0.0))
        gpus += node["Resources"].get("GPU", 0.0)
    return Cluster(address, cpus, memory, gpus)


def _be_brief() -> None:
    """Make a line in the log of what Ray has to say. It would print pages on a lost machine among a command's JSON."""
    from ray._private import worker

    def tell(data: Any, ignore_prefix: bool) -> None:
        log.warning("Ray: %s", short(" ".join(data["lines"]), MESSAGE - 5))

    # Ray has no option for this: its own printer is replaced.
    worker.print_to_stdstream = tell


def _knock(address: str) -> None:
    """See whether anybody listens, or raise OSError or ValueError; Ray itself goes on asking for minutes."""
    if address == "auto":
        # Where `ray start` leaves it: that it is there does not say that the cluster is.
        kept = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"  # noqa: S108
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and kept.is_file():
            address = kept.read_text().strip()
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:
        # A bare host, as of auto without a cluster, is left to Ray.
        socket.create_connection((host, int(port)), timeout=5).close()


def _why_not(cause: Exception) -> str:
    """Say why Ray did not connect."""
    text = short(str(cause), 150)
    if re.search(r"version\w* (mis|do not |differ)|mismatch", text, re.IGNORECASE):
        return f"it has other versions of Ray or Python than this machine; give all one image ({text})"
    return (
        f"no Ray cluster answers there ({text}); start one with `ray start --head`, or give this command the token of "
        "one that asks for it, by RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
    )


def _ask(node: str, paths: Sequence[str]) -> Any:
    """Ask a machine what it has; returns Ray's reference to the answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    # num_cpus=0: the question is not held up by work on that machine.
    task = ray.remote(describe_machine).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return task.remote(list(paths))


def describe_machine(paths: Sequence[str] = ()) -> dict[str, Any]:
    """Say what this process has: fedattack's version and a digest of its code; and packages and paths it lacks."""
    return {
        "fedattack": __version__,
        "code": _digest_code(),
        "missing": missing(),
        "absent": [path for path in paths if not Path(path).exists()],
    }


@cache
def _digest_code() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    # Sorted, since file systems list in any order.
    for file in sorted(package.rglob("*.py")):
        # A wheel carries the app in the package, a checkout beside it.
        if file.relative_to(package).parts[0] != "_app":
            digest.update(file.read_bytes())
    return digest.hexdigest()


def find_misfit(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Say what a machine has that does not fit this one, by :func:`describe_machine` of both; empty if all does."""
    if there["code"] != here["code"]:
        return f"has another build of fedattack ({there['fedattack']}) than this machine ({here['fedattack']})"
    if there["missing"]:
        return f"lacks {short(', '.join(there['missing']), 60)}; install 'fedattack[audit]' there"
    if there["absent"]:
        return f"has no {short(there['absent'][0], 100)}; mount data at the same path everywhere"
    return ""


class Pieces(Generic[Shared, Item, Result]):
    """Pieces of work on a cluster.

    Parameters
    ----------
    cluster
        Where they are done.
    work
        Gets what all share, and an item. It can be imported by name on every machine.
    shared
        What all pieces need; it is sent once.
    items
        One for each piece. They are taken as pieces start, so that they need not fit into memory together.
    cpus, memory, gpus
        What a piece takes: it is started where so much is free.

    Raises
    ------
    ConfigError
        If it takes a GPU, and no machine has any.
    """

    def __init__(
        self,
        cluster: Cluster,
        work: Callable[[Shared, Item], Result],
        shared: Shared,
        items: Iterable[Item],
        *,
        cpus: int,
        memory: float,
        gpus: int = 0,
    ) -> None:
        import ray

        if gpus and not cluster.gpus:
            raise ConfigError(f"--cluster {cluster.address}: no machine has a GPU; take --device cpu")
        self._cluster, self._items = cluster, items
        # More than the largest machine has would wait for ever.
        room = int(min(memory, max(cluster.memory, default=0.0)))
        self._work = ray.remote(work).options(
            num_cpus=cpus, num_gpus=gpus, memory=room, max_retries=TRIES - 1, retry_exceptions=False
        )
        # As many again wait in Ray's queue, so that no machine is idle between two pieces.
        self._at_once = 2 * cluster.at_once(memory)
        # Put once: it travels to each machine once, and not with every piece.
        self._shared = ray.put(shared)
        self._waiting: deque[Any] = deque()

    def in_order(self) -> Iterator[Result]:
        """Yield results in the order of the items; no more are under way than are done at once, and as many again.

        Raises a RunError if a piece is lost each time that it is tried.
        """
        for item in self._items:
            self._waiting.append(self._work.remote(self._shared, item))
            if len(self._waiting) == self._at_once:
                yield self._take(self._waiting.popleft())
        while self._waiting:
            yield self._take(self._waiting.popleft())

    def as_they_end(self) -> Iterator[tuple[int, Result | FedAttackError]]:
        """Start all; yield each one's number with its result, or with the error that it ended in."""
        import ray

        numbers = {self._work.remote(self._shared, item): number for number, item in enumerate(self._items)}
        self._waiting.extend(numbers)
        while self._waiting:
            # One after the other, as each ends.
            (ended,), _ = ray.wait([*self._waiting], num_returns=1)
            self._waiting.remove(ended)
            try:
                yield numbers[ended], self._take(ended)
            except FedAttackError as problem:
                yield numbers[ended], problem

    def stop(self) -> None:
        """End what is still under way."""
        import ray

        while self._waiting:
            # force: a piece computes in C, and would not notice a polite request.
            ray.cancel(self._waiting.popleft(), force=True)

    def _take(self, piece: Any) -> Result:
        """Wait for a piece, and return its result or raise what it ended in."""
        from ray import exceptions, get

        where = f"--cluster {self._cluster.address}"
        try:
            result: Result = get(piece)
        except exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ImportError) or "failed to import" in str(cause):
                raise ConfigError(
                    f"{where}: a machine cannot import what is asked of it ({short(str(cause), _CAUSE)}); install it "
                    "there"
                ) from None
            # Its own text is the traceback of a process elsewhere.
            if isinstance(cause, Exception):
                raise cause from None
            raise RunError(short(str(error), 2 * _CAUSE)) from None
        except exceptions.RayError as error:
            raise RunError(
                f"{where}: a piece of work was lost, {TRIES} times where it could go again, often for lack of memory; "
                f"give machines more, or take less by --memory ({_name_of(error)})"
            ) from None
        return result


def _name_of(error: BaseException) -> str:
    # Ray lists all processes of the machine where one took too much memory.
    return f"{type(error).__name__}: {short(str(error), _CAUSE)}"
