"""The call of a PyTorch model that is under way: what each way of finding the labels of its examples has in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedattack.base.errors import ModelError
from fedattack.learning.returned import output_in, tensors_in
from fedattack.witness.batches import TakenBatch
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.watch import CallWatch


class OpenCall(ABC):
    """One call of a model.

    Parameters
    ----------
    model
        Which.
    places
        (n,): where its examples stand in a loader's dataset; ``None`` where that is not known.

    Attributes
    ----------
    batch
        What is noted of its examples; ``None`` until it is known which of its arguments these are.
    """

    def __init__(self, model: SeenModel, places: Sequence[int] | None) -> None:
        self.model = model
        self.batch: TakenBatch | None = None
        self._places = places
        self._held_out: NDArray[np.bool_] | None = None

    def start(
        self, rows: NDArray[Any], *, trains: bool, inputs: NDArray[Any] | None = None, keep: bool = True
    ) -> TakenBatch:
        """Note its examples; see :meth:`fedattack.witness.seen_model.SeenModel.start`."""
        self.batch = batch = self.model.start(rows, trains=trains, inputs=inputs, keep=keep)
        batch.places, batch.held_out = self._places, self._held_out
        return batch

    def hold_out(self, chosen: NDArray[np.bool_]) -> None:
        """Note that others stand in the place of some (n,) of its examples."""
        self._held_out = chosen
        if self.batch is not None:
            self.batch.held_out = chosen

    @property
    def has_labels(self) -> bool:
        """Whether the labels of its examples are known; who tells a loss of its own needs none."""
        # A head that takes what another model makes has labels, and no examples.
        return self.batch is not None and self.batch.labels is not None and self.batch.trains

    def note_inner_loss(self, target: Tensor) -> None:  # noqa: B027 - most have nothing to learn of it
        """Note that a loss inside of the model took this for its labels."""

    @abstractmethod
    def end_call(self, watch: CallWatch, output: Any) -> None:
        """Note what the model returned."""


def come_back_to(model: SeenModel, batch: TakenBatch) -> Callable[[Any], None]:
    """Return a hook that notes a gradient of a batch; it returns nothing, so that the gradient stays as it is."""

    def come_back(gradient: Any) -> None:
        model.note_gradient(batch)

    return come_back


def outputs_in(returned: Any) -> Tensor | None:
    """Return the outputs among what a model returned; ``None`` if there are none."""
    if type(returned) is Tensor:
        return returned
    try:
        return output_in(returned)
    except ModelError:
        return None


def find_computed(output: Any) -> Iterator[Tensor]:
    """Give the tensors among what a model returned that a gradient may come back through; no parameters."""
    for tensor in tensors_in(output):
        # A parameter that is returned as it is, is a leaf of the graph: gradients of other calls come to it, too.
        if tensor.grad_fn is not None:
            yield tensor
