"""The findings as a table for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE, PROPORTION, TOO_FEW, Finding
from fedattack.report.answer import in_short
from fedattack.report.sent import list_readable, sent_in_short
from fedattack.report.words import interval, interval_title, is_by_its_test_alone, printable, shown, write_spread

# Wider than any table of findings.
_WIDE = 1000

_BY_ITS_TEST = (
    "‡ the interval reaches guessing, the test does not: it asks whether so much is found where these very examples "
    "are exchanged, and the interval what other examples may give"
)

_STYLES = {LEAK: "bold red", NO_EVIDENCE: "cyan", TOO_FEW: "yellow", CANNOT_TELL: "yellow", NOT_APPLICABLE: "dim"}


@dataclass(frozen=True)
class _Fitting:
    """A table that breaks no name and leaves out nothing: where there is no room for it, each finding has two lines.

    ``rows`` has a text for the name and for each of value, interval, chance, null, n and verdict.
    """

    interval: str
    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("finding", no_wrap=True)
        for number in ("value", self.interval, "chance", "null", "n"):
            table.add_column(number, justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        # Measured with all the room in the world: is the table wider than the terminal?
        if console.measure(table, options=options.update(max_width=_WIDE)).maximum <= options.max_width:
            yield table
            return
        for name, value, ends, chance, null, n, verdict in self.rows:
            yield Text.assemble(name, "\n    ", value, " (", ends, "), ", verdict)
            yield Text.assemble("    chance ", chance, ", null ", null, ", n ", n)


def _cells(finding: Finding) -> list[Text]:
    name = Text(finding.name, style="bold" if finding.headline else "")
    if finding.selected_after_the_fact:
        name.append(" †", style="yellow")
    # An ordinary terminal has 80 columns, so that other units than per cent stand at the value alone.
    units = finding.units
    if units != PROPORTION:
        units = ""
    verdict = finding.verdict
    if is_by_its_test_alone(finding):
        verdict += " ‡"
    return [
        name,
        Text(shown(finding.value, finding.units)),
        Text(interval(finding.low, finding.high, units)),
        Text(shown(finding.chance, units)),
        Text(shown(finding.null_value, units)),
        Text(f"{finding.n:,}"),
        Text(verdict, _STYLES[finding.verdict]),
    ]


def render_table(findings: Sequence[Finding], run: Mapping[str, Any]) -> Group:
    """Make a table of findings for :meth:`rich.console.Console.print`.

    Above it each headline's question is answered in a few words. Findings go by the names that ``--fail-if`` takes.
    Their labels, and the grounds of the headline's verdict, follow below the table. `run` is what ``run.json`` holds.
    """
    if not findings:
        return Group(Text("There are no findings."))
    # Text, never markup: names that came from clients may hold brackets.
    title = Text(printable(run["title"]), style="bold")
    table = _Fitting(interval_title(findings), list(map(_cells, findings)))
    below = []
    for finding in findings:
        below.append(Text.assemble((finding.name, "bold"), f": {printable(finding.label)}"))
    for finding in findings:
        if finding.headline or finding.value is None:
            verdict = (f"{finding.name}: {finding.verdict}", _STYLES[finding.verdict])
            below.append(Text.assemble("\n", verdict, f", {printable(finding.reason)}"))
    if any(map(attrgetter("selected_after_the_fact"), findings)):
        below.append(Text("† selected after the fact: chosen by looking at the results", style="yellow"))
    if any(map(is_by_its_test_alone, findings)):
        below.append(Text(_BY_ITS_TEST, style="yellow"))
    if "sent" in run:
        below.append(Text.assemble("\n", ("Clients send", "bold"), f" {printable(sent_in_short(run['sent']))}"))
    for line in list_readable(run):
        below.append(Text(printable(line)))
    if "privacy" in run:
        below.append(_privacy(run["privacy"]))
    return Group(title, *map(_write_short, in_short(findings)), table, *below)


def _write_short(answer: tuple[Finding, str, str]) -> Text:
    finding, question, short = answer
    return Text.assemble(f"{question} ", (printable(short), _STYLES[finding.verdict]))


def _privacy(privacy: Mapping[str, Any]) -> Text:
    noise = f"{printable(privacy['noise_is'])} {write_spread(privacy['noise'])}"
    epsilon = (
        f"ε {write_spread(privacy['epsilon_round'])} a round, {write_spread(privacy['epsilon_run'])} for the whole run"
    )
    return Text.assemble(
        "\n",
        (printable(privacy["name"]), "bold"),
        f" ({noise}, C {privacy['clip']:g}, δ {privacy['delta']:g}): {epsilon}, least to most over clients; protects "
        f"{printable(privacy['unit'])}",
    )
