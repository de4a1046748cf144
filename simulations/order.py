"""Make a simulation repeatable although Flower draws its node ids at random.

A strategy samples nodes from the Grid's list and averages replies in the order in which they arrive. With random ids
and racing workers both differ from run to run, whatever the seed. This Grid lists the nodes by the partitions that they
hold, and hands replies over in the order of the messages. So the strategy's own seeded draws decide.

Flower looks for each node's messages among those of all nodes: to ask all at once takes a time that grows with the
square of their number. 1,000 nodes took 28 seconds, and 10,000 would take most of an hour. If there are many nodes,
only those that are drawn are asked.
"""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedattack.observe import PassingGrid
from simulations.study import CLIENT_PROPERTY

FEW = 200
"""Nodes that are all asked before the first round."""


class OrderedGrid(PassingGrid):
    """A Grid whose nodes and replies have an order of their own.

    With more nodes than :data:`FEW`, the order is first taken to be that in which they were registered, as in Flower's
    simulation it is. A node is asked when it is first needed. If one of them says otherwise, all are asked.

    Parameters
    ----------
    inner
        The run's Grid.
    clients
        How many nodes to wait for before any of them is asked, once, which partition it holds.

    Attributes
    ----------
    partitions
        What each node that was asked answered.
    """

    def __init__(self, inner: Grid, clients: int) -> None:
        super().__init__(inner)
        self._clients = clients
        self._nodes: list[int] = []
        self._asked: set[int] = set()
        self.partitions: dict[int, str] = {}

    def get_node_ids(self) -> Iterable[int]:
        """List all nodes by the partitions that they hold; of many, as far as these are known."""
        if not self._nodes:
            while len(nodes := list(self._inner.get_nodes())) < self._clients:
                time.sleep(0.1)
            nodes.sort(key=lambda node: (node.registered_at, node.node_id))
            self._nodes = [node.node_id for node in nodes]
            if len(nodes) <= FEW:
                self._ask_all()
        return self._nodes

    def nodes_at(self, places: Iterable[int]) -> list[int]:
        """Return the nodes at these places of the list, which hold the partitions of these numbers."""
        self.get_node_ids()
        places = list(places)
        self._ask([self._nodes[place] for place in places])
        if any(self._place_of(self._nodes[place]) not in (place, len(self._nodes)) for place in places):
            self._ask_all()
        return [self._nodes[place] for place in places]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Hand replies over in the order of the messages."""
        messages = list(messages)
        replies = list(self._inner.send_and_receive(messages, timeout=timeout))
        order = {message.metadata.message_id: number for number, message in enumerate(messages)}
        return sorted(replies, key=lambda reply: order[reply.metadata.reply_to_message_id])

    def _ask_all(self) -> None:
        self._ask(self._nodes)
        self._nodes = sorted(self._nodes, key=self._place_of)

    def _place_of(self, node: int) -> int:
        """Return a node's place; one that fails to answer is still a node, and comes last."""
        return int(self.partitions.get(node, len(self._nodes)))

    def _ask(self, nodes: list[int]) -> None:
        content = RecordDict({"getpropertiesins.config": ConfigRecord()})
        new = [node for node in nodes if node not in self._asked]
        self._asked.update(new)
        questions = [Message(content, node, "get_properties") for node in new]
        for reply in self._inner.send_and_receive(questions) if questions else ():
            if not reply.has_error():
                properties = reply.content.config_records["getpropertiesres.properties"]
                self.partitions[reply.metadata.src_node_id] = str(properties[CLIENT_PROPERTY])


class SharedGrid(PassingGrid):
    """The share of the nodes that one of several runs has, which follow each other in one Flower run.

    Parameters
    ----------
    inner
        Lists the nodes of all runs.
    first, count
        The first partition of this run, and how many it has.
    """

    def __init__(self, inner: OrderedGrid, first: int, count: int) -> None:
        super().__init__(inner)
        self._all, self._first, self._count = inner, first, count

    @property
    def partitions(self) -> dict[int, str]:
        """Which client each node of this run is that was asked."""
        places = {node: int(partition) - self._first for node, partition in self._all.partitions.items()}
        return {node: str(place) for node, place in places.items() if 0 <= place < self._count}

    def get_node_ids(self) -> Iterable[int]:
        """List the nodes of this run."""
        return list(self._all.get_node_ids())[self._first : self._first + self._count]

    def get_nodes(self) -> Iterable[Any]:
        """List the nodes of this run, with what Flower knows of each."""
        own = set(self.get_node_ids())
        return [node for node in self._all.get_nodes() if node.node_id in own]

    def nodes_at(self, places: Iterable[int]) -> list[int]:
        """Return the nodes at these places of the list."""
        return self._all.nodes_at(self._first + place for place in places)
