"""Preflight of gradient inversion: whether the attacker's model of the client computes what the client sent.

The true records are replayed through that model. Where the result is not what the client sent, a reconstruction fails
for reasons that have nothing to do with privacy, and the usual ones are looked for by replaying them, too. It needs the
truth, so that only an audit can do it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.learning import LocalSGD
from fedattack.learning.torch_utils import to_tensor
from fedattack.threats.attribute.gradient_matching import soft_targets
from fedattack.threats.inversion.gradient_inversion import Arrays, ClientModel

FITS = 0.05
"""Residual up to which a replay counts as what the client computed: rounding of a small step reaches some per cent."""

_ALIGNED = 0.999
_EPOCHS = (1, 2, 3, 5, 10)
_BATCHES = (0, 1, 8, 16, 32, 64)
_MOMENTA = (0.0, 0.9)

UNEXPLAINED = (
    "none of the usual causes: the client changes its update before it sends it (a defence, clipping, noise), or has "
    "another model, loss, labels or records"
)


@dataclass(frozen=True)
class Preflight:
    """How well a replay of the true records gives what the client sent.

    Attributes
    ----------
    residual
        ‖replayed − sent‖ / ‖sent‖, over all parameters; infinite where the replay diverges.
    cosine
        Between the two.
    causes
        In words, what explains a residual above :data:`FITS`; empty below.
    """

    residual: float
    cosine: float
    causes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the attacker's model of the client is right."""
        return self.residual <= FITS


@dataclass(frozen=True)
class _Other:
    """Another way in which the client may have computed what it sent, and its name."""

    cause: str
    training: LocalSGD
    scaled: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda x: x
    running_statistics: bool = False
    signs: bool = False


def preflight(
    model: nn.Module,
    loss: str,
    training: LocalSGD,
    received: Arrays,
    sent: Arrays,
    x: NDArray[np.float32],
    y: NDArray[Any],
    *,
    low: NDArray[np.float32],
    high: NDArray[np.float32],
) -> Preflight:
    """Replay a batch as the attacker takes a client to compute it, and look for the cause of a difference.

    Parameters
    ----------
    model, loss, training
        What the attacker believes; see :class:`fedattack.threats.inversion.gradient_inversion.ClientModel`.
    received
        The model that the client started from, with buffers.
    sent
        The movement that it sent, by parameter name.
    x, y
        (n, *shape), (n,): the records and labels that it trained on.
    low, high
        Least and largest values of the data's inputs, in a shape that broadcasts with ``x``.
    """
    wanted = _flat(sent)

    def residual(other: _Other) -> tuple[float, float]:
        client = ClientModel(model, loss, other.training, running_statistics=other.running_statistics)
        records = to_tensor(other.scaled(x), dtype=torch.float32)
        parameters, buffers = client.split(received)
        moved = client.movement(parameters, buffers, records, soft_targets(loss, y, client.outputs(x.shape[1:])))
        own = _flat({name: value.detach().numpy() for name, value in moved.items()}, like=sent)
        if other.signs:
            own = np.sign(own)
        if not np.isfinite(own).all():
            return np.inf, 0.0
        lengths = float(np.linalg.norm(own) * np.linalg.norm(wanted))
        return float(np.linalg.norm(own - wanted) / np.linalg.norm(wanted)), float(own @ wanted) / (lengths or 1.0)

    believed, cosine = residual(_Other("", training))
    if believed <= FITS:
        return Preflight(believed, cosine, ())
    causes = [other.cause for other in _others(model, training, len(x), low, high) if residual(other)[0] <= FITS]
    if cosine >= _ALIGNED and not causes:
        causes.append("learning rate or number of examples: the direction is right and the length is not")
    causes += _unknowable(model, training, len(x))
    return Preflight(believed, cosine, tuple(causes) or (UNEXPLAINED,))


def _others(
    model: nn.Module, training: LocalSGD, records: int, low: NDArray[np.float32], high: NDArray[np.float32]
) -> Iterator[_Other]:
    if _has(model, nn.modules.batchnorm._BatchNorm):
        yield _Other("batch norm: in evaluation mode, with running statistics", training, running_statistics=True)
    for epochs in _EPOCHS:
        if epochs != training.epochs:
            yield _Other(f"local steps: {epochs} epochs and not {training.epochs}", replace(training, epochs=epochs))
    believed = _batch(training.batch_size, records)
    for size in sorted({_batch(size, records) for size in _BATCHES} - {believed}):
        words = f"local steps: mini-batches of {size} and not {believed}"
        yield _Other(words, replace(training, batch_size=size))
    for momentum in _MOMENTA:
        # The first step is the same with any.
        if momentum != training.momentum and training.epochs * -(-records // believed) > 1:
            words = f"optimiser: momentum {momentum:g} and not {training.momentum:g}"
            yield _Other(words, replace(training, momentum=momentum))
    if training.weight_decay:
        yield _Other("optimiser: no weight decay", replace(training, weight_decay=0.0))
    yield _Other("optimiser: steps of one length for all parameters, as Adam's first", training, signs=True)
    span = np.maximum(high - low, np.finfo(np.float32).tiny)
    yield _Other("normalisation: inputs in 0 … 1", training, lambda x: (x - low) / span)
    yield _Other("normalisation: inputs in −1 … 1", training, lambda x: 2 * (x - low) / span - 1)


def _unknowable(model: nn.Module, training: LocalSGD, records: int) -> Iterator[str]:
    """Name what makes every replay fail."""
    if any(layer.p > 0 for layer in model.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)):
        yield "dropout: its masks are not known to the attacker"
    if _batch(training.batch_size, records) < records:
        yield "local steps: the order of the mini-batches is not known to the attacker"


def _has(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(layer, kind) for layer in model.modules())


def _batch(size: int, records: int) -> int:
    return min(size or records, records)


def _flat(arrays: Mapping[str, NDArray[Any] | Tensor], like: Mapping[str, Any] | None = None) -> NDArray[np.float64]:
    names = arrays if like is None else like
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in names])
