"""What among the things that a model returns are its outputs, and what is its loss.

Witnesses and attacks must find the same; it needs torch alone.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedattack.base.errors import ModelError


def output_in(returned: Any) -> Tensor:
    """Return the outputs (n, …) among what a model returned: the tensor, its ``logits``, or the first with rows.

    Raises
    ------
    ModelError
        If there are none.
    """
    if isinstance(returned, Tensor):
        return returned
    # Hugging Face's models return a mapping whose first entry may be the loss.
    if isinstance(returned, Mapping) and isinstance(returned.get("logits"), Tensor):
        logits: Tensor = returned["logits"]
        return logits
    for value in _values(returned):
        if isinstance(value, Tensor) and value.ndim:
            return value
    raise ModelError(f"the model returns {type(returned).__name__}, in which there are no outputs of examples")


def loss_in(returned: Any) -> Tensor | None:
    """Return the loss that a model returned, a number: as ``loss``, or the first tensor without axes."""
    # One number without an axis; outputs of one example have an axis.
    for value in [returned] if isinstance(returned, Tensor) else _values(returned):
        if isinstance(value, Tensor) and not value.ndim and value.is_floating_point():
            return value
    return None


def tensors_in(returned: Any) -> list[Tensor]:
    """Return all tensors that a model returned, each once."""
    values = [returned] if isinstance(returned, Tensor) else _values(returned)
    found: dict[int, Tensor] = {}
    for value in values:
        if isinstance(value, Tensor):
            # The mapping's loss comes twice: named, and among the values.
            found[id(value)] = value
    return [*found.values()]


def _values(returned: Any) -> list[Any]:
    if isinstance(returned, Mapping):
        return [returned.get("loss"), *returned.values()]
    return [*returned] if isinstance(returned, list | tuple) else []
