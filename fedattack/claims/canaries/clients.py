"""Canary clients (Andrew et al. 2024): how far the released model moves along their directions.

The released updates of all rounds are held against the canaries' directions. A round's update is scaled to length 1,
and all are added up: a vector that does not depend on a direction that nobody sent. So the null is exact: Student's t,
see :meth:`fedattack.claims.canaries.directions.Products.scores`. The alternative is not: the canaries' scores are taken
as independent draws of one distribution, and the bound by shape takes them as Gaussian.
"""

from __future__ import annotations

import math

import numpy as np

from fedattack.base.errors import ConfigError, NeedsError, RecordError
from fedattack.claims.canaries.bounds import CanaryScores, KnownNull
from fedattack.claims.canaries.directions import Arrays, Products, blocks, models_of, shapes_of, sizes_of
from fedattack.claims.canaries.file import Canaries
from fedattack.claims.canaries.gradients import SPARSE
from fedattack.record import Record


def score_clients(record: Record, canaries: Canaries) -> CanaryScores:
    """Score canary clients, and as many directions that nobody sent, which show what chance looks like.

    Raises
    ------
    ConfigError
        If the model has too few numbers for that many canaries.
    NeedsError, RecordError
        As :class:`ReleasedMovement` does.
    """
    movement = ReleasedMovement(record)
    count = canaries.count
    if movement.entries < SPARSE * count:
        raise ConfigError(
            f"{count} canaries for a model of {movement.entries:,} numbers: they would be too close to each other; use "
            f"{movement.entries // SPARSE} at most"
        )
    # As many directions again that nobody sent: they show chance.
    products = movement.products(canaries.seed, range(2 * count))
    inside = products.of_first(count)
    return CanaryScores(
        inside.scores(),
        products.scores()[count:],
        KnownNull(inside.freedom),
        rounds=movement.rounds,
        cost=movement.cost(canaries),
    )


class ReleasedMovement:
    """How the released model moved.

    Attributes
    ----------
    movement
        (entries,): of each round, scaled to length 1 and added up.

    Raises
    ------
    NeedsError
        If no round has the model before and after it, or the model never changes.
    RecordError
        If the model has other arrays in one round than in another.
    """

    def __init__(self, record: Record) -> None:
        self._lengths: list[float] = []
        self._replies: list[int] = []
        self.movement = np.zeros(0)
        shapes: dict[str, tuple[int, ...]] = {}
        for round_ in record:
            # A round without participants leaves the model as it was.
            models = models_of(round_)
            if models is None or not round_.participants:
                continue
            before, after = models
            current = shapes_of(before)
            shapes = shapes or current
            if current != shapes:
                raise RecordError(f"{round_.where}: the model lacks the arrays of earlier rounds")
            self._add(before, after, round_.where)
            self._replies.append(len(round_.participants))
        if not self._lengths:
            raise NeedsError(
                f"{record.path}: canaries need the model before and after a round, and no round of the record has both"
            )
        if not any(self._lengths):
            raise NeedsError(
                f"{record.path}: the model is the same before and after all of {len(self._lengths)} rounds, so no "
                "canary is in it; check whether the server ever used a reply"
            )

    def _add(self, before: Arrays, after: Arrays, where: str) -> None:
        if not self._lengths:
            self.sizes = sizes_of(before)
            self.movement = np.zeros(sum(self.sizes))
        moved = []
        for (name, array), size in zip(before.items(), self.sizes, strict=True):
            if size:
                moved.append((after[name].astype(np.float64) - array.astype(np.float64)).reshape(-1))
        movement = np.concatenate(moved)
        # Also infinite where a number is, or is too large to be squared.
        with np.errstate(over="ignore", invalid="ignore"):
            length = float(np.linalg.norm(movement))
        if not math.isfinite(length):
            raise RecordError(
                f"{where}: the released model contains numbers that are not finite or are too large to compare; check "
                "what the server did in that round"
            )
        self._lengths.append(length)
        if length:
            # Length 1 for each round, so that no single large round decides.
            self.movement += movement / length

    @property
    def entries(self) -> int:
        """Numbers of the model that canaries move."""
        return len(self.movement)

    @property
    def rounds(self) -> int:
        """Rounds in which the model moved at all."""
        return int(np.count_nonzero(self._lengths))

    def products(self, seed: int, canaries: range) -> Products:
        """Hold the directions of canaries against the movement."""
        products = Products(len(canaries))
        starts = np.cumsum([0, *self.sizes])
        for index, block, drawn in blocks(seed, canaries, self.sizes):
            start = starts[index]
            products.add(drawn, self.movement[start + block.start : start + block.stop])
        return products

    def cost(self, canaries: Canaries) -> dict[str, float]:
        """Return the canaries' share of the replies, and how far they move the model beside its own movement."""
        replies = float(np.mean(self._replies))
        clip = canaries.clip or 0.0
        return {
            "share": min(1.0, canaries.count / replies),
            "moved_by_canaries": clip * math.sqrt(canaries.count) / replies,
            "moved": float(np.mean(self._lengths)),
        }
