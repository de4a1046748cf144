"""Gradient inversion beside its peers: the same gradients, labels, starts and number of gradient evaluations.

``python -m tests.benchmarks.inversion MNIST.npz --peers FOLDER --out ROWS.jsonl`` reconstructs images of MNIST (``x``
uint8 (n, 28, 28), ``y``) behind untrained LeNets, in batches of 1, 4 and 8. Clients send a gradient, or the model after
four local steps. It prints the mean PSNR of each method, and by how much ours is above each peer, paired by batches.

The first run installs into FOLDER what can be installed, and never into the environment that runs it:

- breaching, its package. Its total variation takes images of three channels alone, and is left out here.
- AIJack, the file of its source distribution that inverts gradients. The rest of it needs a C++ build with Boost.
- LeakPro is not on the package index, which has an empty package of that name. Its published settings are rewritten
  here (InvertingConfig, July 2025: cosine, signed Adam, box, total variation), and the row says so.

Every piece of work is one line of ROWS.jsonl; a run that was stopped goes on where it was. ``--only TEXT`` runs the
pieces whose name has a text, such as ``sigmoid-4-fedsgd`` or ``/ours``.
"""

import argparse
import contextlib
import importlib
import io
import json
import subprocess
import sys
import tarfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.audit.intervals import t_interval
from fedattack.learning import LocalSGD
from fedattack.learning.soft_losses import soft_targets
from fedattack.threats.attribute.gradient_matching import generators
from fedattack.threats.inversion.gradient_inversion import (
    ONE_GRADIENT,
    ClientModel,
    ReplyBatch,
    Search,
    total_variation,
)
from fedattack.threats.inversion.images import pair_images, peak_ratio, squared_error
from fedattack.threats.inversion.inversion import VARIATION
from tests.threats.inversion.inverted import invert

SHAPE = (1, 28, 28)
EVALUATIONS = 300
BATCHES = {1: 32, 4: 10, 8: 8}
"""How many batches there are of a size: at least 32 images."""

TRAININGS = {"fedsgd": ONE_GRADIENT, "fedavg": LocalSGD(epochs=4, batch_size=0, lr=0.1)}
ACTIVATIONS = {"sigmoid": nn.Sigmoid, "relu": nn.ReLU}
BOX = (np.zeros((1, 1, 1), dtype=np.float32), np.ones((1, 1, 1), dtype=np.float32))
# The search was chosen on the images of seed 1.
_IMAGES = 2
# PyTorch's L-BFGS evaluates the objective so often in a step.
_IN_A_STEP = 20

BREACHING = ("breaching==0.1.2", "hydra-core>=1.1", "omegaconf>=2.1", "antlr4-python3-runtime==4.9.*", "lpips")
AIJACK = "aijack==0.0.1b2"


@dataclass(frozen=True)
class Cell:
    """One setting: which network, how many examples in a batch, and how clients train."""

    network: str
    size: int
    training: str

    @property
    def name(self) -> str:
        """Such as ``relu-4-fedavg``."""
        return f"{self.network}-{self.size}-{self.training}"


@dataclass(frozen=True)
class Task:
    """A batch to reconstruct: its true images and labels, what the client sent, and where searches start."""

    client: ClientModel
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    batch: ReplyBatch
    start: Tensor

    @property
    def labels(self) -> Tensor:
        """Labels (n,)."""
        return torch.from_numpy(self.y)

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.client.model

    @property
    def sent(self) -> list[Tensor]:
        """The movement, in the order of the model's parameters."""
        return [torch.from_numpy(self.batch.movement[name]) for name, _ in self.model.named_parameters()]

    def movement(self, x: Tensor) -> list[Tensor]:
        """Return what the client would have sent of other images."""
        targets = soft_targets("cross-entropy", self.y, 10)
        return [*self.client.movement(*self.client.split(self.batch.received), x, targets).values()]


def lenet(network: str) -> nn.Module:
    """Build the LeNet of the papers on gradient inversion (Zhu et al. 2019), untrained, with a sigmoid or ReLU."""
    activation = ACTIVATIONS[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 12, 5, padding=2, stride=2), activation()),
            *(nn.Conv2d(12, 12, 5, padding=2, stride=2), activation()),
            *(nn.Conv2d(12, 12, 5, padding=2), activation()),
            *(nn.Flatten(), nn.Linear(588, 10)),
        )


