"""Noise that the server says it adds to the mean of clipped updates.

The record has the model of a round, the replies, and the next model. What is left of the next model after the mean is
the noise, and what the mean gets wrong: how clients are weighed, whether updates are clipped. What is wrong follows
from the replies, before the noise is drawn. So it only adds to the noise, and all bounds hold for each of the four
means that are tried; that there are four is paid for.

All this is so if the server adds mean and noise as they are. Where it plainly moves by another step, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import NeedsError
from fedattack.claims.claim import LARGE, SMALL, Claim
from fedattack.claims.recorded.looking import look
from fedattack.claims.recorded.repeats import UpdateHeads
from fedattack.claims.recorded.replies import Message, alike, float_arrays, messages_of, pairs_of
from fedattack.claims.recorded.step import Regression, ServerStep, difference
from fedattack.claims.recorded.testimony import Expected, usable_amount
from fedattack.claims.recorded.watch import NoiseWatch, RoundNumbers
from fedattack.record import Record, Round

Mean = tuple[str, str]
"""A mean that the server may have taken: of what, and by which weights."""

CLIPPED, AS_SENT = "clipped", "as sent"
EQUAL, EXAMPLES = "equal", "examples"
MEANS: Sequence[Mean] = ((CLIPPED, EQUAL), (CLIPPED, EXAMPLES), (AS_SENT, EQUAL), (AS_SENT, EXAMPLES))

# A mean is ruled out if the squares that it leaves are so many variances above those of another one. Of the right one
# they are above by the square of one Gaussian number at most, which is this much once in a billion times.
_RULED_OUT = 40.0
# Only a server that moves by so much of the mean at least, and leaves noise or nothing, is said to take updates as they
# come: larger steps for clipped ones may look the same.
_SETTLED = 0.8
_EXACT = 1e-3
# A mean whose fit leaves so little beside that of the one that leaves least unfitted is taken in its place.
_FAR_LESS = 0.5
_ROUNDED = 1e-3
# What Flower sends with the model where clients clip.
_NORM = "clipping_norm"
# Entries by which what is left is tested to be Gaussian, and how rarely a Gaussian fails.
_TESTED = 1 << 16
_SHAPE_ERROR = 1e-5


@dataclass
class Leftover:
    """What one mean leaves of a round's next model."""

    fit: Regression
    numbers: RoundNumbers = field(default_factory=RoundNumbers)

    def looks_gaussian(self) -> bool:
        """Whether what is left passes a test of being Gaussian, and as large in all arrays."""
        from scipy import stats

        entries = np.concatenate([head.values for head in self.numbers.heads.values()])
        entries = entries[:: max(1, math.ceil(entries.size / _TESTED))]
        return bool(entries.size >= 1000 and stats.normaltest(entries).pvalue > _SHAPE_ERROR)


@dataclass(frozen=True)
class RoundReplies:
    """Replies of a round with their norms, and their weights in each mean."""

    messages: Sequence[Message]
    norms: NDArray[np.float64]
    clip: float
    counts: NDArray[np.float64] | None

    @classmethod
    def read(cls, record: Record, round_: Round, clip: float) -> RoundReplies:
        """Read the replies of a round, and how long their updates are."""
        messages = messages_of(round_)
        squares = {message.index: 0.0 for message in messages}
        for name in float_arrays(record):
            for message, sent, before in pairs_of(round_, messages, name):
                update = _subtract(sent, before)
                squares[message.index] += float(np.vdot(update, update))
        counts = [message.observation.count for message in messages]
        known = None
        if None not in counts:
            known = np.array(counts, dtype=np.float64)
        return cls(messages, np.sqrt(np.array([*squares.values()])), clip, known)

    def shares(self, weights: str) -> NDArray[np.float64] | None:
        """Return each reply's share of the mean; None without example counts."""
        if weights == EQUAL:
            return np.full(len(self.messages), 1 / len(self.messages))
        return None if self.counts is None else self.counts / self.counts.sum()

    def weights(self) -> dict[Mean, NDArray[np.float64]]:
        """Return what each update is multiplied by, for the means that differ."""
        found: dict[Mean, NDArray[np.float64]] = {}
        for mean in MEANS:
            kind, by = mean
            shares = self.shares(by)
            if shares is None:
                continue
            if kind == CLIPPED:
                shares = shares * self.clip / np.maximum(self.norms, self.clip)
            if not any(np.allclose(shares, other, rtol=1e-9, atol=0) for other in found.values()):
                found[mean] = shares
        return found

    def means_of(
        self, round_: Round, weights: Mapping[Mean, NDArray[np.float64]], name: str, before: NDArray[Any]
    ) -> Iterator[tuple[Mean, NDArray[Any]]]:
        """Give the array of the model that each mean makes, without noise."""
        place = {message.index: position for position, message in enumerate(self.messages)}
        sums = {mean: before.astype(np.float64) for mean in weights}
        for message, sent, received in pairs_of(round_, self.messages, name):
            update = _subtract(sent, received)
            for mean, factors in weights.items():
                sums[mean] += factors[place[message.index]] * update
        yield from sums.items()


