"""How numbers and names read, in the terminal and on the page."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from operator import attrgetter
from typing import Any

from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW, Finding
from fedattack.audit.numbers import NOTHING, count_words, interval, level, shown, with_interval
from fedattack.base.reasons import NOTHING as REMEDIED_BY_NOTHING

__all__ = [
    "NOTHING",
    "NO_GUARANTEE",
    "compact",
    "count_words",
    "end_sentence",
    "interval",
    "interval_title",
    "is_by_its_test_alone",
    "is_of_these_runs",
    "level",
    "markdown",
    "markdown_table",
    "printable",
    "printable_all",
    "say_remedy",
    "shown",
    "verdict_in_words",
    "with_interval",
    "write_spread",
]

_VERDICTS = {
    LEAK: "leak shown",
    NO_EVIDENCE: "not shown",
    TOO_FEW: "too few to tell",
    CANNOT_TELL: "cannot be told",
    NOT_APPLICABLE: "not applicable",
}
_SYMBOLS = frozenset("εδσμ")
# GitHub takes a word with so much of an address for one, and links it.
_ADDRESS = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)
NO_GUARANTEE = "no finite guarantee"


def is_of_these_runs(finding: Finding) -> bool:
    """Whether it is a leak of these very runs, and the interval of runs like these reaches guessing."""
    return len(finding.seeds) > 1 and _reaches_guessing(finding)


def is_by_its_test_alone(finding: Finding) -> bool:
    """Whether it is a leak of a single run whose interval reaches guessing."""
    return len(finding.seeds) == 1 and _reaches_guessing(finding)


def _reaches_guessing(finding: Finding) -> bool:
    if finding.is_certain:
        return False
    chance, low = finding.chance, finding.low
    return finding.verdict == LEAK and chance is not None and low is not None and low <= chance


def verdict_in_words(finding: Finding) -> str:
    """Write a finding's verdict, and of a leak whether it is one of these runs, or of these targets, alone."""
    if is_of_these_runs(finding):
        return "leak in these runs"
    if is_by_its_test_alone(finding):
        return "leak on these targets"
    if finding.verdict == NO_EVIDENCE and finding.is_right_in_part and finding.may_be_accident:
        return "may be an accident"
    return _VERDICTS[finding.verdict]


def write_spread(ends: Mapping[str, float | None]) -> str:
    """Write the ends ``low`` and ``high`` of numbers of any size, such as ``0.81–2.1``; ``None`` is no guarantee."""
    low, high = ends["low"], ends["high"]
    if low is None:
        return NO_GUARANTEE
    if high is None:
        return f"{compact(low)} to {NO_GUARANTEE}"
    return "–".join(dict.fromkeys([compact(low), compact(high)]))


def compact(value: float) -> str:
    """Write a number of any size with three digits, or as a whole one."""
    if value < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}"


def interval_title(findings: Iterable[Finding]) -> str:
    """Name the column of intervals, with their level if they share one."""
    levels = set(map(attrgetter("level"), findings))
    if len(levels) == 1:
        return f"{level(levels.pop())} interval"
    return "interval"


def end_sentence(text: str) -> str:
    """Write a text as a sentence, whether or not it was written as one; a symbol such as ε stays small."""
    first = text[:1]
    if first not in _SYMBOLS:
        first = first.upper()
    return first + text[1:].rstrip(".") + "."


def say_remedy(remedy: str) -> str:
    """Say what would make it possible to ask a question, or that nothing does, and why; without a full stop."""
    if remedy.startswith(REMEDIED_BY_NOTHING):
        return f"It is not possible here: {remedy.removeprefix(REMEDIED_BY_NOTHING)}"
    return f"To ask this, you need {remedy}"


def printable(text: str) -> str:
    """Replace control characters and lone surrogates.

    Names of metrics come from clients. An escape sequence could drive a terminal, and neither XML nor UTF-8 can hold
    all of these.
    """
    clean = ""
    for letter in text:
        # Other letters may turn the direction of a text, or hide in it.
        if not (letter.isprintable() or letter == "\n" or unicodedata.category(letter) == "Zs"):
            letter = "\N{REPLACEMENT CHARACTER}"
        clean += letter
    return clean


def printable_all(value: Any) -> Any:
    """Copy parsed JSON with all texts, keys included, made :func:`printable`."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_all(key): printable_all(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return list(map(printable_all, value))
    return value


def markdown(text: str) -> str:
    """Escape text so that Markdown shows it as it is, on one line, and makes no link or picture of it.

    Dialects differ in what a backslash escapes: CommonMark's, Python's (TensorBoard), that of a browser (MLflow).
    Entities mean the same in all of them.
    """
    # Order matters: HTML first, as the escapes of Markdown hold no & or <.
    line = escape(" ".join(printable(text).split()), quote=False)
    line = re.sub(r"([\\`*_\[\]|#~!$])", r"\\\1", line)
    return _ADDRESS.sub(lambda found: f"&#{ord(found[0])};", line)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    """Write a table in Markdown; all columns but the first ones, which hold `texts`, are set to the right."""
    rule = ["---"] * texts + ["---:"] * (len(header) - texts)
    return "\n".join([_markdown_row(header), f"| {' | '.join(rule)} |", *map(_markdown_row, rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(markdown, cells))} |"
