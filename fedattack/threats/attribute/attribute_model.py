"""The clients' model, its loss, and the examples that are asked about: what both ways to fill in an attribute need."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.attacks.knowledge import ModelKnowledge, PartialRecords
from fedattack.attacks.matching import flatten_arrays
from fedattack.learning import LOSSES, losses_of_models, per_record_loss
from fedattack.learning.importing import trust_given
from fedattack.learning.losses import mean_squared_error

Array = NDArray[np.float64]
State = Mapping[str, Any]

_ROWS = 1 << 15
"""Rows evaluated in one go, values times examples."""


class AttributeModel:
    """A model of p parameters, and examples that lack an attribute of v values.

    Attributes
    ----------
    prior
        (v,): shares of the values; all alike where they are unknown.
    gaussian
        Whether its losses are squared errors.
    size
        p.
    """

    def __init__(self, known: ModelKnowledge, partial: PartialRecords, device: torch.device) -> None:
        self.module = module = known.build()
        self.partial = partial
        values = len(partial.domain)
        self.prior = np.full(values, 1 / values)
        if partial.prior is not None:
            self.prior = partial.prior
        self.gaussian = LOSSES.get(trust_given(known.loss)) is mean_squared_error
        self._loss = per_record_loss(trust_given(known.loss))
        self._device = device
        self._parameters = dict(module.named_parameters())
        self._sizes = [*map(Tensor.numel, self._parameters.values())]
        self.size = sum(self._sizes)

    def flat(self, state: State) -> Array:
        """Return the parameters (p,) of a state, without its buffers."""
        return flatten_arrays(state, self._parameters)

    def tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Return flat parameters (p,) by name."""
        pieces = zip(self._parameters.items(), flat.split(self._sizes), strict=True)
        return {name: piece.reshape(parameter.shape) for (name, parameter), piece in pieces}

    def state(self, flat: Array, buffers: State) -> dict[str, Any]:
        """Return a whole state with these parameters (p,), and the buffers of another one."""
        state = dict(buffers)
        for name, value in self.tensors(torch.from_numpy(flat)).items():
            state[name] = value.to(self._parameters[name].dtype)
        return state

    def losses(self, states: Sequence[State], rows: NDArray[np.int64]) -> Array:
        """Return the losses (states, rows, v) of examples with each value."""
        domain = self.partial.domain
        blocks = []
        # Each example is copied for each value: a few values at a time, so that memory stays the same for any domain.
        step = max(1, _ROWS // max(len(rows), 1))
        for start in range(0, len(domain), step):
            values = domain[start : start + step]
            x, y = np.tile(self.partial.x[rows], (len(values), 1)), np.tile(self.partial.y[rows], len(values))
            x[:, list(self.partial.columns)] = np.repeat(values, len(rows), axis=0)
            flat = losses_of_models(self.module, states, x, y, self._loss, device=self._device, chunk=_ROWS).numpy()
            # (states, values·rows), value by value.
            blocks.append(flat.reshape(len(states), len(values), -1).swapaxes(1, 2))
        return np.concatenate(blocks, axis=2)
