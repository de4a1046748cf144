"""The page about a privacy claim: what is claimed, what is so, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedattack.audit.finding import listed
from fedattack.claims.accounting import Epsilon
from fedattack.claims.figures import bounds_in_figures, in_figures
from fedattack.claims.finding import CONSISTENT, CONTRADICTED
from fedattack.files import write_atomically, write_sealed
from fedattack.report.drawing import Plot
from fedattack.report.epsilons import Row, epsilon_axis, raised
from fedattack.report.html import template
from fedattack.report.scores import canary_scores
from fedattack.report.section import Table
from fedattack.report.validate import CLAIM, validate_claim
from fedattack.report.words import NOTHING, compact, counted, printable_all

CLAIM_PAGE = "claim.html"

CONFIGURED, RECORDED, MISSING, MEASURED, CANARIES = (
    "claim.epsilon-configured",
    "claim.epsilon-recorded",
    "claim.noise-missing",
    "claim.epsilon-measured",
    "claim.epsilon-canaries",
)
_LABELS = {
    CONFIGURED: "Configured",
    RECORDED: "Seen in the record",
    MISSING: "Clients without the noise",
    MEASURED: "Measured",
    CANARIES: "Canaries",
}
# As a sentence says by what something was found.
_BY = {
    CONFIGURED: "by arithmetic",
    RECORDED: "by the record",
    MISSING: "by single clients",
    MEASURED: "by a test of the mechanism",
    CANARIES: "by canaries",
}
# The rows of the axis, and what stands there if it was not done.
_AXIS = {CONFIGURED: "configured", RECORDED: "in the record", MEASURED: "measured", CANARIES: "canaries"}
_NOT_DONE = "not checked"

# Keys whose values are numbers that may be infinite, which JSON has no word for.
_AMOUNTS = frozenset(
    "low high value noise_at_most norm_most noise_at_least bound_message bound_run estimate accountant counting ceiling mu "
    "sigma".split()
)
_MOST_CLIENTS = 100
_FEW_NAMES = 5

WORDS = {
    "ε (epsilon)": "How well anybody can tell two data sets apart that differ in one unit. At ε = 1 one of them is at most "
    "2.7 times as likely as the other, at ε = 10 it is 22,000 times. Small is private.",
    "δ (delta)": "The probability that this may fail.",
    "Unit": "Whose data are protected: one client, or one example (a row of data).",
    "Claimed": "What the team says.",
    "Configured": "What follows from clipping norm, noise, sampling and rounds, by arithmetic.",
    "Seen in the record": "What the updates that the server received allow for: noise cannot be larger than they are. A "
    "lower bound on ε.",
    "Measured": "The mechanism was given two updates thousands of times. How often they were told apart gives a lower "
    "bound on ε.",
    "Canaries": "Extra clients, or extra examples, by which the run itself is measured. A lower bound on ε.",
    "Contradicted": "ε is higher than claimed: by arithmetic, or by a test that errs in at most one of twenty cases.",
    "Consistent": "It is not, as far as was checked. A lower bound never proves a claim.",
    "Cannot be checked": "The bounds do not decide it, or a number is missing.",
    "C, σ": "The clipping norm: no update, or no gradient of an example, is longer. The deviation of the noise.",
}
"""What the page's words mean."""


@dataclass(frozen=True)
class Line:
    """A finding as a row of a table: its name, ε in both scopes, verdict, and what stands below."""

    name: str
    label: str
    message: str
    run: str
    verdict: str
    reason: str
    clients: str
    notes: Sequence[str]
    assumes: Sequence[str]


@dataclass(frozen=True)
class Big:
    """A number that stands in large letters, and what it is."""

    value: str
    what: str


