"""Sketches of updates: as a record holds them, or of shadow clients of models too large to keep whole.

What a sketch is says :mod:`fedattack.record.sketch`. Gradients of whole updates take none: their products are exact
whatever the model's size (:mod:`fedattack.learning.rows`). A linear detector of sketches is one of updates, too:
:meth:`Sketch.back` gives its weights.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.base.errors import NeedsError, short
from fedattack.learning.rows import GradientRows, KeptRows, Whole
from fedattack.record import Record
from fedattack.record.sketch import SketchPlan


@dataclass(frozen=True)
class Sketch:
    """Project vectors (size,) of a model's parameters onto the sums of each array.

    Attributes
    ----------
    plan
        Of the model's arrays.
    names
        The arrays of which a vector consists, in its order, by their names in the plan.
    """

    plan: SketchPlan
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """Entries of a vector."""
        return sum(self.plan.sizes[name] for name in self.names)

    @property
    def width(self) -> int:
        """Sums of its sketch."""
        return sum(self.plan.widths[name] for name in self.names)

    def describe_use(self, whose: str) -> str:
        """Say for a report that what the record holds was used; ``whose`` names what was made of it."""
        return (
            f"{whose} on sketches, as the record holds them: random projections of updates of {self.size:,} numbers to "
            f"{self.width:,}"
        )

    @cached_property
    def _signs(self) -> Tensor:
        parts = []
        for name in self.names:
            bits = np.unpackbits(self.plan.signs(name), bitorder="little")[: self.plan.sizes[name]]
            parts.append(2 * bits.view(np.int8) - 1)
        return torch.from_numpy(np.concatenate(parts))

    def _arrays(self) -> Iterator[tuple[slice, int]]:
        """Yield where each array lies in a vector, and its number of sums."""
        at = 0
        for name in self.names:
            size = self.plan.sizes[name]
            if size:
                yield slice(at, at + size), self.plan.widths[name]
            at += size

    def of(self, vectors: Tensor) -> Tensor:
        """Return the sketches (n, width) of vectors (n, size)."""
        parts, signs = [], self._signs.to(vectors.device)
        for where, width in self._arrays():
            signed = vectors[:, where] * signs[where]
            padded = torch.nn.functional.pad(signed, (0, -signed.shape[1] % width))
            parts.append(padded.unflatten(1, (-1, width)).sum(dim=1))
        return torch.cat(parts, dim=1)

    def of_update(self, update: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
        """Return the sums of an update, by parameter in the order of :attr:`names`; empty arrays have none."""
        own = {name: array.reshape(-1) for name, array in update.items() if array.size}
        sums = self.of(torch.from_numpy(np.concatenate([*own.values()]))[None])[0]
        parts = sums.split([self.plan.widths[name] for name in self.names])
        return {name: part.numpy() for name, part in zip(own, parts, strict=True)}

    def back(self, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return weights (…, size) whose products with vectors are those of ``weights`` (…, width) with sketches."""
        out = np.empty((*weights.shape[:-1], self.size), dtype=np.float32)
        signs, at = self._signs.numpy(), 0
        for where, width in self._arrays():
            own = weights[..., at : at + width]
            length = where.stop - where.start
            times = -(-length // width)
            out[..., where] = np.tile(own, times)[..., :length] * signs[where]
            at += width
        return out


def recorded_sketch(attack: str, record: Record, parameters: Mapping[str, Tensor]) -> Sketch | None:
    """Return how the updates of the ``parameters`` that are not empty were sketched; ``None`` where they are whole.

    Raises
    ------
    NeedsError
        If one is in no sketch; ``attack`` is named.
    """
    if record.sketch_plan is None:
        return None
    names = record.on_disk([name for name, value in parameters.items() if value.numel()])
    lacking = [shown for shown, name in names.items() if name not in record.sketch_plan.sizes]
    if lacking:
        raise NeedsError(
            f"attack {attack} needs sketches of all parameters, and {record.path} has none of {short(lacking[0], 60)}, "
            "which it says are no floating-point numbers; record whole updates"
        )
    return Sketch(record.sketch_plan, tuple(names.values()))


class SketchedRows(KeptRows[Whole]):
    """Sketches (n, width) of gradients, within a bound of memory.

    Parameters
    ----------
    rows
        The gradients, of which nothing is kept.
    sketch
        Of them.
    room
        Bytes for sketches that are kept from pass to pass. Others are computed again in each.
    scratch
        Bytes for what is computed at a time, beside what the gradients take.
    """

    def __init__(self, rows: GradientRows, sketch: Sketch, *, room: float, scratch: float) -> None:
        super().__init__(len(rows), rows.generator, room)
        self.rows = rows
        self.sketch = sketch
        # What is kept lies in one matrix. Many small ones between large temporary ones would scatter over the memory.
        fitting = min(len(rows), int(room // (4 * sketch.width)))
        self._matrix = rows.start.new_empty((fitting, sketch.width))
        # Half of it for a block, and half for gradients, each with two copies that have signs.
        self._rows_of_block = max(1, int(scratch / 2 / (4 * sketch.width)))
        self._at_once = max(1, int(scratch / 2 / (3 * 4 * sketch.size)))

    def compute(self, first: int, last: int, generator: torch.Generator) -> Iterator[tuple[slice, Whole]]:
        """See :class:`KeptRows`."""
        for where, block in self.rows.compute(first, last, generator):
            for begin in range(0, len(block), self._rows_of_block):
                part = block.of(slice(begin, begin + self._rows_of_block))
                place = slice(where.start + begin, where.start + begin + len(part))
                matrix = self._matrix[place]
                if len(matrix) < len(part):
                    matrix = self.rows.start.new_empty((len(part), self.sketch.width))
                for row in range(0, len(part), self._at_once):
                    some = slice(row, row + self._at_once)
                    matrix[some] = self.sketch.of(part.of(some).multiplied_out())
                yield place, Whole(matrix)
