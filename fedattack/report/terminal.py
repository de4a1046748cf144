"""What was found, for the terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table
from rich.text import Text

from fedattack.audit.finding import CANNOT_TELL, LEAK, NO_EVIDENCE, NOT_APPLICABLE, PROPORTION, TOO_FEW, Finding
from fedattack.base.reasons import NOTHING as REMEDIED_BY_NOTHING
from fedattack.report.answer import NONE_KNOWN, Answer, Glance, answers_of, overview_of, summary_of
from fedattack.report.sent import list_readable, sent_in_short
from fedattack.report.words import (
    end_sentence,
    interval,
    interval_title,
    is_by_its_test_alone,
    printable,
    say_remedy,
    shown,
    write_spread,
)

# A command, or an option with what it takes, as remedies name it.
_ASKING = re.compile(r"`fedattack [^`]+`|--[a-z-]+ (?:[A-Z]+|(?:[a-z_]+\.)*module:function)")
_FOLDER = re.compile(r"\bDIR\b")

# Wider than any table of findings.
_WIDE = 1000

_BY_ITS_TEST = (
    "‡ a leak by its test: on these examples chance hardly ever finds as much; the interval says what other examples "
    "may give, and includes guessing"
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
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
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


def render_summary(
    findings: Sequence[Finding], run: Mapping[str, Any], *, everything: bool = False, folder: str = "DIR"
) -> Group:
    """Write what was found for :meth:`rich.console.Console.print`, so that an audit of an app fits one screen.

    Questions and answers come first, then a table of headlines and leaks, what to do next, and what was not asked.

    Parameters
    ----------
    findings
        All findings. They go by the names that ``--fail-if`` takes.
    run
        What ``run.json`` holds.
    everything
        Whether the table has all findings, and their labels, the grounds of verdicts and what the attacker is assumed
        to know follow.
    folder
        The run folder, as commands name it that are proposed.
    """
    answers = answers_of(findings, run, {})
    glances = overview_of(answers, run)
    # Text, never markup: names that came from clients may hold brackets.
    heading = [Text(printable(run["title"]), style="bold"), Text(printable(summary_of(glances, run)))]
    if "unanswered" in run:
        heading.append(Text(printable(end_sentence(run["unanswered"]))))
    blocks: list[Sequence[Text | _Fitting]] = [heading]
    blocks.append([_write_answer(glance) for glance in glances if glance.said != NONE_KNOWN])
    blocks.append(_write_findings(findings, everything=everything))
    if everything:
        blocks += [_write_labels(findings), _write_grounds(findings)]
        blocks.append(_write_list("The attacker is assumed to know", run["threat_model"]["knows"]))
        blocks.append(_write_list("Notes", run["notes"]))
    blocks.append(_write_sent(run, everything=everything))
    blocks.append(_write_next([answers[glance.card - 1] for glance in glances if glance.step], folder))
    blocks.append([*_write_means(run), *_write_untried(run, folder, everything=everything)])
    parts: list[Text | _Fitting] = []
    for block in filter(None, blocks):
        parts += [*block, Text()]
    return Group(*parts)


def _write_answer(glance: Glance) -> Text:
    style = ""
    if glance.finding is not None:
        style = _STYLES[glance.finding.verdict]
    return Text.assemble(f"{glance.question} ", (printable(glance.answer), style))


def _write_findings(findings: Sequence[Finding], *, everything: bool) -> list[Text | _Fitting]:
    """Write the table of headlines and leaks, or of all findings, and what its marks mean."""
    if not findings:
        return [Text("There are no findings.")]
    listed = [each for each in findings if everything or each.headline or each.verdict == LEAK]
    lines: list[Text | _Fitting] = []
    if listed:
        lines.append(_Fitting(interval_title(listed), list(map(_cells, listed))))
    if any(map(attrgetter("selected_after_the_fact"), listed)):
        lines.append(Text("† selected after the fact: chosen by looking at the results", style="yellow"))
    if any(map(is_by_its_test_alone, listed)):
        lines.append(Text(_BY_ITS_TEST, style="yellow"))
    if not everything:
        lines.append(Text(f"--all shows all {len(findings)} findings, the grounds of verdicts, and what is assumed."))
    return lines


def _write_labels(findings: Sequence[Finding]) -> list[Text]:
    return [Text.assemble((finding.name, "bold"), f": {printable(finding.label)}") for finding in findings]


def _write_grounds(findings: Sequence[Finding]) -> list[Text]:
    """Write why a headline has its verdict, and why a finding has no value."""
    lines = []
    for finding in findings:
        if finding.headline or finding.value is None:
            verdict = (f"{finding.name}: {finding.verdict}", _STYLES[finding.verdict])
            lines.append(Text.assemble(verdict, f", {printable(finding.reason)}"))
    return lines


def _write_list(heading: str, items: Iterable[str]) -> list[Text]:
    """Write a heading and what stands below it; nothing if nothing does."""
    lines = [Text(f"- {printable(item)}") for item in items]
    if lines:
        lines.insert(0, Text(heading, style="bold"))
    return lines


def _write_sent(run: Mapping[str, Any], *, everything: bool) -> list[Text]:
    """Write what of the clients' messages shows itself, and what guarantee their noise gives."""
    lines = []
    if everything and "sent" in run:
        lines.append(Text.assemble(("Clients send", "bold"), f" {printable(sent_in_short(run['sent']))}"))
    lines += [Text(printable(line)) for line in list_readable(run)]
    if "privacy" in run:
        lines.append(_privacy(run["privacy"]))
    return lines


