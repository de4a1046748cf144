"""How cost grows: time, memory and disk over model size, clients, rounds, auxiliary examples and targets.

``python -m tests.benchmarks.scale`` runs every row, each in processes of its own, and prints a table. Options:

- ``--rows PATTERN…`` runs rows whose names match, such as ``prolin*``; ``--list`` shows the names.
- ``--quick`` runs the rows :data:`QUICK`.
- ``--seconds N`` ends a row after so long, which its line then says.
- ``--out FILE`` keeps the rows as JSON, and a row that the file has already is not run again.
- ``--device cuda`` attacks on a GPU.

What varies is in a row's name; all else is as in :data:`BASE`, with at most 100 clients in a round. A row makes its
federation first: models of random numbers beside a common one, because what they say changes little of the cost. Then
another process attacks. Rows of ``recording`` time the writing alone. Those of ``simulation`` are whole commands
``fedattack simulate`` of a small network. Those of ``resnet-18-`` have a real federation of four clients, whose images
are 32 x 32 pixels in three colours. ``gradient_matching`` times an attack on attributes of examples.
"""

import argparse
import fnmatch
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
from torch import nn

from fedattack.attacks import (
    ATTACKS,
    AuxiliaryAttribute,
    Knowledge,
    ModelKnowledge,
    Targets,
    read_knowledge,
    write_knowledge,
)
from fedattack.learning import LocalSGD, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply, project_record

CLASSES = 10
SHAPE = (1, 28, 28)
COLOUR = (3, 32, 32)
EXAMPLES = 20
BATCH = 8
"""Examples of a client whose training is real: all of them in its one step."""
SAMPLE_SECONDS = 1.0
TRAINING = LocalSGD(epochs=1, batch_size=10, lr=0.05)
ONE_STEP = LocalSGD(epochs=1, batch_size=0, lr=0.05)
MEAN = {"kind": "mean", "weight": "num-examples", "by": "benchmark"}
SAMPLED = 100
"""Clients of a round at most."""


