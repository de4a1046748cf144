"""Canary clients in a project of somebody else's: a client mod of Flower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedattack.base.errors import ConfigError, DataError
from fedattack.claims.canaries.directions import move_arrays

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp.typing import ClientAppCallable
    from numpy.typing import NDArray

_PARTITION = "partition-id"
_PARTITIONS = "num-partitions"
_EMPTY = "_empty"
_TRAIN = "train"


@dataclass(frozen=True)
class CanaryMod:
    """Client mod that makes canaries of the last partitions; for both generations of Flower's API.

    ::

        app = ClientApp(mods=[fixedclipping_mod, CanaryMod(count=20, clip=1.0, seed=7)])

    - It stands last, so that other mods treat a canary's reply as any other.
    - The partitions are told that there are ``count`` fewer of them. So the clients hold what they hold in a run of so
      many nodes less without canaries.
    - A canary trains as one of the clients does, whose partition it borrows. It then sends not the trained model, but
      the one that it got, moved by ``clip`` in its direction. So its reply has the metrics of a client and comes in a
      client's time, and an app needs no change.
    - What it borrows is evaluated once more where clients evaluate.

    Parameters
    ----------
    count
        How many of the nodes are canaries, at least 2.
    clip
        C.
    seed
        Of the directions. Whoever knows it knows who the canaries are.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    count: int
    clip: float
    seed: int

    def __post_init__(self) -> None:
        if self.count < 2 or not 0 < self.clip < float("inf") or self.seed < 0:
            raise ConfigError(
                f"CanaryMod(count={self.count}, clip={self.clip}, seed={self.seed}): expected 2 canaries or more, a "
                "finite clip above 0, and a seed of 0 or more"
            )

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let a client be, with fewer partitions; put a canary's direction into its reply to a training message.

        Raises
        ------
        ConfigError
            If a node does not say which of how many partitions it holds, or not one is left.
        DataError
            If model and reply do not have the same arrays.
        """
        canary, ours = self._who(context)
        # The app may take arrays out of the message.
        received = _arrays_of(message)
        reply = call_next(message, ours)
        # The app saw a context of its own: what it left in the state is kept for the next round.
        context.state = ours.state
        kind = message.metadata.message_type.partition(".")[0]
        if canary is None or kind != _TRAIN or reply.has_error():
            return reply
        _replace(reply, received, move_arrays(received, self.seed, canary, self.clip))
        return reply

    def _who(self, context: Context) -> tuple[int | None, Context]:
        """Return the canary's number, or None for a client, and the context as the app is to see it."""
        from flwr.app import Context

        config = dict(context.node_config)
        if _PARTITION not in config or _PARTITIONS not in config:
            raise ConfigError(
                f"CanaryMod: the node says neither {_PARTITION} nor {_PARTITIONS}; give both in its node config, as "
                "flwr run does in a simulation"
            )
        partition, clients = int(config[_PARTITION]), int(config[_PARTITIONS]) - self.count
        if clients < 1:
            raise ConfigError(
                f"CanaryMod: {self.count} canaries of {config[_PARTITIONS]} nodes leave no client; start more nodes"
            )
        canary = None
        config[_PARTITIONS] = clients
        config[_PARTITION] = partition
        # The last partitions are canaries; each borrows the data of a client, so that the app finds some.
        if partition >= clients:
            canary = partition - clients
            config[_PARTITION] = canary % clients
        seen = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=config,
            state=context.state,
            run_config=context.run_config,
        )
        return canary, seen


def _arrays_of(message: Message) -> dict[str, NDArray]:
    arrays = {}
    for record in message.content.array_records.values():
        for name, array in record.items():
            if name != _EMPTY:
                arrays[name] = array.numpy().copy()
    return arrays


def _replace(reply: Message, received: dict[str, NDArray], sent: dict[str, NDArray]) -> None:
    from flwr.app import Array, ArrayRecord

    records = reply.content.array_records
    shapes = [array.shape for array in _arrays_of(reply).values()]
    if len(records) != 1 or shapes != [array.shape for array in received.values()]:
        raise DataError(
            "CanaryMod: expected a reply with the arrays of the model, in one ArrayRecord; the app sends others, and "
            "canaries are for apps that send models"
        )
    ((key, record),) = records.items()
    names = [name for name in record if name != _EMPTY]
    # Flower keeps arrays in order; the reply's own names stay.
    reply.content[key] = ArrayRecord(dict(zip(names, map(Array, sent.values()), strict=True)))
