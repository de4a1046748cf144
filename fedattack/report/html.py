"""The report as one self-contained HTML page."""

import time
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, with_config
from typing_extensions import TypedDict

from fedattack.audit.finding import Finding
from fedattack.base.errors import ReportError
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.files import write_atomically, write_sealed
from fedattack.base.untrusted import check_folder, read_sealed
from fedattack.record.folder import LEFT_OUT
from fedattack.report import figures
from fedattack.report.answer import answers_of, overview_of, summary_of
from fedattack.report.claim import render_claim
from fedattack.report.claim_words import CLAIM_PAGE, readable
from fedattack.report.drawing import Plot
from fedattack.report.glossary import GLOSSARY
from fedattack.report.lacking import list_failures
from fedattack.report.section import PageTable, section_of
from fedattack.report.template import template
from fedattack.report.validate import (
    read_claim,
    read_findings,
    read_run,
    validate_claim,
    validate_findings,
    validate_run,
)
from fedattack.report.words import interval_title, printable_all

PAGE = "report.html"
"""File of a report's page, in its run folder."""

FILED = "filed.json"
"""What people add to a report, which changes no number: who audited, how far, and which risk remains."""

FIELDS = {
    "role": "In which role",
    "scope": "How far the audit went",
    "residual-risk": "Risk that remains",
    "risk-owner": "Owner of that risk",
    "next-test": "Next test",
    "note": "Note",
}
"""What people can say, and how the page calls it."""

LONGEST = 2000
"""Letters of what a person says at most."""

_Text = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST)]


@with_config(ConfigDict(extra="forbid", strict=True))
class FiledWords(TypedDict):
    """Words of a person: when, who, about what, and why they were changed, where a reason was given."""

    time: _Text
    by: _Text
    field: _Text
    text: _Text
    why: Annotated[str, StringConstraints(max_length=LONGEST)]


@with_config(ConfigDict(extra="forbid", strict=True))
class _Filed(TypedDict):
    entries: Annotated[list[FiledWords], Field(max_length=10_000)]


_FILED: TypeAdapter[_Filed] = TypeAdapter(_Filed)

_OBSERVED = {
    "rounds": "rounds",
    "replies": "replies that arrived whole",
    "failed": "replies that reported a failure",
    "missing": "replies that never came",
    "late": "replies that came too late",
}


def read_filed(folder: Path) -> list[FiledWords]:
    """Read what people added to a report, the oldest first; nothing where nobody did.

    Raises
    ------
    ReportError
        If the file is damaged.
    """
    path = Path(folder) / FILED
    if not path.exists():
        return []
    return read_sealed(path, _FILED, ReportError, "put it back as it was, or delete it")["entries"]


def add_words(folder: Path, by: str, words: Sequence[tuple[str, str]], why: str = "") -> None:
    """Add what a person says of fields to what is there; earlier words stay.

    Raises
    ------
    ReportError
        If what is there is damaged, or the folder is none.
    """
    check_folder(Path(folder), ReportError, to_write=True)
    entries = read_filed(folder)
    # UTC, so that entries of several people stand in their order.
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for field, text in words:
        entries.append(FiledWords(time=now, by=by.strip(), field=field, text=text, why=why.strip()))
    write_sealed(Path(folder) / FILED, {"entries": entries})


def _list_standing(entries: Sequence[FiledWords]) -> list[FiledWords]:
    """Return what stands of each field, in the order of :data:`FIELDS`: the latest words, and of notes all."""
    standing = []
    for field in FIELDS:
        # The latest words of a field stand; notes add to each other.
        said = [entry for entry in entries if entry["field"] == field]
        standing += said if field == "note" else said[-1:]
    return standing


def write_report(folder: Path) -> Path:
    """Render ``findings.json`` and ``run.json`` of a run folder to its page; see :func:`write_page`.

    Raises
    ------
    ReportError
        If one of the two files is missing, is not JSON, or does not fit its schema.
    """
    return write_page(folder, read_findings(folder), read_run(folder))


def write_page(
    folder: Path,
    findings: Sequence[Finding],
    run: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
    unmade: MutableMapping[str, Failure] | None = None,
) -> Path:
    """Render findings and facts of the run to the ``report.html`` of a run folder, whose path is returned.

    The page replaces an older one only when it is complete. On ``files`` and ``unmade`` see :func:`render_html`. Where
    there is a ``claim.json``, it says what became of the privacy claim, and links ``claim.html``, which is written
    anew: another one may be in the folder.
    Its older print, ``report.pdf``, is deleted: it would show other findings.

    Raises
    ------
    ReportError
        If the findings, the facts, or a ``claim.json`` do not fit their schemas.
    """
    page = Path(folder) / PAGE
    claim, filed = None, list[FiledWords]()
    with failing_alone(unmade, "the privacy claim"):
        claim = read_claim(folder)
    with failing_alone(unmade, "what people added"):
        # Each part of a page may fail alone: the numbers are shown all the same.
        filed = read_filed(folder)
    if claim is not None:
        is_written = False
        with failing_alone(unmade, "the page of the privacy claim"):
            write_atomically(page.with_name(CLAIM_PAGE), render_claim(claim).encode())
            is_written = True
        if not is_written:
            # An older page may be of another claim.
            claim = None
            page.with_name(CLAIM_PAGE).unlink(missing_ok=True)
    content = render_html(findings, run, files, claim, filed, unmade).encode()
    # Before the new page: a kill between them must not leave an old PDF beside it.
    page.with_suffix(".pdf").unlink(missing_ok=True)
    write_atomically(page, content)
    return page


