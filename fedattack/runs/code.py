"""Which code of an app may be imported without asking again: on the machine that audited it, while nothing changed.

That is noted outside of the run folder, which itself is data, in ``$XDG_STATE_HOME/fedattack`` or
``~/.local/state/fedattack``. One file for each run folder holds the import paths that the app gave while it ran, where
the app lies, the hash of its code, and, once the audit has ended, a hash of what the folder is.

Who may be fooled, and what is done about it:

- *A folder that somebody hands over*, also a copy of one of our own. The note goes by the folder's resolved path.
  Another path has no note. Where a stranger's folder takes the place of ours, its record or knowledge has another hash.
- *A folder that was in other hands meanwhile.* The hash covers manifest, index and knowledge of each seed: which rounds
  these are, and all that names code. If one of them changed, the folder is a stranger's. Arrays, scores and truth are
  data, whoever wrote them.
- *A note that a folder brings along.* Nothing in the folder is read to find out whether it is trusted. A note that is a
  link, belongs to somebody else or that others can open does not count.
- *An app that changed.* The hash of its code is computed anew. Nothing else but what was noted is imported, and that
  only from a file that this hash covers, or from an installed package: a module of the working directory, a link or a
  compiled module asks as ever.

Whoever can write into the user's own state folder, app or installed packages can run code as the user anyway. What an
app's modules import in turn is found as Python finds it.
"""

import hashlib
import os
import stat
import sysconfig
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from fedattack.base.errors import ConfigError, FedAttackError
from fedattack.base.files import make_private, write_sealed
from fedattack.base.untrusted import Text, open_regular, read_sealed
from fedattack.record.folder import KNOWLEDGE, RunFolder
from fedattack.record.format import INDEX, MANIFEST
from fedattack.runs.bundle import app_files, hash_code

if TYPE_CHECKING:
    from fedattack.learning.importing import Asked

_IMPORTS, _APP, _FOLDER = "imports", "app", "folder"

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


def note_folder(folder: RunFolder) -> None:
    """Note what a run folder is at the end of the audit that made it, so that its app is known from now on."""
    # A folder that cannot be read again is asked about as a stranger's.
    with suppress(FedAttackError, OSError):
        _note(folder.path, _FOLDER, [_hash_folder(folder)])


def list_own_code(folder: RunFolder) -> list["Asked"]:
    """List the code that a run folder may import without asking: that of the app that this machine audited into it.

    Nothing if anything of the folder, the app or the note is not as it was.
    """
    noted = _read(folder.path).get(_FOLDER, [])
    app = find_app(folder.path)
    if not noted or not app or not _is_own(_file_of(folder.path)):
        return []
    try:
        if noted != [_hash_folder(folder)]:
            return []
        hashed = {path.resolve() for path in app_files(Path(app))}
    except (FedAttackError, OSError):
        # What cannot be read is not as it was.
        return []
    from fedattack.learning.importing import Asked

    asked = [Asked("code", name, "the audit of this folder", app) for name in sorted(read_code(folder.path))]
    return [each for each in asked if _comes_from(each.origin, hashed)]


def _comes_from(origin: str, hashed: Collection[Path]) -> bool:
    """Whether a module is a file of the app that its hash covers, or of an installed package."""
    # An ordinary file, and no link to one that the hash does not cover.
    file = Path(origin).resolve()
    installed = (Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib"))
    return file in hashed or any(map(file.is_relative_to, installed))


def _hash_folder(folder: RunFolder) -> str:
    """Return the SHA-256 of which rounds a folder holds, and of what its attacker knows, which names the code."""
    digest = hashlib.sha256()
    for part in folder.parts_there:
        for file in (part.record / MANIFEST, part.record / INDEX, part.knowledge / KNOWLEDGE):
            with open_regular(file) as opened:
                content = opened.read()
            digest.update(f"{file.relative_to(folder.path)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _is_own(file: Path) -> bool:
    """Whether a note is an ordinary file in an ordinary folder, and nobody but this user can open either."""
    for path, kind in ((file, stat.S_ISREG), (file.parent, stat.S_ISDIR)):
        status = path.lstat()
        if not kind(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return False
    return True


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
    return {key: noted[key] for key in (_IMPORTS, _APP, _FOLDER) if key in noted}


def _file_of(out: Path) -> Path:
    states = os.environ.get("XDG_STATE_HOME")
    folder = Path(states) if states else Path.home() / ".local" / "state"
    # A hash of the path: one file for each run folder, whatever characters its name has.
    return folder / "fedattack" / "audits" / f"{hashlib.sha256(os.fsencode(out.resolve())).hexdigest()}.json"
