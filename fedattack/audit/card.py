"""Findings as a notebook shows them: a card, or a table. All words are escaped: names come from clients.

Each is a :class:`fedattack.audit.finding.Finding`, whose module imports this one.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from fedattack.audit.numbers import NOTHING, interval, level, shown, with_interval
from fedattack.audit.verdicts import CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.base.errors import short

# White letters on these have a contrast of 4.5 at least, whether the notebook is light or dark.
_COLOURS = {
    LEAK: "#b42318",
    NO_EVIDENCE: "#175cd3",
    TOO_FEW: "#93580b",
    CANNOT_TELL: "#93580b",
    NOT_APPLICABLE: "#5d6470",
}
_LONGEST = 2_000


def card_of(finding: Any) -> str:
    """Return one finding as a card: title, verdict, numbers and reason."""
    facts = {
        f"{level(finding.level)} interval": interval(finding.low, finding.high, finding.units),
        "of these very runs": interval(finding.here_low, finding.here_high, finding.units),
        "chance": shown(finding.chance, finding.units),
        "null": shown(finding.null_value, finding.units),
        "p, corrected": shown(finding.p_adjusted, ""),
        "targets": f"{finding.n:,}",
        "seeds": ", ".join(map(str, finding.seeds)),
    }
    parts = [f"{name} <b>{_text(fact)}</b>" for name, fact in facts.items() if fact not in (NOTHING, "")]
    if finding.selected_after_the_fact:
        parts.append(f"chosen after the fact among {finding.comparisons:,}")
    return (
        '<div style="border: 1px solid #8888; border-radius: 6px; padding: .6em 1em; max-width: 46em">'
        f"<div><b>{_text(finding.label)}</b> <code>{_text(finding.name)}</code> {_badge(finding.verdict)}</div>"
        f'<div style="font-size: 1.8em">{_text(shown(finding.value, finding.units))}</div>'
        f"<div>{' · '.join(parts)}</div>"
        f"<div>{_text(finding.reason)}</div>"
        "</div>"
    )


def table_of(findings: Sequence[Any]) -> str:
    """Return findings as a table, headlines in bold."""
    if not findings:
        return "<p>There are no findings.</p>"
    header = ("finding", "what", "value", "interval", "chance", "null", "n", "verdict")
    rows = []
    for finding in findings:
        name = f"<code>{_text(finding.name)}</code>{' †' * finding.selected_after_the_fact}"
        if finding.headline:
            name = f"<b>{name}</b>"
        numbers = (
            shown(finding.value, finding.units),
            interval(finding.low, finding.high, finding.units),
            shown(finding.chance, finding.units),
            shown(finding.null_value, finding.units),
            f"{finding.n:,}",
        )
        cells = [name, _text(finding.label), *map(_text, numbers)]
        rows.append(_row("td", [*cells, _badge(finding.verdict)]))
    after = ""
    if any(finding.selected_after_the_fact for finding in findings):
        after = "<p>† chosen by looking at the results; interval and verdict account for that</p>"
    return f"<table><thead>{_row('th', header)}</thead><tbody>{''.join(rows)}</tbody></table>{after}"


def line_of(finding: Any) -> str:
    """Return one finding as a line of text."""
    value = with_interval(vars(finding), finding.units)
    if finding.chance is not None:
        value += f", chance {shown(finding.chance, finding.units)}"
    return short(f"{finding.name}: {value}, n = {finding.n:,}: {finding.verdict}")


def _badge(verdict: str) -> str:
    style = f"background: {_COLOURS[verdict]}; color: #fff; border-radius: 4px; padding: .1em .5em; white-space: nowrap"
    return f'<span style="{style}">{_text(verdict)}</span>'


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    """Escape a text, without what could drive a terminal or hide in a page."""
    return escape(short(text, _LONGEST))