def _subtract(sent: NDArray[Any], received: NDArray[Any] | None) -> NDArray[np.float64]:
    return sent.astype(np.float64) - (0.0 if received is None else received)


@dataclass
class ServerWatch(NoiseWatch):
    """Looks at what the server added in each round, in the individual view."""

    carrier = "new model"
    lacks = "no round of the record has the model before it, replies, the model after it, and their norm"
    means = len(MEANS)

    def find_rounds(self) -> list[Round]:
        """Find the rounds with both models, replies, and a norm to which the server clipped."""
        rounds = [round_ for round_ in self.record if round_.common is not None and round_.after is not None]
        usable = [round_ for round_ in rounds if messages_of(round_) and norm_of(self.claim, round_) is not None]
        if len(usable) < len(rounds):
            self.testimony.note(
                f"{len(rounds) - len(usable)} rounds are left out: they have no reply, or nobody says to which "
                "norm the server clipped, which it adapts"
            )
        return usable

    def look_at(self, round_: Round) -> list[UpdateHeads]:
        """Look at what each of the means leaves, and hold the least noise against the claim."""
        norm = norm_of(self.claim, round_)
        if norm is None:
            return []
        party = self.testimony.server(self.run)
        replies = RoundReplies.read(self.record, round_, norm)
        left = self._take_out_means(round_, replies)
        if not left:
            party.skip(round_, "its model or a reply has numbers that are not finite")
            return []
        if not all(each.numbers.bounds for each in left.values()):
            return []
        self.last = round_.seq, {mean: each.fit.now for mean, each in left.items()}
        noise = min((each.numbers for each in left.values()), key=lambda numbers: numbers.bound)
        best, possible = choose_mean(left, noise.bound)
        step = best.fit.step()
        claimed = claimed_scale(self.claim, norm, len(replies.messages))
        expected = Expected(self.testimony.expected.draws, claimed, None)
        doubt = step.doubt(expected, noise.bound)
        if doubt:
            party.skip(round_, doubt)
            return []
        self.judge_noise(party, round_, noise, expected)
        for each in left.values():
            self.note_noticed(party, each.numbers, expected)
        self._note_shares(replies, noise.bound, possible)
        if not any(kind == CLIPPED for kind, _ in possible):
            self._judge_norms(round_, replies, step, best.looks_gaussian())
        party.rms.append(math.sqrt(best.numbers.square / best.numbers.size))
        return [UpdateHeads("", round_.number, best.numbers.heads, step.least)]

    def _take_out_means(self, round_: Round, replies: RoundReplies) -> dict[Mean, Leftover]:
        """Return what each mean leaves, array by array; nothing if a number is not finite."""
        common, after = round_.common or {}, round_.after or {}
        draws = self.testimony.expected.draws
        weights, last = replies.weights(), self.last_movements(round_)
        left = {mean: Leftover(Regression(last.get(mean))) for mean in weights}
        for name in float_arrays(self.record):
            if not self._is_released(round_, name):
                continue
            before, released = common[name], after[name]
            movement = difference(released, before)
            for mean, value in replies.means_of(round_, weights, name, before):
                seen = look(released, value, draws, self.length)
                if not seen.finite:
                    self.testimony.note(
                        f"{name}: numbers that are not finite in round {round_.number}, which is left out"
                    )
                    return {}
                left[mean].fit.add(name, value - before, movement)
                left[mean].numbers.add(name, seen, draws, self.rates.noise)
        return left

    def _is_released(self, round_: Round, name: str) -> bool:
        """Whether the server released an array anew, in the form that it has; notes why not."""
        common, after = round_.common or {}, round_.after or {}
        if name not in common or name not in after:
            return False
        if not alike(self.record, name, common[name], after[name]):
            self.testimony.server(self.run).skip(round_, f"{name} changes its form")
            return False
        if np.array_equal(common[name], after[name]):
            self.testimony.note(f"{name}: the server did not change it in round {round_.number}; it is not released")
            return False
        self.testimony.arrays.add(name)
        return True

    def _note_shares(self, replies: RoundReplies, bound: float, possible: Sequence[Mean]) -> None:
        """Note how far each client moves the mean, by the weights that fit.

        If several do, those that the claim has written down count, or else the smallest.
        """
        kinds = {weights for _, weights in possible}
        if EXAMPLES in kinds and self.claim.weights == "examples":
            kinds = {EXAMPLES}
        shares = np.full(len(replies.messages), math.inf)
        for weights in kinds:
            each = replies.shares(weights)
            if each is not None:
                shares = np.minimum(shares, each)
        if EXAMPLES in kinds and self.claim.weights == "equal":
            self.testimony.note(
                "the claim says that all clients weigh the same, and the record does not rule out that they weigh by "
                "their unequal numbers of examples, as in Flower's FedAvg"
            )
        for position, message in enumerate(replies.messages):
            party = self.testimony.client(self.run, message.node)
            party.norm_most = max(party.norm_most, float(replies.norms[position]))
            party.expose(bound, usable_amount(replies.clip * float(shares[position])))

    def _judge_norms(self, round_: Round, replies: RoundReplies, step: ServerStep, gaussian: bool) -> None:
        """Name the clients whose updates are longer than C, where the server took them as they came."""
        if step.least < _SETTLED or not (gaussian or step.error < _EXACT):
            why = "it seems to take updates as they come, or to move by more than the mean of clipped ones"
            self.testimony.server(self.run).skip(round_, why)
            return
        test = self.testimony.test("norms", "no update that enters the mean is longer than C")
        for message, norm in zip(replies.messages, replies.norms.tolist(), strict=True):
            test.checked += 1
            if norm > replies.clip * (1 + _ROUNDED):
                test.failed += 1
                self.testimony.client(self.run, message.node).fault(
                    "norms",
                    f"an update of norm {norm:.4g} in round {round_.number}, where C = {replies.clip:g}, went into the "
                    "mean as it came",
                )


