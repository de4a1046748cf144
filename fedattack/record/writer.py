"""Write a record: append-only, one round at a time, each whole or absent."""

import json
import os
import platform
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import RecordError, short
from fedattack.base.files import FolderLock, atomic_file, copy_bytes, make_private, open_private, write_atomically
from fedattack.base.untrusted import MAX_SIDE, check_folder, open_regular, remove_inside
from fedattack.base.version import __version__
from fedattack.record.exchange import Exchange, Reply
from fedattack.record.format import (
    COUNT_KEY,
    FINAL,
    FORMAT,
    INDEX,
    MANIFEST,
    PROTOCOLS,
    ROUNDS,
    SERVERS,
    SIGNATURE,
    VERSION,
    VIEWS,
    Arrays,
    Parameter,
    Server,
    View,
    encode_metric,
    keep_name,
    seal_line,
    seal_manifest,
    unseal_line,
    unseal_manifest,
)
from fedattack.record.index import file_of, read_index, read_manifest
from fedattack.record.keep import Keep
from fedattack.record.means import identical, mean_of, sample
from fedattack.record.others import Others, Unrecorded
from fedattack.record.schema import MAX_NAME, Protocol
from fedattack.record.signature import SIGNING_KEY, read_private_key, signer_of
from fedattack.record.tensors import DTYPES, checksum, write_tensors

MAX_REPLY = 4 * 2**20
"""Characters of one reply's names and metrics; a client that sends more fails."""

MAX_REPLIES = 64 * 2**20
"""Characters of all replies' names and metrics in a round; the clients that send most fail first."""

MAX_TABLES = 64 * 2**20
"""Characters of all replies' names, types and shapes of arrays in a round, which the file begins with."""

