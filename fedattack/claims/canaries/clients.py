"""Canary clients (Andrew et al. 2024): a lower bound on ε from how far the released model moves along their directions.

The released updates of all rounds are held against the canaries' directions. A round's update is scaled to length 1,
and all are added up: a vector that does not depend on a direction that nobody sent. So the null is exact: Student's t,
see :meth:`fedattack.claims.canaries.directions.Products.scores`. The alternative is not: the canaries' scores are taken
as independent draws of one distribution, and the bound by shape takes them as Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fedattack.base.errors import ConfigError, NeedsError, RecordError
from fedattack.claims.canaries.bounds import (
    bound_by_ranks,
    epsilon_per_round,
    shift_from_null,
)
from fedattack.claims.canaries.directions import Products, blocks, sizes_of
from fedattack.claims.canaries.file import Canaries
from fedattack.claims.canaries.gradients import SPARSE
from fedattack.claims.canaries.models import Arrays, models_of, shapes_of
from fedattack.claims.canaries.result import BoundPair, CanaryResult
from fedattack.claims.claim import Claim
from fedattack.claims.tester import LEVEL
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Record


def measure_clients(record: Record, canaries: Canaries, claim: Claim, accountant: float | None) -> CanaryResult:
    """Bound ε by canary clients; ``accountant`` is what arithmetic gives for the run, at most."""
    movement = ReleasedMovement(record)
    count = canaries.count
    _check_count(count, movement.entries)
    # As many directions again that nobody sent show what chance looks like.
    products = movement.products(canaries.seed, range(2 * count))
    inside = products.of_first(count)
    scores, out = inside.scores(), products.scores()[count:]
    shift = shift_from_null(scores, inside.freedom)
    by_shape = -math.inf
    if shift is not None:
        by_shape = epsilon_of(shift, claim.delta)
    bounds = BoundPair(by_shape, bound_by_ranks(scores, inside.freedom, claim.delta), "ranks")
    message = None
    if shift is not None and not claim.draws:
        message = epsilon_per_round(shift, movement.rounds, claim.delta)
    notes = (
        bounds.describe(),
        *_describe_rounds(claim, movement.rounds),
        *_describe_distance(claim),
    )
    by_order = None
    if bounds.rests_on_shape or claim.epsilon_of == "message":
        by_order = max(0.0, bounds.by_order)
    return CanaryResult(
        kind="client",
        count=count,
        bound_message=message,
        bound_run=bounds.higher,
        estimate=epsilon_of(float(scores.mean()), claim.delta),
        confidence=LEVEL,
        accountant=accountant,
        cost=movement.cost(canaries),
        scores={"in": scores.tolist(), "out": out.tolist()},
        notes=notes,
        by_order=by_order,
    )


def _check_count(count: int, entries: int) -> None:
    if entries < SPARSE * count:
        raise ConfigError(
            f"{count} canaries beside a model of {entries:,} numbers: they would not be far from one another; take "
            f"{entries // SPARSE} at most"
        )


def _describe_rounds(claim: Claim, rounds: int) -> Iterator[str]:
    if rounds != claim.rounds:
        yield (
            f"the record has {rounds} rounds, and the claim speaks of {claim.rounds}: the bound is that of the record"
        )


def _describe_distance(claim: Claim) -> Iterator[str]:
    if claim.relation == "replace":
        yield "a canary is held against no update at all, which is half as far as the claim's neighbours may be"


class ReleasedMovement:
    """How the released model moved.

    Attributes
    ----------
    movement
        (entries,): of each round, scaled to length 1 and added up.
    """

    def __init__(self, record: Record) -> None:
        self._lengths: list[float] = []
        self._replies: list[int] = []
        self.movement = np.zeros(0)
        shapes: dict[str, tuple[int, ...]] = {}
        for round_ in record:
            models = models_of(round_)
            if models is None or not round_.participants:
                continue
            before, after = models
            own = shapes_of(before)
            shapes = shapes or own
            if own != shapes:
                raise RecordError(f"{round_.where}: the model has not the arrays of the rounds before")
            self._add(before, after, round_.where)
            self._replies.append(len(round_.participants))
        if not self._lengths:
            raise NeedsError(
                f"{record.path}: canaries need the model before and after a round, and no round of the record has both"
            )
        if not any(self._lengths):
            raise NeedsError(
                f"{record.path}: the model is the same before and after all of {len(self._lengths)} rounds, so that no "
                "canary is in it; look whether the server ever took up a reply"
            )

    def _add(self, before: Arrays, after: Arrays, where: str) -> None:
        if not self._lengths:
            self.sizes = sizes_of(before)
            self.movement = np.zeros(sum(self.sizes))
        parts = []
        for (name, array), size in zip(before.items(), self.sizes, strict=True):
            if size:
                parts.append((after[name].astype(np.float64) - array.astype(np.float64)).reshape(-1))
        movement = np.concatenate(parts)
        # Also infinite where a number is, or is too large to be squared.
        with np.errstate(over="ignore", invalid="ignore"):
            length = float(np.linalg.norm(movement))
        if not math.isfinite(length):
            raise RecordError(
                f"{where}: the released model holds numbers that are not finite, or are too large, against which "
                "nothing can be held; look at what the server made in that round"
            )
        self._lengths.append(length)
        if length:
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
        for position, part, drawn in blocks(seed, canaries, self.sizes):
            start = starts[position]
            products.add(drawn, self.movement[start + part.start : start + part.stop])
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
