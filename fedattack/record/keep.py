"""What a record keeps of a run that is too large: some rounds, clients or layers, or sketches.

What is left out is chosen without a look at the data, so that it does not bias what attacks find.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from numpy.typing import NDArray

from fedattack.base.errors import ConfigError, short
from fedattack.record.exchange import Exchange, Reply
from fedattack.record.format import Arrays, Parameter
from fedattack.record.tensors import DTYPES, checksum


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
    layers
        Names of the arrays that are kept, with ``*`` and ``?`` as in file names; all arrays without any.
    seed
        Which nodes a share is, and which signs a sketch has.
    sketch
        Of each reply, or of a round's sum, only a sketch of how far it moved the model is kept, of so many numbers at
        most; see :mod:`fedattack.record.sketch`. Common models stay exact. 0 for whole arrays.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    every: int = 1
    clients: float | tuple[str, ...] = 1.0
    layers: tuple[str, ...] = ()
    seed: int = 0
    sketch: int = 0

    def __post_init__(self) -> None:
        if type(self.every) is not int or not 1 <= self.every <= 2**50:
            raise ConfigError(f"every={self.every!r}: expected a whole number of rounds, 1 or more")
        by_id = isinstance(self.clients, tuple) and self.clients
        if not by_id and not (isinstance(self.clients, int | float) and 0 < self.clients <= 1):
            raise ConfigError(
                f"clients={self.clients!r}: expected a share above 0 and up to 1, or a list of ids of nodes"
            )
        if type(self.sketch) is not int or not 0 <= self.sketch <= 2**50:
            raise ConfigError(f"sketch={self.sketch!r}: expected how many numbers a sketch has; 0 for whole arrays")

    @classmethod
    def chosen(
        cls,
        every: int,
        clients: float | Sequence[str],
        layers: str | Sequence[str],
        seed: int | None,
        sketch: int = 0,
    ) -> "Keep":
        """Take a user's choices as they come: one name or several, and a seed or none."""
        if isinstance(layers, str):
            layers = [layers]
        if not isinstance(clients, int | float | str):
            clients = tuple(map(str, clients))
        return cls(every, clients, tuple(layers), seed or 0, sketch)  # type: ignore[arg-type]  # text is refused by name

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any] | None) -> "Keep":
        """Read the manifest's ``kept``; all is kept where there is none."""
        if not entry:
            return cls()
        return cls.chosen(**entry)

    def to_entry(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        entry = vars(self) | {"layers": list(self.layers)}
        if isinstance(self.clients, tuple):
            entry["clients"] = list(self.clients)
        if not self.sketch:
            del entry["sketch"]
        return entry

    @property
    def some_clients(self) -> bool:
        """Whether replies of some clients are left out."""
        return self.clients != 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is thinned: some of ``rounds``, ``clients``, ``layers`` and ``sketch``, or nothing."""
        thinned = {
            "rounds": self.every > 1,
            "clients": self.some_clients,
            "layers": bool(self.layers),
            "sketch": self.sketch > 0,
        }
        return tuple(kind for kind, applies in thinned.items() if applies)

    @property
    def exact_replies(self) -> bool:
        """Whether all replies of a kept round are kept as they came, so that their mean can be taken."""
        return not self.some_clients and not self.sketch

    def describe(self, kind: str) -> str:
        """Say in words what is kept, by one of :attr:`kinds`."""
        if kind == "rounds":
            return f"every {_ordinal(self.every)} round"
        if kind == "layers":
            return short(f"the layers {', '.join(self.layers)}", 120)
        if kind == "sketch":
            return f"sketches of updates, of {self.sketch:,} numbers each"
        if isinstance(self.clients, tuple):
            return short(f"the replies of the nodes {', '.join(self.clients)}", 120)
        return f"the replies of {100 * self.clients:g} % of each round's clients"

    def round(self, number: int) -> bool:
        """Whether a round is kept, by the server's number of it."""
        return (number - 1) % self.every == 0

    def layer(self, name: str) -> bool:
        """Whether an array is kept."""
        return not self.layers or any(fnmatchcase(name, pattern) for pattern in self.layers)

    def count(self, sampled: int) -> int:
        """Return of how many of a round's nodes replies are kept."""
        if isinstance(self.clients, tuple):
            return min(len(self.clients), sampled)
        return math.ceil(round(self.clients * sampled, 9))

    def nodes(self, sampled: Sequence[str]) -> set[str]:
        """Choose of a round's nodes those whose replies are kept."""
        if isinstance(self.clients, tuple):
            return set(self.clients) & set(sampled)
        return set(sorted(sampled, key=self._rank)[: self.count(len(sampled))])

    def _rank(self, node: str) -> bytes:
        return hashlib.sha256(f"{self.seed} {node}".encode("utf-8", "replace")).digest()

    def split(self, arrays: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Part arrays into those that are kept and those that are left out."""
        kept = {name: array for name, array in arrays.items() if self.layer(name)}
        return kept, {name: array for name, array in arrays.items() if name not in kept}

    def within(self, other: "Keep") -> "Keep":
        """Return what a record keeps that is made by this of one that keeps ``other``.

        Raises
        ------
        ConfigError
            If both choose clients: of those that are left, no share of all clients can be taken. If ``other`` keeps
            sketches, of which no shorter sketch can be taken, and which do not tell frozen layers.
        """
        wanted = {"sketch": self.sketch, "layers": self.layers}
        refused = [option for option, asked in wanted.items() if other.sketch and asked]
        if refused:
            raise ConfigError(f"{refused[0]}: this record keeps {other.describe('sketch')}; leave the option out")
        if self.some_clients and other.some_clients:
            raise ConfigError(f"clients: this record keeps {other.describe('clients')} already; leave the option out")
        clients, seed = self.clients, self.seed
        if other.some_clients:
            clients = other.clients
        if other.some_clients or other.sketch:
            seed = other.seed
        return Keep(
            math.lcm(self.every, other.every),
            clients,
            self.layers or other.layers,
            seed,
            self.sketch or other.sketch,
        )


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


@dataclass
class Thinning:
    """Takes from rounds what is not kept, and watches the arrays that are left out.

    An array that is the same in every model that passes, of server and clients, is *frozen*: whoever attacks the record
    can put it back, and its checksum says that it is the right one.

    Attributes
    ----------
    keep
        What is kept.
    left_out
        By name, the manifest's entry of an array that is left out; its ``xxh3`` is ``None`` once it was seen to change.
    changed
        Whether ``left_out`` says something new.
    """

    keep: Keep
    sends_back: bool
    left_out: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: bool = False

    def reduce_round(self, exchange: Exchange) -> Exchange | None:
        """Return what is kept of a round; ``None`` if that is nothing.

        Of the round after a kept one the model that was sent is kept: the model after the kept round.
        """
        if not self.keep.kinds:
            return exchange
        if not self.keep.round(exchange.number):
            if not self.keep.round(exchange.number - 1):
                return None
            return replace(
                exchange,
                common=self.model(exchange.common),
                replies=[],
                aggregate=None,
                sketch=None,
                config={},
                others=(),
            )
        common = self.model(exchange.common)
        nodes = {reply.node for reply in exchange.replies}
        if self.keep.some_clients:
            nodes = self.keep.nodes([reply.node for reply in exchange.replies if reply.status != "late"])
        replies = [self._reply(reply, kept=reply.node in nodes) for reply in exchange.replies]
        aggregate = exchange.aggregate
        if aggregate is not None:
            aggregate, _ = self.keep.split(aggregate)
        mean = exchange.mean
        if not self.keep.exact_replies:
            # The mean of other replies than the server took is no common model.
            mean = None
        return replace(exchange, common=common, replies=replies, aggregate=aggregate, mean=mean)

    def model(self, arrays: Arrays | None) -> dict[str, NDArray[Any]] | None:
        """Return the kept arrays of a model, and watch the others."""
        if arrays is None:
            return None
        kept, others = self.keep.split(arrays)
        for name, array in others.items():
            self._watch(name, array)
        return kept

    def _reply(self, reply: Reply, *, kept: bool) -> Reply:
        arrays = reply.arrays
        if not kept or (arrays is None and reply.sketch is None):
            return replace(reply, arrays=None, received=None, sketch=None)
        if arrays is None:
            return reply
        if self.sends_back and reply.status == "ok":
            sent = self.model(arrays)
        else:
            # A gradient is no model, and has nothing to compare.
            sent, _ = self.keep.split(arrays)
        return replace(reply, arrays=sent, received=self.model(reply.received))

    def _watch(self, name: str, array: NDArray[Any]) -> None:
        seen = vars(Parameter.of(name, array)) | {"shape": list(array.shape), "xxh3": None}
        before = self.left_out.get(name)
        if array.dtype.name in DTYPES and (before is None or before["xxh3"] is not None):
            seen["xxh3"] = checksum([array])
        if before is None:
            self.left_out[name] = seen
            self.changed = True
        elif before["xxh3"] is not None and before != seen:
            before["xxh3"] = None
            self.changed = True
