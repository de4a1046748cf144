"""Read a record: lazily, round by round, verified before use."""

import copy
import hashlib
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fedattack.base.errors import ConfigError, RecordError, short
from fedattack.base.untrusted import check_folder, open_regular, read_bytes
from fedattack.record.format import (
    FINAL,
    INDEX,
    MANIFEST,
    PROTOCOLS,
    SIGNATURE,
    Arrays,
    Parameter,
    Server,
    Status,
    View,
    decode_metric,
    unseal_manifest,
)
from fedattack.record.index import IndexedLine, file_of, read_index, read_manifest, strangers
from fedattack.record.keep import Keep
from fedattack.record.means import mean_of
from fedattack.record.others import Others, in_words
from fedattack.record.schema import Protocol
from fedattack.record.signature import fingerprint, is_signed
from fedattack.record.singled import Weighing, find_singled, split
from fedattack.record.tensors import DTYPES, checksum

_BLOCK = 1 << 18

# How many files stay open, and of how many rounds the mean of the replies is kept.
_OPEN_FILES = 4
_MEANS = 2

# Bytes of a file from which on it is asked whether there is memory for an array.
_LARGE = 64 * 2**20

# NumPy's types by the format's names.
_TYPES = {stored: name for name, stored in DTYPES.items()}

T = TypeVar("T")


class _Latest(Generic[T]):
    """Keeps the last few values. It holds no reference to a record, so that a record's files close with it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Any, T] = OrderedDict()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Return the value of ``key``, made anew unless it is among the last ones."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = make()
        self._values[key] = value
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value


class TensorFile:
    """A round's arrays on disk; ``digests`` are their size and checksums, from the index or the manifest."""

    def __init__(self, path: Path, digests: Mapping[str, Any]) -> None:
        self.path = path
        self.xxh3: str = digests["xxh3"]
        self.size: int = digests["bytes"]
        self._sha256: str | None = digests.get("sha256")

    def verify(self) -> None:
        """Compare the file with its size and checksum.

        Raises
        ------
        RecordError
            If it is missing or differs.
        """
        # XXH3 shows damage. Only SHA-256 shows what somebody has made to look the same.
        digest: Any = xxhash.xxh3_128() if self._sha256 is None else hashlib.sha256()
        expected = self._sha256 or self.xxh3
        try:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                while size == self.size and (block := file.read(_BLOCK)):
                    digest.update(block)
        except OSError as cause:
            raise RecordError(f"{self.path} is in the record's index but cannot be read ({cause.strerror})") from None
        if size != self.size or digest.hexdigest() != expected:
            raise RecordError(
                f"{self.path} does not match its checksum (expected {self.size} bytes, {expected[:12]}…, got {size} "
                f"bytes, {digest.hexdigest()[:12]}…); the file was changed or damaged"
            )

    def open(self, names: Collection[str]) -> Any:
        """Verify and open the file, memory-mapped; its header is parsed once, whatever is then read of it.

        Raises
        ------
        RecordError
            If it is damaged, or does not hold the arrays ``names`` and no others.
        """
        try:
            open_file = safe_open(self.path, framework="numpy")
            different = sorted(set(open_file.keys()) ^ set(names))
        except (SafetensorError, OSError) as cause:
            raise RecordError(f"{self.path} is no safetensors file ({short(str(cause), 100)})") from None
        if different:
            raise RecordError(
                f"{self.path} and the index name different arrays: one alone has {short(different[0], 60)}"
            )
        return open_file


def _check_memory(stored: Any) -> None:
    """Raise MemoryError where an array cannot be had; the library's own code would panic, and say nothing of use."""
    width = np.dtype(_TYPES.get(stored.get_dtype(), np.uint8)).itemsize
    np.empty(math.prod(stored.get_shape()) * width, np.uint8)


