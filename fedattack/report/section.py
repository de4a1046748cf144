"""What a threat adds to the report: sentences for its findings, and figures and tables of the numbers behind them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any

from fedattack.attacks.registry import threat_of
from fedattack.audit.finding import LEAK, Finding
from fedattack.audit.kinds import Kind
from fedattack.audit.table import Table
from fedattack.report import figures
from fedattack.report.drawing import Plot
from fedattack.report.remedies import Remedy, read_remedies
from fedattack.report.words import interval, level, shown

# Rows of a table of parts of the population.
_MOST_PARTS = 40

# Columns of a table that has room in half a page.
_MOST_COLUMNS = 5

Draw = Callable[[Finding, str], Plot | None]
"""Draws a finding's series; the second argument begins all ids in the drawing. ``None`` if there is nothing to draw."""

DrawTogether = Callable[[Sequence[Finding], str], Plot]
"""Draws the series of several findings in one figure."""

Lists = tuple[str, Mapping[str, Sequence[Any] | None]]
"""Where in a finding's series some lists stand, and these lists by name. They must be of one length."""


@dataclass(frozen=True)
class PageTable:
    """A table as a page shows it: a title, what to know when reading it, and texts."""

    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    @property
    def wide(self) -> bool:
        """Whether it has no room beside another."""
        return len(self.header) > _MOST_COLUMNS


Tabulate = Callable[[Finding], PageTable | None]
"""Makes a table of a finding's series; ``None`` if there is nothing to show."""


def show_table(table: Table, finding: Finding) -> PageTable:
    """Write the rows that a finding holds of a table, as its page shows them."""
    listed = finding.series[table.name]
    rows = table.texts(listed[: table.most])
    words = {"label": finding.label, "shown": len(rows), "listed": len(listed)}
    titles = [column.title.format(level=level(finding.level)) for column in table.page_columns]
    return PageTable(table.title.format(**words), table.caption.format(**words), titles, rows)


