"""What PyTorch does, through its global hooks and through its losses.

Three things must come together until an example counts as trained on: a model that nobody else called took it, a
gradient came back through the model's output, and then an optimizer that holds the model's parameters made a step.
"""

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from fedattack.witness import torch_models
from fedattack.witness.sample import Label
from fedattack.witness.watch import Pass, SeenModel, State, Watch, current, labels_of, same

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

_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
_WRAPPERS |= {"GradSampleModule": "_module"}

_NODES = 64
_RECENT = 64

_undo: list[Callable[[], Any]] = []
_parameterless: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


class _Begun:
    """A forward pass of which the loss is awaited; it keeps no graph alive."""

    def __init__(self, begun: Pass, output: Tensor) -> None:
        self.begun = begun
        self.output = weakref.ref(output)
        self.number = _number(output.grad_fn)
        self.count = len(begun.hashes)


def install() -> None:
    """Put the hooks in, unless they are in."""
    if _undo:
        return
    _undo.append(_hook(hooks.register_module_forward_pre_hook, _before))
    _undo.append(_hook(hooks.register_module_forward_hook, _after, always_call=True))
    _undo.append(register_optimizer_step_post_hook(_stepped).remove)
    for name in _LABELLED:
        original = getattr(nn.functional, name)
        _replace(nn.functional, name, _watched_loss(name, original))
    for owner in (Optimizer, nn.Module):
        _replace(owner, "zero_grad", _watched_zero_grad(owner.zero_grad))
    _replace(nn.Module, "__init__", torch_models.noting(nn.Module.__init__))
    _replace_copies()


def remove() -> None:
    """Take the hooks out again."""
    while _undo:
        _undo.pop()()


def _hook(register: Callable[..., Any], function: Callable[..., None], **options: Any) -> Callable[[], Any]:
    try:
        handle = register(function, with_kwargs=True, **options)
    except TypeError:  # an older PyTorch, which does not show keyword arguments
        handle = register(function, **options)
    return cast(Callable[[], Any], handle.remove)


def _replace(owner: Any, name: str, new: Any) -> None:
    _undo.append(functools.partial(setattr, owner, name, getattr(owner, name)))
    setattr(owner, name, new)


def _replace_copies() -> None:
    """Put watched losses where modules have imported the losses by name."""
    import sys

    watched = {id(getattr(nn.functional, name).__wrapped__): getattr(nn.functional, name) for name in _LABELLED}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in ("torch", "fedattack"):
            continue
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if id(value) in watched:
                _replace(module, name, watched[id(value)])


