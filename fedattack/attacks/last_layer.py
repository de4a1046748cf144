"""The last linear layer of a classifier: which arrays it has, and what enters and leaves it.

Where no model can be built, the gradients of examples show both: that of the bias is what leaves the layer, as a
softmax, less the label; and that of the weights is its product with what enters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.roles import HEAD, ArrayRole, find_head, list_forms
from fedattack.base.errors import NeedsError
from fedattack.learning import LocalSGD
from fedattack.learning.inputs import examples_of, returned_for
from fedattack.learning.torch_utils import in_mode
from fedattack.record.format import Arrays

Floats = NDArray[np.float64]

MOST_EXAMPLES, DRAWN = 500, 200
"""Examples that the attacker computes gradients of, and inputs that it draws where it has none."""

_SHARED = (
    "it reads how the last layer moves; here the layer has no bias, and a table shares its weights, whose rows also "
    "move by the ids in examples"
)

POINTS = 5
"""Models between start and end of a training that are looked at, at most."""


@dataclass(frozen=True)
class LastLayer:
    """The last linear layer of a model.

    Where its weights are a table's, too, ``weight`` is its bias: what enters that is the number 1.
    """

    weight: str  # Names of its arrays; ``None`` for a bias that there is not.
    bias: str | None
    classes: int  # Outputs of the layer.
    inputs: int
    is_transposed: bool = False  # Whether an output is a column of the weights.

    def fits(self, arrays: Mapping[str, Any]) -> bool:
        """Say whether arrays hold a layer of as many outputs; how much enters it may differ from client to client."""
        shape: tuple[int, ...] = np.shape(arrays.get(self.weight, ()))
        if self.inputs == 1 and len(shape) == 1:
            return shape == (self.classes,)
        if len(shape) != 2 or shape[int(self.is_transposed)] != self.classes:
            return False
        return self.bias is None or bool(self.bias in arrays and arrays[self.bias].size == self.classes)

    def join(self, arrays: Mapping[str, Any]) -> Floats:
        """Return weights and bias of it as one matrix (classes, inputs + 1); the bias comes last, if there is one."""
        weight: Floats = self.orient(np.asarray(arrays[self.weight], dtype=np.float64)[None])[0]
        if self.bias is None:
            return weight
        return np.column_stack([weight, np.asarray(arrays[self.bias], dtype=np.float64).reshape(-1)])

    def orient(self, arrays: Floats) -> Floats:
        """Return weights, or gradients of them, (n, …) as (n, classes, inputs)."""
        if self.is_transposed:
            return arrays.transpose(0, 2, 1)
        return arrays.reshape(len(arrays), self.classes, -1)


def find_known_last_layer(knowledge: Knowledge) -> LastLayer:
    """Find the last layer of the clients' model, or by the roles of arrays where the attacker can build none.

    For models of several forms it is that of the first form that has one.

    Raises
    ------
    NeedsError
        As :func:`find_last_layer`; if no array, by the gradients of examples, is the last layer of a softmax; or if it
        shares its weights with a table, and has no bias.
    """
    if knowledge.model is not None:
        model = knowledge.model.build()
        last = find_last_layer(model)
        if not _is_table(model, last):
            return last
        if last.bias is None:
            raise NeedsError(_SHARED)
        return LastLayer(last.bias, None, last.classes, 1)
    for last in find_last_by_form(knowledge.roles).values():
        return last
    if any(role.kind == HEAD and role.is_tied for role in knowledge.roles):
        raise NeedsError(_SHARED)
    raise NeedsError(
        "it needs a last layer that is linear, and the cross-entropy of a softmax; by the gradients of single "
        "examples, no array is one"
    )


def find_last_by_form(roles: Sequence[ArrayRole]) -> dict[int, LastLayer]:
    """Find by the roles of arrays the last layer of each form of model that has one."""
    found = {}
    for of_form in list_forms(roles):
        role = find_head(of_form)
        if role is None:
            continue
        if role.is_bias:
            found[role.form] = LastLayer(role.name, None, math.prod(role.shape), 1)
        else:
            classes, inputs = role.shape[::-1] if role.is_transposed else role.shape
            found[role.form] = LastLayer(role.name, role.bias or None, classes, inputs, role.is_transposed)
    return found


def _is_table(model: nn.Module, last: LastLayer) -> bool:
    """Say whether an embedding shares the weights of the last layer."""
    tables = [layer.weight for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag)]
    return any(model.get_parameter(last.weight) is table for table in tables)


def find_last_layer(model: nn.Module) -> LastLayer:
    """Find the last linear layer of a model.

    Raises
    ------
    NeedsError
        If the model has no linear layer.
    """
    found = None
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            prefix = f"{name}." if name else ""
            bias = None if layer.bias is None else f"{prefix}bias"
            found = LastLayer(f"{prefix}weight", bias, layer.out_features, layer.in_features)
    if found is None:
        raise NeedsError("labels are read from the gradient of a last linear layer, and this model has none")
    return found


@dataclass(frozen=True)
class Outputs:
    """What a model computes of some inputs."""

    softmax: Floats  # (n, classes): what the last layer gives.
    inputs: Floats  # (n, inputs): what enters the last layer.
    has_bias: bool  # Whether the layer has a bias.

    @property
    def columns(self) -> Floats:
        """(n, inputs + 1): what enters the layer, with a last column of ones for its bias, if it has one."""
        if not self.has_bias:
            return self.inputs
        return np.column_stack([self.inputs, np.ones(len(self.inputs))])


def compute_outputs(model: nn.Module, last: LastLayer, state: Arrays, x: NDArray[Any]) -> Outputs | None:
    """Compute what enters and leaves the last layer, at some parameters.

    Returns
    -------
    Outputs or None
        ``None`` if the layer is not called once for each example, as in models of sequences.
    """
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], returned: Tensor) -> None:
        calls.append((given[0].detach(), returned.detach()))

    handle = model.get_submodule(last.weight.rpartition(".")[0]).register_forward_hook(keep)
    try:
        with torch.no_grad(), in_mode(model, training=False):
            returned_for(model, examples_of(x))
    finally:
        handle.remove()
    if len(calls) != 1 or calls[0][0].ndim != 2 or len(calls[0][0]) != len(x):
        return None
    inputs, logits = calls[0]
    softmax = torch.softmax(logits.double(), dim=1)
    if model.get_parameter(last.weight).ndim == 1:
        inputs = torch.ones((len(x), 1))
    return Outputs(softmax.numpy(), inputs.double().numpy(), last.bias is not None)


def find_outputs(
    last: LastLayer, gradients: Mapping[str, NDArray[Any]], labels: NDArray[np.int64], losses: NDArray[np.float64]
) -> Outputs:
    """Find what enters and leaves the last layer by the gradients (n, …) of examples with these labels and losses (n,).

    The gradient of the outputs is u = p − onehot(y), and that of the weights u ⊗ h. Without a bias both are known up to
    a factor, which the loss −log p(y) tells.
    """
    weight = last.orient(np.asarray(gradients[last.weight], dtype=np.float64))
    rows = np.arange(len(weight))
    if last.bias is not None:
        moved = np.asarray(gradients[last.bias], dtype=np.float64).reshape(len(weight), -1)
        squares = np.square(moved).sum(axis=1)
        inputs = np.einsum("nk,nkd->nd", moved, weight) / np.maximum(squares, 1e-300)[:, None]
    else:
        # The row of the label is the largest: what is known of it is most exact.
        direction = weight[rows, labels]
        squares = np.maximum(np.square(direction).sum(axis=1), 1e-300)
        # u(y) = p(y) − 1, of which the loss tells p(y).
        own = np.exp(-losses) - 1
        moved = np.einsum("nkd,nd->nk", weight, direction) / squares[:, None] * own[:, None]
        inputs = direction / np.where(own < 0, own, -1e-300)[:, None]
    softmax = moved.copy()
    softmax[rows, labels] += 1
    return Outputs(softmax, inputs, last.bias is not None)


def list_shares(training: LocalSGD | None, examples: int) -> list[float]:
    """List how far models lie between start and end of a training that are looked at; the start alone if unknown."""
    steps = 1
    if training is not None:
        steps = training.steps(examples)
    shares: list[float] = np.linspace(0, (steps - 1) / steps, min(steps, POINTS)).tolist()
    return shares


def are_labels(y: NDArray[Any], classes: int) -> bool:
    """Say whether labels (n,), of one example or more, are those of a layer of so many outputs."""
    return bool(y.dtype.kind == "i" and len(y) and 0 <= y.min() <= y.max() < classes)


def choose_examples(count: int, seed: int) -> NDArray[np.int64]:
    """Choose which of so many examples of the attacker's gradients are computed of."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:MOST_EXAMPLES])


def draw_inputs(shape: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Draw inputs (n, *shape) for an attacker that has no examples of its own."""
    return np.random.default_rng(seed).normal(size=(DRAWN, *shape)).astype(np.float32)


def interpolate(start: Arrays, end: Arrays, share: float) -> dict[str, NDArray[Any]]:
    """Return the model that lies between two; arrays that are no floating-point numbers are those of the start."""
    between = {}
    for name, before in start.items():
        value = np.asarray(before)
        if value.dtype.kind == "f" and name in end:
            value = ((1 - share) * value + share * np.asarray(end[name])).astype(value.dtype)
        between[name] = value
    return between
