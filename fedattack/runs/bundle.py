"""Copy what Flower may bundle of an app."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fedattack.base.errors import ConfigError
from fedattack.base.untrusted import open_regular, refuse_irregular

# What flwr may put into a bundle at all; fab-include can only narrow it down.
APP_SUFFIXES = {".py", ".toml", ".md", ".yaml", ".yml", ".json", ".jsonl"}

APP_NAMES = {"LICENSE", ".gitignore", ".editorconfig"}


# Whoever audits an app may keep the run folders in it.
_STUDY = "study.json"


def copy_app(source: Path, target: Path, *, without: Path | None = None) -> None:
    """Copy what flwr may bundle, but for run folders and the folder ``without``.

    ``flwr run`` walks the whole folder, a virtual environment included, for each run, and rewrites an old-style
    pyproject.toml in place; the caller's folder may be huge or read-only.
    """
    for path in app_files(source, without=without):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)


def app_files(source: Path, *, without: Path | None = None) -> Iterator[Path]:
    """Yield the files that flwr may bundle, which are no links.

    Raises
    ------
    ConfigError
        If one is a pipe, a socket or a device: whoever reads it may wait for ever.
    """
    for folder, subfolders, files in os.walk(source):
        # In place: os.walk does not go into what is not listed.
        subfolders[:] = [
            name for name in subfolders if may_hold_app(Path(folder, name)) and Path(folder, name) != without
        ]
        for name in files:
            path = Path(folder, name)
            if (path.suffix in APP_SUFFIXES or name in APP_NAMES) and not path.is_symlink():
                # A socket or a pipe would block whoever reads it.
                refuse_irregular(path, ConfigError)
                yield path


def hash_code(folder: Path) -> str:
    """Return the SHA-256 of an app's code, as it is now."""
    digest = hashlib.sha256()
    for path in sorted(app_files(folder)):
        if path.suffix in (".py", ".toml"):
            with open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
                # Path and size before the content, so that no two different trees hash alike.
                digest.update(f"{path.relative_to(folder)} {size}\n".encode())
                while block := file.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def may_hold_app(folder: Path) -> bool:
    """Say no to hidden folders, caches, virtual environments and run folders."""
    if folder.name.startswith(".") or folder.name == "__pycache__":
        return False
    return not any((folder / name).exists() for name in ("pyvenv.cfg", _STUDY))
