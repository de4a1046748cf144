"""Labels of examples by models that compute their own loss, as those of Hugging Face do.

This is the way of models that are called with several tensors, or with one that is no plain array of numbers. Which of
these are labels is known when the call ends: by a loss that was computed inside of it, or by name. Where the model
returns a loss, that is the one; where it returns none, its outputs go on as those of any model.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.base.structured import LABELS, SEPARATOR, fields, pack, places, without
from fedattack.learning.returned import loss_in
from fedattack.witness.arrays import labels_of
from fedattack.witness.batches import TakenBatch
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.step import as_array, count_examples
from fedattack.witness.torch_losses import await_loss, await_loss_and_gradient
from fedattack.witness.torch_open_call import OpenCall, come_back_to, find_computed, outputs_in
from fedattack.witness.watch import CallWatch

_OWN = "own"
"""What a loss is called that a model returns, and of which nobody knows how it is computed."""


class StructuredCall(OpenCall):
    """The call of a model with several tensors, until it is known which part of that are labels.

    Parameters
    ----------
    rows
        (n,) of structured type: copies of all tensors that it was called with.
    trains
        Whether a gradient may come back.
    memory
        Where in memory each input begins, by which a loss inside of the model shows what the labels are.
    """

    def __init__(
        self,
        model: SeenModel,
        example_places: Sequence[int] | None,
        rows: NDArray[Any],
        *,
        trains: bool,
        memory: Mapping[int, str],
    ) -> None:
        super().__init__(model, example_places)
        self._rows = rows
        self._trains = trains
        self._memory = memory
        self._labels: str | None = None

    @classmethod
    def of(
        cls,
        watch: CallWatch,
        model: SeenModel,
        example_places: Sequence[int] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> "StructuredCall | None":
        """Copy what a model is called with; ``None``, with a note, if that is no batch of examples."""
        given = places(args, kwargs)
        # Numbers and switches are the same for all examples, such as how many tokens there are in all batches of a
        # step.
        tensors = {place: value for place, value in given.items() if isinstance(value, Tensor) and value.ndim}
        if any(value.is_complex() for value in tensors.values()):
            watch.note(f"{model.name} was called with complex numbers: not covered, its examples are unknown")
            return None
        is_plain = all(isinstance(value, Tensor | int | float | str) for value in given.values())
        if not is_plain or not _are_rows(list(tensors.values()), count_examples(args, kwargs)):
            watch.read_steps(model)
            return None
        rows = pack({place: as_array(value) for place, value in tensors.items()})
        # What another model computed is no example: gradients go on to that model.
        computed = [value for value in tensors.values() if value.requires_grad and not value.is_leaf]
        # What comes first is no label: who predicts the input itself has none.
        later = [*tensors.items()][1:]
        # A model flattens or moves its labels before the loss takes them: a view lies in the same memory.
        memory = {value.untyped_storage().data_ptr(): place for place, value in later}
        return cls(model, example_places, rows, trains=torch.is_grad_enabled() and not computed, memory=memory)

    def note_inner_loss(self, target: Tensor) -> None:
        """Note which input are the labels, by a loss that the model computes itself."""
        self._labels = self._memory.get(target.untyped_storage().data_ptr(), self._labels)

    def end_call(self, watch: CallWatch, output: Any) -> None:
        """Note the examples, now that it is known what of them are labels, and whether the model's loss has a name."""
        model, loss, outputs = self.model, loss_in(output), outputs_in(output)
        if outputs is not None and not outputs.ndim:
            outputs = None
        place = self._labels or next((place for place in fields(self._rows) if _is_label(place)), None)
        inputs = _as_one_array(model, without(self._rows, place))
        values = None if place is None else self._rows[place]
        if loss is None:
            # Without labels an example has no loss of the model's own.
            batch = self.start(inputs, trains=self._trains, keep=model.own_loss != _OWN)
            await_loss_and_gradient(watch, model, batch, output)
            return
        if model.own_loss is None:
            model.own_loss = _recognise_loss(model, place, values, outputs, loss) or _OWN
        # An example of a loss that only the model knows is asked about with its labels; it is known by its inputs.
        rows = self._rows if model.own_loss == _OWN else inputs
        batch = self.start(rows, trains=self._trains, inputs=inputs)
        _note_labels(model, batch, values, outputs)
        if batch.trains:
            _await_gradients(watch, model, batch, output, loss)
        if outputs is not None:
            await_loss(watch, model, batch, outputs)


