"""Kill a writer at random moments: is every round that it reported as complete there, and what it held?

    python -m tests.fuzz.kills --count 300

A process writes rounds as fast as it can, and prints the number of each of which :meth:`RecordWriter.write` has come
back. It is killed after a random time. In a third of the kills it goes on with the record of the kill before.
"""

import argparse
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record
from tests.record.conftest import model

CLIENTS = 3


def exchange(number: int) -> Exchange:
    """Make a round whose arrays follow from its number."""
    replies = [Reply(f"node-{index}", "ok", model(100 * number + index), 10) for index in range(CLIENTS)]
    return Exchange(number, model(number), replies, mean="message")


def write(path: Path) -> None:
    """Write rounds without end, after those that are there."""
    there = (path / "manifest.json").exists()
    number = len(Record(path)) if there else 0
    writer = RecordWriter(path, resume=there)
    print("ready", flush=True)
    while True:
        number += 1
        writer.write(exchange(number))
        print(number, flush=True)


def kill(path: Path, seconds: float) -> int:
    """Kill a writer after so long; returns the last round that it reported, 0 for none."""
    words = [sys.executable, "-m", "tests.fuzz.kills", "--write", str(path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    if process.stdout is None:
        raise AssertionError("asked for")
    process.stdout.readline()
    said, until = b"", time.monotonic() + seconds
    # The pipe is read meanwhile: a writer that waits for room in it is killed in one place only.
    while (left := until - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            said += os.read(process.stdout.fileno(), 1 << 16)
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read()
    process.wait()
    # A line without its end was being printed: its round is whole, but was not reported.
    reported = [int(line) for line in said.split(b"\n")[:-1]]
    return max(reported, default=0)


def faults(path: Path, reported: int) -> list[str]:
    """Say what is wrong with the record of a killed writer."""
    record = Record(path)
    found = [f"{len(record)} rounds are there, {reported} were reported"] if len(record) < reported else []
    found += check_record(path).problems
    for item in record:
        for index, seen in enumerate(item.observations):
            expected = model(100 * item.number + index)
            if any((seen.arrays or {})[name].tobytes() != array.tobytes() for name, array in expected.items()):
                found.append(f"round {item.number}, {seen.node}: other arrays than were written")
    return found


def run(count: int, seed: int) -> dict[str, Any]:
    """Kill so many writers; returns how many rounds were reported, kept beyond that, and what was wrong."""
    draw = random.Random(seed)
    reported = kept = resumed = 0
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as root:
        path = Path(root) / "record"
        for number in range(count):
            goes_on = path.exists() and draw.random() < 1 / 3
            if path.exists() and not goes_on:
                shutil.rmtree(path)
            resumed += goes_on
            before = len(Record(path)) if goes_on else 0
            last = max(kill(path, draw.uniform(0.0, 0.3)), before)
            bad += [f"kill {number}: {fault}" for fault in faults(path, last)]
            reported, kept = reported + last, kept + len(Record(path)) - last
    return {"kills": count, "resumed": resumed, "reported": reported, "kept beyond": kept, "bad": bad}


def main() -> None:
    """Kill writers from the command line; exits with 1 if a reported round is not there."""
    parser = argparse.ArgumentParser(description="Killed writers: every round reported as complete is readable.")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.write)
    result = run(given.count, given.seed)
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["bad"] else 0)


if __name__ == "__main__":
    main()
