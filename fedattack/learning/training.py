"""Local training as a federated-learning client does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning.inputs import examples_of, mean_loss_in, returned_for
from fedattack.learning.losses import mean_loss
from fedattack.learning.stated import LocalSGD
from fedattack.learning.torch_utils import fix_seed, in_mode, to_tensor

_BETAS, _EPSILON = (0.9, 0.999), 1e-8

WORTH_GPU = 100_000
"""Parameters of a model from which a client trains it on a GPU. Ten clients of a smaller one that share an H200 take
longer than on two CPU cores."""
GRADIENT_CHUNK = 256
"""Examples whose gradient is taken at a time, so that memory does not grow with a client's examples."""


@dataclass(frozen=True)
class LocalTraining:
    """What a local training did: its number of optimiser steps, and the mean loss over the examples of the last epoch.

    Each loss is taken before its step; it is not finite if the training diverged.
    """

    steps: int
    loss: float


@dataclass(frozen=True)
class FullGradient:
    """The gradient over all examples of a client.

    Attributes
    ----------
    arrays : dict of str to ndarray
        By parameter name, in the model's order; in units of the loss per unit of the parameter.
    loss : float
        Mean loss over the examples, without the weight decay.
    """

    arrays: dict[str, NDArray[Any]]
    loss: float


def pick_device(name: str = "auto", *, parameters: int | None = None) -> torch.device:
    """Return the device of a name: ``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.

    ``parameters`` is the size of the model that a client trains; with few, ``auto`` is the CPU.

    Raises
    ------
    ConfigError
        If the name is unknown or this machine has no such device.
    """
    if name == "auto":
        is_small = parameters is not None and parameters < WORTH_GPU
        return torch.device("cuda" if torch.cuda.is_available() and not is_small else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"device {name!r} is not available: this machine has {count} usable CUDA devices; use auto")
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
    optimizer: str = "SGD",
    maximise: bool = False,
    loss: str = "cross-entropy",
    seed: int,
    device: torch.device | str = "cpu",
) -> LocalTraining:
    """Train a model in place on the mean loss; the global random state is left as it was.

    Parameters
    ----------
    model : nn.Module
        Moved to the device; its training mode is restored afterwards.
    x : array or Tensor, shape (n, *input_shape)
        Examples; also of structured type, see :mod:`fedattack.base.structured`.
    y : array or Tensor, shape (n,)
        Integer labels, or the targets of a regression.
    epochs : int
        Passes over the examples, in a new order each.
    batch_size : int
        Examples a step. The last, shorter batch of an epoch is kept. 0, or n and more: all examples in one step.
    lr, momentum, weight_decay, optimizer
        Of one of :data:`fedattack.learning.OPTIMIZERS`; only SGD has momentum.
    maximise : bool
        Ascend the loss instead of descending it.
    loss : str
        What is minimised; see :func:`fedattack.learning.losses.mean_loss`.
    seed : int
        Decides the order of the examples and the dropout.

    Raises
    ------
    ConfigError, DataError, ModelError
        If a number is out of its range; there is no example, or not one label for each; the loss is unknown.
    """
    objective = mean_loss(loss)
    how = LocalSGD(epochs, batch_size, lr, momentum, weight_decay, optimizer)
    device = torch.device(device)
    records, labels = examples_of(x, device), _labels_of(x, y, device)
    model.to(device)
    parameters = [value for value in model.parameters() if value.requires_grad]
    stepping = Stepping(parameters, how, maximise=maximise)
    # A generator of its own: the order of the examples does not depend on how much dropout draws.
    order = torch.Generator().manual_seed(seed)
    steps = 0
    with fix_seed(seed, device), in_mode(model, training=True):
        for _ in range(epochs):
            # summed on the device: reading it at every step would make a GPU wait
            total = torch.zeros((), dtype=torch.float64, device=device)
            for batch in torch.randperm(len(records), generator=order).to(device).split(batch_size or len(records)):
                value = mean_loss_in(returned_for(model, records[batch]), labels[batch], objective)
                # Not ``backward``: nothing is left beside the parameters, and what takes no part has None.
                gradients = torch.autograd.grad(value, parameters, allow_unused=True)
                stepping.step(gradients)
                total += value.detach() * len(batch)
                steps += 1
    return LocalTraining(steps, float(total) / len(records))


