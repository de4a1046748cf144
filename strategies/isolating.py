"""The isolating server: active, it sends each victim its own model back instead of the average.

A victim so trains alone, and all that it sends is about its own records (Lyu and Chen 2021, Section 3; Nasr, Shokri and
Houmansadr 2019). Everybody else gets the average of those who are not isolated.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedattack.observe import ObservedStrategy
from strategies.honest_but_curious import SeededFedAvg, draw_sample
from strategies.past import Past


class IsolatingFedAvg(SeededFedAvg):
    """A FedAvg that keeps its victims to themselves.

    Parameters
    ----------
    victims
        How many clients are isolated, from the first in the Grid's order. If that is all of them, the common model is
        still the average of all, and nobody is sent it after the first round.
    fraction, clients, seed
        See :class:`strategies.honest_but_curious.SeededFedAvg`.
    """

    def __init__(self, *, victims: int, fraction: float, clients: int, seed: int) -> None:
        super().__init__(fraction=fraction, clients=clients, seed=seed)
        self._victims = victims
        self._all = victims == clients
        self._isolated: set[int] = set()
        self._own: dict[int, ArrayRecord] = {}

    _remembers = True

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send this round's sample the model, and victims who have answered before their own."""
        server_round += self._done
        nodes = list(grid.get_node_ids())
        self._isolated = set(nodes[: self._victims])
        config["server-round"] = server_round
        return [
            Message(
                RecordDict({self.arrayrecord_key: self._own.get(node, arrays), self.configrecord_key: config}),
                node,
                MessageType.TRAIN,
            )
            for node in draw_sample(nodes, self._size, self._seed, server_round)
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Keep the victims' models, and average the others'."""
        replies = list(replies)
        others = []
        for reply in replies:
            if reply.metadata.src_node_id not in self._isolated:
                others.append(reply)
            elif reply.has_content():
                self._own[reply.metadata.src_node_id] = reply.content.array_records[self.arrayrecord_key]
        return super().aggregate_train(server_round, replies if self._all else others)


def isolating(
    out: str,
    *,
    victims: int,
    fraction: float,
    clients: int,
    seed: int,
    facts: Mapping[str, Any],
    past: Past | None = None,
) -> ObservedStrategy:
    """Build an isolating server that records what it sees, and what it sent to whom.

    Parameters
    ----------
    out, facts, past
        See :func:`strategies.honest_but_curious.honest_but_curious`.
    victims, fraction, clients, seed
        See :class:`IsolatingFedAvg`.
    """
    inner = IsolatingFedAvg(victims=victims, fraction=fraction, clients=clients, seed=seed)
    return ObservedStrategy(
        inner, out.replace("%", "%%"), seed=seed, facts=facts, server="isolating", resumed=past and past.names
    )
