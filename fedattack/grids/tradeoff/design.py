"""A trade-off study as a grid: what the cells tell, and which defence is the better one."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, compress
from typing import Any

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.audited import title_of
from fedattack.audit.finding import NOT_APPLICABLE, PROPORTION, Finding
from fedattack.base.errors import FedAttackError, ReportError
from fedattack.base.files import write_sealed
from fedattack.base.settings import Value
from fedattack.base.untrusted import read_sealed
from fedattack.defences import NONE
from fedattack.grids.cell import Cell, Job, Number, Request, group_by, select_keys, write_command
from fedattack.grids.engine import DONE, Outcome, run_grid, state_version
from fedattack.grids.measure import add_twins, measure, read_finding
from fedattack.grids.page import Results, list_done
from fedattack.grids.tradeoff.analysis import Curve, compare, losses_of, measured_cells, pareto_front, success_of
from fedattack.grids.tradeoff.cost import KEPT_COST, measure_cost
from fedattack.grids.tradeoff.grid import ACCURACY, LOSS, check_words, describe_strengths, load_ladders, make_cells
from fedattack.grids.tradeoff.page import summarise, write_pages
from fedattack.grids.trained import Audit, TrainedDesign, audit_cell
from fedattack.learning import pick_device
from fedattack.report.section import section_of
from fedattack.runs.presets import load_preset
from fedattack.runs.simulating import choose_seeds

MeasureCost = Callable[[Mapping[str, Value], Mapping[str, float]], dict[str, Any]]


def tradeoff(
    name: str,
    request: Request,
    *,
    wanted: Sequence[str] = (),
    audit: Audit = audit_cell,
    cost: MeasureCost = measure_cost,
) -> dict[str, Any]:
    """Run a preset without defence and with each at each of its strengths; it stops and goes on as a reproduction does.

    After every cell ``tradeoff-NAME.json`` is written anew, then ``.md``, ``.svg`` and ``.html``, which say the same.

    Parameters
    ----------
    name
        The preset.
    request
        How its cells are run.
    wanted
        ``DEFENCE`` or ``DEFENCE=s1,s2,…``; all defences with their usual strengths if there are none.
    audit
        Makes a cell's run folder.
    cost
        Measures what defences cost; see :func:`fedattack.grids.tradeoff.cost.measure_cost`.

    Returns
    -------
    dict
        What ``tradeoff-NAME.json`` holds. Successes of attacks and learning losses that do not exist are None.

    Raises
    ------
    ConfigError
        If an argument fits nothing, the folder holds something else, or cells in it were run with other settings.
    """
    preset = load_preset(name)
    pick_device(request.device)
    strengths, undefended = check_words(preset, wanted, request.changes)
    given = {"defence": wanted, "seeds": [request.seeds], "set": request.changes, "memory": [request.memory]}
    settings = {**undefended, "seed": choose_seeds(preset, None, request.seeds)[0]}
    design = TradingOff(
        name=f"tradeoff-{name}",
        request=request,
        cells=make_cells(name, strengths),
        audit=audit,
        preset=name,
        title=f"What defences buy and cost: {title_of(preset.attacks, settings)}",
        command=write_command("tradeoff", name, "--out", "DIR", **given),
    )
    results = run_grid(design)
    if list_done(results):
        request.tell("cost of each defence")
        ladders = load_ladders()
        # The lower of the two in the middle, for a ladder of an even number of strengths.
        middles = {kind: float(values[(len(values) - 1) // 2]) for kind, values in strengths.items() if kind in ladders}
        results["cost"] = _measure_once(design, cost, settings, middles)
        design.write(results)
    return results


def _measure_once(
    design: "TradingOff", cost: MeasureCost, settings: Mapping[str, Value], strengths: Mapping[str, float]
) -> dict[str, Any]:
    """Measure the cost, unless it was measured before on the same."""
    file = design.request.cells / f"{design.preset}_cost.json"
    job = {"settings": dict(settings), "strengths": dict(strengths)}
    if file.exists():
        kept = read_sealed(file, KEPT_COST, ReportError, "delete it to measure again")
        if kept["job"] == job:
            return dict(kept["cost"])
    try:
        measured = cost(settings, strengths)
    # Refused costs are kept as a reason, and not written, so that they are tried again.
    except FedAttackError as problem:
        return {"reason": str(problem)}
    write_sealed(file, {"job": job, "cost": measured})
    return measured


@dataclass(kw_only=True)
class TradingOff(TrainedDesign):
    """How a trade-off study is run and shown."""

    preset: str
    title: str
    command: str
    quality: str | None = None
    guessing: float | None = None
    findings: dict[str, list[Finding]] = field(default_factory=dict)

    def read_cell(self, job: Job, findings: Sequence[Finding], run: Mapping[str, Any]) -> dict[str, Any]:
        """Read quality and promise of a cell that is done, and keep its findings."""
        loss, accuracy = _measure_plainly(LOSS, run), _measure_plainly(ACCURACY, run)
        diverged = any(values[-1] is None for values in run.get("loss", {"seeds": {}})["seeds"].values())
        if diverged:
            loss = dict.fromkeys(loss)
        epsilon = run.get("privacy", {}).get("epsilon_run", {}).get("high")
        self.findings[job.cell.name] = list(filter(_is_success, findings))
        # The first cell says what the quality is; the preset is the same for all.
        if "accuracy" in run and self.quality is None:
            self.quality = run["accuracy"].get("measure", "accuracy")
        classes = len(run.get("holdings", {}).get("classes", ()))
        if classes > 1 and self.quality == "accuracy":
            # The loss of a model that finds every class alike; of a regression there is no such thing.
            self.guessing = math.log(classes)
        return {"loss": loss, "accuracy": accuracy, "diverged": diverged, "epsilon": epsilon}

    def describe(self, cell: Cell) -> str:
        """Say in a line what came out of a cell that is done."""
        return self.describe_number(cell, LOSS, self.read_entry(cell)["loss"])

    def gather(self, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
        """Gather what the file of the results holds."""
        cells: list[dict[str, Any]] = []
        for cell in self.cells:
            entry = {"cell": cell.name, **outcomes[cell.name].describe()}
            if outcomes[cell.name].state == DONE:
                entry = self.read_entry(cell)
            cells.append({**cell.place, **entry})
        every = list(chain.from_iterable(self.findings.values()))
        for entry in list_done({"cells": cells}):
            findings = self.findings[entry["cell"]]
            if entry["defence"] == NONE:
                findings = add_twins(findings, every)
            # Twins are known only when all cells are read, and so are not kept with the entry of one.
            entry["attacks"] = {finding.name: _read_success(finding) for finding in findings}
        numbers = _describe_numbers(every)
        results = {
            "tradeoff": self.preset,
            "title": self.title,
            **state_version(self.command, self.request.changes),
            "quality": self.quality,
            "guessing": self.guessing,
            "strengths": select_keys(describe_strengths(), [str(cell.place["defence"]) for cell in self.cells]),
            "numbers": numbers,
            "cells": cells,
            "at_equal_loss": {},
            "fronts": {},
            "cost": None,
        }
        results["limit"] = _find_limit(results)
        _analyse(results)
        results["summary"] = summarise(results)
        return results

    def write_pages(self, results: Results) -> dict[str, str]:
        """Write the page as Markdown and as HTML, and the pictures."""
        return write_pages(results)


def _measure_plainly(number: Number, run: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a number of the training, of which no paper states anything."""
    measured = measure(number, (), run)
    del measured["paper"], measured["difference"]
    return measured


