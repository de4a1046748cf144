"""`fedattack check`."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedattack.base.errors import RecordError, short
from fedattack.base.extra import what_to_install
from fedattack.base.reasons import find_reason
from fedattack.cli.console import out_console
from fedattack.cli.options import AsJson
from fedattack.cli.steps import BAD_INPUT

if TYPE_CHECKING:
    from fedattack.record.check import CheckReport
    from fedattack.record.folder import RunFolder


def check(
    folder: Annotated[Path, typer.Argument(help="A record, or a run folder.", metavar="DIR")],
    signer: Annotated[
        str | None,
        typer.Option(help="Who must have signed the record: a public key's file, or its fingerprint SHA256:…"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a record is whole, who signed it, and what the folder asks to import; exit with 2 if it is not whole.

    Examples: `fedattack check runs/first`; `fedattack check audit --signer recorder.pem.pub`
    """
    from fedattack.record.check import CheckReport, check_record
    from fedattack.record.folder import RunFolder, explain_lack
    from fedattack.record.format import MANIFEST
    from fedattack.record.signature import read_signer
    from fedattack.runs.asked import asked_of_knowledge, asked_of_study
    from fedattack.runs.code import list_own_code

    wanted = None
    if signer is not None:
        wanted = read_signer(signer)
    paths = [folder]
    lost: dict[Path, str] = {}
    strangers: dict[Path, list[str]] = {}
    asks: list[str] = []
    known: list[str] = []
    unfinished = ""
    if folder.is_dir() and not (folder / "record").exists() and not (folder / MANIFEST).exists():
        raise RecordError(explain_lack(folder))
    if (folder / "record").exists():
        opened = RunFolder(folder)
        paths, lost = [part.record for part in opened.parts_there], opened.lost
        strangers, unfinished = _list_strangers(opened), opened.unfinished
        # What --trust would follow is listed, so that it can be looked at first.
        own = {each.value for each in list_own_code(opened)}
        for request in (*asked_of_knowledge(opened), *asked_of_study(opened)):
            if request.value in own:
                known.append(request.describe())
            else:
                asks.append(request.describe())
    checks = {}
    for path in paths:
        checks[str(path)] = record_check = check_record(path)
        if wanted is not None and record_check.signer != wanted:
            signed = record_check.signer or "nobody"
            record_check.problems.append(f"it is signed by {signed}, not by {wanted}")
        record_check.problems.extend(strangers.get(path, ()))
        record_check.remarks.extend(_refusals(path))
    if unfinished:
        next(iter(checks.values())).remarks.append(unfinished)
    for path, line in lost.items():
        checks[str(path)] = CheckReport(problems=[line])
    if as_json:
        _print_checks(checks, [*known, *asks])
    else:
        _show_checks(checks, asks, known)
    # Exit code 2 also for a record that is only unfinished.
    if not all(record_check.whole for record_check in checks.values()):
        raise typer.Exit(BAD_INPUT)


def _list_strangers(folder: "RunFolder") -> dict[Path, list[str]]:
    """Say by record what lies in the wrong place: the record itself, or what is of another one beside it."""
    from fedattack.record import Record
    from fedattack.record.marks import list_strangers

    found = {path: [line] for path, line in folder.misplaced.items()}
    for part in folder.parts_there:
        # A damaged record is told of by itself, and its rounds were looked at.
        with suppress(RecordError):
            record = Record(part.record, thinned=True)
            found.setdefault(part.record, []).extend(list_strangers(part, record))
    return found


def _refusals(path: Path) -> list[str]:
    """Say which attacks refuse a thinned record; nothing where attacks are not installed."""
    from fedattack.record import Record

    try:
        record = Record(path, thinned=True)
    except RecordError:
        # Nothing attacks a damaged one as it is.
        return []
    if not record.keep.kinds or what_to_install("check"):
        return []
    from fedattack.attacks.knowledge import Knowledge
    from fedattack.attacks.needs import KEPT
    from fedattack.attacks.registry import declarations

    told: dict[str, list[str]] = {}
    for name, attack in declarations().items():
        if record.view in attack.needs.views and record.protocol in attack.needs.protocols:
            # Attacks that lack the same stand in one line.
            told.setdefault(find_reason(attack.needs.find_lacks(record, Knowledge()), KEPT), []).append(name)
    able = told.pop("", [])
    lines = [f"attacks that refuse it ({lack}): {', '.join(names)}" for lack, names in told.items()]
    if able:
        lines.append(f"attacks that take it: {', '.join(able)}")
    return lines


def _print_checks(checks: Mapping[str, "CheckReport"], asks: Sequence[str]) -> None:
    value = {}
    for path, record_check in checks.items():
        value[path] = vars(record_check) | {"whole": record_check.whole, "asks": asks}
    print(json.dumps(value, indent=2))


def _show_checks(checks: Mapping[str, "CheckReport"], asks: Sequence[str], known: Sequence[str]) -> None:
    for path, record_check in checks.items():
        state = "[red]not whole[/red]"
        if record_check.whole:
            state = "[green]whole[/green]"
        said = f"{state}, {record_check.rounds} readable rounds, {record_check.size / 1e6:.1f} MB"
        if record_check.signer:
            said += f", signed by {record_check.signer}"
        out_console.print(f"{escape(path)}: {said}")
        for line in (*record_check.problems, *record_check.notes, *record_check.remarks):
            out_console.print(f"  - {escape(short(line))}", soft_wrap=True)
    for line in known:
        out_console.print(f"  - it {escape(line)}, as in the audit that made it on this machine", soft_wrap=True)
    for line in asks:
        out_console.print(f"  - with --trust, it {escape(line)}", soft_wrap=True)
