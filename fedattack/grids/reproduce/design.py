"""A paper's table or figure as a grid: its cells, the columns beside the paper's, and the picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedattack.audit.finding import PROPORTION, Finding
from fedattack.grids.cell import Cell, Job, Number, Request, group_by, write_command, write_value
from fedattack.grids.engine import DONE, Outcome, run_grid, state_version
from fedattack.grids.measure import (
    count_training_records,
    measure,
    per_round,
    write_measured,
    write_scaled,
    write_spread,
)
from fedattack.grids.page import Results, list_commands, list_done, name_levels
from fedattack.grids.reproduce.asked import check_words
from fedattack.grids.reproduce.picture import draw_results
from fedattack.grids.reproduce.spec import Reproduction
from fedattack.grids.trained import Audit, TrainedDesign, audit_cell, name_data
from fedattack.report.page import Page, Passage
from fedattack.report.section import PageTable
from fedattack.report.words import NOTHING, count_words


def reproduce(
    spec: Reproduction,
    request: Request,
    *,
    only: Sequence[str] = (),
    data: Sequence[str] = (),
    audit: Audit = audit_cell,
) -> dict[str, Any]:
    """Run what is not yet there, and write ``NAME.json``, ``NAME.md`` and ``NAME.svg`` anew after every cell.

    Cells lie in ``cells``, where several reproductions may share them.

    Parameters
    ----------
    spec
        The reproduction.
    request
        How its cells are run.
    only
        ``column=value``: run these cells alone. Values of one column add up, columns narrow down.
    data
        ``name=path.npz`` or ``.toml``: files that stand for datasets.
    audit
        Makes a cell's run folder.

    Returns
    -------
    dict
        What ``NAME.json`` holds.

    Raises
    ------
    ConfigError
        If an argument fits nothing, the folder holds something else, or cells in it were run with other settings; or
        if there is no such cluster, or its machines do not fit.
    """
    selected, files = check_words(spec, only, request.changes, data)
    name, cells = spec.name, spec.cells
    return run_grid(
        Reproducing(name=name, request=request, cells=cells, audit=audit, selected=selected, files=files, spec=spec)
    )


@dataclass(kw_only=True)
class Reproducing(TrainedDesign):
    """How a reproduction is run and shown."""

    spec: Reproduction

    def read_cell(self, job: Job, findings: Sequence[Finding], run: Mapping[str, Any]) -> dict[str, Any]:
        """Read the numbers of a cell that is done."""
        figure, numbers = self.spec.figure, {}
        for name, number in self.spec.numbers.items():
            numbers[name] = measure(number, findings, run, job.cell.paper.get(name))
        entry = {
            "place": dict(job.cell.place),
            "data": name_data(str(job.settings["dataset"])),
            "training_records": count_training_records(run),
            "numbers": numbers,
        }
        # Only a figure by rounds needs the whole series.
        if figure.kind == "rounds":
            entry["per_round"] = per_round(self.spec.numbers[figure.y], findings)
        return entry

    def describe(self, cell: Cell) -> str:
        """Say in a line what came out of a cell that is done."""
        return self.describe_number(cell, self.spec.first, self.read_entry(cell)["numbers"][self.spec.first.name])

    def gather(self, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
        """Gather what the file of the results holds."""
        request, spec, cells = self.request, self.spec, []
        for cell in self.cells:
            stated = {name: {"paper": asdict(paper)} for name, paper in cell.paper.items()}
            entry = {"cell": cell.name, "place": dict(cell.place), **outcomes[cell.name].describe(), "numbers": stated}
            if outcomes[cell.name].state == DONE:
                entry = self.read_entry(cell)
            cells.append(entry)
        data = [f"{name}={path.name}" for name, path in self.files.items()]
        given = {"seeds": [request.seeds], "set": request.changes, "data": data, "memory": [request.memory]}
        command = write_command("reproduce", spec.name, "--out", "DIR", **given)
        head = {"reproduction": spec.name, "title": spec.title, "paper": spec.paper}
        return {**head, **state_version(command, request.changes), "columns": list(spec.columns), "cells": cells}

    def write_pages(self, results: Results) -> dict[str, str]:
        """Write the picture, if there is something to draw, and the table."""
        pages = {}
        picture = draw_results(self.spec, results)
        if picture:
            pages[f"{self.name}.svg"] = picture
        page = make_page(self.spec, results, picture=next(iter(pages), ""))
        return {**pages, f"{self.name}.md": page.to_markdown()}


def make_page(spec: Reproduction, results: Results, *, picture: str = "") -> Page:
    """Put ours beside the paper's; `picture` is the file that shows both."""
    done, passages, departure = list_done(results), [], ""
    if results["changes"]:
        departure = f"Departs from the paper's setting in: {', '.join(results['changes'])}."
    if done:
        passages.append(Passage("table", "", "numbers", _make_table(spec, done), texts=len(spec.columns)))
    passages.append(Passage("picture", spec.title, "", picture))
    # Cells that lack for the same reason are told of together.
    lacking = group_by(list_done(results, done=False), lambda entry: entry["reason"])
    lines = [_describe_lacking(spec, reason, entries) for reason, entries in lacking.items()]
    passages.append(Passage("lines", "Not there", "lacking", lines))
    return Page(
        kind="Reproduction",
        title=spec.title,
        about=f"{spec.paper}. {spec.about}",
        passages=passages,
        commands=list_commands(results),
        version=results["fedattack"],
        departure=departure,
    )


