"""A defence on what a client received and sends, as arrays; the mod and the wrapper do the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.defences.base import Defence
from fedattack.defences.hook import Handed
from fedattack.errors import DataError, ModelError

Sends = Literal["model", "update"]
"""What a client sends: a model, whose update is its difference to the received one, or what is an update already, such
as a gradient or predictions."""

_NEVER_NEGATIVE = "running_var"


def defended_arrays(
    defence: Defence,
    *,
    received: Sequence[NDArray[Any]],
    sent: Sequence[NDArray[Any]],
    names: Sequence[str],
    handed: Handed,
    rng: np.random.Generator,
    sends: Sends = "model",
) -> list[NDArray[Any]]:
    """Return what is sent in place of ``sent``, of the same shapes and types.

    All arrays of floats are the update, a batch norm's running mean and variance among them: these are statistics of
    the client's records as much as its gradients are, and would leak if they were left out. Noise could make a running
    variance negative, of which the model has no root, so that an array whose name ends in ``running_var`` is brought
    back to 0, which depends on nothing but what is sent. (Legacy arrays have a name if the model is handed over.)
    Integer arrays, such as counters, are sent as they are.

    Of the update an entry that the defence leaves alone is sent as it is, too; any other is received + Δ', rounded once
    to the array's own type.

    Parameters
    ----------
    defence
        What to apply.
    received, sent
        Arrays in the same order; neither is changed. With ``sends="update"`` the received ones are not looked at.
    names
        Of the arrays that are sent. If the handed-over model has as many, but others, its names are taken.
    handed
        What the training code handed over.
    rng
        The defence's randomness.
    sends
        See :data:`Sends`.

    Raises
    ------
    DataError
        If arrays do not match or hold neither floats nor integers, a defence lacks its batch, or what was handed over
        is not the received model.
    ModelError
        If an update is not finite.
    """
    if sends == "model" and [array.shape for array in received] != [array.shape for array in sent]:
        raise DataError(
            f"defence {defence.name}: the client sends arrays of other shapes than it received, so that there is no "
            f"update; got {len(sent)} for {len(received)} arrays; send the model in the received order"
        )
    if defence.needs_batch and handed.batch is None:
        raise DataError(
            f"defence {defence.name} needs the batch and the model; call fedattack.defences.hand_over(model, x, y) in "
            "the client's training code, before it trains"
        )
    for name, array in zip(names, sent, strict=True):
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"defence {defence.name}: {name} holds {array.dtype}, which would go undefended; expected floats or "
                "integers; send it as another type"
            )
    if len(handed.names) == len(sent) and {*handed.names} != {*names}:
        names = handed.names
    _check_handed(dict(zip(names, received, strict=False)), handed)
    floating = [index for index, array in enumerate(sent) if array.dtype.kind == "f"]
    start = {
        index: received[index].astype(np.float64) if sends == "model" else np.zeros(sent[index].shape)
        for index in floating
    }
    update = {names[index]: (sent[index] - start[index]).astype(np.float32) for index in floating}
    for name, array in update.items():
        if not np.isfinite(array).all():
            raise ModelError(
                f"defence {defence.name}: the update of {name} has values that are not finite, of which nothing can be "
                "guaranteed; lower the learning rate"
            )
    result = defence.apply(update, rng, handed.batch)
    defended = [*sent]
    for index in floating:
        before, after = update[names[index]], result[names[index]]
        moved = (start[index] + after.astype(np.float64)).astype(sent[index].dtype)
        if sends == "model" and names[index].endswith(_NEVER_NEGATIVE):
            moved = np.maximum(moved, 0)
        defended[index] = np.where(before == after, sent[index], moved)
    return defended


def _check_handed(received: Mapping[str, NDArray[Any]], handed: Handed) -> None:
    """Check that the handed-over model is the received one, where the client received all of its arrays."""
    if handed.batch is None:
        return
    values = {name: value.detach().cpu().numpy() for name, value in handed.batch.model.state_dict().items()}
    if {name: value.shape for name, value in values.items()} != {n: array.shape for n, array in received.items()}:
        return
    # Loading rounds what a server has averaged in double precision, and cuts its means of counters.
    if not all(
        np.array_equal(value, received[name].astype(value.dtype), equal_nan=True)
        for name, value in values.items()
        if value.dtype.kind == "f"
    ):
        raise DataError(
            "hand_over: the model is not at the received parameters; call it after they are loaded and before the "
            "training"
        )