@dataclass(frozen=True)
class Explained:
    """How much of a result what is trivial explains.

    Attributes
    ----------
    rows
        What is drawn beside the result, in its units: the name, and what is reached so.
    words
        The same in sentences.
    short
        Where it is shown to explain the result, that in a few words, with what is left at most, for the answer.
    certain
        Where something is certain, what of each kind that is, for the answer; empty to count it as one kind.
    """

    rows: list[tuple[str, float]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    short: str = ""
    certain: str = ""


def by_guesses(findings: Sequence[Finding]) -> Explained:
    """Name the baselines of the first finding, at most three of them."""
    return Explained(rows=list(findings[0].baselines.items())[:_MOST_BASELINES])


_MOST_BASELINES = 3


def worst_client(findings: Sequence[Finding]) -> str:
    """Name the most exposed client: the one that was judged, or else the first of those that are listed."""
    for finding in findings:
        if finding.metric.endswith("worst-client") and finding.value is not None:
            if finding.verdict != LEAK:
                return "No client certainly stands out."
            ends = interval(finding.low, finding.high, finding.units)
            beside = ""
            if finding.null is not None:
                beside = f", {shown(finding.null_value, finding.units)} without a leak"
            judged = f"{finding.label}: {shown(finding.value, finding.units)} ({ends}{beside})."
            return " ".join(filter(None, [judged, _highest_beside(finding, findings[0])]))
    for finding in findings:
        clients = finding.series.get("per_client", ())
        if len(clients) > 1 and finding.view == "individual":
            return _first_of(clients, finding.units)
    return ""


def who_is_exposed(findings: Sequence[Finding]) -> str:
    """Name the most exposed client, and say how often the attack is right where it is surest."""
    said = [worst_client(findings)]
    for finding in findings:
        if surest := finding.series.get("surest"):
            said.append(
                f"The attack was surest about {surest['n']:,} answers, a tenth of all. Of these, "
                f"{shown(surest['value'])} are right ({interval(surest['low'], surest['high'])}); guessing gives "
                f"{shown(surest['chance'])}."
            )
            break
    return " ".join(filter(None, said))


def tabulate_populations(finding: Finding) -> PageTable | None:
    """Rates of parts of the population (``series["populations"]``)."""
    entries = finding.series["populations"]
    if not entries:
        return None
    rows = []
    for entry in entries[:_MOST_PARTS]:
        ends = interval(entry["low"], entry["high"])
        rows.append([f"{entry['kind']}: {entry['name']}", shown(entry["value"]), ends, f"{entry['n']:,}"])
    return PageTable(
        f"{finding.label}: by part of the population",
        f"The intervals are widened for all {len(entries)} parts, so that they hold jointly.",
        ["part", "result", f"{level(finding.level)} interval", "targets"],
        rows,
    )


def _highest_beside(judged: Finding, headline: Finding) -> str:
    """Name the client with the highest rate where it is not the one that was judged; empty where it is."""
    clients = headline.series.get("per_client", ())
    if not clients or judged.label.endswith(f"({clients[0]['client']})"):
        return ""
    highest = clients[0]
    beside = ""
    if highest.get("null"):
        beside = f" ({shown(highest['null']['value'], headline.units)} without a leak)"
    return f"The highest rate is that of client {highest['client']}: {shown(highest['value'], headline.units)}{beside}."


def _first_of(clients: Sequence[Mapping[str, Any]], units: str) -> str:
    worst, alike = clients[0], [client for client in clients if client["value"] == clients[0]["value"]]
    if len(alike) > 1:
        return f"{len(alike)} of {len(clients)} clients have the same value: {shown(worst['value'], units)}."
    ends = interval(worst["low"], worst["high"], units)
    return (
        f"Client {worst['client']}: {shown(worst['value'], units)} ({ends}) of {worst['n']:,} targets. "
        "The results chose this client, so its value is high partly by luck."
    )


@dataclass(frozen=True)
class Section:
    """How the findings of one threat are shown.

    Attributes
    ----------
    question
        What a reader wants to know, to be answered by yes or no; the threat's own question if empty.
    strength
        By metric, how a leak of this size is said after "Yes": the gain over guessing. Filled in are ``{value}``,
        ``{chance}``, ``{times}``, the ratio of the two, and ``{gain}``, their difference in points; of a difference
        ``{more}`` and ``{size}``, as below.
    explained
        Given the findings of one attack, the headline first: how much of the result what is trivial explains.
    exposed
        Given the same, who is most exposed; empty if that is not known.
    remedies
        What to do about it, the best first.
    sentences
        By metric, what a finding says about the world. A metric that is not named here is shown with its label.
        Filled in are ``{value}`` and ``{label}``; ``{interval}`` and ``{chance}``, which are clauses of their own; and
        of a difference ``{more}``, which is "more" or "less", and ``{size}``, which has no sign.
        A function writes the sentence itself.
    figures
        In the order of the page: the name of a series, and what draws it.
    together
        Likewise, what draws one figure of all findings of an attack that have the series, such as small multiples.
    tables
        Likewise, the tables of the page: each is a :class:`fedattack.audit.table.Table` of the judge, or the name of a
        series and what makes a table of it, which gives ``None`` if there is nothing to show.
    forms
        By the name of a series that is none of these tables, what a finding may hold of it.
    lists
        Given a finding's series, lists that must be of one length.
    more_is_worse, less_is_worse
        Metrics that say how well an attack did, though they are no proportions. More of the former is a worse leak,
        and less of the latter. A trade-off draws them.
    """

    question: str = ""
    strength: Mapping[str, str] = field(default_factory=dict)
    explained: Callable[[Sequence[Finding]], Explained] = by_guesses
    exposed: Callable[[Sequence[Finding]], str] = who_is_exposed
    remedies: Sequence[Remedy] = ()
    sentences: Mapping[str, str | Callable[[Finding], str]] = field(default_factory=dict)
    figures: Sequence[tuple[str, Draw]] = ()
    together: Sequence[tuple[str, DrawTogether]] = ()
    tables: Sequence[Table | tuple[str, Tabulate]] = ()
    forms: Mapping[str, Kind] = field(default_factory=dict)
    lists: Callable[[Mapping[str, Any]], Iterable[Lists]] = lambda series: ()
    more_is_worse: Sequence[str] = ()
    less_is_worse: Sequence[str] = ()

    @cached_property
    def tabulates(self) -> list[tuple[str, Tabulate]]:
        """In the order of the page, the name of a series, and what makes a table of it."""
        made: list[tuple[str, Tabulate]] = []
        for table in self.tables:
            made.append((table.name, partial(show_table, table)) if isinstance(table, Table) else table)
        return made

    @cached_property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """By the name of a series of the threat's own, its JSON schema."""
        own = {table.name: table.form for table in self.tables if isinstance(table, Table)}
        return {name: kind.schema for name, kind in {**own, **self.forms}.items()}


PER_ROUND = ("per_round", figures.per_round)
PER_CLIENT = ("per_client", figures.per_client)
RELIABILITY = ("reliability", figures.reliability)
POPULATIONS = ("populations", tabulate_populations)

COMMON = Section(figures=(PER_ROUND, PER_CLIENT, RELIABILITY))
"""How findings are shown of an attack that is not installed here; ``schema.json`` has the forms of its series."""


@cache
def section_of(attack: str) -> Section:
    """Return how findings of an attack are shown; :data:`COMMON` for one of which nothing is known here.

    What to do stands in ``remedies.toml`` of the threat's folder.
    """
    threat = threat_of(attack)
    if threat is None:
        return COMMON
    with threat.contained("load its section"):
        section: Section = threat.load_section() or COMMON
        remedies = threat.read_text("remedies.toml")
        if remedies:
            section = replace(section, remedies=read_remedies(remedies))
    return section