def tasks_of(cell: Cell, x: NDArray[np.float32], y: NDArray[np.int64]) -> list[Task]:
    """Make the batches of a cell; a size has the same images in every cell."""
    client = ClientModel(lenet(cell.network), "cross-entropy", TRAININGS[cell.training])
    received = {name: value.numpy() for name, value in client.model.state_dict().items()}
    count = BATCHES[cell.size]
    chosen = np.random.default_rng(_IMAGES).permutation(len(x))[: count * cell.size].reshape(count, cell.size)
    tasks = []
    for rows, draw in zip(chosen, generators(0, range(count)), strict=True):
        empty = Task(client, x[rows], y[rows], ReplyBatch(received, {}, cell.size, y[rows]), torch.zeros(()))
        moved = empty.movement(torch.from_numpy(x[rows]))
        names = dict(client.model.named_parameters())
        movement = {name: part.detach().numpy() for name, part in zip(names, moved, strict=True)}
        start = torch.from_numpy(draw.normal(size=(cell.size, *SHAPE))).float()
        tasks.append(replace(empty, batch=replace(empty.batch, movement=movement), start=start))
    return tasks


def ours(tasks: Sequence[Task]) -> list[NDArray[np.float32]]:
    """Search by fedattack's default options, all batches together."""
    how = Search("cos", EVALUATIONS, variation=VARIATION["cos"], box=BOX)
    return [found.x for found in invert(tasks[0].client, [task.batch for task in tasks], SHAPE, how)]


def ours_one_by_one(tasks: Sequence[Task]) -> list[NDArray[np.float32]]:
    """Search by the same, one batch after another."""
    return [ours([task])[0] for task in tasks]


def aijack(**settings: Any) -> Callable[[Sequence[Task]], list[NDArray[np.float32]]]:
    """Return AIJack's own search with some of its settings."""

    def search(tasks: Sequence[Task]) -> list[NDArray[np.float32]]:
        module = importlib.import_module("aijack.attack.inversion.gradientinversion")
        images = []
        for task in tasks:

            def moved(attacker: object, x: Tensor, labels: Tensor, task: Task = task) -> tuple[None, list[Tensor]]:
                return None, task.movement(x)

            several = task.client.training.epochs > 1
            attack = module.GradientInversion_Attack(
                task.model,
                SHAPE,
                **settings,
                optimize_label=False,
                log_interval=0,
                early_stopping=EVALUATIONS,
                clamp_range=(0, 1),
                custom_generate_fake_grad_fn=moved if several else None,
            )
            start = task.start.clone().requires_grad_()
            found, _ = attack.attack(task.sent, len(task.y), init_x=start, labels=task.labels)
            images.append(found.numpy())
        return images

    return search


def breaching(config: str, *overrides: str) -> Callable[[Sequence[Task]], list[NDArray[np.float32]]]:
    """Return breaching's own search by one of its configurations."""

    def search(tasks: Sequence[Task]) -> list[NDArray[np.float32]]:
        package = importlib.import_module("breaching")
        settings = package.get_attack_config(config, overrides=[*overrides])
        setup = {"dtype": torch.float, "device": torch.device("cpu")}
        images = []
        for task in tasks:
            attacker = package.attacks.prepare_attack(task.model, nn.CrossEntropyLoss(), settings, setup)
            image = types.SimpleNamespace(shape=SHAPE, modality="vision", mean=(0.0,), std=(1.0,))
            payload = {"parameters": [*task.model.parameters()], "buffers": [], "metadata": image}
            training, local, scale = task.client.training, None, 1.0
            if training.epochs > 1:
                labels = [task.labels] * training.epochs
                local = {"steps": training.epochs, "data_per_step": len(task.y), "lr": training.lr, "labels": labels}
                # Of several steps breaching takes how far the model moved.
                scale = -training.lr
            known = {"num_data_points": len(task.y), "labels": task.labels, "local_hyperparams": local}
            shared = {"gradients": [scale * part for part in task.sent], "buffers": None, "metadata": known}
            found, _ = attacker.reconstruct([payload], [shared], {}, initial_data=task.start)
            images.append(found["data"].numpy())
        return images

    return search


