"""Knowledge distillation: models that are trained to give a teacher's outputs.

One model for a client that digests a consensus, or many students of one architecture together, one a teacher.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.base.errors import ConfigError, DataError, ModelError
from fedattack.learning.batched import State
from fedattack.learning.models import check_parameters
from fedattack.learning.torch_utils import fix_seed, in_mode, shapes_of, to_tensor


@dataclass(frozen=True)
class Distillation:
    """How a student learns: Adam on the mean absolute difference of outputs, as in the code of the SIA paper.

    The outputs are logits. A difference of logits counts alike wherever it is; one of probabilities would hardly tell
    how confident a teacher is beyond its first choice.

    Attributes
    ----------
    epochs, batch_size
        Passes over the examples, in a new order each, and examples a step.
    lr
        Learning rate of Adam.
    """

    epochs: int = 30
    batch_size: int = 64
    lr: float = 1e-3

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size)):
            if not value >= 1:
                raise ConfigError(f"distillation: {name} must be at least 1; got {value}")
        if not self.lr > 0:
            raise ConfigError(f"distillation: lr must be above 0; got {self.lr}")


def distil(
    model: nn.Module,
    x: NDArray[Any] | Tensor,
    outputs: NDArray[Any] | Tensor,
    how: Distillation,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> None:
    """Train a model in place to give a teacher's outputs; the global random state is left as it was.

    Parameters
    ----------
    model : nn.Module
        Moved to the device; trained in training mode, which is restored afterwards.
    x : array or Tensor, shape (n, *input_shape)
        Examples; no labels are needed.
    outputs : array or Tensor, shape (n, classes)
        What the teacher's model gives for them, before a softmax.
    seed : int
        Decides the order of the examples and the dropout.

    Raises
    ------
    DataError, ModelError
        If there is not one row of outputs for each example; if the model's outputs are of another shape.
    """
    device = torch.device(device)
    model.to(device)
    records = to_tensor(x, dtype=torch.float32, device=device)
    targets = to_tensor(outputs, dtype=torch.float32, device=device)
    _check(records, targets)
    optimizer = torch.optim.Adam(model.parameters(), lr=how.lr)
    with fix_seed(seed, device), in_mode(model, training=True):
        for batch in _batches(len(records), how, seed, device):
            optimizer.zero_grad()
            predictions = model(records[batch])
            _check_outputs(predictions, targets[batch])
            nn.functional.l1_loss(predictions, targets[batch]).backward()
            optimizer.step()


def distil_students(
    model: nn.Module,
    start: State,
    x: NDArray[Any] | Tensor,
    outputs: NDArray[Any] | Tensor,
    how: Distillation,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> list[dict[str, NDArray[Any]]]:
    """Train one student for each teacher, all from one start and on the same examples in the same order.

    The result is that of :func:`distil` for one student after the other, up to rounding. Fully connected students are
    trained together, several times faster: the first layer of all is one matrix product, and each further layer is one
    batched product. Convolutions fill a CPU on their own; ``sia-cnn`` was 0.7 times as fast under ``vmap``.

    Parameters
    ----------
    model : nn.Module
        The architecture. Its own parameters do not matter and are left as they are.
    start : mapping
        Parameters and buffers that each student starts from.
    x : array or Tensor, shape (n, *input_shape)
        Examples.
    outputs : array or Tensor, shape (teachers, n, classes)
        What each teacher gives for them, before a softmax.

    Returns
    -------
    list of dict
        Each student's parameters and buffers, on the CPU.

    Raises
    ------
    DataError, ModelError
        As :func:`distil`, and if ``start`` is not of this model.
    """
    device = torch.device(device)
    check_parameters(model, shapes_of(start))
    targets = to_tensor(outputs, dtype=torch.float32, device=device)
    if _is_dense(model):
        return _distil_dense(model, start, to_tensor(x, dtype=torch.float32, device=device), targets, how, seed)
    initial = {name: to_tensor(value) for name, value in start.items()}
    states = []
    for teacher in targets:
        student = copy.deepcopy(model)
        student.load_state_dict(initial)
        distil(student, x, teacher, how, seed=seed, device=device)
        states.append(_as_arrays(student.state_dict()))
    return states


def _as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: value.detach().cpu().numpy() for name, value in tensors.items()}


# Layers without parameters that do the same for every student.
_ENTRYWISE = (nn.ReLU, nn.Tanh, nn.Identity)
_FREE = (nn.Flatten, nn.AvgPool2d, *_ENTRYWISE)


def _is_dense(model: nn.Module) -> bool:
    """Say whether a model is a chain that :func:`_distil_dense` knows: linear layers alone after a flattening."""
    if not isinstance(model, nn.Sequential):
        return False
    kinds = list(map(type, model))
    if nn.Linear not in kinds:
        return False
    first = kinds.index(nn.Linear)
    before, after = set(kinds[:first]), set(kinds[first:])
    if nn.Flatten not in before or not before <= {*_FREE} or not after <= {nn.Linear, *_ENTRYWISE}:
        return False
    return all(layer.bias is not None for layer in model if isinstance(layer, nn.Linear))


def _distil_dense(
    model: nn.Module, start: State, x: Tensor, targets: Tensor, how: Distillation, seed: int
) -> list[dict[str, NDArray[Any]]]:
    """Train fully connected students together; ``targets`` (teachers, n, classes) are the teachers' outputs."""
    teachers = len(targets)
    layers = list(model.named_children())
    kinds = [type(layer) for _, layer in layers]
    first = kinds.index(nn.Linear)
    with torch.no_grad():
        for _, layer in layers[:first]:  # the same for all students and in every epoch
            x = layer(x)
    _check(x, targets[0])
    stacked = {}
    for name, value in start.items():
        # A copy for each student, and a leaf, of which a gradient is kept.
        copies = to_tensor(value, device=x.device).expand(teachers, *value.shape).clone()
        stacked[name] = copies.requires_grad_()
    # One kernel for all parameters: many small students wait for Python otherwise.
    optimizer = torch.optim.Adam(stacked.values(), lr=how.lr, fused=True)
    for batch, target in _dense_batches(x, targets, how, seed):
        optimizer.zero_grad()
        predictions = batch
        for name, layer in layers[first:]:
            if isinstance(layer, nn.Linear):
                predictions = _apply_linear(predictions, stacked[f"{name}.weight"], stacked[f"{name}.bias"])
            else:
                predictions = layer(predictions)
        _check_outputs(predictions[0], target[0])
        # The sum over students of each one's mean: no student's gradient depends on another's.
        (nn.functional.l1_loss(predictions, target, reduction="sum") / target[0].numel()).backward()
        optimizer.step()
    states = []
    arrays = _as_arrays(stacked)
    for teacher in range(teachers):
        states.append({name: array[teacher].copy() for name, array in arrays.items()})
    return states


