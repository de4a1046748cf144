"""Noise in sums: what a server of secure aggregation sees, or a record of the aggregate view.

The mean of a round has the noise of all clients together. Too little of it tells how many clients can have added
theirs, and not which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.claim import Claim
from fedattack.claims.finding import TOLERANCE
from fedattack.claims.recorded.clients import compare
from fedattack.claims.recorded.looking import TESTS, Head, look, scale_at_most
from fedattack.claims.recorded.repeats import Kept, kept_of_each
from fedattack.claims.recorded.server import claimed_scale, norm_of
from fedattack.claims.recorded.step import Movement, Regression, Step, difference
from fedattack.claims.recorded.testimony import ERRORS, Bound, Expected, Testimony, alike, float_arrays, told
from fedattack.record import Record, Round


def watch_sums(records: Mapping[str, Record], claim: Claim, testimony: Testimony) -> None:
    """Look at the noise of each round's mean.

    Parameters
    ----------
    records
        In the aggregate view, by name of the run.
    claim
        Of clients that add noise, or of a server that does.
    testimony
        Gets what was seen.
    """
    usable = {run: [round_ for round_ in record if _pair_of(round_, claim)] for run, record in records.items()}
    number = sum(len(rounds) for rounds in usable.values())
    if not number:
        testimony.lacks = "no round of the record has a sum, and the model before it"
        return
    testimony.note("the record shows sums alone: no client can be named, and no single update can be looked at")
    arrays = max(len(float_arrays(record)) for record in records.values())
    error = ERRORS["noise"] / (number * max(1, arrays) * TESTS)
    for run, record in records.items():
        length, _ = kept_of_each([*float_arrays(record).values()], max(1, len(usable[run])))
        watch = _Watch(run, record, claim, testimony, error, length)
        kept = [update for round_ in usable[run] for update in watch.round(round_)]
        compare(run, kept, testimony, min(watch.claimed, default=None), ERRORS["repeats"] / len(records))


def _pair_of(
    round_: Round, claim: Claim
) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]] | None] | None:
    """Return what has noise, and what it is without an update; None if one of them is not known."""
    aggregate = round_.aggregate
    if aggregate is None:
        return None
    if claim.central:
        # What the server released, beside the mean that it got.
        return None if round_.after is None else (round_.after, aggregate)
    if round_.protocol == "fedsgd":
        return aggregate, None
    return None if round_.common is None else (aggregate, round_.common)


def shares_of(round_: Round) -> NDArray[np.float64]:
    """Return the share of each reply in a round's mean; equal ones, at which noise is least, if they are not known."""
    counts = [observation.count for observation in round_.observations if observation.status == "ok"]
    if None in counts:
        return np.full(len(counts), 1 / len(counts))
    values = np.array(counts, dtype=np.float64)
    return np.asarray(values / values.sum())


def rounding_of(record: Record, round_: Round) -> float:
    """Return how far SecAgg+'s rounding may move an entry of the mean; 0 for other sums."""
    told = record.manifest["aggregation"] or {}
    if not {"max_weight", "clipping", "steps"} <= told.keys():
        return 0.0
    counts = [observation.count or 0.0 for observation in round_.observations if observation.status == "ok"]
    step = 2 * told["clipping"] / told["steps"]
    return float(len(counts) * step * told["max_weight"] / max(sum(counts), 1e-300))


def noisy_at_most(bound: float, scale: float, shares: Sequence[float]) -> int:
    """Return how many clients can have added noise of this scale, if the mean has no more than ``bound``."""
    room = (bound / scale) ** 2
    count = 0
    for share in sorted(shares):
        room -= share**2
        if room < 0:
            break
        count += 1
    return count


