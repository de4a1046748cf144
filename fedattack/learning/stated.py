"""What can be said of models and of training without PyTorch: names of what is built in, and how a client trains."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from fedattack.base.errors import ConfigError
from fedattack.base.stored import OPTIONAL, AsJson

MODEL_NAMES = (
    *("lenet-mnist", "lenet-cifar", "sia-cnn", "sia-mlp", "mlp", "linear", "student-mlp", "fedmd-cnn-1"),
    *("fedmd-cnn-2", "fedmd-cnn-3", "fedmd-mlp-1", "fedmd-mlp-2", "fedmd-mlp-3", "decoder"),
)
"""Names of :data:`fedattack.learning.MODELS`."""

OWN = "own"
"""The loss of a model that is given its labels and returns a loss."""

LOSS_NAMES = ("cross-entropy", "mse", OWN)
"""Names of :data:`fedattack.learning.LOSSES`."""

OPTIMIZERS = ("SGD", "Adam", "AdamW")
"""What clients train by, as PyTorch calls it."""


@dataclass(frozen=True)
class LocalSGD:
    """How a client trains in a round, as far as an attacker who rebuilds its updates must know.

    Attributes
    ----------
    epochs, batch_size, lr, momentum, weight_decay, optimizer
        As for :func:`fedattack.learning.train_local`. Adam and AdamW begin anew in every round, and have PyTorch's
        own other numbers.
    """

    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch_size: Annotated[int, Field(ge=0, le=10**9)]
    lr: Annotated[float, Field(gt=0, le=10**6, allow_inf_nan=False)]
    momentum: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=10**6, allow_inf_nan=False)] = 0.0
    optimizer: Annotated[str, AsJson(Literal["SGD", "Adam", "AdamW"]), OPTIONAL] = "SGD"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(
                f"local training: optimizer must be one of {', '.join(OPTIMIZERS)}; got {self.optimizer!r}"
            )
        if self.optimizer != "SGD" and self.momentum:
            raise ConfigError(f"local training: {self.optimizer} has no momentum; got {self.momentum}, leave it out")
        for name, low in (("epochs", 1), ("batch_size", 0), ("lr", 0), ("momentum", 0), ("weight_decay", 0)):
            value = getattr(self, name)
            if not value >= low:
                raise ConfigError(f"local training: {name} must be at least {low}; got {value}")

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of :func:`fedattack.learning.train_local`, without the optimizer where it is SGD."""
        return {name: value for name, value in vars(self).items() if (name, value) != ("optimizer", "SGD")}

    def steps(self, examples: int) -> int:
        """Return how many optimiser steps a client of so many examples, at least 1, makes in a round."""
        # ⌈examples / batch size⌉ steps an epoch; a batch size of 0 is all examples.
        return self.epochs * -(-examples // (self.batch_size or examples))

    def reach(self, examples: int) -> float:
        """Return how many gradients of equal length a training moves by: its steps, or more by momentum from zero.

        Step k of equal gradients moves by 1 + μ + … + μ^(k−1) of them.
        """
        steps, momentum = self.steps(examples), self.momentum
        if not momentum:
            return float(steps)
        # Σ over k of (1 − μ^k)/(1 − μ) = (steps − μ(1 − μ^steps)/(1 − μ))/(1 − μ).
        return float((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
