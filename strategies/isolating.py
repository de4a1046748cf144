"""The isolating server, an active one: it sends each victim its own model back instead of the average.

So a victim trains alone, and all that it sends is about its own examples (Lyu and Chen 2021, Section 3; Nasr, Shokri
and Houmansadr 2019). All others get the average of the clients that are not isolated.
"""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from strategies.honest_but_curious import Sampling, SeededFedAvg, nodes_at


class IsolatingFedAvg(SeededFedAvg):
    """A FedAvg that isolates its victims.

    Parameters
    ----------
    sampling
        Which clients take part in a round.
    victims
        Number of clients that are isolated, counted from the first in the Grid's order. If all are, the common model is
        still the average of all, and nobody receives it after the first round.
    """

    def __init__(self, sampling: Sampling, *, victims: int) -> None:
        super().__init__(sampling)
        self._victims = victims
        self._all = victims == sampling.clients
        self._isolated: set[int] = set()
        self._models: dict[int, ArrayRecord] = {}

    _remembers = True

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send this round's sample the model, and victims that have already answered their own."""
        server_round += self._done
        config["server-round"] = server_round
        self._isolated = set(nodes_at(grid, range(self._victims)))
        sample = nodes_at(grid, self._sampling.draw(range(self._sampling.clients), server_round))
        return [self._message(node, self._models.get(node, arrays), config) for node in sample]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep the victims' models, and average the others'."""
        replies = list(replies)
        others = []
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._isolated:
                others.append(reply)
            elif reply.has_content():
                self._models[node] = reply.content.array_records[self.arrayrecord_key]
        return super().aggregate_train(server_round, replies if self._all else others)