@dataclass
class _Watch:
    run: str
    record: Record
    claim: Claim
    testimony: Testimony
    error: float
    length: int
    claimed: list[float] = field(default_factory=list)
    last: tuple[int, Movement] | None = None

    def round(self, round_: Round) -> list[Kept]:
        pair = _pair_of(round_, self.claim)
        if pair is None:
            return []
        noisy, before = pair
        draws = self.testimony.expected.draws
        slack = rounding_of(self.record, round_)
        party = self.testimony.server(self.run)
        party.messages += 1
        bounds: dict[str, float] = {}
        heads: dict[str, Head] = {}
        for name in float_arrays(self.record):
            if name not in noisy or (before is not None and name not in before):
                continue
            start = None if before is None else before[name]
            if not alike(self.record, name, *([noisy[name]] if start is None else [noisy[name], start])):
                party.skip(round_, 0, f"{name} changes its form")
                continue
            seen = look(noisy[name], start, draws, self.length, slack=slack)
            if not seen.finite:
                party.skip(round_, 0, f"{name} has numbers that are not finite, or its rounding no bound")
                continue
            if self._is_still(round_, name, noisy[name]):
                continue
            self.testimony.arrays.add(name)
            heads[name] = seen.head
            bounds[name] = scale_at_most(seen, draws, self.error)
        share = self._judge(round_, bounds) if heads else None
        return [] if share is None else [Kept("", round_.number, heads, share)]

    def _step(self, round_: Round) -> Step:
        """Return by how much of the mean a server moves the model."""
        common, aggregate, after = round_.common or {}, round_.aggregate or {}, round_.after or {}
        last = None
        if self.last is not None and self.last[0] + 1 == round_.seq:
            last = self.last[1]
        fit = Regression(last)
        for name in float_arrays(self.record):
            if not all(name in model for model in (common, aggregate, after)):
                continue
            if alike(self.record, name, common[name], aggregate[name], after[name]):
                by_mean = difference(aggregate[name], common[name])
                fit.add(name, by_mean, difference(after[name], common[name]))
        self.last = round_.seq, fit.now
        return fit.step()

    def _is_still(self, round_: Round, name: str, value: NDArray[Any]) -> bool:
        """Whether an array is what clients had received, so that nobody trains it."""
        if round_.protocol == "fedsgd":
            return not value.any()
        return round_.common is not None and name in round_.common and np.array_equal(value, round_.common[name])

    def _judge(self, round_: Round, bounds: Mapping[str, float]) -> float | None:
        """Hold a round against the claim.

        Returns
        -------
        float or None
            The share of the claimed scale that its noise has at least; None if nothing can be said of it.
        """
        where = min(bounds, key=bounds.__getitem__)
        lowest = bounds[where]
        shares = shares_of(round_)
        party = self.testimony.server(self.run)
        reach, claimed = self._claimed(round_, shares)
        expected = Expected(self.testimony.expected.draws, claimed, None)
        share = 1.0
        if self.claim.central:
            step = self._step(round_)
            doubt = step.doubt(expected, lowest)
            if doubt:
                party.skip(round_, 0, doubt)
                return None
            share = step.least
        party.bounds.append(Bound(round_.number, lowest, where))
        for node, each in zip(round_.participants, shares.tolist(), strict=True):
            self.testimony.client(self.run, node).expose(lowest, None if reach is None else told(reach * each))
        if claimed is not None:
            self.claimed.append(claimed)
        test = self.testimony.test("noise", "the noise in each array of each mean is no less than claimed")
        test.checked += 1
        party.noticed.update(name for name, bound in bounds.items() if expected.clear(bound))
        if claimed is None or not expected.too_small(lowest):
            return share
        test.failed += 1
        text = (
            f"noise of {lowest:.3g} at most in {where} of the mean of round {round_.number}, where {claimed:.3g} is "
            "claimed"
        )
        if not self.claim.central and self.testimony.expected.scale:
            most = noisy_at_most(lowest * (1 + TOLERANCE), self.testimony.expected.scale, shares.tolist())
            text += f": at most {most} of {len(shares)} clients can have added theirs"
        party.fault("noise", text)
        return share

    def _claimed(self, round_: Round, shares: NDArray[np.float64]) -> tuple[float | None, float | None]:
        """Return how far a unit moves what has the noise, before its share; and the noise that is claimed."""
        if self.claim.central:
            norm = norm_of(self.claim, round_)
            return norm, None if norm is None else claimed_scale(self.claim, norm, len(shares))
        expected = self.testimony.expected
        claimed = None if expected.scale is None else expected.scale * math.sqrt(float((shares**2).sum()))
        return expected.reach, claimed
