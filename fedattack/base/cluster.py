"""A Ray cluster that is given: pieces of work go to its machines, and a piece that is lost goes again.

What a piece takes and what it gives travel as data through Ray. The machines need no folder in common with this one.
"""

import hashlib
import logging
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

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

    address = ""
    connected = ""


def choose(address: str) -> str:
    """Let the attacks of this process send their pieces to a cluster; empty for this machine alone.

    Returns
    -------
    str
        The address.

    Raises
    ------
    ConfigError
        If it is no address.
    """
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
    address
        As the caller gave it.
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
    # Ray would say at length what a later version will do about GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        if address not in ("auto", _ClusterChoice.connected):
            raise ConfigError(f"--cluster {address}: this process uses another Ray cluster; end that by ray.shutdown()")
    else:
        try:
            _knock(address)
            _be_brief()
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, ValueError, RuntimeError) as cause:
            raise ConfigError(f"--cluster {address}: {_why_not(cause)}") from None
        _ClusterChoice.connected = address
    try:
        machines = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        asked = [(node, _ask(node["NodeID"], paths)) for node in machines]
        for node, answer in asked:
            facts = ray.get(answer, timeout=_PROBE_SECONDS)
            if fault := misfit(facts, list_installed()):
                raise ConfigError(
                    f"--cluster {address}: machine {node['NodeManagerHostname']} {fault}; give all machines one image"
                )
    except (ray.exceptions.RayError, OSError) as cause:
        raise ConfigError(
            f"--cluster {address}: a machine does not answer: {_name_of(cause)}; look at `ray status`"
        ) from None
    resources = [node["Resources"] for node in machines]
    cpus = [int(has["CPU"]) for has in resources]
    memory = [has.get("memory", 0.0) for has in resources]
    return Cluster(address, cpus, memory, sum(has.get("GPU", 0.0) for has in resources))


def _be_brief() -> None:
    """Make a line in the log of what Ray has to say. It would print pages on a lost machine among a command's JSON."""
    from ray._private import worker

    def tell(data: Any, ignore_prefix: bool) -> None:
        log.warning("Ray: %s", short(" ".join(data["lines"]), MESSAGE - 5))

    worker.print_to_stdstream = tell


