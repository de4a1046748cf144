"""How reading grows with clients and rounds: time and memory for every array, and for every client's update.

    python -m tests.benchmarks.reading

Records of four small arrays a client. Reading is linear in clients and rounds: the microseconds for one client in one
round are the same in all lines.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from fedattack.record import Record
from tests.worlds.still import write_still_record

SIZES = ((10, 10), (100, 10), (400, 10), (1_000, 10), (10, 500), (10, 5_000), (100, 500))


def read_arrays(record: Record) -> None:
    """Read each array of each reply."""
    for item in record:
        for seen in item.observations:
            for _ in (seen.arrays or {}).values():
                pass


def read_updates(record: Record) -> None:
    """Compute each reply's update, for which the common model is read, too."""
    for item in record:
        for seen in item.observations:
            seen.update()


def seconds(action: Callable[[], object]) -> float:
    """Time an action."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def main() -> None:
    """Print a table."""
    process = psutil.Process()
    print("clients  rounds |    open    arrays   updates | a client in a round: arrays, updates | memory")
    for clients, rounds in SIZES:
        with tempfile.TemporaryDirectory() as place:
            folder = write_still_record(Path(place) / "record", clients, rounds)
            before = process.memory_info().rss
            opened = seconds(lambda folder=folder: Record(folder))  # type: ignore[misc]
            record = Record(folder)
            arrays = seconds(lambda record=record: read_arrays(record))  # type: ignore[misc]
            updates = seconds(lambda record=record: read_updates(record))  # type: ignore[misc]
            grown = (process.memory_info().rss - before) / 1e6
        each = [1e6 * taken / clients / rounds for taken in (arrays, updates)]
        print(
            f"{clients:7d} {rounds:7d} | {opened:6.2f} s {arrays:7.2f} s {updates:7.2f} s | {each[0]:16.0f} µs "
            f"{each[1]:10.0f} µs | {grown:+.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
