"""Reads back what judges list, as the tables' readers do."""

import csv
from collections.abc import Sequence
from pathlib import Path

from fedattack.audit.listing import Listing
from fedattack.report.tables import write_tables


def tables_of(listings: Sequence[Listing], folder: Path) -> dict[str, list[dict[str, str]]]:
    """Write the listings of one attack to a folder, and read their rows, by the listing's name."""
    tables = {}
    for listing, path in zip(listings, write_tables(folder, listings), strict=True):
        with (folder / path).open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        tables[listing.name] = [dict(zip(header, row, strict=True)) for row in rows]
    return tables
