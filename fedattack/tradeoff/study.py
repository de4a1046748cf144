"""Run a trade-off study: cells as a reproduction's, what each tells, and which defence is the better one."""

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedattack.audit.finding import NOT_APPLICABLE, PROPORTION, Finding
from fedattack.defences import NONE
from fedattack.errors import ConfigError, FedAttackError, ReportError
from fedattack.files import write_atomically, write_json, write_sealed
from fedattack.learning import pick_device
from fedattack.report import read_findings, read_run
from fedattack.report.section import section_of
from fedattack.reproduce import Reproduction, reproduce
from fedattack.reproduce.engine import CELLS, Job, audit_cell
from fedattack.reproduce.measure import measure
from fedattack.reproduce.spec import Number
from fedattack.runs.app import Value
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.simulating import choose_seeds
from fedattack.runs.watch import Watch
from fedattack.threats.threat import ADAPTIVE
from fedattack.tradeoff.analysis import Curve, compare, pareto_front
from fedattack.tradeoff.cost import KEPT_COST, measure_cost
from fedattack.tradeoff.grid import SETTING, STRENGTH, choose_strengths, load_ladders, make_grid
from fedattack.tradeoff.page import sections_of, summarise, to_html, to_markdown
from fedattack.tradeoff.picture import to_picture
from fedattack.untrusted import read_sealed

_LEFT_OUT = ("paper", "difference")
# Attacks on more rounds than these are no stages of the training, and their panels would not be read.
_STAGES = 5

Cost = Callable[[Mapping[str, Value], Mapping[str, float]], dict[str, Any]]


