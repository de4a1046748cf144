"""Calls of PyTorch's models: which are of a model of its own, and which way finds out what it was called with.

There are three. Each notes a call where it begins and where it ends:

- :mod:`fedattack.witness.torch_losses`: one tensor, whose labels a loss of PyTorch shows;
- :mod:`fedattack.witness.torch_own_losses`: several tensors, of which the model itself may compute a loss;
- :mod:`fedattack.witness.torch_steps`: all that a step takes, where neither shows labels.

The third goes beside the first two until it is known whether it is needed.
"""

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedattack.witness import torch_models
from fedattack.witness.arrays import State, find_indices
from fedattack.witness.current import current
from fedattack.witness.hooks import Hooks
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.step import as_array, is_going_back
from fedattack.witness.torch_loaders import find_places
from fedattack.witness.torch_losses import TensorCall
from fedattack.witness.torch_open_call import OpenCall, outputs_in
from fedattack.witness.torch_own_losses import StructuredCall
from fedattack.witness.torch_steps import StepReader
from fedattack.witness.torch_wrappers import unwrap
from fedattack.witness.watch import CallWatch

_parameterless: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def install(hooks: Hooks) -> None:
    """Watch all calls of modules."""
    # PyTorch's own global hooks for this double the time of a call, in each layer, and see no keyword arguments.
    hooks.replace(nn.Module, "__call__", _watch_call(nn.Module.__call__))


def _watch_call(original: Callable[..., Any]) -> Callable[..., Any]:
    # Each layer of each model is called by this: names of a function are looked up faster than those of modules.
    compiling, watch_of = torch.compiler.is_compiling, current

    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # What compiles a model must see nothing of this.
        if compiling():
            return original(self, *args, **kwargs)
        watch = watch_of()
        # Layers of a model that is open are no models. Those of activations have neither parameters nor parts. What is
        # called while gradients go back is computed again, for a checkpoint.
        if watch is None or watch.local.open is not None or not (self._parameters or self._modules) or is_going_back():
            return original(self, *args, **kwargs)
        open_call: OpenCall | None = watch.guard("what a model was called with", _begin_call, self, args, kwargs)
        local = watch.local
        if local.open is None:
            return original(self, *args, **kwargs)
        reader: StepReader | None = local.reader
        if reader is not None:
            watch.guard("a step", reader.begin_call, self, args, kwargs)
            if watch.hold_out is not None:
                kept = watch.guard("what is held out", reader.hold_out, args, kwargs, open_call)
                args, kwargs = kept or (args, kwargs)
        try:
            output = original(self, *args, **kwargs)
        finally:
            local.open = local.call = None
            if reader is not None:
                reader.inside = False
        watch.guard("what a model returned", _note_output, self, args, kwargs, output)
        if reader is not None:
            watch.guard("a step", reader.end_call, self, output, open_call)
        if open_call is not None:
            watch.guard("what a model returned", open_call.end_call, output)
        return output

    return call


def _begin_call(watch: CallWatch, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpenCall | None:
    """Note what a model was called with; ``watch.local.open`` is then the model, unless it is no model of its own."""
    local = watch.local
    model = _open_model(watch, module)
    if model is None:
        return None
    StepReader.start(watch)
    if watch.by_steps and model.kind in watch.by_steps:
        return None
    places = find_places(watch, args, kwargs)
    x = args[0] if len(args) == 1 and not kwargs else _only_input(module, args, kwargs)
    # Whole numbers may be labels or tokens, and one number a row may be anything.
    if not isinstance(x, Tensor) or x.ndim < 2 or not x.is_floating_point():
        call = StructuredCall.of(watch, model, places, args, kwargs)
        local.call = call
        return call
    # Activations have a gradient, and so may inputs: for a penalty on it, or to be changed against the model.
    trains = torch.is_grad_enabled() and (not x.requires_grad or x.is_leaf)
    return TensorCall(model, places, as_array(x), trains=trains)


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


def _note_output(
    watch: CallWatch, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
) -> None:
    """Keep what a model returned for a while: a client may send it."""
    model = watch.models.get(id(module)) or watch.models.get(id(unwrap(module)))
    tensor = outputs_in(output)
    # Inside of a transform of functions a tensor stands for others, and is none once that ends.
    if model is not None and tensor is not None and tensor.ndim and not _is_wrapped(tensor):
        shape, read = tuple(tensor.shape), functools.partial(as_array, tensor.detach())
        x = None
        # What is predicted, and not trained on.
        if not tensor.requires_grad:
            x = _only_input(module, args, kwargs)
        if x is not None and x.is_floating_point() and x.ndim > 1 and len(x) == len(tensor):
            model.outputs.add(shape, read, tuple(x.shape), functools.partial(as_array, x.detach()))
        else:
            model.outputs.add(shape, read)


def _is_wrapped(tensor: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _open_model(watch: CallWatch, module: nn.Module) -> SeenModel | None:
    """Return the model that is called, of which ``watch.local.open`` then says that it is; ``None`` if it is none."""
    if torch.jit.is_tracing():
        return None
    model = watch.models.get(id(module))
    if model is None:
        if not _is_model(module):
            return None
        # What is called while its state is read is no call of the client's.
        watch.local.open = module
        model = _look_up(watch, unwrap(module))
    watch.local.open = module
    return model


def _is_model(module: nn.Module) -> bool:
    """Say whether what is called is a model of its own: it has parameters, and is no copy of another."""
    # DataParallel calls such copies in threads, each on a part of the batch that the model itself was called with.
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


def _make_model(watch: CallWatch, module: nn.Module) -> SeenModel:
    signature = (type(module), tuple((name, tuple(value.shape)) for name, value in _entries(module)))
    model = SeenModel(watch, module, type(module).__name__, signature)
    model.state = functools.partial(_state, module)
    model.describe = torch_models.describe
    model.learns = functools.partial(_find_learned, module)
    model.received = bool(watch.guard("which model the client received", _is_received, module))
    return model


def _is_received(watch: CallWatch, module: nn.Module) -> bool:
    arrays = [array for _, array in _state(module)]
    return any(find_indices(arrays, state) is not None for state in watch.received())


def _entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    # A module may keep anything in its state (``get_extra_state``).
    return [(name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor)]


def _state(module: nn.Module) -> State:
    return [(name, as_array(value)) for name, value in _entries(module)]


def _find_learned(module: nn.Module) -> set[str]:
    """Return what training changes: parameters with a gradient, and what batch norm follows."""
    learned = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            learned |= {f"{name}.{buffer}".removeprefix(".") for buffer, _ in layer.named_buffers()}
    return learned
