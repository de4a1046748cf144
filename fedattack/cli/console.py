"""What the command shows: tables, bars, warnings, and one line for whoever reads JSON."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from fedattack.errors import short

if TYPE_CHECKING:
    from fedattack.runs.watch import Watch

out_console = Console()

err_console = Console(stderr=True)


@contextmanager
def watch_bars() -> Iterator["Watch"]:
    """Show bars while there is a terminal; warnings and notes always."""
    from fedattack.runs.watch import Watch

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err_console,
        transient=True,
        disable=not err_console.is_terminal,
    ) as bar:
        tasks: dict[str, TaskID] = {}

        def step(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield Watch(step, say)


def say(kind: str, text: str) -> None:
    """Show a warning, or another kind of line, of at most 300 characters."""
    err_console.print(f"[yellow]{kind}:[/yellow] {escape(short(text))}", soft_wrap=True)


def tell(value: dict[str, Any], text: str, as_json: bool) -> None:
    """Say that a command is done: ``value`` to whoever reads JSON, else ``text``."""
    if as_json:
        print(json.dumps(value))
    else:
        out_console.print(text, soft_wrap=True)


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Show a table of texts."""
    table = Table(title=title, title_justify="left", show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    out_console.print(table)
    out_console.print()
