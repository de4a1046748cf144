"""What the command shows: tables, progress, warnings, and one line for whoever reads JSON."""

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedattack.base.errors import short

if TYPE_CHECKING:
    from fedattack.runs.watch import Watch

out_console = Console()

err_console = Console(stderr=True)

# A step tells of itself again after so many seconds if it is so much further, and after so many if it is further.
_SECONDS, _SHARE, _LONG = 10.0, 0.1, 60.0

# Of so many steps each is told of that took longer than this, in seconds.
_FEW_STEPS, _SHORT = 10, 1.0

WARNINGS = "warnings.log"
"""File of a run folder that has what libraries warned of."""

# Words of a column that is narrower than this are hard to read.
_NARROW = 24


class _Quiet:
    """Whether progress and notes are left out; each command that takes --quiet sets it anew."""

    on = False


def set_quiet(value: bool) -> bool:
    """Take what --quiet says."""
    _Quiet.on = value
    return value


@contextmanager
def watch_bars() -> Iterator["Watch"]:
    """Show bars where there is a terminal, and plain lines where there is none; warnings always."""
    from fedattack.runs.watch import Watch

    if _Quiet.on:
        yield Watch(say=say)
    elif err_console.is_terminal:
        with _bars() as step:
            yield Watch(step, say)
    else:
        yield Watch(PlainSteps().step, say)


@contextmanager
def _bars() -> Iterator[Callable[[str, int, int | None], None]]:
    with Progress(
        # Text, never markup: a step is named after folders.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err_console,
        # Bars go away at the end; what stays are lines of results.
        transient=True,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def step(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield step


@dataclass
class _Told:
    """What was said of a step last.

    Attributes
    ----------
    begun, moved, at
        When the step began, when it went on last, and when a line was printed last; in seconds.
    done, said
        How far it was when it went on last, and how far the last line said it was.
    """

    begun: float
    moved: float
    at: float
    done: int
    said: int


@dataclass
class PlainSteps:
    """Progress as lines, for a log: one where a step starts, then few, and none twice.

    Attributes
    ----------
    clock
        Gives the time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _told: dict[str, _Told] = field(default_factory=dict)

    def step(self, what: str, done: int, total: int | None) -> None:
        """Print a line if the step is new, is much further than it was told of, or has stood still for long."""
        now = self.clock()
        told = self._told.get(what)
        if told is None or done < told.done:
            # Another seed's, or another cell's, step of the same name begins anew.
            self._told[what] = _Told(now, now, now, done, done)
            self._print(f"{what}: {done} of {total}" if total and done else what)
            return
        if done > told.done:
            told.done, told.moved = done, now
        if done > told.said:
            if self._is_worth_a_line(told, now, total):
                self._print(f"{what}: {_count(done, total)}{_after(now - told.begun)}")
                told.at, told.said = now, done
        elif now - told.moved >= _LONG and now - told.moved >= 2 * (told.at - told.moved):
            # After 1, 2, 4, 8 … minutes: a step that stands still for hours fills no log.
            self._print(f"{what}: {_count(done, total)}, no news for {_span(now - told.moved)}")
            told.at = now

    @staticmethod
    def _is_worth_a_line(told: _Told, now: float, total: int | None) -> bool:
        """Whether a step that went on is told of: each time if there are few that take long, else rarely."""
        waited = now - told.at
        if total and 1 < total <= _FEW_STEPS and waited > _SHORT:
            return True
        further = total is not None and (told.done - told.said) >= _SHARE * total
        return waited >= _LONG or (waited >= _SECONDS and further)

    @staticmethod
    def _print(line: str) -> None:
        err_console.print(escape(line), soft_wrap=True)


def _count(done: int, total: int | None) -> str:
    return f"{done} of {total}" if total else f"{done} so far"


def _after(seconds: float) -> str:
    return f" after {_span(seconds)}" if seconds >= _LONG else ""


def _span(seconds: float) -> str:
    return f"{seconds / _LONG:.0f} min"


@contextmanager
def log_warnings(folder: Path) -> Iterator[None]:
    """Write what libraries warn of into a file of a run folder, once it is there, and not into the terminal.

    PyTorch warns of what its users' code does; who audits wrote none of it. Where the file cannot be written, such
    warnings are shown as ever.
    """
    waiting: list[str] = []

    def note(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        # Kept until the run folder is there.
        waiting.append(warnings.formatwarning(message, category, filename, lineno, line))
        if folder.is_dir():
            write()

    def write() -> None:
        text = "".join(waiting)
        waiting.clear()
        try:
            # The folder may be somebody else's: what a link leads to is not written.
            how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            with os.fdopen(os.open(folder / WARNINGS, how, 0o600), "a", encoding="utf-8", errors="replace") as log:
                log.write(text)
        except OSError:
            err_console.print(escape(text.rstrip()), soft_wrap=True)

    # Python calls showwarning for each warning that is shown.
    before, warnings.showwarning = warnings.showwarning, note
    try:
        yield
    finally:
        warnings.showwarning = before
        if waiting:
            write()


def say_progress(line: str) -> None:
    """Show a line about work that is under way."""
    if not _Quiet.on:
        err_console.print(escape(line), soft_wrap=True)


def say(kind: str, text: str) -> None:
    """Show a warning, or another kind of line, of at most 300 characters."""
    if kind == "note" and _Quiet.on:
        return
    err_console.print(f"[yellow]{kind}:[/yellow] {escape(short(text))}", soft_wrap=True)


def tell(value: dict[str, Any], text: str, as_json: bool) -> None:
    """Say that a command is done: ``value`` to whoever reads JSON, else ``text``."""
    if as_json:
        print(json.dumps(value))
    else:
        out_console.print(text, soft_wrap=True)


def show_page(what: str, page: Path) -> None:
    """Show where a page is, as a link that terminals and people can follow."""
    # A path with .. in it would be a link that some terminals do not follow.
    link = page.resolve().as_uri()
    out_console.print(Text.assemble(f"{what}: ", (link, f"bold link {link}")), soft_wrap=True)


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1, *, header: bool = True
) -> None:
    """Show a table of texts, the first ``names`` columns of which are names and never broken.

    Where the terminal is too narrow for that, what belongs to a name stands below it.
    """
    out_console.print(Text(title, style="italic"))
    widths = []
    for index in range(names):
        widths.append(max(len(row[index]) for row in [columns, *rows]))
    # If the other columns would be too narrow, each row becomes a paragraph.
    if out_console.width - sum(widths) - 3 * names < _NARROW * (len(columns) - names):
        for row in rows:
            out_console.print(Text(" ".join(row[:names]), style="bold"), soft_wrap=True)
            for column, text in zip(columns[names:], row[names:], strict=True):
                if text:
                    line = text if column == "what" else f"{column}: {text}"
                    out_console.print(Padding(Text(line), (0, 0, 0, 4)))
    else:
        table = Table(show_edge=False, show_header=header)
        for number, column in enumerate(columns):
            # fold breaks long words, which would be cut off otherwise.
            table.add_column(column, no_wrap=number < names, overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        out_console.print(table)
    out_console.print()
