"""Gradient inversion of clients that send the buffers of batch normalisation, with their statistics and without.

``python -m tests.benchmarks.inversion_batch_norm MNIST.npz`` reconstructs images of MNIST (``x`` uint8 (n, 28, 28),
``y``) behind LeNets with batch normalisation, from the same starts. It prints the mean PSNR of both in dB, and their
difference, paired by batches. Beside it stands the mean PSNR to other images of the same labels: the null.
``--only TEXT`` runs the cells whose name has a text, such as ``sigmoid``.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.learning import LocalSGD, train_local
from fedattack.threats.inversion.batch_norm import read_statistics
from fedattack.threats.inversion.gradient_inversion import ClientModel, Reconstructed, ReplyBatch, Search
from fedattack.threats.inversion.images import pair_images, peak_ratio, squared_error
from fedattack.threats.inversion.inversion import VARIATION
from tests.benchmarks.inversion import ACTIVATIONS, BOX, EVALUATIONS, SHAPE, in_decibels, mnist_of
from tests.threats.inversion.inverted import invert

# The weight was chosen on the images of seeds 1 and 3.
_IMAGES = 2
_PUBLIC, _WARM = 1000, LocalSGD(epochs=2, batch_size=50, lr=0.1)
_ONE, _FOUR = LocalSGD(epochs=1, batch_size=0, lr=0.1), LocalSGD(epochs=4, batch_size=0, lr=0.1)

Images = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One setting: which activation, whether the network is trained, how many examples in how many batches, how."""

    activation: str
    size: int
    count: int
    training: LocalSGD = _ONE
    trained: bool = False

    @property
    def name(self) -> str:
        """Such as ``relu-4-trained-1``; at the end stands the number of local steps."""
        state = "trained" if self.trained else "untrained"
        return f"{self.activation}-{self.size}-{state}-{self.training.epochs}"


_CELLS = (
    Cell("relu", 4, 8),
    Cell("relu", 8, 5),
    Cell("sigmoid", 4, 8),
    Cell("sigmoid", 8, 5),
    Cell("relu", 4, 8, trained=True),
    Cell("relu", 4, 8, _FOUR),
    Cell("sigmoid", 4, 8, _FOUR),
)
CELLS = {cell.name: cell for cell in _CELLS}


def lenet(activation: type[nn.Module]) -> nn.Module:
    """Build the benchmark's LeNet with batch normalisation before each activation, untrained."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Conv2d(1, 12, 5, padding=2, stride=2), nn.BatchNorm2d(12), activation()),
            *(nn.Conv2d(12, 12, 5, padding=2, stride=2), nn.BatchNorm2d(12), activation()),
            *(nn.Conv2d(12, 12, 5, padding=2), nn.BatchNorm2d(12), activation()),
            *(nn.Flatten(), nn.Linear(588, 10)),
        )


def state_of(model: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Copy a model's parameters and buffers."""
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def batch_of(model: nn.Module, x: Images, y: NDArray[np.int64], training: LocalSGD, seed: int = 0) -> ReplyBatch:
    """Train a client, in an order that a seed decides, and return what its server knows; the model stays as it was."""
    before = state_of(model)
    train_local(model, x, y, seed=seed, **vars(training))
    after = state_of(model)
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in before.items()})
    movement = {}
    for name, _ in model.named_parameters():
        movement[name] = (before[name] - after[name]) / np.float32(training.lr)
    statistics = read_statistics(model, before, after, training.steps(len(y)))
    return ReplyBatch(before, movement, len(y), np.sort(y), statistics)


def ratios(found: Sequence[Reconstructed], truth: Images) -> Floats:
    """Return the mean PSNR in dB of each batch (batches,) to images (batches, n, …)."""
    means = []
    for one, x in zip(found, truth, strict=True):
        inside = np.clip(one.x, 0, 1)
        means.append(peak_ratio(squared_error(inside[pair_images(inside, x)], x)).mean())
    return np.array(means)


def measure(name: str, x: Images, y: NDArray[np.int64]) -> None:
    """Reconstruct the batches of a cell by both searches, and print what was found."""
    cell = CELLS[name]
    model = lenet(ACTIVATIONS[cell.activation])
    order = np.random.default_rng(_IMAGES).permutation(len(x))
    if cell.trained:
        public = order[-_PUBLIC:]
        train_local(model, x[public], y[public], seed=0, **vars(_WARM))
    rows = order[: cell.count * cell.size].reshape(cell.count, cell.size)
    # Of each label the next image that is in no batch.
    others = np.zeros_like(rows)
    unheld = order[rows.size : -_PUBLIC]
    for place, row in np.ndenumerate(rows):
        position = np.flatnonzero(y[unheld] == y[row])[0]
        others[place], unheld = unheld[position], np.delete(unheld, position)
    batches = [batch_of(model, x[own], y[own], cell.training) for own in rows]
    client = ClientModel(model, "cross-entropy", cell.training)
    measured = []
    for weight in (0.0, 1.0):
        how = Search("cos", EVALUATIONS, variation=VARIATION["cos"], box=BOX, statistics=weight)
        found = invert(client, batches, SHAPE, how)
        measured.append((ratios(found, x[rows]), ratios(found, x[others])))
    (without, null_without), (given, null_given) = measured
    apart = given - without
    print(
        f"{name}, {rows.size} images: {without.mean():.1f} dB without, {given.mean():.1f} dB with statistics; "
        f"above by {in_decibels(apart)}; "
        f"null {null_without.mean():.1f} and {null_given.mean():.1f} dB",
        flush=True,
    )


def measure_cells(
    description: str, cells: Iterable[str], measure: Callable[[str, Images, NDArray[np.int64]], None]
) -> None:
    """Read the command line, and measure all cells, or some."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("data", type=Path, help="MNIST as an .npz with x uint8 (n, 28, 28) and y")
    parser.add_argument("--only", default="", help="run cells whose name has this text")
    asked = parser.parse_args()
    if not asked.data.is_file():
        print(f"inversion is not measured: {asked.data} is not there; expected MNIST as an .npz with x and y")
        return
    torch.set_num_threads(1)
    x, y = mnist_of(asked.data)
    for cell in cells:
        if asked.only in cell:
            measure(cell, x, y)


if __name__ == "__main__":
    measure_cells("Gradient inversion with statistics of batches; see the docstring.", CELLS, measure)
