"""A client's local optimum as the attack found it, and the one shape that both ways to find and use it have."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedattack.base.stored import Count, Finite, Name, Share
from fedattack.threats.attribute.attribute_model import Array, State
from fedattack.threats.attribute.client_messages import ClientMessages
from fedattack.threats.attribute.local_optimum import LeastSquares


@dataclass(frozen=True)
class Optimum:
    """A client's local optimum, and how it was found.

    Attributes
    ----------
    parameters
        (p,); none where the client was not seen.
    how
        A key of :data:`HOW`.
    rank
        How many directions of the parameters the messages show; ``None`` where that was not looked at.
    problem
        The client's least-squares problem, where it was decoded.
    share
        The decoded ρ, the share of the attribute's second value; ``None`` if unknown.
    whole
        Whether all of the client's examples are known but for the attribute.
    """

    parameters: Array = field(default_factory=lambda: np.zeros(0))
    how: str = "not seen"
    rank: int | None = None
    problem: LeastSquares | None = None
    share: float | None = None
    whole: bool = False

    @property
    def is_determined(self) -> bool:
        """Whether the client's examples determine all parameters."""
        return self.problem is not None and bool(self.problem.determined.all())

    def ones(self, examples: int) -> int:
        """Return ⌈ρ·examples⌉; a share of whole examples is inexact, and must not be rounded up to one more."""
        if self.share is None:
            return 0
        return math.ceil(self.share * examples - 1e-9)


HOW = {
    "messages": "",
    "messages and public attributes": (
        "messages alone do not determine the local optimum (there are fewer messages than unknowns, or the models "
        "sent hardly differ in some directions), so the public attributes helped to decode it"
    ),
    "extrapolated": "the local optimum is not determined and was extrapolated from the messages",
    "last returned": (
        "the local optimum is not determined, and no extrapolation explains the labels better than the last returned "
        "model, which is used instead"
    ),
    "not seen": "no usable reply",
}
"""How an optimum was found, and what a reader must know of that."""


@dataclass(frozen=True)
class DecodedClient:
    """What of a client was decoded, and from how much.

    Attributes
    ----------
    client
        The client.
    records
        How many of its examples are asked about.
    messages
        How many of its messages were used.
    how
        A key of :data:`HOW`.
    rank, unknowns
        How many directions of the parameters the messages show, ``None`` if unknown, and of how many.
    share
        ρ of the second value; ``None`` if unknown.
    weight
        The attribute's θ_s under each method, ``None`` if unknown, or where the attribute has no such weight.
    """

    client: Name
    records: Count
    messages: Count
    how: Name
    rank: Count | None
    unknowns: Count
    share: Share | None
    weight: Mapping[Name, Finite | None] | None


def describe_how(clients: Sequence[DecodedClient]) -> Iterator[str]:
    """Say in a line each how the optima were found, if not as in the paper."""
    for how, words in HOW.items():
        names = [client.client for client in clients if client.how == how]
        if names and words:
            yield f"{len(names)} of {len(clients)} clients ({', '.join(names[:5])}{' …' * (len(names) > 5)}): {words}"


class FillIn(Protocol):
    """One of the paper's two algorithms.

    Attributes
    ----------
    weighs
        Whether the attribute has one weight in a model, θ_s.
    """

    weighs: bool

    def reconstruct(self, messages: ClientMessages, rows: NDArray[np.int64]) -> Optimum:
        """Find the local optimum of a client whose examples are these rows of those that are asked about."""

    def decide(
        self,
        state: State | None,
        rows: NDArray[np.int64],
        losses: Array,
        optimum: Optimum,
        generator: np.random.Generator,
    ) -> tuple[NDArray[np.int64], float | None]:
        """Decide under one model by losses (rows, v); return indices of values (rows,), −1 for none, and θ_s."""

    def decide_by_moments(
        self, rows: NDArray[np.int64], optimum: Optimum, generator: np.random.Generator
    ) -> tuple[NDArray[np.int64], Array] | None:
        """Decide by all that messages hold of the attribute, if anything; returns beliefs (rows, v), too."""
