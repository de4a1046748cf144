"""Shadow clients that are trained as clients are, in batches: the exact mode, with all updates in memory."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedattack.learning.rows import Whole
from fedattack.learning.shadows import ShadowModel
from fedattack.threats.property.clients import DrawnClients, Features
from fedattack.threats.property.krylov import KrylovSpace, span_spaces, to_host
from fedattack.threats.property.setting import PARTS, DetectorSetting, Part


class ExactClients(DrawnClients):
    """Shadow clients, trained; ``count`` of each size, or as many as there are examples to make them of."""

    def __init__(
        self, setting: DetectorSetting, shadow: ShadowModel, start: Tensor, number: int, *, count: int | None = None
    ) -> None:
        super().__init__(setting, shadow, start, number)
        self.count = count

    def spaces(self) -> Iterator[KrylovSpace]:
        """See :class:`DrawnClients`."""
        for question in range(len(self.setting.questions)):
            plus = torch.cat(list(self._updates(question, "train", True)))
            minus = torch.cat(list(self._updates(question, "train", False)))
            mean_plus, mean_minus = plus.mean(dim=0), minus.mean(dim=0)
            # in place: the updates fill much of the memory
            plus -= mean_plus
            minus -= mean_minus
            matrix = torch.cat([plus, minus])
            del plus, minus
            weights = torch.full((len(matrix),), 1 / len(matrix), device=matrix.device)
            yield from span_spaces(Whole(matrix), weights, (mean_plus - mean_minus)[None], self.steps)

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        """See :class:`DrawnClients`."""
        plus, minus = (
            [to_host(updates @ directions.T) for updates in self._updates(question, part, has)] for has in (True, False)
        )
        return plus, minus

    def streams(self, question: int, part: Part, has: bool) -> tuple[np.random.Generator, torch.Generator]:
        """Make the generators of clients' batches and of their training."""
        stream = (PARTS.index(part), question, has)
        return self.numbers(*stream), self.masks(0, *stream)

    def clients(self, part: Part) -> list[int]:
        """How many shadow clients to make of each size."""
        return self.counts(self.count or len(self.rows[part]))

    def _updates(self, question: int, part: Part, has: bool) -> Iterator[Tensor]:
        """Yield the updates (clients, size) of each size of client."""
        numbers, masks = self.streams(question, part, has)
        behaviour = self.behaviour(question, has)
        for batches in self.batches(question, has, part, self.clients(part), numbers):
            x, y = self.records(question, batches)
            updates = self.shadow.updates(
                self.start, x, y, self.setting.training, generator=masks, maximise=behaviour == "ascend"
            )
            if behaviour == "invert":
                updates = -updates
            yield updates
