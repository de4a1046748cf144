"""Which code an audit of an app may import when it goes on, and where it lies.

That is noted outside of the run folder, which itself is data.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pydantic import TypeAdapter

from fedattack.base.errors import ConfigError
from fedattack.base.files import make_private, write_sealed
from fedattack.base.untrusted import Text, read_sealed
from fedattack.runs.bundle import hash_code

_IMPORTS, _APP = "imports", "app"

_CODE: TypeAdapter[dict[str, list[Text]]] = TypeAdapter(dict[str, list[Text]])


def note_code(out: Path, imports: Iterable[str]) -> None:
    """Note import paths that an app itself gave while it ran into ``out``; where nothing can be written, none."""
    _note(out, _IMPORTS, sorted({*read_code(out), *imports}))


def read_code(out: Path) -> set[str]:
    """Return the import paths that were noted on this machine of the run folder ``out``."""
    return {*_read(out).get(_IMPORTS, ())}


def note_app(out: Path, app: Path, code: str) -> None:
    """Note in which folder the app lies that ran into ``out``, and the hash of its code."""
    _note(out, _APP, [str(app), code])


def find_app(out: Path) -> str:
    """Return the folder of the app that ran into ``out`` on this machine, while its code is what it was; else empty."""
    noted = _read(out).get(_APP, ())
    if len(noted) != 2:
        return ""
    folder, code = noted
    if not Path(folder).is_dir():
        return ""
    try:
        # Changed code is no code that its owner has agreed to import.
        is_same = hash_code(Path(folder)) == code
    except (ConfigError, OSError):
        # What cannot be read is not as it was.
        return ""
    if not is_same:
        return ""
    return folder


def _note(out: Path, key: str, lines: list[str]) -> None:
    file = _file_of(out)
    with suppress(OSError):
        # The state folder may be read-only, as in a container: then the user is asked again.
        make_private(file.parent)
        write_sealed(file, {**_read(out), key: lines})


def _read(out: Path) -> dict[str, list[str]]:
    file = _file_of(out)
    if not file.exists():
        return {}
    noted = read_sealed(file, _CODE, ConfigError, "delete it")
    return {key: noted[key] for key in (_IMPORTS, _APP) if key in noted}


def _file_of(out: Path) -> Path:
    states = os.environ.get("XDG_STATE_HOME")
    folder = Path(states) if states else Path.home() / ".local" / "state"
    # A hash of the path: one file for each run folder, whatever characters its name has.
    return folder / "fedattack" / "audits" / f"{hashlib.sha256(os.fsencode(out.resolve())).hexdigest()}.json"
