"""The report as one self-contained HTML page."""

import shlex
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from fedattack.audit.finding import Finding, p_in_words
from fedattack.base.failures import Failure, failing_alone
from fedattack.base.files import write_atomically
from fedattack.record.folder import LEFT_OUT
from fedattack.report import figures
from fedattack.report.answer import answers_of, overview_of, summary_of
from fedattack.report.claim_words import CLAIM_PAGE, readable
from fedattack.report.drawing import Plot
from fedattack.report.filed import FIELDS, FiledWords, latest_words, read_filed
from fedattack.report.glossary import GLOSSARY
from fedattack.report.lacking import list_failures
from fedattack.report.section import PageTable, section_of
from fedattack.report.sent import reached_kind, sent_kind
from fedattack.report.validate import (
    read_claim,
    read_findings,
    read_run,
    validate_claim,
    validate_findings,
    validate_run,
)
from fedattack.report.words import (
    NOTHING,
    end_sentence,
    interval,
    interval_title,
    level,
    printable_all,
    shown,
    verdict_in_words,
    with_interval,
    write_spread,
)

PAGE = "report.html"
"""File of a report's page, in its run folder."""

_OBSERVED = {
    "rounds": "rounds",
    "replies": "replies that arrived whole",
    "failed": "replies that reported a failure",
    "missing": "replies that never came",
    "late": "replies that came too late",
}


def write_report(
    folder: Path, files: Mapping[str, str] | None = None, unmade: MutableMapping[str, Failure] | None = None
) -> Path:
    """Render ``findings.json`` and ``run.json`` of a run folder to its ``report.html``, whose path is returned.

    The page replaces an older one only when it is complete. On ``files`` and ``unmade`` see :func:`render_html`. Where
    there is a ``claim.json``, it says what became of the privacy claim, and links ``claim.html``, which is written
    anew: another one may be in the folder.
    Its older print, ``report.pdf``, is deleted: it would show other findings.

    Raises
    ------
    ReportError
        If one of the two files is missing, or one of the three is not JSON, or does not fit its schema.
    """
    page = Path(folder) / PAGE
    claim, filed = None, list[FiledWords]()
    with failing_alone(unmade, "the privacy claim"):
        claim = read_claim(folder)
    with failing_alone(unmade, "what people added"):
        filed = read_filed(folder)
    if claim is not None:
        from fedattack.report.claim import render_claim

        is_written = False
        with failing_alone(unmade, "the page of the privacy claim"):
            write_atomically(page.with_name(CLAIM_PAGE), render_claim(claim).encode())
            is_written = True
        if not is_written:
            # An older page may be of another claim.
            claim = None
            page.with_name(CLAIM_PAGE).unlink(missing_ok=True)
    content = render_html(read_findings(folder), read_run(folder), files, claim, filed, unmade).encode()
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
        standing=printable_all(latest_words(filed)),
        fields=FIELDS,
        papers=list(filter(None, dict.fromkeys(map(attrgetter("paper"), findings)))),
    )


def _departures(setting: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a finding that the run's do not say already."""
    return {key: value for key, value in setting.items() if usual.get(key) != value}


def template(name: str) -> Template:
    """Load a page's template, which escapes all that it is given and fails on what it was not given."""
    environment = Environment(
        loader=PackageLoader("fedattack.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "level": level,
        "stopped": end_sentence,
        "words": _words,
        "scalar": scalar,
        "spread": write_spread,
        "chance_of": p_in_words,
        "verdict": verdict_in_words,
        "options": options_of,
        "command": as_command,
        "sent_kind": sent_kind,
        "reached_kind": reached_kind,
    }
    environment.globals |= {"interval": interval, "with_interval": with_interval}
    return environment.get_template(name)


def _of_findings(findings: Sequence[Finding], failed: MutableMapping[str, Failure] | None) -> list[Plot]:
    """Draw the findings, attack by attack."""
    by_attack: dict[str, list[Plot]] = {}
    for i, finding in enumerate(findings):
        if finding.attack not in by_attack:
            by_attack[finding.attack] = _together(findings, finding.attack, failed)
        plots = by_attack[finding.attack]
        for name, draw in section_of(finding.attack).figures:
            if finding.series.get(name):
                with failing_alone(failed, f"a figure of {finding.name}, {name}"):
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


def _words(key: str) -> str:
    return key.replace("-", " ").replace("_", " ")


def options_of(command: str) -> list[str]:
    """Split a command before each option, so that no line breaks within one."""
    first, *rest = command.split(" --")
    return [first, *(f"--{option}" for option in rest)]


def as_command(text: str) -> str:
    """Quote anew what a folder says was run: people copy commands, and whoever wrote it may have meant harm.

    Words stay as they are. What a shell would do beyond passing them on, such as a second command, becomes a word. What
    is no command of fedattack becomes one word as a whole.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if words[:1] == ["fedattack"]:
        return shlex.join(words)
    return shlex.quote(text)


def scalar(value: Any) -> str:
    """Scalar, or list of them, as people write it."""
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return ", ".join(map(scalar, value)) or NOTHING
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
