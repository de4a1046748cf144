"""Shadow clients of a model so large that only sketches of their updates fit into memory."""

from collections.abc import Iterator

from torch import Tensor

from fedattack.learning.shadows import ShadowModel
from fedattack.threats.property.exact import ExactClients
from fedattack.threats.property.exact_in_parts import ShadowRows
from fedattack.threats.property.memory import STEPS
from fedattack.threats.property.setting import DetectorSetting, Part
from fedattack.threats.property.sketch import Sketch


class SketchedClients(ExactClients):
    """Shadow clients, trained a few at a time; directions and projections are of sketches of their updates."""

    def __init__(
        self, setting: DetectorSetting, shadow: ShadowModel, start: Tensor, number: int, sketch: Sketch
    ) -> None:
        super().__init__(setting, shadow, start, number)
        self.sketch = sketch
        # The Krylov space is one of sketches, and small.
        self.steps = STEPS

    def _updates(self, question: int, part: Part, has: bool) -> Iterator[Tensor]:
        """Yield the sketches (clients, width) of the updates of each size of client."""
        rows = ShadowRows(self, question, part, has, 0.0)
        sketches = self.start.new_empty((len(rows), self.sketch.width))
        for where, block in rows.blocks():
            sketches[where] = self.sketch.of(block.matrix)
        yield from sketches.split(rows.counts)