def leakpro(tasks: Sequence[Task]) -> list[NDArray[np.float32]]:
    """Search by LeakPro's published settings, rewritten: cosine, signed Adam, steps that fall, a box."""
    images = []
    for task in tasks:
        x, sent = task.start.clone().requires_grad_(), torch.cat([part.flatten() for part in task.sent]).double()
        optimizer = torch.optim.Adam([x], lr=0.1)
        falls = [int(share * EVALUATIONS) for share in (3 / 8, 5 / 8, 7 / 8)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls, 0.1)
        least, best = np.inf, x.detach().clone()
        for _ in range(EVALUATIONS):
            moved = torch.cat([part.flatten() for part in task.movement(x)]).double()
            loss = 1 - torch.nn.functional.cosine_similarity(moved, sent, dim=0) + 1e-6 * total_variation(x)
            (slope,) = torch.autograd.grad(loss, x)
            x.grad = slope.sign()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(0, 1)
            if loss.item() < least:
                least, best = loss.item(), x.detach().clone()
        images.append(best.numpy())
    return images


ADAM = {"num_iteration": EVALUATIONS, "optimizername": "Adam", "lr": 0.1}
LBFGS = {"num_iteration": EVALUATIONS // _IN_A_STEP, "optimizername": "LBFGS", "lr": 1.0}
METHODS: dict[str, Callable[[Sequence[Task]], list[NDArray[np.float32]]]] = {
    "ours": ours,
    "ours, one by one": ours_one_by_one,
    "AIJack, Adam, squared": aijack(**ADAM, distancename="l2"),
    "AIJack, Adam, cosine, TV 0.01": aijack(**ADAM, distancename="cossim", tv_reg_coef=0.01),
    "AIJack, L-BFGS, squared": aijack(**LBFGS, distancename="l2"),
    "breaching, invertinggradients": breaching(
        "invertinggradients", f"optim.max_iterations={EVALUATIONS}", "regularization.total_variation.scale=0"
    ),
    "breaching, L-BFGS, squared": breaching(
        "_default_optimization_attack",
        *("optim.optimizer=L-BFGS", "optim.boxed=True", f"optim.max_iterations={EVALUATIONS // _IN_A_STEP}"),
    ),
    "LeakPro's settings, rewritten": leakpro,
}
SLOW = ("L-BFGS", "one by one")
"""Methods that are not run where a client takes several steps, which cost four times as much."""


def pieces() -> Iterator[tuple[Cell, str]]:
    """List every cell with each method that it is measured by."""
    for training in TRAININGS:
        for size in (4, 1, 8):
            for network in ACTIVATIONS:
                for method in METHODS:
                    if training == "fedsgd" or not any(word in method for word in SLOW):
                        yield Cell(network, size, training), method


def measured(cell: Cell, method: str, x: NDArray[np.float32], y: NDArray[np.int64]) -> dict[str, Any]:
    """Reconstruct the batches of a cell, and return the PSNR in dB of every image, batch by batch."""
    tasks = tasks_of(cell, x, y)
    began = time.process_time()
    # The peers print as they go.
    with contextlib.redirect_stdout(io.StringIO()):
        images = METHODS[method](tasks)
    seconds = time.process_time() - began
    ratios = []
    for found, task in zip(images, tasks, strict=True):
        inside = np.clip(np.nan_to_num(found), 0, 1)
        positions = pair_images(inside, task.x)
        ratios.append(np.round(peak_ratio(squared_error(inside[positions], task.x)), 3).tolist())
    return {"cell": cell.name, "method": method, "psnr": ratios, "seconds": round(seconds, 1)}


def install(folder: Path) -> dict[str, str]:
    """Install the peers into a folder, and make them importable; return why, for those that are not."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = {}
    if not (folder / "breaching").is_dir():
        done = _pip("install", "--target", str(folder), "--no-deps", *BREACHING)
        if done.returncode:
            missing["breaching"] = done.stderr.strip().splitlines()[-1]
    source, reason = aijack_source(folder)
    sys.path.append(str(folder))
    if source is None:
        missing["AIJack"] = reason
    else:
        stand_in(source, ("attack", "attack.inversion"))
    return missing


def aijack_source(folder: Path) -> tuple[Path | None, str]:
    """Return where AIJack's Python files lie in a folder, downloaded if they are not there, or why they do not."""
    source = next(folder.glob("aijack-*/src/aijack"), None)
    if source is None:
        done = _pip("download", "--dest", str(folder), "--no-deps", "--no-binary", "aijack", AIJACK)
        archive = next(folder.glob("aijack-*.tar.gz"), None)
        if archive is None:
            return None, done.stderr.strip().splitlines()[-1]
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = next(folder.glob("aijack-*/src/aijack"))
    return source, ""


def stand_in(source: Path, packages: Sequence[str], peer: str = "aijack") -> None:
    """Put empty packages with a peer's paths in the place of those that import what is not there, or is not needed."""
    for name in (peer, *[f"{peer}.{package}" for package in packages]):
        package = types.ModuleType(name)
        package.__path__ = [str(source.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def _pip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print each method's mean PSNR, and by how much ours is above it, with a 95 % interval over batches."""
    for cell in dict.fromkeys(row["cell"] for row in rows):
        by_method = {row["method"]: row for row in rows if row["cell"] == cell}
        print(f"{cell}, {EVALUATIONS} gradient evaluations")
        for method, row in by_method.items():
            line = f"  {method:32} {_mean(row):6.1f} dB, {row['seconds']:5.0f} s"
            if "ours" in by_method and not method.startswith("ours"):
                apart = _by_batch(by_method["ours"]) - _by_batch(row)
                line += f"; ours is above by {in_decibels(apart)}"
            print(line)


def in_decibels(apart: NDArray[np.float64]) -> str:
    """Write the mean of differences (batches,) with its 95 % interval."""
    low, high = t_interval(apart.tolist())
    return f"{apart.mean():.1f} dB ({low:.1f} to {high:.1f})"


def mnist_of(file: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read images (n, 1, 28, 28) from 0 to 1, and their labels."""
    with np.load(file, allow_pickle=False) as held:
        return held["x"][:, np.newaxis].astype(np.float32) / 255, held["y"].astype(np.int64)


def _by_batch(row: dict[str, Any]) -> NDArray[np.float64]:
    return np.array([np.mean(batch) for batch in row["psnr"]])


def _mean(row: dict[str, Any]) -> float:
    return float(_by_batch(row).mean())


def main() -> None:
    """Measure what is not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description="Gradient inversion beside its peers; see the module's docstring.")
    parser.add_argument("data", type=Path, help="MNIST as an .npz with x uint8 (n, 28, 28) and y")
    parser.add_argument("--peers", type=Path, help="folder into which peers are installed; without it ours alone runs")
    parser.add_argument("--out", type=Path, required=True, help="a JSON line for each piece; those there are not rerun")
    parser.add_argument("--only", default="", help="run pieces whose CELL/METHOD has this text")
    asked = parser.parse_args()
    if not asked.data.is_file():
        print(f"inversion is not measured: {asked.data} is not there; expected MNIST as an .npz with x and y")
        return
    torch.set_num_threads(1)
    x, y = mnist_of(asked.data)
    missing = dict.fromkeys(("breaching", "AIJack"), "no --peers") if asked.peers is None else install(asked.peers)
    for peer, reason in missing.items():
        print(f"{peer} is not measured: {reason}")
    rows = []
    if asked.out.is_file():
        rows = [json.loads(line) for line in asked.out.read_text(encoding="utf-8").splitlines()]
    for cell, method in pieces():
        done = any((row["cell"], row["method"]) == (cell.name, method) for row in rows)
        wanted = asked.only in f"{cell.name}/{method}"
        if done or not wanted or any(method.startswith(peer) for peer in missing):
            continue
        rows.append(measured(cell, method, x, y))
        with asked.out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(rows[-1]) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
