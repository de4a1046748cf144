"""The gradient of each of some examples at given parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.learning.losses import mean_loss
from fedattack.learning.models import check_parameters
from fedattack.learning.shadows import ShadowModel
from fedattack.learning.torch_utils import shapes_of

# Examples at a time, and numbers of their gradients.
_MOST_EXAMPLES = 128
_NUMBERS = 2**24


def example_gradients(
    model: nn.Module,
    arrays: Mapping[str, NDArray[Any]],
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    loss: str = "cross-entropy",
    entries: slice = slice(None),
) -> tuple[tuple[str, ...], NDArray[np.float32]]:
    """Return the parameters' names in their order, and each example's gradient of the loss (n, entries that are kept).

    Parameters
    ----------
    model
        The architecture; its own parameters do not matter. Dropout is drawn, by a seed of its own.
    arrays
        Parameters by name, such as a model of a record.
    x, y
        (n, …), (n,): examples and labels.
    entries
        Which entries of the gradients are kept, when all parameters are laid flat one after the other. Many gradients
        of large models would not fit into memory.

    Raises
    ------
    ModelError
        If the arrays are not those of the model.
    """
    check_parameters(model, shapes_of(arrays))
    shadow = ShadowModel(model, x[0], mean_loss(loss))
    generator = torch.Generator().manual_seed(0)
    start = shadow.flatten(arrays)
    # Few at a time for a large model: each takes as much as the model.
    chunk = min(_MOST_EXAMPLES, max(1, _NUMBERS // shadow.size))
    found = shadow.record_gradients(
        start, torch.from_numpy(x), torch.from_numpy(y), generator=generator, chunk=chunk, entries=entries
    )
    return shadow.names, found.numpy()