def resnet18(input_shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> nn.Module:
    """Build torchvision's ResNet-18 for small images: 11.2M parameters, with batch normalisation."""
    from torchvision.models import resnet18 as build

    model = build(num_classes=classes)
    model.conv1 = nn.Conv2d(input_shape[0], 64, 7, stride=2, padding=3, bias=False)
    return model


MODELS = {
    "22k": ModelKnowledge(spec="lenet-mnist", input_shape=SHAPE, classes=CLASSES),
    "644k": ModelKnowledge(spec="sia-cnn", input_shape=SHAPE, classes=CLASSES),
    "11M": ModelKnowledge(spec="tests.benchmarks.scale:resnet18", input_shape=SHAPE, classes=CLASSES),
    "11.2M": ModelKnowledge(spec="tests.benchmarks.scale:resnet18", input_shape=COLOUR, classes=CLASSES),
}


@dataclass(frozen=True)
class Row:
    """What one line of the table is about."""

    kind: str
    name: str = ""
    model: str = "22k"
    clients: int = 10
    rounds: int = 5
    auxiliary: int = 1000
    targets: int = 200
    real: bool = False
    """Whether clients train in every round, each on examples of its own."""
    device: str = "cpu"
    """Where the attack computes."""


BASE = Row("")
RESNET = Row("", model="11.2M", clients=4, auxiliary=200, targets=100, real=True)


def rows_of(kind: str, **varied: list[int] | list[str]) -> list[Row]:
    """List the base row of a kind, and one for each other value of each thing that is varied."""
    base = Row(kind, name=kind)
    rows = [base]
    for what, values in varied.items():
        for value in values:
            rows.append(replace(base, name=f"{kind}-{what}-{value}", **{what: value}))
    return rows


ROWS = [
    *rows_of("recording", model=["644k", "11M"], clients=[100, 1_000, 10_000], rounds=[50]),
    *rows_of("simulation", clients=[100, 1_000, 10_000]),
    *rows_of("sia", model=["644k", "11M"], clients=[100, 1_000], rounds=[50], targets=[2_000]),
    *rows_of("membership", model=["644k", "11M"], clients=[100], rounds=[50], auxiliary=[5_000], targets=[2_000]),
    *rows_of("membership-aggregate", model=["644k", "11M"], clients=[100], rounds=[50], targets=[2_000]),
    *rows_of("prolin", model=["644k", "11M"], clients=[100], rounds=[50], auxiliary=[5_000]),
    *rows_of("inversion", model=["644k", "11M"], clients=[100], rounds=[50]),
    *rows_of("private-attribute", model=["644k", "11M"], clients=[100], rounds=[50], auxiliary=[5_000]),
    *[replace(RESNET, kind=kind, name=f"resnet-18-{kind}") for kind in ("sia", "membership", "inversion", "prolin")],
]
QUICK = ("recording", "sia", "membership-aggregate", "inversion")
SUMS = ("prolin", "membership-aggregate")
"""Attacks on what a server of sums sees."""


def examples(count: int, draw: np.random.Generator, shape: tuple[int, ...] = SHAPE) -> Targets:
    """Draw examples that say nothing."""
    return Targets(draw.normal(size=(count, *shape)).astype(np.float32), draw.integers(CLASSES, size=count))


def knowledge_of(row: Row, draw: np.random.Generator) -> Knowledge:
    """Gather what the attacker of a row knows."""
    model, trains = MODELS[row.model], row.real or row.kind == "inversion"
    known = Knowledge(model=model, training=ONE_STEP if trains else TRAINING)
    if row.kind == "inversion":
        return known
    known = replace(known, auxiliary=examples(row.auxiliary, draw, model.input_shape))
    if row.kind == "prolin":
        return replace(known, property="inversion", positive_share=0.25 if row.real else 0.1)
    if row.kind == "private-attribute":
        values = draw.integers(2, size=row.auxiliary)
        return replace(known, attributes={"level": AuxiliaryAttribute(("low", "high"), values)})
    return replace(known, targets=examples(row.targets, draw, model.input_shape))


def make(row: Row, folder: Path) -> dict[str, float]:
    """Write record and knowledge of a row; returns the seconds that the record took, and its bytes."""
    draw = np.random.default_rng(0)
    write_knowledge(folder / "knowledge", knowledge_of(row, draw))
    if row.real:
        return federate(row, folder, draw)
    model = MODELS[row.model].build()
    common = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    sums = row.kind in SUMS
    writer = RecordWriter(
        folder / "record",
        view="aggregate" if sums else "individual",
        aggregation=MEAN if sums else None,
        facts={"lr": 0.05},
    )
    seconds = 0.0
    for number in range(1, row.rounds + 1):
        sampled = draw.choice(row.clients, size=min(row.clients, SAMPLED), replace=False)
        replies = []
        for client in sampled.tolist():
            sent = None if sums else reply_of(row, model, common, draw)
            replies.append(Reply(f"node{client}", "ok", sent, 2 if row.kind == "inversion" else EXAMPLES))
        aggregate = None
        if sums:
            aggregate = {name: array.astype(np.float64) for name, array in moved(common, draw).items()}
        started = time.perf_counter()
        writer.write(Exchange(number, common, replies, aggregate=aggregate))
        seconds += time.perf_counter() - started
        common = moved(common, draw)
    started = time.perf_counter()
    writer.close(final=common)
    return {"seconds": seconds + time.perf_counter() - started, "bytes": size_of(folder / "record")}


def federate(row: Row, folder: Path, draw: np.random.Generator) -> dict[str, float]:
    """Write the record of clients that train; its projection where an attack is about sums."""
    known = MODELS[row.model]
    model = known.build()
    held = [examples(BATCH, draw, known.input_shape) for _ in range(row.clients)]
    common = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    path = folder / ("whole" if row.kind in SUMS else "record")
    writer = RecordWriter(path, view="individual", facts={"lr": ONE_STEP.lr})
    seconds = 0.0
    for number in range(1, row.rounds + 1):
        sent = [trained(model, common, own) for own in held]
        replies = [Reply(f"node{client}", "ok", state, BATCH) for client, state in enumerate(sent)]
        started = time.perf_counter()
        writer.write(Exchange(number, common, replies))
        seconds += time.perf_counter() - started
        after = {}
        for name, array in common.items():
            mean = np.mean([state[name] for state in sent], axis=0, dtype=np.float64)
            after[name] = np.asarray(mean, dtype=array.dtype)
        common = after
    writer.close(final=common)
    if row.kind in SUMS:
        project_record(Record(path), folder / "record")
    return {"seconds": seconds, "bytes": size_of(path)}


def trained(model: nn.Module, common: dict[str, np.ndarray], held: Targets) -> dict[str, np.ndarray]:
    """Return the model that a client sends, after a step on all of its examples."""
    import torch

    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in common.items()})
    train_local(model, held.x, held.y, seed=0, **vars(ONE_STEP))
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def reply_of(
    row: Row, model: nn.Module, common: dict[str, np.ndarray], draw: np.random.Generator
) -> dict[str, np.ndarray]:
    """Make a client's model: of a real step on two examples where they are to be rebuilt, else of random numbers."""
    if row.kind != "inversion":
        return moved(common, draw)
    return trained(model, common, examples(2, draw, MODELS[row.model].input_shape))


