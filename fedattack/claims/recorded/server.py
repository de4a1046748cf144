"""Noise that the server says it adds to the mean of clipped updates.

The record has the model of a round, the replies, and the next model. What is left of the next model after the mean is
the noise, and what the mean gets wrong: how clients are weighed, whether updates are clipped. What is wrong follows
from the replies, before the noise is drawn. So it only adds to the noise, and all bounds hold for each of the four
means that are tried; that there are four is paid for.

All this is so if the server adds mean and noise as they are. Where it plainly moves by another step, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import NeedsError
from fedattack.claims.claim import LARGE, SMALL, Claim
from fedattack.claims.recorded.clients import Message, compare, messages_of, pairs_of
from fedattack.claims.recorded.looking import TESTS, Head, Seen, look, scale_at_most
from fedattack.claims.recorded.repeats import Kept, kept_of_each
from fedattack.claims.recorded.step import Movement, Regression, difference
from fedattack.claims.recorded.testimony import ERRORS, Bound, Expected, Testimony, alike, float_arrays, told
from fedattack.record import Record, Round

MEANS = (("clipped", "equal"), ("clipped", "examples"), ("as sent", "equal"), ("as sent", "examples"))
"""Means that the server may have taken: of what, and by which weights."""

# A mean is ruled out if the squares that it leaves are so many variances above those of another one. Of the right one
# they are above by the square of one Gaussian number at most, which is this much once in a billion times.
_RULED_OUT = 40.0
# Only a server that moves by so much of the mean at least, and leaves noise or nothing, is held to take updates as they
# come: larger steps for clipped ones may look alike.
_SETTLED = 0.8
_EXACT = 1e-3
# A mean whose fit leaves so little beside that of the one that leaves least unfitted is taken in its place.
_FAR_LESS = 0.5
_CLIPPED = 1e-3
# What Flower sends with the model where clients clip.
_NORM = "clipping_norm"
# Entries by which what is left is tested to be Gaussian, and how rarely a Gaussian fails.
_TESTED = 1 << 16
_SHAPE_ERROR = 1e-5


@dataclass
class _Left:
    """What one mean leaves of a round's next model."""

    fit: Regression
    square: float = 0.0
    size: int = 0
    bound: float = math.inf
    where: str = ""
    bounds: dict[str, float] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)

    def add(self, name: str, seen: Seen, bound: float) -> None:
        self.square += seen.square
        self.size += seen.size
        self.heads[name] = seen.head
        self.bounds[name] = bound
        if bound < self.bound:
            self.bound, self.where = bound, name

    def looks_gaussian(self) -> bool:
        """Whether what is left passes a test of being Gaussian, and as large in all arrays."""
        from scipy import stats

        entries = np.concatenate([head.values for head in self.heads.values()])
        entries = entries[:: max(1, math.ceil(entries.size / _TESTED))]
        return bool(entries.size >= 1000 and stats.normaltest(entries).pvalue > _SHAPE_ERROR)


@dataclass(frozen=True)
class _Replies:
    """Replies of a round with their norms, and their weights in each mean."""

    messages: Sequence[Message]
    norms: NDArray[np.float64]
    clip: float
    counts: NDArray[np.float64] | None

    def shares(self, weights: str) -> NDArray[np.float64] | None:
        """Return each reply's share of the mean; None without example counts."""
        if weights == "equal":
            return np.full(len(self.messages), 1 / len(self.messages))
        return None if self.counts is None else self.counts / self.counts.sum()

    def weights(self) -> dict[tuple[str, str], NDArray[np.float64]]:
        """Return what each update is multiplied by, for the means that differ."""
        found: dict[tuple[str, str], NDArray[np.float64]] = {}
        for mean in MEANS:
            shares = self.shares(mean[1])
            if shares is None:
                continue
            if mean[0] == "clipped":
                shares = shares * self.clip / np.maximum(self.norms, self.clip)
            if not any(np.allclose(shares, other, rtol=1e-9, atol=0) for other in found.values()):
                found[mean] = shares
        return found


