"""What a threat adds to the report: sentences for its findings, and figures and tables of the numbers behind them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fedattack.audit.finding import Finding
from fedattack.report import figures
from fedattack.report.drawing import Plot
from fedattack.threats.registry import threat_of

# Columns of a table that has room in half a page.
_MOST_COLUMNS = 5

Draw = Callable[[Finding, str], Plot | None]
"""Draws a finding's series; the second argument begins all ids in the drawing. ``None`` if there is nothing to draw."""

DrawTogether = Callable[[Sequence[Finding], str], Plot]
"""Draws the series of several findings in one figure."""

Lists = tuple[str, Mapping[str, Sequence[Any] | None]]
"""Where in a finding's series some lists stand, and these lists by name. They must be of one length."""


@dataclass(frozen=True)
class Table:
    """A table with its words: a title, what to know when reading it, and texts."""

    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    @property
    def wide(self) -> bool:
        """Whether it has no room beside another."""
        return len(self.header) > _MOST_COLUMNS

    @property
    def height(self) -> float:
        """About how many pixels its panel takes on a wide page."""
        return 160 + 40 * len(self.rows) + len(self.caption) / 3


@dataclass(frozen=True)
class Section:
    """How the findings of one threat are shown.

    Attributes
    ----------
    sentences
        By metric, what a finding says about the world. A metric that is not named here is shown with its label.
        Filled in are ``{value}``, ``{interval}``, ``{chance}`` and ``{label}``. A function writes the sentence itself.
    figures
        In the order of the page: the name of a series, and what draws it.
    together
        Likewise, what draws one figure of all findings of an attack that have the series, such as small multiples.
    tables
        Likewise, what makes a table of a series; None if there is nothing to show.
    forms
        By the name of a series, its JSON schema. It may refer to the ``$defs`` of ``schema.json``.
    lists
        Given a finding's series, lists that must be of one length.
    more_is_worse, less_is_worse
        Metrics that say how well an attack did, though they are no proportions. Of the former, more is a worse leak;
        of the latter, less. A trade-off draws them.
    """

    sentences: Mapping[str, str | Callable[[Finding], str]] = field(default_factory=dict)
    figures: Sequence[tuple[str, Draw]] = ()
    together: Sequence[tuple[str, DrawTogether]] = ()
    tables: Sequence[tuple[str, Callable[[Finding], Table | None]]] = ()
    forms: Mapping[str, Any] = field(default_factory=dict)
    lists: Callable[[Mapping[str, Any]], Iterable[Lists]] = lambda series: ()
    more_is_worse: Sequence[str] = ()
    less_is_worse: Sequence[str] = ()


PER_ROUND = ("per_round", figures.per_round)
PER_CLIENT = ("per_client", figures.per_client)
RELIABILITY = ("reliability", figures.reliability)

COMMON = Section(figures=(PER_ROUND, PER_CLIENT, RELIABILITY))
"""How findings are shown of an attack that is not installed here; ``schema.json`` has the forms of its series."""


@cache
def section_of(attack: str) -> Section:
    """Return how findings of an attack are shown; :data:`COMMON` for one of which nothing is known here."""
    threat = threat_of(attack)
    if threat is None or not threat.section:
        return COMMON
    section: Section = threat.load(threat.section)
    return section


def forms_beside(module: str) -> dict[str, Any]:
    """Read ``series.json``, the forms of its series, beside the section whose ``__file__`` is given."""
    forms: dict[str, Any] = json.loads(Path(module).with_name("series.json").read_text(encoding="utf-8"))
    return forms
