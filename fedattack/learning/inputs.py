"""Examples of any structure as models take them: see :mod:`fedattack.structured`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from fedattack.learning.torch_utils import to_tensor
from fedattack.structured import arguments, leaves_of

Leaves = Mapping[str, Tensor]


class Inputs:
    """Examples on a device: tensors (n, …) by their places in the model's call.

    Floating-point numbers are float32; ids and masks keep their types.
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
            leaves[place] = to_tensor(leaf, dtype=dtype, device=device)
        return cls(leaves)

    def __len__(self) -> int:
        return len(next(iter(self.leaves.values())))

    def __getitem__(self, rows: slice) -> Inputs:
        return Inputs({place: leaf[rows] for place, leaf in self.leaves.items()})

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


def call(model: nn.Module, state: Mapping[str, Tensor], leaves: Leaves) -> Any:
    """Call a model at some parameters and buffers."""
    args, kwargs = arguments(leaves)
    # Arrays that a model ties are each given, so that none of them needs to stand for another.
    return functional_call(model, dict(state), tuple(args), kwargs, tie_weights=False)
