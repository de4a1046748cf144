"""`fedattack report`."""

from collections.abc import Sequence
from typing import Annotated

import typer

from fedattack.base.errors import ConfigError, instead
from fedattack.cli.options import AsJson, Device, Everything, FailIf, Folder, Junit, Pdf, Quiet, Trust
from fedattack.cli.steps import Gates, Output, read_conditions, report_run, trust_knowledge


def report(
    folder: Folder,
    device: Device = "auto",
    fail_if: FailIf = None,
    junit: Junit = None,
    trust: Trust = False,
    pdf: Pdf = False,
    by: Annotated[
        str | None, typer.Option(help=("Name of the person who says what --file adds."), metavar="NAME")
    ] = None,
    filed: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            help=(
                "What a person adds to the page: role, scope, residual-risk, risk-owner, next-test or note; "
                "repeatable. Earlier entries stay."
            ),
            metavar="FIELD=TEXT",
        ),
    ] = None,
    why: Annotated[str, typer.Option(help="Why this is added or changed.", metavar="TEXT")] = "",
    everything: Everything = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare what attacks found with the truth; write report.html, findings.json, and CSV files in DIR/tables.

    fedattack imports code that the folder names only with --trust, unless this machine audited the app into the folder
    and nothing has changed since.

    Examples: `fedattack report runs/first --fail-if "sia.asr > 0.3"`; `fedattack report runs/first --pdf`;
    `fedattack report runs/first --by "A. Person" --file "residual-risk=low" --file next-test=2027-05`
    """
    from fedattack.record.folder import RunFolder
    from fedattack.runs.checks import check_conditions, check_device, scored_attacks

    conditions = read_conditions(fail_if)
    check_device(device)
    opened = RunFolder(folder)
    opened.check_ended()
    # An isolating server's findings may be there; only the record says so.
    check_conditions(conditions, scored_attacks(opened.parts), isolating=True)
    trusted = trust_knowledge(opened, trust)
    if filed:
        from fedattack.report.html import add_words

        # Words are written before the page that shows them.
        add_words(folder, by or "", read_words(filed, by), why)
    report_run(opened, device, Gates(conditions, junit), Output(as_json, everything, pdf), trusted)


def read_words(words: Sequence[str], by: str | None) -> list[tuple[str, str]]:
    """Read each ``FIELD=TEXT`` of what a person says.

    Raises
    ------
    ConfigError
        If a field is unknown, a text is empty or too long, or nobody says who speaks.
    """
    from fedattack.report.html import FIELDS, LONGEST

    said = []
    for word in words:
        field, _, text = word.partition("=")
        if field not in FIELDS:
            raise ConfigError(f"--file {word}: {instead(field, FIELDS)}")
        if not 0 < len(text.strip()) <= LONGEST:
            raise ConfigError(f"--file {field}=…: expected FIELD=TEXT of at most {LONGEST} characters, got {len(text)}")
        said.append((field, text.strip()))
    if not (by or "").strip():
        raise ConfigError("--file adds a statement of a person; say whose by --by NAME")
    return said
