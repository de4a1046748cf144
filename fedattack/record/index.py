"""The record's manifest and index on disk: read once from end to end, verified, and kept as places in the file.

A line lists every reply of its round, so that the lines of many rounds with many clients would fill the memory. What is
kept of a line is where it lies and the few facts that say whether it is in its place.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedattack.errors import RecordError
from fedattack.record.format import CHAIN, INDEX, MANIFEST, ROUNDS, UNFINISHED, unseal_line, unseal_manifest
from fedattack.untrusted import open_regular, read_bytes

MAX_LINE = 128 * 2**20
"""Bytes of the longest line."""

_KEPT = 4


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a line of the index lies, and what tells whether it is in its place.

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
        The line whose common model is that of this one, ``seq`` itself where it is not that of an earlier round.
    told
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
    told: Mapping[str, Any]


@dataclass
class Index:
    """The index of a record.

    Attributes
    ----------
    path
        The file.
    version
        Of the record's format.
    places
        The lines that are whole and in their place.
    damage
        What is wrong with the others, in words.
    end
        The seal of the last line; the record's own id where there is none.
    """

    path: Path
    version: int
    places: list[Place] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    end: str = ""

    def __post_init__(self) -> None:
        self.entry = lru_cache(_KEPT)(self._entry)

    def _entry(self, place: Place) -> Mapping[str, Any]:
        """Read a line again.

        Raises
        ------
        RecordError
            If it is not the one that was verified.
        """
        where = f"{self.path}, the line of seq {place.seq}"
        try:
            with open_regular(self.path) as file:
                file.seek(place.offset)
                row = file.read(place.length)
        except OSError as cause:
            raise RecordError(f"{where} cannot be read ({cause.strerror})") from None
        value = unseal_line(row, self.version, where)
        if value["check"] != place.check:
            raise RecordError(f"{where} was changed while the record was open")
        return value


def read_manifest(path: Path) -> dict[str, Any]:
    """Read and check the manifest of the record at ``path``; in version 1 keys of later ones are ``None``.

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
    manifest = dict.fromkeys(CHAIN) | unseal_manifest(data, str(path / MANIFEST))
    if (manifest["status"] == "open") != (manifest["rounds"] is None):
        raise RecordError(
            f"{path / MANIFEST} has the status {manifest['status']} and counts {manifest['rounds']} rounds; the two "
            "contradict each other"
        )
    return manifest


def read_index(path: Path, manifest: Mapping[str, Any]) -> Index:
    """Read the index of the record at ``path`` from end to end.

    In the manifest of a record that is closed stand the number of its lines and the seal of the last. While it is open,
    a last line without its end is what a kill leaves and no damage.

    Raises
    ------
    RecordError
        If there is no index.
    """
    file = path / INDEX
    index = Index(file, manifest["version"], end=manifest["id"] or "")
    last, origins = -1, dict[int, int]()
    for number, (offset, row) in enumerate(_rows(file), start=1):
        where = f"{file}, line {number}"
        try:
            if len(row) > MAX_LINE:
                raise RecordError(f"{where} has more than {MAX_LINE:,} bytes; the file is damaged")
            line = unseal_line(row, index.version, where)
            _check_place(line, last, index, where)
        except RecordError as cause:
            index.damage.append(str(cause))
            continue
        last, index.end = line["seq"], line["check"]
        index.places.append(_place(line, offset, len(row), origins))
    _check_end(index, manifest, file)
    return index


def _rows(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its offset; of one that is too long, its beginning; none that has no end."""
    try:
        with open_regular(file) as stream:
            offset = 0
            while row := stream.readline(MAX_LINE + 2):
                start, offset = offset, offset + len(row)
                if row.endswith(b"\n"):
                    yield start, row[:-1]
                elif len(row) > MAX_LINE:
                    yield start, row
                    while rest := stream.readline(MAX_LINE):
                        offset += len(rest)
                        if rest.endswith(b"\n"):
                            break
    except OSError as cause:
        raise RecordError(f"{file} cannot be read ({cause.strerror}); the record is damaged") from None


def _check_place(line: Mapping[str, Any], last: int, index: Index, where: str) -> None:
    """Refuse a line that follows another one than it followed when it was written."""
    seq = line["seq"]
    if line["file"] != file_of(seq):
        raise RecordError(f"{where} names the file {line['file']}, which is not that of seq {seq}")
    if seq <= last:
        raise RecordError(f"{where} has the seq {seq} after {last}; lines were repeated or put in another order")
    if seq > last + 1:
        index.damage.append(f"{where} has the seq {seq} after {last}; lines before it are gone")
    if index.version > 1 and seq == last + 1 and line["previous"] != index.end:
        raise RecordError(f"{where} does not carry the seal of the line before; lines were changed or exchanged")
    common = line["common"] or {}
    earlier = common.get("of", common.get("as"))
    if earlier is not None and earlier >= seq:
        raise RecordError(f"{where} takes its common model from seq {earlier}, which does not come before {seq}")


def _place(line: Mapping[str, Any], offset: int, length: int, origins: dict[int, int]) -> Place:
    """Keep what is needed of a line; ``origins`` are those of the lines before that changed nothing."""
    replies, common, seq = line["replies"], line["common"] or {}, line["seq"]
    if common.get("source") == "same":
        # Followed here, line by line: a run in which nobody answers has one such line a round.
        origins[seq] = origins.get(common["as"], common["as"])
    return Place(
        offset,
        length,
        line["check"],
        seq,
        line["round"],
        unfinished=bool(replies) and all(reply.get("reason") == UNFINISHED for reply in replies),
        empty=all(reply["status"] != "ok" for reply in replies),
        origin=origins.get(seq, seq),
        told={key: line[key] for key in ("bytes", "xxh3", "sha256") if key in line},
    )


def _check_end(index: Index, manifest: Mapping[str, Any], file: Path) -> None:
    expected, found = manifest["rounds"], len(index.places)
    if index.damage or expected is None:
        return
    if found != expected:
        index.damage.append(f"{file} lists {found} whole rounds where the manifest counts {expected}; it was cut")
    elif index.version > 1 and index.end != manifest["head"]:
        index.damage.append(f"{file} does not end with the line that the manifest says; it was changed")
    final = manifest["final"] or {}
    earlier = final.get("of", final.get("as"))
    if earlier is not None and not any(place.seq == earlier for place in index.places):
        index.damage.append(f"{file} has no line of seq {earlier}, from which the manifest takes the last model")


def file_of(seq: int) -> str:
    """Name the file of a round's arrays, in the record's folder."""
    return f"{ROUNDS}/{seq:06d}.safetensors"


def strangers(path: Path, index: Index) -> list[str]:
    """Name the files among the rounds' of which no line of the index speaks."""
    try:
        found = sorted(os.listdir(path / ROUNDS))  # noqa: PTH208 - names alone
    except OSError:
        return []  # each line that names a file is damage by itself
    known = {file_of(place.seq) for place in index.places}
    return [name for name in (f"{ROUNDS}/{name}" for name in found) if name not in known]
