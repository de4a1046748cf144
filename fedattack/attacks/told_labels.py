"""Labels that gradients of outputs tell by themselves, as in split and vertical learning: closed forms, no model.

With a loss of two classes the gradient of an example's embedding is (p − y) w: all are multiples of w, and the sign of
p − y is that of the label. With a cross-entropy of more classes the gradient of its logits is p − e_y: it adds up to 0,
and is negative at the label alone. See Li et al. 2022, "Label leakage and protection in two-party split learning".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import RecordError, short
from fedattack.record import Record

# Fewer rows, or classes, may be alike by accident.
_FEWEST_ROWS, _FEWEST_CLASSES = 8, 3

# float32's rounding leaves that much of a second direction, and of a sum of zero.
_EXACT = 1e-4

_MOST_NOTES = 8

# Training messages that are looked at.
_MOST_MESSAGES = 64


@dataclass(frozen=True)
class ToldLabels:
    """Labels that an array tells.

    Attributes
    ----------
    labels
        (n,): of two classes 0 and 1, of which nobody knows which is which; else indices of classes. −1 for rows of
        zeros, which tell none.
    is_sign
        Whether the sign tells them, of two classes.
    """

    labels: NDArray[np.int64]
    is_sign: bool


def read_labels(array: NDArray[Any]) -> ToldLabels | None:
    """Read the labels off an array (n, d) that is a gradient with a row for each example; ``None`` if it tells none."""
    if array.dtype.kind != "f" or array.ndim != 2 or array.shape[1] < 2:
        return None
    rows = array.astype(np.float64)
    if not np.isfinite(rows).all():
        return None
    used = rows.any(axis=1)
    if used.sum() < _FEWEST_ROWS:
        return None
    labels = np.full(len(rows), -1)
    lengths = np.abs(rows[used]).sum(axis=1)
    negative = rows[used] < 0
    adds_up = np.abs(rows[used].sum(axis=1)) <= _EXACT * lengths
    if rows.shape[1] >= _FEWEST_CLASSES and adds_up.all() and (negative.sum(axis=1) == 1).all():
        labels[used] = negative.argmax(axis=1)
        return ToldLabels(labels, is_sign=False)
    # One direction: of the unit rows all singular values but the first are 0.
    units = rows[used] / np.linalg.norm(rows[used], axis=1, keepdims=True)
    _, sizes, directions = np.linalg.svd(units, full_matrices=False)
    signs = units @ directions[0] > 0
    if sizes[1] > _EXACT * sizes[0] or signs.all() or not signs.any():
        return None
    labels[used] = signs
    return ToldLabels(labels, is_sign=True)


def _list_besides(record: Record) -> Iterator[tuple[str, str, str, NDArray[Any]]]:
    """Yield the arrays of messages beside training: type, way, name and array."""
    for others in record.others:
        for name, array in others.arrays.items():
            yield others.type, others.way, name, array


def _list_sent(record: Record) -> Iterator[tuple[str, str, str, NDArray[Any]]]:
    """Yield arrays that training messages bring to clients, and that these do not send back: of a model they would."""
    replies = chain.from_iterable(round_.observations for round_ in record)
    for reply in islice((reply for reply in replies if reply.status == "ok"), _MOST_MESSAGES):
        back = {*(reply.arrays or {})}
        for name in reply.received or {}:
            if name in back:
                continue
            try:
                yield "train", "sent", name, (reply.received or {})[name]
            except RecordError:
                # Who judges says which file is damaged.
                continue


def list_told_labels(record: Record) -> Iterator[str]:
    """Say of each array in messages, but for those of a model, that it tells labels, if it does in most messages."""
    seen: dict[tuple[str, str, str], list[ToldLabels | None]] = {}
    for kind, way, name, array in chain(_list_besides(record), _list_sent(record)):
        seen.setdefault((kind, way, name), []).append(read_labels(array))
    for (kind, way, name), each in [*seen.items()][:_MOST_NOTES]:
        told = [found for found in each if found is not None]
        # A batch of one class tells nothing, and most batches have both.
        if 2 * len(told) <= len(each):
            continue
        whose = {"sent": "that the server sends to clients", "reply": "that clients reply"}[way]
        count = sum(int((found.labels >= 0).sum()) for found in told)
        how = "is negative in one entry only, that of the example's label"
        if told[0].is_sign:
            how = "is a multiple of one direction, forward or backward: of two classes the sign is the example's label"
        yield (f"{short(name, 60)} in messages {short(kind, 60)} {whose} reveals labels: each of {count:,} rows {how}")
