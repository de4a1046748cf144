"""Examples of any structure as models take them: see :mod:`fedattack.base.structured`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import register_pytree_node

from fedattack.base.errors import ModelError
from fedattack.base.structured import arguments, leaves_of
from fedattack.learning.losses import MeanLoss, mean_own
from fedattack.learning.returned import loss_in, output_in
from fedattack.learning.torch_utils import to_tensor

Leaves = Mapping[str, Tensor]


class Inputs:
    """Examples on a device: tensors (n, …) by their places in the model's call.

    Floating-point numbers are float32; ids and masks keep their types. What is done to the first axes of one tensor is
    done here to all: indexing, repeating, moving. ``torch.func`` maps over them, too.
    """

    def __init__(self, leaves: Leaves) -> None:
        self.leaves = dict(leaves)

    @classmethod
    def of(cls, x: NDArray[Any] | Tensor, device: torch.device | str = "cpu") -> Inputs:
        """Put examples on a device; one array is float32, whatever it was."""
        if isinstance(x, Tensor) or not x.dtype.names:
            return cls({"0": to_tensor(x, dtype=torch.float32, device=device)})
        leaves = {}
        for place, leaf in leaves_of(x).items():
            dtype = torch.float32 if leaf.dtype.kind == "f" else None
            # Ids of words index an embedding, and must stay whole numbers.
            leaves[place] = to_tensor(leaf, dtype=dtype, device=device)
        return cls(leaves)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Inputs:
        return self._map(lambda leaf: leaf[index])

    def _map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        return Inputs({place: change(leaf) for place, leaf in self.leaves.items()})

    @property
    def shape(self) -> torch.Size:
        """That of the first tensor, with which the others have the first axes in common."""
        return next(iter(self.leaves.values())).shape

    def numel(self) -> int:
        """Count all numbers."""
        return sum(leaf.numel() for leaf in self.leaves.values())

    def to(self, device: torch.device | str) -> Inputs:
        """Move them to a device."""
        return self._map(lambda leaf: leaf.to(device))

    def repeat_interleave(self, repeats: int, dim: int) -> Inputs:
        """Repeat what lies along an axis, each part after itself."""
        return self._map(lambda leaf: leaf.repeat_interleave(repeats, dim=dim))

    @property
    def only(self) -> Tensor | None:
        """The one tensor that the model takes by position, if that is all."""
        return self.leaves["0"] if [*self.leaves] == ["0"] else None

    @property
    def told(self) -> str:
        """What shape an example has, for messages."""
        shapes = {place: tuple(leaf.shape[1:]) for place, leaf in self.leaves.items()}
        if self.only is not None:
            return str(shapes["0"])
        return ", ".join(f"{place} {shape}" for place, shape in shapes.items())


# This lets ``vmap`` and ``grad`` look into the class, and take its tensors for their own arguments.
register_pytree_node(
    Inputs,
    lambda inputs: ([*inputs.leaves.values()], (*inputs.leaves,)),
    lambda leaves, places: Inputs(dict(zip(places, leaves, strict=True))),
)

Examples = Tensor | Inputs
"""Examples as a model takes them: one tensor of floating-point numbers, or several tensors."""


def examples_of(x: NDArray[Any] | Tensor, device: torch.device | str = "cpu") -> Examples:
    """Put examples on a device; one array as one tensor of float32."""
    if isinstance(x, Tensor) or not x.dtype.names:
        return to_tensor(x, dtype=torch.float32, device=device)
    return Inputs.of(x, device)


def one_after_another(first: Examples, second: Examples) -> Examples:
    """Put examples of one structure and shape together."""
    if isinstance(first, Tensor) or isinstance(second, Tensor):
        return torch.cat([first, second])  # type: ignore[list-item]  # torch names what is no tensor
    return Inputs({place: torch.cat([leaf, second.leaves[place]]) for place, leaf in first.leaves.items()})


def call(model: nn.Module, state: Mapping[str, Tensor], leaves: Leaves, *, ties: bool = False) -> Any:
    """Call a model at some parameters and buffers.

    ``ties`` says that of parameters that the model ties one is given, and stands for all; else each is given.
    """
    # Copies: a model may write into its inputs, which are asked about again.
    args, kwargs = arguments({place: leaf.clone() for place, leaf in leaves.items()})
    return functional_call(model, dict(state), tuple(args), kwargs, tie_weights=ties)


def returned_for(model: nn.Module, x: Examples) -> Any:
    """Return what a model returns for examples, at its own parameters."""
    if isinstance(x, Tensor):
        return model(x)
    args, kwargs = arguments(x.leaves)
    return model(*args, **kwargs)


def mean_loss_in(returned: Any, labels: Tensor, loss: MeanLoss) -> Tensor:
    """Return the mean loss of a batch, by what a model returned for it: its own where that is what clients minimise.

    Raises
    ------
    ModelError
        If the model returned no loss of its own, or no outputs.
    """
    return own_loss_in(returned) if loss is mean_own else loss(output_in(returned), labels)


def own_loss_in(returned: Any) -> Tensor:
    """Return the loss that a model returned.

    Raises
    ------
    ModelError
        If it returned none.
    """
    own = loss_in(returned)
    if own is None:
        raise ModelError("the model returns no loss of its own; name the loss that its clients minimise by --loss")
    return own
