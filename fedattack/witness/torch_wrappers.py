"""Models of PyTorch that wrap another one: what compiles it, spreads it, or takes gradients example by example."""

from torch import nn

# By name: neither Opacus nor ``torch._dynamo`` is imported for this.
_WRAPPERS = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
# Opacus has one for each way to take gradients of examples.
_PRIVATE = "AbstractGradSampleModule"
_WRAPPERS |= {_PRIVATE: "_module"}


def unwrap(module: nn.Module) -> nn.Module:
    """Return the model in all that wraps it."""
    while True:
        names = [_WRAPPERS[kind.__name__] for kind in type(module).__mro__ if kind.__name__ in _WRAPPERS]
        inner = getattr(module, names[0], None) if names else None
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def is_private(module: nn.Module) -> bool:
    """Say whether a model is wrapped to be trained with differential privacy."""
    return any(kind.__name__ == _PRIVATE for kind in type(module).__mro__)
