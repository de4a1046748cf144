"""What a page says about a privacy claim, in words and rows: it reads what ``claim.schema.json`` describes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedattack.audit.finding import list_words
from fedattack.claims.figures import bounds_in_figures, in_figures
from fedattack.claims.finding import (
    CANARIES,
    CONFIGURED,
    CONSISTENT,
    CONTRADICTED,
    MEASURED,
    MISSING,
    RECORDED,
    WORTH,
    run_of,
)
from fedattack.privacy import Epsilon
from fedattack.report.epsilons import raise_powers
from fedattack.report.section import PageTable
from fedattack.report.words import NOTHING, compact, count_words, end_sentence, printable_all

CLAIM_PAGE = "claim.html"
"""Where the page lies in its folder."""

_LABELS = {
    CONFIGURED: "Configured",
    RECORDED: "Seen in the record",
    MISSING: "Missing noise",
    MEASURED: "Measured",
    CANARIES: "Canaries",
}
# As a sentence says by what something was found.
_BY = {
    CONFIGURED: "by arithmetic",
    RECORDED: "by the record",
    MEASURED: "by a test of the mechanism",
    CANARIES: "by canaries",
}
# Keys whose values are numbers that may be infinite, for which JSON has no word.
_AMOUNTS = (
    *("low", "high", "value", "sigma"),
    *("noise_claimed", "noise_at_most", "norm_most", "rounds"),
    *("counting", "ceiling", "mu"),
    *("bound_message", "bound_run", "estimate", "accountant"),
)
# At which all lower bounds hold.
_LEVEL = "95 %"
_MOST_CLIENTS = 100
_FEW_NAMES = 5

WORDS = {
    "ε (epsilon)": "How well anybody can distinguish two data sets that differ in one unit. At ε = 1 one is at most "
    "2.7 "
    "times as likely as the other, at ε = 10 it is 22,000 times. Small is private.",
    "δ (delta)": "The probability that this may fail.",
    "Unit": "Whose data are protected: one client, or one example (a row of data).",
    "Claimed": "What the team says.",
    "Configured": "What arithmetic gives for the clipping norm, noise, sampling and rounds.",
    "Seen in the record": "What the received updates allow: noise cannot be larger than they are. A lower bound on ε.",
    "Measured": "The mechanism was given two updates thousands of times. How often the test could distinguish them "
    "gives a lower bound on ε.",
    "Canaries": "Extra clients or examples that measure the run itself. A lower bound on ε.",
    "Contradicted": "ε is higher than claimed: by arithmetic, or by a check that errs in at most 5 % of runs. "
    "With several such checks the rates add up; the answer states the sum.",
    "Consistent": "No contradiction was found in what was checked. A lower bound never proves a claim.",
    "Cannot be checked": "The bounds do not decide it, or a number is missing.",
    "C, σ": "The clipping norm: no update, or no gradient of an example, is longer. The deviation of the noise.",
}
"""What the page's words mean."""


@dataclass(frozen=True)
class FindingRow:
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
    consequence: str


@dataclass(frozen=True)
class LargeNumber:
    """A number that stands in large letters, and what it is."""

    value: str
    what: str


def readable(sheet: Mapping[str, Any]) -> dict[str, Any]:
    """Copy parsed JSON for the page: texts are printable, powers in them are raised, and infinity is a number."""
    return dict(_make_readable(printable_all(dict(sheet))))


def _make_readable(value: Any, key: str = "") -> Any:
    if isinstance(value, str):
        # In these keys alone: a client may be called "infinity".
        return math.inf if value == "infinity" and key in _AMOUNTS else raise_powers(value)
    if isinstance(value, dict):
        return {name: _make_readable(part, name) for name, part in value.items()}
    return [_make_readable(part, key) for part in value] if isinstance(value, list) else value


def short_of(sheet: Mapping[str, Any]) -> str:
    """Answer in a few words whether the claim is true, and say the number that decides it."""
    findings, scope = sheet["findings"], sheet["scope"]
    wrong = contradictions(findings)
    # Missing noise is no ε: it contradicts the claim by itself.
    if wrong and wrong[0]["name"] == MISSING:
        return f"No: what {_name_clients(wrong[0])} sent contradicts the claim."
    bounds = wrong[0][wrong[0]["scope"]] if wrong else None
    if bounds is not None and math.isinf(bounds["low"]):
        return f"No: nothing bounds the ε of {scope}."
    if wrong:
        figures = in_bounds(wrong[0][wrong[0]["scope"]]).replace("≥ ", "at least ")
        claimed = f"{sheet['claim']['epsilon']:g} is claimed"
        if wrong[0].get("rounds"):
            scope = run_of(wrong[0]["rounds"])
            claimed += f" for {count_words(sheet['claim']['rounds'], 'round')}"
        # By arithmetic nothing is estimated, so that no confidence is said.
        sure = "" if wrong[0]["name"] == CONFIGURED else f"at {_LEVEL}, "
        return f"No: {sure}ε of {scope} is {figures} {_name_check(wrong[0])}, and {claimed}."
    if sheet["verdict"] == CONSISTENT:
        return f"Nothing contradicts it: ε of {scope} is {in_number(findings[0]['value'])} at most, by arithmetic."
    return f"It cannot be said: {findings[0]['reason']}."


