"""The page about a privacy claim: what is claimed, what is so, and why."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedattack.base.errors import ReportError
from fedattack.base.files import make_private, write_atomically, write_sealed
from fedattack.claims.finding import CANARIES, CONFIGURED, MEASURED, RECORDED, sure_of
from fedattack.report.claim_words import (
    CLAIM_PAGE,
    WORDS,
    canaries_of,
    clients_of,
    in_bounds,
    line_of,
    meaning_of,
    measured_of,
    numbers_of,
    readable,
    short_of,
    sums_of,
    tests_of,
    ways_of,
    why_of,
)
from fedattack.report.drawing import Plot
from fedattack.report.epsilons import Row, epsilon_axis
from fedattack.report.scores import canary_scores
from fedattack.report.template import template
from fedattack.report.validate import CLAIM, validate_claim

# The rows of the axis.
_AXIS = {CONFIGURED: "configured", RECORDED: "in the record", MEASURED: "measured", CANARIES: "canaries"}


def write_claim(folder: Path, sheet: Mapping[str, Any]) -> Path:
    """Write ``claim.json`` and ``claim.html`` to a folder, which is made; returns the path of the page.

    An older print, ``claim.pdf``, is deleted: it would show another answer. A link where one of these files goes is
    replaced, and not followed.

    Parameters
    ----------
    sheet
        What ``claim.schema.json`` describes; see :func:`fedattack.claims.sheet.sheet_of`.

    Raises
    ------
    ReportError
        If it does not fit its schema, or the folder cannot be written to.
    """
    folder = Path(folder)
    content = render_claim(sheet).encode()
    page = folder / CLAIM_PAGE
    try:
        make_private(folder)
        # A PDF of an earlier page would say something else.
        page.with_suffix(".pdf").unlink(missing_ok=True)
        write_sealed(folder / CLAIM, sheet)
        write_atomically(page, content)
    except OSError as cause:
        raise ReportError(f"{folder} cannot be written to ({cause.strerror}); give --out another folder") from None
    return page


def render_claim(sheet: Mapping[str, Any]) -> str:
    """Render a claim and what was found about it to one HTML page that loads nothing from anywhere.

    The same input gives the same text.

    Raises
    ------
    ReportError
        If the input does not fit ``claim.schema.json``.
    """
    sheet = readable(validate_claim(sheet))
    recorded, measured, canaries = sheet["recorded"], sheet["measured"], sheet["canaries"]
    return template("claim.html.j2").render(
        sheet=sheet,
        claim=sheet["claim"],
        facts=sheet["facts"],
        title=f"Is ε = {sheet['claim']['epsilon']:g} true?",
        short=short_of(sheet),
        ways=ways_of(sheet["findings"]),
        numbers=numbers_of(sheet),
        meaning=meaning_of(sheet),
        why=why_of(sheet),
        sure=sure_of({finding["name"]: finding["verdict"] for finding in sheet["findings"]}),
        axis=axis_of(sheet),
        lines=list(map(line_of, sheet["findings"])),
        recorded=recorded,
        # `recorded` is None without a record: the template then leaves the part out.
        clients=recorded and clients_of(sheet),
        tests=recorded and tests_of(recorded),
        sums=recorded and sums_of(recorded),
        measured=measured and measured_of(measured),
        canaries=canaries and canaries_of(canaries),
        notes_of_canaries=canaries["notes"] if canaries else [],
        scores=canaries and canary_scores(canaries, "canary-scores"),
        words=WORDS,
    )


def axis_of(sheet: Mapping[str, Any]) -> Plot:
    """Draw the claim, and all that was found beside it."""
    by_name = {finding["name"]: finding for finding in sheet["findings"]}
    rows = [_make_row(sheet, label, by_name.get(name)) for name, label in _AXIS.items()]
    return epsilon_axis(sheet["claim"]["epsilon"], rows, sheet["scope"], "epsilons")


def _make_row(sheet: Mapping[str, Any], label: str, finding: Mapping[str, Any] | None) -> Row:
    if finding is None:
        return Row(label, "not checked")
    bounds = finding[finding["scope"]]
    if bounds is None:
        return Row(label, "unknown")
    # From 0 to infinity is no bound at all.
    if not bounds["low"] and math.isinf(bounds["high"]):
        return Row(label, "nothing shown")
    canaries = sheet["canaries"] if finding["name"] == CANARIES else None
    said = in_bounds(bounds)
    if finding.get("rounds"):
        said += f" of {finding['rounds']} rounds"
    return Row(label, said, bounds["low"], bounds["high"], canaries["estimate"] if canaries else None)
