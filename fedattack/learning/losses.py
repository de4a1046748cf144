"""Losses: of single examples, in float64, for attacks that compare models by them, and as clients minimise them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fedattack.base.errors import ModelError
from fedattack.learning.importing import import_callable
from fedattack.learning.stated import OWN

RecordLoss = Callable[[Tensor, Tensor], Tensor]
"""Takes the model's outputs (n, …) and the targets (n, …) and returns the losses, float64, shape (n,)."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy (n,), float64, of logits (n, classes) and labels (n,) in 0 … classes − 1.

    With t the class of the largest logit and y the label this is z_t - z_y + log1p(sum_{j != t} exp(z_j - z_t)). No
    term overflows. A confident model's tiny loss is not rounded to 0 up to a margin of about 745, where float64 ends.
    (Softmax followed by a logarithm gives exactly 0 in float32 from a margin of 17 on, which makes clients tie.)

    Raises
    ------
    ModelError
        If shapes do not fit or a label is out of range.
    """
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        raise ModelError(
            f"cross-entropy: expected outputs of shape (n, classes) and labels of shape (n,); got "
            f"{tuple(outputs.shape)} and {tuple(targets.shape)}"
        )
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < outputs.shape[1]:
        raise ModelError(
            f"cross-entropy: expected labels in 0 … {outputs.shape[1] - 1}, as the model has {outputs.shape[1]} "
            f"outputs; got {int(targets.min())} to {int(targets.max())}"
        )
    logits = outputs.double()
    # The largest logit's own term is e⁰ = 1, which log1p adds: what is left of a sure model is tiny, and exact.
    top, winner = logits.max(dim=1, keepdim=True)
    rest = (logits - top).exp().scatter(1, winner, 0.0).sum(dim=1)
    labelled = logits.gather(1, targets.long().unsqueeze(1))
    return (top - labelled).squeeze(1) + torch.log1p(rest)


def mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error (n,), float64, of each example, averaged over its outputs (n,) or (n, outputs).

    Raises
    ------
    ModelError
        If shapes do not fit; (n,) and (n, 1) go together.
    """
    predictions = outputs.double().reshape(len(outputs), -1)
    truth = targets.double().reshape(len(targets), -1)
    if predictions.shape != truth.shape:
        raise ModelError(
            f"mse: expected outputs and targets of one shape; got {tuple(outputs.shape)} and {tuple(targets.shape)}"
        )
    return (predictions - truth).square().mean(dim=1)


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return losses (n,) that a model gave itself, one example after the other; the targets are among its inputs."""
    if outputs.shape != targets.shape[:1]:
        raise ModelError(f"{OWN}: expected one loss for each example; got {tuple(outputs.shape)} for {len(targets)}")
    return outputs.double()


LOSSES: Mapping[str, RecordLoss] = {"cross-entropy": cross_entropy, "mse": mean_squared_error, OWN: own_loss}
"""Built-in losses by name."""


def per_record_loss(spec: str) -> RecordLoss:
    """Return a function of outputs (n, …) and targets (n, …) that gives the loss of each example (n,), float64.

    ``spec`` is a name in :data:`LOSSES`, or the import path ``package.module:function`` of a function of outputs and
    targets that returns one loss an example.

    Raises
    ------
    ModelError
        If the loss is unknown or cannot be imported; when called, if it does not return one loss an example.
    """
    if spec in LOSSES:
        return LOSSES[spec]
    function = import_callable(spec, what="loss", known=LOSSES)

    def check_shape(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = function(outputs, targets)
        if not isinstance(losses, Tensor) or losses.shape != (len(outputs),):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ModelError(f"loss {spec!r}: expected one loss for each example, shape ({len(outputs)},); got {got}")
        return losses.double()

    return check_shape


MeanLoss = Callable[[Tensor, Tensor], Tensor]
"""Takes outputs (n, …) and targets (n, …) and returns their mean loss, as a client minimises it."""


def _mean_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean squared error; (n, 1) and (n,) go together, which torch would broadcast to (n, n)."""
    count = len(outputs)
    return nn.functional.mse_loss(outputs.reshape(count, -1), targets.reshape(count, -1).to(outputs.dtype))


def mean_own(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of losses (n,) that a model gave itself; the targets are among its inputs."""
    return outputs.mean()


# PyTorch's own, in float32, as clients minimise them: attacks that rebuild an update need the same rounding.
_MEAN_LOSSES: Mapping[str, MeanLoss] = {
    "cross-entropy": nn.functional.cross_entropy,
    "mse": _mean_squared,
    OWN: mean_own,
}


def mean_loss(spec: str) -> MeanLoss:
    """Return the loss that clients minimise: ``cross-entropy``, ``mse``, or the mean of ``module:function``.

    Raises
    ------
    ModelError
        If the loss is unknown or cannot be imported.
    """
    if spec in _MEAN_LOSSES:
        return _MEAN_LOSSES[spec]
    function = import_callable(spec, what="loss", known=_MEAN_LOSSES)
    return lambda outputs, targets: function(outputs, targets).mean()
