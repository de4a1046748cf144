"""Read a record: lazily, round by round, verified before use."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedattack.errors import RecordError
from fedattack.record.format import (
    FINAL,
    FORMAT,
    INDEX,
    MANIFEST,
    UNFINISHED,
    VERSION,
    Arrays,
    Parameter,
    Protocol,
    Server,
    Status,
    View,
    decode_metric,
    unseal,
)
from fedattack.record.means import weighted_mean
from fedattack.record.tensors import checksum

_BLOCK = 1 << 18


class TensorFile:
    """A round's arrays on disk, memory-mapped, checked against the index before the first one is read."""

    def __init__(self, path: Path, size: int, xxh3: str) -> None:
        self.path = path
        self.xxh3 = xxh3
        self._size = size
        self._verified = False

    def verify(self) -> None:
        """Compare the file with its size and checksum.

        Raises
        ------
        RecordError
            If it is missing or differs.
        """
        try:
            size = self.path.stat().st_size
            digest = xxhash.xxh3_128()
            with self.path.open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
        except OSError as cause:
            raise RecordError(f"{self.path} is in the record's index but cannot be read ({cause.strerror})") from None
        if size != self._size or digest.hexdigest() != self.xxh3:
            raise RecordError(
                f"{self.path} does not match its checksum (expected {self._size} bytes, {self.xxh3[:12]}…, got {size} "
                f"bytes, {digest.hexdigest()[:12]}…); the file was changed or damaged"
            )

    def read(self, name: str) -> NDArray[Any]:
        """Return a copy of one array; no other is loaded."""
        if not self._verified:
            self.verify()
            self._verified = True
        try:
            with safe_open(self.path, framework="numpy") as file:
                return cast(NDArray[Any], file.get_tensor(name))
        except SafetensorError as cause:
            raise RecordError(f"{self.path} holds no readable array {name!r} ({cause})") from None


class StoredArrays(Mapping[str, NDArray[Any]]):
    """Arrays by parameter name, each read from disk when asked for and not kept; ``names`` maps to those on disk."""

    def __init__(self, file: TensorFile, prefix: str, names: Mapping[str, str]) -> None:
        self._file = file
        self._prefix = prefix
        self._names = names

    def __getitem__(self, name: str) -> NDArray[Any]:
        stored = self._names[name]
        return self._file.read(f"{self._prefix}/{stored}" if self._prefix else stored)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Observation:
    """What one node's reply, or its absence, showed the server in one round.

    Attributes
    ----------
    node, status, reason, num_examples, metrics, of_round
        As written; see :class:`fedattack.record.writer.Reply`.
    arrays
        What the client sent (in FedAvg its local model, in FedSGD its gradient, in FedMD its predictions), or ``None``.
    """

    def __init__(self, entry: Mapping[str, Any], index: int, round_: "Round") -> None:
        self.node: str = entry["node"]
        self.status: Status = entry["status"]
        self.reason: str = entry.get("reason", "")
        self.num_examples: float | None = decode_metric(entry.get("num_examples"))
        self.metrics: dict[str, Any] = {key: decode_metric(value) for key, value in entry.get("metrics", {}).items()}
        self.of_round: int | None = entry.get("of_round")
        self.arrays: Arrays | None = round_.stored(f"reply/{index}", entry.get("arrays"))
        self._received = round_.stored(f"received/{index}", entry.get("received"))
        self._round = round_

    @property
    def received(self) -> Arrays | None:
        """The model that was sent to this node: the round's common one unless the server singled it out."""
        return self._received if self._received is not None else self._round.common

    @property
    def singled_out(self) -> bool:
        """Whether the server sent this node another model than the common one."""
        return self._received is not None

    def update(self) -> dict[str, NDArray[np.float32]]:
        """Δ = sent − received in float32, by name, without buffers and integer arrays.

        Raises
        ------
        RecordError
            If there is no reply, if what was sent to the node is unknown, if the shapes differ, or if replies of the
            record's protocol are no models.
        """
        if self._round.protocol != "fedavg":
            raise RecordError(
                f"{self._round.where}: an update is sent − received in fedavg; this is {self._round.protocol}"
            )
        if self.arrays is None or self.received is None:
            raise RecordError(f"{self._round.where}, node {self.node}: no update, because {self.reason or self.status}")
        roles = {parameter.name: parameter.role for parameter in self._round.parameters}
        update: dict[str, NDArray[np.float32]] = {}
        for name, before in self.received.items():
            if roles.get(name) == "buffer" or not np.issubdtype(before.dtype, np.floating):
                continue
            after = self.arrays.get(name)
            if after is None or after.shape != before.shape:
                found = "nothing" if after is None else f"shape {after.shape}"
                raise RecordError(
                    f"{self._round.where}, node {self.node}, {name}: expected shape {before.shape}, got {found}"
                )
            update[name] = (after.astype(np.float64) - before.astype(np.float64)).astype(np.float32)
        return update


