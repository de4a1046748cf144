"""Run a trade-off study: cells as a reproduction's, what each tells, and which defence is the better one."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import chain, compress, product
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from fedattack.attacks.threat import ADAPTIVE
from fedattack.audit.finding import NOT_APPLICABLE, PROPORTION, Finding
from fedattack.base.errors import FedAttackError, ReportError
from fedattack.base.files import write_atomically, write_json, write_sealed
from fedattack.base.settings import Value
from fedattack.base.untrusted import read_sealed
from fedattack.defences import NONE
from fedattack.grids.reproduce import Reproduction
from fedattack.grids.reproduce.engine import CELLS, Job, audit_cell, repeated, reproduce
from fedattack.grids.reproduce.measure import measure
from fedattack.grids.reproduce.page import done_cells, grouped
from fedattack.grids.reproduce.spec import Number, taken
from fedattack.grids.tradeoff.analysis import Curve, attacks_of, compare, losses_of, measured_cells, pareto_front
from fedattack.grids.tradeoff.cost import KEPT_COST, measure_cost
from fedattack.grids.tradeoff.grid import check_words, load_ladders, make_grid
from fedattack.grids.tradeoff.page import sections_of, summarise, to_html, to_markdown
from fedattack.grids.tradeoff.picture import to_picture
from fedattack.learning import pick_device
from fedattack.report import read_findings, read_run
from fedattack.report.section import section_of
from fedattack.runs.presets import load_preset
from fedattack.runs.simulating import choose_seeds
from fedattack.runs.watch import Watch

_OF_ENTRY = ("cell", "state", "reason", "seeds", "minutes", "command")
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
    memory: str = "",
    cluster: str = "",
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
    wanted
        ``DEFENCE`` or ``DEFENCE=s1,s2,…``; all defences with their usual strengths if there are none.
    out, changes, seeds, device, memory, cluster, keep_records, watching, tell, audit
        As for :func:`fedattack.grids.reproduce.engine.reproduce`.
    cost
        Measures what defences cost; see :func:`fedattack.grids.tradeoff.cost.measure_cost`.

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
    strengths, undefended = check_words(preset, wanted, changes)
    settings = {**undefended, "seed": choose_seeds(preset, None, seeds)[0]}
    command = ["fedattack", "tradeoff", name, "--out", "DIR", *repeated("--defence", wanted)]
    command += [*repeated("--seeds", [seeds] if seeds else []), *repeated("--set", changes)]
    command += repeated("--memory", [memory] if memory else [])
    writer = _Writer(name, shlex.join(command))
    reproduce(
        make_grid(preset, strengths, settings),
        out,
        changes=changes,
        seeds=seeds,
        device=device,
        memory=memory,
        cluster=cluster,
        keep_records=keep_records,
        watching=watching,
        tell=tell,
        audit=audit,
        write=writer.write,
    )
    if done_cells(writer.results):
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


@dataclass
class _Writer:
    """Gathers what the cells tell, and writes the files."""

    preset: str
    command: str
    results: dict[str, Any] = field(default_factory=dict)
    out: Path = Path()
    _read: dict[str, dict[str, Any]] = field(default_factory=dict)

    def write(self, what: Reproduction, out: Path, results: dict[str, Any]) -> None:
        """Write what is there; called after every cell."""
        self.out = out
        cells = [self._cell(entry, out) for entry in results["cells"]]
        read = list(self._read.values())
        numbers = _numbers(chain.from_iterable(map(itemgetter("findings"), read)))
        _complete(cells, numbers)
        self.results = {
            "tradeoff": self.preset,
            "title": what.title,
            "fedattack": results["fedattack"],
            "written": results["written"],
            "command": self.command,
            "changes": results["changes"],
            "quality": next(filter(None, map(itemgetter("measure"), read)), None),
            "guessing": read[0]["guessing"] if read else None,
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
        drawn = list(filter(pictures.get, pictures))
        sections = sections_of(self.results)
        write_atomically(self.out / f"{name}.md", to_markdown(self.results, sections, pictures=drawn).encode())
        for file in drawn:
            write_atomically(self.out / file, pictures[file].encode())
        write_atomically(self.out / f"{name}.html", to_html(self.results, sections).encode())

    def _cell(self, entry: Mapping[str, Any], out: Path) -> dict[str, Any]:
        cell: dict[str, Any] = entry["place"] | taken(entry, filter(entry.__contains__, _OF_ENTRY))
        if entry["state"] != "done":
            return cell
        if entry["cell"] not in self._read:
            self._read[entry["cell"]] = _read_cell(out / CELLS / entry["cell"])
        read = self._read[entry["cell"]]
        loss, accuracy = _plain(entry["numbers"]["loss"]), _plain(entry["numbers"]["accuracy"])
        cell["loss"] = dict.fromkeys(loss) if read["diverged"] else loss
        return cell | {"accuracy": accuracy} | taken(read, ("diverged", "epsilon", "attacks"))

    def _analyse(self) -> None:
        limit = self.results["limit"]
        for number in self.results["numbers"]:
            compared = compare(_curves(self.results, number), math.inf if limit is None else limit)
            self.results["at_equal_loss"][number["name"]] = asdict(compared)
        for number in _main(self.results["numbers"]):
            cells = measured_cells(self.results, number)
            on_front = pareto_front(losses_of(cells), _successes(cells, number))
            self.results["fronts"][number["name"]] = list(map(itemgetter("cell"), compress(cells, on_front)))


def _main(numbers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Give the headline, and its twin, or else the first attacker, that knows of the defence."""
    headline = list(filter(itemgetter("headline"), numbers))[:1]
    adaptive = [number for number in numbers if number["adaptive"] and number not in headline]
    twin = headline[0]["name"] + ADAPTIVE if headline else ""
    # Sorting keeps the order of the others behind the twin.
    adaptive.sort(key=lambda number: number["name"] != twin)
    return [*headline, *adaptive[:1]]


