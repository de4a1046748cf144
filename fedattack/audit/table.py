"""Tables: what a judge knows row by row. A finding holds some rows, the page shows these, and a file has all.

A threat states its tables once, and its judge gives their rows. From the statement follow the form in which
``findings.json`` may hold them, the table of the page, and the file for reviewers.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedattack.audit.kinds import Kind, describe, fields, list_of
from fedattack.audit.listing import Cell
from fedattack.audit.numbers import interval

Row = Mapping[str, Any]
"""A row: by the key of a column its value."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    key
        Its key in rows, and in the JSON of a finding. Empty for a column that the page makes of others.
    title
        Its title on the page, which does not show it if that is empty. ``{level}`` is the finding's level.
    kind
        What it holds. A column without a kind is in the file alone.
    write
        Writes it for the page from a whole row, where its own value is not enough.
    file
        Its title in the file: the key if that is empty. ``None`` where the file has no such column.
    about
        What it is, for readers of the JSON.
    """

    key: str
    title: str = ""
    kind: Kind | None = None
    write: Callable[[Row], str] | None = None
    file: str | None = ""
    about: str = ""

    def text(self, row: Row) -> str:
        """Write its cell for the page."""
        # A custom writer wins, as for cells that are made of several keys.
        if self.write is not None:
            return self.write(row)
        if self.kind is None:
            raise AssertionError("a column of the page has a kind, or writes itself")
        return self.kind.write(row[self.key])


@dataclass(frozen=True, eq=False)
class Table:
    """What a table is, without its rows. No two are alike: a series and a file may have one name and other rows.

    Attributes
    ----------
    name
        Name of the series in a finding, and of the file: ``clients`` of tokens is in ``tokens-clients.csv``.
    columns
        In the order of the page and of the file. The file of a table of single runs begins with the seed.
    title, caption
        What stands above it on the page, and what to know when reading it. ``{label}`` is the finding's label,
        ``{listed}`` how many rows the finding holds, and ``{shown}`` how many the page shows.
    file
        What the file holds, in one sentence. ``{judge}`` is the judge. Without it there is no file.
    most
        Rows that a finding holds, and that the page shows, at most.
    over_runs
        Whether its rows are about all runs together. Otherwise each run has its own, of which a finding holds those of
        the first run.
    least
        Rows that the series of a finding must have.
    closed
        Whether a row of a finding may have no further keys.
    about
        What its rows are, for readers of the JSON.
    """

    name: str
    columns: tuple[Column, ...]
    title: str = ""
    caption: str = ""
    file: str = ""
    most: int | None = None
    over_runs: bool = False
    least: int | None = 1
    closed: bool = True
    about: str = ""

    @property
    def form(self) -> Kind:
        """The kind of the series that a finding holds of it."""
        # Without a key a column is made of others, and is on the page alone.
        columns = [column for column in self.columns if column.key]
        kinds = {column.key: column.kind for column in columns if column.kind is not None}
        about = {column.key: column.about for column in columns if column.about}
        rows = list_of(fields(kinds, closed=self.closed, about=about), least=self.least)
        return describe(rows, self.about) if self.about else rows

    @property
    def page_columns(self) -> list[Column]:
        """The columns that the page shows."""
        return [column for column in self.columns if column.title]

    @property
    def file_columns(self) -> list[Column]:
        """The columns of the file, but for the seed."""
        return [column for column in self.columns if column.key and column.file is not None]

    @property
    def header(self) -> list[str]:
        """The titles of the file's columns."""
        titles = [column.file or column.key for column in self.file_columns]
        # One run's rows carry their seed; tables over runs name it themselves, where they do.
        return titles if self.over_runs else ["seed", *titles]

    def store(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return rows as a finding holds them: without the columns of the file alone."""
        left_out = {column.key for column in self.columns if column.kind is None}
        return [{key: value for key, value in row.items() if key not in left_out} for row in rows]

    def cells(self, row: Row) -> list[Cell]:
        """Return the cells of a row in the file, but for the seed."""
        return [row[column.key] for column in self.file_columns]

    def texts(self, rows: Iterable[Row]) -> list[list[str]]:
        """Write rows for the page."""
        return [[column.text(row) for column in self.page_columns] for row in rows]


@dataclass(frozen=True)
class RowsOf:
    """A registered function of a judge that gives the rows of a table; see :func:`rows_of`."""

    table: Table
    list_rows: Callable[..., Iterable[Row]]


def rows_of(table: Table) -> Callable[[Callable[..., Iterable[Row]]], RowsOf]:
    """Register a function of a judge as what gives the rows of a table.

    It is given the case of one run, or nothing where the table is over all runs. The base of all judges puts the rows
    into findings and files; see :meth:`fedattack.audit.judge.Judge.show`.
    """

    def register(list_rows: Callable[..., Iterable[Row]]) -> RowsOf:
        return RowsOf(table, list_rows)

    return register


def say_interval(row: Row) -> str:
    """Write the interval of a rate from a row's ``low`` to its ``high``."""
    return interval(row["low"], row["high"])


def in_file(*keys: str, **titles: str) -> tuple[Column, ...]:
    """Return columns of a file alone; `titles` are those that are not the key."""
    return tuple(Column(key, file=titles.get(key, "")) for key in keys)


def clients_table(result: str) -> Table:
    """State the file of what ``series["per_client"]`` says of each client; `result` names the column of values."""
    keys = ("seed", "client", "n", "value", "low", "high", "share", "null")
    columns = in_file(*keys, n="targets", value=result, share="share of all examples")
    return Table("clients", columns, file="one row for each client", over_runs=True)
