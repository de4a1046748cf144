"""Local training as a federated-learning client does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.errors import ConfigError, DataError
from fedattack.learning.losses import mean_loss
from fedattack.learning.torch_utils import in_mode, seeded, to_tensor


@dataclass(frozen=True)
class LocalTraining:
    """What a local training did.

    Attributes
    ----------
    steps : int
        Number of optimiser steps.
    loss : float
        Mean loss over the records of the last epoch, each taken before its step; not finite if the training
        diverged.
    """

    steps: int
    loss: float


@dataclass(frozen=True)
class LocalSGD:
    """How a client trains in a round, as far as an attacker who rebuilds its updates must know.

    Attributes
    ----------
    epochs, batch_size, lr, momentum, weight_decay
        As for :func:`train_local`.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check_sgd(**vars(self))


def pick_device(name: str = "auto") -> torch.device:
    """Return the device to compute on.

    Parameters
    ----------
    name : str
        ``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.

    Returns
    -------
    torch.device

    Raises
    ------
    ConfigError
        If the name is unknown or this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:N")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= there:
        raise ConfigError(f"device {name!r} is not available: this machine has {there} usable CUDA devices; use auto")
    return device


def train_local(
    model: nn.Module,
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    maximise: bool = False,
    loss: str = "cross-entropy",
    seed: int,
    device: torch.device | str = "cpu",
) -> LocalTraining:
    """Train a model in place by SGD on the mean loss; the global random state is left as it was.

    Parameters
    ----------
    model : nn.Module
        Moved to the device; its training mode is restored afterwards.
    x : array or Tensor, shape (n, *input_shape)
        Records.
    y : array or Tensor, shape (n,)
        Integer labels, or the targets of a regression.
    epochs : int
        Passes over the records, in a new order each.
    batch_size : int
        Records a step. The last, shorter batch of an epoch is kept. 0, or n and more: all records in one step.
    lr, momentum, weight_decay : float
        As for :class:`torch.optim.SGD`.
    maximise : bool
        Ascend the loss instead of descending it.
    loss : str
        What is minimised; see :func:`fedattack.learning.losses.mean_loss`.
    seed : int
        Decides the order of the records and the dropout.
    device : torch.device or str
        Where to compute.

    Returns
    -------
    LocalTraining

    Raises
    ------
    ConfigError
        If a number is out of its range.
    DataError
        If there are no records, or not one label for each.
    ModelError
        If the loss is unknown.
    """
    objective = mean_loss(loss)
    _check_sgd(epochs, batch_size, lr, momentum, weight_decay)
    if len(x) == 0 or len(x) != len(y):
        raise DataError(f"local training: expected at least one record and a label for each; got {len(x)} and {len(y)}")

    device = torch.device(device)
    model.to(device)
    records = to_tensor(x, dtype=torch.float32, device=device)
    labels = to_tensor(y, device=device)
    labels = labels.float() if labels.is_floating_point() else labels.long()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, maximize=maximise
    )
    order = torch.Generator().manual_seed(seed)
    steps = 0
    with seeded(seed, device), in_mode(model, training=True):
        for _ in range(epochs):
            # summed on the device: reading it at every step would make a GPU wait
            total = torch.zeros((), dtype=torch.float64, device=device)
            for batch in torch.randperm(len(records), generator=order).to(device).split(batch_size or len(records)):
                optimizer.zero_grad()
                value = objective(model(records[batch]), labels[batch])
                value.backward()
                optimizer.step()
                total += value.detach() * len(batch)
                steps += 1
    return LocalTraining(steps, float(total) / len(records))


def _check_sgd(epochs: int, batch_size: int, lr: float, momentum: float, weight_decay: float) -> None:
    for name, value, low in (
        ("epochs", epochs, 1),
        ("batch_size", batch_size, 0),
        ("lr", lr, 0),
        ("momentum", momentum, 0),
        ("weight_decay", weight_decay, 0),
    ):
        if not value >= low:
            raise ConfigError(f"local training: {name} must be at least {low}; got {value}")
