"""Tables for reviewers: what was found client by client and target by target, as CSV files in ``tables``.

They tell the truth about clients, so that they are for their owner alone.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedattack.audit.listing import Cell, Listing
from fedattack.base.errors import ReportError
from fedattack.base.files import atomic_file, make_private
from fedattack.base.untrusted import check_folder
from fedattack.report.words import printable

TABLES = "tables"
# Files of a report, see Listing.file: of any attack, of a plugin too. Others in the folder are not ours.
_OURS = re.compile(r"[a-z0-9-]+-(clients|records|replies)\.csv")
# A spreadsheet takes a text that begins so for a formula; some take the wide forms, too.
_FORMULA = frozenset(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)


def write_tables(folder: Path, listings: Sequence[Listing]) -> dict[str, str]:
    """Write each listing to its file in ``tables``, and delete the files of an earlier report.

    A file is there as a whole or not at all.

    Returns
    -------
    dict
        By where a file lies in the folder, such as ``tables/sia-records.csv``, what it holds.

    Raises
    ------
    ReportError
        If ``tables`` is no folder, is a link, or cannot be written.
    """
    tables = Path(folder) / TABLES
    check_folder(Path(folder), ReportError)
    written = {}
    try:
        _delete_earlier(tables)
        for listing in listings:
            make_private(tables)
            _write(tables / listing.file, listing)
            written[f"{TABLES}/{listing.file}"] = listing.about
    except OSError as cause:
        raise ReportError(
            f"{cause.filename or tables} cannot be written ({cause.strerror}); {TABLES} must be a folder, and its disk "
            "must have room: move away what is in its place"
        ) from None
    return written


def _delete_earlier(tables: Path) -> None:
    """Delete files of a report, or links in their places; a link is not followed."""
    if not tables.is_dir():
        return
    for path in tables.glob("*.csv"):
        if _OURS.fullmatch(path.name) and (path.is_symlink() or path.is_file()):
            path.unlink()


def _write(path: Path, listing: Listing) -> None:
    with atomic_file(path) as file:
        # TextIOWrapper closes the file with itself; `detach` leaves that to `atomic_file`.
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        csv.writer(text).writerows(_lines(listing))
        text.flush()
        text.detach()


def _lines(listing: Listing) -> Iterator[Iterable[str]]:
    yield listing.header
    # Rows come one at a time: a table of all targets is never in memory.
    for row in listing.rows:
        yield map(cell, row)


def cell(value: Cell) -> str:
    """Write a cell: numbers as such, yes or no, and texts so that no spreadsheet computes them.

    Names come from clients. What begins like a formula gets an apostrophe before it, which makes it a text.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, int):
        return str(value)
    # One line a cell: a line break in a name would look like a new row to naive readers.
    text = " ".join(printable(value).split())
    if text[:1] in _FORMULA:
        # An apostrophe is what spreadsheets themselves put before a text.
        return f"'{text}"
    return text