def _apply_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply each student's layer to examples that are common (n, in), or to its own (students, n, in)."""
    if x.ndim == 3:
        # From the second layer on each student has inputs of its own.
        return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
    students, width, _ = weight.shape
    # All students' weights below each other: one product is faster than many small ones.
    together = torch.addmm(bias.flatten(), x, weight.flatten(0, 1).t())
    return together.view(len(x), students, width).transpose(0, 1)


def _check_outputs(predictions: Tensor, target: Tensor) -> None:
    if predictions.shape != target.shape:
        raise ModelError(
            f"distillation: expected outputs of shape {tuple(target.shape)}, the model gives "
            f"{tuple(predictions.shape)}; give a model of as many classes as the teacher has"
        )


def _check(records: Tensor, outputs: Tensor) -> None:
    if not len(records) or len(records) != len(outputs):
        raise DataError(
            f"distillation: expected at least one example and a row of outputs for each; got {len(records)} and "
            f"{len(outputs)}"
        )


def _dense_batches(x: Tensor, targets: Tensor, how: Distillation, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Go through the mini-batches of :func:`_batches`; sorting once an epoch is faster than picking at every step."""
    for order in _orders(len(x), how, seed, x.device):
        batches = x[order].split(how.batch_size)
        yield from zip(batches, targets[:, order].split(how.batch_size, dim=1), strict=True)


def _batches(records: int, how: Distillation, seed: int, device: torch.device) -> Iterator[Tensor]:
    for order in _orders(records, how, seed, device):
        yield from order.split(how.batch_size)


def _orders(records: int, how: Distillation, seed: int, device: torch.device) -> Iterator[Tensor]:
    # On the CPU, so that a GPU takes the examples in the same order.
    generator = torch.Generator().manual_seed(seed)
    for _ in range(how.epochs):
        yield torch.randperm(records, generator=generator).to(device)
