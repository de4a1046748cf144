"""What PyTorch does, through the calls of models, its losses and its optimizers.

Three things must come together until an example counts as trained on: a model that nobody else called took it, a
gradient came back through the model's output, and then an optimizer that holds the model's parameters made a step.
"""

import functools
import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fedattack.base.errors import ModelError
from fedattack.base.structured import LABELS, SEPARATOR, fields, pack, places, without
from fedattack.learning.returned import loss_in, output_in, tensors_in
from fedattack.witness import torch_models
from fedattack.witness.sample import Label, hash_rows
from fedattack.witness.step import MET, Reader, Step, as_array, count_examples, is_going_back, tensors_of
from fedattack.witness.watch import (
    CallWatch,
    DrawnBatch,
    Pass,
    SeenModel,
    State,
    current,
    labels_of,
    places_in,
)

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

_USUAL: dict[str, tuple[Any, ...]] = {
    "dampening": (0,),
    "nesterov": (False,),
    "betas": ((0.9, 0.999), [0.9, 0.999]),
    "eps": (1e-8,),
    "amsgrad": (False,),
    "maximize": (False,),
}
"""Numbers of PyTorch's optimizers that are noted only where they are others."""

_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
# Opacus has one for each way to take gradients of examples.
_PRIVATE = "AbstractGradSampleModule"
_WRAPPERS |= {_PRIVATE: "_module"}

MADE_PRIVATE = "_fedattack_private"
"""Attribute of an optimizer that a private one calls: what begins to note its steps in a call of a client."""

_OWN = "own"

_NODES = 64

# What of PyTorch holds all rows of one matrix against all of another; a product of batches does so row by row.
_PAIRING = {"MmBackward0", "AddmmBackward0", "CdistBackward0", "EuclideanDistBackward0"}

_CALLS = 8

_AHEAD = "_fedattack_ahead"

_LARGEST = 2**40

# Whole numbers below this may be classes.
_CLASSES = 10_000

_undo: list[Callable[[], Any]] = []
_parameterless: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


@dataclass
class _Taken:
    """What a model was called with besides one array, until it is known which part of that are labels."""

    model: SeenModel
    rows: NDArray[Any]
    trains: bool
    # Where in memory each input begins, by which a loss inside of the model shows what the labels are.
    memory: dict[int, str]
    labels: str | None = None
    # What it became.
    begun: Pass | None = None
    held_out: NDArray[np.bool_] | None = None
    places: Sequence[int] | None = None

    def begin(self, begun: Pass) -> None:
        """Note what it became."""
        self.begun = begun
        begun.held_out, begun.places = self.held_out, self.places


_Begun = tuple[SeenModel, Pass | _Taken | None]
"""The call of a model, and what was noted of it."""


def install() -> None:
    """Put the hooks in, unless they are in."""
    if _undo:
        return
    _undo.append(register_optimizer_step_post_hook(_note_optimizer_step).remove)
    for name in _LABELLED:
        _watch_loss(name)
    # PyTorch's own global hooks for this double the time of a call, in each layer, and see no keyword arguments.
    _replace(nn.Module, "__call__", _watch_call(nn.Module.__call__))
    for owner in (Optimizer, nn.Module):
        _replace(owner, "zero_grad", _watch_zero_grad(owner.zero_grad))
    _replace(_BaseDataLoaderIter, "_next_index", _watch_index(_BaseDataLoaderIter._next_index))
    _replace(_BaseDataLoaderIter, "__next__", _watch_next(_BaseDataLoaderIter.__next__))
    _replace(nn.Module, "__init__", torch_models.noting(nn.Module.__init__))


def remove() -> None:
    """Take the hooks out again."""
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, new: Any) -> None:
    _undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
    setattr(owner, name, new)


