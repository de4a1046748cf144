"""Gradient inversion of clients of several epochs in mini-batches: the order fixed, searched for, and known.

``python -m tests.benchmarks.inversion_orders MNIST.npz`` reconstructs 8 images of MNIST (``x`` uint8 (n, 28, 28),
``y``) a client, who trains an untrained LeNet in mini-batches of 4, in an order of its own in each epoch. It prints the
mean PSNR in dB of each search. A server cannot know the order; that row says what not knowing it costs the attack.
``--only TEXT`` runs the cells whose name has a text, such as ``relu``.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.learning import LocalSGD
from fedattack.threats.inversion.gradient_inversion import (
    ClientModel,
    Reconstructed,
    ReplyBatch,
    Search,
    Tensors,
)
from fedattack.threats.inversion.inversion import VARIATION
from fedattack.threats.inversion.options import ORDERS
from tests.benchmarks.inversion import BOX, EVALUATIONS, SHAPE, in_decibels, lenet
from tests.benchmarks.inversion_batch_norm import Images, batch_of, measure_cells, ratios
from tests.threats.inversion.inverted import invert

# The options were chosen on the images of seed 1.
_IMAGES = 2
_SIZE, _COUNT = 8, 4

CELLS = {
    "sigmoid-2-0.02": ("sigmoid", LocalSGD(epochs=2, batch_size=4, lr=0.02)),
    "relu-2-0.02": ("relu", LocalSGD(epochs=2, batch_size=4, lr=0.02)),
    "sigmoid-2-0.1": ("sigmoid", LocalSGD(epochs=2, batch_size=4, lr=0.1)),
    "relu-2-0.1": ("relu", LocalSGD(epochs=2, batch_size=4, lr=0.1)),
    "relu-5-0.1": ("relu", LocalSGD(epochs=5, batch_size=4, lr=0.1)),
}
"""By name (network, epochs, learning rate): the network, and how clients train."""


def true_parts(training: LocalSGD, seed: int) -> torch.Tensor:
    """Return in which mini-batch of each epoch each example is, as the client of a seed orders them."""
    order = torch.Generator().manual_seed(seed)
    epochs = []
    for _ in range(training.epochs):
        batches = torch.randperm(_SIZE, generator=order).split(training.batch_size)
        epochs.append(torch.stack([torch.eye(_SIZE)[batch].mean(dim=0) for batch in batches]))
    return torch.stack(epochs)


class _Known(ClientModel):
    """A client whose order the attacker knows."""

    parts: Tensor

    def follow(
        self, parameters: Tensors, buffers: Tensors, x: Tensor, targets: Tensor, parts: Tensor | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return super().follow(parameters, buffers, x, targets, self.parts)


def known(network: str, training: LocalSGD, batches: Sequence[ReplyBatch], how: Search) -> list[Reconstructed]:
    """Reconstruct batches by the true orders."""
    found = []
    for number, batch in enumerate(batches):
        client = _Known(lenet(network), "cross-entropy", training)
        client.parts = true_parts(training, number)
        found += invert(client, [batch], SHAPE, how)
    return found


def measure(cell: str, x: Images, y: NDArray[np.int64]) -> None:
    """Reconstruct the batches of a cell by each search, and print what was found."""
    network, training = CELLS[cell]
    model = lenet(network)
    rows = np.random.default_rng(_IMAGES).permutation(len(x))[: _COUNT * _SIZE].reshape(_COUNT, _SIZE)
    # An attacker takes labels in ascending order.
    rows = np.take_along_axis(rows, y[rows].argsort(axis=1), axis=1)
    batches = [batch_of(model, x[own], y[own], training, number) for number, own in enumerate(rows)]
    client = ClientModel(model, "cross-entropy", training)
    how = Search("cos", EVALUATIONS, variation=VARIATION["cos"], box=BOX)
    fixed, searched = (ratios(invert(client, batches, SHAPE, replace(how, order=order)), x[rows]) for order in ORDERS)
    told = ratios(known(network, training, batches, how), x[rows])
    apart = searched - fixed
    print(
        f"{cell}, {rows.size} images: {fixed.mean():.1f} dB fixed, {searched.mean():.1f} dB searched, "
        f"{told.mean():.1f} dB known; searched above fixed by {in_decibels(apart)}; "
        f"by batches {searched.round(1).tolist()}",
        flush=True,
    )


if __name__ == "__main__":
    measure_cells("Gradient inversion behind mini-batches; see the module's docstring.", CELLS, measure)
