"""The hook with which a client's training code hands over what some defences need besides the update.

Make one call in the training code, after the model has the received parameters and before you train it::

    from fedattack.defences import hand_over

    hand_over(model, x, y)

If the defence needs them, model and examples are copied; otherwise the call costs nothing, so you can leave it in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.defences.base import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass
class Handed:
    """What was handed over; see :func:`collecting`.

    Attributes
    ----------
    wanted
        Whether the batch is wanted; without, only the names are noted.
    names
        Of all that is in the model's state dict, in its order; empty before the hand-over.
    batch
        Model and examples, if they were wanted.
    """

    wanted: bool
    names: tuple[str, ...] = ()
    batch: Batch | None = None


_handed: ContextVar[Handed | None] = ContextVar("fedattack-handed", default=None)


def hand_over(model: nn.Module, x: NDArray[Any] | Tensor, y: NDArray[Any] | Tensor) -> None:
    """Hand over the model at the received parameters and the examples of this round's training.

    Parameters
    ----------
    model
        The model with the received parameters, not yet trained in this round.
    x
        (n, …): examples.
    y
        (n,): labels.

    Raises
    ------
    DataError
        If it is the second call in a round, if there are no examples, or if there is not one label for each.
    """
    collector = _handed.get()
    if collector is None:
        return
    if collector.names:
        raise DataError(
            "hand_over was called twice in a round: expected one call with all examples, before the training; move it "
            "out of the loop"
        )
    if len(x) != len(y) or len(x) == 0:
        raise DataError(f"hand_over: expected a label for each of at least one example; got {len(y)} and {len(x)}")
    # Names are taken in any case; examples and a copy of the model only where the defence asks.
    collector.names = tuple(model.state_dict())
    if collector.wanted:
        # A copy: training moves the model that was handed over.
        collector.batch = Batch(_array(x), _array(y), copy.deepcopy(model))


@contextmanager
def collecting(wanted: bool) -> Iterator[Handed]:
    """Collect what the code inside hands over; for what applies a defence around a client."""
    handed = Handed(wanted)
    token = _handed.set(handed)
    try:
        yield handed
    finally:
        _handed.reset(token)


def _array(values: NDArray[Any] | Tensor) -> NDArray[Any]:
    if isinstance(values, np.ndarray):
        return values.copy()
    return np.array(values.detach().cpu().numpy())
