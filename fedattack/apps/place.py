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
    """Copy a folder but for ``without``, and link what is large or no part of the app, such as data sets.

    Parameters
    ----------
    source, target
        Folders; ``target`` is made.
    """
    left, size_left = ENTRIES, BYTES
    folders = [(source, target)]
    # Breadth first: what lies near the top is copied before the budget is used up.
    while folders:
        folder, to = folders.pop(0)
        to.mkdir()
        for path in sorted(folder.iterdir()):
            copy = to / path.name
            # What Python compiles is written beside its modules.
            if path == without or path.name == "__pycache__":
                continue
            if path.is_symlink():
                copy.symlink_to(path)
                continue
            size = 0
            if path.is_file():
                size = path.stat().st_size
            left -= 1
            # Links for what cannot be read, too: the app would fail on it likewise.
            if left < 0 or size > min(LARGE, size_left) or not os.access(path, os.R_OK):
                copy.symlink_to(path)
            elif path.is_file():
                size_left -= size
                shutil.copyfile(path, copy)
            # Run folders and environments are no part of the app.
            elif path.is_dir() and may_hold_app(path) and sum(1 for _ in path.iterdir()) <= MANY:
                folders.append((path, copy))
            elif path.is_dir():
                copy.symlink_to(path)