def render_html(
    findings: Sequence[Finding],
    run: Mapping[str, Any],
    files: Mapping[str, str] | None = None,
    claim: Mapping[str, Any] | None = None,
    filed: Sequence[FiledWords] = (),
    unmade: MutableMapping[str, Failure] | None = None,
) -> str:
    """Render findings and facts of the run to one HTML page that loads nothing from anywhere.

    The same input gives the same text. Findings are shown in their order; `run` is what ``run.schema.json`` describes.
    `files` are tables beside the page, by where they lie, with what each holds; see :mod:`fedattack.report.tables`.
    `claim` is what ``claim.schema.json`` describes. `filed` is what people added, the oldest first. `unmade` is told
    which parts of the page could not be made, and why; the page says so, and has all others. Where it is ``None``, the
    first one is raised.

    Raises
    ------
    ReportError
        If the input does not fit the schemas.
    """
    # Printed and validated before anything is drawn: names come from clients.
    findings = validate_findings(printable_all(list(map(Finding.to_dict, findings))))
    run = validate_run(printable_all(dict(run)))
    answers = answers_of(findings, run, unmade)
    answered = [answer.finding for answer in answers]
    if claim is not None:
        claim = readable(validate_claim(claim))
    overview = overview_of(answers, run, claim)
    tables, details, pictures = _tables(findings, unmade), _of_findings(findings, unmade), _of_run(run, unmade)
    left_out = [*run.get(LEFT_OUT, ()), *list_failures(unmade or {})]
    counts = run.get("observed", {})
    observed = {_OBSERVED.get(key, key): count for key, count in counts.items() if key != "in_plaintext"}
    return template("template.html.j2").render(
        run=run,
        answers=answers,
        overview=overview,
        summary=summary_of(overview, run),
        several=len(answers) > 1,
        others=[finding for finding in findings if finding not in answered],
        own_setting=lambda finding: _departures(finding.setting, run["setting"]),
        interval_title=interval_title(findings),
        findings_of_one_run=all(len(finding.seeds) == 1 for finding in findings),
        details=details,
        narrow=[table for table in tables if not table.wide],
        wide=[table for table in tables if table.wide],
        files=printable_all(dict(files or {})),
        pictures=pictures,
        left_out=printable_all(left_out),
        observed=observed,
        glossary=GLOSSARY,
        filed=printable_all(list(filed)),
        standing=printable_all(_list_standing(filed)),
        fields=FIELDS,
        papers=list(filter(None, dict.fromkeys(map(attrgetter("paper"), findings)))),
    )


def _departures(setting: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a finding that the run's do not say already."""
    return {key: value for key, value in setting.items() if usual.get(key) != value}


def _of_findings(findings: Sequence[Finding], failed: MutableMapping[str, Failure] | None) -> list[Plot]:
    """Draw the findings, attack by attack."""
    by_attack: dict[str, list[Plot]] = {}
    for i, finding in enumerate(findings):
        # Figures that speak of several findings come before those of single ones.
        if finding.attack not in by_attack:
            by_attack[finding.attack] = _together(findings, finding.attack, failed)
        plots = by_attack[finding.attack]
        for name, draw in section_of(finding.attack).figures:
            if finding.series.get(name):
                with failing_alone(failed, f"a figure of {finding.name}, {name}"):
                    # The anchor is an id in the page: it must differ from figure to figure.
                    plot = draw(finding, f"finding-{i}-{draw.__name__.replace('_', '-')}")
                    if plot is not None:
                        plots.append(plot)
    return list(chain.from_iterable(by_attack.values()))


def _together(findings: Sequence[Finding], attack: str, failed: MutableMapping[str, Failure] | None) -> list[Plot]:
    """Draw what all findings of an attack show together."""
    plots = []
    for name, draw in section_of(attack).together:
        having = [finding for finding in findings if finding.attack == attack and finding.series.get(name)]
        if having:
            with failing_alone(failed, f"a figure of {attack}, {name}"):
                plots.append(draw(having, f"{attack}-{draw.__name__.replace('_', '-')}"))
    return plots


def _of_run(run: Mapping[str, Any], failed: MutableMapping[str, Failure] | None) -> list[Plot]:
    plots = []
    if "holdings" in run:
        with failing_alone(failed, "the figure of who holds what"):
            plots.append(figures.who_holds_what(run["holdings"], "holdings"))
    if "accuracy" in run:
        with failing_alone(failed, "the figure of the training"):
            plots.append(figures.training(run["accuracy"], run.get("overfitting"), "training"))
    return plots


def _tables(findings: Sequence[Finding], failed: MutableMapping[str, Failure] | None) -> list[PageTable]:
    tables = []
    for finding in findings:
        for name, make in section_of(finding.attack).tabulates:
            if finding.series.get(name):
                with failing_alone(failed, f"a table of {finding.name}, {name}"):
                    tables.append(make(finding))
    return list(filter(None, tables))
