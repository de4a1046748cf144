"""End every process of a private folder, however it was started.

Flower and Ray detach the processes that they start into sessions of their own, and Ray's agents overwrite their
environment. Neither a process group nor a walk down the tree therefore finds them all. The private ``FLWR_HOME`` that
they inherited finds them, and the sessions of those that still show it. The process that asks an app has one, too.

Run as a script, this watches over its parent. When the parent is gone for whatever reason, ``kill -9`` included, its
standard input closes. Then the script ends the processes, and removes the private folder and links to it.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

SERVERS = {"flwr-serverapp", "flwr-simulation"}
GRACE_SECONDS = 3.0
GIVE_UP_SECONDS = 15.0


def _lives_in(process: psutil.Process, home: Path) -> bool:
    try:
        folder = process.environ().get("FLWR_HOME")
    except (psutil.Error, OSError):
        return False
    return folder is not None and Path(folder).is_relative_to(home)


def processes_of(home: Path, sessions: set[int] | None = None) -> list[psutil.Process]:
    """List the running processes that belong to a private Flower home.

    Parameters
    ----------
    home : Path
        The value of ``FLWR_HOME`` that only these processes were given, or the folder that theirs lie in.
    sessions : set of int, optional
        Session ids already known to belong to `home`; new ones are added. With them, processes that hide their
        environment are found even when the last process that shows it is gone.

    Returns
    -------
    list of psutil.Process
        Without the caller's own session, and without zombies.
    """
    if sessions is None:
        sessions = set()
    session_of: dict[psutil.Process, int] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            # A zombie has ended; only its parent can remove it.
            if process.status() != psutil.STATUS_ZOMBIE:
                session_of[process] = os.getsid(process.pid)
    for process, session in session_of.items():
        if _lives_in(process, home):
            sessions.add(session)
    # The session of this process itself is never ended, even if it carries the mark.
    sessions.discard(os.getsid(0))
    return [process for process, session in session_of.items() if session in sessions]


def _runs_a_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        # The interpreter and its options may stand before the program's name.
        return any(Path(word).name in SERVERS for word in process.cmdline()[:4])
    return False


def reap(home: Path) -> None:
    """End all processes of a private Flower home: ask first, and kill those that still run 3 s later.

    A process that runs a ServerApp is killed at once. If it were only asked, it would outlive its clients, and take
    their deaths for their answers in the round.
    """
    started = time.monotonic()
    sessions: set[int] = set()
    asked: set[psutil.Process] = set()
    # New processes may appear while others end: they are listed anew each time.
    while (alive := processes_of(home, sessions)) and time.monotonic() - started < GIVE_UP_SECONDS:
        grace_is_over = time.monotonic() - started > GRACE_SECONDS
        for process in alive:
            with contextlib.suppress(psutil.Error):
                # A server catches the request to end, and would go on until its next heartbeat.
                if grace_is_over or _runs_a_server(process):
                    process.kill()
                elif process not in asked:
                    process.terminate()
        asked.update(alive)
        time.sleep(0.05)


def _watch(home: Path, links: Sequence[Path]) -> None:
    # Reads until the pipe closes, which it does however the parent ends, also by SIGKILL.
    sys.stdin.buffer.read()
    reap(home)
    shutil.rmtree(home, ignore_errors=True)
    for link in links:
        link.unlink(missing_ok=True)


if __name__ == "__main__":
    folder, *links_to_it = map(Path, sys.argv[1:])
    _watch(folder, links_to_it)
