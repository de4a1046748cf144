"""Labels of examples by losses of PyTorch: what a model returned goes into a loss, whose other argument are labels.

This is the way of models that are called with one tensor. A loss is traced back to the call that its outputs come from:
by the tensor itself, or else by the graph that autograd keeps of how it was computed.
"""

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.witness.arrays import labels_of
from fedattack.witness.batches import TakenBatch
from fedattack.witness.current import current
from fedattack.witness.hooks import Hooks
from fedattack.witness.sample import Label
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.torch_open_call import OpenCall, come_back_to, find_computed, outputs_in
from fedattack.witness.watch import CallWatch

_LABELLED = {
    "cross_entropy": "cross-entropy",
    "nll_loss": "cross-entropy",
    "mse_loss": "mse",
    "binary_cross_entropy": None,
    "binary_cross_entropy_with_logits": None,
    "l1_loss": None,
    "smooth_l1_loss": None,
    "huber_loss": None,
    "multi_margin_loss": None,
}
"""Losses whose second argument are labels, and what fedattack calls them."""

_NODES = 64
"""Nodes of a graph that are looked at, from a loss back: between outputs and loss there are few."""

# What of PyTorch holds all rows of one matrix against all of another; a product of batches does so row by row.
_PAIRING = {"MmBackward0", "AddmmBackward0", "CdistBackward0", "EuclideanDistBackward0"}


def install(hooks: Hooks) -> None:
    """Watch all losses whose second argument are labels; modules such as ``CrossEntropyLoss`` call these, too."""
    for name in _LABELLED:
        _watch_loss(hooks, name)


class TensorCall(OpenCall):
    """The call of a model with one tensor of numbers, whose rows are examples.

    Parameters
    ----------
    rows
        (n, …): the examples.
    trains
        Whether a gradient may come back.
    """

    def __init__(self, model: SeenModel, places: Sequence[int] | None, rows: NDArray[Any], *, trains: bool) -> None:
        super().__init__(model, places)
        # Now, and not when the call ends: the model may write into its input.
        self._started = self.start(rows, trains=trains)

    def end_call(self, watch: CallWatch, output: Any) -> None:
        """Wait for a loss and for a gradient."""
        await_loss_and_gradient(watch, self.model, self._started, output)


@dataclass(frozen=True, eq=False, slots=True)
class AwaitedOutputs:
    """What a model returned, until a loss takes it; the graph is not kept alive by this.

    Attributes
    ----------
    model, batch
        Of which call.
    output
        What gives the outputs while they live.
    number
        That of the outputs' node in autograd's graph, which counts the nodes of each thread; -1 without one.
    """

    model: SeenModel
    batch: TakenBatch
    output: "weakref.ref[Tensor]"
    number: int


def await_loss_and_gradient(watch: CallWatch, model: SeenModel, batch: TakenBatch, output: Any) -> None:
    """Wait for a loss of what a model returned, and for a gradient that comes back through it."""
    tensor = outputs_in(output)
    shape = () if tensor is None else tensor.shape
    if tensor is None or not shape or shape[0] != batch.count:
        model.forget(batch)
        watch.read_steps(model)
        return
    model.classes = shape[1] if len(shape) > 1 else 1
    if batch.trains and tensor.requires_grad:
        node, come_back = tensor.grad_fn, come_back_to(model, batch)
        # A hook of the node that made the tensor, before it runs. A tensor's own hook takes twice the time.
        (tensor.register_hook if node is None else node.register_prehook)(come_back)
    if batch.trains and tensor is not output:
        for other in find_computed(output):
            if other is not tensor:
                other.register_hook(come_back_to(model, batch))
    await_loss(watch, model, batch, tensor)


def await_loss(watch: CallWatch, model: SeenModel, batch: TakenBatch, outputs: Tensor) -> None:
    """Wait for a loss of these outputs."""
    node = outputs.grad_fn
    number = -1 if node is None else node._sequence_nr()
    watch.local.recent.append(AwaitedOutputs(model, batch, weakref.ref(outputs), number))


