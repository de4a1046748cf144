"""What data loaders drew between two steps, and what asks about it: a source that knows of private training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, eq=False, slots=True)
class DrawnBatch:
    """A batch that a loader gave.

    Attributes
    ----------
    number
        In the order in which batches came.
    dataset, sampler
        What it is of, and what draws its indices.
    turn
        The pass over the data; another object for another one.
    count
        Number of its examples.
    """

    number: int
    dataset: object
    sampler: object
    turn: object
    count: int


class PrivateTraining(Protocol):
    """What a source knows of training with differential privacy, by one optimizer in one call of a client."""

    def note_step(self, drawn: Sequence[DrawnBatch]) -> None:
        """Note a step; ``drawn`` are the batches that came last."""

    def keeps_gradients(self) -> bool:
        """Whether gradients stay where the client throws them away, until its next step."""

    def read_claim(self) -> dict[str, Any]:
        """Return the keys of a privacy claim about one round; none where no step was made."""
