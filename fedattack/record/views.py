"""How a record is seen: under which names, with which arrays, without whom. What is on disk stays as it is."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedattack.base.stored import Count, Finite
from fedattack.base.untrusted import Text
from fedattack.record.arrays import StoredArrays
from fedattack.record.format import Arrays, Parameter
from fedattack.record.index import IndexedLine
from fedattack.record.schema import Protocol


@dataclass(frozen=True)
class ChangedEntries:
    """Replies of indices and values, and how the server puts them into the model.

    Attributes
    ----------
    indices, values
        Names of the two arrays of a reply.
    into
        Names of the server's arrays through which indices count, one after the other.
    step
        By what values are multiplied and added to the entries; ``None`` where they take the entries' place.
    """

    indices: Text
    values: Text
    into: Annotated[tuple[Text, ...], Field(min_length=1, max_length=10_000)]
    step: Finite | None = None

    def put_into(self, received: Arrays, reply: Arrays, names: Sequence[str]) -> Arrays | None:
        """Return the model ``received`` with a reply's entries in it; ``None`` if these do not fit it.

        ``names`` are those under which ``received`` has :attr:`into`.
        """
        if {*names} - {*received} or {self.indices, self.values} - {*reply}:
            return None
        indices, values = reply[self.indices], reply[self.values]
        if indices.shape != values.shape or indices.dtype.kind not in "iu" or values.dtype.kind != "f":
            return None
        size = sum(math.prod(received[name].shape) for name in names)
        if indices.size and (indices.min() < 0 or indices.max() >= size):
            return None
        changed: dict[str, NDArray[Any]] = {}

        def read(name: str) -> NDArray[Any]:
            if name not in names:
                return received[name]
            if not changed:
                changed.update(self._change([received[each] for each in names], indices, values, names))
            # Callers may change what they get.
            return changed[name].copy()

        return StoredArrays(read, {name: name for name in received})

    def _change(
        self, arrays: Sequence[NDArray[Any]], indices: NDArray[Any], values: NDArray[Any], names: Sequence[str]
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield by their names arrays in which the entries are changed."""
        # In double precision, so that only the last step rounds.
        whole = np.concatenate([array.reshape(-1).astype(np.float64) for array in arrays])
        if self.step is None:
            whole[indices] = values
        else:
            np.add.at(whole, indices, self.step * values.astype(np.float64))
        start = 0
        for name, array in zip(names, arrays, strict=True):
            yield name, whole[start : start + array.size].reshape(array.shape).astype(array.dtype)
            start += array.size


@dataclass(frozen=True)
class FlatVector:
    """A model whose arrays are sent as one vector, one behind the other.

    Attributes
    ----------
    vector
        Name of the vector.
    names, shapes
        Names and shapes of the arrays that stand in it.
    """

    vector: Text
    names: Annotated[tuple[Text, ...], Field(min_length=1, max_length=10_000)]
    shapes: Annotated[tuple[Annotated[tuple[Count, ...], Field(max_length=32)], ...], Field(max_length=10_000)]

    def fault(self) -> str:
        """Expect a shape for each name."""
        return "" if len(self.names) == len(self.shapes) else "the arrays of the vector do not fit their shapes"

    @property
    def size(self) -> int:
        """How many numbers stand in it."""
        return sum(map(math.prod, self.shapes))

    def split(self, stored: Arrays) -> Arrays:
        """Return arrays in which those of the model stand in the vector's place; others as they are.

        Arrays without such a vector are returned themselves.
        """
        if self.vector not in stored or stored[self.vector].shape != (self.size,):
            return stored
        starts = dict(zip(self.names, np.cumsum([0, *map(math.prod, self.shapes)]).tolist(), strict=False))
        shapes = dict(zip(self.names, self.shapes, strict=True))

        def read(name: str) -> NDArray[Any]:
            if name not in shapes:
                return stored[name]
            start = starts[name]
            return stored[self.vector][start : start + math.prod(shapes[name])].reshape(shapes[name]).copy()

        names = [*self.names, *(name for name in stored if name != self.vector)]
        return StoredArrays(read, {name: name for name in names})

    def join(self, arrays: Arrays) -> Arrays:
        """Return the same with the vector in the place of the arrays that stand in it, the other way round."""
        vector = np.concatenate([np.ravel(arrays[name]) for name in self.names])
        others = {name: array for name, array in arrays.items() if name not in self.names}
        return {self.vector: vector, **others}

    def describe(self, stored: Sequence[Parameter]) -> Sequence[Parameter]:
        """Return a table of parameters likewise."""
        for index, entry in enumerate(stored):
            if entry.name == self.vector and entry.shape == (self.size,):
                parts = [
                    replace(entry, shape=shape).rename(name)
                    for name, shape in zip(self.names, self.shapes, strict=True)
                ]
                return [*stored[:index], *parts, *stored[index + 1 :]]
        return stored


