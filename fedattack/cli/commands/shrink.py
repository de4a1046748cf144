"""`fedattack shrink`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from fedattack.cli.console import tell
from fedattack.cli.options import AsJson, Clients, Every, choose_kept


def shrink(
    record: Annotated[Path, typer.Argument(help="A record, or a run folder with several.", metavar="RECORD")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the copy.", metavar="DIR")],
    every: Every = 1,
    clients: Clients = "1",
    as_json: AsJson = False,
) -> None:
    """Copy a record that is too large to keep, with fewer rounds or clients; the original stays unchanged.

    The copy says what it keeps. Attacks that need more refuse it; `fedattack check` says which. The copy is signed if
    FEDATTACK_SIGNING_KEY names a key.

    Example: `fedattack shrink runs/first/record --out runs/small/record --every 10`
    """
    import os

    from fedattack.record import Record, check_record, records_in, shrink_record
    from fedattack.record.signature import SIGNING_KEY
    from fedattack.record.size import in_bytes

    keep = choose_kept(every, clients)
    before = after = rounds = 0
    for name, path in records_in(record).items():
        whole = Record(path, thinned=True)
        # The record's own seed chooses the clients, so that shrinking twice keeps the same.
        made = shrink_record(whole, out / name, replace(keep, seed=whole.seed or 0), key=os.environ.get(SIGNING_KEY))
        rounds += len(made)
        before += sum(line.file.size for line in whole.lines)
        after += check_record(made.path).size
    line = f"{rounds} rounds in [bold]{escape(str(out))}[/bold]: {in_bytes(after)} of {in_bytes(before)}."
    tell({"record": str(out), "rounds": rounds, "bytes": after, "of": before}, line, as_json)