def _watch_loss(hooks: Hooks, name: str) -> None:
    """Give a loss other code; it stays the same object, whoever holds it, so that it can be pickled.

    Projects have the function under names of their own (``from torch.nn.functional import cross_entropy``), which no
    replacement in the module would reach.
    """
    function = cast(FunctionType, getattr(nn.functional, name))
    # TorchScript compiles the source of what was wrapped, and looks up its names where the loss would.
    original = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    original.__kwdefaults__, original.__annotations__ = function.__kwdefaults__, function.__annotations__
    watched = f"_{name}_watched_by_fedattack"
    function.__globals__[watched] = _watch_loss_call(name, original)
    function.__wrapped__ = original  # type: ignore[attr-defined]
    # The code of `_calling`, which calls one global name; here that is another one, in the loss's own module.
    function.__code__ = _calling.__code__.replace(co_names=(watched,), co_name=name, co_qualname=name)
    hooks.add(functools.partial(_unwatch_loss, function, original, watched))


def _calling(*args: Any, **kwargs: Any) -> Any:
    """Be the code of a loss, whose global name takes the place of this one."""
    return _watch_loss_call(*args, **kwargs)


def _unwatch_loss(function: Any, original: FunctionType, watched: str) -> None:
    function.__code__ = original.__code__
    del function.__wrapped__, function.__globals__[watched]


