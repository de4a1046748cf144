"""What runs of a preset and of somebody's app have in common: a locked folder, and one seed after the other."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedattack.base.errors import ConfigError, FedAttackError, RunError, in_command
from fedattack.base.files import FolderLock, make_private, open_private
from fedattack.base.untrusted import remove_inside
from fedattack.record import Record
from fedattack.record.folder import STUDY, Part, new_parts, read_study, write_study
from fedattack.record.format import INDEX, MANIFEST
from fedattack.runs.logs import find_planned_rounds
from fedattack.runs.pace import Pace
from fedattack.runs.watch import Watch

LOG = "flower.log"
"""File of a run folder that has what Flower prints."""

# Seconds without a new round, after which people are told where they can look.
_LONG = 60.0

# Bytes of a run's log in which its server says how many rounds there are to be.
_BEGINNING = 2**17

Run = Callable[[Callable[[], None]], None]
"""Trains one seed to its end, and calls what it is given whenever a round may have been recorded."""


def lock_folder(folder: Path) -> FolderLock:
    """Lock a folder against other runs.

    Raises
    ------
    ConfigError
        If another is at work in it.
    """
    try:
        return FolderLock(folder)
    except BlockingIOError:
        raise ConfigError(f"another run is at work in {folder}; wait for its end, or choose another folder") from None


def check_free(out: Path) -> Path:
    """Return the absolute path of a folder that may become a run folder: it is absent or empty.

    Raises
    ------
    ConfigError
        If it is not, or another run is at work in it.
    """
    out = out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise _refuse_taken(out)
    if out.is_dir() and any(out.iterdir()):
        # The lock first: another command may be about to fill the folder.
        with lock_folder(out):
            raise _refuse_taken(out)
    return out


def _refuse_taken(out: Path) -> ConfigError:
    taken = f"{out} already exists; give this run a folder of its own, or delete that one first"
    if out.is_dir() and "preset" in read_study(out):
        taken += f"; `fedattack resume {in_command(out)}` continues the run that is there"
    return ConfigError(taken)


@contextmanager
def new_folder(out: Path) -> Iterator[None]:
    """Make a run folder, and lock it. What ends early before its study is written leaves nothing in it.

    Raises
    ------
    ConfigError
        If it is taken or cannot be created.
    """
    check_free(out)
    is_new = not out.exists()
    try:
        make_private(out)
    except OSError as cause:
        raise ConfigError(f"{out} cannot be created ({cause}); choose a folder that can be written") from None
    with lock_folder(out):
        if any(out.iterdir()):
            raise _refuse_taken(out)
        # make_private leaves an existing folder's rights as they are.
        out.chmod(0o700)
        try:
            yield
        # KeyboardInterrupt and SystemExit, too, leave nothing behind.
        except BaseException as cause:
            if (out / STUDY).exists():
                raise
            # Nothing is recorded yet, and the same command, or the corrected one, may use the folder again.
            for path in list(out.iterdir()):
                remove_inside(out, path, ConfigError)
            if is_new:
                out.rmdir()
            if isinstance(cause, RunError):
                # There is nothing to resume, which is what a run that did not finish is told otherwise.
                raise FedAttackError(f"{cause}; nothing is recorded yet: run the command again") from None
            raise


def is_recorded(part: Part, rounds: int = 1) -> bool:
    """Whether a record is whole, and has so many rounds.

    A server that was asked to end may have closed it in good order before that.

    Raises
    ------
    RecordError
        If what is recorded is damaged.
    """
    if not (part.record / MANIFEST).exists():
        return False
    record = Record(part.record)
    return record.status == "complete" and max(whole_rounds(record), default=0) >= rounds


def whole_rounds(record: Record) -> list[int]:
    """List the rounds after which a run can go on; none if no client ever answered."""
    return [] if record.silence else [item.number for item in record if not item.unfinished]


def goes_on(out: Path) -> bool:
    """Say whether a run that did not finish by itself goes on after what is recorded.

    A preset's does in any case. A seed of somebody's app must be whole: else the app failed, and would fail again.
    """
    try:
        study = read_study(out)
        return "app" not in study or any(map(is_recorded, new_parts(out, study.get("seeds", ()))))
    except FedAttackError:
        return False


def check_idle(part: Part) -> None:
    """Check that no server writes a part's record: it may have outlived whoever started it.

    Raises
    ------
    ConfigError
        If one does.
    """
    if part.record.is_dir():
        lock_folder(part.record).close()


def run_in_turn(
    out: Path, study: dict[str, Any], runs: Sequence[tuple[Sequence[Part], Run]], rounds: int | None, watch: Watch
) -> None:
    """Train one seed after the other, say how far each is, and note in the study when all are done.

    Raises
    ------
    RunError
        If a run does not finish, or no client answers in it.
    """
    every = [part for parts, _ in runs for part in parts]
    before = {part: _count_lines(part) for part in every}
    pace = None
    if rounds is not None:
        pace = Pace("training", "rounds", rounds * len(every), 2, watch.say)
    for parts, run in runs:
        follower = _LogFollower(out / LOG, rounds, watch)

        def advance(parts: Sequence[Part] = parts, follower: _LogFollower = follower) -> None:
            """Say how far the seed is that is being trained: the last one of which there is something new."""
            counts = {part: _count_lines(part) for part in every}
            begun = [part for part in parts if counts[part] > before[part]]
            current = [*parts[:1], *begun][-1]
            watch.step(f"train {current.name or 'rounds'}", counts[current], follower.find_rounds())
            follower.notice(counts)
            if pace is not None and counts != before:
                pace.seen(sum(counts.values()))

        run(advance)
    write_study(out, study | {"finished": now()})


class _LogFollower:
    """Follows what Flower prints of one run: how many rounds it takes, if nobody says, and where that can be read.

    Parameters
    ----------
    log
        The log, to which the run's output is appended.
    rounds
        How many rounds there are; ``None`` to read it in the log.
    watch
        Is told of the log once, if nothing new is recorded for a minute.
    clock
        Seconds.
    """

    def __init__(
        self, log: Path, rounds: int | None, watch: Watch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._rounds, self._watch, self._clock = log, rounds, watch, clock
        self._start = log.stat().st_size if log.exists() else 0
        self._counts: Mapping[Part, int] = {}
        self._since = clock()
        self._told = False

    def find_rounds(self) -> int | None:
        """Return how many rounds the run takes; ``None`` for as long as the log does not say it."""
        if self._rounds is None and self._log.exists():
            with self._log.open("rb") as file:
                file.seek(self._start)
                self._rounds = find_planned_rounds(file.read(_BEGINNING).decode("utf-8", "replace"))
        return self._rounds

    def notice(self, counts: Mapping[Part, int]) -> None:
        """Take notice of how many rounds are recorded."""
        if counts != self._counts:
            self._counts, self._since = counts, self._clock()
        elif not self._told and self._clock() - self._since >= _LONG and self._log.exists():
            self._told = True
            self._watch.say("note", f"no round was recorded in the last minute; Flower's own log is {self._log}")


def _count_lines(part: Part) -> int:
    """Count the rounds of a record that is being written, or their exchanges."""
    index = part.record / INDEX
    return index.read_bytes().count(b"\n") if index.exists() else 0


def open_log(out: Path) -> Path:
    """Return the file of what Flower prints; its owner alone can read it."""
    log = out / LOG
    open_private(log, "ab").close()
    return log


def check_clients(
    part: Part,
    client_error: str | None,
    watch: Watch,
    explain: Callable[[str, Record | None], str] = lambda problem, record: problem,
) -> None:
    """Warn of clients that failed.

    Parameters
    ----------
    client_error
        What a client failed by.
    explain
        Adds to such a problem what to do; given a record, to why nobody answered in it.

    Raises
    ------
    RunError
        If none answered in any round: there is nothing to attack.
    """
    record = Record(part.record) if (part.record / MANIFEST).exists() else None
    if record is not None and (silence := record.silence):
        if client_error is not None:
            silence = f"{silence.partition(':')[0]}: {client_error}"
        raise RunError(f"{part.label}: {explain(silence, record)}")
    if client_error is not None:
        watch.say("warning", f"a client failed: {explain(client_error, None)}")


def now() -> str:
    """Return the time as studies note it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
