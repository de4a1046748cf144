"""A folder like the app's own, in which a copy of the app runs: what it writes there is not in its owner's folder."""

import os
import shutil
from pathlib import Path

from fedattack.runs.bundle import may_hold_app

LARGE = 2**24
"""Bytes from which on a file is linked, and not copied."""

MANY = 2000
"""Entries of a folder from which on it is linked, and not copied."""

ENTRIES, BYTES = 20_000, 2**29
"""Files, and their bytes, that are copied in all; what comes then is linked."""


def copy_files(source: Path, target: Path, *, without: Path) -> None:
    """Copy a folder, and link what is large or no part of the app, such as data sets, which apps read.

    Parameters
    ----------
    source, target
        Folders; ``target`` is made.
    without
        A folder that is left out.
    """
    _Copy(without).folder(source, target)


class _Copy:
    """Counts what it copies."""

    def __init__(self, without: Path) -> None:
        self._without = without
        self._entries = 0
        self._bytes = 0

    def folder(self, source: Path, target: Path) -> None:
        target.mkdir()
        with os.scandir(source) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            path, copy = Path(entry.path), target / entry.name
            # What Python compiles is written beside its modules.
            if path == self._without or entry.name == "__pycache__":
                continue
            if entry.is_symlink():
                copy.symlink_to(path.resolve())
            elif not self._takes(entry):
                copy.symlink_to(path)
            elif entry.is_dir():
                self.folder(path, copy)
            elif entry.is_file():
                shutil.copyfile(path, copy)

    def _takes(self, entry: os.DirEntry[str]) -> bool:
        """Say whether a folder or file is copied, and count it."""
        if not os.access(entry.path, os.R_OK) or self._entries >= ENTRIES:
            return False
        self._entries += 1
        if entry.is_dir():
            path = Path(entry.path)
            return may_hold_app(path) and sum(1 for _ in path.iterdir()) <= MANY
        size = entry.stat().st_size
        if size > LARGE or self._bytes + size > BYTES:
            return False
        self._bytes += size
        return True