def _before(module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> None:
    # What compiles a model must see nothing of this.
    if torch.compiler.is_compiling():
        return
    watch = current()
    if watch is None or getattr(watch.local, "open", None) is not None or module in _parameterless:
        return
    watch.guard("what a model was called with", _begin, module, args, kwargs or {})


def _begin(watch: Watch, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
    if getattr(module, "_is_replica", False) or torch.jit.is_tracing():
        return
    if next(module.parameters(), None) is None:
        _parameterless.add(module)
        return
    local = watch.local
    local.open, local.begun = module, None
    inner = _unwrapped(module)
    model = watch.model_of(inner, lambda: _seen_model(watch, inner))
    if model is None:
        return
    x = _only_input(watch, model, [*args, *kwargs.values()])
    if x is None:
        return
    trains = torch.is_grad_enabled() and not x.requires_grad
    # `next` alone would look at the first, which may be frozen.
    trains = trains and any(parameter.requires_grad for parameter in module.parameters())
    local.begun = model.start(_rows(x), seed=watch.seed, trains=trains)


def _after(module: nn.Module, args: Any, kwargs: Any, output: Any = None) -> None:
    if torch.compiler.is_compiling():
        return
    watch = current()
    if watch is None or getattr(watch.local, "open", None) is not module:
        return
    begun, watch.local.open, watch.local.begun = watch.local.begun, None, None
    if begun is not None:
        watch.guard("what a model returned", _returned, begun, output)


def _returned(watch: Watch, begun: Pass, output: Any) -> None:
    model, tensor = begun.model, _first_tensor(output)
    if tensor is None or tensor.ndim < 1 or len(tensor) != len(begun.hashes):
        if begun in model.pending:
            model.pending.remove(begun)
        watch.note(f"{model.name} does not return one output an example: this call of it was left out")
        return
    model.classes = int(tensor.shape[1]) if tensor.ndim > 1 else 1
    if tensor.requires_grad:
        # It returns nothing, so that the gradient stays as it is.
        tensor.register_hook(functools.partial(_differentiated, begun))
    recent: deque[_Begun] = getattr(watch.local, "recent", None) or deque(maxlen=_RECENT)
    watch.local.recent = recent
    recent.append(_Begun(begun, tensor))


def _differentiated(begun: Pass, gradient: Tensor) -> None:
    begun.differentiated = True


def _stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    watch = current()
    if watch is not None:
        watch.guard("a step of an optimizer", _step, optimizer)


def _step(watch: Watch, optimizer: Optimizer) -> None:
    watch.steps += 1
    for model in _holders(watch, _parameters_of(optimizer)):
        model.step()
        numbers = {_numbers(group) for group in optimizer.param_groups}
        for lr, momentum, decay in numbers:
            model.optimizers[(type(optimizer).__name__, lr, momentum, decay)] = None


def _watched_zero_grad(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch = current()
        if watch is not None and not torch.compiler.is_compiling():
            watch.guard("what became of gradients", _discard, self)

    return zero_grad


def _discard(watch: Watch, owner: Optimizer | nn.Module) -> None:
    parameters = _parameters_of(owner) if isinstance(owner, Optimizer) else {id(one) for one in owner.parameters()}
    for model in _holders(watch, parameters):
        model.discard()


def _holders(watch: Watch, parameters: set[int]) -> Iterator[SeenModel]:
    """Give the models with something open of which one of these is a parameter."""
    for model in watch.models.values():
        if not isinstance(model.model, nn.Module) or not model.pending:
            continue
        if any(id(parameter) in parameters for parameter in model.model.parameters()):
            yield model


def _parameters_of(optimizer: Optimizer) -> set[int]:
    found: set[int] = set()
    for group in optimizer.param_groups:
        found.update(map(id, group["params"]))
    return found


def _numbers(group: Mapping[str, Any]) -> tuple[float, float, float]:
    momentum = group.get("momentum", 0.0)
    return float(group.get("lr", 0.0)), float(momentum), float(group.get("weight_decay", 0.0))


def _watched_loss(name: str, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Tensor:
        result = original(*args, **kwargs)
        if not torch.compiler.is_compiling():
            watch = current()
            if watch is not None:
                watch.guard("a loss", _lost, name, args, kwargs)
        return result

    return loss


def _lost(watch: Watch, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    named = dict(zip(("input", "target"), args, strict=False)) | dict(kwargs)
    outputs, target = named.get("input"), named.get("target")
    if not isinstance(outputs, Tensor) or not isinstance(target, Tensor):
        return
    item = _origin(watch, outputs)
    if item is None:
        return
    begun, model = item.begun, item.begun.model
    if begun.labels is None:
        begun.labels = _labels(name, target, item.count)
        if begun.labels is None:
            watch.note(f"the labels of {name} are not one number an example: they are unknown")
    if not begun.trains:
        return
    spec = _LABELLED[name]
    if name == "nll_loss" and name not in model.losses and not _is_log_softmax(outputs):
        spec = None
    model.losses.setdefault(name, spec)
    if len(model.losses) > 1:
        watch.note(f"the loss has several terms ({', '.join(model.losses)}); the first is noted")
    if named.get("weight") is not None or named.get("label_smoothing"):
        watch.note(f"{name} weighs classes or smooths labels, which the noted loss does not")
    if named.get("reduction", "mean") == "sum":
        watch.note(f"{name} is a sum over the batch, and the noted loss is a mean")


def _origin(watch: Watch, outputs: Tensor) -> _Begun | None:
    """Find the forward pass that these outputs come from."""
    recent: deque[_Begun] = getattr(watch.local, "recent", None) or deque()
    for item in reversed(recent):
        if item.output() is outputs:
            return item
    if outputs.grad_fn is None:
        # Without a graph only the pass just before can have led here.
        last = recent[-1] if recent else None
        return last if last is not None and last.number is None and last.count == len(outputs) else None
    numbers = {item.number: item for item in recent if item.number is not None}
    waiting, seen = deque([outputs.grad_fn]), 0
    while waiting and seen < _NODES:
        node, seen = waiting.popleft(), seen + 1
        number = _number(node)
        if number in numbers:
            return numbers[number]
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
    return None


def _number(node: Any) -> int | None:
    """Return the number of a node of the graph, by which it is known without being held."""
    return None if node is None else int(node._sequence_nr())


def _labels(name: str, target: Tensor, count: int) -> Sequence[Label] | None:
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


def _seen_model(watch: Watch, module: nn.Module) -> SeenModel:
    signature = (type(module), tuple((name, tuple(value.shape)) for name, value in _entries(module)))
    model = SeenModel(module, type(module).__name__, signature, watch.keep)
    model.state = functools.partial(_state, module)
    model.describe = torch_models.describe
    own = [array for _, array in _state(module)]
    model.received = any(same(own, state) for state in watch.received())
    return model


def _entries(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in module.state_dict().items() if isinstance(value, Tensor)]


def _state(module: nn.Module) -> State:
    return [(name, _array(value)) for name, value in _entries(module)]


def _unwrapped(module: nn.Module) -> nn.Module:
    while type(module).__name__ in _WRAPPERS:
        inner = getattr(module, _WRAPPERS[type(module).__name__], None)
        if not isinstance(inner, nn.Module):
            break
        module = inner
    return module


def _only_input(watch: Watch, model: SeenModel, values: Sequence[Any]) -> Tensor | None:
    """Return the one tensor that a model was called with; anything else is noted, and not covered."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    others = [value for value in values if not isinstance(value, Tensor | int | float | str | None)]
    if len(tensors) != 1 or others:
        watch.note(f"{model.name} takes other inputs than one array, which is not covered: its examples are unknown")
        return None
    if tensors[0].ndim < 2:
        watch.note(f"{model.name} was called with a tensor of {tensors[0].ndim} axes: no examples in rows")
        return None
    return tensors[0]


def _rows(x: Tensor) -> NDArray[Any]:
    return _array(x)


def _array(x: Tensor) -> NDArray[Any]:
    values = x.detach().cpu()
    if values.dtype == torch.bfloat16:
        values = values.float()
    return np.ascontiguousarray(values.numpy())


def _first_tensor(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = [output["logits"]] if "logits" in output else [*output.values()]
    if isinstance(output, list | tuple):
        for value in output:
            if isinstance(value, Tensor) and value.ndim:
                return value
    return None
