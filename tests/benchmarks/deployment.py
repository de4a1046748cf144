"""What a deployment of real processes costs: seconds per round, memory per node, the recorder's share.

``python -m tests.benchmarks.deployment --clients 20 --rounds 3`` audits one SuperLink and that many SuperNodes, over
TLS and with keys, on this machine; the clients train an MLP of a million parameters on digits. Memory is the
proportional set size: what several processes share counts once.
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import psutil

from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.runs.deployment import Deployment
from fedattack.runs.presets import load_preset, resolve_settings
from fedattack.runs.runtime import Runtime
from fedattack.runs.runtimes import RUNTIMES
from fedattack.runs.simulating import simulate
from fedattack.runs.watch import Watch

# 64 · h + h + 10 · h + 10 is a million.
HIDDEN = 13_333
SAMPLE_SECONDS = 5.0


def proportional(process: psutil.Process) -> int:
    """Bytes of memory of a process and all that it started; what it shares with others counts in part."""
    total = 0
    for item in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            total += item.memory_full_info().pss
    return total


class Measured(Deployment):
    """A deployment whose processes' memory is looked at every few seconds."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.peaks: dict[str, int] = defaultdict(int)
        self._next = 0.0

    def look(self) -> None:
        if time.monotonic() < self._next or self._superlink is None or len(self._nodes) < self.supernodes:
            return
        self._next = time.monotonic() + SAMPLE_SECONDS
        with suppress(psutil.Error):
            nodes = [proportional(psutil.Process(node.pid)) for node in self._nodes]
            alone = [psutil.Process(node.pid).memory_full_info().pss for node in self._nodes]
            server = proportional(psutil.Process(self._superlink.pid))
            for what, size in (
                ("a SuperNode with its client", max(nodes)),
                ("a SuperNode alone", max(alone)),
                ("SuperLink and ServerApp, with the recorder", server),
                ("all together", sum(nodes) + server),
            ):
                self.peaks[what] = max(self.peaks[what], size)


def write_again(record: Record, out: Path) -> list[float]:
    """Write each round once more; returns the seconds that each takes."""
    writer, seconds = RecordWriter(out, seed=record.seed), []
    for item in record:
        replies = [
            Reply(seen.node, seen.status, dict(seen.arrays or {}), seen.num_examples, seen.metrics)
            for seen in item.observations
        ]
        exchange = Exchange(item.number, dict(item.common or {}), replies, config=item.config, mean="message")
        started = time.perf_counter()
        writer.write(exchange)
        seconds.append(time.perf_counter() - started)
    writer.close()
    return seconds


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    made: list[Measured] = []

    def make(app: Path, clients: int, device: str, log: Path) -> Runtime:
        made.append(Measured(app, supernodes=clients, log=log))
        return made[0]

    RUNTIMES["processes"] = make
    preset = load_preset("quickstart")
    changes = [f"clients={options.clients}", f"rounds={options.rounds}", "model=mlp", f"hidden={HIDDEN}", "alpha=100"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        watch = Watch(step=lambda what, done, total: [item.look() for item in made] and None)
        started = time.monotonic()
        simulate(preset, resolve_settings(preset, changes), [0], out, command="", watch=watch, runtime="processes")
        whole = time.monotonic() - started
        record = Record(out / "record")
        lines = [item._entry for item in record]
        stamps = [tuple(datetime.fromisoformat(line[key]) for key in ("started", "ended")) for line in lines]
        rounds = [(end - start).total_seconds() for start, end in stamps]
        written = write_again(record, Path(folder) / "again")
        arrived = [sum(seen.status == "ok" for seen in item.observations) for item in record]
        size = sum(array.size for array in (record.rounds[0].common or {}).values())
        print(
            f"{options.clients} SuperNodes, {size / 1e6:.2f}M parameters, {options.rounds} rounds: {whole:.0f} s in all"
        )
        print(f"  replies per round: {arrived}; seconds per round: {[round(item, 1) for item in rounds]}")
        print(f"  median round: {statistics.median(rounds):.1f} s")
        share = statistics.median(written) / statistics.median(rounds)
        print(f"  writing a round: {statistics.median(written):.2f} s, {share:.1%} of it, beside the training")
        for what, peak in made[0].peaks.items():
            print(f"  most memory of {what}: {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
