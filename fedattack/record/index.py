"""The record's manifest and index on disk: read once from end to end, verified, and kept as positions in the file.

A line lists every reply of its round, so that the lines of many rounds with many clients would fill the memory. Only
the position of a line is kept, and the few facts that say whether it belongs there.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from fedattack.base.errors import RecordError
from fedattack.base.untrusted import open_regular, read_bytes
from fedattack.record.format import INDEX, MANIFEST, ROUNDS, UNFINISHED, unseal_line, unseal_manifest

MAX_LINE = 128 * 2**20
"""Bytes of the longest line."""

_KEPT = 4


@dataclass(frozen=True, slots=True, eq=False)
class IndexedLine:
    """The position of a line in the index, and the facts about it that are kept.

    Attributes
    ----------
    offset, length
        Its bytes in the file, without the line's end.
    check
        Its seal.
    seq, number
        Position in the record, and the round as the server counts it.
    unfinished
        Whether the run ended before the round did.
    empty
        Whether no reply of it was usable.
    origin
        The line whose common model is that of this one; ``seq`` itself unless it is the model of an earlier round.
    digests
        ``bytes``, ``xxh3`` and, where the record is signed, ``sha256`` of the round's file.
    """

    offset: int
    length: int
    check: str
    seq: int
    number: int
    unfinished: bool
    empty: bool
    origin: int
    digests: Mapping[str, Any]


@dataclass
class Index:
    """The index of a record.

    Attributes
    ----------
    path
        The file.
    lines
        The lines that are whole and in the right position.
    damage
        What is wrong with the others, in words.
    end
        The seal of the last line; the record's own id where there is none.
    """

    path: Path
    lines: list[IndexedLine] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    end: str = ""

    def __post_init__(self) -> None:
        # Only dicts refer to entries: with a reference cycle the file would stay open until Python looks for cycles.
        self._descriptor: int | None = None
        self._opening = Lock()
        self._entries: dict[IndexedLine, Mapping[str, Any]] = {}

    def entry(self, line: IndexedLine) -> Mapping[str, Any]:
        """Read a line again, unless it is among the last ones that were asked for.

        Raises
        ------
        RecordError
            If it is not the one that was verified.
        """
        kept = self._entries.get(line)
        if kept is not None:
            return kept
        where = f"{self.path}, the line of seq {line.seq}"
        try:
            row = self._read(line)
        except OSError as cause:
            raise RecordError(f"{where} cannot be read ({cause.strerror})") from None
        value = unseal_line(row, where)
        if value["check"] != line.check:
            raise RecordError(f"{where} was changed while the record was open")
        self._entries[line] = value
        if len(self._entries) > _KEPT:
            # Two threads may drop the same entry: the second finds it gone.
            with suppress(StopIteration, KeyError):
                del self._entries[next(iter(self._entries))]
        return value

    def _read(self, line: IndexedLine) -> bytes:
        """Read the bytes of a line; the file is opened once, and closed with the index."""
        with self._opening:
            if self._descriptor is None:
                with open_regular(self.path) as file:
                    self._descriptor = os.dup(file.fileno())
                weakref.finalize(self, os.close, self._descriptor)
        # It moves no position in the file, which other threads and forked processes share.
        return os.pread(self._descriptor, line.length, line.offset)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of the record at ``path``.

    Raises
    ------
    RecordError
        If it is missing, damaged, or of a format that this version cannot read.
    """
    if not os.path.lexists(path / MANIFEST):
        raise RecordError(
            f"{path} holds no record: expected {MANIFEST} in it; point at the folder that the observer or "
            "`fedattack simulate` wrote"
        )
    data = read_bytes(path / MANIFEST, RecordError, "the record is damaged")
    manifest = unseal_manifest(data, str(path / MANIFEST))
    if (manifest["status"] == "open") != (manifest["rounds"] is None):
        raise RecordError(
            f"{path / MANIFEST} has the status {manifest['status']} and counts {manifest['rounds']} rounds; the two "
            "contradict each other"
        )
    return manifest


def read_index(path: Path, manifest: Mapping[str, Any]) -> Index:
    """Read the index of the record at ``path`` from end to end.

    The manifest of a closed record holds the number of its lines and the seal of the last. While the record is open, a
    last line without its end is no damage: a killed run leaves it.

    Raises
    ------
    RecordError
        If there is no index.
    """
    file = path / INDEX
    # The chain begins with the record's id, so that a line of another record does not fit.
    index = Index(file, end=manifest["id"])
    last = -1
    origins: dict[int, int] = {}
    for number, (offset, row) in enumerate(_rows(file), start=1):
        where = f"{file}, line {number}"
        try:
            # Before it is parsed: a JSON of any length could fill the memory.
            if len(row) > MAX_LINE:
                raise RecordError(f"{where} has more than {MAX_LINE:,} bytes; the file is damaged")
            value = unseal_line(row, where)
            _check_position(value, last, index, where)
        except RecordError as cause:
            index.damage.append(str(cause))
            continue
        # A damaged line does not move these, so that the next whole one is held against the last whole one.
        last = value["seq"]
        index.end = value["check"]
        index.lines.append(_index_line(value, offset, len(row), origins))
    _check_end(index, manifest, file)
    return index


