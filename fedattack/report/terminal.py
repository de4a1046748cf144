"""What was found, for the terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from rich.align import AlignMethod
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.text import Text

from fedattack.attacks.registry import THREATS
from fedattack.audit.finding import (
    CANNOT_TELL,
    LEAK,
    NO_EVIDENCE,
    NOT_APPLICABLE,
    PROPORTION,
    TOO_FEW,
    Finding,
    list_words,
)
from fedattack.base.reasons import NOTHING as REMEDIED_BY_NOTHING
from fedattack.report.answer import NONE_KNOWN, Answer, Glance, answers_of, overview_of, steps_of, summary_of
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

_BY_ITS_TEST = "‡ a leak on these targets; the interval, for other targets, includes guessing"

_STYLES = {LEAK: "bold red", NO_EVIDENCE: "cyan", TOO_FEW: "yellow", CANNOT_TELL: "yellow", NOT_APPLICABLE: "dim"}


@dataclass(frozen=True)
class _Table:
    """A table of texts, one line a row, that breaks no name and leaves out nothing.

    A name that leaves no room for its numbers has a line of its own above them.

    Attributes
    ----------
    rows
        The titles, then one row for each finding: name, numbers, and verdict.
    """

    rows: Sequence[Sequence[Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(cell.cell_len for cell in column) for column in zip(*self.rows, strict=True)]
        gap = "  "
        if sum(widths) + len(gap) * (len(widths) - 1) > options.max_width:
            gap = " "
        room = options.max_width - sum(widths[1:]) - len(gap) * (len(widths) - 1)
        widths[0] = max((row[0].cell_len for row in self.rows if row[0].cell_len <= room), default=0)
        for name, *numbers, verdict in self.rows:
            if name.cell_len > room:
                yield name
                name = Text()
            cells = [_align(name, "left", widths[0])]
            cells += [_align(number, "right", width) for number, width in zip(numbers, widths[1:-1], strict=True)]
            yield Text(gap).join([*cells, verdict])


def _align(text: Text, align: AlignMethod, width: int) -> Text:
    aligned = text.copy()
    aligned.align(align, width)
    return aligned


@dataclass(frozen=True)
class _Answered:
    """A question and its answer, on one line where they fit; else the answer stands below."""

    question: Text
    answer: Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(" ").join([self.question, self.answer])
        if line.cell_len <= options.max_width:
            yield line
        else:
            yield self.question
            yield Padding(self.answer, (0, 0, 0, 2), expand=False)


def _cells(finding: Finding) -> list[Text]:
    name = Text(finding.name, style="bold" if finding.headline else "")
    if finding.selected_after_the_fact:
        name.append(" †", style="yellow")
    # An ordinary terminal has 80 columns, so that other units than per cent stand at the value alone.
    units = finding.units
    if units != PROPORTION:
        units = ""
    ends = interval(finding.low, finding.high, units)
    if finding.low is not None and finding.low >= 0:
        # A dash is short; before a negative end it would read as a second sign.
        ends = ends.replace(" to ", "–")
    verdict = finding.verdict
    if is_by_its_test_alone(finding):
        verdict += " ‡"
    return [
        name,
        Text(shown(finding.value, finding.units)),
        Text(ends),
        Text(shown(finding.chance, units)),
        Text(shown(finding.null_value, units)),
        Text(f"{finding.n:,}"),
        Text(verdict, _STYLES[finding.verdict]),
    ]


def render_summary(
    findings: Sequence[Finding], run: Mapping[str, Any], *, everything: bool = False, folder: str = "DIR"
) -> Group:
    """Write what was found for :meth:`rich.console.Console.print`, so that an audit of an app fits one screen.

    Questions and answers come first, then a table of headlines and leaks with one line for each finding, what to do
    next, and what was not asked, by name.

    Parameters
    ----------
    findings
        All findings. They go by the names that ``--fail-if`` takes.
    run
        What ``run.json`` holds.
    everything
        Whether the table has all findings; whether their labels, the grounds of verdicts, what the attacker is assumed
        to know, by which means each attack was made, and why a question was not asked stand there, too.
    folder
        The run folder, as commands name it that are proposed.
    """
    answers = answers_of(findings, run, {})
    glances = overview_of(answers, run)
    # Text, never markup: names that came from clients may hold brackets.
    heading = [Text(printable(run["title"]), style="bold"), Text(printable(summary_of(glances, run)))]
    if "unanswered" in run:
        heading.append(Text(printable(end_sentence(run["unanswered"]))))
    blocks: list[Sequence[RenderableType]] = [heading]
    blocks.append([_write_answer(glance) for glance in glances if glance.said != NONE_KNOWN])
    blocks.append(_write_findings(findings, everything=everything))
    if everything:
        blocks += [_write_labels(findings), _write_grounds(findings)]
        blocks.append(_write_list("The attacker is assumed to know", run["threat_model"]["knows"]))
        blocks.append(_write_list("Notes", run["notes"]))
    blocks.append(_write_sent(run, everything=everything))
    blocks.append(_write_next([answers[glance.card - 1] for glance in glances if glance.step], folder))
    if everything:
        blocks += [_write_means(run), _explain_untried(run)]
    else:
        blocks.append(_name_untried(run, folder))
        shown_by_all = "every reason, and what the attacker knows"
        if findings:
            shown_by_all = f"all {len(findings)} findings, {shown_by_all}"
        blocks.append([Text(f"--all shows {shown_by_all}.")])
    parts: list[RenderableType] = []
    for block in filter(None, blocks):
        parts += [*block, Text()]
    return Group(*parts)


def _write_answer(glance: Glance) -> _Answered:
    style = ""
    if glance.finding is not None:
        style = _STYLES[glance.finding.verdict]
    return _Answered(Text(glance.question), Text(printable(glance.answer), style))


def _write_findings(findings: Sequence[Finding], *, everything: bool) -> list[RenderableType]:
    """Write the table of headlines and leaks, or of all findings, and what its marks mean."""
    if not findings:
        return [Text("There are no findings.")]
    listed = [each for each in findings if everything or each.headline or each.verdict == LEAK]
    lines: list[RenderableType] = []
    if listed:
        titles = ("finding", "value", interval_title(listed), "chance", "null", "n", "verdict")
        lines.append(_Table([[Text(title, "underline") for title in titles], *map(_cells, listed)]))
    if any(map(attrgetter("selected_after_the_fact"), listed)):
        lines.append(Text("† selected after the fact: chosen by looking at the results", style="yellow"))
    if any(map(is_by_its_test_alone, listed)):
        lines.append(Text(_BY_ITS_TEST, style="yellow"))
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
    """Write what to do about the answers, each thing once, and against which of several leaks it helps."""
    lines = []
    leaks = sum(answer.finding.verdict == LEAK for answer in answers)
    for step, helped in steps_of(answers).items():
        line = step.what
        if helped[0].finding.verdict == LEAK and len(helped) < leaks:
            line += f" (helps against {list_words([answer.finding.attack for answer in helped], 'and')} only)"
        line += "."
        if step.command:
            line += f" Try: {_fill_in(step.command, folder)}"
        lines.append(line)
    return _write_list("What to do next", lines)


def _fill_in(command: str, folder: str) -> str:
    """Name the run folder in a command that calls it ``DIR``."""
    return _FOLDER.sub(lambda _: folder, command)


def _list_untried(run: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """List the questions that were not asked; of those that failed the command warns."""
    return [entry for entry in run.get("untried", ()) if "failed" not in entry]


def _name_untried(run: Mapping[str, Any], folder: str) -> list[Text]:
    """Name the threats that were not tried, by what would make it possible to try them."""
    names = {threat.question: threat.name for threat in THREATS.values()}
    grouped: dict[str, list[str]] = {}
    for entry in _list_untried(run):
        question = entry["question"]
        # A question that no installed threat asks has no name.
        grouped.setdefault(_shorten_need(entry, folder), []).append(names.get(question, question))
    lines = [f"{', '.join(named)}: {need}" for need, named in grouped.items()]
    return _write_list("Not asked, and what each needs (fedattack list attacks explains the names)", lines)


def _explain_untried(run: Mapping[str, Any]) -> list[Text]:
    """Write why questions were not asked, and what would make it possible."""
    grouped: dict[str, list[str]] = {}
    for entry in _list_untried(run):
        why = end_sentence(entry["why"])
        if "remedy" in entry:
            why += f" {end_sentence(say_remedy(entry['remedy']))}"
        grouped.setdefault(why[:-1], []).append(entry["question"])
    return _write_list("Not asked", [f"{why}: {' '.join(questions)}" for why, questions in grouped.items()])


def _shorten_need(entry: Mapping[str, Any], folder: str) -> str:
    """Say what would make a question possible, by the command or option alone where there is one."""
    # A report of an earlier version says no remedy, or says it with the reason.
    what: str = entry.get("remedy") or entry["why"]
    asking = _ASKING.search(what)
    if asking is not None:
        return _fill_in(asking[0].strip("`"), folder)
    if what.startswith(REMEDIED_BY_NOTHING):
        return "not possible here"
    return what


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
