"""What canaries show, whichever kind they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


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


@dataclass(frozen=True)
class BoundPair:
    """Two lower bounds on ε that share the error (Bonferroni): the higher one holds at the whole rate.

    Attributes
    ----------
    by_shape
        By the Gaussian shape of the scores; −∞ if they have another one, or are too few to say.
    by_order
        By the order of the scores alone.
    order
        What that is called: ranks, guesses.
    """

    by_shape: float
    by_order: float
    order: str

    @property
    def rests_on_shape(self) -> bool:
        """Whether the higher one is that by the shape."""
        return self.by_shape >= self.by_order

    @property
    def higher(self) -> float:
        """The bound that counts."""
        return max(self.by_shape, self.by_order)

    def describe(self) -> str:
        """Say which of the two counts, and why."""
        if self.by_shape == -math.inf:
            return (
                f"the bound is by {self.order}, because the scores have not the shape of a Gaussian, or are too few to "
                "say"
            )
        if self.rests_on_shape:
            return (
                "the bound is by the scores' Gaussian shape, which is assumed of the tails; by "
                f"{self.order} it is {self.by_order:.3g}"
            )
        return f"the bound is by {self.order}, which say more than the scores' shape"
