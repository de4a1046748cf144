"""A run as it was beside its altered copies, as one HTML page and as Markdown."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fedattack.attacks.registry import threat_of
from fedattack.attacks.threat import ADAPTIVE
from fedattack.grids.measure import add_twins
from fedattack.grids.page import Results
from fedattack.grids.whatif.altered import AlteredCell, list_not_asked
from fedattack.grids.whatif.summary import list_changes, list_steps
from fedattack.record.project import ALTERED
from fedattack.report.compare import Run, by_setting, table_of
from fedattack.report.page import Page, Passage
from fedattack.report.section import PageTable
from fedattack.report.words import NOTHING, printable_all, shown, verdict_in_words, with_interval


def list_limits(cells: Sequence[AlteredCell]) -> list[str]:
    """Say what such a comparison cannot tell."""
    kinds = {cell.alteration.kind for cell in cells}
    lines = []
    if kinds & {"noise", "keep"}:
        lines += [
            "How training would have gone. Each round's model comes from the original run. With noise or dropped "
            "entries clients would have received and sent different models, and the model might have learned less. "
            "`fedattack tradeoff` trains again.",
            "What the models that the server sends would have revealed. They are those of the original run, and an "
            "attack reads the same from them as before. Training with the defence may leak less there.",
            "What a guarantee would be. No update is clipped here, so that the noise promises no (ε, δ).",
        ]
        lines.append(_describe_knowing(cells))
    if "secagg" in kinds:
        lines.append(
            "What secure aggregation does besides hiding: sums are computed from the replies, without cryptography and "
            "without rounding. It changes the training by rounding alone, so that models of later rounds are right."
        )
    lines.append("What a better attack would find. Each number is a lower bound.")
    return lines


def _describe_knowing(cells: Sequence[AlteredCell]) -> str:
    if any(cell.adaptive for cell in cells):
        return (
            f"What other attackers do who know the defence. Findings that end in {ADAPTIVE} have attackers who put "
            "their own updates through it; all other attackers do not know it."
        )
    return (
        "What attackers do who know what was changed: these do not know, and those who do may find more. "
        "The attackers of membership and private-attribute do know, if clients send models and have no defence of "
        "their own."
    )


def write_pages(cells: Sequence[AlteredCell], results: Results) -> dict[str, str]:
    """Write ``what-if.html`` and ``what-if.md``."""
    clean = printable_all(dict(results))
    runs = _list_runs(cells)
    names = _list_names(runs)
    tables = [_tabulate(cells, runs, name) for name in names]
    plots = []
    # Only figures that compare something.
    for index, name in enumerate(_list_headlines(runs, names)):
        having = [run for run in runs if name in run.names]
        if len(having) > 1:
            plots.append(by_setting(having, [ALTERED], name, anchor=f"what-if-{index}"))
    links = {}
    for cell, entry in zip(cells, clean["runs"], strict=True):
        if cell.run is not None:
            links[f"{entry['folder']}/report.html"] = cell.alteration.label
    shared = dict(runs[0].facts["setting"])
    shared.pop(ALTERED, None)
    passages = [
        Passage("lines", "In short", "short", list_sentences(cells)),
        Passage("lines", "What to do about what remains", "next", list_steps(runs)),
        Passage("table", "At a glance", "glance", _join_glances(list_glances(cells)), texts=2),
        Passage("lines", "What this cannot tell", "limits", clean["limits"]),
        Passage("lines", "Not asked, and why", "not-asked", printable_all(list_not_asked(cells))),
        Passage("figures", "Side by side", "figures", plots),
        Passage("cards", "Findings", "findings", tables),
        Passage("links", "The whole report of each", "runs", links),
        Passage("facts", "The same in all runs", "shared", shared),
    ]
    page = Page(
        kind="What if: the same attacks on altered copies of one record",
        title=f"What if? {clean['title']}",
        passages=passages,
        commands=[clean["command"]],
    )
    return {"what-if.md": page.to_markdown(), "what-if.html": page.to_html()}


def list_sentences(cells: Sequence[AlteredCell]) -> list[str]:
    """Say in lines for each altered copy what became of each answer."""
    runs = _list_runs(cells)
    return list_changes(cells, runs, _group_headlines(runs))


def list_glances(cells: Sequence[AlteredCell]) -> list[PageTable]:
    """Put each question in a table of its own, with a row for each run.

    The columns are the run, the result with its interval, chance, the null run, and the verdict.
    """
    runs = _list_runs(cells)
    tables = []
    for group in _group_headlines(runs):
        rows = []
        for cell, run in zip(cells, runs, strict=True):
            label = cell.alteration.label
            names = [name for name in group if name in run.names]
            if not names:
                rows.append([label, NOTHING, NOTHING, NOTHING, cell.explain_absence(group[0])])
                continue
            finding = run.find_named(names[0])
            result = with_interval(finding.to_dict(), finding.units)
            guesses = [shown(number, finding.units) for number in (finding.chance, finding.null_value)]
            rows.append([label, result, *guesses, verdict_in_words(finding)])
        having = [run for run in runs if group[0] in run.names]
        caption = group[0]
        for sums in group[1:]:
            caption += f"; of sums {sums}"
        if len(group) == 1 and group[0] not in runs[0].names:
            caption += ": an attack on sums, which the original run did not make"
        title = table_of(having, [ALTERED], group[0]).title
        tables.append(PageTable(title, caption, ["what if", "result", "chance", "null run", "verdict"], rows))
    return tables


def _join_glances(tables: Sequence[PageTable]) -> PageTable:
    """Put the questions below each other in one table, each row with its question."""
    rows, header = [], ["question"]
    titles = [table.title for table in tables]
    for table in tables:
        question = table.title
        if titles.count(question) > 1:
            question += f" ({table.caption})"
        header = ["question", *table.header]
        rows += [[question, *row] for row in table.rows]
    return PageTable("What was found, with and without each change", "", header, rows)


def _tabulate(cells: Sequence[AlteredCell], runs: Sequence[Run], name: str) -> PageTable:
    """Write all numbers of one finding, with a row for each run."""
    reasons = {run.name: cell.explain_absence(name) for cell, run in zip(cells, runs, strict=True)}
    return table_of(runs, [ALTERED], name, lambda run: reasons[run.name])


def _list_runs(cells: Sequence[AlteredCell]) -> list[Run]:
    """List what was found, of a copy of which nothing could be asked a run without findings."""
    runs = []
    for cell in cells:
        # A copy of which nothing could be asked keeps its row in every table.
        empty = Run(cell.alteration.name, {"setting": {ALTERED: cell.alteration.label}}, [])
        runs.append(cell.run or empty)
    findings = list(chain.from_iterable(run.findings for run in runs))
    for index, cell in enumerate(cells):
        if cell.alteration.settings is None:
            runs[index] = replace(runs[index], findings=add_twins(runs[index].findings, findings))
    return runs


def _list_names(runs: Sequence[Run]) -> list[str]:
    names: dict[str, None] = {}
    for run in runs:
        names |= dict.fromkeys(run.names)
    return list(names)


def _list_headlines(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Name the findings that some run has as its headline, each followed by its twin of who knows of the defence."""
    headlines: dict[str, None] = {}
    for name in names:
        if any(name in run.names and run.find_named(name).headline for run in runs):
            headlines[name] = None
            if name + ADAPTIVE in names:
                headlines[name + ADAPTIVE] = None
    return list(headlines)


def _group_headlines(runs: Sequence[Run]) -> list[list[str]]:
    """Put headlines together that measure the same of one question, and of which each run has one at most.

    An attack on sums takes the place of one on single replies.
    """
    groups: list[list[str]] = []
    for name in _list_headlines(runs, _list_names(runs)):
        attack, _, metric = name.partition(".")
        for group in groups:
            other, _, same = group[0].partition(".")
            overlaps = any(name in run.names and {*group} & {*run.names} for run in runs)
            if threat_of(attack) is threat_of(other) is not None and metric == same and not overlaps:
                group.append(name)
                break
        else:
            groups.append([name])
    return groups
