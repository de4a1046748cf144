"""Write a record: append-only, one round at a time, each whole or absent."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack import __version__
from fedattack.errors import RecordError
from fedattack.files import Hold, write_atomically
from fedattack.record.format import (
    FINAL,
    FORMAT,
    INDEX,
    MANIFEST,
    PROTOCOLS,
    ROUNDS,
    SERVERS,
    VERSION,
    VIEWS,
    Arrays,
    Parameter,
    Protocol,
    Server,
    Status,
    View,
    encode_metric,
    seal,
)
from fedattack.record.means import identical, sample, weighted_mean
from fedattack.record.reader import is_unfinished, read_index, read_manifest
from fedattack.record.tensors import DTYPES, checksum, write_tensors


@dataclass(frozen=True)
class Reply:
    """What the server got, or did not get, from one node in one round.

    Attributes
    ----------
    node
        The node's id as the server knows it.
    status
        ``ok``; ``failed`` (an error came back, or arrays that cannot be read); ``missing`` (sampled, but nothing
        came); ``late`` (came after its round had been closed).
    arrays
        What the client sent, by parameter name; ``None`` without arrays of its own (a failure, an aggregate view).
    num_examples
        The example count that the client sent beside the arrays.
    metrics
        Everything else that it sent in plaintext.
    reason
        Why there is no usable reply.
    received
        The model that was sent to this node, if it is another than the round's common model.
    of_round
        For a late reply, the round that it answers.
    """

    node: str
    status: Status
    arrays: Arrays | None = None
    num_examples: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    received: Arrays | None = None
    of_round: int | None = None


@dataclass(frozen=True)
class Exchange:
    """One round as the server saw it, ready to be written.

    ``common`` is the model that was sent to the clients and ``config`` what the server sent with it, ``aggregate``
    what a secure-aggregation server sees in place of replies, and ``mean`` the recipe of
    :mod:`fedattack.record.means` by which this server may average.
    """

    number: int
    common: Arrays | None
    replies: Sequence[Reply]
    aggregate: Arrays | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    mean: str | None = None
    started: float = field(default_factory=time.time)
    ended: float = field(default_factory=time.time)


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


class RecordWriter:
    """Writes one run into a new folder.

    Parameters
    ----------
    path
        Folder to create. It must not hold a record yet.
    view, protocol, server
        What kind of server this is; see DESIGN.
    seed, facts
        The run's seed and anything else that the server legitimately knows, kept in the manifest.
    versions
        Versions of the packages that took part, in addition to fedattack's, numpy's and Python's.
    aggregation
        In the aggregate view, what an aggregate is, for example ``{"kind": "mean", "weight": "num-examples"}``.
    resume
        Go on with the record that is there, after its last round. A round that its run left unfinished is dropped,
        and what a kill has left of one that was being written.

    Raises
    ------
    RecordError
        If the folder holds a record already, or, to go on with, none, a damaged one, or one of another kind; if
        somebody else writes to it, or a kind is unknown.
    """

    def __init__(
        self,
        path: Path,
        *,
        view: View = "individual",
        protocol: Protocol = "fedavg",
        server: Server = "passive",
        seed: int | None = None,
        facts: Mapping[str, Any] | None = None,
        versions: Mapping[str, str] | None = None,
        aggregation: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> None:
        for name, value, known in (
            ("view", view, VIEWS),
            ("protocol", protocol, PROTOCOLS),
            ("server", server, SERVERS),
        ):
            if value not in known:
                raise RecordError(f"unknown {name} {value!r}: expected one of {', '.join(known)}")
        self.path = path
        self._seq = 0
        self._last_common: tuple[int, Arrays] | None = None
        self._last_mean: tuple[int, str, Arrays] | None = None
        self._manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "view": view,
            "protocol": protocol,
            "server": server,
            "aggregation": dict(aggregation) if aggregation else None,
            "status": "open",
            "error": None,
            "rounds": None,
            "parameters": None,
            "final": None,
            "seed": seed,
            "facts": {key: encode_metric(value) for key, value in (facts or {}).items()},
            "versions": {
                "fedattack": __version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
                **(versions or {}),
            },
            "started": _stamp(time.time()),
            "ended": None,
        }
        try:
            with ExitStack() as undo:
                if not resume:
                    (path / ROUNDS).mkdir(parents=True, exist_ok=True)
                    path.chmod(0o700)  # what the server saw of the clients is as private as the clients' data
                    # Exclusive creation is what keeps two runs out of one folder.
                    (path / INDEX).open("xb").close()
                self._hold = Hold(path)
                undo.callback(self._hold.close)
                if resume:
                    self._go_on()
                else:
                    self._write_manifest()
                undo.pop_all()
        except BlockingIOError:
            raise RecordError(f"{path} is being written to by another run; wait until that one has ended") from None
        except FileExistsError:
            raise RecordError(
                f"{path} holds a record already; give this run a folder of its own, or delete that one first"
            ) from None
        except OSError as cause:
            raise RecordError(
                f"{path} cannot be made into a record ({cause}); choose a folder that can be written"
            ) from None

    def _go_on(self) -> None:
        """Take up the record that is there: its manifest, and its finished rounds."""
        found, new = read_manifest(self.path), self._manifest
        for name in ("view", "protocol", "server", "aggregation", "seed"):
            if found[name] != new[name]:
                raise RecordError(
                    f"{self.path} has the {name} {found[name]}, and what is to go on with it {new[name]}; "
                    "give this run a folder of its own"
                )
        lines, damage = read_index(self.path, found["rounds"])
        if damage:
            raise RecordError(f"{damage[0]}; a damaged record cannot be gone on with: start a new one")
        while lines and is_unfinished(lines[-1]):
            lines.pop()
        last = max((line["round"] for line in lines), default=0)
        resumed = [*found.get("resumed", []), {"after": last, "at": new["started"], "versions": new["versions"]}]
        self._seq = len(lines)
        self._manifest = {
            **found,
            **{key: new[key] for key in ("status", "error", "rounds", "final", "ended")},
            "resumed": resumed,
        }
        # First, so that nothing of what follows leaves a damaged record behind: an open one may have too much.
        self._write_manifest()
        write_atomically(self.path / INDEX, "".join(seal(line) + "\n" for line in lines).encode())
        kept = {self.path / line["file"] for line in lines}
        for file in ({*(self.path / ROUNDS).iterdir()} - kept) | {self.path / FINAL}:
            file.unlink(missing_ok=True)

    @property
    def is_open(self) -> bool:
        """Whether :meth:`close` has yet to be called."""
        return bool(self._manifest["status"] == "open")

    def write(self, exchange: Exchange) -> None:
        """Append one round and make it durable.

        Raises
        ------
        OSError
            If it cannot be written. The record then ends before this round and stays readable.
        """
        tensors: dict[str, NDArray[Any]] = {}
        common = self._place_common(exchange, tensors)
        replies = [self._place_reply(index, reply, tensors) for index, reply in enumerate(exchange.replies)]
        if exchange.aggregate is not None:
            _place(tensors, "aggregate", exchange.aggregate)
        if self._manifest["parameters"] is None:
            self._describe_parameters(exchange)
        name = f"{ROUNDS}/{self._seq:06d}.safetensors"
        size, digest = write_tensors(self.path / name, tensors)
        try:
            self._append(
                seal(
                    {
                        "seq": self._seq,
                        "round": exchange.number,
                        "file": name,
                        "bytes": size,
                        "xxh3": digest,
                        "config": {str(key): encode_metric(value) for key, value in exchange.config.items()},
                        "common": common,
                        "replies": replies,
                        "aggregate": list(exchange.aggregate) if exchange.aggregate is not None else None,
                        "started": _stamp(exchange.started),
                        "ended": _stamp(exchange.ended),
                    }
                )
            )
        except BaseException:
            (self.path / name).unlink(missing_ok=True)
            raise
        self._seq += 1
        self._remember(exchange, self._seq - 1)

    def close(self, *, final: Arrays | None = None, error: str | None = None) -> None:
        """End the record.

        Parameters
        ----------
        final
            The common model after the last round, if the server knows it.
        error
            Why the record is cut short; ``None`` for a run that was recorded to its end.
        """
        if final is not None and error is None:
            source = self._known_source(final)
            if source is None:
                size, digest = write_tensors(self.path / FINAL, final)
                source = {"source": "stored", "names": list(final), "bytes": size, "xxh3": digest}
            self._manifest["final"] = source
        self._manifest["status"] = "complete" if error is None else "cut short"
        self._manifest["error"] = error
        self._manifest["rounds"] = self._seq
        self._manifest["ended"] = _stamp(time.time())
        self._write_manifest()
        self._hold.close()

    def _place_common(self, exchange: Exchange, tensors: dict[str, NDArray[Any]]) -> dict[str, Any] | None:
        if exchange.common is None:
            return None
        source = self._known_source(exchange.common)
        if source is None:
            _place(tensors, "common", exchange.common)
            source = {"source": "stored", "names": list(exchange.common)}
        return source

    def _known_source(self, arrays: Arrays) -> dict[str, Any] | None:
        if self._last_mean is not None and all(array.dtype.name in DTYPES for array in arrays.values()):
            seq, recipe, sampled = self._last_mean
            if identical(sample(arrays), sampled):
                return {"source": "mean", "of": seq, "recipe": recipe, "xxh3": checksum(arrays.values())}
        if self._last_common is not None and identical(arrays, self._last_common[1]):
            return {"source": "same", "as": self._last_common[0]}
        return None

    @staticmethod
    def _place_reply(index: int, reply: Reply, tensors: dict[str, NDArray[Any]]) -> dict[str, Any]:
        status, reason = _status(reply)
        entry: dict[str, Any] = {"node": reply.node, "status": status}
        if reply.arrays is not None and status == reply.status:
            _place(tensors, f"reply/{index}", reply.arrays)
            entry["arrays"] = list(reply.arrays)
        if reply.received is not None:
            _place(tensors, f"received/{index}", reply.received)
            entry["received"] = list(reply.received)
        if reply.num_examples is not None:
            entry["num_examples"] = encode_metric(reply.num_examples)
        if reply.metrics:
            entry["metrics"] = {str(key): encode_metric(value) for key, value in reply.metrics.items()}
        if reason:
            entry["reason"] = reason
        if reply.of_round is not None:
            entry["of_round"] = reply.of_round
        return entry

    def _describe_parameters(self, exchange: Exchange) -> None:
        candidates = [exchange.common, exchange.aggregate, *(reply.arrays for reply in exchange.replies)]
        arrays = next((item for item in candidates if item is not None), None)
        if arrays is None:
            return
        self._manifest["parameters"] = [vars(Parameter.of(name, array)) for name, array in arrays.items()]
        self._write_manifest()

    def _remember(self, exchange: Exchange, seq: int) -> None:
        if exchange.common is not None:
            self._last_common = (seq, exchange.common)
        self._last_mean = None
        usable = [reply for reply in exchange.replies if _status(reply)[0] == "ok" and reply.arrays is not None]
        if exchange.mean is None or not usable or not all(_may_weigh(reply.num_examples) for reply in usable):
            return
        replies = [reply.arrays for reply in usable if reply.arrays is not None]
        weights = [reply.num_examples for reply in usable if reply.num_examples is not None]
        if len({_layout(arrays) for arrays in replies}) == 1:
            sampled = weighted_mean((sample(arrays) for arrays in replies), weights, exchange.mean)
            self._last_mean = (seq, exchange.mean, sampled)

    def _append(self, line: str) -> None:
        with (self.path / INDEX).open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            try:
                file.write(line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise

    def _write_manifest(self) -> None:
        write_atomically(self.path / MANIFEST, (seal(self._manifest, indent=2) + "\n").encode())


def _status(reply: Reply) -> tuple[Status, str]:
    """Fail a reply of a kind that safetensors lacks (text, extended precision): it is this client's trouble alone."""
    odd = [f"{name} is {array.dtype}" for name, array in (reply.arrays or {}).items() if array.dtype.name not in DTYPES]
    return ("failed", f"arrays that cannot be kept: {', '.join(odd)}") if odd else (reply.status, reply.reason)


def _may_weigh(count: float | None) -> bool:
    return isinstance(count, int | float) and count > 0


def _layout(arrays: Arrays) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, array.shape, str(array.dtype)) for name, array in arrays.items())


def _place(tensors: dict[str, NDArray[Any]], prefix: str, arrays: Arrays) -> None:
    for name, array in arrays.items():
        tensors[f"{prefix}/{name}"] = array
