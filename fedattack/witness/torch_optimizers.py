"""What became of gradients: a step of an optimizer applies them, and ``zero_grad`` throws them away."""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from fedattack.witness.current import current
from fedattack.witness.hooks import Hooks
from fedattack.witness.seen_model import SeenModel
from fedattack.witness.watch import CallWatch

MADE_PRIVATE = "_fedattack_private"
"""Attribute of an optimizer that a private one calls: what begins to note its steps in a call of a client."""

_USUAL: dict[str, tuple[Any, ...]] = {
    "dampening": (0,),
    "nesterov": (False,),
    "betas": ((0.9, 0.999), [0.9, 0.999]),
    "eps": (1e-8,),
    "amsgrad": (False,),
    "maximize": (False,),
}
"""Numbers of PyTorch's optimizers that are noted only where they are others."""


def install(hooks: Hooks) -> None:
    """Watch all optimizers, and what throws gradients away."""
    # PyTorch's own hook, for optimizers that are made before and after, and for those that override ``step``.
    hooks.add(register_optimizer_step_post_hook(_note_optimizer_step).remove)
    for owner in (Optimizer, nn.Module):
        hooks.replace(owner, "zero_grad", _watch_zero_grad(owner.zero_grad))


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
        # After the step, and before a scheduler's: with the rate that the step had.
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
    numbers = value if isinstance(value, tuple | list) else [value]
    return str(value) if all(isinstance(number, int | float) for number in numbers) else "another"


def _watch_zero_grad(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch = current()
        if watch is not None and not torch.compiler.is_compiling():
            # A copy: another thread of the client may call its first model meanwhile.
            for model in [*watch.models.values()]:
                if model.batches.are_open:
                    watch.guard("what became of gradients", _discard, self)
                    break

    return zero_grad


def _discard(watch: CallWatch, owner: Optimizer | nn.Module) -> None:
    private = watch.private_by.get(id(owner))
    # Opacus clears the gradients of each part of a batch, and keeps their sum.
    if private is not None and private.keeps_gradients():
        return
    for model in _find_moved(watch, owner):
        model.discard()


def _find_moved(watch: CallWatch, owner: Optimizer | nn.Module) -> Iterator[SeenModel]:
    """Give the models with something open of which a parameter is one of an optimizer's, or of another module's."""
    for model in watch.models.values():
        if not model.batches.are_open or not isinstance(model.model, nn.Module):
            continue
        # A step is made for every batch: what is known of its optimizer is not looked up again.
        known = model.moved_by.get(id(owner))
        # An optimizer may be gone, and another have its id.
        if known is None or known() is not owner:
            if not _parameters_of(owner) & _parameters_of(model.model):
                continue
            model.moved_by[id(owner)] = weakref.ref(owner)
        yield model


def _parameters_of(owner: Optimizer | nn.Module) -> set[int]:
    # By their ids: tensors compare by value, number by number.
    if isinstance(owner, nn.Module):
        return {id(parameter) for parameter in owner.parameters()}
    parameters: set[int] = set()
    for group in owner.param_groups:
        parameters.update(map(id, group["params"]))
    return parameters
