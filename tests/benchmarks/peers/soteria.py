"""Soteria beside the script of its authors (Sun et al. 2021) and AIJack's: what they mask, and what that hides.

All three defend the gradient of one image. The network has two fully connected layers at its end, and the
representation is what enters the last one. The authors' script is run whole, with stand-ins for the parts of its own
package that load data and models; it is stopped where it would begin to attack. AIJack's client is given our model.
"""

import argparse
import importlib
import runpy
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.defences import Batch as Handed
from fedattack.defences.soteria import Soteria
from fedattack.learning.soft_losses import soft_targets
from fedattack.threats.inversion.gradient_inversion import ONE_GRADIENT, ClientModel, ReplyBatch, Search
from fedattack.threats.inversion.images import peak_ratio, squared_error
from fedattack.threats.inversion.inversion import VARIATION
from tests.benchmarks.inversion import BOX, EVALUATIONS, SHAPE
from tests.benchmarks.peers.getting import SOTERIA_AUTHORS, PeerMissingError, load_aijack, quiet
from tests.benchmarks.peers.rows import Method, Row, beside, by_value, missing_row
from tests.threats.inversion.inverted import invert

IMAGES = 20
SHARES = (0.5, 0.9)
HIDDEN = 64
BEFORE, LAST = "fc1", "fc2"
"""The layer whose output is the representation, and the layer that it enters."""

Gradient = dict[str, NDArray[np.float32]]


class Network(nn.Module):
    """A LeNet with a hidden layer; the authors' script asks it for the representation."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(1, 12, 5, padding=2, stride=2), nn.Sigmoid()),
            *(nn.Conv2d(12, 12, 5, padding=2, stride=2), nn.Sigmoid()),
            nn.Flatten(),
        )
        self.fc1 = nn.Linear(588, HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, 10)
        self._kept = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        self._kept = self.fc1(self.convolutions(x)).sigmoid()
        logits: Tensor = self.fc2(self._kept)
        return logits

    def extract_feature(self) -> Tensor:
        """Return the representation of the examples seen last."""
        return self._kept


def network() -> Network:
    """Build the network, untrained and always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network().eval()


@dataclass(frozen=True)
class Task:
    """An image (1, 28, 28), its label, and the gradient to defend."""

    x: NDArray[np.float32]
    y: int
    gradient: Gradient


def tasks_of(x: NDArray[np.float32], y: NDArray[np.int64], count: int = IMAGES) -> list[Task]:
    """Take some images, and their gradients at an untrained network."""
    client = ClientModel(network(), "cross-entropy", ONE_GRADIENT)
    state = {name: value.numpy() for name, value in client.model.state_dict().items()}
    tasks = []
    for row in np.random.default_rng(3).permutation(len(x))[:count]:
        image = torch.from_numpy(x[row : row + 1])
        moved = client.movement(*client.split(state), image, soft_targets("cross-entropy", y[row : row + 1], 10))
        gradient = {name: part.detach().numpy() for name, part in moved.items()}
        tasks.append(Task(x[row], int(y[row]), gradient))
    return tasks


def ours(task: Task, share: float) -> Gradient:
    """Defend by ours."""
    handed = Handed(task.x[None], np.array([task.y]), network())
    return Soteria(share, LAST).apply(task.gradient, np.random.default_rng(0), handed)


class _DefendedError(Exception):
    """Stops the authors' script where the gradient is defended."""

    def __init__(self, gradient: list[Tensor]) -> None:
        self.gradient = gradient


def authors(script: Path, task: Task, share: float) -> Gradient:
    """Defend by the authors' script."""

    def reconstruct(gradient: list[Tensor], *_: Any, **__: Any) -> None:
        raise _DefendedError(gradient)

    def loss(outputs: Tensor, labels: Tensor) -> tuple[Tensor, None, None]:
        return nn.functional.cross_entropy(outputs, labels), None, None

    chosen = {"dataset": "MNIST", "model": "ConvNet", "defense": "ours", "pruning_rate": 100 * share, "target_id": 0}
    off = dict.fromkeys(("epochs", "deterministic", "data_path", "label_flip", "trained_model", "num_images"))
    attack = dict.fromkeys(("signed", "boxed", "cost_fn", "optimizer", "restarts", "tv", "dryrun"))
    arguments = argparse.Namespace(**chosen, **off, **attack)
    examples = SimpleNamespace(dataset=[(torch.from_numpy(task.x.copy()), task.y)])
    model = network()
    package: Any = types.ModuleType("inversefed")
    package.consts = SimpleNamespace(BENCHMARK=False, mnist_mean=[0.0], mnist_std=[1.0])
    package.options = lambda: SimpleNamespace(parse_args=lambda: arguments)
    package.training_strategy = lambda _: SimpleNamespace()
    package.utils = SimpleNamespace(system_startup=lambda _: {"device": "cpu", "dtype": torch.float})
    package.construct_dataloaders = lambda *_, **__: (loss, None, examples)
    package.construct_model = lambda *_, **__: (model, 0)
    package.GradientReconstructor = lambda *_, **__: SimpleNamespace(reconstruct=reconstruct)
    sys.modules["inversefed"] = package
    try:
        with quiet():
            runpy.run_path(str(script), run_name="__main__")
    except _DefendedError as stopped:
        names = dict(model.named_parameters())
        return {name: part.numpy() for name, part in zip(names, stopped.gradient, strict=True)}
    except ImportError as error:
        raise PeerMissingError(f"{script.name} cannot be imported: {error}") from None
    finally:
        del sys.modules["inversefed"]
    raise PeerMissingError(f"{script.name} ended before it attacked")


