"""How often reports cry wolf, how often they see what is there, and whether their intervals hold.

``python -m tests.benchmarks.calibration`` writes ``calibration.json`` and prints its tables. ``draws`` judges drawn
scores, ``coverage`` is about intervals, ``federations`` trains small federations in this process; without a word all
three. ``--repetitions 20`` makes a short version, ``--threat source`` keeps to one threat of the draws. A run of all
takes about three hours on one core.
"""

import argparse
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import tests.benchmarks.calibration as package
from tests.benchmarks.calibration import coverage, federations

_NOT_DRAWS = ("__main__", "coverage", "drawn", "federations")

Rows = Iterator[dict[str, Any]]
Found = list[dict[str, Any]] | dict[str, Any]


def threats() -> list[str]:
    """Name the modules that draw scores, one for each threat."""
    found = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return [name for name in found if name not in _NOT_DRAWS and not name.startswith("test_")]


def draws(repetitions: int, seed: int, names: list[str]) -> Rows:
    """Judge drawn scores."""
    for name in names:
        module = importlib.import_module(f"{package.__name__}.{name}")
        for row in module.rows(repetitions, seed):
            yield {"threat": name, **row}


def main() -> None:
    """Run what is asked for, and show it."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.calibration", description=__doc__)
    parser.add_argument("parts", nargs="*", help="draws, coverage, federations (all)")
    parser.add_argument("--repetitions", type=int, default=200, help="nulls of each kind (200)")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw (0)")
    parser.add_argument("--threat", action="append", help="a threat whose scores are drawn (all)")
    parser.add_argument("--world", action="append", help="a world of the federations (all)")
    parser.add_argument("--out", type=Path, default=Path("calibration.json"), help="file to write")
    asked = parser.parse_args()
    worlds = asked.world or [*federations.WORLDS]
    parts: dict[str, Callable[[], Found]] = {
        "draws": lambda: [*draws(asked.repetitions, asked.seed, asked.threat or threats())],
        "coverage": lambda: coverage.study(asked.repetitions, asked.seed),
        "federations": lambda: [*federations.rows(asked.repetitions, asked.seed, worlds)],
    }
    unknown = [part for part in asked.parts if part not in parts]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(parts)}")
    results: dict[str, Found] = {}
    for part in asked.parts or parts:
        results[part] = parts[part]()
        # What is there is kept, should the next part end early.
        asked.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        Console().print(_table(part, results[part]))


def _table(title: str, measured: Found) -> Table:
    found = measured["summary"] if isinstance(measured, dict) else measured
    table = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(key for row in found for key in row))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in found:
        table.add_row(*[_shown(row.get(column, "")) for column in columns])
    return table


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