def _knock(address: str) -> None:
    """See whether anybody listens; Ray itself goes on asking for minutes.

    Raises
    ------
    OSError, ValueError
        If nobody does.
    """
    if address == "auto":
        # Where `ray start` leaves it: that it is there does not say that the cluster is.
        kept = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"  # noqa: S108
        address = os.environ.get("RAY_ADDRESS") or (kept.read_text().strip() if kept.is_file() else "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host:
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

    def look(paths: Sequence[str]) -> dict[str, Any]:
        # It travels whole: a machine without fedattack could not find it by name.
        import os.path
        import platform

        facts = {"python": platform.python_version(), "fedattack": "", "absent": [*paths]}
        facts["absent"] = [path for path in paths if not os.path.exists(path)]  # noqa: PTH110
        try:
            from fedattack.base import cluster
        except ImportError:
            return facts
        return facts | cluster.list_installed()

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(look).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(list(paths))


@cache
def list_installed() -> dict[str, Any]:
    """Say what this process has: versions, a digest of fedattack's code, and packages that are missing."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for file in sorted(package.rglob("*.py")):
        # A wheel carries the app in the package, a checkout beside it.
        if file.relative_to(package).parts[0] != "_app":
            digest.update(file.read_bytes())
    return {
        "python": platform.python_version(),
        "fedattack": __version__,
        "code": digest.hexdigest(),
        "missing": missing(),
    }


def misfit(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Say what a machine has that does not fit this one; empty if all does. Both are as :func:`installed` gives."""
    if there["python"] != here["python"]:
        return f"has Python {there['python']}, and here is {here['python']}"
    if not there["fedattack"]:
        return "has no fedattack, or one that is too old"
    if there["fedattack"] != here["fedattack"]:
        return f"has fedattack {there['fedattack']}, and here is {here['fedattack']}"
    if there["code"] != here["code"]:
        return f"has another build of fedattack {there['fedattack']} than this machine"
    if there["missing"]:
        return f"lacks {short(', '.join(there['missing']), 60)}; install 'fedattack[audit]' there"
    if there["absent"]:
        return f"has no {short(there['absent'][0], 100)}; mount data at the same path everywhere"
    return ""


class _Piece(NamedTuple):
    """A piece that is under way: references to its item and to its result, and how many bytes it was given."""

    item: Any
    room: float
    result: Any


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
        self._cluster, self._items = cluster, enumerate(items)
        self._work = ray.remote(work)
        # Where a worker is killed for lack of memory, Ray itself would try again without end.
        self._takes = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0}
        self._shared = ray.put(shared)
        self._memory = memory
        self._lost: Counter[int] = Counter()
        self._waiting: dict[int, _Piece] = {}

    def in_order(self) -> Iterator[Result]:
        """Yield results in the order of the items; no more are under way than are done at once, and as many again.

        Raises
        ------
        RunError
            If a piece is lost each time that it is tried.
        """
        done = 0
        while True:
            room = max((piece.room for piece in self._waiting.values()), default=self._memory)
            while len(self._waiting) < 2 * self._cluster.at_once(room) and self._start():
                pass
            if done not in self._waiting:
                return
            results: list[Result] = []
            while not results:
                results = self._take(done)
            done += 1
            yield results[0]

    def as_they_end(self) -> Iterator[tuple[int, Result | FedAttackError]]:
        """Start all; yield each one's number with its result, or with the error that it ended in."""
        import ray

        while self._start():
            pass
        while self._waiting:
            numbers = {piece.result: index for index, piece in self._waiting.items()}
            (ended,), _ = ray.wait([*numbers], num_returns=1)
            index = numbers[ended]
            try:
                done = self._take(index)
            except FedAttackError as problem:
                yield index, problem
            else:
                yield from [(index, result) for result in done]

    def stop(self) -> None:
        """End what is still under way."""
        import ray

        for piece in self._waiting.values():
            ray.cancel(piece.result, force=True)
        self._waiting.clear()

    def _start(self) -> bool:
        """Start the next piece; false if there is none."""
        import ray

        for index, item in self._items:
            # Ray keeps it for another try, on disk where there are many.
            kept = ray.put(item)
            self._waiting[index] = _Piece(kept, self._memory, self._begin_task(kept, self._memory))
            return True
        return False

    def _begin_task(self, item: Any, room: float) -> Any:
        # More than the largest machine has would wait for ever.
        room = min(room, max(self._cluster.memory, default=0.0))
        return self._work.options(memory=int(room), **self._takes).remote(self._shared, item)

    def _take(self, index: int) -> list[Result]:
        """Wait for a piece; returns its result, or nothing if it was lost and is started again."""
        from ray import exceptions, get

        lost = exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError
        piece = self._waiting.pop(index)
        try:
            return [get(piece.result)]
        except exceptions.RayTaskError as error:
            # Its own text is the traceback of a process elsewhere.
            raise self._of_work(error) from None
        except (exceptions.OutOfMemoryError, *lost) as error:
            self._lost[index] += 1
            if self._lost[index] == TRIES:
                raise RunError(
                    f"--cluster {self._cluster.address}: a piece of work was lost {TRIES} times, often for lack of "
                    f"memory; give machines more, or take less by --memory ({_name_of(error)})"
                ) from None
            room = 2 * piece.room if isinstance(error, exceptions.OutOfMemoryError) else piece.room
        except exceptions.RayError as error:
            raise RunError(f"--cluster {self._cluster.address}: a piece of work was lost ({_name_of(error)})") from None
        self._waiting[index] = _Piece(piece.item, room, self._begin_task(piece.item, room))
        return []

    def _of_work(self, error: Any) -> Exception:
        cause = error.cause
        if isinstance(cause, ImportError) or "failed to import" in str(cause):
            return ConfigError(
                f"--cluster {self._cluster.address}: a machine cannot import what is asked of it "
                f"({short(str(cause), _CAUSE)}); install it there"
            )
        return cause if isinstance(cause, Exception) else RunError(short(str(error), 2 * _CAUSE))


def _name_of(error: BaseException) -> str:
    # Ray lists all processes of the machine where one took too much memory.
    return f"{type(error).__name__}: {short(str(error), _CAUSE)}"
