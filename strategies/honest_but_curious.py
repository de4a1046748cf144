"""The honest-but-curious server: FedAvg to the letter, under an observer."""

import random
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedattack.observe import ObservedStrategy
from fedattack.record.format import View
from strategies.past import Past, as_record


def sample_size(fraction: float, clients: int) -> int:
    """Return how many clients are sampled in a round: their share, at least one."""
    return max(1, round(fraction * clients))


def draw_sample(nodes: Iterable[int], size: int, seed: int, server_round: int) -> list[int]:
    """Draw the nodes of one round, by a generator of its own.

    Flower's strategies sample by Python's global generator, from which other threads of the process draw too, so that
    the same seed does not sample the same clients again.
    """
    return random.Random(f"{seed}/{server_round}").sample(list(nodes), size)  # noqa: S311


class SeededFedAvg(FedAvg):
    """A FedAvg whose seed decides which clients it samples.

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
        self._size = sample_size(fraction, clients)
        self._seed = seed
        self._done = 0

    # Whether what it does next depends on earlier rounds than the last.
    _remembers = False

    def catch_up(self, past: Past, grid: Grid) -> ArrayRecord:
        """Go on after a stopped run; returns the model that its last round led to.

        That round is gone through again with the replies as they were recorded: bit for bit what the stopped server
        would have made of them. Where only their sum is known, that is the model but for its rounding.
        """
        for item in past.rounds if self._remembers else past.rounds[-1:]:
            common = as_record(item.common or {})
            list(self.configure_train(item.number, common, ConfigRecord(), grid))
            arrays, _ = self.aggregate_train(item.number, past.replies_in(item))
        self._done = past.done
        if past.rounds[-1].aggregate is not None:
            return as_record(past.summed())
        return common if arrays is None else arrays

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to this round's sample."""
        # Flower counts the rounds of a run that goes on from one again.
        server_round += self._done
        nodes = draw_sample(grid.get_node_ids(), self._size, self._seed, server_round)
        config["server-round"] = server_round
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, node, MessageType.TRAIN) for node in nodes]


def honest_but_curious(
    out: str,
    *,
    fraction: float,
    clients: int,
    seed: int,
    facts: Mapping[str, Any],
    view: View = "individual",
    past: Past | None = None,
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
    view
        What is recorded: each client's reply, or what a secure-aggregation server would have seen of them.
    past
        Of a run that this one goes on with.
    """
    inner = SeededFedAvg(fraction=fraction, clients=clients, seed=seed)
    # The observer fills in strftime directives; this path is meant as it stands.
    return ObservedStrategy(
        inner, out.replace("%", "%%"), seed=seed, facts=facts, view=view, resumed=past and past.names
    )
