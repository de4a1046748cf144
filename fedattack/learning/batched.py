"""Many parameter sets of one architecture, evaluated on the same examples.

The loop runs over parameter sets, never over examples. It holds one set at a time, and works for models that
``torch.func.vmap`` cannot trace. Sets that are stacked under vmap are no faster. With 10 sets and 1,000 examples on one
CPU core ``sia-mlp`` takes 5 ms either way; ``sia-cnn`` takes 1.7 s one set after the other and 3.4 s stacked.

Images are laid out in memory with their channels last, once for all sets. Max-pooling then takes a tenth of the
convolutions' time; in PyTorch's own layout it takes as long as they do. ``sia-cnn`` takes half the time in all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedattack.base.errors import DataError, ModelError
from fedattack.learning.importing import one_line
from fedattack.learning.inputs import Inputs, call, own_loss_in
from fedattack.learning.losses import RecordLoss, mean_squared_error, own_loss
from fedattack.learning.models import check_parameters
from fedattack.learning.returned import output_in
from fedattack.learning.torch_utils import channels_last, in_mode, shapes_of, to_tensor

State = Mapping[str, "Tensor | NDArray[Any]"]
"""All parameters and buffers of a model by their names in its ``state_dict``."""

CHUNK = 128
"""Examples evaluated at a time; smaller and larger chunks of images were slower on a CPU."""

# What a model raises that records do not fit.
_FAULTS = (IndexError, RuntimeError, TypeError, ValueError)


def losses_of_models(
    model: nn.Module,
    states: Sequence[State],
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    loss: RecordLoss,
    *,
    device: torch.device | str = "cpu",
    chunk: int = CHUNK,
) -> Tensor:
    """Compute the loss of every example under every parameter set, in evaluation mode.

    Parameters
    ----------
    model : nn.Module
        The architecture. Its own parameters do not matter; it is moved to the device and otherwise left as it was.
    states : sequence of mappings
        One parameter set for each client.
    x : array or Tensor, shape (n, *input_shape)
        Examples; also of structured type, see :mod:`fedattack.base.structured`.
    y : array or Tensor, shape (n,) or as the loss needs
        Targets.
    loss : callable
        From :func:`fedattack.learning.per_record_loss`. The model's own is asked of one example at a time.
    chunk : int
        Examples evaluated at a time, at least 1.

    Returns
    -------
    Tensor of float64, shape (clients, n)
        On the CPU.

    Raises
    ------
    DataError, ModelError
        If there is not one target for each example; if parameters do not match the model, or its outputs the loss.
    """
    if len(x) != len(y):
        raise DataError(f"expected one target for each example; got {len(x)} examples and {len(y)} targets")
    records = Inputs.of(x, device)
    targets = to_tensor(y, device=device)
    model.to(device)
    # For its types and devices alone: a record may hold others, such as float16.
    reference = model.state_dict()
    losses = torch.empty((len(states), len(records)), dtype=torch.float64)
    # cuDNN's convolutions take TF32 by default, with three digits where a comparison of clients needs float32's seven.
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), in_mode(model, training=False), exact:
        for client, state in enumerate(states):
            # functional_call takes missing parameters from the model itself, which would pass for the client's.
            check_parameters(model, shapes_of(state))
            parameters = {}
            for name, value in state.items():
                parameters[name] = to_tensor(value, dtype=reference[name].dtype, device=reference[name].device)
            if client == 0:
                records = _channels_last(model, parameters, records)
            for start in range(0, len(records), chunk):
                rows = slice(start, start + chunk)
                outputs = _outputs(model, parameters, records[rows], own=loss is own_loss)
                losses[client, rows] = loss(outputs, targets[rows]).cpu()
    return losses


def accuracy_of_models(
    model: nn.Module,
    states: Sequence[State],
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    *,
    device: torch.device | str = "cpu",
    chunk: int = CHUNK,
) -> Tensor:
    """Return the share (clients,) of examples that each parameter set classifies as labelled, in evaluation mode.

    Parameters are those of :func:`losses_of_models`, with labels (n,) as targets and at least one example.

    Raises
    ------
    DataError, ModelError
        As :func:`losses_of_models`, and without an example.
    """
    if len(x) == 0:
        raise DataError("accuracy needs at least one example; got none")
    return losses_of_models(model, states, x, y, _hits, device=device, chunk=chunk).mean(dim=1)


def outputs_of(
    model: nn.Module, x: NDArray[Any] | Tensor, *, device: torch.device | str = "cpu", chunk: int = CHUNK
) -> NDArray[np.float32]:
    """Return a model's outputs (n, …) for examples (n, *input_shape), in evaluation mode."""
    records = to_tensor(x, dtype=torch.float32, device=device)
    model.to(device)
    with torch.inference_mode(), in_mode(model, training=False):
        # Copies: a model may write into its input, which is the caller's.
        parts = [model(part.clone()).float().cpu().numpy() for part in records.split(chunk)]
    return np.concatenate(parts)


def r2_of_models(
    model: nn.Module,
    states: Sequence[State],
    x: NDArray[Any] | Tensor,
    y: NDArray[Any] | Tensor,
    *,
    device: torch.device | str = "cpu",
    chunk: int = CHUNK,
) -> Tensor:
    """Return R² (clients,) of every parameter set on a regression: 1 − mean squared error / variance of the targets.

    It is 1 for exact predictions, 0 for those of the mean, and has no lower bound. Parameters are those of
    :func:`losses_of_models`, with at least two different targets (n,).

    Raises
    ------
    DataError, ModelError
        As :func:`losses_of_models`, and without two different targets.
    """
    targets = to_tensor(y).double()
    if not len(targets) or not targets.var(correction=0) > 0:
        raise DataError(f"R² needs at least two different targets; got {len(targets)} targets")
    errors = losses_of_models(model, states, x, y, mean_squared_error, device=device, chunk=chunk)
    # By the variance with n below, not n − 1: the mean itself then has exactly 0.
    return 1 - errors.mean(dim=1) / targets.var(correction=0)


def _hits(outputs: Tensor, labels: Tensor) -> Tensor:
    if outputs.ndim != 2 or labels.shape != outputs.shape[:1]:
        raise ModelError(
            f"accuracy: expected outputs of shape (n, classes) and labels of shape (n,); got {tuple(outputs.shape)} "
            f"and {tuple(labels.shape)}"
        )
    return (outputs.argmax(dim=1) == labels).double()


def _channels_last(model: nn.Module, parameters: dict[str, Tensor], records: Inputs) -> Inputs:
    """Lay images on a CPU out with their channels last, if the model can work with that."""
    images = records.only
    if images is None or images.ndim != 4 or images.device.type != "cpu" or not len(images):
        return records
    laid_out = channels_last(images)
    try:
        functional_call(model, parameters, (laid_out[:1],))
    except _FAULTS:
        # A model that calls Tensor.view on what a convolution gives cannot; other faults come up again.
        return records
    return Inputs({"0": laid_out})


def _outputs(model: nn.Module, parameters: dict[str, Tensor], records: Inputs, *, own: bool) -> Tensor:
    """Return outputs (n, …), or each example's loss (n,) where that is the model's own."""
    try:
        if not own:
            return output_in(call(model, parameters, records.leaves))
        losses = []
        for row in range(len(records)):
            # A model returns the mean loss of a batch: of one example that is its loss.
            losses.append(own_loss_in(call(model, parameters, records[row : row + 1].leaves)))
    except _FAULTS as error:
        raise ModelError(
            f"the model failed on examples of shape {records.told} ({one_line(error)}); give examples of "
            "the shape that it was trained on"
        ) from error
    return torch.stack(losses)