def _explains(
    left: Mapping[tuple[str, str], _Left], best: tuple[str, str], possible: Sequence[tuple[str, str]]
) -> tuple[str, str]:
    """Return the mean that leaves least, or one that explains the movement far better, as where noise repeats."""
    steps = {mean: left[mean].fit.step().left for mean in possible}
    clearest = min(steps, key=steps.__getitem__)
    return clearest if steps[clearest] < _FAR_LESS * steps[best] else best


def watch_server(records: Mapping[str, Record], claim: Claim, testimony: Testimony) -> None:
    """Look at what the server added in each round.

    Parameters
    ----------
    records
        In the individual view, by name of the run.
    claim
        Of a server that adds noise.
    testimony
        Gets what was seen.
    """
    usable: dict[str, list[Round]] = {}
    arrays = 1
    for run, record in records.items():
        rounds = [round_ for round_ in record if round_.common is not None and round_.after is not None]
        usable[run] = [round_ for round_ in rounds if messages_of(round_) and norm_of(claim, round_) is not None]
        arrays = max(arrays, len(float_arrays(record)))
        if rounds and len(usable[run]) < len(rounds):
            testimony.note(
                f"{len(rounds) - len(usable[run])} rounds are left out: they have no reply, or nobody says to which "
                "norm the server clipped, which it adapts"
            )
    number = sum(len(rounds) for rounds in usable.values())
    if not number:
        testimony.lacks = "no round of the record has the model before it, replies, the model after it, and their norm"
        return
    error = ERRORS["noise"] / (number * arrays * TESTS * len(MEANS))
    for run, record in records.items():
        sizes = float_arrays(record)
        length, _ = kept_of_each([*sizes.values()], max(1, len(usable[run]) * len(MEANS)))
        watch = _Watch(run, record, claim, testimony, error, length)
        kept = [update for round_ in usable[run] for update in watch.round(round_)]
        scale = min(watch.claimed, default=None)
        if claim.weights == "equal" and watch.heaviest:
            testimony.note(
                "the claim says that all clients weigh the same, and they report unequal numbers of examples; in a "
                f"mean that is weighted by them, as that of Flower's FedAvg, the largest share is {watch.heaviest:.3g}"
            )
        # Which of the means is compared was chosen by what they leave.
        compare(run, kept, testimony, scale, ERRORS["repeats"] / len(records) / len(MEANS) ** 2)


def norm_of(claim: Claim, round_: Round) -> float | None:
    """Return the norm C of a round: what the server sent to clients that clip, or the claim's if it does not change.

    Raises
    ------
    NeedsError
        If nothing can be computed with what the server sent.
    """
    sent = round_.config.get(_NORM)
    if isinstance(sent, int | float) and not isinstance(sent, bool) and sent > 0:
        if not SMALL <= sent <= LARGE:
            raise NeedsError(
                f"{round_.where}: the server sent {_NORM} = {sent:g}; expected a norm from {SMALL:g} to {LARGE:g}; "
                "see what it clips to, or record it anew"
            )
        return float(sent)
    if claim.mechanism == "central-adaptive" and round_.seq > 0:
        return None
    return claim.clip


def claimed_scale(claim: Claim, norm: float, replies: int) -> float | None:
    """Return the σ that a claim says a mean gets."""
    if claim.noise_multiplier is not None:
        clients = replies if claim.clients is None else claim.clients
        return claim.noise_multiplier * norm * claim.clip_falls / clients
    if claim.deviation is None or claim.clip is None:
        return claim.deviation
    return claim.deviation * claim.clip_falls * norm / claim.clip


