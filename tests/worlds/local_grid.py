"""A Grid that runs ClientApps in this process, so that hundreds of rounds of the real Flower take a second.

It uses the private TaskIdentity, which a simulation would set. Flower 1.35 and older have none.
"""

import copy
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:
    TaskIdentity = None

FIRST_NODE = 2**63 + 11  # real node ids are unsigned 64-bit numbers


class _Run:
    run_id = 7


class LocalGrid(Grid):
    """Runs ``app`` for ``nodes`` nodes, whose ids go from ``first`` on.

    ``drop(round_message)`` may return ``"fail"`` (the client raises), ``"silent"`` (no reply comes) or ``"late"`` (the
    reply comes with the next pull).
    """

    def __init__(
        self,
        app,
        nodes: int,
        drop: Callable[[Message, int], str | None] = lambda message, index: None,
        first: int = FIRST_NODE,
    ):
        if TaskIdentity is not None:
            TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 7, 1, 1
        self._app = app
        self._drop = drop
        self._first = first
        self._pending: list[Message] = []
        self._held: list[Message] = []
        self._count = 0
        self._contexts = {
            first + index: Context(
                run_id=7,
                node_id=first + index,
                node_config={"partition-id": index, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for index in range(nodes)
        }

    def configure(self, settings: Mapping[str, str | int | float | bool]) -> None:
        """Give all nodes a run config."""
        for context in self._contexts.values():
            context.run_config = dict(settings)

    def set_run(self, run):
        pass

    @property
    def run(self):
        return _Run()

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = f"message-{self._count}"
            ids.append(message.metadata.message_id)
            self._answer(copy.deepcopy(message))
        return ids

    def _answer(self, message: Message) -> None:
        node = message.metadata.dst_node_id
        fate = self._drop(message, node - self._first)
        if fate == "silent":
            return
        if fate == "fail":
            reply = Message(Error(code=1, reason="the client raised"), reply_to=message)
            # This is how a real SuperLink reports an unavailable node: not under the node's own id.
            reply.metadata.__dict__["_src_node_id"] = 1
        else:
            reply = self._app(message, self._contexts[node])
        (self._held if fate == "late" else self._pending).append(reply)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = set(message_ids)
        found = [item for item in self._pending if item.metadata.reply_to_message_id in wanted]
        self._pending = [item for item in self._pending if item not in found] + self._held
        self._held = []
        return found

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
