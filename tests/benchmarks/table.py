"""What fedattack costs beside the plain way, in one table, in less than ten minutes on two cores.

``python -m tests.benchmarks.table`` prints a row as soon as it is there:

- attacks beside a plain loop that finds the same (``tests.benchmarks.plain_loops``), processor time of one thread;
- a client's training with a witness beside one without (``tests.benchmarks.witness_cost``), the same;
- a round of Flower with an observer beside one without (``tests.benchmarks.recording``), on the clock.

*Ratio* is the plain way's time over ours: above 1 ours is faster. *Physical* is ours over the time that the loop's
floating-point operations would take at the speed of one large matrix product on the same thread. PyTorch counts
operations of matrix products and convolutions alone, so that the factor is at most as good as it says.

``--write`` puts the table into ``simulations/results/scale.md``, between the marks that stand there.
"""

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.benchmarks import plain_loops, recording, witness_cost
from tests.benchmarks.peers.rows import Method

RESULTS = Path(__file__).parents[2] / "simulations" / "results" / "scale.md"
MARKS = "<!-- written by tests.benchmarks.table -->\n", "<!-- end of what it writes -->\n"
HEADER = "| what | ours | plain | plain / ours | ours / physical |\n|---|---:|---:|---:|---:|"
TURNS = 3
WITNESSED = ("logistic-16", "cnn-32", "lenet-32")
OBSERVED = "25-steps"
# Of the matrix product whose speed stands for the machine's: large enough that nothing else counts.
SIZE, PRODUCTS = 1536, 7


@dataclass(frozen=True)
class Row:
    """A row: what is timed, seconds of ours and of the plain way, and floating-point operations if counted."""

    what: str
    ours: float
    plain: float
    operations: int | None = None

    def write(self, speed: float) -> str:
        """Write it as a row of Markdown; `speed` is operations a second."""
        physical = "–"
        if self.operations:
            physical = f"{self.ours * speed / self.operations:,.1f}"
        return (
            f"| {self.what} | {_write_seconds(self.ours)} | {_write_seconds(self.plain)} "
            f"| {self.plain / self.ours:.2f} | {physical} |"
        )


def _write_seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def measure_speed() -> float:
    """Return the floating-point operations a second of one thread, in the fastest of some large matrix products."""
    a, b = torch.rand(2, SIZE, SIZE)
    fastest = float("inf")
    for _ in range(PRODUCTS):
        # Processor time, as of what is held against it: the machine may do other work as well.
        began = time.process_time()
        a @ b
        fastest = min(fastest, time.process_time() - began)
    return 2 * SIZE**3 / fastest


def count_operations(work: Callable[[], Any]) -> int:
    """Return the floating-point operations of matrix products and convolutions in some work."""
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def time_attacks(turns: int = TURNS) -> Iterator[Row]:
    """Time attacks and their plain loops, in turns."""
    with ExitStack() as scratch:
        for contest in plain_loops.contests(scratch):
            ours, plain = Method("ours", ""), Method("loop", "")
            for _ in range(turns):
                ours.run(contest.ours)
                plain.run(contest.plain)
            operations = count_operations(contest.plain)
            yield Row(contest.name, ours.typical_seconds() or 0.0, plain.typical_seconds() or 0.0, operations)


def time_witnesses() -> Iterator[Row]:
    """Time a client's training call with and without a witness."""
    for name in WITNESSED:
        without, watched = witness_cost.measure(name)
        yield Row(f"a client's training with a witness, {name}", watched, without)


def time_observer() -> Iterator[Row]:
    """Time a round with and without an observer, in one run of Flower."""
    case = recording.CASES[OBSERVED]
    with tempfile.TemporaryDirectory() as folder:
        times = recording.measure(case, Path(folder))["times"]
    plain = statistics.median(times.pop("plain"))
    for kind, rounds in times.items():
        yield Row(f"a round with an observer ({kind}), {case.title}", statistics.median(rounds), plain)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="One table of what fedattack costs; see the module's docstring.")
    parser.add_argument("--write", action="store_true", help=f"also write it into {RESULTS.name}")
    write = parser.parse_args().write
    # Before anything else computes: time on one thread alone can be compared.
    torch.set_num_threads(1)
    began, speed = time.monotonic(), measure_speed()
    lines = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    say(HEADER)
    for rows in (time_attacks(), time_witnesses(), time_observer()):
        for row in rows:
            say(row.write(speed))
    took = time.monotonic() - began
    day = datetime.now(UTC).strftime("%d %B %Y").lstrip("0")
    machine = f"{os.cpu_count()} cores ({platform.machine()}), PyTorch {torch.__version__}"
    tempo = f"a thread makes {speed / 1e9:.0f} billion operations a second"
    say(f"\n`make benchmark`, {day}, {machine}, {took:.0f} s in all; {tempo}.")
    if write:
        write_into(RESULTS, "\n".join(lines))


def write_into(page: Path, text: str) -> None:
    """Put a table between the marks of a page, in place of what stands there."""
    before, first, rest = page.read_text(encoding="utf-8").partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not first or not last:
        raise SystemExit(f"{page} lacks the marks {MARKS[0].strip()} and {MARKS[1].strip()}")
    page.write_text(f"{before}{first}{text}\n{last}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