@dataclass
class _Watch:
    run: str
    record: Record
    claim: Claim
    testimony: Testimony
    error: float
    length: int
    claimed: list[float] = field(default_factory=list)
    heaviest: float = 0.0
    last: tuple[int, Mapping[tuple[str, str], Movement]] | None = None

    def round(self, round_: Round) -> list[Kept]:
        norm = norm_of(self.claim, round_)
        if norm is None:
            return []
        party = self.testimony.server(self.run)
        party.messages += 1
        replies = self._replies(round_, norm)
        left = self._left(round_, replies, replies.weights())
        if not left:
            party.skip(round_, 0, "its model or a reply has numbers that are not finite")
            return []
        best = min(left, key=lambda mean: left[mean].square)
        bound = min(left.values(), key=lambda each: each.bound)
        if not math.isfinite(bound.bound):
            return []
        self.last = round_.seq, {mean: each.fit.now for mean, each in left.items()}
        expected = Expected(self.testimony.expected.draws, claimed_scale(self.claim, norm, len(replies.messages)), None)
        possible = [mean for mean in left if left[mean].square - left[best].square <= _RULED_OUT * bound.bound**2]
        best = _explains(left, best, possible)
        step = left[best].fit.step()
        as_sent = not any(kind == "clipped" for kind, _ in possible)
        doubt = step.doubt(expected, bound.bound)
        if doubt:
            party.skip(round_, 0, doubt)
            return []
        if expected.scale is not None:
            self.claimed.append(expected.scale)
        self._judge(round_, expected, bound)
        self._notice(expected, left.values())
        self._judge_shares(round_, norm, replies, bound, possible)
        gaussian = left[best].looks_gaussian()
        if as_sent and step.least >= _SETTLED and (gaussian or step.error < _EXACT):
            self._judge_norms(round_, replies)
        elif as_sent:
            party.skip(
                round_, 0, "it seems to take updates as they come, or to move by more than the mean of clipped ones"
            )
        self._least(left[best], bound.bound, gaussian)
        return [Kept("", round_.number, left[best].heads, step.least)]

    def _replies(self, round_: Round, norm: float) -> _Replies:
        messages = messages_of(round_)
        squares = {message.index: 0.0 for message in messages}
        for name in float_arrays(self.record):
            for message, sent, before in pairs_of(round_, messages, name):
                update = sent.astype(np.float64) - (0.0 if before is None else before)
                squares[message.index] += float(np.vdot(update, update))
        counts = [message.observation.count for message in messages]
        known = None if None in counts else np.array(counts, dtype=np.float64)
        return _Replies(messages, np.sqrt(np.array([*squares.values()])), norm, known)

    def _left(
        self, round_: Round, replies: _Replies, weights: Mapping[tuple[str, str], NDArray[np.float64]]
    ) -> dict[tuple[str, str], _Left]:
        """Return what each mean leaves, array by array."""
        common, after = round_.common or {}, round_.after or {}
        last: Mapping[tuple[str, str], Movement] = {}
        if self.last is not None and self.last[0] + 1 == round_.seq:
            last = self.last[1]
        left = {mean: _Left(Regression(last.get(mean))) for mean in weights}
        for name in float_arrays(self.record):
            if name not in common or name not in after:
                continue
            if not alike(self.record, name, common[name], after[name]):
                self.testimony.server(self.run).skip(round_, 0, f"{name} changes its form")
                continue
            before, moved = common[name], after[name]
            if np.array_equal(before, moved):
                self.testimony.note(
                    f"{name}: the server did not change it in round {round_.number}; it is not released"
                )
                continue
            self.testimony.arrays.add(name)
            movement = difference(moved, before)
            for mean, value in self._means(round_, replies, weights, name, before):
                seen = look(moved, value, self.testimony.expected.draws, self.length)
                if not seen.finite:
                    self.testimony.note(
                        f"{name}: numbers that are not finite in round {round_.number}, which is left out"
                    )
                    return {}
                left[mean].fit.add(name, value - before, movement)
                left[mean].add(name, seen, scale_at_most(seen, self.testimony.expected.draws, self.error))
        return left

    def _means(
        self,
        round_: Round,
        replies: _Replies,
        weights: Mapping[tuple[str, str], NDArray[np.float64]],
        name: str,
        before: NDArray[Any],
    ) -> Iterator[tuple[tuple[str, str], NDArray[Any]]]:
        """Give the model that each mean makes, without noise."""
        place = {message.index: position for position, message in enumerate(replies.messages)}
        sums = {mean: before.astype(np.float64) for mean in weights}
        for message, sent, received in pairs_of(round_, replies.messages, name):
            update = sent.astype(np.float64) - (0.0 if received is None else received)
            for mean, factors in weights.items():
                sums[mean] += factors[place[message.index]] * update
        for mean, value in sums.items():
            yield mean, value

    def _judge(self, round_: Round, expected: Expected, bound: _Left) -> None:
        party = self.testimony.server(self.run)
        party.bounds.append(Bound(round_.number, bound.bound, bound.where))
        test = self.testimony.test("noise", "the noise in each array of each new model is no less than claimed")
        test.checked += 1
        if expected.too_small(bound.bound):
            test.failed += 1
            party.fault(
                "noise",
                f"noise of σ = {bound.bound:.3g} at most in {bound.where}, round {round_.number}, "
                f"where {expected.scale:.3g} is claimed",
            )

    def _notice(self, expected: Expected, left: Iterable[_Left]) -> None:
        """Note in which arrays noise would be noticed if it were missing."""
        noticed = self.testimony.server(self.run).noticed
        for each in left:
            noticed.update(name for name, bound in each.bounds.items() if expected.clear(bound))

    def _judge_shares(
        self, round_: Round, norm: float, replies: _Replies, bound: _Left, possible: Sequence[tuple[str, str]]
    ) -> None:
        """Note how far each client moves the mean, by the weights that fit.

        If several do, those that the claim has written down count, or else the smallest.
        """
        kinds = {weights for _, weights in possible}
        if "examples" in kinds and self.claim.weights == "examples":
            kinds = {"examples"}
        shares = np.full(len(replies.messages), math.inf)
        for weights in kinds:
            each = replies.shares(weights)
            if each is not None:
                shares = np.minimum(shares, each)
        by_examples = replies.shares("examples")
        if by_examples is not None and "examples" in kinds:
            self.heaviest = max(self.heaviest, float(by_examples.max()))
        for position, message in enumerate(replies.messages):
            party = self.testimony.client(self.run, message.node)
            party.norm_most = max(party.norm_most, float(replies.norms[position]))
            party.expose(bound.bound, told(norm * float(shares[position])))

    def _judge_norms(self, round_: Round, replies: _Replies) -> None:
        """Name the clients whose updates are longer than C, where the server took them as they came."""
        test = self.testimony.test("norms", "no update that enters the mean is longer than C")
        for message, norm in zip(replies.messages, replies.norms.tolist(), strict=True):
            test.checked += 1
            if norm > replies.clip * (1 + _CLIPPED):
                test.failed += 1
                self.testimony.client(self.run, message.node).fault(
                    "norms",
                    f"an update of norm {norm:.4g} in round {round_.number}, where C = {replies.clip:g}, went into the "
                    "mean as it came",
                )

    def _least(self, left: _Left, bound: float, gaussian: bool) -> None:
        """Note how much noise there is at least, if what is left looks Gaussian, and is as large in all arrays."""
        from scipy import special

        party = self.testimony.server(self.run)
        least = 0.0
        if not gaussian:
            self.testimony.note(
                "what the mean leaves of a round does not look Gaussian: the server does more than to average updates "
                "and add noise, or weighs them by something else; how much noise there is at least is not known"
            )
        else:
            # χ² is above this with the probability ``error``.
            least = math.sqrt(left.square / (2 * float(special.gammainccinv(left.size / 2, self.error))))
        party.least.append(min(least, bound))
        party.rms.append(math.sqrt(left.square / left.size))
