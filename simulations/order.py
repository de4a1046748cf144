"""Make a simulation repeatable although Flower draws its node ids at random.

A strategy samples nodes from the Grid's list and averages replies in the order in which they arrive. With random ids
and racing workers both differ from run to run, whatever the seed. This Grid lists the nodes by the partitions that they
hold, and hands replies over in the order of the messages. So the strategy's own seeded draws decide.
"""

import time
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from clients.fedavg import CLIENT_PROPERTY
from fedattack.observe import PassingGrid


class OrderedGrid(PassingGrid):
    """A Grid whose nodes and replies have an order of their own.

    Parameters
    ----------
    inner
        The run's Grid.
    clients
        How many nodes to wait for before they are asked, once, which partition they hold.

    Attributes
    ----------
    partitions
        What each node answered.
    """

    def __init__(self, inner: Grid, clients: int) -> None:
        super().__init__(inner)
        self._clients = clients
        self._nodes: list[int] = []
        self.partitions: dict[int, str] = {}

    def get_node_ids(self) -> Iterable[int]:
        """List all nodes by the partitions that they hold."""
        if not self._nodes:
            while len(nodes := list(self._inner.get_node_ids())) < self._clients:
                time.sleep(0.1)
            self._nodes = self._by_partition(nodes)
        return self._nodes

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Hand replies over in the order of the messages."""
        messages = list(messages)
        replies = list(self._inner.send_and_receive(messages, timeout=timeout))
        order = {message.metadata.message_id: number for number, message in enumerate(messages)}
        return sorted(replies, key=lambda reply: order[reply.metadata.reply_to_message_id])

    def _by_partition(self, nodes: list[int]) -> list[int]:
        content = RecordDict({"getpropertiesins.config": ConfigRecord()})
        questions = [Message(content, node, "get_properties") for node in nodes]
        for reply in self._inner.send_and_receive(questions):
            if not reply.has_error():
                properties = reply.content.config_records["getpropertiesres.properties"]
                self.partitions[reply.metadata.src_node_id] = str(properties[CLIENT_PROPERTY])
        # A node that fails to answer is still a node; it comes last.
        return sorted(nodes, key=lambda node: int(self.partitions.get(node, len(nodes))))
