"""What a sum tells of one client, where the server knows what all others put into it: they were sent other models."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Weighing:
    """How replies were weighed before they were summed.

    Attributes
    ----------
    most
        The example count that weighs 1.
    clipping
        To what entries of a weighted reply were clipped; infinite where they were not.
    steps
        Into how many steps weights and entries were rounded; 0 where they were not.
    """

    most: float = 1.0
    clipping: float = np.inf
    steps: int = 0

    @classmethod
    def of(cls, aggregation: Mapping[str, Any] | None) -> "Weighing":
        """Read it from the manifest's ``aggregation``."""
        known = aggregation or {}
        # A record without these facts weighs by the example count alone.
        if not {"max_weight", "clipping", "steps"} <= known.keys():
            return cls()
        return cls(float(known["max_weight"]), float(known["clipping"]), int(known["steps"]))

    def weight(self, count: float) -> float:
        """Return the weight of a client with so many examples."""
        ratio = count / self.most
        # SecAgg+ quantises weights: a client's count, as a share of the largest, is rounded to so many steps.
        return float(np.rint(ratio * self.steps)) / self.steps if self.steps else ratio

    def error(self, counts: Sequence[float]) -> float:
        """Return the root mean square error of an entry of the weighted mean over such clients, by the rounding."""
        if not self.steps:
            return 0.0
        weight = sum(map(self.weight, counts))
        # Stochastic rounding has the variance f (1 − f) of a step of the grid, 1/6 in the mean over f; the step is
        # 2 · clipping / steps, and the errors of clients are independent.
        return float(2 * self.clipping / self.steps * np.sqrt(len(counts) / 6) / weight)

    def share(self, sent: NDArray[Any], count: float) -> Floats:
        """Return what a client with so many examples put into the sum, where ``sent`` is what it sent."""
        weighted = sent.astype(np.float64) * self.weight(count)
        # SecAgg+ clips before it quantises.
        return np.clip(weighted, -self.clipping, self.clipping)

    def subtract(
        self, mean: NDArray[Any], known: Sequence[tuple[NDArray[Any], float]], asked: Sequence[float]
    ) -> Floats:
        """Return the mean over some clients, given that over all and what the others sent.

        Parameters
        ----------
        mean
            The weighted mean over all.
        known
            Of each other client what it sent, and its example count.
        asked
            Example counts of those whose mean is asked for.
        """
        weight = sum(map(self.weight, asked))
        # From a mean back to the sum over all.
        rest = np.asarray(mean, dtype=np.float64) * (weight + sum(self.weight(count) for _, count in known))
        for sent, count in known:
            rest = rest - self.share(sent, count)
        return rest / weight


def split(observations: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the replies in a sum of those that were sent the common model, and of those that were sent another.

    There are none where it is not known how somebody's reply was weighed.
    """
    usable = [seen for seen in observations if seen.status == "ok"]
    if any(seen.count is None for seen in usable):
        return [], []
    alike, others = [], []
    for seen in usable:
        if seen.singled_out:
            others.append(seen)
        else:
            alike.append(seen)
    return alike, others


def find_singled(exchanges: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield of the exchanges of a round those whose sum one client alone moved: the exchange, and its reply."""
    for exchange in exchanges:
        asked, _ = split(exchange.all_observations)
        # One client alone got a model that learns: all that moves the sum is its own.
        if len(asked) == 1 and exchange.aggregate is not None:
            yield exchange, asked[0]