def _watch_call(original: Callable[..., Any]) -> Callable[..., Any]:
    compiling, watch_of = torch.compiler.is_compiling, current

    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # What compiles a model must see nothing of this.
        if compiling():
            return original(self, *args, **kwargs)
        watch = watch_of()
        if watch is None or watch.local.open is not None or not (self._parameters or self._modules) or is_going_back():
            return original(self, *args, **kwargs)
        begun = watch.guard("what a model was called with", _begin, self, args, kwargs)
        local = watch.local
        if local.open is None:
            return original(self, *args, **kwargs)
        reader: StepReader | None = local.reader
        if reader is not None:
            watch.guard("a step", reader.begin_call, self, args, kwargs)
            if watch.hold_out is not None:
                args, kwargs = watch.guard("what is held out", reader.hold_out, args, kwargs, begun) or (args, kwargs)
        try:
            output = original(self, *args, **kwargs)
        finally:
            local.open = local.taken = None
            if reader is not None:
                reader.inside = False
        watch.guard("what a model returned", _note_output, self, output)
        if reader is not None:
            watch.guard("a step", reader.end_call, self, output, begun)
        if begun is not None:
            watch.guard("what a model returned", _note_returned if type(begun) is Pass else _settle, begun, output)
        return output

    return call


def _begin(watch: CallWatch, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Pass | _Taken | None:
    """Note what a model was called with; ``watch.local.open`` is then the model, unless it is no model of its own."""
    local = watch.local
    model = _open_model(watch, module)
    if model is None:
        return None
    _start_reader(watch)
    if watch.by_steps and model.kind in watch.by_steps:
        return None
    places = _find_places(watch, args, kwargs)
    x = args[0] if len(args) == 1 and not kwargs else _only_input(module, args, kwargs)
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        taken = local.taken = _take_tensors(watch, model, args, kwargs)
        if taken is not None:
            taken.places = places
        return taken
    # Activations have a gradient, and so may inputs: for a penalty on it, or to be changed against the model.
    trains = torch.is_grad_enabled() and (not x.requires_grad or x.is_leaf)
    begun = model.start(as_array(x), trains=trains)
    begun.places = places
    return begun


def _open_model(watch: CallWatch, module: nn.Module) -> SeenModel | None:
    """Return the model that is called, of which ``watch.local.open`` then says that it is; ``None`` if it is none."""
    if torch.jit.is_tracing():
        return None
    model = watch.models.get(id(module))
    if model is None:
        if not _is_model(module):
            return None
        watch.local.open = module
        model = _look_up(watch, unwrap(module))
    watch.local.open = module
    return model


def _start_reader(watch: CallWatch) -> None:
    """Read steps where that is needed; of the first step it is not known yet whether its labels will be seen."""
    local = watch.local
    if local.reader is None and (watch.by_steps or watch.hold_out is not None or not local.has_read):
        local.reader, local.has_read = StepReader(watch), True


def _is_model(module: nn.Module) -> bool:
    """Say whether what is called is a model of its own: it has parameters, and is no copy of another."""
    if module in _parameterless or getattr(module, "_is_replica", False):
        return False
    if next(module.parameters(), None) is None:
        _parameterless.add(module)
        return False
    return True


def _look_up(watch: CallWatch, module: nn.Module) -> SeenModel | None:
    """Return what was seen of a model, which may be called in what wraps it; ``None`` if there are too many."""
    known = watch.models.get(id(module))
    return watch.model_of(module, lambda: _make_model(watch, module)) if known is None else known


def _watch_index(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        index = original(self)
        if current() is not None:
            # Workers are given indices ahead, and batches come in their order.
            self.__dict__.setdefault(_AHEAD, deque()).append((self._sampler_iter, index))
        return index

    return next_index


def _watch_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        batch = original(self)
        watch, ahead = current(), self.__dict__.get(_AHEAD, ())
        # Of a pass that was left early nothing comes any more.
        while ahead and ahead[0][0] is not self._sampler_iter:
            ahead.popleft()
        if watch is not None and ahead:
            watch.guard("what a loader gave", _note_batch, self, *ahead.popleft(), batch)
        return batch

    return next_batch


def _note_batch(watch: CallWatch, loader: Any, turn: Any, index: Any, batch: Any) -> None:
    """Note where in its dataset a loader took a batch from."""
    dataset, local = loader._dataset, watch.local
    count = len(index) if hasattr(index, "__len__") else 1
    local.drawn.append(DrawnBatch(next(local.batches), dataset, loader._index_sampler, turn, count))
    if not isinstance(index, list) or not all(isinstance(one, int) and one >= 0 for one in index):
        return
    number = next((number for number, known in enumerate(watch.datasets) if known is dataset), len(watch.datasets))
    if number == len(watch.datasets):
        watch.datasets.append(dataset)
    tensors = tensors_of(dict(batch) if isinstance(batch, Mapping) else batch)
    local.loaded.append(([number * _LARGEST + one for one in index], tensors))


def _find_places(watch: CallWatch, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[int] | None:
    """Return where in a dataset the examples of a call stand, if they are as a loader gave them."""
    given = next((one for one in tensors_of((args, kwargs)) if one.ndim), None)
    if given is None:
        return None
    copied: Tensor | None = None
    for found, tensors in watch.local.loaded:
        if len(given) != len(found):
            continue
        for one in tensors:
            if one.data_ptr() == given.data_ptr():
                return found
            if one.device != given.device:
                copied = given.cpu() if copied is None else copied
                if torch.equal(one, copied):
                    return found
    return None


class StepReader(Reader):
    """Reads the steps of one thread whose models have labels that no loss shows, and notes their examples.

    It lies beneath all modes that the app itself has switched on, which come and go in their own order.
    """

    def __init__(self, watch: CallWatch) -> None:
        super().__init__()
        self._watch = watch
        # The calls of each micro-batch of the step that is under way.
        self._open: dict[Step, list[_Begun]] = {}
        self._is_needed = True
        self._is_private = False
        self.put_beneath()

    def begin_call(self, watch: CallWatch, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what a model is called with."""
        if not self._is_needed and not watch.by_steps and watch.hold_out is None:
            self.remove()
            watch.local.reader = None
            return
        before = self.step
        if before is not None and (not self.goes_on(module) or sum(map(len, self._open.values())) >= _CALLS):
            self._take_evaluated()
        self.inside = True
        # Its optimizer may be of an earlier call, and be seen with its first step alone.
        self._is_private = any(kind.__name__ == _PRIVATE for kind in type(module).__mro__)
        step = self.begin(module, args, kwargs)
        if step is not None and len(step.calls) == 1:
            step.places = _find_places(watch, args, kwargs)

    def hold_out(
        self, watch: CallWatch, args: tuple[Any, ...], kwargs: dict[str, Any], begun: Pass | _Taken | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Put others into the place of the examples that are held out; ``None`` where all stay."""
        step = self.step
        if step is None or watch.hold_out is None or not step.trains or not all(step.modes.values()):
            return None
        if watch.private_by or self._is_private:
            watch.note("nothing is held out of DP-SGD: an example that takes the place of another would count twice")
            return None
        if len(step.calls) == 1:
            chosen = watch.hold_out.choose(hash_rows(step.rows(), watch.seed))
            step.take_out(chosen)
            if step.count == 1 and chosen.all():
                watch.note("batches of one example are trained on as they are: nothing of them is held out")
        if step.held_out is None:
            return None
        watch.note_held_out()
        if begun is not None:
            begun.held_out = step.held_out
        return step.replace_leaves(args, kwargs)

    def end_call(self, watch: CallWatch, module: nn.Module, output: Any, begun: Any) -> None:
        """Note what it returned, and wait for a gradient."""
        model = watch.models.get(id(unwrap(module)))
        if self.step is None or model is None:
            return
        step = self.step
        calls = self._open.setdefault(step, [])
        calls.append((model, begun))
        self.note_returned(module, output)
        if step.trains:
            for tensor in tensors_of(output):
                if tensor.grad_fn is not None:
                    tensor.register_hook(lambda gradient: watch.guard("a step", self._take_trained, step, calls))

    def _take_trained(self, watch: CallWatch, step: Step, calls: list[_Begun]) -> None:
        """Note the examples of a step, once a gradient has come back, unless their labels are known."""
        begun = [*calls]
        calls.clear()
        if not begun:
            if step.taken is not None:
                step.taken.come_back(None)
            return
        self._open.pop(step, None)
        if step is self.step:
            self.end()
        if any(_has_labels(one) for _, one in begun):
            self._is_needed = False
            return
        model = begun[0][0]
        rows = step.rows()
        if not model.stepwise:
            model.take_steps()
        watch.by_steps[model.kind] = fields(rows)
        one = step.taken = model.start(rows, trains=True)
        one.labels, one.differentiated, one.held_out = _labels_in(rows, model), True, step.held_out
        one.places = step.places

    def _take_evaluated(self) -> None:
        """Note what was only evaluated, as far as it is like what is trained."""
        self.end()
        opened, self._open = self._open, {}
        for step, begun in opened.items():
            self._take_evaluated_batch(step, begun)

    def _take_evaluated_batch(self, step: Step, begun: Sequence[_Begun]) -> None:
        model = next((model for model, _ in begun if model.kind in self._watch.by_steps), None)
        if model is None:
            return
        rows, wanted = step.rows(), self._watch.by_steps[model.kind]
        if not wanted:
            self._watch.note(f"{model.name} was called, and no step of its training was read: not covered")
            return
        if {*wanted} <= {*fields(rows)}:
            if not model.stepwise:
                model.take_steps()
            one = model.start(pack({place: rows[place] for place in wanted}), trains=False)
            one.labels = _labels_in(rows, model)

    def end_reading(self) -> None:
        """Stop, and note what is under way."""
        self.remove()
        self._take_evaluated()


def _labels_in(rows: NDArray[Any], model: SeenModel) -> list[int]:
    """Return which class each example of a step is of, if one part of it alone can say so; else all are of class 0."""
    if model.are_compared:
        return [0] * len(rows)
    found = []
    for name in fields(rows):
        if rows[name].ndim == 1 and rows[name].dtype.kind in "iu" and (_is_label(name) or name.startswith(MET)):
            found.append(rows[name].astype(np.int64))
    if len(found) != 1 or found[0].min() < 0 or found[0].max() >= _CLASSES:
        return [0] * len(rows)
    labels: list[int] = found[0].tolist()
    return labels


def _has_labels(begun: Pass | _Taken | None) -> bool:
    """Say whether a call's labels were seen; who tells a loss of its own needs none."""
    one = begun.begun if isinstance(begun, _Taken) else begun
    return one is not None and one.labels is not None


def _settle(watch: CallWatch, taken: _Taken, output: Any) -> None:
    """Begin a pass as soon as it is known what of it are labels, and whether the model's loss has a name."""
    model, loss, tensor = taken.model, loss_in(output), _outputs_in(output)
    if tensor is not None and not tensor.ndim:
        tensor = None
    place = taken.labels or next((place for place in fields(taken.rows) if _is_label(place)), None)
    inputs = _as_one_array(model, without(taken.rows, place))
    values = None if place is None else taken.rows[place]
    if loss is None:
        # Without labels an example has no loss of the model's own.
        begun = model.start(inputs, trains=taken.trains, keep=model.own_loss != _OWN)
        taken.begin(begun)
        _note_returned(watch, begun, output)
        return
    if model.own_loss is None:
        model.own_loss = _recognise_loss(model, place, values, tensor, loss) or _OWN
    rows = taken.rows if model.own_loss == _OWN else inputs
    begun = model.start(rows, trains=taken.trains, inputs=inputs)
    taken.begin(begun)
    _note_labels(begun, values, tensor, len(rows))
    if begun.trains:
        _await_gradients(watch, begun, output, loss)
    if tensor is not None:
        _await_loss(watch, begun, tensor, tensor.grad_fn)


def _note_labels(begun: Pass, values: NDArray[Any] | None, outputs: Tensor | None, count: int) -> None:
    """Note the labels of so many examples, and how many classes there are."""
    known = None
    begun.model.classes = 1
    if values is not None:
        known = labels_of(values, count)
        if values.ndim == 1 and outputs is not None and outputs.ndim == 2:
            begun.model.classes = int(outputs.shape[1])
    # Labels that are not one number an example, such as those of tokens, are a part of it.
    begun.labels = known or [0] * count


def _await_gradients(watch: CallWatch, begun: Pass, output: Any, loss: Tensor) -> None:
    """See whether a gradient comes back through anything that a model with a loss of its own returned."""
    model = begun.model

    def come_back(gradient: Tensor) -> None:
        # What comes back through the loss comes to it first.
        if not begun.differentiated:
            watch.note(
                f"the client trains by what it computes of the outputs of {model.name}; its loss is taken for the one "
                "that the model returns itself"
            )
        begun.come_back(gradient)

    for tensor in _find_computed(output):
        tensor.register_hook(begun.come_back if tensor is loss else come_back)
        model.losses.setdefault("loss of the model itself", model.own_loss)


def _find_computed(output: Any) -> Iterator[Tensor]:
    """Give the tensors among what a model returned that a gradient may come back through; no parameters."""
    for tensor in tensors_in(output):
        if tensor.grad_fn is not None:
            yield tensor


def _as_one_array(model: SeenModel, inputs: NDArray[Any]) -> NDArray[Any]:
    """Take what a model was called with by name as what it is called with by position, if it is one array of numbers.

    A client may train by names, and evaluate by position.
    """
    names = fields(inputs)
    if len(names) != 1 or inputs.dtype[names[0]].base.kind != "f" or not inputs.dtype[names[0]].shape:
        return inputs
    first = [*inspect.signature(cast(nn.Module, model.model).forward).parameters][:1]
    return np.ascontiguousarray(inputs[names[0]]) if [*names] == first else inputs


def _is_label(place: str) -> bool:
    return place.split(SEPARATOR)[-1] in LABELS


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
        own = None
        if (
            values.dtype.kind in "iu"
            and scores.ndim == 2
            and 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]
        ):
            spec, own = "cross-entropy", torch.logsumexp(scores, 1) - scores.gather(1, labels.long()[:, None])[:, 0]
        elif values.dtype.kind == "f" and scores.numel() == len(values):
            spec, own = "mse", (scores.reshape(-1) - labels).square()
        if own is None or not torch.isclose(own.mean(), loss.detach().double().cpu(), rtol=1e-3, atol=1e-6):
            return None
    return spec


def _is_wrapped(tensor: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _note_output(watch: CallWatch, module: nn.Module, output: Any) -> None:
    """Keep what a model returned for a while: a client may send it."""
    model = watch.models.get(id(module)) or watch.models.get(id(unwrap(module)))
    tensor = output if type(output) is Tensor else _outputs_in(output)
    # Inside of a transform of functions a tensor stands for others, and is none once that ends.
    if model is not None and tensor is not None and tensor.ndim and not _is_wrapped(tensor):
        model.note_output(tuple(tensor.shape), functools.partial(as_array, tensor.detach()))


def _note_returned(watch: CallWatch, begun: Pass, output: Any) -> None:
    model, tensor = begun.model, output if type(output) is Tensor else _outputs_in(output)
    shape = () if tensor is None else tensor.shape
    if tensor is None or not shape or shape[0] != begun.count:
        if begun in model.pending:
            model.pending.remove(begun)
        watch.read_steps(model)
        return
    model.classes = shape[1] if len(shape) > 1 else 1
    node = tensor.grad_fn
    if begun.trains and tensor.requires_grad:
        # It returns nothing, so that the gradient stays as it is. A tensor's own hook takes twice the time.
        (tensor.register_hook if node is None else node.register_prehook)(begun.come_back)
    if begun.trains and tensor is not output:
        for other in _find_computed(output):
            if other is not tensor:
                other.register_hook(begun.come_back)
    _await_loss(watch, begun, tensor, node)


def _await_loss(watch: CallWatch, begun: Pass, output: Tensor, node: Any) -> None:
    """Remember what a model returned, without keeping the graph alive."""
    begun.output = weakref.ref(output)
    begun.number = -1 if node is None else node._sequence_nr()
    watch.local.recent.append(begun)


def _note_optimizer_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    watch = current()
    if watch is not None:
        watch.guard("a step of an optimizer", _step, optimizer)


def _step(watch: CallWatch, optimizer: Optimizer) -> None:
    watch.steps += 1
    private = watch.private_by.get(id(optimizer))
    if private is None and MADE_PRIVATE in vars(optimizer):
        # It was made in an earlier call.
        private = vars(optimizer)[MADE_PRIVATE]()
    if private is not None:
        watch.private_by[id(optimizer)] = private
        watch.guard("a private step", lambda _: private.note_step(watch.local.drawn))
    name = type(optimizer).__name__ if private is None else f"private {type(optimizer).__name__}"
    for model in _find_moved(watch, optimizer):
        model.step()
        if private is not None:
            model.private[id(optimizer)] = private
        for group in optimizer.param_groups:
            lr, momentum, decay = group.get("lr", 0.0), group.get("momentum", 0.0), group.get("weight_decay", 0.0)
            unusual = []
            for key, usual in _USUAL.items():
                if key in group and group[key] not in usual:
                    unusual.append(f"{key}={_in_numbers(group[key])}")
            described = f"{name} of {', '.join(unusual)}" if unusual else name
            model.optimizers[(described, float(lr), float(momentum), float(decay))] = None


def _in_numbers(value: object) -> str:
    """Tell a setting of an optimizer if it is a number, or a pair of them."""
    parts = value if isinstance(value, tuple | list) else [value]
    return str(value) if all(isinstance(part, int | float) for part in parts) else "another"


def _watch_zero_grad(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch = current()
        if watch is not None and not torch.compiler.is_compiling():
            # A copy: another thread of the client may call its first model meanwhile.
            for model in [*watch.models.values()]:
                if model.pending or model.waiting.sizes:
                    watch.guard("what became of gradients", _discard, self)
                    break

    return zero_grad


def _discard(watch: CallWatch, owner: Optimizer | nn.Module) -> None:
    private = watch.private_by.get(id(owner))
    if private is not None and private.keeps_gradients():
        return
    for model in _find_moved(watch, owner):
        model.discard()


def _find_moved(watch: CallWatch, owner: Optimizer | nn.Module) -> Iterator[SeenModel]:
    """Give the models with something open of which a parameter is one of an optimizer's, or of another module's."""
    for model in watch.models.values():
        if not (model.pending or model.waiting.sizes) or not isinstance(model.model, nn.Module):
            continue
        # A step is made for every batch: what is known of its optimizer is not looked up again.
        known = model.moved_by.get(id(owner))
        if known is None or known() is not owner:
            if not _parameters_of(owner) & _parameters_of(model.model):
                continue
            model.moved_by[id(owner)] = weakref.ref(owner)
        yield model


def _parameters_of(owner: Optimizer | nn.Module) -> set[int]:
    if isinstance(owner, nn.Module):
        return {id(parameter) for parameter in owner.parameters()}
    found: set[int] = set()
    for group in owner.param_groups:
        found.update(map(id, group["params"]))
    return found


def _watch_loss(name: str) -> None:
    """Give a loss other code; it stays the same object, whoever holds it, so that it can be pickled."""
    function = cast(FunctionType, getattr(nn.functional, name))
    # TorchScript compiles the source of what was wrapped, and looks up its names where the loss would.
    original = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    original.__kwdefaults__, original.__annotations__ = function.__kwdefaults__, function.__annotations__
    watched = f"_{name}_watched_by_fedattack"
    function.__globals__[watched] = _watch_loss_call(name, original)
    function.__wrapped__ = original  # type: ignore[attr-defined]
    function.__code__ = _calling.__code__.replace(co_names=(watched,), co_name=name, co_qualname=name)
    _undo.append(functools.partial(_unwatch_loss, function, original, watched))


def _calling(*args: Any, **kwargs: Any) -> Any:
    """Be the code of a loss, whose global name takes the place of this one."""
    return _watch_loss_call(*args, **kwargs)


def _unwatch_loss(function: Any, original: FunctionType, watched: str) -> None:
    function.__code__ = original.__code__
    del function.__wrapped__, function.__globals__[watched]


def _watch_loss_call(name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiling, watch_of, lost = torch.compiler.is_compiling, current, _note_loss

    def loss(*args: Any, **kwargs: Any) -> Tensor:
        result = original(*args, **kwargs)
        watch = None if compiling() else watch_of()
        if watch is not None:
            watch.guard("a loss", lost, name, args, kwargs)
        return result

    return loss


def _note_loss(watch: CallWatch, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    outputs = args[0] if args else kwargs.get("input")
    target = args[1] if len(args) > 1 else kwargs.get("target")
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        return
    if watch.local.open is not None:
        _note_inner_loss(watch.local.taken, target)
        return
    begun = _origin(watch, outputs)
    if begun is None:
        return
    if watch.local.reader is not None:
        target = watch.local.reader.as_given(target)
    model = begun.model
    if _lacks_labels(watch, begun, name, outputs, target):
        if begun in model.pending:
            model.pending.remove(begun)
        return
    if begun.labels is None:
        begun.labels = _labels(name, target, begun.count)
        if begun.labels is None:
            watch.note(f"the labels of {name} are not one number an example: they are unknown")
    if begun.trains:
        _name_loss(watch, model, name, outputs)
        _note_options(watch, name, args, kwargs)


def _lacks_labels(watch: CallWatch, begun: Pass, name: str, outputs: Tensor, target: Tensor) -> bool:
    """Say whether what a loss takes for targets are no labels of a pass's examples, which then are all of a step."""
    model = begun.model
    if name not in model.losses and not model.are_compared and _are_compared(watch, outputs, target, begun.count):
        watch.note(
            f"{name} compares the outputs of {model.name} with each other, as contrastive losses do: its targets say "
            "which rows of a batch belong together, and are no labels"
        )
        watch.compared.add(model.kind)
    # A batch of sequences, say, of which the first axis is time.
    is_other = target.ndim > 0 and target.shape[0] != begun.count and not isinstance(begun.labels, Sequence)
    return model.are_compared or is_other


def _name_loss(watch: CallWatch, model: SeenModel, name: str, outputs: Tensor) -> None:
    """Note by which loss a model is trained."""
    spec = _LABELLED[name]
    if name == "nll_loss" and name not in model.losses and not _is_log_softmax(outputs):
        spec = None
    model.losses.setdefault(name, spec)
    if len(model.losses) > 1:
        watch.note(f"the loss has several terms ({', '.join(model.losses)}); the first is noted")


def _note_inner_loss(taken: _Taken | None, target: Tensor) -> None:
    """Note which input of a model are the labels, by a loss that it computes itself."""
    if taken is not None:
        taken.labels = taken.memory.get(target.untyped_storage().data_ptr(), taken.labels)


def _note_options(watch: CallWatch, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Note what of a loss's options the noted one has not."""
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    if weight is not None or kwargs.get("label_smoothing"):
        watch.note(f"{name} weighs classes or smooths labels, which the noted loss does not")
    if kwargs.get("reduction", "mean") == "sum":
        watch.note(f"{name} is a sum over the batch, and the noted loss is a mean")


def _origin(watch: CallWatch, outputs: Tensor) -> Pass | None:
    """Find the forward pass that these outputs come from."""
    recent: deque[Pass] = watch.local.recent
    for begun in reversed(recent):
        if begun.output() is outputs:
            return begun
    if outputs.grad_fn is None:
        # Without a graph only the pass just before can have led here.
        last = recent[-1] if recent else None
        return last if last is not None and last.number < 0 and last.count == len(outputs) else None
    numbers = {begun.number: begun for begun in recent if begun.number >= 0}
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
    passes = {begun.number: begun for begun in watch.local.recent if begun.number >= 0 and begun.count == count}
    for node in _walk(outputs.grad_fn):
        if node._sequence_nr() in passes:
            return False
        if type(node).__name__ in _PAIRING:
            # Before the two factors of a product there may be what is added to it.
            factors = [parent for parent, _ in node.next_functions if parent is not None][-2:]
            models = [_find_called(factor, passes) for factor in factors]
            if len(models) < 2 or not all(models):
                return False
            are_places = target.ndim != 1 or torch.equal(target.cpu(), torch.arange(len(target)).to(target.dtype))
            return bool(models[0] & models[1]) or are_places
    return False


def _find_called(start: Any, passes: Mapping[int, Pass]) -> set[SeenModel]:
    """Return the models from whose passes, by the number of their node, a graph comes."""
    numbers = [node._sequence_nr() for node in _walk(start)]
    return {passes[number].model for number in numbers if number in passes}


def _labels(name: str, target: Tensor, count: int) -> Sequence[Label] | None:
    if target.dtype == torch.int64 and target.ndim == 1 and len(target) == count:
        classes: list[int] = target.tolist()
        return classes
    values = target.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    if name == "cross_entropy" and values.is_floating_point() and values.ndim == 2 and len(values) == count:
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


def _make_model(watch: CallWatch, module: nn.Module) -> SeenModel:
    signature = (type(module), tuple((name, tuple(value.shape)) for name, value in _entries(module)))
    model = SeenModel(watch, module, type(module).__name__, signature)
    model.state = functools.partial(_state, module)
    model.describe = torch_models.describe
    model.learns = functools.partial(_find_learned, module)
    model.received = bool(watch.guard("which model the client received", _is_received, module))
    return model


def _is_received(watch: CallWatch, module: nn.Module) -> bool:
    own = [array for _, array in _state(module)]
    return any(places_in(own, state) is not None for state in watch.received())


def _entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor)]


def _state(module: nn.Module) -> State:
    return [(name, as_array(value)) for name, value in _entries(module)]


def _find_learned(module: nn.Module) -> set[str]:
    """Return what training changes: parameters with a gradient, and what batch norm follows."""
    learned = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            learned |= {f"{name}.{buffer}".removeprefix(".") for buffer, _ in part.named_buffers()}
    return learned


def unwrap(module: nn.Module) -> nn.Module:
    """Return the model in what compiles it, spreads it, or takes its gradients example by example."""
    while True:
        names = [_WRAPPERS[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS]
        inner = getattr(module, names[0], None) if names else None
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _only_input(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the one tensor that a model was called with first, if that is all."""
    values = [*args, *kwargs.values()]
    tensors = [value for value in values if isinstance(value, Tensor)]
    others = [value for value in values if not isinstance(value, Tensor | int | float | str | None)]
    if len(tensors) != 1 or others:
        return None
    named = [name for name, value in kwargs.items() if value is tensors[0]]
    if named and (args or named != [*inspect.signature(module.forward).parameters][:1]):
        return None
    return tensors[0]


def _take_tensors(watch: CallWatch, model: SeenModel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Taken | None:
    """Return all tensors that a model was called with; what is no batch of examples is noted, and not covered."""
    given = places(args, kwargs)
    # Numbers and switches are the same for all examples, such as how many tokens there are in all batches of a step.
    tensors = {place: value for place, value in given.items() if isinstance(value, Tensor) and value.ndim}
    if any(value.is_complex() for value in tensors.values()):
        watch.note(f"{model.name} was called with complex numbers: not covered, its examples are unknown")
        return None
    plain = all(isinstance(value, Tensor | int | float | str) for value in given.values())
    if not plain or not _are_rows(list(tensors.values()), count_examples(args, kwargs)):
        watch.read_steps(model)
        return None
    rows = pack({place: as_array(value) for place, value in tensors.items()})
    leaves = [value for value in tensors.values() if value.requires_grad and not value.is_leaf]
    # What comes first is no label: who predicts the input itself has none.
    later = [*tensors.items()][1:]
    memory = {value.untyped_storage().data_ptr(): place for place, value in later}
    return _Taken(model, rows, torch.is_grad_enabled() and not leaves, memory)


def _are_rows(tensors: Sequence[Tensor], count: int) -> bool:
    """Say whether tensors have one row an example each, and are not one number an example alone."""
    return {len(value) for value in tensors} == {count} and [value.ndim for value in tensors] != [1]


def _outputs_in(returned: Any) -> Tensor | None:
    try:
        return output_in(returned)
    except ModelError:
        return None
