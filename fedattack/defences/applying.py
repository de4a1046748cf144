"""A defence on what a client received and sends, as arrays; the mod and the wrapper do the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError, ModelError
from fedattack.defences.base import Defence, Update
from fedattack.defences.hook import Handed

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

    - The update is made of all arrays of floats. A batch norm's running mean and variance belong to it: they are
      statistics of the client's examples, and would leak.
    - Noise can make a running variance negative. An array whose name ends in ``running_var`` is therefore cut at 0.
      (Legacy arrays have a name if the model is handed over.)
    - Integer arrays, such as counters, are sent as they are.
    - An entry that the defence leaves alone is sent as it is. Any other is received + Δ', rounded once to the array's
      own type.

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
    if sends == "model":
        _check_shapes(defence, received, sent)
    if defence.needs_batch and handed.batch is None:
        raise DataError(
            f"defence {defence.name} needs the batch and the model; call fedattack.defences.hand_over(model, x, y) in "
            "the client's training code, before it trains"
        )
    _check_types(defence, names, sent)
    # A mod sees arrays in Flower's names, the hook in the model's: the latter are the ones that defences know.
    if len(handed.names) == len(sent) and set(handed.names) != set(names):
        names = handed.names
    _check_handed(dict(zip(names, received, strict=False)), handed)
    # What is an update already starts at 0.
    start: Sequence[NDArray[Any] | float] = received if sends == "model" else [0.0] * len(sent)
    update: dict[str, NDArray[np.float32]] = {}
    defended = list(sent)
    # Integers, such as counters, are no part of the update, and go as they are.
    moving = [index for index, array in enumerate(sent) if array.dtype.kind == "f"]
    for index in moving:
        into = np.empty(sent[index].shape, dtype=np.float32)
        # In double precision, of which numpy holds a few thousand numbers at a time.
        update[names[index]] = np.subtract(sent[index], start[index], out=into, dtype=np.float64, casting="same_kind")
    _check_finite(defence, update)
    result = defence.apply(update, rng, handed.batch)
    for index in moving:
        name, moved = names[index], np.empty_like(sent[index])
        np.add(start[index], result[name], out=moved, dtype=np.float64, casting="same_kind")
        if sends == "model" and name.endswith(_NEVER_NEGATIVE):
            # A variance below zero would make batch normalisation take the root of a negative number.
            np.maximum(moved, 0, out=moved)
        # Entries that the defence leaves alone are sent bit for bit, and not as rounded sums.
        np.copyto(moved, sent[index], where=update[name] == result[name])
        defended[index] = moved
    return defended


def _check_shapes(defence: Defence, received: Sequence[NDArray[Any]], sent: Sequence[NDArray[Any]]) -> None:
    if [array.shape for array in received] != [array.shape for array in sent]:
        raise DataError(
            f"defence {defence.name}: the client sends arrays whose shapes differ from those that it received, so "
            f"there is no update; "
            f"got {len(sent)} for {len(received)} arrays; send the model in the received order"
        )


def _check_types(defence: Defence, names: Sequence[str], sent: Sequence[NDArray[Any]]) -> None:
    for name, array in zip(names, sent, strict=True):
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"defence {defence.name}: {name} holds {array.dtype}, which would go undefended; expected floats or "
                "integers; send it as another type"
            )


def _check_finite(defence: Defence, update: Update) -> None:
    for name, array in update.items():
        if not np.isfinite(array).all():
            raise ModelError(
                f"defence {defence.name}: the update of {name} has values that are not finite, so nothing can be "
                "guaranteed; lower the learning rate"
            )


def _check_handed(received: Mapping[str, NDArray[Any]], handed: Handed) -> None:
    """Check that the handed-over model is the received one, where the client received all of its arrays."""
    if handed.batch is None:
        return
    # Clients without torch hand nothing over.
    from fedattack.learning.torch_utils import shapes_of

    state = handed.batch.model.state_dict()
    # A client that received other arrays, such as an adapter's, cannot be checked.
    if shapes_of(state) != shapes_of(received):
        return
    for name, value in state.items():
        array = value.detach().cpu().numpy()
        if array.dtype.kind != "f":
            continue
        # Loading rounds what a server has averaged in double precision, and cuts its means of counters.
        loaded = received[name].astype(array.dtype)
        if not np.array_equal(array, loaded, equal_nan=True):
            raise DataError(
                "hand_over: the model is not at the received parameters; call it after they are loaded and before the "
                "training"
            )