def choose_mean(left: Mapping[Mean, Leftover], bound: float) -> tuple[Leftover, list[Mean]]:
    """Choose the mean that the server took, by what each one leaves.

    It is the one that leaves least, or one that explains the movement far better, as where noise repeats.

    Parameters
    ----------
    left
        By mean.
    bound
        The most noise that there is.

    Returns
    -------
    Leftover, list of Mean
        What it leaves, and all means that are not ruled out.
    """
    least = min(left.values(), key=lambda each: each.numbers.square)
    possible = []
    for mean, each in left.items():
        if each.numbers.square - least.numbers.square <= _RULED_OUT * bound**2:
            possible.append(mean)
    clearest = min((left[mean] for mean in possible), key=lambda each: each.fit.step().left)
    if clearest.fit.step().left < _FAR_LESS * least.fit.step().left:
        return clearest, possible
    return least, possible


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
    """Return the σ that a claim says a mean gets; None if it does not say."""
    falls = claim.clip_falls
    if claim.mechanism != "central-adaptive":
        falls = 1.0
    if falls is None:
        return None
    if claim.noise_multiplier is not None:
        clients = replies
        if claim.clients is not None:
            clients = claim.clients
        return claim.noise_multiplier * norm * falls / clients
    if claim.deviation is None or claim.clip is None:
        return claim.deviation
    return claim.deviation * falls * norm / claim.clip