def write_claim(folder: Path, sheet: Mapping[str, Any]) -> Path:
    """Write ``claim.json`` and ``claim.html`` to a folder, which is made; returns the path of the page.

    Parameters
    ----------
    sheet
        What ``claim.schema.json`` describes; see :func:`fedattack.claims.sheet.sheet_of`.

    Raises
    ------
    ReportError
        If it does not fit its schema.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / CLAIM_PAGE
    content = render_claim(sheet).encode()
    page.with_suffix(".pdf").unlink(missing_ok=True)
    write_sealed(folder / CLAIM, sheet)
    write_atomically(page, content)
    return page


def render_claim(sheet: Mapping[str, Any]) -> str:
    """Render a claim and what was found about it to one HTML page that loads nothing from anywhere.

    The same input gives the same text.

    Raises
    ------
    ReportError
        If the input does not fit ``claim.schema.json``.
    """
    sheet = _readable(validate_claim(printable_all(_plain(sheet))))
    claim, findings, recorded = sheet["claim"], sheet["findings"], sheet.get("recorded")
    canaries = sheet.get("canaries")
    return template("claim.html.j2").render(
        claim=claim,
        stated=sheet["stated"],
        facts=sheet["facts"],
        verdict=sheet["verdict"],
        title=f"Is ε = {claim['epsilon']:g} true?",
        scope=sheet["scope"],
        short=short_of(sheet),
        ways=_ways(findings),
        numbers=_numbers(sheet),
        sentence=sheet["sentence"],
        why=_why(sheet),
        axis=axis_of(sheet),
        lines=list(map(_line, findings)),
        notes=sheet["notes"],
        steps=sheet["next"],
        unchecked=sheet["open"],
        recorded=recorded,
        clients=_clients(recorded, sheet["facts"]["sigma"], claim) if recorded else None,
        tests=_tests(recorded) if recorded else None,
        server=_server(recorded),
        measured=_measured(sheet["measured"]),
        canaries=_canaries(canaries),
        told=canary_scores(canaries, "canary-scores") if canaries else None,
        words=WORDS,
    )


def _plain(value: Any) -> Any:
    """Copy what may hold tuples, as parsed JSON would be."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _readable(value: Any, key: str = "") -> Any:
    """Copy parsed JSON: infinity becomes a number where one is expected, and powers in texts are raised."""
    if isinstance(value, str):
        return math.inf if value == "infinity" and key in _AMOUNTS else raised(value)
    if isinstance(value, dict):
        return {name: _readable(part, name) for name, part in value.items()}
    return [_readable(part, key) for part in value] if isinstance(value, list) else value


def short_of(sheet: Mapping[str, Any]) -> str:
    """Answer in a few words whether the claim is true, and say the number that decides it."""
    findings, scope = sheet["findings"], sheet["scope"]
    wrong = _wrong(findings)
    if wrong and wrong[0]["name"] == MISSING:
        return f"No: the claimed noise is not in the updates of {_names(wrong[0])}."
    if wrong and math.isinf(wrong[0]["value"] or 0):
        return f"No: nothing bounds the ε of {scope}."
    if wrong:
        return f"No: ε of {scope} is {_found(wrong[0])}, and {sheet['claim']['epsilon']:g} is claimed."
    if sheet["verdict"] == CONSISTENT:
        return f"Nothing speaks against it: ε of {scope} is {_figures(findings[0]['value'])} at most, by arithmetic."
    return f"It cannot be said: {findings[0]['reason']}."