def _are_rows(tensors: Sequence[Tensor], count: int) -> bool:
    """Say whether tensors have one row an example each, and are not one number an example alone."""
    return {len(value) for value in tensors} == {count} and [value.ndim for value in tensors] != [1]


def _is_label(place: str) -> bool:
    return place.split(SEPARATOR)[-1] in LABELS


def _as_one_array(model: SeenModel, inputs: NDArray[Any]) -> NDArray[Any]:
    """Take what a model was called with by name as what it is called with by position, if it is one array of numbers.

    A client may train by names, and evaluate by position.
    """
    names = fields(inputs)
    if len(names) != 1 or inputs.dtype[names[0]].base.kind != "f" or not inputs.dtype[names[0]].shape:
        return inputs
    first = [*inspect.signature(cast(nn.Module, model.model).forward).parameters][:1]
    return np.ascontiguousarray(inputs[names[0]]) if [*names] == first else inputs


def _recognise_loss(
    model: SeenModel, place: str | None, values: NDArray[Any] | None, outputs: Tensor | None, loss: Tensor
) -> str | None:
    """Return the name of a loss by its value, if the model can be called without labels; else its outputs are lost."""
    if place is None or values is None or outputs is None or values.ndim != 1 or len(outputs) != len(values):
        return None
    parameter = inspect.signature(cast(nn.Module, model.model).forward).parameters.get(place)
    if parameter is None or parameter.default is not None:
        return None
    with torch.no_grad():
        scores, labels = outputs.detach().double().cpu(), torch.from_numpy(values.copy())
        losses = None
        if (
            values.dtype.kind in "iu"
            and scores.ndim == 2
            and 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]
        ):
            # −log softmax(scores)[label]
            spec, losses = "cross-entropy", torch.logsumexp(scores, 1) - scores.gather(1, labels.long()[:, None])[:, 0]
        elif values.dtype.kind == "f" and scores.numel() == len(values):
            spec, losses = "mse", (scores.reshape(-1) - labels).square()
        # The model may compute in half precision.
        if losses is None or not torch.isclose(losses.mean(), loss.detach().double().cpu(), rtol=1e-3, atol=1e-6):
            return None
    return spec


def _note_labels(model: SeenModel, batch: TakenBatch, values: NDArray[Any] | None, outputs: Tensor | None) -> None:
    """Note the labels of a batch, and how many classes there are."""
    labels = None
    model.classes = 1
    if values is not None:
        labels = labels_of(values, batch.count)
        if values.ndim == 1 and outputs is not None and outputs.ndim == 2:
            model.classes = int(outputs.shape[1])
    # Labels that are not one number an example, such as those of tokens, are a part of it.
    batch.labels = labels or [0] * batch.count


def _await_gradients(watch: CallWatch, model: SeenModel, batch: TakenBatch, output: Any, loss: Tensor) -> None:
    """See whether a gradient comes back through anything that a model with a loss of its own returned."""
    come_back = come_back_to(model, batch)

    def come_back_beside(gradient: Tensor) -> None:
        # What comes back through the loss comes to it first.
        if not batch.differentiated:
            watch.note(
                f"the client trains by a loss that it computes from the outputs of {model.name}; the loss that the "
                "model itself returns is used in its place"
            )
        come_back(gradient)

    for tensor in find_computed(output):
        tensor.register_hook(come_back if tensor is loss else come_back_beside)
        model.losses.setdefault("loss of the model itself", model.own_loss)
