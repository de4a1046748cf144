"""What a GPU does: whole commands on it and on the CPUs beside it, in one run on one machine.

``python -m tests.benchmarks.gpu --mnist mnist10k.npz`` runs each of :data:`ROWS` on each device and prints a table:
seconds of the clock, and on the GPU how many processes shared it at most and what memory they took together. Options:

- ``--rows NAME…`` and ``--devices cpu cuda`` choose;
- ``--out FOLDER`` keeps what the commands print, each line with the second at which it came;
- ``--study FOLDER`` has the 300 rounds already, or takes them.

A row that fails says so, and the others go on.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path

from tests.apps.projects import ROOT
from tests.benchmarks.times import CLIENTS, write_app

DEVICES = ("cpu", "cuda")
SAMPLE_SECONDS = 1.0


@dataclass(frozen=True)
class Place:
    """Where a row runs.

    Attributes
    ----------
    folder
        Empty at first.
    device
        One of :data:`DEVICES`.
    mnist
        The file of MNIST's images.
    log
        Takes what the commands print.
    study
        Where the 300 rounds for PROLIN are, or will be.
    """

    folder: Path
    device: str
    mnist: Path
    log: Path
    study: Path

    def run(self, *words: str) -> float:
        """Run a command of fedattack to its end; return the seconds of the clock."""
        return self._timed([str(Path(sys.executable).parent / "fedattack"), *words])

    def measure(self, row: str) -> float:
        """Run a row of the benchmark of scale; return the seconds of the attack alone."""
        self._timed([sys.executable, "-m", "tests.benchmarks.scale", "--rows", row, "--device", self.device])
        found = self.log.read_text(encoding="utf-8").splitlines()[-1].split("|")
        return float(found[7].removesuffix("s "))

    def _timed(self, words: list[str]) -> float:
        started = time.monotonic()
        with (
            self.log.open("a", encoding="utf-8") as log,
            subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True) as process,
        ):
            log.write(f"$ {' '.join(words)}\n")
            for line in process.stdout or ():
                log.write(f"{time.monotonic() - started:6.1f} {line}")
                log.flush()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        return time.monotonic() - started


def audit(preset: str, place: Place) -> float:
    """Audit a preset, one seed."""
    return place.run(
        *("audit", preset, "--out", str(place.folder / "run"), "--seeds", "1"),
        *("--set", f"device={place.device}", "--device", place.device),
    )


def sharing(place: Place) -> float:
    """Simulate clients of a CNN of 644,000 parameters, which share the GPU."""
    changes = [
        *("model=sia-cnn", f"dataset={place.mnist}", "partition=iid", "clients=16", "records-per-client=500"),
        *("rounds=3", "local-epochs=5", "batch-size=50", f"device={place.device}"),
    ]
    words = [word for change in changes for word in ("--set", change)]
    return place.run("simulate", "quickstart", "--out", str(place.folder / "run"), "--seeds", "1", *words)


def prolin(place: Place) -> float:
    """Attack 300 rounds by PROLIN: LeNet, MNIST, 6,000 auxiliary examples; the run itself is not counted."""
    if not place.study.exists():
        place.run(
            *("simulate", "prolin-membership-paper", "--out", str(place.study), "--seeds", "1"),
            *("--set", f"dataset={place.mnist}", "--set", "device=cpu"),
        )
    seconds = place.run("attack", "prolin", str(place.study), "--device", place.device)
    place.run("report", str(place.study), "--device", "cpu")
    return seconds


def an_app(place: Place) -> float:
    """Audit an app that takes a GPU where there is one: a LeNet, ten clients."""
    app = write_app(place.folder)
    return place.run(
        *("audit", str(app), "--out", str(place.folder / "run"), "--supernodes", str(CLIENTS)),
        *("--device", place.device),
    )


ROWS: dict[str, Callable[[Place], float]] = {
    "quickstart": partial(audit, "quickstart"),
    "sharing": sharing,
    "app": an_app,
    "inversion": partial(audit, "inversion"),
    **{
        f"resnet-18-{kind}": methodcaller("measure", f"resnet-18-{kind}")
        for kind in ("membership", "inversion", "prolin")
    },
    "prolin": prolin,
}


@contextlib.contextmanager
def watching() -> Iterator[dict[str, int]]:
    """Count the processes on the GPU, and the megabytes that are taken there, at most."""
    seen, over = {"processes": 0, "MB": 0}, threading.Event()

    def look() -> None:
        while not over.wait(SAMPLE_SECONDS):
            seen["processes"] = max(seen["processes"], len(_asked("--query-compute-apps=pid")))
            seen["MB"] = max([seen["MB"], *(int(line) for line in _asked("--query-gpu=memory.used"))])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _asked(question: str) -> list[str]:
    try:
        answer = subprocess.run(
            ["nvidia-smi", question, "--format=csv,noheader,nounits"], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return answer.stdout.split()


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, required=True, help="mnist10k.npz")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--devices", nargs="*", default=list(DEVICES), choices=DEVICES)
    parser.add_argument("--out", type=Path, help="folder that keeps what the commands print")
    parser.add_argument("--study", type=Path, help="folder of the 300 rounds for PROLIN")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        logs = asked.out or Path(name)
        logs.mkdir(parents=True, exist_ok=True)
        print("| what | device | seconds | processes on the GPU | MB of the GPU |\n|---|---|---|---|---|")
        for row in asked.rows:
            for device in asked.devices:
                folder = Path(name) / f"{row}-{device}"
                folder.mkdir()
                study = asked.study or Path(name) / "study"
                place = Place(folder, device, asked.mnist.resolve(), logs / f"{row}-{device}.txt", study)
                with watching() as seen:
                    try:
                        took = f"{ROWS[row](place):.1f}"
                    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
                        took = f"failed: {error}"
                print(f"| {row} | {device} | {took} | {seen['processes']} | {seen['MB']:,} |", flush=True)


if __name__ == "__main__":
    main()