def _watch_loss_call(name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiling, watch_of, note = torch.compiler.is_compiling, current, _note_loss

    def loss(*args: Any, **kwargs: Any) -> Tensor:
        result = original(*args, **kwargs)
        watch = None if compiling() else watch_of()
        if watch is not None:
            watch.guard("a loss", note, name, args, kwargs)
        return result

    return loss


def _note_loss(watch: CallWatch, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    outputs = args[0] if args else kwargs.get("input")
    target = args[1] if len(args) > 1 else kwargs.get("target")
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        return
    local = watch.local
    if local.open is not None:
        # The model computes its own loss.
        if local.call is not None:
            local.call.note_inner_loss(target)
        return
    awaited = _find_origin(watch, outputs)
    if awaited is None:
        return
    if local.reader is not None:
        # Where examples are held out, the loss was given the labels of others.
        target = local.reader.as_given(target)
    model, batch = awaited.model, awaited.batch
    if _lacks_labels(watch, awaited, name, outputs, target):
        model.forget(batch)
        return
    if batch.labels is None:
        batch.labels = _labels(name, target, batch.count)
        if batch.labels is None:
            watch.note(f"the labels of {name} are not one number for each example: they are unknown")
    if batch.trains:
        _name_loss(watch, model, name, outputs, is_labelled=batch.labels is not None)
        _note_options(watch, name, args, kwargs)


def _lacks_labels(watch: CallWatch, awaited: AwaitedOutputs, name: str, outputs: Tensor, target: Tensor) -> bool:
    """Say whether what a loss takes for targets are no labels of a batch's examples, which then are all of a step."""
    model, batch = awaited.model, awaited.batch
    if name not in model.losses and not model.are_compared and _are_compared(watch, outputs, target, batch.count):
        watch.note(
            f"{name} compares the outputs of {model.name} with each other, as contrastive losses do: its targets "
            "say which rows of a batch belong together, and are not labels"
        )
        watch.compared.add(model.kind)
    # A batch of sequences, say, of which the first axis is time.
    is_other = target.ndim > 0 and target.shape[0] != batch.count and not isinstance(batch.labels, Sequence)
    return model.are_compared or is_other


def _name_loss(watch: CallWatch, model: SeenModel, name: str, outputs: Tensor, *, is_labelled: bool) -> None:
    """Note by which loss a model is trained; one that takes labels stands before those that take other targets."""
    spec = _LABELLED[name]
    # This loss takes whatever it is given for logarithms: cross-entropy it is only after log_softmax.
    if name == "nll_loss" and name not in model.losses and not _is_log_softmax(outputs):
        spec = None
    if is_labelled and not model.takes_labels:
        model.losses = {name: spec, **model.losses}
        model.takes_labels = True
    model.losses.setdefault(name, spec)
    if len(model.losses) > 1:
        watch.note(f"the loss has several terms ({', '.join(model.losses)}); the first is noted")


def _note_options(watch: CallWatch, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Note what of a loss's options the noted one has not."""
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    if weight is not None or kwargs.get("label_smoothing"):
        watch.note(f"{name} weighs classes or smooths labels; the noted loss does neither")
    if kwargs.get("reduction", "mean") == "sum":
        watch.note(f"{name} is a sum over the batch; the noted loss is a mean")


def _find_origin(watch: CallWatch, outputs: Tensor) -> AwaitedOutputs | None:
    """Find the call that these outputs come from."""
    recent: deque[AwaitedOutputs] = watch.local.recent
    for awaited in reversed(recent):
        if awaited.output() is outputs:
            return awaited
    if outputs.grad_fn is None:
        # Without a graph only the call just before can have led here.
        last = recent[-1] if recent else None
        return last if last is not None and last.number < 0 and last.batch.count == len(outputs) else None
    # Something was computed of a model's outputs, such as a softmax: its graph leads back to them.
    numbers = {awaited.number: awaited for awaited in recent if awaited.number >= 0}
    for node in _walk(outputs.grad_fn):
        if node._sequence_nr() in numbers:
            return numbers[node._sequence_nr()]
    return None


def _walk(start: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, from the nearest one back."""
    waiting, seen = deque([start]), 0
    while waiting and seen < _NODES:
        node, seen = waiting.popleft(), seen + 1
        yield node
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)


def _are_compared(watch: CallWatch, outputs: Tensor, target: Tensor, count: int) -> bool:
    """Say whether a loss takes the outputs of one batch against each other: their products, or distances.

    Then a row of what it takes says something of pairs of examples. Rows of an image encoder against those of a text
    encoder may also be examples against classes: then the targets are others than the places in the batch.
    """
    if outputs.grad_fn is None or count < 2:
        return False
    awaited = {each.number: each for each in watch.local.recent if each.number >= 0 and each.batch.count == count}
    for node in _walk(outputs.grad_fn):
        # The outputs go into the loss as they are: products further back are the model's own layers.
        if node._sequence_nr() in awaited:
            return False
        if type(node).__name__ in _PAIRING:
            # Before the two factors of a product there may be what is added to it.
            factors = [parent for parent, _ in node.next_functions if parent is not None][-2:]
            models = [_find_called(factor, awaited) for factor in factors]
            if len(models) < 2 or not all(models):
                return False
            are_places = target.ndim != 1 or torch.equal(target.cpu(), torch.arange(len(target)).to(target.dtype))
            return bool(models[0] & models[1]) or are_places
    return False


def _find_called(start: Any, awaited: Mapping[int, AwaitedOutputs]) -> set[SeenModel]:
    """Return the models from whose outputs, by the number of their node, a graph comes."""
    numbers = [node._sequence_nr() for node in _walk(start)]
    return {awaited[number].model for number in numbers if number in awaited}


def _labels(name: str, target: Tensor, count: int) -> Sequence[Label] | None:
    if target.dtype == torch.int64 and target.ndim == 1 and len(target) == count:
        classes: list[int] = target.tolist()
        return classes
    values = target.detach().cpu()
    # NumPy has no such type.
    if values.dtype == torch.bfloat16:
        values = values.float()
    if name == "cross_entropy" and values.is_floating_point() and values.ndim == 2 and len(values) == count:
        # Shares of classes. Only where one class has all is that a label.
        one_hot = ((values == 0) | (values == 1)).all() and (values.sum(dim=1) == 1).all()
        if not bool(one_hot):
            return None
        values = values.argmax(dim=1)
    return labels_of(values.numpy(), count, classes=name.startswith("binary"))


def _is_log_softmax(outputs: Tensor) -> bool:
    """Say whether these are logarithms of probabilities; their cross-entropy is then what nll_loss gives."""
    with torch.no_grad():
        total = outputs.detach().double().logsumexp(dim=1)
    return bool(total.abs().max() < 1e-3)
