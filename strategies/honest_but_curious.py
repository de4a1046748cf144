"""The honest-but-curious server: FedAvg to the letter, under an observer."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedattack.observe import ObservedStrategy


class SeededFedAvg(FedAvg):
    """A FedAvg that samples clients by a generator of its own.

    Flower's samples by Python's global generator, from which other threads of the process draw too, so that the same
    seed does not sample the same clients again.

    Parameters
    ----------
    fraction
        Share of the clients that is sampled in each round, at least one.
    clients
        How many clients there are; the server waits for all of them before it starts.
    seed
        Seed of the sampling.
    """

    def __init__(self, *, fraction: float, clients: int, seed: int) -> None:
        super().__init__(fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=clients)
        self._size = max(1, round(fraction * clients))
        self._seed = seed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to this round's sample."""
        nodes = random.Random(f"{self._seed}/{server_round}").sample(list(grid.get_node_ids()), self._size)  # noqa: S311
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, node, MessageType.TRAIN) for node in nodes]


def honest_but_curious(
    out: str, *, fraction: float, clients: int, seed: int, facts: Mapping[str, Any]
) -> ObservedStrategy:
    """Build a FedAvg server that records what it sees.

    Parameters
    ----------
    out
        Folder of the record.
    fraction, clients, seed
        See :class:`SeededFedAvg`; the seed is kept in the record's manifest.
    facts
        Kept in the record's manifest.
    """
    inner = SeededFedAvg(fraction=fraction, clients=clients, seed=seed)
    # The observer fills in strftime directives; this path is meant as it stands.
    return ObservedStrategy(inner, out.replace("%", "%%"), seed=seed, facts=facts)