class _Client:
    """What AIJack's wrapper expects of a client."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def backward(self, loss: Tensor) -> None:
        loss.backward()


def aijack(task: Task, share: float) -> Gradient:
    """Defend by AIJack's client, whose perturbed layer is the one that makes the representation."""
    module = importlib.import_module("aijack.defense.soteria.soteria_client")
    model = network()
    client = module.attach_soteria_to_client(_Client, "convolutions", BEFORE, epsilon=share)(model)
    image = torch.from_numpy(task.x[None].copy()).requires_grad_()
    client.backward(nn.functional.cross_entropy(model(image), torch.tensor([task.y])))
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[name] = parameter.grad.numpy()
    return found


def inverted(tasks: Sequence[Task], gradients: Sequence[Gradient]) -> list[float]:
    """Return how well our search finds each image from its defended gradient, labels known, as PSNR in dB."""
    client = ClientModel(network(), "cross-entropy", ONE_GRADIENT)
    state = {name: value.numpy() for name, value in client.model.state_dict().items()}
    batches = []
    for task, gradient in zip(tasks, gradients, strict=True):
        batches.append(ReplyBatch(state, gradient, 1, np.array([task.y])))
    how = Search("cos", EVALUATIONS, variation=VARIATION["cos"], box=BOX)
    ratios = []
    for task, found in zip(tasks, invert(client, batches, SHAPE, how), strict=True):
        ratios.append(float(peak_ratio(squared_error(found.x, task.x[None]))[0]))
    return ratios


def masked(gradient: Gradient) -> dict[str, NDArray[np.int64]]:
    """Return which columns of the last layer, and which rows of the one before, are zero."""
    columns = np.flatnonzero((gradient[f"{LAST}.weight"] == 0).all(axis=0))
    lines = np.flatnonzero((gradient[f"{BEFORE}.weight"] == 0).all(axis=1))
    return {"columns": columns, "rows": lines}


def rows(peers: Path | None, mnist: tuple[NDArray[np.float32], NDArray[np.int64]], count: int) -> Iterator[Row]:
    """Defend the same gradients by all, in turns, and attack what they leave."""
    tasks = tasks_of(*mnist, count)
    defences: dict[str, Callable[[Task, float], Gradient]] = {"ours": ours}
    missing: dict[str, PeerMissingError] = {}
    try:
        script = SOTERIA_AUTHORS.find(peers) / SOTERIA_AUTHORS.files[0]
        authors(script, tasks[0], SHARES[0])
        defences[SOTERIA_AUTHORS.name] = lambda task, share: authors(script, task, share)
    except PeerMissingError as reason:
        missing[SOTERIA_AUTHORS.name] = reason
    try:
        load_aijack(peers, "defense", "defense.soteria")
        defences["AIJack"] = aijack
    except PeerMissingError as reason:
        missing["AIJack"] = reason
    bare = by_value(inverted(tasks, [task.gradient for task in tasks]))
    for share in SHARES:
        setting = f"Soteria, {share:.0%} pruned, {len(tasks)} images"
        yield _row(setting, "no defence", bare)
        methods = {name: Method(name, "") for name in defences}
        left: dict[str, list[Gradient]] = {name: [] for name in defences}
        for task in tasks:
            for name, defend in defences.items():
                left[name].append(methods[name].run(defend, task, share))
        found = {name: inverted(tasks, gradients) for name, gradients in left.items()}
        for name, gradients in left.items():
            row = _row(setting, name, by_value(found[name])) | {"seconds": methods[name].typical_seconds()}
            row["budget"] = _mask(gradients, left["ours"])
            if name != "ours":
                row |= beside("ours", np.subtract(found[name], found["ours"]).tolist())
            yield row
        for name, why in missing.items():
            yield missing_row(setting, name, why)


def _row(setting: str, name: str, reached: tuple[float, float, float]) -> Row:
    value, low, high = reached
    row: Row = {"setting": setting, "method": name, "unit": "dB", "value": value, "low": low, "high": high}
    return row | {"seconds": None, "budget": ""}


def _mask(gradients: Sequence[Gradient], ours_left: Sequence[Gradient]) -> str:
    """Say what was masked, and which share of these entries of the representation ours masks, too."""
    columns, lines, common = [], [], []
    for gradient, own in zip(gradients, ours_left, strict=True):
        found = masked(gradient)
        columns.append(len(found["columns"]))
        lines.append(len(found["rows"]))
        entries = found["columns"] if len(found["columns"]) else found["rows"]
        common.append(np.isin(entries, masked(own)["columns"]).mean())
    return (
        f"{np.mean(columns):.0f} columns of {LAST}, {np.mean(lines):.0f} rows of {BEFORE}; "
        f"{np.mean(common):.0%} of these entries are among ours"
    )