class Round:
    """One round of a record.

    Attributes
    ----------
    number
        The round as the server counts it.
    observations
        One per node that was sampled, and late replies to earlier rounds.
    config
        What the server sent with the model.
    """

    def __init__(self, entry: Mapping[str, Any], record: "Record") -> None:
        self._entry = entry
        self._record = record
        self.number: int = entry["round"]
        self.seq: int = entry["seq"]
        self.config: dict[str, Any] = {key: decode_metric(value) for key, value in entry["config"].items()}
        self.file = TensorFile(record.path / entry["file"], entry["bytes"], entry["xxh3"])

    def within(self, record: "Record") -> "Round":
        """Return this round as one of another view of the same record."""
        return Round(self._entry, record)

    @property
    def where(self) -> str:
        """The round's place, for messages."""
        return f"{self._record.path}, round {self.number}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The record's table of parameters."""
        return self._record.parameters

    @property
    def protocol(self) -> Protocol:
        """The record's protocol."""
        return self._record.protocol

    @cached_property
    def observations(self) -> tuple[Observation, ...]:
        """All observations, in the order in which the server took them."""
        return tuple(Observation(entry, index, self) for index, entry in enumerate(self._entry["replies"]))

    @property
    def sampled(self) -> tuple[str, ...]:
        """Nodes that were asked to take part in this round."""
        return tuple(item.node for item in self.observations if item.status != "late")

    @property
    def participants(self) -> tuple[str, ...]:
        """Nodes whose reply arrived in time."""
        return tuple(item.node for item in self.observations if item.status == "ok")

    @property
    def unfinished(self) -> bool:
        """Whether the run ended before this round did, so that no reply of it was taken."""
        return is_unfinished(self._entry)

    @property
    def common(self) -> Arrays | None:
        """The model that the server sent at the start of the round."""
        return self._record.resolve(self._entry["common"], "common", self.file)

    @property
    def aggregate(self) -> Arrays | None:
        """What a secure-aggregation server sees; ``None`` in the individual view."""
        return self.stored("aggregate", self._entry["aggregate"])

    @property
    def after(self) -> Arrays | None:
        """The common model after the round, if the server is known to have made one."""
        return self._record.common_after(self.seq)

    def stored(self, prefix: str, names: list[str] | None) -> Arrays | None:
        """Arrays of this round's file under ``prefix``."""
        return None if names is None else StoredArrays(self.file, prefix, self._record.shown(names))