def moved(common: dict[str, np.ndarray], draw: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a model near another."""
    near = {}
    for name, array in common.items():
        near[name] = array
        if array.dtype.kind == "f":
            near[name] = array + np.float32(1e-3) * draw.random(array.shape, dtype=np.float32)
    return near


def size_of(folder: Path) -> int:
    """Return the bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def attack(row: Row, folder: Path) -> dict[str, float]:
    """Run a row's attack on what was made; returns its seconds, and the bytes of its scores."""
    options = {"clients": "node0", "updates": "1"} if row.kind == "inversion" else {}
    if ATTACKS[row.kind].options.shares_work():
        # One process, whose processor time says what the attack costs.
        options["workers"] = "1"
    chosen = ATTACKS[row.kind].with_options(options)
    # The folder is this benchmark's own, and so is the model that it names.
    known = read_knowledge(folder / "knowledge", trusted=[str(MODELS[row.model].spec)])
    record = Record(folder / "record")
    started = time.perf_counter()
    scores = chosen.run(record, known, seed=0, device=row.device)
    seconds = time.perf_counter() - started
    scores.save(folder / "scores.npz")
    return {"seconds": seconds, "bytes": (folder / "scores.npz").stat().st_size}


def simulate(row: Row, folder: Path) -> dict[str, float]:
    """Run ``fedattack simulate`` for a row; returns its seconds, and the bytes of its folder."""
    changes = [
        *("dataset=synthetic", "partition=iid", "local-epochs=1", f"rounds={row.rounds}", f"clients={row.clients}"),
        f"fraction={min(1.0, SAMPLED / row.clients)}",
    ]
    words = [sys.executable, "-m", "fedattack", "simulate", "quickstart", "--out", str(folder / "run"), "--seeds", "1"]
    for change in changes:
        words += ["--set", change]
    started = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {"seconds": time.perf_counter() - started, "bytes": size_of(folder / "run")}


STEPS: dict[str, Callable[[Row, Path], dict[str, float]]] = {"make": make, "attack": attack, "simulate": simulate}


def child(step: str, row: Row, folder: Path) -> None:
    """Do one step of a row in this process, and print what it took."""
    found = STEPS[step](row, folder)
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found["peak"] = max(own_peak(), 1024 * usage[1].ru_maxrss)
    found["processor"] = sum(used.ru_utime + used.ru_stime for used in usage)
    print(json.dumps(found))


def own_peak() -> int:
    """Return the bytes that this process took at most. What the system says of its usage counts who started it, too."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def steps_of(row: Row) -> tuple[str, ...]:
    """Name the steps of a row, of which the last is measured."""
    if row.kind == "simulation":
        return ("simulate",)
    return ("make",) if row.kind == "recording" else ("make", "attack")


def measure(row: Row, seconds: float) -> dict[str, object]:
    """Run one row in processes of its own."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for step in steps_of(row):
            words = [sys.executable, "-m", "tests.benchmarks.scale", "--device", row.device]
            words += ["--step", step, row.name, folder]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            try:
                done, peak = watched(words, environment, seconds)
            except subprocess.TimeoutExpired:
                return {"failed": f"{step}: not ended after {seconds:g} s"}
            if done.returncode:
                last = (done.stderr.decode().strip().splitlines() or [""])[-1]
                return {"failed": f"{step}: exit code {done.returncode}: {last[:150]}"}
            found = {**json.loads(done.stdout), "together": peak}
    return found


def watched(
    words: list[str], environment: dict[str, str], seconds: float
) -> tuple[subprocess.CompletedProcess[bytes], int]:
    """Run a command; returns how it ended, and the bytes that its processes took together at most.

    What several of them share counts once. It is looked at every :data:`SAMPLE_SECONDS`.
    """
    peak, ends = 0, time.monotonic() + seconds
    process = psutil.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    while True:
        try:
            out, err = process.communicate(timeout=SAMPLE_SECONDS)
            return subprocess.CompletedProcess(words, process.returncode, out, err), peak
        except subprocess.TimeoutExpired:
            peak = max(peak, together(process))
            if time.monotonic() > ends:
                end(process)
                process.communicate()
                raise


def together(process: psutil.Process) -> int:
    """Return the bytes that a process and all that it started take."""
    taken = 0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                taken += each.memory_full_info().pss
    return taken


def end(process: psutil.Popen) -> None:
    """End a process and all that it started."""
    started = process.children(recursive=True)
    for each in (*started, process):
        with suppress(psutil.Error):
            each.kill()


def line_of(row: Row, found: dict[str, object]) -> str:
    """Write a row of the table, in Markdown."""
    about = f"| {row.kind} | {row.model} | {row.clients:,} | {row.rounds} | {row.auxiliary:,} | {row.targets:,} |"
    if "failed" in found:
        return f"{about} {found['failed']} | | | | |"
    time_of, processor = f"{found['seconds']:.1f} s", f"{found['processor']:.1f} s"
    together_of = f"{found['together'] / 1e6:,.0f} MB" if "together" in found else ""
    memory = f"{found['peak'] / 1e6:,.0f} MB | {together_of}"
    return f"{about} {time_of} | {processor} | {memory} | {found['bytes'] / 1e6:,.2f} MB |"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="*", default=["*"], metavar="PATTERN", help="names of rows, such as sia*")
    parser.add_argument("--quick", action="store_true", help="a small row of some kinds")
    parser.add_argument("--list", action="store_true", help="show the names of all rows")
    parser.add_argument("--seconds", type=float, default=300.0, help="of a row at most (300)")
    parser.add_argument("--device", default="cpu", help="where attacks compute (cpu)")
    parser.add_argument("--out", type=Path, help="file that keeps the rows as JSON")
    parser.add_argument("--step", nargs=3, metavar=("STEP", "ROW", "FOLDER"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    rows = [replace(row, device=asked.device) for row in ROWS]
    by_name = {row.name: row for row in rows}
    if asked.step:
        step, name, folder = asked.step
        child(step, by_name[name], Path(folder))
        return
    patterns = QUICK if asked.quick else asked.rows
    chosen = [row for row in rows if any(fnmatch.fnmatch(row.name, pattern) for pattern in patterns)]
    if not chosen:
        parser.error(f"no row is named {' or '.join(patterns)}; --list shows all")
    if asked.list:
        print("\n".join(row.name for row in chosen))
        return
    kept = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    sizes = "| what | parameters | clients | rounds | auxiliary | targets |"
    print(f"{sizes} time | processor | largest process | all processes | disk |")
    print(f"|{'---|' * 11}")
    for row in chosen:
        if row.name not in kept:
            kept[row.name] = measure(row, asked.seconds)
            if asked.out:
                asked.out.write_text(json.dumps(kept, indent=1) + "\n")
        print(line_of(row, kept[row.name]), flush=True)


if __name__ == "__main__":
    main()
