"""Gradients of examples as rows of a matrix, kept from pass to pass as far as there is memory for them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedattack.learning.inputs import Examples
from fedattack.learning.layer_model import LayerModel
from fedattack.learning.layer_products import Layer, LayerBlock, LayerProduct
from fedattack.learning.rows import size_on
from fedattack.learning.torch_utils import fix_seed

# Examples whose dropout masks are drawn together, as :meth:`ShadowModel.record_gradients` does.
_DRAWN = 128
PASSES = 4
"""Copies of the layers' outputs that a forward and a backward pass hold."""

_MERGED = {"cpu": 512, "cuda": 2**14}
"""Rows that are put together once all are kept."""

_COMPUTED = {"cpu": _DRAWN, "cuda": 32 * _DRAWN}
"""Rows that are computed in one go where all of them are kept, as far as there is memory for what makes them."""


class GradientRows:
    """Gradients (n, size) of examples at one point, within a bound of memory.

    Parameters
    ----------
    model
        The model, taken apart.
    start
        (size,): parameters.
    x, y
        (n, *shape), (n,): examples and labels.
    generator
        Makes the generator of dropout masks. They are those of
        :meth:`fedattack.learning.shadows.ShadowModel.record_gradients`.
    room
        Bytes for what is kept from pass to pass. What does not fit is computed again in each.
    scratch
        Bytes for what is computed at a time.
    """

    def __init__(
        self,
        model: LayerModel,
        start: Tensor,
        x: Examples,
        y: Tensor,
        generator: Callable[[], torch.Generator],
        *,
        room: float,
        scratch: float,
    ) -> None:
        self.model = model
        self.start = start
        self.x = x
        self.y = y
        self.generator = generator
        self.room = room
        # by the first row: blocks, and the state in which the draws of their masks leave the generator
        self._kept: dict[int, tuple[list[tuple[slice, LayerBlock]], Tensor]] = {}
        # Layers are multiplied out whose gradients are smaller than what makes them up; and where there is room, those
        # of many positions, whose gradients are faster to multiply with.
        small = tuple(layer for layer in model.layers if layer.size < layer.numbers)
        large = tuple(layer for layer in model.layers if layer.positions > 1 or layer in small)
        self._all_fit = room >= 4 * numbers_kept(model, large) * len(x)
        self.multiplied = large if self._all_fit else small
        at_once = 4 * (PASSES * model.activations + 3 * numbers_kept(model, large))
        fitting = int(max(1, scratch // at_once))
        self.computed = _DRAWN
        if self._all_fit:
            most = min(fitting, size_on(start, _COMPUTED))
            self.computed = max(1, most // _DRAWN) * _DRAWN
        self.chunk = min(self.computed, fitting)
        self._merged: list[tuple[slice, LayerBlock]] = []
        # where all rows fit, their columns are written into one matrix for each run of them
        self._columns: list[tuple[slice, Tensor]] = []
        if self._all_fit:
            for run in model.runs(self.multiplied):
                self._columns.append((run, torch.empty((len(x), run.stop - run.start), device=start.device)))

    def __len__(self) -> int:
        return len(self.x)

    def blocks(self) -> Iterator[tuple[slice, LayerBlock]]:
        """Yield all rows, block by block; see :class:`fedattack.learning.rows.Rows`."""
        if self._merged:
            yield from self._merged
            return
        generator = self.generator()
        for first in range(0, len(self), self.computed):
            if first in self._kept:
                blocks, state = self._kept[first]
                generator.set_state(state)
                yield from blocks
                continue
            made: list[tuple[slice, LayerBlock]] = []
            for where, block in self._compute(first, min(first + self.computed, len(self)), generator):
                self.room -= block.bytes
                # Where one was too large, none of those after it is kept either.
                if self.room >= 0:
                    made.append((where, block))
                yield where, block
            if self.room >= 0:
                self._kept[first] = made, generator.get_state()
        if self._all_fit:
            self._merge()

    def _merge(self) -> None:
        """Put the blocks together, all of which are kept: fewer products, of larger matrices, are faster."""
        made = [block for blocks, _ in self._kept.values() for _, block in blocks]
        self._kept.clear()
        products = []
        for parts in zip(*[block.products for block in made], strict=True):
            inputs, deltas = torch.cat([part.inputs for part in parts]), torch.cat([part.deltas for part in parts])
            products.append(LayerProduct(parts[0].layer, inputs, deltas))
        whole = LayerBlock(self.model.shadow.size, self._columns, products)
        step = size_on(self.start, _MERGED)
        for first in range(0, len(self), step):
            rows = slice(first, min(first + step, len(self)))
            self._merged.append((rows, whole.of(rows)))

    def _compute(self, first: int, last: int, generator: torch.Generator) -> Iterator[tuple[slice, LayerBlock]]:
        """Compute the rows of some examples; the masks of at most :data:`_DRAWN` are drawn together."""
        shadow = self.model.shadow
        drawn = [shadow.draw_masks((min(_DRAWN, last - at), 1), generator) for at in range(first, last, _DRAWN)]
        masks = drawn[0]
        if len(drawn) > 1:
            masks = tuple(map(torch.cat, zip(*drawn, strict=True)))
        for begin in range(first, last, self.chunk):
            rows = slice(begin, min(begin + self.chunk, last))
            own = tuple(mask[begin - first : rows.stop - first] for mask in masks)
            # what draws its own dropout must draw the same in each pass, and else anew
            with fix_seed(generator.initial_seed() + begin, shadow.device):
                into = [matrix[rows] for _, matrix in self._columns] or None
                block = self.model.block(self.start, self.x[rows], self.y[rows], own, self.multiplied, into)
            yield rows, block


def numbers_kept(model: LayerModel, multiplied: Sequence[Layer] = ()) -> int:
    """Return how many numbers are kept of an example if the gradients of some layers are multiplied out."""
    total = model.dense
    for layer in model.layers:
        if layer in multiplied:
            total += layer.size
        else:
            total += min(layer.numbers, layer.size)
    return total
