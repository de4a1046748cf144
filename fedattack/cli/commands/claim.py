"""`fedattack claim`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from fedattack.base.errors import ConfigError, in_command
from fedattack.cli.console import out_console, show_page, show_table
from fedattack.cli.options import AsJson, FailIfClaim, Trust
from fedattack.cli.steps import command_line, gate_findings, print_page, read_conditions, trust_knowledge

if TYPE_CHECKING:
    from fedattack.claims.check import ClaimAnswer
    from fedattack.claims.measured import Trial
    from fedattack.record.folder import RunFolder


def claim(
    folder: Annotated[
        Path | None, typer.Argument(help="A record, or a run folder with one or several records.", metavar="DIR")
    ] = None,
    declared: Annotated[Path | None, typer.Option("--claim", help="The claim: a claim.toml.", metavar="FILE")] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="The mechanism to test, which is imported and run.", metavar="MODULE:FUNCTION")
    ] = None,
    draws: Annotated[
        int, typer.Option(help=("Number of draws of the mechanism, for both updates together."), min=1)
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of these draws.", min=0)] = 0,
    clipped: Annotated[
        bool, typer.Option("--clipped", help=("The mechanism is given updates that are clipped already."))
    ] = False,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="The mechanism itself draws whether the update takes part.")
    ] = False,
    canaries: Annotated[
        Path | None,
        typer.Option(
            help=("Who the canaries of DIR's run were; by default, the run folder's truth says so."),
            metavar="CANARIES.TOML",
        ),
    ] = None,
    trust: Trust = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help=("Folder for claim.html and claim.json; by default DIR, if it is a run folder."),
            metavar="FOLDER",
        ),
    ] = None,
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also print claim.html to claim.pdf, if a browser is installed.")
    ] = False,
    fail_if: FailIfClaim = None,
    as_json: AsJson = False,
) -> None:
    """Check a privacy claim: compare a declared ε with arithmetic, a record, a test of the mechanism, and canaries.

    Examples: `fedattack claim runs/first --claim claim.toml`;
    `fedattack claim --claim claim.toml --mechanism mypackage.privacy:noisy`;
    `fedattack claim --claim claim.toml --fail-if "claim.verdict == contradicted"`
    """
    from fedattack.claims.claim import read_claim

    run = _find_run(folder)
    # A run folder gets the page beside its own report.
    out = out or run
    if pdf and out is None:
        raise ConfigError("fedattack claim: --pdf prints the page that --out FOLDER writes; give --out as well")
    if declared is None and mechanism is None and folder is None:
        raise ConfigError(
            "fedattack claim: give --claim FILE, --mechanism module:function, or DIR, the folder of a run"
        )
    conditions = read_conditions(fail_if, of_claim=True)
    claim_read = None
    if declared is not None:
        claim_read = read_claim(declared)
    from fedattack.claims.check import check_claim, load_mechanism
    from fedattack.claims.measured import Trial
    from fedattack.cli.canaries import canaries_of
    from fedattack.record.folder import RunFolder

    tested = None
    if mechanism is not None:
        tested = load_mechanism(mechanism)
    trial = Trial(draws, seed, clipped, sampled)
    opened = None
    if run is not None:
        opened = RunFolder(run)
    told_apart = canaries_of(folder, canaries, lambda: trust_knowledge(opened, trust))
    answer = check_claim(
        claim_read,
        tested,
        trial,
        name=mechanism or "",
        record=folder,
        sends_models=opened is None or _sends_models(opened),
        canaries=told_apart,
    )
    with gate_findings(conditions, [*answer.findings, answer.whole]):
        # allow_nan=False: answers write infinity as a text; NaN would be a fault.
        if as_json:
            print(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
        else:
            _show_answer(answer)
        if out is not None:
            page = _keep_answer(answer, out, folder, declared, mechanism, trial)
            _show_kept(page, as_json, pdf=pdf)


def _find_run(folder: Path | None) -> Path | None:
    """Return a folder if it is that of a run, and no record."""
    if folder is not None and (folder / "record").is_dir():
        return folder
    return None


def _sends_models(folder: "RunFolder") -> bool:
    """Say whether clients reply models in a run, and not gradients or differences, as far as it is known."""
    from fedattack.attacks.knowledge_files import read_knowledge
    from fedattack.record.folder import KNOWLEDGE

    for part in folder.parts:
        if (part.knowledge / KNOWLEDGE).exists():
            sends = read_knowledge(part.knowledge).sends
            # Factors are noted where replies are differences.
            if sends is not None and sends.factors is not None:
                return False
    return True


def _keep_answer(
    answer: "ClaimAnswer", out: Path, folder: Path | None, declared: Path | None, mechanism: str | None, trial: "Trial"
) -> Path:
    """Write the page of an answer, and what it was made of."""
    from fedattack.claims.advice import Given
    from fedattack.claims.sheet import sheet_of
    from fedattack.report.claim import write_claim

    given = Given(str(folder or ""), str(declared or ""), mechanism or "")
    tried = None
    if mechanism:
        tried = trial
    return write_claim(out, sheet_of(answer, given, trial=tried, command=command_line()))


def _show_kept(page: Path, as_json: bool, *, pdf: bool) -> None:
    if not as_json:
        show_page("Report", page)
        if page.with_name("report.html").exists():
            line = f"`fedattack report {in_command(page.parent)}` puts this answer into the run's report"
            out_console.print(escape(line), soft_wrap=True)
    if pdf:
        print_page(page, as_json)


def _show_answer(answer: "ClaimAnswer") -> None:
    from fedattack.claims.words import answer_lines, answer_rows

    show_table("", ("", "ε of a message", "ε of the run", "verdict"), answer_rows(answer))
    for line in answer_lines(answer):
        out_console.print(escape(line), soft_wrap=True)
