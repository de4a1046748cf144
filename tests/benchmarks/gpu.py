"""What a GPU does: whole commands on it and on the CPUs beside it, the most telling first.

``python -m tests.benchmarks.gpu --mnist mnist10k.npz`` runs each of :data:`ROWS` on the GPU, then on the CPUs. As soon
as a row has ended its line of the table is there: seconds of the clock, and on the GPU how many processes shared it at
most and what memory they took together. A row that fails or is cut off says so, and how far it came; the others go on.
Options:

- ``--rows NAME…`` and ``--devices cuda cpu`` choose, and say in which order;
- ``--limit`` and ``--total`` are the seconds of each command and of all, at most: what is left is *not reached*;
- ``--out FOLDER`` keeps the table, and what the commands print, each line with the second at which it came;
- ``--study FOLDER`` has the 300 rounds already, or takes them.
"""

import argparse
import contextlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch

from tests.apps.projects import ROOT
from tests.benchmarks.scale import end
from tests.benchmarks.times import CLIENTS, write_app

DEVICES = ("cuda", "cpu")
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
    limit
        Seconds of each command at most.
    ends
        When the time for all rows is over, of the monotonic clock.
    """

    folder: Path
    device: str
    mnist: Path
    log: Path
    study: Path
    limit: float
    ends: float

    def run(self, *words: str) -> float:
        """Run a command of fedattack to its end; return the seconds of the clock.

        Raises
        ------
        subprocess.CalledProcessError
            If it fails.
        subprocess.TimeoutExpired
            If it is not over within the limit; its output is the last line.
        """
        return self.run_module("fedattack", *words)

    def run_module(self, *words: str) -> float:
        """Run a module as :meth:`run` does."""
        command = [sys.executable, "-m", *words]
        started, last = time.monotonic(), ""
        limit = max(0.0, min(self.limit, self.ends - started))
        cut_off = threading.Event()
        with (
            self.log.open("a", encoding="utf-8") as log,
            psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT, text=True) as process,
        ):

            def cut() -> None:
                cut_off.set()
                end(process)

            timer = threading.Timer(limit, cut)
            timer.start()
            log.write(f"$ {' '.join(command)}\n")
            for line in process.stdout or ():
                last = line.strip() or last
                log.write(f"{time.monotonic() - started:6.1f} {line}")
                log.flush()
            timer.cancel()
        if cut_off.is_set():
            raise subprocess.TimeoutExpired(command, limit, output=last)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, output=last)
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
    run = shutil.copytree(place.study, place.folder / "run")
    return place.run("attack", "prolin", str(run), "--device", place.device)


def an_app(place: Place) -> float:
    """Audit an app of a LeNet whose ten clients train on CPUs; what an attack does not show has a positive control."""
    app = write_app(place.folder)
    return place.run(
        *("audit", str(app), "--out", str(place.folder / "run"), "--supernodes", str(CLIENTS)),
        *("--device", place.device, "--set", "local-epochs=1", "--set", "learning-rate=0.001"),
    )


def resnet(kind: str, place: Place) -> float:
    """Attack the ResNet-18 of the benchmark of scale, whose making is not counted."""
    place.run_module("tests.benchmarks.scale", "--step", "make", f"resnet-18-{kind}", str(place.folder))
    options = ("--option", "clients=node0", "--option", "updates=1") if kind == "inversion" else ()
    return place.run("attack", kind, str(place.folder), "--trust", "--device", place.device, *options)


ROWS: dict[str, Callable[[Place], float]] = {
    "prolin": prolin,
    "app": an_app,
    "inversion": partial(audit, "inversion"),
    "resnet-18-prolin": partial(resnet, "prolin"),
    "resnet-18-inversion": partial(resnet, "inversion"),
    "quickstart": partial(audit, "quickstart"),
    "resnet-18-membership": partial(resnet, "membership"),
    "sharing": sharing,
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


def measure(row: str, place: Place) -> str:
    """Run a row; return its line of the table."""
    with watching() as seen:
        try:
            took = f"{ROWS[row](place):.1f}"
        except subprocess.TimeoutExpired as error:
            took = f"cut off after {error.timeout:.0f} s at: {error.output}"
        except subprocess.CalledProcessError as error:
            took = f"failed, exit code {error.returncode}: {error.output}"
    on_gpu = "" if place.device == "cpu" else f"{seen['processes']} | {seen['MB']:,}"
    return f"| {row} | {place.device} | {took} | {on_gpu or ' | '} |"


def describe_machine() -> str:
    """Name the GPU, and count the cores that this process may take."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = len(psutil.Process().cpu_affinity())
    return f"{gpu}, {cores} cores, PyTorch {torch.__version__}, Python {platform.python_version()}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, required=True, help="mnist10k.npz")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--devices", nargs="*", default=list(DEVICES), choices=DEVICES)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds of each row at most (180)")
    parser.add_argument("--total", type=float, default=720.0, help="seconds of all rows at most (720)")
    parser.add_argument("--out", type=Path, help="folder that keeps the table and what the commands print")
    parser.add_argument("--study", type=Path, help="folder of the 300 rounds for PROLIN")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ends = time.monotonic() + asked.total
    with tempfile.TemporaryDirectory() as name:
        out = asked.out or Path(name)
        out.mkdir(parents=True, exist_ok=True)
        study = (asked.study or Path(name) / "study").resolve()

        with (out / "table.md").open("a", encoding="utf-8") as table:

            def write(line: str) -> None:
                print(line, flush=True)
                print(line, file=table, flush=True)

            write(f"{describe_machine()}\n\n| what | device | seconds | processes on the GPU | MB of the GPU |")
            write("|---|---|---|---|---|")
            for device in asked.devices:
                for row in asked.rows:
                    if time.monotonic() >= ends:
                        write(f"| {row} | {device} | not reached | | |")
                        continue
                    folder = Path(name) / f"{row}-{device}"
                    folder.mkdir()
                    log = out / f"{row}-{device}.txt"
                    write(measure(row, Place(folder, device, asked.mnist.resolve(), log, study, asked.limit, ends)))


if __name__ == "__main__":
    main()
