"""The honest-but-curious server: FedAvg to the letter, whose seed decides which clients it samples."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from strategies.checkpoint import Checkpoint, as_record


@dataclass(frozen=True)
class Sampling:
    """Which clients take part in a round: the same ones in all servers of a seed.

    Attributes
    ----------
    fraction
        Share of the clients that is sampled in each round, at least one.
    clients
        How many clients there are; a server waits for all of them before it starts.
    seed
        Seed of the sampling.
    """

    fraction: float
    clients: int
    seed: int

    @property
    def size(self) -> int:
        """How many clients are sampled in a round."""
        return max(1, round(self.fraction * self.clients))

    def draw(self, nodes: Iterable[int], server_round: int) -> list[int]:
        """Draw the nodes of one round, by a generator of its own.

        Flower's strategies sample by Python's global generator, from which other threads of the process draw too. The
        same seed then does not sample the same clients again.
        """
        return random.Random(f"{self.seed}/{server_round}").sample(list(nodes), self.size)  # noqa: S311


def nodes_at(grid: Grid, places: Iterable[int]) -> list[int]:
    """Return the nodes at these places of a Grid's list; a Grid that asks nodes for their order asks these alone."""
    if hasattr(grid, "nodes_at"):
        return list(grid.nodes_at(places))
    nodes = list(grid.get_node_ids())
    return [nodes[place] for place in places]


class SeededFedAvg(FedAvg):
    """A FedAvg that samples by a seed."""

    def __init__(self, sampling: Sampling) -> None:
        super().__init__(
            fraction_train=sampling.fraction,
            fraction_evaluate=0.0,
            min_train_nodes=1,
            min_available_nodes=sampling.clients,
        )
        self._sampling = sampling
        self._done = 0

    # Whether what it does next depends on earlier rounds than the last.
    _remembers = False

    def resume(self, checkpoint: Checkpoint, grid: Grid) -> ArrayRecord:
        """Go on after a stopped run; returns the model that its last round led to.

        That round is gone through again with the replies as they were recorded: bit for bit what the stopped server
        would have made of them. Where only their sum is known, that is the model but for its rounding.
        """
        rounds = checkpoint.rounds if self._remembers else [checkpoint.last]
        for finished in rounds:
            common = as_record(finished.common or {})
            list(self.configure_train(finished.number, common, ConfigRecord(), grid))
            arrays, _ = self.aggregate_train(finished.number, checkpoint.replies_in(finished))
        self._done = checkpoint.done
        if checkpoint.last.aggregate is not None:
            return as_record(checkpoint.model_of_sum())
        return common if arrays is None else arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to this round's sample."""
        # Flower counts the rounds of a run that goes on from one again.
        server_round += self._done
        config["server-round"] = server_round
        places = self._sampling.draw(range(self._sampling.clients), server_round)
        return [self._message(node, arrays, config) for node in nodes_at(grid, places)]

    def _message(self, node: int, arrays: ArrayRecord, config: ConfigRecord) -> Message:
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return Message(content, node, MessageType.TRAIN)