@dataclass(frozen=True, eq=False)
class RecordView:
    """What is changed of a record between the disk and who reads it; nothing by default.

    Attributes
    ----------
    new_names
        Names under which arrays are shown, by those on disk, where they differ.
    chosen
        Names on disk of the arrays that are shown; all, if it is empty.
    frozen
        By the names to show, arrays that are in every model beside those on disk, because nobody changes them.
    order
        The names of all arrays as the model has them, where some are frozen.
    factors
        By node, of replies that are differences: a reply is the factor times (local model − received). Other nodes'
        replies have no arrays then. ``None`` where replies are taken as they are.
    protocol
        The protocol that the replies are of, where it is another than the record says; else empty.
    entries
        For replies that are indices and values, how they change the model that was sent; ``None`` elsewhere.
    flat
        For models that are sent as one vector, which arrays stand in it; ``None`` elsewhere. Statements about names
        hold for these.
    unseen
        Nodes of which nothing is shown.
    exchanges
        By the number of a round its exchanges, each a line, where a server of sums singled replies out; none elsewhere.
    """

    new_names: Mapping[str, str] = field(default_factory=dict)
    chosen: frozenset[str] = frozenset()
    frozen: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    factors: Mapping[str, float] | None = None
    protocol: Protocol | Literal[""] = ""
    entries: ChangedEntries | None = None
    flat: FlatVector | None = None
    unseen: frozenset[str] = frozenset()
    exchanges: Mapping[int, Sequence[IndexedLine]] = field(default_factory=dict)

    def parameters(self, stored: Sequence[Parameter]) -> tuple[Parameter, ...]:
        """Return the table of parameters to show, given that on disk."""
        if self.flat is not None:
            stored = self.flat.describe(stored)
        shown = [entry.rename(self._rename(entry.name)) for entry in stored if self._shows(entry.name)]
        if not self.frozen:
            return tuple(shown)
        # The model's own order; what it does not know stands last, as it came.
        shown += [Parameter.of(name, array) for name, array in self.frozen.items()]
        index_of = {name: index for index, name in enumerate(self.order)}
        # Stable for what the model does not know: these stay in their order, behind all others.
        return tuple(sorted(shown, key=lambda entry: index_of.get(entry.name, len(index_of))))

    def show_model(self, stored: Arrays | None, parameters: Sequence[Parameter]) -> Arrays | None:
        """Return a model as it is to be seen, whose arrays on disk are ``stored``; ``parameters`` order its arrays."""
        return self._show(stored, parameters, zero=False)

    def show_change(self, stored: Arrays | None, parameters: Sequence[Parameter]) -> Arrays | None:
        """Return a gradient or a difference likewise: of what is frozen it is zero."""
        return self._show(stored, parameters, zero=True)

    def _show(self, stored: Arrays | None, parameters: Sequence[Parameter], *, zero: bool) -> Arrays | None:
        if stored is None:
            return None
        if self.flat is not None:
            stored = self.flat.split(stored)
        on_disk = {self._rename(name): name for name in stored if self._shows(name)}
        if not self.frozen:
            return StoredArrays(stored.__getitem__, on_disk)
        there, frozen = stored, self.frozen

        def read(name: str) -> NDArray[Any]:
            if name in on_disk:
                return there[on_disk[name]]
            if zero:
                return np.zeros_like(frozen[name])
            # Callers may change what they get.
            return frozen[name].copy()

        # A dict keeps the order, and each name once.
        names = dict.fromkeys([*(parameter.name for parameter in parameters), *on_disk])
        return StoredArrays(read, {name: name for name in names if name in on_disk or name in frozen})

    def show_entries(self, received: Arrays | None, stored: Arrays | None) -> Arrays | None:
        """Return the model that a reply of indices and values makes of what was sent; ``None`` if it makes none."""
        if self.entries is None or received is None or stored is None:
            return None
        names: list[str] = []
        for name in self.entries.into:
            # Indices count through the vector that is sent as through the arrays that stand in it.
            if self.flat is not None and name == self.flat.vector:
                names += self.flat.names
            else:
                names.append(name)
        return self.entries.put_into(received, stored, [self._rename(name) for name in names])

    def _rename(self, name: str) -> str:
        return self.new_names.get(name, name)

    def _shows(self, name: str) -> bool:
        return not self.chosen or name in self.chosen


def move(received: Arrays, differences: Arrays, factor: float) -> Arrays:
    """Return the model ``received``, moved as far as a reply tells: a factor times what the local model differs by."""

    def read(name: str) -> NDArray[Any]:
        before = received[name]
        if name not in differences:
            return before
        # In double precision, so that only the last step rounds; counts, such as batches seen, are whole numbers.
        after = before.astype(np.float64) + differences[name].astype(np.float64) / factor
        if before.dtype.kind != "f":
            after = np.rint(after)
        return after.astype(before.dtype)

    return StoredArrays(read, {name: name for name in dict.fromkeys([*received, *differences])})
