"""Count how long work takes on a processor of a fixed speed, and so the same on any machine.

What is bounded by a clock depends on how fast and how busy a machine is. What is bounded by this depends on the work
alone: one seed gives one result.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

# Seconds for a call of PyTorch, for a number that it writes, and for a multiplication or an addition.
_CALL, _NUMBER, _OPERATION = 6e-6, 7e-10, 1e-11


class _Calls(TorchDispatchMode):
    """Counts the calls of PyTorch, and the numbers that they write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        self.numbers += sum(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out


def count_seconds(work: Callable[[], object]) -> float:
    """Do some work of PyTorch, and return how many seconds it takes on a processor of a fixed speed, above 0."""
    with FlopCounterMode(display=False) as operations, _Calls() as calls:
        work()
    seconds = _CALL * calls.calls + _NUMBER * calls.numbers + _OPERATION * int(operations.get_total_flops())
    return max(float(seconds), _CALL)