class StoredArrays(Mapping[str, NDArray[Any]]):
    """Arrays by parameter name, each read when asked for and not kept; ``names`` maps to what ``read`` takes."""

    def __init__(self, read: Callable[[str], NDArray[Any]], names: Mapping[str, str]) -> None:
        self._read = read
        self._names = names

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._read(self._names[name])

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
        self.metrics = _decode(entry.get("metrics", {}))
        self.of_round: int | None = entry.get("of_round")
        self._round = round_
        self._received = round_.whole(round_.stored(f"received/{index}", entry.get("received")))
        stored = round_.stored(f"reply/{index}", entry.get("arrays"))
        self.arrays = round_.whole(stored, reply=True)
        self._index = index
        if round_.sends_differences:
            self.arrays = round_.moved(self.node, self.received, self.arrays)

    def with_arrays(self, arrays: Arrays) -> "Observation":
        """Return the same reply with arrays that were computed from a sum."""
        changed = copy.copy(self)
        changed.arrays = arrays
        return changed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observation) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, int, int]:
        return self._round.where, self._round.seq, self._index

    @property
    def count(self) -> float | None:
        """The example count, if it is a number that can weigh: above 0, and no larger than whole numbers are exact."""
        count = self.num_examples
        if isinstance(count, int | float) and not isinstance(count, bool) and 0 < count <= 2**53:
            return count
        return None

    @property
    def received(self) -> Arrays | None:
        """The model that was sent to this node: the round's common one unless the server singled it out."""
        if self._received is not None:
            return self._received
        return self._round.common

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
        if not PROTOCOLS[self._round.protocol].sends_back:
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
                got = "nothing"
                if after is not None:
                    got = f"shape {after.shape}"
                raise RecordError(
                    f"{self._round.where}, node {self.node}, {name}: expected shape {before.shape}, got {got}"
                )
            update[name] = (after.astype(np.float64) - before.astype(np.float64)).astype(np.float32)
        return update


class Round:
    """One round of a record.

    Attributes
    ----------
    number
        The round as the server counts it.
    seq
        Its position in the record.
    """

    def __init__(self, line: IndexedLine, record: "Record") -> None:
        self._line = line
        self._record = record
        self.number = line.number
        self.seq = line.seq

    @property
    def file(self) -> TensorFile:
        """Its arrays on disk."""
        return TensorFile(self._record.path / file_of(self.seq), self._line.digests)

    @property
    def _entry(self) -> Mapping[str, Any]:
        return self._record.index.entry(self._line)

    @property
    def stored_names(self) -> set[str]:
        """Names of all arrays of its file."""
        entry = self._entry
        common = entry["common"] or {}
        names = _add_prefix("common", common.get("names")) | _add_prefix("aggregate", entry["aggregate"])
        for index, reply in enumerate(entry["replies"]):
            names |= _add_prefix(f"reply/{index}", reply.get("arrays"))
            names |= _add_prefix(f"received/{index}", reply.get("received"))
        return names

    @property
    def source(self) -> Mapping[str, Any] | None:
        """Where the common model is, as FORMAT.md says."""
        return cast(Mapping[str, Any] | None, self._entry["common"])

    @property
    def names_of_replies(self) -> list[str]:
        """Names on disk of the arrays of which the usable replies consist."""
        names: dict[str, None] = {}
        for reply in self._entry["replies"]:
            if reply["status"] == "ok" and "arrays" in reply:
                names |= dict.fromkeys(reply["arrays"])
        return list(names)

    @property
    def config(self) -> dict[str, Any]:
        """What the server sent with the model."""
        return _decode(self._entry["config"])

    @property
    def others(self) -> tuple[Others, ...]:
        """Messages that passed since the round before, and are no training: what they hold in plaintext."""
        return self._record.others_in(self._entry.get("others", ()), self.seq)

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

    @property
    def observations(self) -> tuple[Observation, ...]:
        """One per sampled node, and late replies to earlier rounds, in the order in which the server took them."""
        return tuple(seen for seen in self.all_observations if seen.node not in self._record.unseen)

    @property
    def all_observations(self) -> tuple[Observation, ...]:
        """Those of nodes that are left out, too: the next model is made of these."""
        if self._record.exchanges:
            return tuple(self._record.singled_in(self))
        return tuple(Observation(entry, index, self) for index, entry in enumerate(self._entry["replies"]))

    @property
    def sampled(self) -> tuple[str, ...]:
        """Nodes that were asked to take part in this round."""
        return tuple(observation.node for observation in self.observations if observation.status != "late")

    @property
    def participants(self) -> tuple[str, ...]:
        """Nodes whose reply arrived in time."""
        return tuple(observation.node for observation in self.observations if observation.status == "ok")

    @property
    def unfinished(self) -> bool:
        """Whether the run ended before this round did, so that no reply of it was taken."""
        return self._line.unfinished

    @property
    def empty(self) -> bool:
        """Whether no reply of it was usable."""
        return self._line.empty or (bool(self._record.unseen) and not self.participants)

    @property
    def common(self) -> Arrays | None:
        """The model that the server sent at the start of the round."""
        return self.whole(self._record.common_of(self._line.origin))

    @property
    def aggregate(self) -> Arrays | None:
        """What a secure-aggregation server sees; ``None`` in the individual view."""
        if self._record.exchanges:
            return None
        return self.whole(self.stored("aggregate", self._entry["aggregate"]))

    @property
    def after(self) -> Arrays | None:
        """The common model after the round, if the server is known to have made one."""
        seq = self.seq
        exchanges = self._record.exchanges.get(self.number)
        if exchanges:
            seq = exchanges[-1].seq
        return self.whole(self._record.common_after(seq))

    def stored(self, prefix: str, names: Sequence[str] | None) -> Arrays | None:
        """Arrays of this round's file under ``prefix``."""
        if names is None:
            return None
        return self._record.stored_in(self, prefix, names)

    def whole(self, arrays: Arrays | None, *, reply: bool = False) -> Arrays | None:
        """See :meth:`Record.whole`."""
        return self._record.whole(arrays, reply=reply)

    @property
    def sends_differences(self) -> bool:
        """Whether replies tell how far the model moved; see :meth:`Record.read_as`."""
        return self._record.factors is not None

    def moved(self, node: str, received: Arrays | None, sent: Arrays | None) -> Arrays | None:
        """Move a received model as far as a reply tells; ``None`` where one of them, or the factor, is not known."""
        factor = (self._record.factors or {}).get(node)
        if factor is None or received is None or sent is None:
            return None
        start, differences = received, sent

        def read(name: str) -> NDArray[Any]:
            before = start[name]
            if name not in differences:
                return before
            after = before.astype(np.float64) + differences[name].astype(np.float64) / factor
            if before.dtype.kind != "f":
                after = np.rint(after)
            return after.astype(before.dtype)

        return StoredArrays(read, {name: name for name in dict.fromkeys([*start, *differences])})