def _make_table(spec: Reproduction, done: Sequence[Results]) -> PageTable:
    header, rows = list(spec.columns), []
    for entry in done:
        rows.append([_write_place(entry, column) for column in spec.columns])
    for name, number in spec.numbers.items():
        title = f"{number.title} {number.units}".rstrip()
        if number.units == PROPORTION:
            title = f"{number.title} (%)"
        with_paper = any(entry["numbers"][name]["paper"] for entry in done)
        if with_paper:
            header += [f"paper, {title}", f"ours, {title}", "difference"]
        else:
            header.append(f"ours, {title}")
        for row, entry in zip(rows, done, strict=True):
            row += _write_number(number, entry["numbers"][name], with_paper)
    header += ["chance", "null", "n", "seeds", "min"]
    for row, entry in zip(rows, done, strict=True):
        ours = entry["numbers"][spec.first.name]
        for value in (ours["chance"], (ours["null"] or {}).get("value")):
            row.append(write_scaled(spec.first, value))
        count = NOTHING
        if ours["n"]:
            count = f"{ours['n']:,}"
        row += [count, str(len(entry["seeds"])), f"{entry['minutes']:.1f}"]
    return PageTable("", _write_legend(done), header, rows)


def _write_number(number: Number, ours: Mapping[str, Any], with_paper: bool) -> list[str]:
    """Write a number of a cell, between the paper's and the difference if the table has these."""
    text = write_measured(number, ours)
    if not with_paper:
        return [text]
    paper = NOTHING
    if ours["paper"]:
        paper = write_spread(number, ours["paper"]["mean"], ours["paper"]["sd"])
    # z: no minus before a zero that was rounded.
    return [paper, text, write_scaled(number, ours["difference"], "+z.1f")]


def _write_place(entry: Mapping[str, Any], column: str) -> str:
    """Name a cell's value in a column, and for data what they really were."""
    text = write_value(entry["place"][column])
    facts = []
    if column == "dataset" and entry["data"] not in ("", text):
        facts.append(entry["data"])
    if column == "dataset" and entry["training_records"] is not None:
        facts.append(f"{entry['training_records']:,} training examples")
    if facts:
        text += f" ({', '.join(facts)})"
    return text


def _write_legend(done: Sequence[Results]) -> str:
    measured: list[Results] = []
    for entry in done:
        measured += entry["numbers"].values()
    text, levels = "Ours: mean ± sd over seeds", name_levels(measured)
    if any(each["low"] is not None and each["comparisons"] > 1 for each in measured):
        levels += ", wider for what was chosen among several after seeing the results"
    if levels:
        text += f" (interval at {levels})"
    minutes = sum(entry["minutes"] for entry in done)
    return (
        f"{text}. Difference: ours less the paper's. Null: the same attack where there is nothing to find. "
        f"{len(done)} cells took {minutes:.0f} minutes."
    )


def _describe_lacking(spec: Reproduction, reason: str, entries: Sequence[Results]) -> str:
    """Name cells that are not there for the same reason by what they have in common."""
    common = []
    for column in spec.columns:
        choices, there = spec.choices(column), [entry["place"][column] for entry in entries]
        values = [write_value(value) for value in choices if value in there]
        # Nothing is said of a column of which they have all values.
        if 0 < len(values) < len(choices):
            common.append(f"{column} {', '.join(values)}")
    text = count_words(len(entries), "cell")
    if common:
        text += f" ({'; '.join(common)})"
    return f"{text}: {reason}"
