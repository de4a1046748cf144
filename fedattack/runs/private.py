"""Folders for private copies: of an app, of its data, of clients' examples. They go with the command that made them.

They lie in the run folder, in ``private``, so that whoever keeps or deletes that has all of them. Three things see to
it that they go, and the processes that work in them:

- the command itself removes them, also after an error, SIGINT, SIGTERM or SIGHUP;
- a guard, which is a process of its own, does so when the command is killed;
- where the guard is killed as well, the next command on the run folder does so.
"""

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fedattack.base.files import FolderLock, make_private, signals_raise
from fedattack.base.untrusted import PRIVATE
from fedattack.runs import reaper


def start_guard(*paths: Path) -> "subprocess.Popen[bytes]":
    """Start what ends the processes of a folder, and removes it and links to it, once this process is gone."""
    return subprocess.Popen(
        [sys.executable, "-P", reaper.__file__, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )


def end_guard(guard: "subprocess.Popen[bytes]") -> None:
    """End a guard whose folder is removed."""
    guard.kill()
    guard.communicate()


@contextmanager
def private_folder(run: Path) -> Iterator[Path]:
    """Make a folder in a run folder for private copies, and remove it in the end, with the processes that work in it.

    Yielded is a link in the temporary folder that leads there. It is short, as the paths of sockets must be.
    Processes work in the folder if their environment is that of :func:`working_in`, and their session is their own.

    Raises
    ------
    OSError
        If the run folder cannot be written.
    """
    sweep(run)
    make_private(run / PRIVATE)
    with signals_raise(), ExitStack() as undo:
        undo.callback(_remove_empty, run / PRIVATE)
        yield undo.enter_context(guarded_folder(run / PRIVATE, "", link=_name_link()))


def _name_link() -> Path:
    return Path(tempfile.gettempdir()) / f"fa-{secrets.token_hex(4)}"


@contextmanager
def guarded_folder(parent: Path, prefix: str, *, link: Path | None = None) -> Iterator[Path]:
    """Make a folder that only its owner can look into, and remove it however this process ends.

    Parameters
    ----------
    parent, prefix
        Where it lies, and how its name begins; :func:`sweep_named` finds it by these.
    link
        A link to it that is made, too, and yielded in its place.
    """
    # resolve: processes name the folder by its real path, and are found by it.
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    with ExitStack() as undo:
        # Until it is let go of, nobody else takes the folder for one that was left.
        undo.enter_context(FolderLock(folder))
        undo.callback(_remove, folder)
        paths = [folder]
        # Unix sockets have short paths: what needs one names the folder by this link.
        if link is not None:
            link.symlink_to(folder, target_is_directory=True)
            undo.callback(link.unlink, missing_ok=True)
            paths.append(link)
        guard = start_guard(*paths)
        try:
            yield paths[-1]
        # First the folder and its processes go, and then the guard that would do the same.
        finally:
            undo.close()
            end_guard(guard)


def _remove_empty(folder: Path) -> None:
    # Another command may keep copies there.
    with suppress(OSError):
        folder.rmdir()


def _remove(folder: Path) -> None:
    reaper.reap(folder)
    # What cannot be removed is left to the next command.
    shutil.rmtree(folder, ignore_errors=True)


def working_in(folder: Path) -> dict[str, str]:
    """Return the environment of a process that ends with a private folder; give it a session of its own, too."""
    # FLWR_HOME marks every process that belongs to the folder; the reaper finds them by it.
    return {**os.environ, "FLWR_HOME": str(folder.resolve())}


def sweep(run: Path) -> None:
    """Remove the private copies in a run folder that a killed command has left; those of one at work stay."""
    inside = run / PRIVATE
    if inside.is_symlink() or not inside.is_dir():
        return
    sweep_named(inside, "")
    _remove_empty(inside)


def sweep_named(parent: Path, prefix: str) -> None:
    """Remove the folders whose names begin so in ``parent`` and that no process holds."""
    # All entries first, as the loop removes some.
    for entry in [*os.scandir(parent)]:
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        # A lock that can be had says that no process holds the folder any more.
        with suppress(OSError), FolderLock(Path(entry.path)):
            # Processes name it by its full path.
            _remove(Path(entry.path).resolve())
