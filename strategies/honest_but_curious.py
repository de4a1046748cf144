"""The honest-but-curious server: plain FedAvg, whose seed decides which clients it samples."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from strategies.checkpoint import Checkpoint, as_record


@dataclass(frozen=True)
class Sampling:
    """Which clients take part in a round: the same ones for all servers with the same seed.

    Attributes
    ----------
    fraction
        Share of the clients that is sampled in each round; at least one client is.
    clients
        Number of clients; a server waits for all of them before it starts.
    seed
        Seed of the sampling.
    """

    fraction: float
    clients: int
    seed: int

    @property
    def size(self) -> int:
        """Number of clients that are sampled in a round."""
        return max(1, round(self.fraction * self.clients))

    def draw(self, nodes: Iterable[int], server_round: int) -> list[int]:
        """Draw the nodes of one round, with a separate generator.

        Flower's strategies sample with Python's global generator, from which other threads of the process also draw.
        The same seed then does not sample the same clients again.
        """
        return random.Random(f"{self.seed}/{server_round}").sample(list(nodes), self.size)  # noqa: S311


def nodes_at(grid: Grid, places: Iterable[int]) -> list[int]:
    """Return the nodes at these positions of a Grid's list; a Grid that asks nodes for their order asks only these."""
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
        """Continue after a stopped run; return the model after its last round.

        It repeats that round with the recorded replies, with the same result as the stopped server's, bit for bit. If
        only their sum is known, the model is the same up to rounding.
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
