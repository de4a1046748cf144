"""What a change of the clients' messages did to each answer, in sentences."""

from collections.abc import Sequence

from fedattack.attacks.registry import declarations
from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import LEAK, NO_EVIDENCE, Finding, answering, certain_in_words, list_words
from fedattack.grids.whatif.altered import AlteredCell
from fedattack.report.answer import answers_of
from fedattack.report.compare import Run
from fedattack.report.words import end_sentence, shown

_REMAINS = "Leaks that remain"
_NEW = "Leaks that the original run does not show"
_OPEN = "Cannot be told"
_GONE = "Leaks that are not shown any more"
_NEVER = "No leak is shown, as in the original run"


def list_changes(cells: Sequence[AlteredCell], runs: Sequence[Run], groups: Sequence[Sequence[str]]) -> list[str]:
    """Say in lines for each altered copy what became of each answer.

    Parameters
    ----------
    cells, runs
        What was found; the first is the run as it was.
    groups
        Names of the findings that answer one question, of which a run has one at most.
    """
    lines = []
    for cell, run in zip(cells[1:], runs[1:], strict=True):
        sentences = _say_prevented(cell)
        changes: dict[str, list[str]] = {kind: [] for kind in (_REMAINS, _NEW, _OPEN, _GONE, _NEVER)}
        for group in groups:
            after = _find_answer(run, group)
            if after is not None:
                before = _find_answer(runs[0], group)
                changes[_classify(before, after)].append(_describe(before, after))
        for kind, parts in changes.items():
            if parts:
                sentences.append(f"{kind}: {'; '.join(parts)}.")
        lines += [f"{end_sentence(cell.alteration.label)} {sentence}" for sentence in sentences]
    return lines


def _say_prevented(cell: AlteredCell) -> list[str]:
    declared = declarations()
    titles = []
    for name in cell.prevented:
        title = declared[name].title
        titles.append(title[:1].lower() + title[1:])
    if not titles:
        return []
    attacks = end_sentence(list_words(titles, "and"))[:-1]
    return [f"{attacks} on single clients cannot be made any more: the server sees only sums."]


def _find_answer(run: Run, group: Sequence[str]) -> Finding | None:
    """Return what answers a question: the headline, or another finding of its attack that shows a leak."""
    for name in group:
        if name not in run.names:
            continue
        headline = run.find_named(name)
        if name.endswith(ADAPTIVE):
            return headline
        for finding in answering(run.findings):
            if finding.attack == headline.attack and finding.verdict == LEAK:
                return finding
        return headline
    return None


def _classify(before: Finding | None, after: Finding) -> str:
    was_leak = before is not None and before.verdict == LEAK
    if after.verdict == LEAK:
        return _REMAINS if was_leak else _NEW
    if after.verdict != NO_EVIDENCE:
        return _OPEN
    return _GONE if was_leak else _NEVER


def _describe(before: Finding | None, after: Finding) -> str:
    value = shown(after.value, after.units)
    if before is not None and before.name == after.name:
        was = shown(before.value, before.units)
        value = f"{value}, as before" if was == value else f"{was} → {value}"
    details = [value]
    if after.is_certain and after.read_off is not None:
        verb = "is" if after.read_off["certain"] == 1 else "are"
        details.append(f"{certain_in_words(after.read_off, len(after.seeds))} {verb} certain, of {after.n:,}")
    elif after.chance is not None:
        details.append(f"guessing gives {shown(after.chance, after.units)}")
    return f"{after.label.partition(',')[0]} ({'; '.join(details)})"


def list_steps(runs: Sequence[Run]) -> list[str]:
    """Say for each leak of an altered copy what to do first about it, once for each leak."""
    steps: dict[str, None] = {}
    for run in runs[1:]:
        for answer in answers_of(run.findings, run.facts, {}):
            if answer.finding.verdict == LEAK and answer.next:
                step = answer.next[0]
                about = answer.finding.label.partition(",")[0]
                measured = f" (Measured on {step.measured}.)" if step.measured else ""
                steps[f"{about}: {end_sentence(step.what)} {end_sentence(step.buys)}{measured}"] = None
    return list(steps)