def _add_prefix(prefix: str, names: Iterable[str] | None) -> set[str]:
    return {f"{prefix}/{name}" for name in names or ()}


def _decode(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: decode_metric(value) for key, value in values.items()}


class Record:
    """A record on disk, read-only.

    Parameters
    ----------
    path
        The record's folder.
    skip_damaged
        Leave out rounds whose index line or file is damaged instead of refusing the record.
    thinned
        Take also a record that does not hold all that the server saw. Without it such a record is refused, so that what
        asks for a whole one never computes with less.

    Attributes
    ----------
    view, protocol, server, status, seed, facts, parameters
        As the manifest says; see FORMAT.md.
    keep
        What of the run is in the record. Its rounds are those that are kept.
    signer
        Fingerprint of the key that the record is signed by; ``None`` where it is not signed.
    damage
        What was left out because of ``skip_damaged``, in words.
    unseen
        Nodes that :meth:`without` left out.
    factors
        By node, the factors that :meth:`read_as` was given; ``None`` where replies are taken as they are.
    exchanges
        By the number of a round its exchanges, each a line, in a view by :meth:`singled_out`; none elsewhere.

    Raises
    ------
    RecordError
        If there is no record, it is of another format, its index is damaged, it is not what was signed, or it was
        thinned and need not be. A half-written last line, as a killed run leaves it, is no damage: that round was never
        whole. A damaged file is refused when it is read.
    """

    def __init__(self, path: Path | str, *, skip_damaged: bool = False, thinned: bool = False) -> None:
        self.path = Path(path)
        check_folder(self.path, RecordError)
        self.manifest = read_manifest(self.path)
        self.view: View = self.manifest["view"]
        self.protocol: Protocol = self.manifest["protocol"]
        self.server: Server = self.manifest["server"]
        self.status: str = self.manifest["status"]
        self.seed: int | None = self.manifest["seed"]
        self.facts = _decode(self.manifest["facts"])
        self.parameters = tuple(map(Parameter.from_dict, self.manifest["parameters"] or ()))
        self.keep = self._read_keep()
        self._frozen: dict[str, NDArray[Any]] = {}
        if self.keep.kinds and not thinned:
            raise RecordError(f"{self.path} keeps {self.kept}, and this needs a whole record: record the run whole")
        self.index = read_index(self.path, self.manifest)
        self.signer = self._check_signer()
        self.damage = list(self.index.damage)
        self.unseen: frozenset[str] = frozenset()
        self.factors: Mapping[str, float] | None = None
        self.exchanges: Mapping[int, list[IndexedLine]] = {}
        self._chosen: frozenset[str] = frozenset()
        self._new_names: dict[str, str] = {}
        self._open_files: _Latest[Any] = _Latest(_OPEN_FILES)
        self._means: _Latest[dict[str, NDArray[Any]]] = _Latest(_MEANS)
        self._names_of: _Latest[list[str]] = _Latest(_MEANS)
        self._verified: set[Path] = set()
        self._whole_lines = self.index.lines
        self._lines = [line for line in self._whole_lines if self.keep.round(line.number)]
        self._by_seq = {line.seq: line for line in self.index.lines}
        unknown = [] if self.status == "open" else strangers(self.path, self.index)
        if unknown:
            self.damage.append(f"{self.path}: {short(', '.join(unknown), 100)} is in no line of {INDEX}")
        if skip_damaged:
            self._skip_damaged_rounds()
        elif self.damage:
            raise RecordError(
                f"{self.damage[0]}; `fedattack check` lists all damage, --skip-damaged attacks the whole rounds alone"
            )

    def _read_keep(self) -> Keep:
        try:
            return Keep.from_entry(self.manifest["kept"])
        except ConfigError as cause:
            raise RecordError(
                f"{self.path / MANIFEST}: {cause}; it is sealed, but not as fedattack writes it"
            ) from None

    def _skip_damaged_rounds(self) -> None:
        self._whole_lines = [line for line in self.index.lines if self._is_whole(Round(line, self))]
        self._lines = [line for line in self._whole_lines if self.keep.round(line.number)]
        try:
            for _ in (self.final or {}).values():
                pass
        except RecordError as damage:
            self.damage.append(str(damage))

    def _check_signer(self) -> str | None:
        """Return the fingerprint of the key that the whole record is signed by; ``None`` where it is not.

        Raises
        ------
        RecordError
            If a signature is announced, and the record is not what was signed.
        """
        signer = self.manifest["signer"]
        # The rest of a damaged index does not lead to the seal that was signed.
        if signer is None or self.status == "open" or self.index.damage:
            return None
        lacking = "a signed record has its signature beside the manifest; ask for the record again"
        signature = read_bytes(self.path / SIGNATURE, RecordError, lacking, limit=64)
        manifest = read_bytes(self.path / MANIFEST, RecordError, lacking)
        files = [line.digests for line in self.index.lines]
        final = self.manifest["final"] or {}
        if final.get("source") == "stored":
            files.append(final)
        whole = all("sha256" in digests for digests in files)
        # Somebody may have changed the manifest since it was read first.
        same = whole and unseal_manifest(manifest, self.path.name) == self.manifest
        if not same or not is_signed(signer, signature, manifest):
            raise RecordError(
                f"{self.path} is not what its recorder signed: somebody changed it, or it was never signed; ask for "
                "the record again"
            )
        return fingerprint(signer)

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Round]:
        return (Round(line, self) for line in self._lines)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds, in the order in which they were written."""
        return tuple(self)

    @property
    def lines(self) -> tuple[Round, ...]:
        """The rounds, and the models after them where those are no rounds of the record."""
        return tuple(Round(line, self) for line in self._whole_lines)

    @property
    def id(self) -> str:
        """What tells it from every other record."""
        return str(self.manifest["id"])

    @property
    def origin(self) -> str:
        """The id of the record that the server wrote: its own, unless it is a copy that holds less or other."""
        return str(self.manifest.get("origin", self.id))

    @property
    def kept(self) -> str:
        """What of the run is in the record, in words; empty for all of it."""
        return " and ".join(map(self.keep.describe, self.keep.kinds))

    @property
    def remarks(self) -> list[str]:
        """What a reader should know, or cannot: what was left out, who wrote the record, whether it was changed."""
        thinned = []
        if self.kept:
            thinned.append(f"the record does not hold all that the server saw: it keeps {self.kept}")
        return [*thinned, *self._origins()]

    def _origins(self) -> list[str]:
        if self.signer is not None:
            return [
                f"the record is signed by {self.signer}; what lies beside it (knowledge, truth, scores) is not signed"
            ]
        if self.manifest["signer"] is None:
            return ["the record is not signed: whoever could write the folder can have changed it and sealed it again"]
        if self.index.damage:
            return ["the record was signed, but its index is damaged: nobody vouches for what is left of it"]
        if os.path.lexists(self.path / SIGNATURE):
            return ["the record was signed, and is open again: a stopped run goes on, or somebody changed it"]
        return ["the record is not signed yet: its recorder's key signs it when the run ends"]

    @property
    def unrecorded(self) -> list[dict[str, Any]]:
        """Messages of which something is not in the record, as FORMAT.md says."""
        return list(self.manifest.get("unrecorded", ()))

    @property
    def gaps(self) -> list[str]:
        """What reached server or clients and is not in the record, a sentence for each kind of message."""
        return [in_words(entry) for entry in self.unrecorded]

    @property
    def others_after(self) -> tuple[Others, ...]:
        """Messages that passed after the last round, and are no training: what they hold in plaintext."""
        return self.others_in(self.manifest.get("others", ()), len(self.index.lines))

    @property
    def others(self) -> Iterator[Others]:
        """All messages that are no training, in their order."""
        for round_ in self.lines:
            yield from round_.others
        yield from self.others_after

    def others_in(self, entries: Iterable[Mapping[str, Any]], line: int) -> tuple[Others, ...]:
        """Read what stands of messages in a line or the manifest, without nodes that are left out."""
        found = (Others.from_entry(entry, line).without(self.unseen) for entry in entries)
        return tuple(others for others in found if others is not None)

    @property
    def silence(self) -> str:
        """A sentence on a record in which no client ever answered, with the first one's reason; empty for others."""
        if not self._lines or not all(round_.empty for round_ in self):
            return ""
        reasons = [observation.reason for observation in self.rounds[0].observations if observation.reason]
        said = f"no client answered a training message in any of {len(self)} rounds"
        if reasons:
            said += f": {reasons[0]}".rstrip(": ")
        return short(said)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that were ever sampled, sorted."""
        nodes: set[str] = set()
        for round_ in self:
            nodes.update(round_.sampled)
        return tuple(sorted(nodes))

    @property
    def final(self) -> Arrays | None:
        """The common model after the last round, if the server recorded it."""
        source = self.manifest["final"]
        if source is None or source["source"] != "stored":
            return self.whole(self._compute_common(source))
        file = TensorFile(self.path / FINAL, source)
        return self.whole(self._read_stored(file, lambda: source["names"], self.shown(source["names"])))

    def rename(self, names: Mapping[str, str]) -> "Record":
        """Return a view of this record in which parameters have other names; what is on disk stays as it is.

        Parameters
        ----------
        names
            New names by those on disk; a parameter that is not among them keeps its own.
        """
        view = copy.copy(self)
        view._new_names = dict(names)
        view.parameters = tuple(entry.rename(names.get(entry.name, entry.name)) for entry in self.parameters)
        return view

    def complete(self, frozen: Mapping[str, NDArray[Any]], order: Sequence[str]) -> "Record":
        """Return a view of this record in which every model has further arrays; what is on disk stays as it is.

        Parameters
        ----------
        frozen
            By name, arrays that no client and no server changed. Where a reply is a gradient, theirs is zero.
        order
            The names of all arrays as the model has them.
        """
        view = copy.copy(self)
        view._frozen = dict(frozen)
        added = [Parameter.of(name, array) for name, array in frozen.items()]
        place = {name: position for position, name in enumerate(order)}
        both = [*self.parameters, *added]
        view.parameters = tuple(sorted(both, key=lambda entry: place.get(entry.name, len(place))))
        return view

    def whole(self, arrays: Arrays | None, *, reply: bool = False) -> Arrays | None:
        """Put the arrays of :meth:`complete` beside those that are stored; of a ``reply`` that is no model, zeros."""
        if arrays is None:
            return None
        if self._chosen:
            on_disk, every = self.on_disk(arrays), arrays
            arrays = StoredArrays(every.__getitem__, {name: name for name in every if on_disk[name] in self._chosen})
        if not self._frozen:
            return arrays
        stored, zero = arrays, reply and not PROTOCOLS[self.protocol].sends_back

        def read(name: str) -> NDArray[Any]:
            if name in stored:
                return stored[name]
            if zero:
                return np.zeros_like(self._frozen[name])
            return self._frozen[name].copy()

        names = dict.fromkeys([*(parameter.name for parameter in self.parameters), *stored])
        return StoredArrays(read, {name: name for name in names if name in stored or name in self._frozen})

    def read_as(self, arrays: Sequence[str], factors: Mapping[str, float] | None) -> "Record":
        """Return a view of this record in which replies are local models; what is on disk stays as it is.

        Parameters
        ----------
        arrays
            Names on disk of those arrays that are the model's; empty for all.
        factors
            By node, of replies that are differences: a reply is the factor times (local model − received). Replies of
            other nodes have no arrays then. ``None`` where replies are models.
        """
        view = copy.copy(self)
        view._chosen, view.factors = frozenset(arrays), factors
        if arrays:
            view.parameters = tuple(entry for entry in self.parameters if entry.name in view._chosen)
        return view

    def without(self, nodes: Iterable[str]) -> "Record":
        """Return a view of this record in which nothing of some nodes is seen; common models and sums stay."""
        view = copy.copy(self)
        view.unseen = self.unseen | {*nodes}
        view.__dict__.pop("nodes", None)  # kept from before
        return view

    def singled_out(self) -> "Record":
        """Return a view in which the replies are there that the server of sums singled out; else the record itself.

        Such a server is ``inconsistent``. A round is several exchanges of one number, in each of which all but one
        client were sent a model that does not learn. What these sent is known, and the rest of the sum is one reply.
        """
        if self.server != "inconsistent" or self.view != "aggregate":
            return self
        view = copy.copy(self)
        view.__dict__.pop("nodes", None)  # kept from before
        exchanges: dict[int, list[IndexedLine]] = {}
        for line in self._lines:
            exchanges.setdefault(line.number, []).append(line)
        view.view, view.exchanges = "individual", exchanges
        view._lines = [lines[0] for lines in exchanges.values()]
        return view

    def singled_in(self, round_: Round) -> Iterator[Observation]:
        """Yield the replies that the server singled out in the exchanges of a round."""
        sums = copy.copy(self)
        sums.view, sums.exchanges = "aggregate", {}
        weighing = Weighing.of(self.manifest["aggregation"])
        for exchange, seen in find_singled([Round(line, sums) for line in self.exchanges[round_.number]]):
            yield seen.with_arrays(self._rest_of(exchange, seen, weighing))

    def _rest_of(self, exchange: Round, seen: Observation, weighing: Weighing) -> Arrays:
        """Return what one client sent: a sum without what the others did."""
        aggregate, common = exchange.aggregate or {}, seen.received or {}
        _, others = split(exchange.all_observations)

        def read(name: str) -> NDArray[Any]:
            mean, own = aggregate[name], common[name]
            known = [((other.received or {}).get(name, np.zeros(0)), other.count or 0) for other in others]
            if {mean.shape, *(sent.shape for sent, _ in known)} != {own.shape} or not weighing.weight(seen.count or 0):
                raise RecordError(f"{exchange.where}: {name} of the sum and of what was sent do not fit together")
            return weighing.subtract(mean, known, [seen.count or 0]).astype(own.dtype)

        return StoredArrays(read, {name: name for name in aggregate if name in common})

    def shown(self, names: Iterable[str]) -> dict[str, str]:
        """Map the names under which arrays are shown to those under which they are stored."""
        return {self._new_names.get(name, name): name for name in names}

    def on_disk(self, names: Iterable[str]) -> dict[str, str]:
        """Map names under which arrays are shown to those under which they are stored."""
        stored = {shown: name for name, shown in self._new_names.items()}
        return {name: stored.get(name, name) for name in names}

    def stored_in(self, round_: Round, prefix: str, names: Sequence[str]) -> Arrays:
        """Arrays of a round's file under ``prefix``."""
        keys = {shown: f"{prefix}/{name}" for shown, name in self.shown(names).items()}
        return self._read_stored(round_.file, lambda: round_.stored_names, keys)

    def _read_stored(self, file: TensorFile, names: Callable[[], Collection[str]], keys: Mapping[str, str]) -> Arrays:
        """Arrays of a file that holds ``names`` and no others; ``keys`` are their names in it by those to show."""

        def open_file() -> Any:
            if file.path not in self._verified:
                file.verify()
                self._verified.add(file.path)
            return file.open(names())

        def read(name: str) -> NDArray[Any]:
            try:
                arrays = self._open_files.get(file.path, open_file)
                if file.size > _LARGE:
                    _check_memory(arrays.get_slice(name))
                return cast(NDArray[Any], arrays.get_tensor(name))
            except (SafetensorError, AttributeError, TypeError, ValueError) as cause:
                raise RecordError(f"{file.path} holds no readable array {name!r} ({short(str(cause), 100)})") from None

        return StoredArrays(read, keys)

    def common_of(self, seq: int) -> Arrays | None:
        """Return the common model of the line ``seq``, which is not that of an earlier line."""
        if seq not in self._by_seq:
            return None
        round_ = Round(self._by_seq[seq], self)
        source = round_.source
        if source is not None and source["source"] == "stored":
            return self.stored_in(round_, "common", source["names"])
        return self._compute_common(source)

    def common_after(self, seq: int) -> Arrays | None:
        """Return the common model after the line ``seq``: the next one's model, or the final one."""
        if seq + 1 in self._by_seq:
            following = self._by_seq[seq + 1]
            if self.keep.every > 1 and self.keep.round(following.number):
                # It is no model after this round, but after others that are not in the record.
                return None
            return self.common_of(following.origin)
        if self.index.lines and seq == self.index.lines[-1].seq:
            return self.final
        return None

    def _compute_common(self, source: Mapping[str, Any] | None) -> Arrays | None:
        """Find a common model that is no file: the mean of a round's replies, or that of an earlier round."""
        if source is None:
            return None
        origin = self._by_seq.get(source["of"] if source["source"] == "mean" else source["as"])
        if origin is None:
            return None
        if source["source"] == "same":
            return self.common_of(origin.origin)
        # The mean is of what is stored, in its order.
        bare = copy.copy(self)
        bare._frozen = {}
        round_ = Round(origin, bare)
        key = (origin.seq, source["recipe"], source["xxh3"])

        def read(name: str) -> NDArray[Any]:
            mean = self._means.get(key, lambda: self._mean(round_, source["recipe"], source["xxh3"]))
            # Each client's update asks for it, and callers may change what they get.
            return mean[name].copy()

        names = self._names_of.get(origin.seq, lambda: round_.names_of_replies)
        return StoredArrays(read, self.shown(names))

    def _mean(self, round_: Round, recipe: str, xxh3: str) -> dict[str, NDArray[Any]]:
        """Compute the mean of a round's replies, by the names on disk.

        Raises
        ------
        RecordError
            If it is not the model that was recorded, whose checksum is ``xxh3``.
        """
        usable = [reply for reply in round_.all_observations if reply.status == "ok" and reply.arrays is not None]
        stored = self.shown(round_.names_of_replies)

        def arrays_of(reply: Observation) -> Arrays:
            return {stored[name]: array for name, array in (reply.arrays or {}).items()}

        try:
            mean = mean_of(map(arrays_of, usable), [reply.num_examples or 0 for reply in usable], recipe)
        except (TypeError, ValueError, ArithmeticError):
            mean = {}
        if checksum(mean.values()) != xxh3:
            raise RecordError(
                f"{round_.where}: the mean of its replies is not the common model that followed; it was changed, or "
                "this build of NumPy rounds otherwise than the one that recorded"
            )
        return mean

    def _is_whole(self, round_: Round) -> bool:
        try:
            round_.file.verify()
        except RecordError as damage:
            self.damage.append(str(damage))
            return False
        self._verified.add(round_.file.path)
        return True
