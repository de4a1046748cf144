"""Noise in sums: what a server of secure aggregation sees, or a record of the aggregate view.

The mean of a round has the noise of all clients together. Too little of it does not tell whose is missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.claims.claim import Claim
from fedattack.claims.recorded.looking import look
from fedattack.claims.recorded.repeats import UpdateHeads
from fedattack.claims.recorded.replies import alike, float_arrays
from fedattack.claims.recorded.server import claimed_scale, norm_of
from fedattack.claims.recorded.step import Regression, ServerStep, difference
from fedattack.claims.recorded.testimony import Expected, usable_amount
from fedattack.claims.recorded.watch import NoiseWatch, RoundNumbers
from fedattack.record import Record, Round

Arrays = Mapping[str, NDArray[Any]]

# The one mean that there is, under the name of a mean that a server takes.
_MEAN = ("sum", "sum")


@dataclass
class SumWatch(NoiseWatch):
    """Looks at each round's mean, or at what a server made of it, in the aggregate view."""

    carrier = "mean"
    lacks = "no round of the record has a sum, and the model before it"

    def find_rounds(self) -> list[Round]:
        """Find the rounds with a mean, and with what it is compared with."""
        return [round_ for round_ in self.record if _read_noisy(round_, self.claim) is not None]

    def look_at(self, round_: Round) -> list[UpdateHeads]:
        """Look at the arrays of one mean."""
        self.testimony.note(
            "the record shows sums alone: no client can be named, and no single update can be looked at"
        )
        numbers = self._gather(round_)
        if not numbers.bounds:
            return []
        shares = shares_of(round_)
        reach, claimed = self._read_claim(round_, shares)
        expected = Expected(self.testimony.expected.draws, claimed, None)
        party = self.testimony.server(self.run)
        least_step = 1.0
        if self.claim.central:
            step = self._fit_step(round_)
            doubt = step.doubt(expected, numbers.bound)
            if doubt:
                party.skip(round_, doubt)
                return []
            least_step = step.least
        for node, share in zip(round_.participants, shares.tolist(), strict=True):
            of_client = None
            if reach is not None:
                of_client = usable_amount(reach * share)
            self.testimony.client(self.run, node).expose(numbers.bound, of_client)
        self.judge_noise(party, round_, numbers, expected)
        return [UpdateHeads("", round_.number, numbers.heads, least_step)]

    def _gather(self, round_: Round) -> RoundNumbers:
        """Look at each array of what has the noise."""
        numbers = RoundNumbers()
        found = _read_noisy(round_, self.claim)
        if found is None:
            return numbers
        noisy, before = found
        draws = self.testimony.expected.draws
        party = self.testimony.server(self.run)
        slack = rounding_of(self.record, round_)
        for name in float_arrays(self.record):
            if name not in noisy or (before is not None and name not in before):
                continue
            start = None
            arrays = [noisy[name]]
            if before is not None:
                start = before[name]
                arrays.append(start)
            if not alike(self.record, name, *arrays):
                party.skip(round_, f"{name} changes its form")
                continue
            seen = look(noisy[name], start, draws, self.length, slack=slack)
            if not seen.finite:
                party.skip(round_, f"{name} has numbers that are not finite, or its rounding no bound")
            elif not _is_still(round_, name, noisy[name]):
                self.testimony.arrays.add(name)
                numbers.add(name, seen, draws, self.rates.noise)
        return numbers

    def _fit_step(self, round_: Round) -> ServerStep:
        """Return by how much of the mean a server moves the model."""
        common, aggregate, after = round_.common or {}, round_.aggregate or {}, round_.after or {}
        fit = Regression(self.last_movements(round_).get(_MEAN))
        for name in float_arrays(self.record):
            if not all(name in model for model in (common, aggregate, after)):
                continue
            if alike(self.record, name, common[name], aggregate[name], after[name]):
                by_mean = difference(aggregate[name], common[name])
                fit.add(name, by_mean, difference(after[name], common[name]))
        self.last = round_.seq, {_MEAN: fit.now}
        return fit.step()

    def _read_claim(self, round_: Round, shares: NDArray[np.float64]) -> tuple[float | None, float | None]:
        """Return how far a unit moves what has the noise, before its share; and the noise that is claimed."""
        if self.claim.central:
            norm = norm_of(self.claim, round_)
            if norm is None:
                return None, None
            return norm, claimed_scale(self.claim, norm, len(shares))
        expected = self.testimony.expected
        if expected.scale is None:
            return expected.reach, None
        return expected.reach, expected.scale * math.sqrt(float((shares**2).sum()))


def _read_noisy(round_: Round, claim: Claim) -> tuple[Arrays, Arrays | None] | None:
    """Return what has noise, and what it is without an update; None if one of them is not known."""
    aggregate = round_.aggregate
    if aggregate is None:
        return None
    if claim.central:
        if round_.after is None:
            return None
        # What the server released, beside the mean that it got.
        return round_.after, aggregate
    if round_.protocol == "fedsgd":
        return aggregate, None
    if round_.common is None:
        return None
    return aggregate, round_.common


def _is_still(round_: Round, name: str, value: NDArray[Any]) -> bool:
    """Whether an array is what clients had received, so that nobody trains it."""
    if round_.protocol == "fedsgd":
        return not value.any()
    return round_.common is not None and name in round_.common and np.array_equal(value, round_.common[name])


def shares_of(round_: Round) -> NDArray[np.float64]:
    """Return the share of each reply in a round's mean; equal ones, at which noise is least, if they are not known."""
    counts = [observation.count for observation in round_.observations if observation.status == "ok"]
    if None in counts:
        return np.full(len(counts), 1 / len(counts))
    values = np.array(counts, dtype=np.float64)
    return np.asarray(values / values.sum())


def rounding_of(record: Record, round_: Round) -> float:
    """Return how far SecAgg+'s rounding may move an entry of the mean; 0 for other sums."""
    aggregation = record.manifest["aggregation"] or {}
    if not {"max_weight", "clipping", "steps"} <= aggregation.keys():
        return 0.0
    counts = [observation.count or 0.0 for observation in round_.observations if observation.status == "ok"]
    step = 2 * aggregation["clipping"] / aggregation["steps"]
    return float(len(counts) * step * aggregation["max_weight"] / max(sum(counts), 1e-300))
