"""A record's folder as it lies on disk: its lines, its arrays by their names on disk, and models that are means."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray
from safetensors import SafetensorError

from fedattack.base.errors import ConfigError, RecordError, short
from fedattack.base.untrusted import check_folder, read_bytes
from fedattack.record.arrays import Latest, StoredArrays, TensorFile, check_memory
from fedattack.record.format import (
    FINAL,
    INDEX,
    MANIFEST,
    SIGNATURE,
    Arrays,
    Parameter,
    decode_metric,
    unseal_manifest,
)
from fedattack.record.index import IndexedLine, file_of, read_index, read_manifest, strangers
from fedattack.record.keep import Keep
from fedattack.record.means import mean_of
from fedattack.record.signature import fingerprint, is_signed
from fedattack.record.tensors import checksum

# How many files stay open, and of how many rounds the mean of the replies is kept.
_OPEN_FILES = 4
_MEANS = 2

# Bytes of a file from which on it is asked whether there is memory for an array.
_LARGE = 64 * 2**20


class RecordStorage:
    """A record on disk, whatever is then seen of it; see :class:`fedattack.record.reader.Record` for the arguments.

    Attributes
    ----------
    path, manifest, index
        The folder, and what its two JSON files say.
    keep
        What of the run is in the record.
    parameters
        The model's arrays, by their names on disk.
    signer
        Fingerprint of the key that the record is signed by; ``None`` where it is not signed.
    lines
        The lines that are whole, those of models after kept rounds too.
    damage
        What is wrong with the others, in words.

    Raises
    ------
    RecordError
        If it is no record or a damaged one, its signature does not hold, or it is thinned and ``thinned`` is false.
    """

    def __init__(self, path: Path, *, skip_damaged: bool, thinned: bool) -> None:
        self.path = path
        check_folder(path, RecordError)
        self.manifest = read_manifest(path)
        self.keep = self._read_keep()
        if self.keep.kinds and not thinned:
            raise RecordError(f"{path} keeps {self.kept}, and this needs a whole record: record the run whole")
        self.parameters = tuple(map(Parameter.from_dict, self.manifest["parameters"] or ()))
        self.index = read_index(path, self.manifest)
        self.signer = self._check_signer()
        self.lines = self.index.lines
        self.damage = list(self.index.damage)
        self._by_seq = {line.seq: line for line in self.index.lines}
        self._open_files: Latest[Any] = Latest(_OPEN_FILES)
        self._means: Latest[dict[str, NDArray[Any]]] = Latest(_MEANS)
        self._names_of: Latest[list[str]] = Latest(_MEANS)
        self._verified: set[Path] = set()
        unknown = [] if self.manifest["status"] == "open" else strangers(path, self.index)
        if unknown:
            self.damage.append(f"{path}: {short(', '.join(unknown), 100)} is in no line of {INDEX}")
        if skip_damaged:
            self._skip_damaged()
        elif self.damage:
            raise RecordError(
                f"{self.damage[0]}; `fedattack check` lists all damage, --skip-damaged attacks only the whole rounds"
            )

    def _read_keep(self) -> Keep:
        try:
            return Keep.from_entry(self.manifest["kept"])
        except ConfigError as cause:
            raise RecordError(
                f"{self.path / MANIFEST}: {cause}; it is sealed, but not in the form that fedattack writes"
            ) from None

    @property
    def kept(self) -> str:
        """What of the run is in the record, in words; empty for all of it."""
        return " and ".join(map(self.keep.describe, self.keep.kinds))

    def _check_signer(self) -> str | None:
        """Return the fingerprint of the key that the whole record is signed by; ``None`` where it is not.

        Raises
        ------
        RecordError
            If a signature is announced, and the record is not what was signed.
        """
        signer = self.manifest["signer"]
        # The rest of a damaged index does not lead to the seal that was signed.
        if signer is None or self.manifest["status"] == "open" or self.index.damage:
            return None
        lacking = "a signed record has its signature next to the manifest; ask for the record again"
        signature = read_bytes(self.path / SIGNATURE, RecordError, lacking, limit=64)
        manifest = read_bytes(self.path / MANIFEST, RecordError, lacking)
        # Signed is what the manifest says: the head of the index, and through it the SHA-256 of each file.
        files = [line.digests for line in self.index.lines]
        final = self.manifest["final"] or {}
        if final.get("source") == "stored":
            files.append(final)
        # xxh3 is no protection from intent: a file without SHA-256 is not signed.
        whole = all("sha256" in digests for digests in files)
        # Somebody may have changed the manifest since it was read first.
        same = whole and unseal_manifest(manifest, self.path.name) == self.manifest
        if not same or not is_signed(signer, signature, manifest):
            raise RecordError(
                f"{self.path} is not what its recorder signed: somebody changed it, or it was never signed; ask for "
                "the record again"
            )
        return fingerprint(signer)

    def say_origins(self) -> list[str]:
        """Say who wrote the record, and whether that can be known."""
        if self.signer is not None:
            return [
                f"the record is signed by {self.signer}; the files next to it (knowledge, truth, scores) are not signed"
            ]
        if self.manifest["signer"] is None:
            return ["the record is not signed: whoever can write to the folder may have changed it and sealed it again"]
        if self.index.damage:
            return ["the record was signed, but its index is damaged: the signature does not cover what is left"]
        if os.path.lexists(self.path / SIGNATURE):
            return ["the record was signed, but is open again: a stopped run continues, or somebody changed it"]
        return ["the record is not signed yet: its recorder's key signs it when the run ends"]

    @property
    def rounds(self) -> list[IndexedLine]:
        """The lines of rounds that are kept."""
        return [line for line in self.lines if self.keep.round(line.number)]

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that were ever sampled, sorted."""
        nodes: set[str] = set()
        for line in self.rounds:
            # A late reply belongs to an earlier round, whose sampling names the node already.
            nodes.update(reply["node"] for reply in self.entry(line)["replies"] if reply["status"] != "late")
        return tuple(sorted(nodes))

    def _skip_damaged(self) -> None:
        """Leave out the lines whose file is damaged; note it if the model after the last round is."""
        self.lines = list(filter(self._is_whole, self.index.lines))
        try:
            # Reading verifies, as the mean needs the replies of the last round.
            for _ in (self.final or {}).values():
                pass
        except RecordError as damage:
            self.damage.append(str(damage))

    def _is_whole(self, line: IndexedLine) -> bool:
        file = self.file_of(line)
        try:
            file.verify()
        except RecordError as damage:
            self.damage.append(str(damage))
            return False
        self._verified.add(file.path)
        return True

    def file_of(self, line: IndexedLine) -> TensorFile:
        """Return the file of a round's arrays."""
        return TensorFile(self.path / file_of(line.seq), line.digests)

    def entry(self, line: IndexedLine) -> Mapping[str, Any]:
        """Return what the index says of a round."""
        return self.index.entry(line)

    def arrays(self, line: IndexedLine, prefix: str, names: Sequence[str] | None) -> Arrays | None:
        """Return arrays of a round's file under ``prefix``; ``None`` where it has none."""
        if names is None:
            return None
        keys = {name: f"{prefix}/{name}" for name in names}
        return self._read_stored(self.file_of(line), lambda: self._names_in_file(line), keys)

    def _names_in_file(self, line: IndexedLine) -> set[str]:
        """Return the names of all arrays of a round's file, as the index has them."""
        entry = self.entry(line)
        common = entry["common"] or {}
        names = _add_prefix("common", common.get("names")) | _add_prefix("aggregate", entry["aggregate"])
        for index, reply in enumerate(entry["replies"]):
            names |= _add_prefix(f"reply/{index}", reply.get("arrays"))
            names |= _add_prefix(f"received/{index}", reply.get("received"))
        return names

    def _read_stored(self, file: TensorFile, names: Callable[[], Collection[str]], keys: Mapping[str, str]) -> Arrays:
        """Arrays of a file that holds ``names`` and no others; ``keys`` are their names in it by those to show."""

        def open_file() -> Any:
            if file.path not in self._verified:
                file.verify()
                self._verified.add(file.path)
            return file.open(names())

        def read(name: str) -> NDArray[Any]:
            try:
                # Opening verifies the whole file: it is done once for all of its arrays.
                arrays = self._open_files.get(file.path, open_file)
                if file.size > _LARGE:
                    # From a slice the shape is known before memory is taken.
                    check_memory(arrays.get_slice(name))
                return cast(NDArray[Any], arrays.get_tensor(name))
            except (SafetensorError, AttributeError, TypeError, ValueError) as cause:
                raise RecordError(f"{file.path} holds no readable array {name!r} ({short(str(cause), 100)})") from None

        return StoredArrays(read, keys)

    def common_of(self, seq: int) -> Arrays | None:
        """Return the common model of the line ``seq``, which is not that of an earlier line."""
        line = self._by_seq.get(seq)
        if line is None:
            return None
        source = self.entry(line)["common"]
        if source is not None and source["source"] == "stored":
            return self.arrays(line, "common", source["names"])
        return self._compute_common(source)

    def common_after(self, seq: int) -> Arrays | None:
        """Return the common model after the line ``seq``: the next one's model, or the final one."""
        # A common model is what the next round starts from.
        if seq + 1 in self._by_seq:
            following = self._by_seq[seq + 1]
            if self.keep.every > 1 and self.keep.round(following.number):
                # It is no model after this round, but after others that are not in the record.
                return None
            return self.common_of(following.origin)
        if self.index.lines and seq == self.index.lines[-1].seq:
            return self.final
        return None

    @property
    def final(self) -> Arrays | None:
        """The common model after the last round, if the server recorded it."""
        source = self.manifest["final"]
        if source is None or source["source"] != "stored":
            return self._compute_common(source)
        names = {name: name for name in source["names"]}
        return self._read_stored(TensorFile(self.path / FINAL, source), lambda: names, names)

    def _compute_common(self, source: Mapping[str, Any] | None) -> Arrays | None:
        """Find a common model that is no file: the mean of a round's replies, or that of an earlier round."""
        if source is None:
            return None
        # `of` names the line whose replies were averaged, `as` the line with the same model.
        origin = self._by_seq.get(source["of"] if source["source"] == "mean" else source["as"])
        if origin is None:
            return None
        if source["source"] == "same":
            return self.common_of(origin.origin)
        # Two lines may name the same replies with another recipe or checksum.
        key = (origin.seq, source["recipe"], source["xxh3"])

        def read(name: str) -> NDArray[Any]:
            mean = self._means.get(key, lambda: self._mean(origin, source["recipe"], source["xxh3"]))
            # Each client's update asks for it, and callers may change what they get.
            return mean[name].copy()

        # Names are in the index. The replies are read, and averaged, when somebody asks for an array.
        names = self._names_of.get(origin.seq, lambda: self._names_of_replies(origin))
        return StoredArrays(read, {name: name for name in names})

    def _names_of_replies(self, line: IndexedLine) -> list[str]:
        """Return the names of the arrays of which a round's usable replies consist."""
        names: dict[str, None] = {}
        for _, reply in self._usable(line):
            names |= dict.fromkeys(reply["arrays"])
        return list(names)

    def _usable(self, line: IndexedLine) -> list[tuple[int, Mapping[str, Any]]]:
        """Return what the index says of a round's usable replies, each with its number among all."""
        replies = enumerate(self.entry(line)["replies"])
        return [(index, reply) for index, reply in replies if reply["status"] == "ok" and "arrays" in reply]

    def _mean(self, line: IndexedLine, recipe: str, xxh3: str) -> dict[str, NDArray[Any]]:
        """Compute the mean of a round's replies.

        Raises
        ------
        RecordError
            If it is not the model that was recorded, whose checksum is ``xxh3``.
        """
        usable = self._usable(line)
        # A generator: one reply is in memory at a time.
        replies = (dict(self.arrays(line, f"reply/{index}", reply["arrays"]) or {}) for index, reply in usable)
        # A count that is no number weighs nothing; the checksum then tells that this was no mean.
        counts = [decode_metric(reply.get("num_examples")) or 0 for _, reply in usable]
        # What clients sent may have any shapes and types, and need not add up.
        try:
            mean = mean_of(replies, counts, recipe)
        except (TypeError, ValueError, ArithmeticError):
            mean = {}
        if checksum(mean.values()) != xxh3:
            raise RecordError(
                f"{self.path}, round {line.number}: the mean of its replies is not the common model that followed; it "
                "was changed, or this build of NumPy rounds differently from the one that recorded"
            )
        return mean


def _add_prefix(prefix: str, names: Collection[str] | None) -> set[str]:
    return {f"{prefix}/{name}" for name in names or ()}
