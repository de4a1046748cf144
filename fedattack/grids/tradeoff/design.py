"""A trade-off study as a grid: what the cells tell, and which defence is the better one."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.audited import title_of
from fedattack.audit.finding import NOT_APPLICABLE, PROPORTION, Finding
from fedattack.base.errors import FedAttackError, ReportError
from fedattack.base.files import write_sealed
from fedattack.base.untrusted import read_sealed
from fedattack.defences import NONE
from fedattack.grids.cell import Cell, Number, Request, group_by, select_keys, write_command
from fedattack.grids.engine import DONE, Outcome, run_grid, state_version
from fedattack.grids.measure import measure
from fedattack.grids.page import Results, list_done
from fedattack.grids.tradeoff.analysis import Curve, attacks_of, compare, losses_of, measured_cells, pareto_front
from fedattack.grids.tradeoff.cost import KEPT_COST, measure_cost
from fedattack.grids.tradeoff.grid import ACCURACY, LOSS, check_words, load_ladders, make_cells
from fedattack.grids.tradeoff.page import summarise, write_pages
from fedattack.grids.trained import Audit, Judged, TrainedDesign, audit_cell
from fedattack.learning import pick_device
from fedattack.report.section import section_of
from fedattack.runs.app import Value
from fedattack.runs.presets import load_preset
from fedattack.runs.simulating import choose_seeds

# Attacks on more rounds than these are no stages of the training, and their panels would not be read.
_STAGES = 5

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
    design = TradingOff(name, request, make_cells(name, strengths), audit)
    design.title = f"What defences buy and cost: {title_of(preset.attacks, settings)}"
    design.command = write_command("tradeoff", name, "--out", "DIR", **given)
    results = run_grid(design)
    if list_done(results):
        request.tell("cost of each defence")
        middles = {kind: values[(len(values) - 1) // 2] for kind, values in strengths.items()}
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
    except FedAttackError as problem:
        return {"reason": str(problem)}
    write_sealed(file, {"job": job, "cost": measured})
    return measured


class TradingOff(TrainedDesign):
    """How a trade-off study is run and shown."""

    title = command = ""

    def __init__(self, preset: str, request: Request, cells: Sequence[Cell], audit: Audit) -> None:
        super().__init__(f"tradeoff-{preset}", request, cells, audit)
        self.preset = preset
        self._read: dict[str, dict[str, Any]] = {}

    def describe(self, cell: Cell) -> str:
        """Say in a line what came out of a cell that is done."""
        read = self._read_cell(cell)
        return self.describe_number(LOSS, read["loss"], read["minutes"])

    def gather(self, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
        """Gather what the file of the results holds."""
        cells, findings = [], []
        quality = guessing = None
        for cell in self.cells:
            entry: dict[str, Any] = {**cell.place, "cell": cell.name, "state": DONE}
            if outcomes[cell.name].state == DONE:
                read = self._read_cell(cell)
                findings += read["findings"]
                quality, guessing = quality or read["quality"], guessing or read["guessing"]
                entry |= {key: value for key, value in read.items() if key not in ("findings", "quality", "guessing")}
                entry["attacks"] = dict(read["attacks"])
            else:
                entry |= asdict(outcomes[cell.name])
            cells.append(entry)
        numbers = _describe_numbers(findings)
        _complete_attacks(cells, numbers)
        results = {
            "tradeoff": self.preset,
            "title": self.title,
            **state_version(self.command, self.request.changes),
            "quality": quality,
            "guessing": guessing,
            "strengths": {kind: ladder.what for kind, ladder in load_ladders().items()},
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

    def _read_cell(self, cell: Cell) -> dict[str, Any]:
        """Read what is told of a cell that is done."""
        if cell.name not in self._read:
            self._read[cell.name] = _describe_cell(self.read(cell))
        return self._read[cell.name]

    def write_pages(self, results: Results) -> dict[str, str]:
        """Write the page as Markdown and as HTML, and the pictures."""
        return write_pages(results)


def _describe_cell(judged: Judged) -> dict[str, Any]:
    """Say what is read off a cell: quality, attacks and promise."""
    findings, run = list(filter(_is_success, judged.findings)), judged.run
    attacks = {}
    for finding in findings:
        number = Number(name=finding.name, title=finding.label, finding=finding.name, units=finding.units)
        attack = _measure_plainly(number, judged)
        attacks[finding.name] = {**attack, "baselines": dict(finding.baselines), "per_round": _keep_stages(finding)}
    loss = _measure_plainly(LOSS, judged)
    diverged = any(values[-1] is None for values in run.get("loss", {}).get("seeds", {}).values())
    if diverged:
        loss = dict.fromkeys(loss)
    classes, quality, guessing = len(run.get("holdings", {}).get("classes", ())), None, None
    if "accuracy" in run:
        quality = run["accuracy"].get("measure", "accuracy")
    if classes > 1 and quality == "accuracy":
        # The loss of a model that finds every class alike; of a regression there is no such thing.
        guessing = math.log(classes)
    return {
        **judged.describe(),
        "loss": loss,
        "accuracy": _measure_plainly(ACCURACY, judged),
        "diverged": diverged,
        "epsilon": run.get("privacy", {}).get("epsilon_run", {}).get("high"),
        "attacks": attacks,
        "findings": findings,
        "quality": quality,
        "guessing": guessing,
    }


def _measure_plainly(number: Number, judged: Judged) -> dict[str, Any]:
    """Measure a number of which no paper states anything."""
    measured = measure(number, judged.findings, judged.run)
    del measured["paper"], measured["difference"]
    return measured


def _keep_stages(finding: Finding) -> dict[str, Any] | None:
    """Give a finding's value in each of a few rounds, if it has these."""
    series = finding.series.get("per_round")
    if not isinstance(series, dict) or not 1 < len(series["rounds"]) <= _STAGES:
        return None
    return select_keys(series, ("rounds", "value", "low", "high"))


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
        if len({finding.label for finding in group}) > 1:
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