MAX_ARRAYS = 2**16
"""Arrays of one reply."""


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _check_kind(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise RecordError(f"unknown {name} {value!r}: expected one of {', '.join(known)}")


class RecordWriter:
    """Writes one run into a new folder.

    Parameters
    ----------
    path
        Folder to create. It must not hold a record yet.
    view, protocol, server
        What kind of server this is; FORMAT.md says what they mean.
    seed, facts
        The run's seed and anything else that the server legitimately knows, kept in the manifest.
    versions
        Versions of the packages that took part, in addition to fedattack's, numpy's and Python's.
    aggregation
        In the aggregate view, what an aggregate is, for example ``{"kind": "mean", "weight": "num-examples"}``.
    resume
        Go on with the existing record after its last round. A round that its run left unfinished is dropped, and so
        is one that was being written when the run was killed.
    key
        File of the private key that the record is signed by, as :func:`fedattack.record.signature.make_key` makes it.
    keep
        What goes into the record; all by default.
    unrecorded
        Messages that were not recorded before, as a manifest lists them.
    record_id
        The record's id, 32 hexadecimal digits, where knowledge and truth name it before the run; drawn without.
    origin
        The id of the record of which this one is a copy that holds less or other.

    Attributes
    ----------
    unrecorded
        Counts messages of which something is not in the record. What it counts is in the manifest after the next round.

    Raises
    ------
    RecordError
        - If the folder holds a record already.
        - To go on with a record: if there is none, or it is damaged or of another kind.
        - If somebody else writes to the folder, a kind is unknown, or facts are of a form that no reader takes.
    ConfigError
        If the key cannot be read.
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
        key: Path | str | None = None,
        keep: Keep | None = None,
        unrecorded: Sequence[Mapping[str, Any]] = (),
        record_id: str = "",
        origin: str = "",
    ) -> None:
        keep = keep or Keep()
        _check_kind("view", view, VIEWS)
        _check_kind("protocol", protocol, PROTOCOLS)
        _check_kind("server", server, SERVERS)
        _check_keep(keep, view, server)
        self.path = path
        self._keep = keep
        self._key = None
        signer = None
        if key is not None:
            self._key = read_private_key(Path(key))
            signer = signer_of(self._key)
        self.unrecorded = Unrecorded(unrecorded)
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
            "id": record_id or secrets.token_hex(16),
            "head": None,
            "signer": signer,
            "kept": keep.to_entry() if keep.kinds else None,
        }
        if origin:
            self._manifest["origin"] = origin
        if unrecorded:
            self._manifest["unrecorded"] = [*unrecorded]
        # Before the folder is made: facts of a caller that no reader would take leave nothing behind.
        self._check_manifest(self._manifest)
        self._previous: str = self._manifest["id"]
        self._open(resume)

    def _open(self, resume: bool) -> None:
        """Make the folder, or go on with the record in it, and keep other writers out."""
        path = self.path
        try:
            if not resume:
                self._make_folder()
            self._lock = FolderLock(path)
            # The lock is let go of if anything fails here; `pop_all` keeps it otherwise.
            with ExitStack() as undo:
                undo.callback(self._lock.close)
                if resume:
                    self._resume()
                else:
                    self._write_manifest()
                undo.pop_all()
        except BlockingIOError:
            raise RecordError(f"{path} is being written to by another run; wait until that one has ended") from None
        except FileExistsError:
            raise RecordError(
                f"{path} already holds a record; give this run a folder of its own, or delete that one first"
            ) from None
        except OSError as cause:
            raise RecordError(
                f"{path} cannot be made into a record ({cause}); choose a folder that can be written"
            ) from None

    def _make_folder(self) -> None:
        make_private(self.path)
        check_folder(self.path, RecordError, to_write=True)
        make_private(self.path / ROUNDS)
        self.path.chmod(0o700)  # what the server saw of the clients is as private as the clients' data
        # Exclusive creation keeps two runs out of one folder.
        open_private(self.path / INDEX, "xb").close()

    def _check_manifest(self, manifest: Mapping[str, Any]) -> None:
        unseal_manifest(seal_manifest(manifest), f"{self.path}: what its manifest is to say of the run")

    def _resume(self) -> None:
        """Go on with the existing record: take its manifest and its finished rounds, and remove the rest."""
        check_folder(self.path, RecordError, to_write=True)
        old, new = read_manifest(self.path), self._manifest
        self._check_same_run(old, new)
        index = read_index(self.path, old)
        if index.damage:
            raise RecordError(f"{index.damage[0]}; a damaged record cannot be continued: start a new one")
        lines = index.lines
        # A round in which the run ended is trained again.
        while lines and lines[-1].unfinished:
            lines.pop()
        self._seq = len(lines)
        last = max([line.number for line in lines], default=0)
        resumed = {"after": last, "at": new["started"], "versions": new["versions"]}
        self._manifest = dict(old)
        self.unrecorded = Unrecorded(old.get("unrecorded", ()))
        # What says how the run ended does not hold any more.
        for key in ("status", "error", "rounds", "final", "ended", "head"):
            self._manifest[key] = new[key]
        self._manifest["resumed"] = [*old.get("resumed", []), resumed]
        # The manifest comes first, so that no later step leaves a damaged record behind: an open one may have too much.
        self._write_manifest()
        end = 0
        self._previous = old["id"]
        if lines:
            # One byte for the end of the line.
            end = lines[-1].offset + lines[-1].length + 1
            self._previous = lines[-1].check
        with open_regular(self.path / INDEX) as source, atomic_file(self.path / INDEX) as file:
            copy_bytes(source, file, end)
        files = {self.path / file_of(line.seq) for line in lines}
        # A kill between file and line leaves a file of no line.
        leftovers = set((self.path / ROUNDS).iterdir()) - files
        for path in leftovers | {self.path / FINAL}:
            remove_inside(self.path, path, RecordError)

    def _check_same_run(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Refuse to go on with the record of another kind of run, or with another key."""
        for name in ("view", "protocol", "server", "aggregation", "seed", "kept"):
            if old[name] != new[name]:
                raise RecordError(
                    f"{self.path} has the {name} {short(str(old[name]), 60)}, and what is to continue it "
                    f"{short(str(new[name]), 60)}; give this run a folder of its own"
                )
        # A record is signed as a whole, by one key.
        if old["signer"] != new["signer"]:
            begun = "with a key"
            if new["signer"]:
                begun = "with another key, or without one"
            raise RecordError(f"{self.path} was started {begun}; continue it in the same way ({SIGNING_KEY})")

    @property
    def is_open(self) -> bool:
        """Whether :meth:`close` has yet to be called."""
        return bool(self._manifest["status"] == "open")

    def amend(
        self,
        *,
        facts: Mapping[str, Any] | None = None,
        view: View | None = None,
        aggregation: Mapping[str, Any] | None = None,
    ) -> None:
        """Say more of the run, or that it is in another view, before its first round.

        Raises
        ------
        RecordError
            If a round is in it already, or single clients' replies are to be left out of a record of sums.
        """
        if self._seq:
            raise RecordError(f"{self.path} has {self._seq} rounds; what kind of record it is cannot change any more")
        manifest = dict(self._manifest)
        manifest["facts"] = manifest["facts"] | {key: encode_metric(value) for key, value in (facts or {}).items()}
        if view is not None:
            _check_keep(self._keep, view, manifest["server"])
            manifest |= {"view": view, "aggregation": dict(aggregation or {}) or None}
        self._check_manifest(manifest)
        self._manifest = manifest
        self._write_manifest()

    def write(self, exchange: Exchange) -> None:
        """Append what is kept of one round, if anything, and make it durable.

        Raises
        ------
        OSError
            If it cannot be written. The record then ends before this round and stays readable.
        """
        # Before the round: a kill after it would leave messages that nobody named.
        if self.unrecorded.changed:
            self._note_unrecorded()
            self._check_manifest(self._manifest)
            self._write_manifest()
        kept = self._keep.reduce_round(exchange)
        if kept is not None:
            self._append_round(kept)

    def _append_round(self, exchange: Exchange) -> None:
        """Write a round's arrays to a file, and then its line to the index."""
        tensors: dict[str, NDArray[Any]] = {}
        common = self._place_common(exchange, tensors)
        entries = _entries(exchange.replies)
        usable: list[Reply] = []
        for index, (reply, entry) in enumerate(zip(exchange.replies, entries, strict=True)):
            if "arrays" in entry:
                _put_into(tensors, f"reply/{index}", reply.arrays)
                if reply.status == "ok":
                    usable.append(reply)
            if "received" in entry:
                _put_into(tensors, f"received/{index}", reply.received)
        _put_into(tensors, "aggregate", exchange.aggregate)
        if self._manifest["parameters"] is None:
            self._describe_parameters(exchange, usable)
        file = file_of(self._seq)
        # The file comes before the line that names it: a kill between them leaves a file of no line, and no damage.
        digests = write_tensors(self.path / file, tensors, sha256=self._key is not None)
        line = {
            "seq": self._seq,
            "round": exchange.number,
            "file": file,
            **digests,
            "config": _encode(exchange.config),
            "common": common,
            "replies": entries,
            "aggregate": list(exchange.aggregate) if exchange.aggregate is not None else None,
            "started": _stamp(exchange.started),
            "ended": _stamp(exchange.ended),
        }
        # What passed after the last round of a stopped run comes before this one.
        others = [*self._manifest.get("others", ()), *(other.to_entry() for other in exchange.others)]
        if others:
            line["others"] = others
        try:
            row, check = seal_line(line, self._previous)
            # A line that no reader would take must not be written.
            unseal_line(row, f"round {exchange.number}")
            self._append(row)
        # BaseException: a signal, too, must not leave a file without its line.
        except BaseException:
            (self.path / file).unlink(missing_ok=True)
            raise
        self._previous = check
        self._seq += 1
        self._manifest.pop("others", None)
        self._remember(exchange, self._seq - 1, usable)

    def close(self, *, final: Arrays | None = None, error: str | None = None, others: Sequence[Others] = ()) -> None:
        """End the record.

        Parameters
        ----------
        final
            The common model after the last round, if the server knows it.
        error
            Why the record is cut short; ``None`` for a run that was recorded to its end.
        others
            Messages that passed after the last round, and are no training.

        Raises
        ------
        OSError
            If a file cannot be written.
        """
        if others:
            self._manifest["others"] = [*self._manifest.get("others", ()), *(other.to_entry() for other in others)]
        if final is not None and error is None:
            # Where the last model is one that the record has, its place is named instead.
            source = self._find_source(final)
            if source is None:
                digests = write_tensors(self.path / FINAL, final, sha256=self._key is not None)
                source = {"source": "stored", "names": list(final), **digests}
            self._manifest["final"] = source
        self._note_unrecorded()
        if error is None:
            self._manifest |= {"status": "complete", "error": None}
        else:
            self._manifest |= {"status": "cut short", "error": short(error)}
        self._manifest["rounds"] = self._seq
        self._manifest["ended"] = _stamp(time.time())
        self._manifest["head"] = self._previous
        self._check_manifest(self._manifest)
        if self._key is not None:
            # The signature lies there first: a closed manifest is never without it.
            write_atomically(self.path / SIGNATURE, self._key.sign(seal_manifest(self._manifest)))
        self._write_manifest()
        self._lock.close()

    def _note_unrecorded(self) -> None:
        """Say in the manifest which messages are not recorded."""
        if unrecorded := self.unrecorded.entries():
            self._manifest["unrecorded"] = unrecorded

    def _place_common(self, exchange: Exchange, tensors: dict[str, NDArray[Any]]) -> dict[str, Any] | None:
        if exchange.common is None:
            return None
        source = self._find_source(exchange.common)
        if source is None:
            _put_into(tensors, "common", exchange.common)
            source = {"source": "stored", "names": list(exchange.common)}
        return source

    def _find_source(self, arrays: Arrays) -> dict[str, Any] | None:
        """Say where the record has this model already, if it has it."""
        if self._last_mean is not None and {array.dtype.name for array in arrays.values()} <= DTYPES.keys():
            seq, recipe, sampled = self._last_mean
            # Entries that were sampled decide first: the mean of whole replies was never in memory.
            if identical(sample(arrays), sampled):
                return {"source": "mean", "of": seq, "recipe": recipe, "xxh3": checksum(arrays.values())}
        if self._last_common is not None and identical(arrays, self._last_common[1]):
            return {"source": "same", "as": self._last_common[0]}
        return None

    def _describe_parameters(self, exchange: Exchange, usable: Sequence[Reply]) -> None:
        """Describe the first arrays that the server takes; arrays that it does not take say nothing of the model."""
        candidates = [exchange.common, exchange.aggregate, *(reply.arrays for reply in usable)]
        arrays = next((arrays for arrays in candidates if arrays is not None), None)
        if arrays is None:
            return
        described = [vars(Parameter.of(name, array)) for name, array in arrays.items()]
        self._check_manifest(self._manifest | {"parameters": described})
        self._manifest["parameters"] = described
        self._write_manifest()

    def _remember(self, exchange: Exchange, seq: int, usable: Sequence[Reply]) -> None:
        """Keep what the next round's common model may be: this round's one, or the mean of its replies."""
        if exchange.common is not None:
            self._last_common = (seq, exchange.common)
        self._last_mean = None
        if exchange.mean is None or not usable or not all(_may_weigh(reply.num_examples) for reply in usable):
            return
        replies = [reply.arrays for reply in usable if reply.arrays is not None]
        weights = [reply.num_examples for reply in usable if reply.num_examples is not None]
        if len({_layout(arrays) for arrays in replies}) == 1:
            # The mean of samples is the sample of the mean, as entries are averaged one by one.
            sampled = mean_of(map(sample, replies), weights, exchange.mean)
            self._last_mean = (seq, exchange.mean, sampled)

    def _append(self, row: bytes) -> None:
        # Not "a": whether appending seeks before each write differs between systems.
        with (self.path / INDEX).open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            try:
                # One write for the line and its end: readers take a line without an end for unfinished.
                file.write(row + b"\n")
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                # A full disk: the part of a line that was written goes again.
                file.truncate(end)
                raise

    def _write_manifest(self) -> None:
        write_atomically(self.path / MANIFEST, seal_manifest(self._manifest))


def _check_keep(keep: Keep, view: View, server: Server) -> None:
    if keep.kinds and server != "passive":
        raise RecordError(f"the record of a server that is {server} is kept whole: clients were sent different models")
    if keep.some_clients and view == "aggregate":
        raise RecordError("clients: a record of sums has no single client's reply to leave out; leave the option out")


def _entries(replies: Sequence[Reply]) -> list[dict[str, Any]]:
    """Describe all replies of a round; those that would make the round unreadable are failed without their content."""
    entries = list(map(_entry, replies))
    for index in _too_large(replies, entries):
        entries[index] = _without_content(entries[index])
    return entries


def _entry(reply: Reply) -> dict[str, Any]:
    """Describe a reply; one that cannot be kept is failed with a reason, which concerns this client alone."""
    entry: dict[str, Any] = {"node": keep_name(reply.node), "status": reply.status}
    reason = short(reply.reason)
    fault = cannot_be_kept(reply.arrays or {})
    if fault:
        entry["status"] = "failed"
        reason = fault
    elif reply.arrays is not None:
        entry["arrays"] = list(reply.arrays)
    if reply.received is not None:
        entry["received"] = list(reply.received)
    count = encode_metric(reply.num_examples)
    # A count that is no number is left out.
    if type(count) in (int, float) or (isinstance(count, dict) and "float" in count):
        entry["num_examples"] = count
        if reply.count_key != COUNT_KEY:
            entry["count_key"] = keep_name(reply.count_key)
    if reply.metrics:
        entry["metrics"] = _encode(reply.metrics)
    if reason:
        entry["reason"] = reason
    if reply.of_round is not None:
        entry["of_round"] = reply.of_round
    return entry


def cannot_be_kept(arrays: Arrays) -> str:
    """Say which arrays a file cannot hold: text, extended precision, odd names or shapes. Empty if it can hold all."""
    if len(arrays) > MAX_ARRAYS:
        return f"{len(arrays):,} arrays, and at most {MAX_ARRAYS:,} are kept"
    faults = [f"{name} is {array.dtype}" for name, array in arrays.items() if array.dtype.name not in DTYPES]
    faults += [f"a name of {len(name)} characters" for name in arrays if len(name) > MAX_NAME]
    faults += [f"{name!a} is not Unicode" for name in arrays if name.encode("utf-8", "replace").decode() != name]
    for name, array in arrays.items():
        if max(array.shape, default=0) > MAX_SIDE:
            faults.append(f"{name} has the shape {array.shape}")
    if not faults:
        return ""
    return short(f"arrays that cannot be kept: {', '.join(faults)}")


def _too_large(replies: Sequence[Reply], entries: Sequence[Mapping[str, Any]]) -> set[int]:
    """Choose the replies that would make the round unreadable by their names, metrics or numbers of arrays."""
    texts = [len(json.dumps(entry)) for entry in entries]
    tables = [0] * len(entries)
    # No arrays of a failed reply go into the file.
    for index, (reply, entry) in enumerate(zip(replies, entries, strict=True)):
        if "arrays" in entry:
            tables[index] = _table_size(reply.arrays or {})
    return _largest(texts, MAX_REPLIES) | _largest(tables, MAX_TABLES)


def _largest(sizes: Sequence[int], most: int) -> set[int]:
    """Choose those above :data:`MAX_REPLY`, and the largest of the rest until all others take at most ``most``."""
    total = sum(sizes)
    chosen: set[int] = set()
    # Largest first: as few clients as possible fail for the others.
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        if sizes[index] <= MAX_REPLY and total <= most:
            break
        chosen.add(index)
        total -= sizes[index]
    return chosen


def _table_size(arrays: Arrays) -> int:
    """Bound the characters of a reply's arrays in the file's table of names, types, shapes and offsets."""
    # 100 characters for keys, type and punctuation, 20 for each number of the shape.
    return sum(len(json.dumps(name)) + 100 + 20 * array.ndim for name, array in arrays.items())


def _without_content(entry: Mapping[str, Any]) -> dict[str, Any]:
    arrays = len(entry.get("arrays", ()))
    failed = {key: entry[key] for key in ("node", "received", "of_round") if key in entry}
    failed["status"] = "failed"
    failed["reason"] = (
        f"its {arrays:,} arrays' names and its metrics take {len(json.dumps(entry)):,} characters, too many to keep"
    )
    return failed


def _encode(values: Mapping[str, Any]) -> dict[str, Any]:
    return {keep_name(str(key)): encode_metric(value) for key, value in values.items()}


def _may_weigh(count: float | None) -> bool:
    return isinstance(count, int | float) and count > 0


def _layout(arrays: Arrays) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, array.shape, str(array.dtype)) for name, array in arrays.items())


def _put_into(tensors: dict[str, NDArray[Any]], prefix: str, arrays: Arrays | None) -> None:
    for name, array in (arrays or {}).items():
        tensors[f"{prefix}/{name}"] = array