def _rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its offset; of one that is too long, its beginning; none that has no end."""
    try:
        with open_regular(file) as stream:
            offset = 0
            # One character more than the longest line and its end: a longer line is told from it.
            while row := stream.readline(MAX_LINE + 2):
                start = offset
                offset += len(row)
                # A line without an end was being written when the process was killed: it is no damage.
                if row.endswith(b"\n"):
                    yield start, row[:-1]
                elif len(row) > MAX_LINE:
                    yield start, row
                    # The rest of the line is read in blocks and dropped.
                    while rest := stream.readline(MAX_LINE):
                        offset += len(rest)
                        if rest.endswith(b"\n"):
                            break
    except OSError as cause:
        raise RecordError(f"{file} cannot be read ({cause.strerror}); the record is damaged") from None


def _check_position(line: Mapping[str, Any], last: int, index: Index, where: str) -> None:
    """Refuse a line that follows another one than it followed when it was written."""
    seq = line["seq"]
    if line["file"] != file_of(seq):
        raise RecordError(f"{where} names the file {line['file']}, which is not that of seq {seq}")
    if seq <= last:
        raise RecordError(f"{where} has the seq {seq} after {last}; lines were repeated or put in another order")
    if seq > last + 1:
        index.damage.append(f"{where} has the seq {seq} after {last}; lines before it are gone")
    # After a gap the line before is not there to be compared with.
    if seq == last + 1 and line["previous"] != index.end:
        raise RecordError(f"{where} does not carry the seal of the line before; lines were changed or exchanged")
    earlier = _source_of(line["common"])
    # A model that is taken from a later line could lead in circles.
    if earlier is not None and earlier >= seq:
        raise RecordError(f"{where} takes its common model from seq {earlier}, which does not come before {seq}")


def _source_of(model: Mapping[str, Any] | None) -> int | None:
    """Return the earlier line that a common model is taken from, if it is not stored itself."""
    model = model or {}
    earlier: int | None = model.get("of", model.get("as"))
    return earlier


def _index_line(line: Mapping[str, Any], offset: int, length: int, origins: dict[int, int]) -> IndexedLine:
    """Keep the needed facts of a line; ``origins`` are those of the earlier lines that changed nothing."""
    seq = line["seq"]
    common = line["common"] or {}
    if common.get("source") == "same":
        # A chain of such lines is followed here, one step a line: a run in which nobody answers has one each round.
        origins[seq] = origins.get(common["as"], common["as"])
    reasons = {reply.get("reason") for reply in line["replies"]}
    return IndexedLine(
        offset,
        length,
        line["check"],
        seq,
        line["round"],
        unfinished=reasons == {UNFINISHED},
        empty="ok" not in [reply["status"] for reply in line["replies"]],
        origin=origins.get(seq, seq),
        digests={key: line[key] for key in ("bytes", "xxh3", "sha256") if key in line},
    )


def _check_end(index: Index, manifest: Mapping[str, Any], file: Path) -> None:
    expected = manifest["rounds"]
    count = len(index.lines)
    # An open record has no count yet.
    if index.damage or expected is None:
        return
    if count != expected:
        index.damage.append(f"{file} lists {count} whole rounds where the manifest counts {expected}; it was cut")
    elif index.end != manifest["head"]:
        index.damage.append(f"{file} does not end with the line that the manifest says; it was changed")
    earlier = _source_of(manifest["final"])
    if earlier is not None and earlier not in [line.seq for line in index.lines]:
        index.damage.append(f"{file} has no line of seq {earlier}, from which the manifest takes the last model")


def file_of(seq: int) -> str:
    """Name the file of a round's arrays, in the record's folder."""
    return f"{ROUNDS}/{seq:06d}.safetensors"


def without_manifest(folder: Path) -> list[Path]:
    """Find what was a record, among a folder and those in it, and has lost its manifest."""
    try:
        # Records of several seeds lie in folders of their own.
        paths = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    except OSError:
        return []
    lost = []
    for path in paths:
        if (path / INDEX).exists() and not (path / MANIFEST).exists():
            lost.append(path)
    return lost


def strangers(path: Path, index: Index) -> list[str]:
    """Return the files in the folder of the rounds that no line of the index names."""
    try:
        names = sorted(os.listdir(path / ROUNDS))  # noqa: PTH208 - names alone
    except OSError:
        return []  # each line that names a file is damage by itself
    known = {file_of(line.seq) for line in index.lines}
    files = [f"{ROUNDS}/{name}" for name in names]
    return [file for file in files if file not in known]