def _read_cell(folder: Path) -> dict[str, Any]:
    findings, run = read_findings(folder), read_run(folder)
    successes = list(filter(_is_success, findings))
    attacks = {}
    for finding in successes:
        number = Number(name=finding.name, title=finding.label, finding=finding.name, units=finding.units)
        attacks[finding.name] = _plain(measure(number, findings, run))
        attacks[finding.name] |= {"baselines": dict(finding.baselines), "per_round": _stages(finding)}
    curves = run.get("loss", {}).get("seeds", {})
    classes = len(run["holdings"]["classes"]) if "holdings" in run else 0
    kind = run["accuracy"].get("measure", "accuracy") if "accuracy" in run else None
    return {
        "findings": successes,
        "measure": kind,
        # The loss of a model that finds every class alike; of a regression there is no such thing.
        "guessing": math.log(classes) if classes > 1 and kind == "accuracy" else None,
        "diverged": any(values[-1] is None for values in curves.values()),
        "epsilon": run.get("privacy", {}).get("epsilon_run", {}).get("high"),
        "attacks": attacks,
    }


def _stages(finding: Finding) -> dict[str, Any] | None:
    """Give a finding's value in each of a few rounds, if it has these."""
    series = finding.series.get("per_round")
    if not isinstance(series, dict) or not 1 < len(series["rounds"]) <= _STAGES:
        return None
    return taken(series, ("rounds", "value", "low", "high"))


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
        name = number["name"]
        rounds = _common_rounds(results, name)
        most = max(most, len(rounds))
        for i, r in enumerate(rounds):
            staged = f"{name} @{r}"
            numbers.append({**number, "name": staged, "title": f"{number['title']}, round {r}"})
            for cell, whole in zip(cells, results["cells"], strict=True):
                if name in whole.get("attacks", {}):
                    cell["attacks"][staged] = _in_round(whole["attacks"][name], i)
    return {**results, "numbers": numbers, "cells": cells}, most


def _common_rounds(results: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Return the rounds of an attack's stages if they are the same wherever the attack was made."""
    rounds = set()
    for cell in results["cells"]:
        if name in cell.get("attacks", {}):
            stages = cell["attacks"][name]["per_round"]
            rounds.add(tuple(stages["rounds"]) if stages else ())
    return rounds.pop() if len(rounds) == 1 else ()


def _in_round(attack: Mapping[str, Any], index: int) -> dict[str, Any]:
    ends = {key: attack["per_round"][key][index] for key in ("value", "low", "high")}
    return {**attack, **ends, "null": None}


def _is_success(finding: Finding) -> bool:
    """Whether a finding says how well an attack did, with something to hold it against."""
    section = section_of(finding.attack)
    if finding.metric in (*section.more_is_worse, *section.less_is_worse):
        return True
    if finding.units != PROPORTION and not finding.headline:
        return False
    judged = finding.verdict != NOT_APPLICABLE and finding.baselines
    return finding.chance is not None or finding.null is not None or bool(judged)


def _plain(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in measured.items() if key not in _LEFT_OUT}


def _numbers(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Describe every attack's number that some cell has; the headline comes first."""
    numbers = []
    for name, group in grouped(findings, attrgetter("name")).items():
        first, labels = group[0], set(map(attrgetter("label"), group))
        numbers.append(
            {
                "name": name,
                # What a label has in brackets, such as a client, may be another one in each cell.
                "title": first.label if len(labels) == 1 else re.sub(r" \([^)]*\)$", "", first.label),
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
    for cell, number in product(cells, numbers):
        attacks, blind = cell.get("attacks", {}), number["name"].removesuffix(ADAPTIVE)
        if cell["defence"] == NONE and number["adaptive"] and blind in attacks:
            attacks.setdefault(number["name"], attacks[blind])


def _limit(results: Mapping[str, Any]) -> float | None:
    """Give the learning loss above which a model is worse than guessing, unless all are."""
    limit: float | None = results["guessing"]
    losses = [loss for loss in losses_of(done_cells(results)) if loss is not None]
    return limit if limit is not None and losses and min(losses) < limit else None


def _successes(cells: Sequence[Mapping[str, Any]], number: Mapping[str, Any]) -> list[float]:
    """Return an attack's success in cells, so that more is worse."""
    sign = -1 if number["less_is_worse"] else 1
    return [sign * attack["value"] for attack in attacks_of(cells, number)]


def _curves(results: Mapping[str, Any], number: Mapping[str, Any]) -> dict[str, Curve]:
    """Give each defence's cells, with that without defence, which is its strength 0."""
    curves: dict[str, Curve] = {}
    by_defence = grouped(measured_cells(results, number), itemgetter("defence"))
    undefended = by_defence.pop(NONE, [])
    for name, cells in by_defence.items():
        line = undefended + cells
        curves[name] = (losses_of(line), _successes(line, number))
    return curves