class Record:
    """A record on disk, read-only.

    Parameters
    ----------
    path
        The record's folder.
    skip_damaged
        Leave out rounds whose index line or file is damaged instead of refusing the record.

    Attributes
    ----------
    rounds
        The rounds, in the order in which they were written.
    damage
        What was left out because of ``skip_damaged``, in words.

    Raises
    ------
    RecordError
        If there is no record, if it is of a newer format, or if its index is damaged. The half-written last line that
        a killed run may leave is no damage: that round was never whole. A damaged file is refused when it is read.
    """

    def __init__(self, path: Path | str, *, skip_damaged: bool = False) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.view: View = self.manifest["view"]
        self.protocol: Protocol = self.manifest["protocol"]
        self.server: Server = self.manifest["server"]
        self.status: str = self.manifest["status"]
        self.seed: int | None = self.manifest["seed"]
        self.facts: dict[str, Any] = {key: decode_metric(value) for key, value in self.manifest["facts"].items()}
        self.parameters = tuple(Parameter.from_dict(item) for item in self.manifest["parameters"] or ())
        self._shown: dict[str, str] = {}
        lines, self.damage = read_index(self.path, self.manifest["rounds"])
        if self.damage and not skip_damaged:
            raise RecordError(
                f"{self.damage[0]}; `fedattack check` lists all damage, --skip-damaged attacks the whole rounds alone"
            )
        self.rounds = tuple(Round(line, self) for line in lines)
        self._by_seq = {item.seq: item for item in self.rounds}
        if skip_damaged:
            self.rounds = tuple(item for item in self.rounds if self._is_whole(item))

    def __len__(self) -> int:
        return len(self.rounds)

    def __iter__(self) -> Iterator[Round]:
        return iter(self.rounds)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that were ever sampled, sorted."""
        return tuple(sorted({node for item in self.rounds for node in item.sampled}))

    @property
    def final(self) -> Arrays | None:
        """The common model after the last round, if the server recorded it."""
        source = self.manifest["final"]
        if source is None:
            return None
        stored = source["source"] == "stored"
        file = TensorFile(self.path / FINAL, source["bytes"], source["xxh3"]) if stored else None
        return self.resolve(source, "", file)

    def renamed(self, names: Mapping[str, str]) -> "Record":
        """Return a view of this record in which parameters have other names; what is on disk stays as it is.

        Parameters
        ----------
        names
            New names by those on disk; a parameter that is not among them keeps its own.
        """
        view = copy.copy(self)
        view._shown = dict(names)
        view.parameters = tuple(item.renamed(names.get(item.name, item.name)) for item in self.parameters)
        view._by_seq = {seq: item.within(view) for seq, item in self._by_seq.items()}
        view.rounds = tuple(view._by_seq[item.seq] for item in self.rounds)
        return view

    def shown(self, names: Iterable[str]) -> dict[str, str]:
        """Map the names under which arrays are shown to those under which they are stored."""
        return {self._shown.get(name, name): name for name in names}

    def resolve(self, source: Mapping[str, Any] | None, prefix: str, file: TensorFile | None) -> Arrays | None:
        """Find a common model: in a file, as the mean of a round's replies, or the same as a round's common model."""
        if source is None:
            return None
        if source["source"] == "stored" and file is not None:
            return StoredArrays(file, prefix, self.shown(source["names"]))
        origin = self._by_seq.get(source["of"] if source["source"] == "mean" else source["as"])
        if origin is None:
            return None
        if source["source"] == "same":
            return origin.common
        usable = [item for item in origin.observations if item.status == "ok" and item.arrays is not None]
        replies = (item.arrays for item in usable if item.arrays is not None)
        mean = weighted_mean(replies, [item.num_examples or 0 for item in usable], source["recipe"])
        if checksum(mean.values()) != source["xxh3"]:
            raise RecordError(
                f"{origin.where}: the mean of its replies is not the common model that followed; this build of NumPy "
                "rounds otherwise than the one that recorded"
            )
        return mean

    def common_after(self, seq: int) -> Arrays | None:
        """Return the common model after exchange ``seq``: the next one's model, or the final one."""
        later = self._by_seq.get(seq + 1)
        if later is not None:
            return later.common
        return self.final if seq == max(self._by_seq, default=-1) else None

    def _is_whole(self, item: Round) -> bool:
        try:
            item.file.verify()
        except RecordError as damage:
            self.damage.append(str(damage))
            return False
        return True


def is_unfinished(line: Mapping[str, Any]) -> bool:
    """Tell by a line of the index whether the run ended before the round did."""
    return bool(line["replies"]) and all(reply.get("reason") == UNFINISHED for reply in line["replies"])


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of the record at ``path``.

    Raises
    ------
    RecordError
        If it is missing, damaged, or of a format that this version cannot read.
    """
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(
            f"{path} holds no record: expected {MANIFEST} in it; point at the folder that the observer or "
            "`fedattack simulate` wrote"
        ) from None
    except (OSError, UnicodeDecodeError) as cause:
        raise RecordError(f"{path / MANIFEST} cannot be read ({cause})") from None
    manifest = unseal(text, str(path / MANIFEST))
    if manifest.get("format") != FORMAT:
        raise RecordError(f"{path / MANIFEST}: expected format {FORMAT!r}, got {manifest.get('format')!r}")
    if manifest["version"] > VERSION:
        raise RecordError(
            f"{path / MANIFEST}: format version {manifest['version']} is newer than {VERSION}, the newest that this "
            "fedattack reads; update fedattack"
        )
    return manifest


def read_index(path: Path, expected: int | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the index of the record at ``path``.

    Parameters
    ----------
    expected
        How many rounds the manifest counts; ``None`` while the record is open, when a last line without its end is
        what a kill leaves and no damage.

    Returns
    -------
    lines, damage
        The whole lines, and what is wrong with the others in words.
    """
    try:
        content = (path / INDEX).read_bytes()
    except OSError as cause:
        raise RecordError(f"{path / INDEX} cannot be read ({cause.strerror}); the record is damaged") from None
    lines: list[dict[str, Any]] = []
    damage: list[str] = []
    rows = content.split(b"\n")
    for number, row in enumerate(rows[:-1], start=1):
        try:
            lines.append(unseal(row.decode("utf-8", "replace"), f"{path / INDEX}, line {number}"))
        except RecordError as cause:
            damage.append(str(cause))
    if expected is not None and len(lines) != expected and not damage:
        damage.append(
            f"{path / INDEX} lists {len(lines)} whole rounds where the manifest counts {expected}; it was cut"
        )
    return lines, damage
