"""Every kind of page that fedattack writes: from made-up findings, from small real runs, and from kept results.

:data:`KINDS` is what the gallery shows, what axe checks and what is printed. Nothing is downloaded, and no Flower is
started.
"""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedattack.audit.finding import Finding
from fedattack.grids.reproduce import load_reproduction
from fedattack.grids.reproduce.picture import draw_results
from fedattack.grids.tradeoff.page import make_page
from fedattack.grids.whatif.alteration import NOTHING, Alteration
from fedattack.grids.whatif.page import AlteredCell, list_limits, write_pages
from fedattack.record.folder import new_parts, write_study
from fedattack.record.project import ALTERED
from fedattack.report import compare_runs, write_report
from fedattack.report.compare import read_compared
from fedattack.runs.pipeline import attack_folder, choose_attacks, judge_folder
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.watch import Watch
from tests.report import claims, example
from tests.worlds.federation import write_run, write_sums_run
from tests.worlds.reference import run_preset

RESULTS = Path(__file__).parents[2] / "simulations" / "results"


@dataclass(frozen=True)
class Small:
    """A preset made small, so that it is run, attacked and judged in seconds."""

    preset: str
    changes: Sequence[str]
    seeds: Sequence[int] = (0,)
    options: dict[str, str] = field(default_factory=dict)

    def __call__(self, folder: Path) -> Path:
        """Write a run folder as ``fedattack audit`` does, and return its page."""
        logging.getLogger("flwr").setLevel(logging.WARNING)
        preset = load_preset(self.preset)
        for seed, part in zip(self.seeds, new_parts(folder, self.seeds), strict=True):
            with tempfile.TemporaryDirectory() as scratch:
                run_preset(self.preset, self.changes, seed, Path(scratch))
                for name, place in (("record", part.record), ("knowledge", part.knowledge), ("truth", part.truth)):
                    shutil.copytree(Path(scratch) / name, place)
        study = {
            "preset": preset.name,
            "attacks": list(preset.attacks),
            "settings": resolve_settings(preset, self.changes),
            "seeds": list(self.seeds),
            "commands": [f"fedattack audit {preset.name} --out {folder.name}"],
            "runtime": "simulation",
        }
        write_study(folder, study)
        return judged(folder, preset.attacks, {**preset.options, **self.options})


def judged(folder: Path, attacks: Sequence[str], options: dict[str, str]) -> Path:
    """Attack and judge a run folder, and return its page."""
    for attack in choose_attacks(attacks, options):
        attack_folder(attack, folder, device="cpu", watch=Watch())
    _, page = judge_folder(folder, device="cpu", watch=Watch())
    return page


def written(findings: Sequence[Finding], run: dict[str, Any], folder: Path) -> Path:
    """Write a run folder of findings alone, and return its page."""
    (folder / "findings.json").write_text(json.dumps([finding.to_dict() for finding in findings]))
    (folder / "run.json").write_text(json.dumps(run))
    return write_report(folder)


def source(folder: Path) -> Path:
    """Three seeds of source inference, from made-up findings."""
    return written(example.findings(), example.run(), folder)


def private(folder: Path) -> Path:
    """Clients that train by DP-SGD."""
    return written(example.findings(), example.run() | {"privacy": example.privacy()}, folder)


def nothing(folder: Path) -> Path:
    """No findings at all."""
    return written([], example.run(), folder)


def property_(folder: Path) -> Path:
    """Property inference from sums, of three seeds."""
    return written(example.prolin_findings(), example.prolin_run(), folder)


def elsewhere(folder: Path) -> Path:
    """The record of somebody's own project, of which no settings are known."""
    write_run(folder, epochs=10)
    return judged(folder, ["sia"], {})


def sums(folder: Path) -> Path:
    """Write a page about a record that holds sums alone."""
    write_sums_run(folder, epochs=10, auxiliary=60)
    return judged(folder, ["membership-aggregate"], {"references": "2"})


def compared(folder: Path) -> Path:
    """Three runs of property inference side by side."""
    runs = []
    for clients in (50, 100, 200):
        runs.append(folder / f"clients-{clients}")
        runs[-1].mkdir()
        written(example.prolin_findings(clients), example.prolin_run(clients), runs[-1])
    return compare_runs(runs, folder)


def altered(folder: Path) -> Path:
    """Source inference as it was, beside a noisy copy and one of sums, from made-up findings."""
    cells = []
    for alteration in (NOTHING, Alteration("noise", 0.01)):
        cell = folder / "cells" / alteration.name
        cell.mkdir(parents=True)
        facts = example.run()
        facts["setting"][ALTERED] = alteration.label
        written(example.findings(), facts, cell)
        cells.append(AlteredCell(alteration, read_compared(cell)))
    why = "it needs each client's reply, but this server sees only sums"
    cells.append(AlteredCell(Alteration("secagg"), None, {"sia": why}))
    results = {
        "title": example.run()["title"],
        "command": "fedattack what-if runs/first --noise 0.01 --secagg --out runs/what-if",
        "limits": list_limits(cells),
        "runs": [{"folder": f"cells/{cell.alteration.name}"} for cell in cells],
    }
    for name, text in write_pages(cells, results).items():
        (folder / name).write_text(text)
    return folder / "what-if.html"


def weighed(folder: Path) -> Path:
    """What defences cost and buy, from the kept results of a trade-off study."""
    results = json.loads((RESULTS / "tradeoff-colour-digits.json").read_text())
    page = folder / "tradeoff.html"
    page.write_text(make_page(results).to_html())
    return page


def reproduced(folder: Path) -> Path:
    """Draw the picture of a reproduction, which has no page of its own, from its kept results."""
    results = json.loads((RESULTS / "ara-table3.json").read_text())
    page = folder / "ara-table3.svg"
    page.write_text(draw_results(load_reproduction("ara-table3"), results))
    return page


def claim(folder: Path) -> Path:
    """Write the page of a privacy claim that does not hold."""
    return claims.page(claims.platform(), folder)


def claim_kept(folder: Path) -> Path:
    """Write the page of a privacy claim that holds as far as was checked, with canaries."""
    return claims.page(claims.central(), folder)


QUICK = {"steps": "20", "restarts": "1"}

KINDS: dict[str, Callable[[Path], Path]] = {
    "source": source,
    "source-and-membership": Small(
        "quickstart", ["clients=5", "rounds=3", "local-epochs=5", "size=400"], (0, 1), {"shadows": "2"}
    ),
    "membership": Small("membership", ["clients=5", "rounds=3", "nulls=300"], (0,), {"shadows": "4"}),
    "membership-aggregate": sums,
    "property": property_,
    "attribute-network": Small("ara-cos", ["rounds=2", "records-per-client=20"], (0,), QUICK),
    "attribute-linear": Small("aia-model", ["rounds=30", "clients=5"], (0, 1), QUICK),
    "group": Small("private-attribute", ["rounds=3"], (0, 1), {"epochs": "3", "clients": "60"}),
    "too-few-to-tell": Small("private-attribute", ["clients=3", "rounds=2"], (0,), {"epochs": "3", "clients": "60"}),
    "inversion": Small("inversion", ["rounds=2"], (0, 1, 2, 3), {"iterations": "60"}),
    "private": private,
    "nothing": nothing,
    "elsewhere": elsewhere,
    "claim": claim,
    "claim-kept": claim_kept,
    "compare": compared,
    "what-if": altered,
    "tradeoff": weighed,
    "reproduce": reproduced,
}
"""Kinds of pages by name: each writes into an empty folder, and returns the page."""
