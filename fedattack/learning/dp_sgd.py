"""DP-SGD (Abadi et al. 2016) through Opacus: a client's defence at the level of examples, which the SIA paper tries.

Opacus takes as long to import as torch. It is imported where it is used, so that clients without DP-SGD do not pay.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.base.errors import ConfigError, ModelError
from fedattack.base.machine import MEMORY
from fedattack.learning.losses import MeanLoss, mean_loss
from fedattack.learning.stated import LocalSGD
from fedattack.learning.torch_utils import activations, fix_seed, in_mode
from fedattack.learning.training import LocalTraining, read_gradients, records_of
from fedattack.privacy import ExampleSampling, check_noise

if TYPE_CHECKING:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

CHUNK = 128
"""Examples whose gradients are held at a time, at most: 330 MB for the CNN of the SIA paper on MNIST."""

# Opacus holds about so many copies of an example's gradient, and of what the layers put out for it.
_GRADIENTS, _ACTIVATIONS = 3, 12


def train_private(
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
    noise: float,
    clip: float,
    seed: int | None,
    device: torch.device | str = "cpu",
    memory: float = MEMORY,
) -> LocalTraining:
    """Train a model in place as :func:`fedattack.learning.train_local` does, by DP-SGD.

    The global random state is left as it was.

    In each of an epoch's ⌈n / batch_size⌉ steps every example is drawn with probability batch_size / n, independently
    of the others. The gradients of those drawn are clipped to norm C one by one and added up; noise is added, and the
    sum is divided by the batch size that was expected.

    Parameters
    ----------
    model : nn.Module
        See :func:`check_private_model`. Names of its parameters stay as they are.
    x, y, epochs, lr, momentum, weight_decay, maximise, loss, device
        As for :func:`fedattack.learning.train_local`.
    batch_size : int
        Examples a step on average. 0, or n and more: all examples in every step.
    noise : float
        σ: the noise's standard deviation is σ·C in every coordinate of the sum. 0 clips and draws batches all the same.
    clip : float
        C, the largest norm of one example's gradient over all parameters together.
    seed : int or None
        Decides batches, noise and dropout, from a generator each. Who knows or guesses it can take the noise away: the
        guarantee of :func:`fedattack.privacy.privacy_spent` holds towards a server that does not. So it takes 128 bits
        that nobody else knows, such as ``secrets.randbits(128)``. ``None``: the operating system draws them.
    memory : float
        Bytes that gradients of single examples may take; with less, fewer examples are taken at a time.

    Returns
    -------
    LocalTraining
        Its loss is over the examples that were drawn in the last epoch, NaN if none was. It is not private.

    Raises
    ------
    ConfigError
        If a number is out of its range.
    DataError
        If there are no examples, or not one label for each.
    ModelError
        If the model does not allow it.
    """
    objective = mean_loss(loss)
    LocalSGD(epochs, batch_size, lr, momentum, weight_decay)
    records, labels = records_of(x, y, device)
    sampling = ExampleSampling.of(len(records), batch_size=batch_size)
    model.to(device)
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay, maximize=maximise)
    # Opacus divides by the expected size of a batch: by the true one would tell how many examples were drawn.
    expected = sampling.rate * len(records)
    with _private(
        model, sgd, objective=objective, noise=noise, clip=clip, expected=expected, seed=seed, device=device
    ) as private:
        together = _together(model, records[:1], memory)
        for _ in range(epochs):
            total = torch.zeros((), dtype=torch.float64, device=device)
            drawn = 0
            for rows in private.batches(len(records), sampling):
                total += private.fill_gradients(records[rows], labels[rows], together)
                sgd.step()
                drawn += len(rows)
    mean = float(total) / drawn if drawn else math.nan
    return LocalTraining(epochs * sampling.steps, mean)


def private_gradient(
    model: nn.Module,
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    *,
    weight_decay: float = 0.0,
    loss: str = "cross-entropy",
    noise: float,
    clip: float,
    seed: int | None,
    device: torch.device | str = "cpu",
    memory: float = MEMORY,
) -> dict[str, NDArray[Any]]:
    """Compute by parameter name the mean of all examples' clipped gradients of the loss, with noise, plus λθ.

    What a FedSGD client sends in a round; for :func:`fedattack.privacy.privacy_spent` it is one step at sampling rate
    1. The model is left as it was, but for the device; parameters and errors as for :func:`train_private`.
    """
    objective = mean_loss(loss)
    LocalSGD(1, 0, 0.0, weight_decay=weight_decay)
    records, labels = records_of(x, y, device)
    model.to(device)
    # It makes no step: Opacus needs one to find the parameters, and leaves the noisy mean in their ``grad``.
    sgd = torch.optim.SGD(model.parameters())
    with _private(
        model, sgd, objective=objective, noise=noise, clip=clip, expected=len(records), seed=seed, device=device
    ) as private:
        private.fill_gradients(records, labels, _together(model, records[:1], memory))
        arrays = read_gradients(model, weight_decay)
        sgd.zero_grad()
    return arrays


def check_private_model(model: nn.Module) -> None:
    """Check that each example has a gradient of its own in a model, and that Opacus can compute it.

    Raises
    ------
    ModelError
        If the model mixes the examples of a batch (batch norm), keeps statistics of them, has layers that Opacus cannot
        follow, or activations that work in place, which its hooks do not allow.
    """
    from opacus import GradSampleModule
    from opacus.validators import ModuleValidator

    with in_mode(model, training=True):
        # Opacus refuses a model in evaluation, whatever its layers are.
        faults = [*ModuleValidator.validate(model), *GradSampleModule.validate(model)]
    in_place = [name for name, part in model.named_modules() if getattr(part, "inplace", False)]
    if faults:
        fault = " ".join(str(faults[0]).split())
        if len(fault) > 150:
            fault = f"{fault[:150]}…"
        raise ModelError(
            f"DP-SGD cannot train this model: {fault}; take one without batch norm, such as one with group norm, or "
            "train without DP-SGD"
        )
    if in_place:
        raise ModelError(
            f"DP-SGD cannot train a model whose layers work in place ({', '.join(in_place)}); set inplace=False there"
        )


def _together(model: nn.Module, record: Tensor, memory: float) -> int:
    """Return how many examples' gradients fit into memory; at least one is taken."""
    size = sum(value.numel() for value in model.parameters() if value.requires_grad)
    of_one = 4 * (_GRADIENTS * size + _ACTIVATIONS * activations(model, record))
    return int(min(max(memory // of_one, 1), CHUNK))


def _noise_hook(deviation: float, rng: np.random.Generator) -> Callable[[DPOptimizer], None]:
    """Make what adds noise of so much deviation to the clipped mean, once Opacus has computed it.

    Opacus would draw it from a generator of torch. On a CPU such a generator keeps 32 bits of its seed. Who tries them
    all finds the noise. One of numpy keeps 128.
    """

    def add_noise(optimizer: DPOptimizer) -> None:
        for parameter in optimizer.params:
            drawn = rng.standard_normal(tuple(parameter.shape)) * deviation
            parameter.grad += torch.from_numpy(np.asarray(drawn)).to(parameter.grad)

    return add_noise


class _Private:
    """A model and its optimiser under Opacus; see :func:`_private`."""

    def __init__(
        self, model: GradSampleModule, objective: MeanLoss, optimizer: DPOptimizer, sampler: np.random.Generator
    ) -> None:
        self._model = model
        self._objective = objective
        self._optimizer = optimizer
        self._sampler = sampler

    def batches(self, records: int, sampling: ExampleSampling) -> Iterator[NDArray[np.intp]]:
        """Draw the batches of an epoch, which may be empty.

        Opacus' sampler does the same from a generator of torch, whose seed can be tried; see :func:`_noise_hook`.
        """
        for _ in range(sampling.steps):
            # Poisson sampling, for which the accountant's ε holds: each example by itself, and not a batch of fixed
            # size.
            yield np.flatnonzero(self._sampler.random(records) < sampling.rate)

    def fill_gradients(self, records: Tensor, labels: Tensor, together: int) -> Tensor:
        """Set the parameters' ``grad`` to the clipped, noisy mean, and return the sum of the losses.

        So many examples are taken ``together``.
        """
        self._optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=records.device)
        if not len(records):
            # The noise alone is sent: many layers cannot take an empty batch.
            for parameter in self._optimizer.params:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
            self._optimizer.pre_step()
        for start in range(0, len(records), together):
            rows = slice(start, start + together)
            outputs = self._model(records[rows])
            loss = self._objective(outputs, labels[rows]) * len(labels[rows])  # Opacus expects the sum
            loss.backward()
            self._check_all_took_part()
            more = start + together < len(records)
            # As Opacus splits large batches (its BatchMemoryManager): gradients are clipped and added up, and only with
            # the last part the noise comes, once.
            self._optimizer.signal_skip_step(more)
            self._optimizer.pre_step()
            if more:
                self._optimizer.zero_grad()  # of this chunk alone: the sum of the clipped gradients stays
            total += loss.detach()
        return total

    def _check_all_took_part(self) -> None:
        idle = []
        for name, parameter in self._model.named_parameters():
            # Opacus would stop with an error that names no parameter.
            if parameter.requires_grad and parameter.grad_sample is None:
                idle.append(name.removeprefix("_module."))
        if idle:
            raise ModelError(
                f"DP-SGD: the parameters {', '.join(idle)} take no part in the model's output; freeze them with "
                "requires_grad_(False), or remove them"
            )


@contextmanager
def _private(
    model: nn.Module,
    sgd: torch.optim.Optimizer,
    *,
    objective: MeanLoss,
    noise: float,
    clip: float,
    expected: float,
    seed: int | None,
    device: torch.device | str,
) -> Iterator[_Private]:
    """Put a model under Opacus, in training mode and with seeded dropout, and take every trace away afterwards."""
    check_noise(noise)
    if not (clip > 0 and math.isfinite(clip)):
        raise ConfigError(f"DP-SGD: the clipping norm must be a finite number above 0; got {clip}")
    check_private_model(model)
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    # Batches, noise and dropout must not be drawn from streams that start alike.
    batches, noises, dropout = np.random.SeedSequence(seed).spawn(3)
    dropout_seed = int(dropout.generate_state(1)[0])
    with fix_seed(dropout_seed, torch.device(device)), in_mode(model, training=True), warnings.catch_warnings():
        # The first layer's input needs no gradient, and torch warns of that where a backward pass is hooked.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        # It puts hooks into every layer, by which gradients of single examples are gathered in ``grad_sample``.
        wrapped = GradSampleModule(model, loss_reduction="sum")
        try:
            # Without noise of its own: the hook adds it after the mean was taken, with deviation σC / expected batch
            # size.
            optimizer = DPOptimizer(sgd, noise_multiplier=0.0, max_grad_norm=clip, expected_batch_size=expected)
            if noise:
                optimizer.attach_step_hook(_noise_hook(noise * clip / expected, np.random.default_rng(noises)))
            yield _Private(wrapped, objective, optimizer, np.random.default_rng(batches))
            optimizer.zero_grad()
        finally:
            # Takes the hooks, and ``grad_sample``, out again.
            wrapped.to_standard_module()
