"""The findings as a table for the terminal."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, PROPORTION, TOO_FEW, Finding
from fedattack.report.words import interval, interval_title, printable, shown, spread

_STYLES = {LEAK: "bold red", NO_EVIDENCE: "cyan", TOO_FEW: "yellow", NOT_APPLICABLE: "dim"}


def render_table(findings: Sequence[Finding], run: Mapping[str, Any]) -> Group:
    """Make a table of findings for :meth:`rich.console.Console.print`.

    Findings go by the names that ``--fail-if`` takes. Their labels, and the grounds of the headline's verdict, follow
    below the table. `run` is what ``run.json`` holds.
    """
    if not findings:
        return Group(Text("There are no findings."))
    # Text, never markup: names that came from clients may hold brackets.
    table = Table(
        title=Text(printable(run["title"])),
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("finding", overflow="fold", min_width=12)
    for column in ("value", interval_title(findings), "chance", "null", "n"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("verdict", overflow="fold", min_width=10)
    for finding in findings:
        name = Text(finding.name, style="bold" if finding.headline else "")
        if finding.selected_after_the_fact:
            name.append(" †", style="yellow")
        # An ordinary terminal has 80 columns, so that other units than per cent stand at the value alone.
        units = finding.units if finding.units == PROPORTION else ""
        null = finding.null["value"] if finding.null else None
        table.add_row(
            name,
            shown(finding.value, finding.units),
            interval(finding.low, finding.high, units),
            shown(finding.chance, units),
            shown(null, units),
            f"{finding.n:,}",
            Text(finding.verdict, style=_STYLES[finding.verdict]),
        )
    below = [Text.assemble((finding.name, "bold"), f": {printable(finding.label)}") for finding in findings]
    for finding in findings:
        if finding.headline or finding.value is None:
            verdict = (f"{finding.name}: {finding.verdict}", _STYLES[finding.verdict])
            below.append(Text.assemble("\n", verdict, f", {printable(finding.reason)}"))
    if any(map(attrgetter("selected_after_the_fact"), findings)):
        below.append(Text("† selected after the fact: chosen by looking at the results", style="yellow"))
    if "privacy" in run:
        below.append(_privacy(run["privacy"]))
    return Group(table, *below)


def _privacy(privacy: Mapping[str, Any]) -> Text:
    noise = f"{printable(privacy['noise_is'])} {spread(privacy['noise'])}"
    epsilon = f"ε {spread(privacy['epsilon_round'])} a round, {spread(privacy['epsilon_run'])} for the whole run"
    return Text.assemble(
        "\n",
        (printable(privacy["name"]), "bold"),
        f" ({noise}, C {privacy['clip']:g}, δ {privacy['delta']:g}): {epsilon}, least to most over clients; protects "
        f"{printable(privacy['unit'])}",
    )
