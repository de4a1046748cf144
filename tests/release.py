"""Run what a release needs, and write down what came of it: ``python -m tests.release``.

``python -m tests.release test test-slow`` runs these targets of the Makefile one after the other; without a name, all
of them (hours). Each writes its row of ``simulations/results/release.md`` as soon as it ends. A target that was run
elsewhere is read from what it printed::

    python -m tests.release test-long --read long.txt --commit 284ea942

Rows stand in ``release.json`` beside the page. A target without a row was not run, and the page says so.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "simulations" / "results"

CHECKS = {
    "test": "format, lint, types and the tests that take little time",
    "test-slow": "real runs of Flower, a browser, the guides' commands, seconds of computing",
    "test-long": "several real runs, minutes of computing",
    "test-deploy": "deployments of processes and of containers",
    "test-flower": "observers and defences beside eight versions of Flower",
    "fuzz": "hostile, altered and costly folders, killed writers and runs",
    "calibration": "false alarms, power and coverage of reports, claims and canaries",
}
"""Targets of the Makefile, and what each tries."""

# What pytest, tests/flower_versions.py and the fuzzers print at their end.
_COUNT = re.compile(r"(\d+) (passed|failed|errors?|skipped|xfailed|xpassed)\b")
_PYTEST = re.compile(r"\d+ (?:passed|failed|errors?)\b.* in ([\d.]+)s")
_TOLD = re.compile(r'^Flower [\d.]+: |; bad: \d+$|^ *"(?:kills|reported|bad)": ')
_MINUTES = re.compile(r" in ([\d.]+) minutes")

_TITLE = """# Release

What was run for the release: when, on which commit, and what came of it. `python -m tests.release` writes this page.
"""


@dataclass(frozen=True)
class Row:
    """What came of one target: ``code`` is its exit code, ``minutes`` is None where nothing says how long it took."""

    check: str
    date: str
    commit: str
    code: int | None
    outcome: str
    minutes: float | None


def summarise(printed: str) -> str:
    """Say in one line what a target printed at its end."""
    lines = [line.strip() for line in printed.splitlines()]
    counts: Counter[str] = Counter()
    for line in lines:
        if _PYTEST.search(line) and not _TOLD.search(line):
            counts.update({word.rstrip("s"): int(number) for number, word in _COUNT.findall(line)})
    told = [line.rstrip(",") for line in lines if _TOLD.search(line)]
    counted = ", ".join(f"{number:,} {word}" for word, number in counts.items())
    return "; ".join([counted, *told] if counted else told)


def add_minutes(printed: str) -> float | None:
    """Add up how long the programs say that they took; None if none says it."""
    seconds = [float(found) for found in _PYTEST.findall(printed)]
    seconds += [60 * float(found) for found in _MINUTES.findall(printed)]
    return sum(seconds) / 60 if seconds else None


def run(check: str) -> Row:
    """Run a target, and show what it prints."""
    started, begun = datetime.now(UTC), time.monotonic()
    words = ["make", check]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = []
    for line in process.stdout or ():
        print(line, end="", flush=True)
        printed.append(line)
    code = process.wait()
    minutes = (time.monotonic() - begun) / 60
    return Row(check, f"{started:%Y-%m-%d}", find_commit(), code, summarise("".join(printed)), minutes)


def read_output(check: str, file: Path, commit: str) -> Row:
    """Make the row of a target that was run elsewhere; the file's date is that of the run."""
    printed = file.read_text(encoding="utf-8")
    date = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    return Row(check, f"{date:%Y-%m-%d}", commit, None, summarise(printed), add_minutes(printed))


def find_commit() -> str:
    """Return the commit of the tree, with a plus if the product or its tests differ from it."""
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, text=True).strip()
    status = ["git", "status", "--porcelain", "--", ".", f":!{RESULTS.relative_to(ROOT)}"]
    changed = subprocess.check_output(status, cwd=ROOT, text=True).strip()
    return commit + "+" * bool(changed)


def write_page(rows: Sequence[Row]) -> str:
    """Write the page; a target without a row was not run."""
    by_check = {row.check: row for row in rows}
    lines = [_TITLE, "| target | what it tries | date | commit | outcome | minutes |", "|---|---|---|---|---|---|"]
    for check, tries in CHECKS.items():
        row = by_check.get(check)
        cells = "– | – | not run | –"
        if row:
            outcome = row.outcome or "printed no counts"
            if row.code:
                outcome = f"**exit code {row.code}**: {outcome}"
            minutes = "–" if row.minutes is None else f"{row.minutes:.0f}"
            cells = f"{row.date} | `{row.commit}` | {outcome} | {minutes}"
        lines.append(f"| `make {check}` | {tries} | {cells} |")
    lines += [
        "",
        "A commit with a plus had changes that were not committed. Earlier runs stand in the history of this page.",
    ]
    return "\n".join(lines) + "\n"


def load_rows(folder: Path = RESULTS) -> list[Row]:
    """Read the rows that are there."""
    file = folder / "release.json"
    if not file.exists():
        return []
    return [Row(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]


def save(rows: Sequence[Row], folder: Path = RESULTS) -> None:
    """Write the rows and the page."""
    (folder / "release.json").write_text(json.dumps(list(map(asdict, rows)), indent=1) + "\n", encoding="utf-8")
    (folder / "release.md").write_text(write_page(rows), encoding="utf-8")


def main() -> None:
    """Run or read what is asked for; exits with 1 if a target fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__.partition("\n")[0])
    parser.add_argument("checks", nargs="*", metavar="TARGET", help=f"one of {', '.join(CHECKS)} (all)")
    parser.add_argument("--read", type=Path, metavar="FILE", help="what the target printed, where it was run elsewhere")
    parser.add_argument("--commit", help="the commit that --read is about")
    asked = parser.parse_args()
    unknown = [check for check in asked.checks if check not in CHECKS]
    if unknown:
        parser.error(f"unknown target {unknown[0]}; choose from {', '.join(CHECKS)}")
    if asked.read and (len(asked.checks) != 1 or not asked.commit):
        parser.error("--read takes one target, and --commit")
    failed = False
    for check in asked.checks or CHECKS:
        row = read_output(check, asked.read, asked.commit) if asked.read else run(check)
        save([*(other for other in load_rows() if other.check != check), row])
        failed |= bool(row.code)
    sys.exit(failed)


if __name__ == "__main__":
    main()
