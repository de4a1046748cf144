"""A GPU that is not there: tensors say that they are on it, and what mixes devices raises as it would on one.

PyTorch's ``FakeTensorMode`` carries tensors without numbers. Three things are added here, so that whole attacks run:

- What is read of a tensor (``float``, ``bool``, ``numpy``) is ones, or zeros where they may be places. Where a GPU's
  tensor refuses to be read, it is refused.
- A generator must be of the device on which it draws, which ``FakeTensorMode`` does not look at.
- Layers move to the device, which they do not in ``FakeTensorMode`` alone.

Within, the device ``meta`` stands for the GPU: a backward pass through tensors of ``cuda`` asks for a driver.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._mode_utils import no_dispatch

STAND_IN = torch.device("meta")


class _Generators:
    """Makes generators that draw on the CPU, and knows on which device each is said to be."""

    def __init__(self) -> None:
        self._made: list[tuple[torch.Generator, torch.device]] = []
        self._make = torch.Generator

    def __call__(self, device: torch.device | str = "cpu") -> torch.Generator:
        made = self._make()
        self._made.append((made, _there(torch.device(device))))
        return made

    def device_of(self, generator: torch.Generator) -> torch.device:
        """Where a generator is; one that was made before is on the CPU."""
        return next((device for made, device in self._made if made is generator), torch.device("cpu"))


def _told(tensor: Tensor) -> Tensor:
    """Return numbers for a tensor that has none: zeros where they may be places, else ones."""
    number = 1 if tensor.dtype.is_floating_point or tensor.dtype == torch.bool else 0
    return torch.full(tensor.shape, number, dtype=tensor.dtype)


_READ: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda tensor: _told(tensor).item(),
    "__float__": lambda tensor: float(_told(tensor)),
    "__int__": lambda tensor: int(_told(tensor)),
    "__index__": lambda tensor: int(_told(tensor)),
    "__bool__": lambda tensor: True,
    "allclose": lambda tensor: True,
    "equal": lambda tensor: True,
    "numpy": lambda tensor: _told(tensor).numpy(),
    "__array__": lambda tensor: _told(tensor).numpy(),
    "tolist": lambda tensor: _told(tensor).tolist(),
}
"""What is read of a tensor that has no numbers."""

# These a tensor of a GPU refuses.
_ON_CPU_ALONE = ("numpy", "__array__")


def _there(argument: Any) -> Any:
    """Put the device that stands for the GPU in the place of a GPU."""
    if isinstance(argument, torch.device) and argument.type == "cuda":
        return STAND_IN
    return STAND_IN if isinstance(argument, str) and argument.partition(":")[0] == "cuda" else argument


def _checked_index(indexed: Tensor, index: Any) -> Any:
    """Refuse an index on the GPU into what is elsewhere; how many places a mask leaves, it does not say: take all."""
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if isinstance(part, Tensor) and part.ndim and part.device.type != "cpu" and indexed.device.type == "cpu":
            raise RuntimeError(f"indices should be on cpu, as the indexed tensor is; found one on {part.device}")
    if isinstance(index, Tensor) and index.dtype == torch.bool and index.ndim == 1:
        return torch.arange(len(index), device=index.device)
    return index


class _Checked(TorchFunctionMode):
    def __init__(self, generators: _Generators) -> None:
        super().__init__()
        self._generators = generators

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.device:
            args = tuple(map(_there, args))
            kwargs = {key: _there(value) for key, value in kwargs.items()}
        name = getattr(func, "__name__", "")
        if name in ("__getitem__", "__setitem__"):
            args = (args[0], _checked_index(args[0], args[1]), *args[2:])
        if name == "nonzero" and args[0].ndim == 1:
            return torch.arange(len(args[0]), device=args[0].device)[:, None]
        if name == "bincount":
            return torch.zeros(kwargs.get("minlength", 0), dtype=torch.long, device=args[0].device)
        if name in _READ and isinstance(args[0], FakeTensor):
            if name in _ON_CPU_ALONE and args[0].device.type != "cpu":
                raise TypeError(f"can't convert {args[0].device} device type tensor to numpy; use Tensor.cpu()")
            with torch._C.DisableTorchFunction(), no_dispatch():
                return _READ[name](args[0])
        result = func(*args, **kwargs)
        generator = kwargs.get("generator")
        if generator is not None and isinstance(result, Tensor):
            drawn_on = self._generators.device_of(generator)
            if drawn_on.type != result.device.type:
                raise RuntimeError(f"{name}: expected a generator on {result.device}, found one on {drawn_on}")
        return result


def _moved(self: nn.Module, move: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    """Do what ``nn.Module._apply`` does, by new parameters: those of ``FakeTensorMode`` cannot be swapped."""
    for child in self.children():
        _moved(child, move)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                moved = move(parameter)
            if moved is not parameter:
                self._parameters[name] = nn.Parameter(moved, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = move(buffer)
    return self


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Let torch believe in a GPU, for tensors that are made meanwhile."""
    # It looks whether there is a GPU, before it is told that there is.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, pytest.MonkeyPatch.context() as patch:
        # It would compute small constants for real, in memory that is not there.
        patch.setattr(fake, "may_turn_const", lambda tensor: False)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 1)
        patch.setattr(torch.cuda, "get_rng_state", lambda device=None: torch.zeros(16, dtype=torch.uint8))
        patch.setattr(torch.cuda, "set_rng_state", lambda state, device=None: None)
        patch.setattr(torch.cuda, "manual_seed", lambda seed: None)
        patch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
        # It would make a real tensor there.
        patch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)
        # They know the names of real devices alone.
        adam = importlib.import_module("torch.optim.adam")
        patch.setattr(adam, "_device_dtype_check_for_fused", lambda *words, **named: None)
        generators = _Generators()
        patch.setattr(torch, "Generator", generators)
        patch.setattr(nn.Module, "_apply", _moved)
        with _Checked(generators):
            yield