def _write_next(answers: Sequence[Answer], folder: str) -> list[Text]:
    """Write the first thing to do about each answer, once."""
    lines = []
    for step in dict.fromkeys(answer.next[0] for answer in answers):
        line = f"{step.what}."
        if step.command:
            line += f" Try: {_fill_in(step.command, folder)}"
        lines.append(line)
    return _write_list("What to do next", lines)


def _fill_in(command: str, folder: str) -> str:
    """Name the run folder in a command that calls it ``DIR``."""
    return _FOLDER.sub(lambda _: folder, command)


def _write_untried(run: Mapping[str, Any], folder: str, *, everything: bool) -> list[Text]:
    """Write which questions were not asked: by what would make them possible, and if `everything` is asked for, why.

    Failed ones are told of elsewhere. What makes one question alone possible is left to the page, unless it is a
    command or an option.
    """
    grouped: dict[str, list[str]] = {}
    for entry in run.get("untried", ()):
        if "failed" not in entry:
            what = _explain_untried(entry) if everything else _shorten_untried(entry, folder)
            grouped.setdefault(what, []).append(entry["question"])
    if not everything:
        alone = []
        # A command is short; what else makes one question possible stands on the page.
        for what, questions in [*grouped.items()]:
            if len(questions) == 1 and not what.endswith(" asks"):
                alone += grouped.pop(what)
        if alone:
            grouped["The page says what each of these needs, or why it is not possible"] = alone
    lines = []
    for what, questions in grouped.items():
        lines.append(Text.assemble(f"- {printable(what)}: ", (" ".join(map(printable, questions)), "dim")))
    if lines:
        lines.insert(0, Text("Not asked", style="bold"))
    return lines


def _explain_untried(entry: Mapping[str, Any]) -> str:
    """Say why a question was not asked, and what would make it possible."""
    why = end_sentence(entry["why"])
    if "remedy" in entry:
        why += f" {end_sentence(say_remedy(entry['remedy']))}"
    return why[:-1]


def _shorten_untried(entry: Mapping[str, Any], folder: str) -> str:
    """Say what would make a question possible, by the command or option alone where there is one."""
    # A report of an earlier version says no remedy, or says it with the reason.
    what: str = entry.get("remedy") or entry["why"]
    asking = _ASKING.search(what)
    if asking is not None:
        command = _fill_in(asking[0].strip("`"), folder)
        return f"{command} asks"
    if what.startswith(REMEDIED_BY_NOTHING):
        return "It is not possible here"
    return end_sentence(what)[:-1]


def _write_means(run: Mapping[str, Any]) -> list[Text]:
    """Write which attacks were made by which means."""
    by: dict[str, list[str]] = {}
    for each in run.get("means", ()):
        # Reports of earlier versions say no means.
        if "by" in each:
            by.setdefault(each["by"], []).append(each["attack"])
    return [Text.assemble(f"Asked with {printable(means)}: ", (", ".join(names), "dim")) for means, names in by.items()]


def _privacy(privacy: Mapping[str, Any]) -> Text:
    noise = f"{printable(privacy['noise_is'])} {write_spread(privacy['noise'])}"
    epsilon = (
        f"ε {write_spread(privacy['epsilon_round'])} a round, {write_spread(privacy['epsilon_run'])} for the whole run"
    )
    return Text.assemble(
        (printable(privacy["name"]), "bold"),
        f" ({noise}, C {privacy['clip']:g}, δ {privacy['delta']:g}): {epsilon}, least to most over clients; protects "
        f"{printable(privacy['unit'])}",
    )
