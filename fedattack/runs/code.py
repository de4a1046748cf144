"""Which code an audit of an app may import when it goes on: noted outside of the run folder, which itself is data."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from fedattack.base.errors import ConfigError
from fedattack.base.files import make_private, write_sealed
from fedattack.base.untrusted import Text, read_sealed

_CODE: TypeAdapter[dict[str, list[Text]]] = TypeAdapter(dict[str, list[Text]])


def note_code(out: Path, imports: Iterable[str]) -> None:
    """Note import paths that an app itself gave while it ran into ``out``; where nothing can be written, none."""
    file = _file_of(out)
    with suppress(OSError):
        make_private(file.parent)
        write_sealed(file, {"imports": sorted({*read_code(out), *imports})})


def read_code(out: Path) -> set[str]:
    """Return the import paths that were noted on this machine of the run folder ``out``."""
    file = _file_of(out)
    if not file.exists():
        return set()
    return {*read_sealed(file, _CODE, ConfigError, "delete it").get("imports", ())}


def _file_of(out: Path) -> Path:
    states = os.environ.get("XDG_STATE_HOME")
    folder = Path(states) if states else Path.home() / ".local" / "state"
    return folder / "fedattack" / "audits" / f"{hashlib.sha256(os.fsencode(out.resolve())).hexdigest()}.json"
