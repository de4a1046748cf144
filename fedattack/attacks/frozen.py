"""Weights of a model that a run never changed and its record lacks, such as a frozen backbone beside an adapter."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedattack.base.errors import DataError, short
from fedattack.base.untrusted import open_regular, read_npz

if TYPE_CHECKING:
    from torch import nn

_HINT = "expected an array for each frozen weight, by the model's own names"


def read_frozen(path: Path, _: object = None) -> dict[str, NDArray[Any]]:
    """Read frozen weights, finite numbers, from an ``.npz`` or a ``.safetensors``; raises DataError."""
    if path.suffix == ".npz":
        arrays = read_npz(path, DataError, _HINT)
    else:
        try:
            # The library would wait for what a pipe never says.
            open_regular(path).close()
            arrays = load_file(path)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
            raise DataError(f"{path} cannot be read as .safetensors ({short(str(cause), 100)}); {_HINT}") from None
    if not arrays:
        raise DataError(f"{path} holds no array; {_HINT}")
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise DataError(
                f"{path}: {short(name, 60)} contains something other than finite numbers ({array.dtype}); {_HINT}"
            )
    return arrays


def initial_weights(build: Callable[[], "nn.Module"]) -> dict[str, NDArray[Any]]:
    """Return the weights with which a model is made, without those that are drawn anew each time."""
    import torch

    # Drawn weights differ between two builds; weights that are loaded, or constant, are the same.
    first, second = build().state_dict(), build().state_dict()
    weights = {}
    for name, tensor in first.items():
        if torch.equal(tensor, second[name]):
            weights[name] = tensor.numpy().copy()
    return weights
