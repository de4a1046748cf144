"""How long a person waits: the first audit, a report, and what an audit takes beyond the run of an app.

``python -m tests.benchmarks.times`` prints seconds of the clock, in the order in which they are measured:

- ``fedattack audit quickstart``, five runs with two attacks, from the command to the page;
- ``fedattack report`` of these five runs, the median of three;
- an app of ten clients, three rounds and a LeNet, which its owner runs by itself;
- ``fedattack audit`` of that app, and how much longer it takes.

``--install`` adds what comes before: a new environment, by pip from wherever it is told to look, and its size. It takes
five minutes on two cores, and wants a machine that does nothing else.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from fedattack.runs.simulator import Simulator
from tests.apps.projects import MESSAGE_API, ROOT

CLIENTS = 10
REPORTS = 3

# The LeNet of Flower's quickstart, and digits as large as it takes them.
_NET = """

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))
"""
_LINE = "    labels = torch.tensor(digits.target)\n"
_ENLARGED = "    images = F.interpolate(images, size=32).repeat(1, 3, 1, 1)\n"


def timed(words: Sequence[str]) -> float:
    """Run a command to its end; return the seconds of the clock."""
    started = time.monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def write_app(folder: Path) -> Path:
    """Write an app whose clients train a LeNet on digits, about 50 each."""
    app = MESSAGE_API.copy(folder)
    task = app / MESSAGE_API.package / "task.py"
    text = task.read_text(encoding="utf-8")
    if _LINE not in text:
        raise AssertionError(f"{task} loads its data in another way")
    task.write_text(text.replace(_LINE, _LINE + _ENLARGED) + _NET, encoding="utf-8")
    return app


def run_app(app: Path, folder: Path) -> float:
    """Run an app as its owner does; return the seconds of the clock."""
    started = time.monotonic()
    with Simulator(app, supernodes=CLIENTS, log=folder / "flower.log") as simulator:
        simulator.run({})
    return time.monotonic() - started


def install(folder: Path) -> None:
    """Install into a new environment, as the Makefile does; print how long it took, and how large it is."""
    took = timed(["make", "-C", str(ROOT), f"VENV={folder / 'venv'}", str(folder / "venv" / ".run-installed")])
    size = sum(file.stat().st_size for file in (folder / "venv").rglob("*") if file.is_file() and not file.is_symlink())
    print(f"install: {took:.0f} s, {size / 1e9:.1f} GB", flush=True)


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.times", description=__doc__)
    parser.add_argument("--install", action="store_true", help="measure the install, too")
    asked = parser.parse_args()
    command = str(Path(sys.executable).parent / "fedattack")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.install:
            install(folder)
        quickstart = str(folder / "quickstart")
        print(
            f"audit of the quickstart: {timed([command, 'audit', 'quickstart', '--out', quickstart]):.0f} s", flush=True
        )
        reports = [timed([command, "report", quickstart]) for _ in range(REPORTS)]
        print(f"report of five runs: {statistics.median(reports):.1f} s", flush=True)
        app = write_app(folder)
        alone = run_app(app, folder)
        print(f"an app alone: {alone:.0f} s", flush=True)
        took = timed([command, "audit", str(app), "--out", str(folder / "app"), "--supernodes", str(CLIENTS)])
        print(f"its audit: {took:.0f} s, {took - alone:.0f} s more", flush=True)


if __name__ == "__main__":
    main()