def contradictions(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the findings that contradict the claim."""
    return [finding for finding in findings if finding["verdict"] == CONTRADICTED]


def _name_check(finding: Mapping[str, Any]) -> str:
    if finding["name"] == MISSING:
        if finding["verdict"] == CONTRADICTED:
            return f"by noise that is missing ({_name_clients(finding)})"
        return "by a search for missing noise"
    by = _BY.get(finding["name"], f"by {finding['name']}")
    if finding.get("rounds"):
        by += f" of {finding['rounds']} rounds"
    return by


def _name_clients(finding: Mapping[str, Any]) -> str:
    names = finding.get("clients", [])
    if not names:
        # A record of sums names nobody.
        return "the clients together"
    if len(names) > _FEW_NAMES:
        return f"{len(names)} clients"
    if len(names) == 1:
        return f"client {names[0]}"
    return f"clients {list_words(names, 'and')}"


def ways_of(findings: Sequence[Mapping[str, Any]]) -> str:
    """Count the ways in which a claim was checked, and those in which it fails."""
    checks = count_words(len(findings), "check")
    wrong = list(map(_name_check, contradictions(findings)))
    if wrong:
        return f"Contradicted in {len(wrong)} of {checks}: {list_words(wrong, 'and')}."
    return f"{checks}: {list_words(list(map(_name_check, findings)), 'and')}."


def numbers_of(sheet: Mapping[str, Any]) -> list[LargeNumber]:
    """Choose the two numbers that stand in large letters."""
    numbers = [LargeNumber(f"{sheet['claim']['epsilon']:g}", "claimed")]
    deciding = _find_deciding(sheet["findings"])
    bounds = deciding[deciding["scope"]]
    if bounds is not None:
        numbers.append(LargeNumber(in_bounds(bounds), _name_check(deciding)))
    return numbers


def _find_deciding(findings: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the first finding of an ε that contradicts the claim, or that of what is configured."""
    for finding in contradictions(findings):
        if finding["name"] != MISSING:
            return finding
    return findings[0]


def meaning_of(sheet: Mapping[str, Any]) -> str:
    """Say what the claimed ε promises, and what the one that was found leaves of it."""
    epsilon, unit = sheet["claim"]["epsilon"], sheet["stated"].get("unit", "unit")
    if epsilon > WORTH:
        said = f"ε = {epsilon:g} promises no useful protection, even if it is true."
    else:
        # e^ε with a decimal where it is small, else with two digits.
        times = f"{math.exp(epsilon):,.1f}" if epsilon < 3 else f"{float(f'{math.exp(epsilon):.2g}'):,.0f}"
        said = f"ε = {epsilon:g} promises: whatever one {unit} holds, nothing gets more than {times} times as likely."
    found = _find_deciding(sheet["findings"])
    bounds = found[found["scope"]]
    if found["verdict"] == CONTRADICTED and bounds is not None and bounds["low"] > WORTH >= epsilon:
        said += " The ε that was found promises no useful protection."
    return said


def why_of(sheet: Mapping[str, Any]) -> list[str]:
    """Give what explains a contradiction, or the grounds of the verdict."""
    why: list[str] = []
    wrong = contradictions(sheet["findings"])
    # What is configured explains what other checks find: their reasons would repeat it.
    explained = any(finding["name"] == CONFIGURED for finding in wrong)
    for finding in wrong:
        if finding["name"] == CONFIGURED:
            why += finding["notes"]
        elif finding["name"] == MISSING:
            why.append(finding["reason"])
        elif not explained:
            why += [finding["reason"], *finding["notes"]]
    return why or [finding["reason"] for finding in sheet["findings"] if finding["verdict"] == sheet["verdict"]]


def line_of(finding: Mapping[str, Any]) -> FindingRow:
    """Put a finding into a row."""
    name = finding["name"]
    return FindingRow(
        name,
        _LABELS.get(name, name),
        in_bounds(finding["message"]),
        in_bounds(finding["run"]),
        finding["verdict"],
        finding["reason"],
        ", ".join(finding.get("clients", [])),
        finding["notes"],
        finding["assumes"],
        finding.get("consequence", ""),
    )


def in_number(value: float | None) -> str:
    """Write an ε, or a dash."""
    return NOTHING if value is None else raise_powers(in_figures(value))


def in_bounds(bounds: Mapping[str, float] | None) -> str:
    """Write what is known of an ε, or a dash."""
    return NOTHING if bounds is None else raise_powers(bounds_in_figures(Epsilon(bounds["low"], bounds["high"])))


def clients_of(sheet: Mapping[str, Any]) -> PageTable | None:
    """List the clients of a record, those with faults first, if the record shows what each one sent."""
    recorded = sheet["recorded"]
    clients = sorted(recorded["clients"], key=lambda client: not client["faults"])
    if not clients or recorded["view"] != "individual":
        return None
    claimed = recorded.get("noise_claimed")
    rows = [_list_cells(client, claimed) for client in clients[:_MOST_CLIENTS]]
    caption = "Noise at most: the largest σ that the updates allow, in the array that allows the least."
    if len(clients) > len(rows):
        caption += f" {count_words(len(clients) - len(rows), 'client')} more in claim.json."
    header = ["Client", "Faults", "Noise at most", "Of what is claimed", "In array", "Largest norm", "Updates"]
    # Columns in which nothing is known of any client are left out.
    columns = []
    for name, cells in zip(header, zip(*rows, strict=True), strict=True):
        if {*cells} != {NOTHING}:
            columns.append((name, *cells))
    header, *rows = map(list, zip(*columns, strict=True))
    return PageTable("Client by client", caption, header, rows)


def _list_cells(client: Mapping[str, Any], claimed: float | None) -> list[str]:
    """Put a client into a row of that table."""
    noise = client["noise_at_most"]
    share = f"{noise / claimed:.0%}" if noise is not None and claimed else NOTHING
    faults = "; ".join(client["faults"]) or "none found"
    where = client["where"] or NOTHING
    name = client.get("name") or client["node"]
    if client.get("run"):
        name += f" ({client['run']})"
    norm = _write_amount(client["norm_most"])
    return [name, faults, _write_amount(noise), share, where, norm, f"{client['updates']:,}"]


def _write_amount(value: float | None) -> str:
    return NOTHING if value is None else compact(value)


def tests_of(recorded: Mapping[str, Any]) -> PageTable | None:
    """List what a record was tested for."""
    rows = []
    for test in recorded["tests"]:
        rate = NOTHING if test["error_rate"] is None else f"{100 * test['error_rate']:.2g}%"
        rows.append([test["name"], test["what"], rate, f"{test['checked']:,}", f"{test['failed']:,}"])
    header = ["Test", "What it looks at", "False alarms at most", "Checked", "Failed"]
    caption = "False alarms: how often a run whose claim is true fails the test by accident."
    return PageTable("What was tested", caption, header, rows) if rows else None


def sums_of(recorded: Mapping[str, Any]) -> str:
    """Say what noise a record of sums has room for; empty if it has more than sums."""
    server = recorded["server"]
    if server is None:
        return ""
    sentences = []
    if server["noise_at_most"] is not None:
        most = compact(server["noise_at_most"])
        sentences.append(f"The noise in the mean of all clients has a deviation of at most {most}.")
    sentences += map(end_sentence, server.get("faults", []))
    return " ".join(sentences)


_METHODS = {
    "counting": "counting alone",
    "gaussian": "the scores, which passed the tests of a Gaussian",
    "sampled gaussian": "the scores, which passed the tests of a sampled Gaussian",
}


def measured_of(measured: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the facts of the test of a mechanism."""
    facts = [
        ("draws of the mechanism", f"{measured['draws']:,}"),
        ("of these, to choose what is played, and how it is told apart", f"{measured['draws'] - measured['tries']:,}"),
        ("told apart", f"{measured['told']:,} of {measured['tries']:,}"),
        ("the bound is by", _METHODS.get(measured["method"], measured["method"])),
        ("ε of a draw at least, by counting alone", in_number(measured["counting"])),
        ("most that counting can show with so many draws", in_number(measured["ceiling"])),
        ("updates that were played", measured["pair"]),
        ("told apart by", measured["score"]),
    ]
    if measured["mu"] is not None:
        facts.append(("scores apart, in standard deviations, at least", compact(measured["mu"])))
    return facts


_COSTS = {
    "share": "what they cost: their share of the replies",
    "moved_by_canaries": "how far they move the model in a round",
    "moved": "how far it moves in a round, noise and all",
}


def canaries_of(canaries: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the facts of canaries."""
    kind = {"client": "extra clients", "record": "extra examples"}[canaries["kind"]]
    facts = [
        (kind, f"{canaries['count']:,}"),
        (f"ε of the run at least, at {canaries['confidence']:.0%}", in_number(canaries["bound_run"])),
        ("ε of a message at least", in_number(canaries["bound_message"])),
        ("point estimate", in_number(canaries["estimate"])),
        ("what the accountant allows", in_number(canaries["accountant"])),
    ]
    for name, value in (canaries.get("cost") or {}).items():
        label = _COSTS.get(name, f"cost: {name}")
        facts.append((label, compact(value) if isinstance(value, float) else str(value)))
    return facts
