"""Preflight of gradient inversion: whether the attacker's model of the client computes what the client sent.

The true examples are replayed through that model. Where the result is not what the client sent, a reconstruction fails
for reasons that have nothing to do with privacy. The usual reasons are looked for by replaying them, too. A preflight
needs the truth, so that only an audit can do it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedattack.attacks.matching import flatten_arrays
from fedattack.learning import LocalSGD
from fedattack.learning.torch_utils import has_batch_norm, to_tensor
from fedattack.threats.attribute.gradient_matching import soft_targets
from fedattack.threats.inversion.gradient_inversion import Arrays, ClientModel

FITS = 0.05
"""Residual up to which a replay counts as what the client computed: rounding of a small step reaches some per cent."""

_ALIGNED = 0.999
_EPOCHS = (1, 2, 3, 5, 10)
_BATCHES = (0, 1, 8, 16, 32, 64)
_MOMENTA = (0.0, 0.9)

UNEXPLAINED = (
    "none of the usual causes: the client changes its update before sending it (a defence, clipping, noise), or uses "
    "another model, loss, labels or examples"
)


@dataclass(frozen=True)
class Preflight:
    """How well a replay of the true examples gives what the client sent.

    Attributes
    ----------
    residual
        ‖replayed − sent‖ / ‖sent‖, over all parameters; infinite where the replay diverges.
    cosine
        Between the two.
    causes
        What explains a residual above :data:`FITS`, for people; empty below.
    """

    residual: float
    cosine: float
    causes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether the attacker's model of the client is right."""
        return self.residual <= FITS


@dataclass(frozen=True)
class _Replay:
    """One way in which the client may have computed what it sent; ``cause`` names how it differs from the belief."""

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
        (n, *shape), (n,): the examples and labels that it trained on.
    low, high
        Least and largest values of the data's inputs, in a shape that broadcasts with ``x``.
    """
    wanted = flatten_arrays(sent, sent)

    def residual(replay: _Replay) -> tuple[float, float]:
        client = ClientModel(model, loss, replay.training, running_statistics=replay.running_statistics)
        records = to_tensor(replay.scaled(x), dtype=torch.float32)
        targets = soft_targets(loss, y, client.outputs(x.shape[1:]))
        replayed = flatten_arrays(client.movement(*client.split(received), records, targets), sent)
        if replay.signs:
            replayed = np.sign(replayed)
        if not np.isfinite(replayed).all():
            return np.inf, 0.0
        lengths = float(np.linalg.norm(replayed) * np.linalg.norm(wanted))
        distance = float(np.linalg.norm(replayed - wanted) / np.linalg.norm(wanted))
        return distance, float(replayed @ wanted) / (lengths or 1.0)

    believed, cosine = residual(_Replay("", training))
    if believed <= FITS:
        return Preflight(believed, cosine, ())
    replays = _replays(model, training, len(x), low, high)
    causes = [replay.cause for replay in replays if residual(replay)[0] <= FITS]
    if cosine >= _ALIGNED and not causes:
        causes.append("learning rate or number of examples: the direction is right and the length is not")
    causes += _unknowable(model, training, len(x))
    return Preflight(believed, cosine, tuple(causes) or (UNEXPLAINED,))


def preflight_middle(
    model: nn.Module,
    loss: str,
    training: LocalSGD,
    middle: Arrays,
    gradient: Arrays,
    x: NDArray[np.float32],
    y: NDArray[Any],
) -> Preflight:
    """Compare the gradient of the true examples at the middle of a client's path with the mean along the path.

    Parameters
    ----------
    model, loss, training
        What the search imitates.
    middle, gradient
        As :func:`fedattack.threats.inversion.inversion.take_middle` returns them.
    x, y
        (n, *shape), (n,): the examples and labels that the client trained on.
    """
    client = ClientModel(model, loss, training)
    targets = soft_targets(loss, y, client.outputs(x.shape[1:]))
    found = client.movement(*client.split(middle), to_tensor(x, dtype=torch.float32), targets)
    replayed, wanted = flatten_arrays(found, gradient), flatten_arrays(gradient, gradient)
    residual = float(np.linalg.norm(replayed - wanted) / np.linalg.norm(wanted))
    lengths = float(np.linalg.norm(replayed) * np.linalg.norm(wanted))
    causes = () if residual <= FITS else ("local steps: one gradient at the middle stands for all of them",)
    return Preflight(residual, float(replayed @ wanted) / (lengths or 1.0), causes)


def _replays(
    model: nn.Module, training: LocalSGD, records: int, low: NDArray[np.float32], high: NDArray[np.float32]
) -> Iterator[_Replay]:
    """Yield the usual other ways in which a client may have trained, or seen its inputs."""
    if has_batch_norm(model):
        yield _Replay("batch norm: in evaluation mode, with running statistics", training, running_statistics=True)
    for epochs in _EPOCHS:
        if epochs != training.epochs:
            yield _Replay(f"local steps: {epochs} epochs and not {training.epochs}", replace(training, epochs=epochs))
    believed = _batch(training.batch_size, records)
    sizes = {_batch(size, records) for size in _BATCHES}
    for size in sorted(sizes - {believed}):
        cause = f"local steps: mini-batches of {size} and not {believed}"
        yield _Replay(cause, replace(training, batch_size=size))
    for momentum in _MOMENTA:
        # The first step is the same with any.
        if momentum != training.momentum and training.steps(records) > 1:
            cause = f"optimiser: momentum {momentum:g} and not {training.momentum:g}"
            yield _Replay(cause, replace(training, momentum=momentum))
    if training.weight_decay:
        yield _Replay("optimiser: no weight decay", replace(training, weight_decay=0.0))
    yield _Replay("optimiser: steps of one length for all parameters, as Adam's first", training, signs=True)
    span = np.maximum(high - low, np.finfo(np.float32).tiny)
    yield _Replay("normalisation: inputs in 0 … 1", training, lambda x: (x - low) / span)
    yield _Replay("normalisation: inputs in −1 … 1", training, lambda x: 2 * (x - low) / span - 1)


def _unknowable(model: nn.Module, training: LocalSGD, records: int) -> Iterator[str]:
    """Name what makes every replay fail."""
    if any(layer.p > 0 for layer in model.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)):
        yield "dropout: its masks are not known to the attacker"
    if _batch(training.batch_size, records) < records:
        yield "local steps: the order of the mini-batches is not known to the attacker"


def _batch(size: int, records: int) -> int:
    return min(size or records, records)
