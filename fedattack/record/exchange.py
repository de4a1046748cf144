"""A round as a server saw it, before it is written."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedattack.record.format import COUNT_KEY, Arrays, Status
from fedattack.record.others import Others


@dataclass(frozen=True)
class Reply:
    """What the server got, or did not get, from one node in one round.

    Attributes
    ----------
    node
        The node's id as the server knows it.
    status
        ``ok``; ``failed`` (an error came back, or arrays that cannot be read); ``missing`` (sampled, but nothing
        came); ``late`` (came after its round had been closed).
    arrays
        What the client sent, by parameter name; ``None`` without arrays of its own (a failure, an aggregate view).
    num_examples
        The example count that the client sent beside the arrays.
    metrics
        Everything else that it sent in plaintext.
    reason
        Why there is no usable reply.
    received
        The model that was sent to this node, if it is not the round's common model.
    of_round
        For a late reply, the round that it answers.
    count_key
        The name under which the client sent its example count.
    """

    node: str
    status: Status
    arrays: Arrays | None = None
    num_examples: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    received: Arrays | None = None
    of_round: int | None = None
    count_key: str = COUNT_KEY


@dataclass(frozen=True)
class Exchange:
    """One round as the server saw it, ready to be written.

    ``common`` is the model that was sent to the clients and ``config`` what the server sent with it, ``aggregate``
    what a secure-aggregation server sees in place of replies, and ``mean`` the recipe of :mod:`fedattack.record.means`
    by which this server may average. ``others`` are the messages that passed since the round before, and are no
    training.
    """

    number: int
    common: Arrays | None
    replies: Sequence[Reply]
    aggregate: Arrays | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    mean: str | None = None
    started: float = field(default_factory=time.time)
    ended: float = field(default_factory=time.time)
    others: Sequence[Others] = ()