def _wrong(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [finding for finding in findings if finding["verdict"] == CONTRADICTED]


def _found(finding: Mapping[str, Any]) -> str:
    """Write the least ε that a finding leaves."""
    figures = _bounds(finding[finding["scope"]])
    return f"{figures.replace('> ', 'above ').replace('≥ ', '')} {_BY[finding['name']]}"


def _names(finding: Mapping[str, Any]) -> str:
    names = finding.get("clients", [])
    if len(names) > _FEW_NAMES:
        return f"{len(names)} clients"
    return listed([f"client {name}" for name in names], "and") if names else "some clients"


def _ways(findings: Sequence[Mapping[str, Any]]) -> str:
    """Count the ways in which a claim was checked, and those in which it fails."""
    by = [_BY.get(finding["name"], finding["name"]) for finding in findings]
    wrong = [_BY.get(finding["name"], finding["name"]) for finding in _wrong(findings)]
    if wrong:
        return f"Contradicted in {len(wrong)} of {counted(len(by), 'check')}: {listed(wrong, 'and')}."
    return f"{counted(len(by), 'check')}: {listed(by, 'and')}."


def _numbers(sheet: Mapping[str, Any]) -> list[Big]:
    """Choose the two numbers that stand in large letters."""
    claim, findings = sheet["claim"], sheet["findings"]
    numbers = [Big(f"{claim['epsilon']:g}", "claimed")]
    deciding = [finding for finding in _wrong(findings) if finding["name"] != MISSING] or findings[:1]
    bounds = deciding[0][deciding[0]["scope"]]
    if bounds is not None:
        numbers.append(Big(_bounds(bounds), _BY[deciding[0]["name"]]))
    return numbers


def _why(sheet: Mapping[str, Any]) -> list[str]:
    """Give what explains a contradiction, or what there is to know about the claim."""
    why = []
    for finding in _wrong(sheet["findings"]):
        if finding["name"] in (CONFIGURED, MISSING):
            why += finding["notes"]
    return why or [finding["reason"] for finding in sheet["findings"] if finding["verdict"] == sheet["verdict"]]


def axis_of(sheet: Mapping[str, Any]) -> Plot:
    """Draw the numbers side by side."""
    claim = sheet["claim"]
    found = {finding["name"]: finding for finding in sheet["findings"]}
    rows = []
    for name, label in _AXIS.items():
        bounds = found[name][claim["epsilon-of"]] if name in found else None
        if name not in found:
            rows.append(Row(label, _NOT_DONE))
        elif bounds is None:
            rows.append(Row(label, "unknown"))
        else:
            said = _bounds(bounds) if bounds["high"] < math.inf or bounds["low"] else "nothing shown"
            estimate = (sheet.get("canaries") or {}).get("estimate") if name == CANARIES else None
            rows.append(Row(label, said, bounds["low"], bounds["high"], estimate))
    return epsilon_axis(claim["epsilon"], rows, sheet["scope"], "epsilons")


def _line(finding: Mapping[str, Any]) -> Line:
    name = finding["name"]
    message, run = _bounds(finding["message"]), _bounds(finding["run"])
    if name == MISSING:
        message = run = NOTHING
    return Line(
        name,
        _LABELS.get(name, name),
        message,
        run,
        finding["verdict"],
        finding["reason"],
        ", ".join(finding.get("clients", [])),
        finding["notes"],
        finding["assumes"],
    )


def _figures(value: float | None) -> str:
    return NOTHING if value is None else raised(in_figures(value))


def _bounds(bounds: Mapping[str, float] | None) -> str:
    return NOTHING if bounds is None else raised(bounds_in_figures(Epsilon(bounds["low"], bounds["high"])))


def _clients(recorded: Mapping[str, Any], sigma: float | None, claim: Mapping[str, Any]) -> Table | None:
    """List the clients, those with faults first."""
    clients = sorted(recorded["clients"], key=lambda client: not client["faults"])
    if not clients:
        return None
    # The server's noise is in no client's update.
    claimed = None if claim["mechanism"].startswith("central") else sigma
    rows = []
    for client in clients[:_MOST_CLIENTS]:
        noise = client["noise_at_most"]
        share = f"{noise / claimed:.0%}" if noise is not None and claimed else NOTHING
        rows.append(
            [
                client["node"],
                f"{client['updates']:,}",
                _size(noise),
                share,
                client["where"] or NOTHING,
                _size(client["norm_most"]),
                "; ".join(client["faults"]) or "none found",
            ]
        )
    caption = "Noise at most: no more noise than this can be in the client's updates, where it is least."
    if claim.get("clip"):
        caption += f" Updates are claimed to be clipped to {claim['clip']:g}; noise makes them longer."
    left_out = len(clients) - len(rows)
    if left_out:
        caption += f" {counted(left_out, 'client')} more in claim.json."
    header = ["Client", "Updates", "Noise at most", "Of what is claimed", "In", "Largest norm", "Faults"]
    return Table("Client by client", caption, header, rows)


def _size(value: float | None) -> str:
    return NOTHING if value is None else compact(value)


def _tests(recorded: Mapping[str, Any]) -> Table | None:
    rows = []
    for test in recorded["tests"]:
        rate = NOTHING if test["error_rate"] is None else f"{100 * test['error_rate']:.2g}%"
        rows.append([test["name"], test["what"], rate, f"{test['checked']:,}", f"{test['failed']:,}"])
    header = ["Test", "What it looks at", "False alarms at most", "Checked", "Failed"]
    caption = "False alarms: how often a run that keeps its claim fails the test by accident. All together: at most 5%."
    return Table("What was tested", caption, header, rows) if rows else None


def _server(recorded: Mapping[str, Any] | None) -> str:
    """Say what noise the server really added."""
    server = recorded and recorded["server"]
    if not server:
        return ""
    parts = []
    if server["noise_at_most"] is not None:
        parts.append(f"at most {compact(server['noise_at_most'])}")
    if server["noise_at_least"] is not None:
        parts.append(f"at least {compact(server['noise_at_least'])}")
    said = f"The noise that the server added: a deviation of {listed(parts, 'and')}." if parts else ""
    rounds = [_size(value) for value in server["rounds"]]
    return f"{said} Round by round: {', '.join(rounds)}.".strip() if rounds else said


def _measured(measured: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if measured is None:
        return []
    facts = [
        ("draws of the mechanism", f"{measured['draws']:,}"),
        ("told apart", f"{measured['told']:,} of {measured['tries']:,}"),
        ("by", str(measured["method"])),
        ("by counting alone", f"≥ {_figures(measured['counting'])}"),
        ("most that counting can show", _figures(measured["ceiling"])),
        ("updates that were played", str(measured["pair"])),
        ("told apart by", str(measured["score"])),
    ]
    if measured["mu"] is not None:
        facts.append(("deviations apart, at least", compact(measured["mu"])))
    return facts


def _canaries(canaries: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if canaries is None:
        return []
    kind = {"client": "extra clients", "record": "extra examples"}[canaries["kind"]]
    facts = [
        (kind, f"{canaries['count']:,}"),
        (f"ε of the run at least, at {canaries['confidence']:.0%}", _figures(canaries["bound_run"])),
        ("ε of a message at least", _figures(canaries["bound_message"])),
        ("point estimate", _figures(canaries["estimate"])),
        ("what the accountant allows", _figures(canaries["accountant"])),
    ]
    for name, value in (canaries.get("cost") or {}).items():
        facts.append((f"cost: {name.replace('_', ' ')}", compact(value) if isinstance(value, float) else str(value)))
    return facts
