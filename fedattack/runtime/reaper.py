"""End every process of a private Flower home, however it was started.

Flower and Ray detach what they start into sessions of their own, and Ray's agents overwrite their environment, so
neither a process group nor a walk down the tree finds them all. What finds them: the private ``FLWR_HOME`` that they
inherited, and the sessions of those that still show it.

Run as a script, this watches over its parent: when the parent is gone for whatever reason, ``kill -9`` included, its
standard input closes, and the processes and the private folder go as well.
"""

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import psutil

SERVERS = {"flwr-serverapp", "flwr-simulation"}
GRACE_SECONDS = 3.0
GIVE_UP_SECONDS = 15.0


def _lives_in(process: psutil.Process, home: Path) -> bool:
    try:
        found = process.environ().get("FLWR_HOME")
    except (psutil.Error, OSError):
        return False
    return found is not None and Path(found).is_relative_to(home)


def processes_of(home: Path, sessions: set[int] | None = None) -> list[psutil.Process]:
    """List the running processes that belong to a private Flower home.

    Parameters
    ----------
    home : Path
        The value of ``FLWR_HOME`` that only these processes were given, or the folder that theirs lie in.
    sessions : set of int, optional
        Session ids already known to belong to `home`; those that are found are added to it. It keeps track of
        processes that hide their environment after the last one that shows it is gone.

    Returns
    -------
    list of psutil.Process
        Without the caller's own session, and without zombies.
    """
    sessions = set() if sessions is None else sessions
    session_of: dict[psutil.Process, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE:
                session_of[process] = os.getsid(process.pid)
    sessions |= {session for process, session in session_of.items() if _lives_in(process, home)}
    sessions.discard(os.getsid(0))
    return [process for process, session in session_of.items() if session in sessions]


def _runs_a_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(Path(word).name in SERVERS for word in process.cmdline()[:4])
    return False


def reap(home: Path) -> None:
    """End all processes of a private Flower home: ask first, kill those that are still there 3 s later.

    What runs a ServerApp is killed at once. Asked, it would live to see its clients die, and take that for what they
    answered in the round.
    """
    started = time.monotonic()
    sessions: set[int] = set()
    asked: set[psutil.Process] = set()
    while (alive := processes_of(home, sessions)) and time.monotonic() - started < GIVE_UP_SECONDS:
        impatient = time.monotonic() - started > GRACE_SECONDS
        for process in alive:
            with contextlib.suppress(psutil.Error):
                if impatient or _runs_a_server(process):
                    process.kill()
                elif process not in asked:
                    process.terminate()
        asked.update(alive)
        time.sleep(0.05)


def _watch(home: Path) -> None:
    sys.stdin.buffer.read()
    reap(home)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
