"""Where in its dataset an example stands: PyTorch's loaders tell.

An example that is augmented is another input in each epoch. Its index in the dataset stays the same, and tells that
two inputs are one example.

A loader asks its sampler for the indices of a batch in ``_next_index``, and returns that batch from ``__next__``. With
workers it asks for the indices of several batches before the first one comes. Both are methods of the iterator that
each pass over the data has, or that several passes share (``persistent_workers``).
"""

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fedattack.witness.current import current
from fedattack.witness.drawn import DrawnBatch
from fedattack.witness.hooks import Hooks
from fedattack.witness.step import tensors_of
from fedattack.witness.watch import CallWatch

_AHEAD = "_fedattack_ahead"
"""Attribute of a loader's iterator: the indices of batches that have not come yet."""

_LARGEST = 2**40
"""Examples that a dataset may have: indices of several datasets become numbers that are all different."""


def install(hooks: Hooks) -> None:
    """Watch all loaders."""
    hooks.replace(_BaseDataLoaderIter, "_next_index", _watch_index(_BaseDataLoaderIter._next_index))
    hooks.replace(_BaseDataLoaderIter, "__next__", _watch_next(_BaseDataLoaderIter.__next__))


def _watch_index(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def next_index(self: Any) -> Any:
        index = original(self)
        if current() is not None:
            # Workers are given indices ahead, and batches come in their order.
            self.__dict__.setdefault(_AHEAD, deque()).append((self._sampler_iter, index))
        return index

    return next_index


def _watch_next(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def next_batch(self: Any) -> Any:
        batch = original(self)
        watch, ahead = current(), self.__dict__.get(_AHEAD, ())
        # Nothing more comes from a pass that was left early.
        while ahead and ahead[0][0] is not self._sampler_iter:
            ahead.popleft()
        if watch is not None and ahead:
            watch.guard("what a loader gave", _note_batch, self, *ahead.popleft(), batch)
        return batch

    return next_batch


def _note_batch(watch: CallWatch, loader: Any, turn: Any, index: Any, batch: Any) -> None:
    """Note where in its dataset a loader took a batch from."""
    dataset, local = loader._dataset, watch.local
    # Without automatic batching (``batch_size=None``) there is one index.
    count = len(index) if hasattr(index, "__len__") else 1
    local.drawn.append(DrawnBatch(next(local.batches), dataset, loader._index_sampler, turn, count))
    # A sampler may give anything that its dataset takes, such as names.
    if not isinstance(index, list) or not all(isinstance(each, int) and each >= 0 for each in index):
        return
    number = next((number for number, known in enumerate(watch.datasets) if known is dataset), len(watch.datasets))
    if number == len(watch.datasets):
        watch.datasets.append(dataset)
    tensors = tensors_of(dict(batch) if isinstance(batch, Mapping) else batch)
    local.loaded.append(([number * _LARGEST + each for each in index], tensors))


def find_places(watch: CallWatch, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[int] | None:
    """Return where in a dataset the examples of a call stand, if they are as a loader gave them."""
    given = next((tensor for tensor in tensors_of((args, kwargs)) if tensor.ndim), None)
    if given is None:
        return None
    copied: Tensor | None = None
    for places, tensors in watch.local.loaded:
        if len(given) != len(places):
            continue
        for tensor in tensors:
            # The same memory, also if the client looks at it in another shape.
            if tensor.data_ptr() == given.data_ptr():
                return places
            # On a GPU it is a copy, which is compared by value.
            if tensor.device != given.device:
                copied = given.cpu() if copied is None else copied
                if torch.equal(tensor, copied):
                    return places
    return None
