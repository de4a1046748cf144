"""What canaries show of a recorded run: a lower bound on ε.

**Clients** (Andrew et al. 2024). The released updates of all rounds are held against the canaries' directions. A
round's update is scaled to length 1, and all are added up: a vector that does not depend on a direction that nobody
sent. So the null is exact: Student's t, see :meth:`fedattack.claims.canaries.directions.Products.scores`. The
alternative is not: the canaries' scores are taken as independent draws of one distribution, and the bound by shape
takes them as Gaussian.

**Examples** (Steinke et al. 2023). Each was included by a fair coin of its own. The score is what a client's update has
of an example's gradient, by regression on the gradients of all canaries of that client. The bound by guesses assumes
nothing but the coins (Theorem 5.2). The bound by shape takes the scores as Gaussian.

Of both bounds, at 97.5 % each, the higher one holds at 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, NeedsError, RecordError
from fedattack.claims.accounting import configured
from fedattack.claims.canaries.bounds import (
    GUESSES,
    Scores,
    by_guesses,
    by_ranks,
    by_two_samples,
    estimated,
    guessed,
    of_shift,
    shift_from_null,
)
from fedattack.claims.canaries.directions import Products, blocks, sizes_of
from fedattack.claims.canaries.file import CANARIES, EXAMPLES, Canaries, Examples
from fedattack.claims.canaries.gradients import SPARSE, Gradients, Seen
from fedattack.claims.claim import Claim
from fedattack.claims.figures import in_figures
from fedattack.claims.tester import LEVEL
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Record, Round

Arrays = Mapping[str, NDArray[Any]]

# Each way to a bound has half of the error.
_HALF = (1 - LEVEL) / 2
# Other clients' updates that are taken out of an update at most, and how many numbers of these are held in memory.
_OTHERS = 20
_HELD = 2**24
# Updates that a note names at most.
_NAMED = 5


@dataclass(frozen=True)
class CanaryResult:
    """What canaries show.

    Attributes
    ----------
    kind, count
        ``client`` or ``record``, and how many.
    bound_message, bound_run
        Lower bounds on ε at ``confidence``, of one released model (or message) and of the run; None if there is none.
    estimate
        A point estimate of the run's ε. It is above the truth about as often as below.
    confidence
        Of the bounds.
    accountant
        What arithmetic gives for the run, at most; None if the claim lacks numbers.
    cost
        What the canaries cost the model; None if that is not known.
    scores
        ``in``: of canaries that took part. ``out``: of examples that were left out, or directions that nobody sent.
    notes
        What a reader should know besides, a sentence each.
    by_order
        What ranks or guesses show alone of the run, where the bounds rest on a Gaussian shape; else None.
    """

    kind: Literal["client", "record"]
    count: int
    bound_message: float | None
    bound_run: float
    estimate: float
    confidence: float
    accountant: float | None
    cost: Mapping[str, float] | None
    scores: Mapping[str, list[float]]
    notes: tuple[str, ...] = ()
    by_order: float | None = None


def measure_canaries(
    record: Record,
    canaries: Canaries,
    claim: Claim,
    *,
    examples: Examples | None = None,
    model: Any = None,
    loss: str = "cross-entropy",
    nodes: Mapping[str, str] | None = None,
    public: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> CanaryResult:
    """Bound the ε of a recorded run from below by its canaries.

    Parameters
    ----------
    record
        Of the run; both views will do.
    canaries
        As ``canaries.toml`` has them.
    claim
        What is claimed; δ counts, and what is configured stands beside the bound.
    examples, model, loss
        Of canary examples: these, a torch module whose parameters have the record's names, and what clients minimise.
    nodes
        Of canary examples: the client behind each node. Without, or in the aggregate view, updates of the common model
        stand in for those of clients, which tell less.
    public
        Of canary examples: some examples and labels like those of clients that no client holds, such as of a test
        split. What an update has of their gradients says nothing of a canary, and is taken out.

    Raises
    ------
    NeedsError
        If the record has no round whose common model is known before and after, or examples come without a model.
    RecordError
        If it is damaged.
    ConfigError
        If the claim is not about what the canaries are.
    """
    _check(canaries, claim)
    accountant = configured(claim).run
    most = None if accountant is None else accountant.high
    if canaries.kind == "client":
        return _of_clients(record, canaries, claim, most)
    if examples is None or model is None:
        raise NeedsError("canary examples need the examples themselves, and the model; give both")
    if len(examples.y) != canaries.count:
        raise ConfigError(
            f"{CANARIES} speaks of {canaries.count:,} canaries, and {EXAMPLES} holds {len(examples.y):,}; give the two "
            "that were written together"
        )
    return _of_examples(record, examples, claim, most, Gradients(model, loss, examples, public), nodes or {})


def _check(canaries: Canaries, claim: Claim) -> None:
    wanted = "client" if canaries.kind == "client" else "example"
    if claim.protects != wanted:
        raise ConfigError(
            f"the canaries are {wanted}s, and the claim is about one {claim.protects}; expected the same unit"
        )
    if wanted == "example" and claim.relation != "add-remove":
        raise ConfigError(
            "canary examples are there or not, and the claim is about replacing one; a claim for add-remove is needed"
        )


def _of_clients(record: Record, canaries: Canaries, claim: Claim, accountant: float | None) -> CanaryResult:
    released = _Released(record)
    count, entries = canaries.count, released.ways.shape[1]
    if entries < SPARSE * count:
        raise ConfigError(
            f"{count} canaries beside a model of {entries:,} numbers: they would not be far from one another; take "
            f"{entries // SPARSE} at most"
        )
    # As many directions again that nobody sent show what chance looks like.
    products = released.products(canaries.seed, range(2 * count))
    inside = products.of_first(count)
    scores, out = inside.scores(0), products.scores(0)[count:]
    shift = shift_from_null(scores, inside.freedom)
    by_shape = -math.inf if shift is None else epsilon_of(shift, claim.delta)
    by_rank = by_ranks(scores, inside.freedom, claim.delta)
    notes = [_how(by_shape, by_rank, "ranks"), *_rounds_note(claim, released.rounds)]
    message = None
    if shift is not None and claim.sampling == 1:
        message = of_shift(shift, released.rounds, claim.delta)
    fitted = in_figures(estimated(scores, claim.delta))
    notes.append(
        f"the paper's estimate, which also fits the deviation of the scores, is {fitted}; it is often too high"
    )
    notes.append(_final_note(inside.scores(1), inside.freedom, claim.delta))
    if claim.relation == "replace":
        notes.append("a canary is held against no update at all, which is half as far as the claim's neighbours may be")
    return CanaryResult(
        kind="client",
        count=count,
        bound_message=message,
        bound_run=max(by_shape, by_rank),
        estimate=epsilon_of(float(scores.mean()), claim.delta),
        confidence=LEVEL,
        accountant=accountant,
        cost=released.cost(canaries),
        scores={"in": scores.tolist(), "out": out.tolist()},
        notes=tuple(notes),
        by_order=max(0.0, by_rank) if by_shape >= by_rank or claim.epsilon_of == "message" else None,
    )


def _how(by_shape: float, other: float, name: str) -> str:
    if by_shape == -math.inf:
        return f"the bound is by {name}, because the scores have not the shape of a Gaussian, or are too few to say"
    if by_shape >= other:
        return f"the bound is by the scores' Gaussian shape, which is assumed of the tails; by {name} it is {other:.3g}"
    return f"the bound is by {name}, which say more than the scores' shape"


def _rounds_note(claim: Claim, rounds: int) -> list[str]:
    if rounds == claim.rounds:
        return []
    return [f"the record has {rounds} rounds, and the claim speaks of {claim.rounds}: the bound is that of the record"]


def _final_note(scores: Scores, freedom: int, delta: float) -> str:
    shift = shift_from_null(scores, freedom)
    bound = by_ranks(scores, freedom, delta) if shift is None else epsilon_of(shift, delta)
    return f"from the last model alone, without those between, ε of the run is {in_figures(bound)} or more"


class _Released:
    """How the released model moved.

    Attributes
    ----------
    ways
        (2, entries): of each round, scaled to length 1 and added up; and from the first model to the last.
    """

    def __init__(self, record: Record) -> None:
        self._lengths: list[float] = []
        self._replies: list[int] = []
        self.ways = np.zeros((2, 0))
        shapes: dict[str, tuple[int, ...]] = {}
        for round_ in record:
            released = _released(round_)
            if released is None or not round_.participants:
                continue
            before, after = released
            own = _shapes(before)
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
            self.ways = np.zeros((2, sum(self.sizes)))
        parts = []
        for (name, array), size in zip(before.items(), self.sizes, strict=True):
            if size:
                parts.append((after[name].astype(np.float64) - array.astype(np.float64)).reshape(-1))
        way = np.concatenate(parts)
        # Also infinite where a number is, or is too large to be squared.
        with np.errstate(over="ignore", invalid="ignore"):
            length = float(np.linalg.norm(way))
        if not math.isfinite(length):
            raise RecordError(
                f"{where}: the released model holds numbers that are not finite, or are too large, against which "
                "nothing can be held; look at what the server made in that round"
            )
        self._lengths.append(length)
        self.ways[1] += way
        if length:
            self.ways[0] += way / length

    @property
    def rounds(self) -> int:
        """Rounds in which the model moved at all."""
        return int(np.count_nonzero(self._lengths))

    def products(self, seed: int, canaries: range) -> Products:
        """Hold the directions of canaries against both ways."""
        products = Products(len(canaries), 2)
        starts = np.cumsum([0, *self.sizes])
        for position, part, drawn in blocks(seed, canaries, self.sizes):
            start = starts[position]
            products.add(drawn, self.ways[:, start + part.start : start + part.stop])
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


def _released(round_: Round) -> tuple[Arrays, Arrays] | None:
    """Return the model before a round and after it; None if the record lacks one.

    Raises
    ------
    RecordError
        If they have other arrays.
    """
    before, after = round_.common, round_.after
    if before is None or after is None:
        return None
    if _shapes(before) != _shapes(after):
        raise RecordError(
            f"{round_.where}: the model after it has not the arrays of the one before; record the run anew"
        )
    return before, after


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in arrays.items()}


def _of_examples(
    record: Record,
    examples: Examples,
    claim: Claim,
    accountant: float | None,
    gradients: Gradients,
    nodes: Mapping[str, str],
) -> CanaryResult:
    total, seen = np.zeros(len(examples.y)), np.zeros(len(examples.y))
    left_out: list[str] = []
    for shown in _updates(record, examples, nodes, left_out):
        total[shown.rows] += gradients.scores(shown)
        seen[shown.rows] += 1
    if not seen.any():
        raise NeedsError(
            f"{record.path}: no reply of a client with canaries, and no move of the common model, is there"
            + (f" but those that are not finite: {_listed(left_out)}" if left_out else "")
        )
    # A canary whose client never took part has a score of 0, and its coin is a guess.
    scores = total / np.sqrt(np.maximum(seen, 1))
    inside, outside = scores[examples.included], scores[~examples.included]
    by_shape = by_two_samples(inside, outside, claim.delta)
    guesses, ceiling = 0.0, 0.0
    for share in GUESSES:
        made, right = guessed(scores, examples.included, share)
        guesses = max(guesses, by_guesses(len(scores), made, right, claim.delta, _HALF / len(GUESSES)))
        ceiling = max(ceiling, by_guesses(len(scores), made, made, claim.delta, _HALF / len(GUESSES)))
    notes = [_how(by_shape, guesses, "guesses")]
    if left_out:
        notes.append(f"updates that hold numbers that are not finite are left out: {_listed(left_out)}")
    notes.append(f"by guesses, {len(scores)} coins can show no more than ε = {ceiling:.3g}")
    return CanaryResult(
        kind="record",
        count=len(examples.y),
        bound_message=None,
        bound_run=max(by_shape, guesses),
        estimate=_estimate_of_two(inside, outside, claim.delta),
        confidence=LEVEL,
        accountant=accountant,
        cost=None,
        scores={"in": inside.tolist(), "out": outside.tolist()},
        notes=tuple(notes),
        by_order=guesses if by_shape >= guesses else None,
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f", and {more} more" if more > 0 else "")


def _estimate_of_two(inside: Scores, outside: Scores, delta: float) -> float:
    if min(len(inside), len(outside)) < 2 or not np.ptp(outside):
        return 0.0
    deviation = float(outside.std(ddof=1))
    apart = float(inside.mean() - outside.mean()) / deviation
    return epsilon_of(max(apart, 0.0), delta)


def _updates(record: Record, examples: Examples, nodes: Mapping[str, str], left_out: list[str]) -> Iterator[Seen]:
    known = record.view == "individual" and bool(nodes)
    for round_ in record:
        if known:
            yield from _of_replies(round_, examples, nodes, left_out)
            continue
        released = _released(round_)
        if released is None:
            continue
        before, after = released
        way = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for name, array in before.items():
                if np.issubdtype(array.dtype, np.floating):
                    way[name] = (after[name].astype(np.float64) - array.astype(np.float64)).astype(np.float32)
        if _is_finite(way):
            yield Seen(np.arange(len(examples.y)), before, way)
        else:
            left_out.append(f"the common model of round {round_.number}")


def _of_replies(round_: Round, examples: Examples, nodes: Mapping[str, str], left_out: list[str]) -> Iterator[Seen]:
    replies = [reply for reply in round_.observations if reply.status == "ok" and reply.received is not None]
    others, held = [], 0
    for reply in replies[:_OTHERS]:
        update = reply.update()
        held += sum(array.size for array in update.values())
        if held > _HELD:
            break
        if _is_finite(update):
            others.append((reply.node, update))
    for reply in replies:
        client = nodes.get(reply.node, "")
        rows = np.flatnonzero(examples.client == client)
        if not len(rows) or reply.received is None:
            continue
        update = reply.update()
        if _is_finite(update):
            yield Seen(rows, reply.received, update, [other for node, other in others if node != reply.node])
        else:
            left_out.append(f"that of client {client} in round {round_.number}")


def _is_finite(arrays: Arrays) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays.values())
