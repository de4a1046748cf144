"""What a record keeps of a run that is too large: some rounds, or the replies of some clients.

What is left out is chosen without a look at the data, so that it does not bias what attacks find.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedattack.base.errors import ConfigError, short
from fedattack.record.exchange import Exchange


@dataclass(frozen=True)
class Keep:
    """What of a run goes into its record.

    Attributes
    ----------
    every
        Of the rounds that the server counts as 1, 1 + every, 1 + 2 · every … all is kept, the model after them too.
    clients
        Ids of the nodes whose replies are kept; or the share of each round's nodes, above 0 and up to 1. In each round
        these are the nodes with the smallest SHA-256 of seed and id: the same ones as far as they are sampled.
        Who took part, and with how many examples, is always kept.
    seed
        Which nodes a share is.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    every: int = 1
    clients: float | tuple[str, ...] = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        # `type` and not isinstance: true is no number of rounds.
        if type(self.every) is not int or not 1 <= self.every <= 2**50:
            raise ConfigError(f"every={self.every!r}: expected a whole number of rounds, 1 or more")
        by_id = isinstance(self.clients, tuple) and self.clients
        if not by_id and not (isinstance(self.clients, int | float) and 0 < self.clients <= 1):
            raise ConfigError(
                f"clients={self.clients!r}: expected a share above 0 and up to 1, or a list of ids of nodes"
            )

    @classmethod
    def chosen(cls, every: int, clients: float | Sequence[str], seed: int | None) -> "Keep":
        """Take a user's choices as they come: a list of ids or a share, and a seed or none."""
        if not isinstance(clients, int | float | str):
            clients = tuple(map(str, clients))
        return cls(every, clients, seed or 0)  # type: ignore[arg-type]  # text is refused by name

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any] | None) -> "Keep":
        """Read the manifest's ``kept``; all is kept where there is none."""
        if not entry:
            return cls()
        return cls.chosen(**entry)

    def to_entry(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        entry = dict(vars(self))
        if isinstance(self.clients, tuple):
            entry["clients"] = list(self.clients)
        return entry

    @property
    def some_clients(self) -> bool:
        """Whether replies of some clients are left out."""
        return self.clients != 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is thinned: some of ``rounds`` and ``clients``, or nothing."""
        thinned = {"rounds": self.every > 1, "clients": self.some_clients}
        return tuple(kind for kind, applies in thinned.items() if applies)

    def describe(self, kind: str) -> str:
        """Say in words what is kept, by one of :attr:`kinds`."""
        if kind == "rounds":
            return f"every {_ordinal(self.every)} round"
        if isinstance(self.clients, tuple):
            return short(f"the replies of the nodes {', '.join(self.clients)}", 120)
        return f"the replies of {100 * self.clients:g} % of each round's clients"

    def round(self, number: int) -> bool:
        """Whether a round is kept, by the server's number of it."""
        return (number - 1) % self.every == 0

    def count(self, sampled: int) -> int:
        """Return of how many of a round's nodes replies are kept."""
        if isinstance(self.clients, tuple):
            return min(len(self.clients), sampled)
        # In floating point 0.07 · 100 is a little more than 7.
        return math.ceil(round(self.clients * sampled, 9))

    def nodes(self, sampled: Sequence[str]) -> set[str]:
        """Choose of a round's nodes those whose replies are kept."""
        if isinstance(self.clients, tuple):
            return set(self.clients) & set(sampled)
        # By a hash of the node's id: the same clients in every round, whatever they send.
        return set(sorted(sampled, key=self._rank)[: self.count(len(sampled))])

    def _rank(self, node: str) -> bytes:
        return hashlib.sha256(f"{self.seed} {node}".encode("utf-8", "replace")).digest()

    def reduce_round(self, exchange: Exchange) -> Exchange | None:
        """Return what is kept of a round; ``None`` if that is nothing.

        The model that was sent in the round after a kept one is kept: it is the model after the kept round.
        """
        if not self.round(exchange.number):
            # The round after a kept one is stored as its common model alone, which is the kept one's result.
            if not self.round(exchange.number - 1):
                return None
            return replace(exchange, replies=[], aggregate=None, config={}, others=())
        if not self.some_clients:
            return exchange
        # A late reply is one to an earlier round: its node need not be sampled now.
        nodes = self.nodes([reply.node for reply in exchange.replies if reply.status != "late"])
        replies = []
        for reply in exchange.replies:
            if reply.node in nodes:
                replies.append(reply)
            else:
                replies.append(replace(reply, arrays=None, received=None))
        # The mean of other replies than the server took is no common model.
        return replace(exchange, replies=replies, mean=None)

    def within(self, other: "Keep") -> "Keep":
        """Return what a record keeps that is made by this of one that keeps ``other``.

        Raises
        ------
        ConfigError
            If both choose clients: of those that are left, no share of all clients can be taken.
        """
        if self.some_clients and other.some_clients:
            raise ConfigError(f"clients: this record keeps {other.describe('clients')} already; leave the option out")
        # The seed goes with the choice of clients that it made.
        chosen = other if other.some_clients else self
        # Every m-th of every n-th round: those whose numbers fit both.
        return Keep(math.lcm(self.every, other.every), chosen.clients, chosen.seed)


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