class Stepping:
    """An optimizer of PyTorch, by the functions that its class calls itself.

    The class would load torch's compiler, two seconds that every client's process pays, and Flower starts many.
    Its functions move each number by itself, so that parameters of many clients may be stacked.

    Parameters
    ----------
    parameters
        What is moved, in place.
    how
        Optimizer, learning rate, momentum and weight decay.
    maximise
        Ascend the loss instead of descending it.
    """

    def __init__(self, parameters: Sequence[Tensor], how: LocalSGD, *, maximise: bool = False) -> None:
        self._parameters = parameters
        self._how = how
        self._maximise = maximise
        self._momenta: list[Tensor | None] = [None] * len(parameters)
        # By parameter, Adam's means of gradients and of their squares, and the number of steps.
        self._moments: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Make a step. Parameters that the loss does not depend on, whose gradient is None, stay as they are."""
        used: list[int] = []
        parameters: list[Tensor] = []
        given: list[Tensor] = []
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                used.append(index)
                parameters.append(self._parameters[index])
                given.append(gradient)
        if self._how.optimizer == "SGD":
            self._sgd(used, parameters, given)
        else:
            self._adam(used, parameters, given)

    def _sgd(self, used: Sequence[int], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        momenta = [self._momenta[index] for index in used]
        sgd(
            parameters,
            gradients,
            momenta,
            lr=self._how.lr,
            momentum=self._how.momentum,
            weight_decay=self._how.weight_decay,
            maximize=self._maximise,
            dampening=0.0,
            nesterov=False,
        )
        for index, value in zip(used, momenta, strict=True):
            self._momenta[index] = value

    def _adam(self, used: Sequence[int], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        how, decay = self._how, self._how.weight_decay
        if how.optimizer == "AdamW":
            # Not all versions of PyTorch's function do this themselves.
            for parameter in parameters:
                parameter.mul_(1 - how.lr * decay)
            decay = 0.0
        for index, parameter in zip(used, parameters, strict=True):
            if index not in self._moments:
                # PyTorch's function counts the steps itself, in this tensor.
                steps = torch.tensor(0.0)
                self._moments[index] = (torch.zeros_like(parameter), torch.zeros_like(parameter), steps)
        means, squares, steps_made = zip(*[self._moments[index] for index in used], strict=True)
        adam(
            parameters,
            gradients,
            [*means],
            [*squares],
            [],
            [*steps_made],
            lr=how.lr,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            eps=_EPSILON,
            weight_decay=decay,
            maximize=self._maximise,
            amsgrad=False,
        )


def full_gradient(
    model: nn.Module,
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    *,
    weight_decay: float = 0.0,
    loss: str = "cross-entropy",
    seed: int,
    device: torch.device | str = "cpu",
    chunk: int = GRADIENT_CHUNK,
) -> FullGradient:
    """Compute the gradient that one step of SGD over all examples at once follows; the parameters stay as they were.

    It is the gradient of the mean loss plus ``weight_decay``/2 · ‖θ‖², as :class:`torch.optim.SGD` takes it.
    Dropout is on, because FedSGD is FedAvg with one step over all examples (McMahan et al. 2017, Section 2): with the
    same parameters and dropout masks, :func:`train_local` with ``batch_size=0`` moves by −lr times this.

    Parameters are those of :func:`train_local`; ``chunk`` examples are taken at a time, which changes rounding and the
    dropout masks alone.

    Raises
    ------
    ConfigError, DataError
        As :func:`train_local`.
    ModelError
        If :func:`check_gradients` refuses the model.
    """
    objective = mean_loss(loss)
    LocalSGD(1, 0, 0.0, weight_decay=weight_decay)
    check_gradients(model)
    device = torch.device(device)
    records, labels = records_of(x, y, device)
    model.to(device)
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64, device=device)
    with fix_seed(seed, device), in_mode(model, training=True):
        for some_records, some_labels in zip(records.split(chunk), labels.split(chunk), strict=True):
            # Each chunk's mean by its share of the examples: together the mean over all.
            part = objective(model(some_records), some_labels) * (len(some_labels) / len(records))
            part.backward()
            total += part.detach()
    arrays = read_gradients(model, weight_decay)
    model.zero_grad()
    return FullGradient(arrays, float(total))


def read_gradients(model: nn.Module, weight_decay: float) -> dict[str, NDArray[Any]]:
    """Return by name the gradients that lie beside a model's parameters, plus λθ."""
    arrays = {}
    for name, value in model.named_parameters():
        # torch.optim.SGD leaves a parameter alone that is frozen, or that the loss does not depend on.
        gradient = torch.zeros_like(value)
        if value.grad is not None:
            # The gradient of λ/2·‖θ‖² is λθ.
            gradient = value.grad + weight_decay * value
        arrays[name] = gradient.detach().cpu().numpy()
    return arrays


def check_gradients(model: nn.Module) -> None:
    """Check that a gradient says all that a step over examples changes in a model, and is a sum over examples.

    Raises
    ------
    ModelError
        If the model normalises by the batch, has buffers, or uses a parameter under two names.
    """
    fault = ""
    parameters = dict(model.named_parameters())
    # A tied parameter has two names there, and one among the parameters.
    others = [name for name in model.state_dict() if name not in parameters]
    norms = [name for name, part in model.named_modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    if norms:
        fault = f"{norms[0]} normalises by the batch"
    elif others:
        fault = f"{others[0]} is a buffer or a tied parameter"
    if fault:
        raise ModelError(
            f"FedSGD sends gradients, and {fault}: expected a model of parameters alone whose loss is a mean over "
            "examples; take one with group or layer normalisation, or framework fedavg"
        )


def gradient_step(
    before: Mapping[str, NDArray[Any]], gradient: Mapping[str, NDArray[Any]], lr: float
) -> dict[str, NDArray[Any]]:
    """Return θ − lr · g for each array of ``before``, in float64 and rounded once to the array's own type.

    ``gradient`` has an array of the same shape for each name; nothing is changed.
    """
    after = {}
    for name, array in before.items():
        # In float32 a small step on a large weight would be rounded twice.
        moved = array.astype(np.float64) - lr * gradient[name].astype(np.float64)
        after[name] = moved.astype(array.dtype)
    return after


def records_of(x: NDArray[Any] | Tensor, y: NDArray[Any] | Tensor, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return a client's examples and labels as tensors on a device.

    Raises
    ------
    DataError
        If there are no examples, or not one label for each.
    """
    labels = _labels_of(x, y, device)
    return to_tensor(x, dtype=torch.float32, device=device), labels


def _labels_of(x: NDArray[Any] | Tensor, y: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    if len(x) == 0 or len(x) != len(y):
        raise DataError(f"local training: expected at least one example, each with a label; got {len(x)} and {len(y)}")
    labels = to_tensor(y, device=device)
    return labels.float() if labels.is_floating_point() else labels.long()
