"""What people add to a report that is filed: who audited, how far, and which risk remains.

No number is changed by it.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.base.errors import ConfigError, ReportError, instead
from fedattack.base.files import write_sealed
from fedattack.base.untrusted import check_folder, read_sealed

FILED = "filed.json"

FIELDS = {
    "role": "In which role",
    "scope": "How far the audit went",
    "residual-risk": "Risk that remains",
    "risk-owner": "Owner of that risk",
    "next-test": "Next test",
    "note": "Note",
}
"""What can be said, and how the page calls it."""

_MOST = 2000

_Text = Annotated[str, StringConstraints(min_length=1, max_length=_MOST)]


@with_config(ConfigDict(extra="forbid", strict=True))
class FiledWords(TypedDict):
    """Words of a person: when, who, about what, and why they were changed, where a reason was given."""

    time: _Text
    by: _Text
    field: _Text
    text: _Text
    why: Annotated[str, StringConstraints(max_length=_MOST)]


@with_config(ConfigDict(extra="forbid", strict=True))
class _Filed(TypedDict):
    entries: Annotated[list[FiledWords], Field(max_length=10_000)]


_FILED: TypeAdapter[_Filed] = TypeAdapter(_Filed)


def read_filed(folder: Path) -> list[FiledWords]:
    """Read what people added, the oldest first; nothing where nobody did.

    Raises
    ------
    ReportError
        If the file is damaged.
    """
    path = Path(folder) / FILED
    if not path.exists():
        return []
    return read_sealed(path, _FILED, ReportError, "put it back as it was, or delete it")["entries"]


def latest_words(entries: Sequence[FiledWords]) -> list[FiledWords]:
    """Return what stands of each field, in the order of :data:`FIELDS`: the latest words, and of notes all."""
    standing = []
    for field in FIELDS:
        said = [entry for entry in entries if entry["field"] == field]
        standing += said if field == "note" else said[-1:]
    return standing


def read_words(words: Sequence[str], by: str | None) -> list[tuple[str, str]]:
    """Read ``FIELD=TEXT`` as the command line gives them.

    Raises
    ------
    ConfigError
        If a field is unknown, a text is empty or too long, or nobody says who speaks.
    """
    said = []
    for word in words:
        field, _, text = word.partition("=")
        if field not in FIELDS:
            raise ConfigError(f"--file {word}: {instead(field, FIELDS)}")
        if not 0 < len(text.strip()) <= _MOST:
            raise ConfigError(f"--file {field}=…: expected FIELD=TEXT of at most {_MOST} letters, got {len(text)}")
        said.append((field, text.strip()))
    if said and not (by or "").strip():
        raise ConfigError("--file says something in somebody's name: expected --by NAME, too")
    return said


def add_words(folder: Path, by: str, words: Sequence[tuple[str, str]], why: str = "") -> None:
    """Add what a person says to what is there; earlier words stay.

    Raises
    ------
    ReportError
        If what is there is damaged, or the folder is none.
    """
    check_folder(Path(folder), ReportError, to_write=True)
    entries = read_filed(folder)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for field, text in words:
        entries.append(FiledWords(time=now, by=by.strip(), field=field, text=text, why=why.strip()))
    write_sealed(Path(folder) / FILED, {"entries": entries})
