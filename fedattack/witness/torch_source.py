"""What PyTorch does, through the calls of models, its losses, its loaders and its optimizers.

Three things must come together until an example counts as trained on: a model that nobody else called took it, a
gradient came back through the model's output, and then an optimizer that holds the model's parameters made a step.
"""

from torch import nn

from fedattack.witness import torch_calls, torch_loaders, torch_losses, torch_models, torch_optimizers
from fedattack.witness.hooks import Hooks

_hooks = Hooks()


def install() -> None:
    """Put the hooks in, unless they are in."""
    if _hooks.are_in:
        return
    torch_optimizers.install(_hooks)
    torch_losses.install(_hooks)
    torch_calls.install(_hooks)
    torch_loaders.install(_hooks)
    _hooks.replace(nn.Module, "__init__", torch_models.noting(nn.Module.__init__))


def remove() -> None:
    """Take the hooks out again."""
    _hooks.remove()
