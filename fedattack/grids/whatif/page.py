"""A run as it was beside its altered copies, as one HTML page and as Markdown."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import Finding
from fedattack.base.files import write_atomically
from fedattack.grids.whatif.cell import AlteredCell
from fedattack.record.project import ALTERED
from fedattack.report.compare import Run, by_setting, table_of, to_markdown
from fedattack.report.html import template
from fedattack.report.section import Table
from fedattack.report.words import markdown, printable_all


def limits_of(cells: Sequence[AlteredCell]) -> list[str]:
    """Say what such a comparison cannot tell."""
    kinds = {cell.alteration.kind for cell in cells}
    lines = []
    if kinds & {"noise", "keep"}:
        lines += [
            "How training would have gone. Each round's model comes from the run as it was. With noise or dropped "
            "entries the clients would have been sent other models, would have sent others back, and the model might "
            "have learned less. `fedattack tradeoff` trains anew.",
            "What the models that the server sends would have told. They are those of the run as it was, and what an "
            "attack reads off them is as before. Training with the defence may leak less there.",
            "What a guarantee would be. No update is clipped here, so that the noise promises no (ε, δ).",
        ]
        lines.append(_describe_knowing(cells))
    if "secagg" in kinds:
        lines.append(
            "What secure aggregation does beside hiding: sums are computed from the replies, without cryptography and "
            "without rounding. It changes the training by rounding alone, so that models of later rounds are right."
        )
    lines.append("What a better attack would find. Each number is a lower bound.")
    return lines


def _describe_knowing(cells: Sequence[AlteredCell]) -> str:
    if any(cell.adaptive for cell in cells):
        return (
            f"What other attackers do who know of the defence. Findings that end in {ADAPTIVE} are of attackers who "
            "put their own updates through it; all others do not know of it."
        )
    return (
        "What an attacker does who knows what was changed: none of these does, and such an attacker may find more. "
        "Those of membership and private-attribute are told where clients send models and have no defence of their own."
    )


def not_asked_of(cells: Sequence[AlteredCell]) -> list[str]:
    """Say in a line each which attacks were not made, and why."""
    lines = []
    for cell in cells:
        for name, why in cell.not_asked.items():
            lines.append(f"{cell.alteration.label}, {name}: {why}")
    return lines


def write_page(out: Path, cells: Sequence[AlteredCell], results: dict[str, Any]) -> None:
    """Write ``what-if.html`` and ``what-if.md``."""
    clean = printable_all(dict(results))
    runs = _runs_of(cells)
    names = _names_of(runs)
    headlines = _headlines(runs, names)
    plots = []
    for place, name in enumerate(headlines):
        having = [run for run in runs if name in run.names]
        if len(having) > 1:
            plots.append(by_setting(having, [ALTERED], name, anchor=f"what-if-{place}"))
    tables = [table_of(runs, [ALTERED], name) for name in names]
    not_asked = printable_all(not_asked_of(cells))
    links = [
        {"label": cell.alteration.label, "href": f"{entry['folder']}/report.html"}
        for cell, entry in zip(cells, clean["runs"], strict=True)
        if cell.run is not None
    ]
    setting = runs[0].facts["setting"]
    page = template("what-if.html.j2").render(
        title=f"What if? {clean['title']}",
        keys=[ALTERED],
        runs=runs,
        plots=plots,
        tables=tables,
        shared={key: value for key, value in setting.items() if key != ALTERED},
        glances=glances_of(cells),
        limits=clean["limits"],
        not_asked=not_asked,
        links=links,
        command=clean["command"],
    )
    text = to_markdown(f"What if? {clean['title']}", tables)
    for heading, lines in (("What this cannot tell", clean["limits"]), ("Not asked, and why", not_asked)):
        if lines:
            text += f"\n## {heading}\n\n" + "".join(f"- {markdown(line)}\n" for line in lines)
    write_atomically(out / "what-if.md", text.encode())
    write_atomically(out / "what-if.html", page.encode())


def _runs_of(cells: Sequence[AlteredCell]) -> list[Run]:
    runs = [cell.run or _empty(cell) for cell in cells]
    for place, cell in enumerate(cells):
        if cell.alteration.settings is None:
            runs[place] = _with_twins(runs[place], runs)
    return runs


def _names_of(runs: Sequence[Run]) -> list[str]:
    names: dict[str, None] = {}
    for run in runs:
        names |= dict.fromkeys(run.names)
    return list(names)


def _empty(cell: AlteredCell) -> Run:
    """Stand for a copy of which nothing could be asked."""
    return Run(cell.alteration.name, {"setting": {ALTERED: cell.alteration.label}}, [])


def _with_twins(bare: Run, runs: Sequence[Run]) -> Run:
    """Give a run without a change the findings of attackers who know of it: there is nothing to know of.

    They are those of the attacker who does not know.
    """
    added: dict[str, Finding] = {}
    for run in runs:
        for finding in run.findings:
            blind = finding.name.removesuffix(ADAPTIVE)
            if finding.name.endswith(ADAPTIVE) and finding.name not in bare.names and blind in bare.names:
                twin = replace(bare.named(blind), metric=finding.metric, label=finding.label)
                added.setdefault(finding.name, replace(twin, headline=finding.headline))
    return replace(bare, findings=[*bare.findings, *added.values()])


def _headlines(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Name the findings that some run has as its headline, each followed by its twin of who knows of the defence."""
    chosen = {finding.name for run in runs for finding in run.findings if finding.headline}
    found: list[str] = []
    for name in names:
        twin = name + ADAPTIVE
        if name in chosen:
            found += [name, *([twin] if twin in names else [])]
    return list(dict.fromkeys(found))


def glances_of(cells: Sequence[AlteredCell]) -> list[Table]:
    """Put each headline in a table of its own, with a row for each run."""
    runs = _runs_of(cells)
    tables = []
    for name in _headlines(runs, _names_of(runs)):
        table = table_of(runs, [ALTERED], name)
        rows = [[row[0], *row[1:3], row[-1]] for row in table.rows]
        caption = name if name in runs[0].names else f"{name}: an attack on sums, which the run as it was did not make"
        tables.append(Table(table.title, caption, ["what if", *table.header[1:3], "verdict"], rows))
    return tables
