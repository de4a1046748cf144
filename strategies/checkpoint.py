"""What a server recorded of a stopped run, and where a run that continues it begins."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedattack.base.errors import RecordError
from fedattack.record import Record, Round


@dataclass(frozen=True)
class Checkpoint:
    """The rounds of a stopped run.

    Attributes
    ----------
    rounds
        The finished rounds, in order; at least one.
    names
        Each node's name in the record, by its current id: Flower gives nodes new ids in a new run.
    """

    rounds: tuple[Round, ...]
    names: Mapping[str, str]

    @classmethod
    def of(cls, record: Record, names: Mapping[str, str]) -> "Checkpoint":
        """Take the finished rounds of a record.

        Raises
        ------
        RecordError
            If there is no finished round.
        """
        # A line without sampled nodes holds late replies alone.
        rounds = tuple(entry for entry in record if entry.sampled and not entry.unfinished)
        if not rounds:
            raise RecordError(f"{record.path} has no finished round to continue from")
        return cls(rounds, names)

    @property
    def last(self) -> Round:
        """The last finished round."""
        return self.rounds[-1]

    @property
    def done(self) -> int:
        """Number of the last finished round."""
        return self.last.number

    def replies_in(self, finished: Round) -> list[Message]:
        """Return the usable replies of a round again, as a strategy takes them."""
        ids = {name: int(node) for node, name in self.names.items()}
        replies = []
        for observation in finished.observations:
            if observation.status != "ok" or observation.arrays is None:
                continue
            metrics = MetricRecord()
            if observation.num_examples is not None:
                metrics["num-examples"] = observation.num_examples
            content = RecordDict({"arrays": as_record(observation.arrays), "metrics": metrics})
            # A reply's sender is whom its question was sent to; it cannot be said otherwise.
            question = Message(RecordDict(), ids.get(observation.node, 0), MessageType.TRAIN)
            replies.append(Message(content, reply_to=question))
        return replies

    def model_of_sum(self) -> dict[str, NDArray[np.generic]]:
        """Return the model after the last round if only its sum is known, in the model's precision."""
        common, aggregate = self.last.common or {}, self.last.aggregate or {}
        return {name: np.asarray(aggregate.get(name, array)).astype(array.dtype) for name, array in common.items()}


def as_record(arrays: Mapping[str, NDArray[np.generic]]) -> ArrayRecord:
    """Put arrays into one of Flower's records."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
