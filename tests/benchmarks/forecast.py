"""How far what is said of a training's time is from the time that it took, replayed from run folders that are there.

``python -m tests.benchmarks.forecast DIR…`` reads finished runs, and prints for each what would have been said and what
was true. Sizes of records are told beside what they take.
"""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from fedattack.attacks import read_knowledge
from fedattack.audit.reach import Prepared
from fedattack.audit.truth import read_truth
from fedattack.record.folder import find_parts, read_study
from fedattack.record.format import INDEX
from fedattack.runs.forecast import record_size
from fedattack.runs.pace import Pace


class _Told:
    """Keeps what is said, at the time that it is told."""

    def __init__(self, now: float) -> None:
        self.now, self.lines = now, list[str]()

    def clock(self) -> float:
        return self.now

    def say(self, kind: str, line: str) -> None:
        self.lines.append(line)


def main() -> None:
    """Print a line for each run folder."""
    for name in sys.argv[1:]:
        folder = Path(name)
        study, parts = read_study(folder), find_parts(folder)
        started, finished = _times(study, "started", "finished")
        rounds = int(study["settings"]["rounds"])
        lines = [json.loads(line) for part in parts for line in (part.record / INDEX).read_text().splitlines()]
        ends = [_times(line, "ended")[0] for line in lines]
        told = _Told(started)
        pace = Pace("training", "rounds", len(parts) * rounds, 2, told.say, told.clock)
        while not told.lines and told.now < finished:
            told.now += 1
            done = sum(end <= told.now for end in ends)
            if done:
                pace.seen(done)
        left = f"{finished - told.now:.0f} s were left" if told.lines else "nothing was said"
        run = Prepared(read_truth(parts[0].truth), read_knowledge(parts[0].knowledge))
        record = len(parts) * record_size(study["settings"], run)
        size = sum(path.stat().st_size for part in parts for path in part.record.rglob("*") if path.is_file())
        print(f"{folder.name}: {left}: {''.join(told.lines)}; size told {record / size - 1:+.1%}")


def _times(facts: dict[str, Any], *keys: str) -> list[float]:
    return [datetime.fromisoformat(facts[key]).timestamp() for key in keys]


if __name__ == "__main__":
    main()
