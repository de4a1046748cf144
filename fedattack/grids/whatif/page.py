"""A run as it was beside its altered copies, as one HTML page and as Markdown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import Finding
from fedattack.grids.measure import add_twins
from fedattack.grids.page import Results
from fedattack.grids.whatif.alteration import Alteration
from fedattack.record.project import ALTERED
from fedattack.report.compare import Run, by_setting, table_of
from fedattack.report.page import Page, Passage
from fedattack.report.section import PageTable
from fedattack.report.words import printable_all


@dataclass(frozen=True)
class AlteredCell:
    """What was found of one altered copy, or of the run as it was.

    Attributes
    ----------
    alteration
        What was changed.
    run
        What was found; ``None`` if nothing could be asked.
    not_asked
        By attack, why it was not made.
    adaptive
        Whether the attackers who can know a defence were told of this one.
    """

    alteration: Alteration
    run: Run | None
    not_asked: Mapping[str, str] = field(default_factory=dict)
    adaptive: bool = False

    @property
    def findings(self) -> list[Finding]:
        """What was found; nothing where nothing could be asked."""
        return self.run.findings if self.run else []

    @property
    def headlines(self) -> list[Finding]:
        """The headlines among these."""
        return [finding for finding in self.findings if finding.headline]

    def measures(self, name: str) -> bool:
        """Whether there is a finding of this name; without a name, a headline."""
        names = [finding.name for finding in self.findings]
        return name in names or (not name and bool(self.headlines))


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


def list_not_asked(cells: Sequence[AlteredCell]) -> list[str]:
    """Say in a line each which attacks were not made, and why."""
    lines = []
    for cell in cells:
        for name, why in cell.not_asked.items():
            lines.append(f"{cell.alteration.label}, {name}: {why}")
    return lines


def write_pages(cells: Sequence[AlteredCell], results: Results) -> dict[str, str]:
    """Write ``what-if.html`` and ``what-if.md``."""
    clean = printable_all(dict(results))
    runs = _list_runs(cells)
    names = _list_names(runs)
    tables, plots = list(map(partial(table_of, runs, [ALTERED]), names)), []
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
        Passage("figures", "At a glance", "glance", list_glances(cells)),
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


def list_glances(cells: Sequence[AlteredCell]) -> list[PageTable]:
    """Put each headline in a table of its own, with a row for each run."""
    runs = _list_runs(cells)
    tables = []
    for name in _list_headlines(runs, _list_names(runs)):
        table = table_of(runs, [ALTERED], name)
        # Value, interval and verdict, without chance and baselines, which are in the whole table.
        rows = [[*row[:3], row[-1]] for row in table.rows]
        caption = name
        if name not in runs[0].names:
            caption += ": an attack on sums, which the original run did not make"
        tables.append(PageTable(table.title, caption, ["what if", *table.header[1:3], "verdict"], rows))
    return tables


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
