"""Shadow clients whose updates do not fit into memory: they are trained again in each pass over their matrix."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.learning.rows import Block, Centred, Whole, group_means
from fedattack.learning.shadows import CHUNK, TRAINED
from fedattack.learning.torch_utils import fix_seed
from fedattack.threats.property.clients import Features
from fedattack.threats.property.exact import ExactClients
from fedattack.threats.property.krylov import KrylovSpace, project_rows, span_spaces
from fedattack.threats.property.memory import AT_A_TIME
from fedattack.threats.property.setting import Part


class ExactClientsInParts(ExactClients):
    """Shadow clients, trained in each pass; the numbers are those of :class:`ExactClients` but for rounding."""

    def spaces(self) -> Iterator[KrylovSpace]:
        """See :class:`fedattack.threats.property.clients.DrawnClients`."""
        for question in range(len(self.setting.questions)):
            yield self._space_of(question)

    def _space_of(self, question: int) -> KrylovSpace:
        room = self.room(1)
        rows = _JoinedRows(*(ShadowRows(self, question, "train", has, room / 2) for has in (True, False)))
        sides = [torch.full((len(side),), number) for number, side in enumerate((rows.plus, rows.minus))]
        group = torch.cat(sides).to(self.start.device)
        means = group_means(rows, group, 2, self.shadow.size)
        weights = torch.full((len(rows),), 1 / len(rows), device=means.device)
        (space,) = span_spaces(Centred(rows, means, group), weights, (means[0] - means[1])[None], self.steps)
        return space

    def project(self, question: int, part: Part, directions: Tensor) -> Features:
        """See :class:`fedattack.threats.property.clients.DrawnClients`."""
        plus, minus = (self._project_side(question, part, has, directions) for has in (True, False))
        return plus, minus

    def _project_side(self, question: int, part: Part, has: bool, directions: Tensor) -> list[NDArray[np.float64]]:
        """Project the clients with or without the property, (clients, k) for each size of client."""
        rows = ShadowRows(self, question, part, has, 0.0)
        return np.split(project_rows(rows, directions), np.cumsum(rows.counts)[:-1])


class ShadowRows:
    """Updates (n, size) of shadow clients, trained again in each pass but for what fits into ``room`` bytes."""

    def __init__(self, exact: ExactClients, question: int, part: Part, has: bool, room: float) -> None:
        self.exact = exact
        self.question = question
        self.part: Part = part
        self.has = has
        self.room = room
        self.counts = exact.clients(part)
        # by the first row: updates, and the state in which the draws of their training leave the generator
        self._kept: dict[int, tuple[list[Tensor], Tensor]] = {}

    def __len__(self) -> int:
        return sum(self.counts)

    def blocks(self) -> Iterator[tuple[slice, Whole]]:
        """Yield all rows, block by block; see :class:`fedattack.learning.rows.Rows`."""
        exact = self.exact
        numbers, masks = exact.streams(self.question, self.part, self.has)
        at = 0
        for batches in exact.batches(self.question, self.has, self.part, self.counts, numbers):
            for first in range(0, len(batches), CHUNK):
                for updates in self._chunk(at, batches[first : first + CHUNK], masks):
                    yield slice(at, at + len(updates)), Whole(updates)
                    at += len(updates)

    def _chunk(self, at: int, batches: NDArray[np.int64], masks: torch.Generator) -> Iterable[Tensor]:
        """Return the updates of clients whose steps are drawn together."""
        if at in self._kept:
            updates, state = self._kept[at]
            # The next chunk must draw what it drew in the first pass, in which this one was trained.
            masks.set_state(state)
            return updates
        made = self._train(at, batches, masks)
        taken = 4.0 * self.exact.shadow.size * len(batches)
        if taken > self.room:
            return made
        self.room -= taken
        self._kept[at] = list(made), masks.get_state()
        return self._kept[at][0]

    def _train(self, at: int, batches: NDArray[np.int64], masks: torch.Generator) -> Iterator[Tensor]:
        exact, shadow = self.exact, self.exact.shadow
        behaviour = exact.behaviour(self.question, self.has)
        together = int(np.clip(AT_A_TIME * exact.setting.memory / (4 * shadow.size * TRAINED), 1, CHUNK))
        x, y = exact.records(self.question, batches)
        # what draws its own dropout must draw the same in each pass
        with fix_seed(at, shadow.device):
            for updates in shadow.update_parts(
                exact.start,
                x,
                y,
                exact.setting.training,
                generator=masks,
                maximise=behaviour == "ascend",
                together=together,
            ):
                if behaviour == "invert":
                    yield -updates
                else:
                    yield updates


@dataclass(frozen=True)
class _JoinedRows:
    """Rows with the property, and after them rows without."""

    plus: ShadowRows
    minus: ShadowRows

    def __len__(self) -> int:
        return len(self.plus) + len(self.minus)

    def blocks(self) -> Iterator[tuple[slice, Block]]:
        yield from self.plus.blocks()
        for where, block in self.minus.blocks():
            yield slice(len(self.plus) + where.start, len(self.plus) + where.stop), block