def _read_success(finding: Finding) -> dict[str, Any]:
    return read_finding(finding) | {"baselines": dict(finding.baselines)}


def _is_success(finding: Finding) -> bool:
    """Whether a finding says how well an attack did, with something to hold it against."""
    section = section_of(finding.attack)
    if finding.metric in (*section.more_is_worse, *section.less_is_worse):
        return True
    if finding.units != PROPORTION and not finding.headline:
        return False
    judged = finding.verdict != NOT_APPLICABLE and finding.baselines
    return finding.chance is not None or finding.null is not None or bool(judged)


def _describe_numbers(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Describe every attack's number that some cell has; the headline comes first."""
    numbers = []
    for name, group in group_by(findings, lambda finding: finding.name).items():
        first, title = group[0], group[0].label
        if any(finding.label != title for finding in group):
            # What a label has in brackets, such as a client, may be another one in each cell.
            title = re.sub(r" \([^)]*\)$", "", title)
        numbers.append(
            {
                "name": name,
                "title": title,
                "units": first.units,
                "less_is_worse": first.metric in section_of(first.attack).less_is_worse,
                "adaptive": first.metric.endswith(ADAPTIVE),
                "headline": first.headline,
                "selected_after_the_fact": first.selected_after_the_fact,
            }
        )
    return sorted(numbers, key=lambda number: not number["headline"])


def _find_limit(results: Results) -> float | None:
    """Give the learning loss above which a model is worse than guessing, unless all are."""
    guessing: float | None = results["guessing"]
    for loss in losses_of(list_done(results)):
        if guessing is not None and loss is not None and loss < guessing:
            return guessing
    return None


def _analyse(results: dict[str, Any]) -> None:
    """Hold the defences against each other at equal loss, and find the Pareto fronts of the main numbers."""
    for number in results["numbers"]:
        curves = _curves_of(results, number)
        results["at_equal_loss"][number["name"]] = asdict(compare(curves, results["limit"] or math.inf))
    for number in _choose_main(results["numbers"]):
        cells = measured_cells(results, number)
        on_front = pareto_front(losses_of(cells), [success_of(cell, number) for cell in cells])
        results["fronts"][number["name"]] = [cell["cell"] for cell in compress(cells, on_front)]


def _choose_main(numbers: Sequence[Results]) -> list[Results]:
    """Choose the headline, and its twin, or else the first attacker, that knows of the defence."""
    headline = [number for number in numbers if number["headline"]][:1]
    adaptive = [number for number in numbers if number["adaptive"] and number not in headline]
    twins = [number["name"] + ADAPTIVE for number in headline]
    # Sorting keeps the order of the others behind the twin.
    adaptive.sort(key=lambda number: number["name"] not in twins)
    return [*headline, *adaptive[:1]]


def _curves_of(results: Results, number: Results) -> dict[str, Curve]:
    """Give each defence's cells, with that without defence, which is its strength 0."""
    curves: dict[str, Curve] = {}
    by_defence = group_by(measured_cells(results, number), lambda cell: cell["defence"])
    undefended = by_defence.pop(NONE, [])
    for name, cells in by_defence.items():
        line = undefended + cells
        curves[name] = (losses_of(line), [success_of(cell, number) for cell in line])
    return curves
