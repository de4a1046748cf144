"""Kill a writer at random moments: is every round that it reported as complete there, and what it held?

    python -m tests.fuzz.kills --count 300
    python -m tests.fuzz.kills --count 30 --observed

A process writes rounds as fast as it can, and prints the number of each of which :meth:`RecordWriter.write` has come
back. It is killed after a random time. In a third of the kills it goes on with the record of the kill before.

With ``--observed`` it is Flower's own server with an observed strategy or an observed ServerApp, in turn, whose rounds
take next to no time. It prints the number of each round whose replies are averaged. Of these
:data:`MOST_LOST` may be lost: the one that is being written, and the one that waits for it.
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
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fedattack.record import Exchange, Record, RecordWriter, Reply, check_record
from tests.record.conftest import model

CLIENTS = 3

MOST_LOST = 2
"""Finished rounds that a kill may cost beside the one in flight, as the record's format says."""

ROUNDS = 10_000
"""Rounds of a run that is killed long before its end."""


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


def observe(path: Path, how: str) -> None:
    """Run Flower's server with clients in this process, observed in one of :data:`OBSERVED`."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    from fedattack.observe import ObservedServerApp, ObservedStrategy
    from tests.worlds.local_grid import LocalGrid

    client, server = ClientApp(), ServerApp()
    arrays = [np.zeros((200, 500), np.float32) for _ in range(4)]

    @client.train()
    def train(message: Message, context: Context) -> Message:
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 10})}
        return Message(RecordDict(content), reply_to=message)

    class Told(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            averaged = super().aggregate_train(server_round, replies)
            print(server_round, flush=True)
            return averaged

    @server.main()
    def main(grid: Any, context: Context) -> None:
        strategy: Any = Told(fraction_evaluate=0.0)
        if how == "strategy":
            strategy = ObservedStrategy(strategy, path)
        strategy.start(grid, ArrayRecord(arrays), num_rounds=ROUNDS)

    app: Any = server
    if how == "server":
        app = ObservedServerApp(server, path)
    app(LocalGrid(client, CLIENTS), Context(run_id=7, node_id=1, node_config={}, state=RecordDict(), run_config={}))


OBSERVED = ("strategy", "server")
"""What may be observed."""


def kill(path: Path, seconds: float, *more: str) -> int:
    """Kill a writer after so long; returns the last round that it reported, 0 for none."""
    words = [sys.executable, "-m", "tests.fuzz.kills", "--write", str(path), *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    if process.stdout is None:
        raise AssertionError("asked for")
    # It is ready, or its first round has ended.
    process.stdout.readline()
    said, until = b"", time.monotonic() + seconds
    # The pipe is read meanwhile: a writer that waits for room in it is killed in one place only.
    while (left := until - time.monotonic()) > 0:
        if select.select([process.stdout], [], [], left)[0]:
            said += os.read(process.stdout.fileno(), 1 << 16)
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read()
    if process.wait() != -signal.SIGKILL:
        raise AssertionError(f"it ended by itself, with {process.returncode}")
    # A line without its end was being printed: its round is whole, but was not reported.
    # Among them stands what Flower logs.
    reported = [int(line) for line in said.split(b"\n")[:-1] if line.isdigit()]
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


def run_observed(count: int, seed: int) -> dict[str, Any]:
    """Kill so many observed runs; returns how often how many finished rounds were lost, and what was wrong."""
    draw = random.Random(seed)
    lost = Counter[int]()
    bad: list[str] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as root:
        for number in range(count):
            path = Path(root) / str(number)
            finished = kill(path, draw.uniform(0.5, 3.0), "--observed", OBSERVED[number % len(OBSERVED)])
            lacks = finished - len(Record(path))
            lost[max(lacks, 0)] += 1
            problems = check_record(path).problems
            if lacks > MOST_LOST:
                problems.append(f"{lacks} of {finished} finished rounds are lost")
            bad += [f"kill {number}: {problem}" for problem in problems]
            shutil.rmtree(path)
    return {"kills": count, "lost": dict(sorted(lost.items())), "bad": bad}


def main() -> None:
    """Kill writers from the command line; exits with 1 if a reported round is not there."""
    parser = argparse.ArgumentParser(description="Killed writers: every round reported as complete is readable.")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--observed", nargs="?", const="", help="kill observed runs of Flower", choices=["", *OBSERVED])
    given = parser.parse_args()
    if given.write and given.observed:
        observe(given.write, given.observed)
    elif given.write:
        write(given.write)
    kill_all = run
    if given.observed is not None:
        kill_all = run_observed
    result = kill_all(given.count, given.seed)
    print(json.dumps(result, indent=2))
    sys.exit(1 if result["bad"] else 0)


if __name__ == "__main__":
    main()