def tradeoff(
    name: str,
    out: Path,
    *,
    wanted: Sequence[str] = (),
    changes: Sequence[str] = (),
    seeds: int | None = None,
    device: str = "auto",
    keep_records: bool = False,
    watching: Callable[[], AbstractContextManager[Watch]],
    tell: Callable[[str], None] = lambda line: None,
    audit: Callable[[Job, str, Watch], None] = audit_cell,
    cost: Cost = measure_cost,
) -> dict[str, Any]:
    """Run a preset without defence and with each at each of its strengths; it stops and goes on as a reproduction does.

    After every cell ``tradeoff-NAME.json`` is written anew, then ``.md``, ``.svg`` and ``.html``, which say the same.

    Parameters
    ----------
    name
        The preset.
    out
        Folder of the results.
    wanted
        ``DEFENCE`` or ``DEFENCE=s1,s2,…``; all defences with their usual strengths if there are none.
    changes
        ``key=value``: settings of all cells.
    seeds
        Number of seeds; the preset's if None.
    device
        Where attacks compute.
    keep_records
        Keep each cell's record after it is judged.
    watching, tell, audit
        As for :func:`fedattack.reproduce.reproduce`.
    cost
        Measures what defences cost; see :func:`fedattack.tradeoff.cost.measure_cost`.

    Returns
    -------
    dict
        What ``tradeoff-NAME.json`` holds. Successes of attacks and learning losses that do not exist are None.

    Raises
    ------
    ConfigError
        If an argument fits nothing, `out` holds something else, or cells in it were run with other settings.
    """
    preset = load_preset(name)
    pick_device(device)
    strengths = choose_strengths(preset, wanted)
    for change in changes:
        if change.partition("=")[0] in (SETTING, STRENGTH):
            raise ConfigError(f"--set {change}: the study runs all strengths; choose them with --defence NAME=S1,S2,…")
    undefended = [*changes, f"{SETTING}={NONE}", f"{STRENGTH}=0"]
    settings = {**resolve_settings(preset, undefended), "seed": choose_seeds(preset, None, seeds)[0]}
    command = ["fedattack", "tradeoff", name, "--out", "DIR"]
    command += [word for text in wanted for word in ("--defence", text)]
    command += ["--seeds", str(seeds)] if seeds else []
    command += [word for text in changes for word in ("--set", text)]
    writer = _Writer(name, shlex.join(command))
    reproduce(
        make_grid(preset, strengths),
        out,
        changes=changes,
        seeds=seeds,
        device=device,
        keep_records=keep_records,
        watching=watching,
        tell=tell,
        audit=audit,
        write=writer.write,
    )
    if any(cell["state"] == "done" for cell in writer.results["cells"]):
        tell("cost of each defence")
        middles = {kind: values[(len(values) - 1) // 2] for kind, values in strengths.items()}
        writer.with_cost(_kept_cost(cost, writer.out / CELLS / f"{name}_cost.json", settings, middles))
    return writer.results


def _kept_cost(cost: Cost, file: Path, settings: Mapping[str, Value], strengths: Mapping[str, float]) -> dict[str, Any]:
    """Measure the cost, unless it was measured before on the same."""
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


class _Writer:
    """Gathers what the cells tell, and writes the files."""

    def __init__(self, preset: str, command: str) -> None:
        self.preset = preset
        self.command = command
        self.results: dict[str, Any] = {}
        self.out = Path()
        self._read: dict[str, dict[str, Any]] = {}

    def write(self, what: Reproduction, out: Path, results: dict[str, Any]) -> None:
        """Write what is there; called after every cell."""
        self.out = out
        cells = [self._cell(entry, out) for entry in results["cells"]]
        found = list(self._read.values())
        numbers = _numbers(found)
        _complete(cells, numbers)
        measures = {item["measure"] for item in found if item["measure"]}
        self.results = {
            "tradeoff": self.preset,
            "title": what.title,
            "fedattack": results["fedattack"],
            "written": results["written"],
            "command": self.command,
            "changes": results["changes"],
            "quality": measures.pop() if measures else None,
            "guessing": next((item["guessing"] for item in found), None),
            "strengths": {kind: ladder.what for kind, ladder in load_ladders().items()},
            "numbers": numbers,
            "cells": cells,
            "at_equal_loss": {},
            "fronts": {},
            "cost": None,
        }
        self.results["limit"] = _limit(self.results)
        self._analyse()
        self._write_files()

    def with_cost(self, cost: dict[str, Any]) -> None:
        """Add what the defences cost."""
        self.results["cost"] = cost
        self._write_files()

    def _write_files(self) -> None:
        self.results["summary"] = summarise(self.results)
        name = f"tradeoff-{self.preset}"
        write_json(self.out / f"{name}.json", self.results)
        staged, columns = by_round(self.results)
        pictures = {f"{name}.svg": to_picture(self.results), f"{name}-rounds.svg": to_picture(staged, columns)}
        pictures = {file: picture for file, picture in pictures.items() if picture}
        sections = sections_of(self.results)
        text = to_markdown(self.results, sections, pictures=[*pictures])
        write_atomically(self.out / f"{name}.md", text.encode())
        for file, picture in pictures.items():
            write_atomically(self.out / file, picture.encode())
        write_atomically(self.out / f"{name}.html", to_html(self.results, sections).encode())

    def _cell(self, entry: Mapping[str, Any], out: Path) -> dict[str, Any]:
        place = dict(entry["place"])
        kept = {key: entry[key] for key in ("cell", "state", "reason", "seeds", "minutes", "command") if key in entry}
        if entry["state"] != "done":
            return place | kept
        if entry["cell"] not in self._read:
            self._read[entry["cell"]] = _read_cell(out / CELLS / entry["cell"])
        told = self._read[entry["cell"]]
        quality = {name: _plain(entry["numbers"][name]) for name in ("loss", "accuracy")}
        if told["diverged"]:
            quality["loss"] = dict.fromkeys(quality["loss"])
        return place | kept | quality | {key: told[key] for key in ("diverged", "epsilon", "attacks")}

    def _analyse(self) -> None:
        for number in self.results["numbers"]:
            curves = {name: curve for name, curve in _curves(self.results, number) if name != NONE}
            limit = self.results["limit"]
            found = compare(curves, math.inf if limit is None else limit)
            self.results["at_equal_loss"][number["name"]] = asdict(found)
        for number in _main(self.results["numbers"]):
            there = list(_points(self.results, number))
            front = pareto_front([loss for _, loss, _ in there], [success for _, _, success in there])
            self.results["fronts"][number["name"]] = [
                cell["cell"] for (cell, _, _), on_it in zip(there, front, strict=True) if on_it
            ]


def _main(numbers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Give the headline, and its twin, or else the first attacker, that knows of the defence."""
    headline = [number for number in numbers if number["headline"]][:1]
    adaptive = [number for number in numbers if number["adaptive"] and number not in headline]
    twin = [number for number in adaptive for own in headline if number["name"] == own["name"] + ADAPTIVE]
    return [*headline, *(twin or adaptive)[:1]]


def _read_cell(folder: Path) -> dict[str, Any]:
    findings, run = read_findings(folder), read_run(folder)
    asked = [finding for finding in findings if _is_success(finding)]
    ends = [values[-1] for values in run.get("loss", {}).get("seeds", {}).values()]
    classes = len(run["holdings"]["classes"]) if "holdings" in run else 0
    kind = run.get("accuracy", {}).get("measure", "accuracy") if "accuracy" in run else None
    return {
        "findings": asked,
        "measure": kind,
        # The loss of a model that finds every class alike; of a regression there is no such thing.
        "guessing": math.log(classes) if classes > 1 and kind == "accuracy" else None,
        "diverged": any(end is None for end in ends),
        "epsilon": run.get("privacy", {}).get("epsilon_run", {}).get("high"),
        "attacks": {
            finding.name: _plain(measure(_number(finding), findings, run))
            | {"baselines": dict(finding.baselines), "per_round": _stages(finding)}
            for finding in asked
        },
    }


def _stages(finding: Finding) -> dict[str, Any] | None:
    """Give a finding's value in each of a few rounds, if it has these."""
    series = finding.series.get("per_round")
    if not isinstance(series, dict) or not 1 < len(series["rounds"]) <= _STAGES:
        return None
    return {key: list(series[key]) for key in ("rounds", "value", "low", "high")}


def by_round(results: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Take attacks apart that were made in the same few rounds everywhere.

    Returns
    -------
    dict, int
        As the results, but that each number is one of an attack in one round; and how many rounds there are, 1 if there
        is no such attack.
    """
    numbers: list[dict[str, Any]] = []
    cells = [{**cell, "attacks": {}} for cell in results["cells"]]
    most = 1
    for number in results["numbers"]:
        own = [
            (new, old["attacks"][number["name"]])
            for new, old in zip(cells, results["cells"], strict=True)
            if number["name"] in old.get("attacks", {})
        ]
        rounds = {tuple(found["per_round"]["rounds"]) if found["per_round"] else () for _, found in own}
        if len(rounds) != 1 or rounds == {()}:
            continue
        (chosen,) = rounds
        most = max(most, len(chosen))
        for place, when in enumerate(chosen):
            name = f"{number['name']} @{when}"
            numbers.append({**number, "name": name, "title": f"{number['title']}, round {when}"})
            for cell, found in own:
                ends = {key: found["per_round"][key][place] for key in ("value", "low", "high")}
                cell["attacks"][name] = {**found, **ends, "null": None}
    return {**results, "numbers": numbers, "cells": cells}, most


def _is_success(finding: Finding) -> bool:
    """Whether a finding says how well an attack did, with something to hold it against."""
    section = section_of(finding.attack)
    if finding.metric in (*section.more_is_worse, *section.less_is_worse):
        return True
    judged = finding.verdict != NOT_APPLICABLE and finding.baselines
    against = finding.chance is not None or finding.null is not None or judged
    return bool((finding.units == PROPORTION or finding.headline) and against)


def _number(finding: Finding) -> Number:
    return Number(name=finding.name, title=finding.label, finding=finding.name, units=finding.units)


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in _LEFT_OUT}


def _numbers(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Describe every attack's number that some cell has; the headline comes first."""
    named: dict[str, list[Finding]] = {}
    for item in found:
        for finding in item["findings"]:
            named.setdefault(finding.name, []).append(finding)
    numbers = []
    for name, findings in named.items():
        first = findings[0]
        alike = len({finding.label for finding in findings}) == 1
        numbers.append(
            {
                "name": name,
                # What a label has in brackets, such as a client, may be another one in each cell.
                "title": first.label if alike else re.sub(r" \([^)]*\)$", "", first.label),
                "units": first.units,
                "less_is_worse": first.metric in section_of(first.attack).less_is_worse,
                "adaptive": first.metric.endswith(ADAPTIVE),
                "headline": first.headline,
                "selected_after_the_fact": first.selected_after_the_fact,
            }
        )
    return sorted(numbers, key=lambda number: not number["headline"])


def _complete(cells: Sequence[dict[str, Any]], numbers: Sequence[Mapping[str, Any]]) -> None:
    """Without a defence there is nothing to know of: there an adaptive attacker is the one who does not know."""
    for cell in cells:
        if cell["defence"] == NONE and cell["state"] == "done":
            for name in (number["name"] for number in numbers if number["adaptive"]):
                if name not in cell["attacks"] and name.removesuffix(ADAPTIVE) in cell["attacks"]:
                    cell["attacks"][name] = cell["attacks"][name.removesuffix(ADAPTIVE)]


def _limit(results: Mapping[str, Any]) -> float | None:
    """Give the learning loss above which a model is worse than guessing, unless all are."""
    losses = [cell["loss"]["value"] for cell in results["cells"] if cell["state"] == "done"]
    limit: float | None = results["guessing"]
    return limit if limit is not None and any(loss is not None and loss < limit for loss in losses) else None


def _points(results: Mapping[str, Any], number: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], float, float]]:
    """Give each cell that has both with its learning loss and the attack's success, for which more is worse."""
    sign = -1 if number["less_is_worse"] else 1
    for cell in results["cells"]:
        if cell["state"] != "done":
            continue
        loss, success = cell["loss"]["value"], cell["attacks"].get(number["name"], {}).get("value")
        if loss is not None and success is not None:
            yield cell, loss, sign * success


def _curves(results: Mapping[str, Any], number: Mapping[str, Any]) -> Iterator[tuple[str, Curve]]:
    """Give each defence's cells, with that without defence, which is its strength 0."""
    points = list(_points(results, number))
    for name in dict.fromkeys(cell["defence"] for cell, _, _ in points):
        own = [(loss, success) for cell, loss, success in points if cell["defence"] in (NONE, name)]
        yield name, ([loss for loss, _ in own], [success for _, success in own])
