"""Of which record scores, knowledge and truth are: what they state of it, held against a record."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, with_config

from fedattack.base.errors import DataError, FedAttackError
from fedattack.base.stored import OPTIONAL, AsJson, form_of
from fedattack.base.untrusted import MAX_INFLATED, parse_json, read_npz, read_sealed, validate
from fedattack.record.folder import HOLDINGS, KNOWLEDGE, Part
from fedattack.record.reader import Record
from fedattack.record.schema import RecordId, Sha256

_SHOWN = 8


@dataclass(frozen=True)
class RecordMark:
    """A record in the state in which it was read.

    Attributes
    ----------
    id
        The record's ``id``.
    head
        The seal of its last line, or its ``id`` if it has none.
    """

    id: RecordId
    head: RecordId | Sha256

    @classmethod
    def of(cls, record: Record) -> "RecordMark":
        """Mark the state in which a record is."""
        # A closed record says itself which line is its last one, also where that is damaged.
        return cls(record.id, record.manifest["head"] or record.index.end)


# What else stands in these files is read, and held against its form, where it is used.
@with_config(ConfigDict(extra="ignore", strict=True))
@dataclass(frozen=True)
class _Statement:
    """Which record knowledge or truth is about."""

    record: Annotated[str, AsJson(RecordId), OPTIONAL] = ""


@with_config(ConfigDict(extra="ignore", strict=True))
@dataclass(frozen=True)
class _ScoresStatement:
    """Which record scores are about."""

    record: Annotated[RecordMark | None, OPTIONAL] = None


_HINT = "put the file back as it was written"


def explain_scores(file: Path, mark: RecordMark | None, record: Record) -> str:
    """Say why scores are not of a record as it is; nothing if they are, or if they do not say of which they are."""
    if mark is None or mark == RecordMark.of(record):
        return ""
    again = f"put that record back, or run `fedattack attack {file.stem}` again"
    # A copy has an id of its own, and its origin is the record that the scores name.
    if mark.id == record.origin != record.id:
        return (
            f"{file} was made from another record: {record.path} is a copy of it with fewer or other contents; {again}"
        )
    if mark.id != record.id:
        ids = f"({_shorten(mark.id)}) than {record.path} ({_shorten(record.id)})"
        return f"{file} was made from another record {ids}; {again}"
    # The head of the scores is a line further up: rounds were added since. An empty record's head is its id.
    if mark.head == mark.id or any(line.check == mark.head for line in record.index.lines):
        return f"{record.path} has grown since {file} was made of it; run `fedattack attack {file.stem}` again"
    return f"{file} was made from rounds that differ from those in {record.path} now; {again}"


def marked_otherwise(file: Path, record: Record) -> bool:
    """Whether a file of scores says that they are not of a record as it is."""
    return bool(explain_scores(file, _read_mark(file), record))


def explain_statement(file: Path | str, stated: str, record: Record) -> str:
    """Say why knowledge or truth, which states the ``id`` of a record, is not of the run of another; nothing if it is.

    Copies of a record, such as projected ones, are of the same run.
    """
    if not stated or stated == record.origin:
        return ""
    ids = f"({_shorten(stated)}) than {record.path} ({_shorten(record.origin)})"
    return f"{file} belongs to another record {ids}; use files that one run wrote"


def list_strangers(part: Part, record: Record) -> list[str]:
    """List what in a run folder is of another record, of one seed: knowledge, truth and scores.

    What cannot be read is listed by whoever needs it.
    """
    lines = []
    for file in (part.knowledge / KNOWLEDGE, part.truth / HOLDINGS):
        lines.append(explain_statement(file, _read_statement(file), record))
    # Attacks of packages that are not installed are held to it, too.
    for file in sorted(part.scores("*").parent.glob("*.npz")):
        lines.append(explain_scores(file, _read_mark(file), record))
    return [line for line in lines if line]


def read_stated(files: Iterable[Path]) -> str:
    """Return the ``id`` of the record that the first of these files that states one is of; nothing if none does."""
    return next(filter(None, map(_read_statement, files)), "")


def _read_statement(file: Path) -> str:
    if not file.exists():
        return ""
    try:
        return read_sealed(file, form_of(_Statement), DataError, _HINT).record
    # A file that cannot be read is refused, with its reason, by whoever uses it.
    except FedAttackError:
        return ""


def _read_mark(file: Path) -> RecordMark | None:
    try:
        arrays = read_npz(file, DataError, _HINT, "facts", inflated=MAX_INFLATED)
        about = parse_json(str(arrays["facts"]))
        return validate(form_of(_ScoresStatement), about, str(file), DataError, _HINT).record
    except (FedAttackError, ValueError):
        return None


def _shorten(identity: str) -> str:
    return f"{identity[:_SHOWN]}…"