def _complete_attacks(cells: Sequence[dict[str, Any]], numbers: Sequence[Results]) -> None:
    """Without a defence there is nothing to know of: there an adaptive attacker is the one who does not know."""
    for cell in cells:
        if cell["defence"] != NONE:
            continue
        for number in numbers:
            attacks, blind = cell.get("attacks", {}), number["name"].removesuffix(ADAPTIVE)
            if number["adaptive"] and blind in attacks:
                attacks.setdefault(number["name"], attacks[blind])


def _find_limit(results: Results) -> float | None:
    """Give the learning loss above which a model is worse than guessing, unless all are."""
    guessing: float | None = results["guessing"]
    losses = [loss for loss in losses_of(list_done(results)) if loss is not None]
    if guessing is None or not losses or min(losses) >= guessing:
        return None
    return guessing


def _analyse(results: dict[str, Any]) -> None:
    """Hold the defences against each other at equal loss, and find the Pareto fronts of the main numbers."""
    most = math.inf if results["limit"] is None else results["limit"]
    for number in results["numbers"]:
        results["at_equal_loss"][number["name"]] = asdict(compare(_curves_of(results, number), most))
    for number in _choose_main(results["numbers"]):
        cells = measured_cells(results, number)
        on_front = pareto_front(losses_of(cells), _successes_of(cells, number))
        names = [cell["cell"] for cell, is_on in zip(cells, on_front, strict=True) if is_on]
        results["fronts"][number["name"]] = names


def _choose_main(numbers: Sequence[Results]) -> list[Results]:
    """Choose the headline, and its twin, or else the first attacker, that knows of the defence."""
    headline = [number for number in numbers if number["headline"]][:1]
    adaptive = [number for number in numbers if number["adaptive"] and number not in headline]
    twins = [number["name"] + ADAPTIVE for number in headline]
    # Sorting keeps the order of the others behind the twin.
    adaptive.sort(key=lambda number: number["name"] not in twins)
    return [*headline, *adaptive[:1]]


def _successes_of(cells: Sequence[Results], number: Results) -> list[float]:
    """Return an attack's success in cells, so that more is worse."""
    sign = -1 if number["less_is_worse"] else 1
    return [sign * attack["value"] for attack in attacks_of(cells, number)]


def _curves_of(results: Results, number: Results) -> dict[str, Curve]:
    """Give each defence's cells, with that without defence, which is its strength 0."""
    curves: dict[str, Curve] = {}
    by_defence = group_by(measured_cells(results, number), lambda cell: cell["defence"])
    undefended = by_defence.pop(NONE, [])
    for name, cells in by_defence.items():
        line = undefended + cells
        curves[name] = (losses_of(line), _successes_of(line, number))
    return curves
