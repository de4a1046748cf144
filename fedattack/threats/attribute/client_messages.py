"""What each client received and returned: from this its local optimum is reconstructed."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.base import Seen
from fedattack.attacks.matching import fits_model, is_finite
from fedattack.attacks.replies import replied
from fedattack.record import Observation
from fedattack.threats.attribute.attribute_model import Array, AttributeModel
from fedattack.threats.attribute.local_optimum import UpdateMap, fit_update_maps


@dataclass
class ClientMessages:
    """What one client received and returned, in the order of the rounds.

    Attributes
    ----------
    rounds, received, returned
        The rounds' numbers, and parameters (p,) of each.
    last
        The whole state that it returned last.
    examples
        How many it says that it has; ``None`` if it does not say.
    precision
        Relative rounding error of what it returned.
    alone
        Whether the server ever sent it another model than the common one.
    """

    name: str
    rounds: list[int] = field(default_factory=list)
    received: list[Array] = field(default_factory=list)
    returned: list[Array] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    examples: float | None = None
    precision: float = 0.0
    alone: bool = False

    def add(self, number: int, reply: Observation, state: dict[str, Any], received: Array, returned: Array) -> None:
        """Add a round, with the state that the client returned in it."""
        self.rounds.append(number)
        self.received.append(received)
        self.returned.append(returned)
        self.last, self.examples = state, reply.count
        self.alone |= reply.singled_out
        for array in state.values():
            if np.issubdtype(array.dtype, np.floating):
                self.precision = max(self.precision, float(np.finfo(array.dtype).eps))

    def drop_first(self, most: int) -> bool:
        """Forget the first round if there are more than so many; says whether it did."""
        if len(self.rounds) <= most:
            return False
        del self.rounds[0], self.received[0], self.returned[0]
        return True

    def moves(self) -> Array:
        """Return received − returned (rounds, p)."""
        return np.stack(self.received) - np.stack(self.returned)


def collect_messages(
    seen: Seen, clients: Mapping[str, NDArray[np.int64]], model: AttributeModel, memory: int
) -> dict[str, ClientMessages]:
    """Read what each client received and returned, each common model once; ``memory`` is the most bytes of models."""
    notes = seen.notes
    # A round of a client is two models in float64.
    most = max(2, int(memory // (16 * model.size * len(clients))))
    short = f"only the last {most} rounds of each client are used: their models take {memory >> 20} MiB"
    messages: dict[str, ClientMessages] = {}
    for done, round_ in enumerate(seen.record):
        common: Array | None = None
        for reply in filter(replied, round_.observations):
            name = seen.knowledge.client_of(reply.node)
            if name not in clients:
                continue
            received: Array | None
            if reply.singled_out:
                received = model.flat(reply.received or {})
            else:
                # Clients of a round that received one model share the one copy.
                if common is None and round_.common is not None:
                    common = model.flat(round_.common)
                received = common
            state = dict(reply.arrays or {})
            where = f"round {round_.number}, client {name} left out"
            if not fits_model(model.module, state, where, notes):
                continue
            returned = model.flat(state)
            if received is None:
                notes.append(f"{where}: what it was sent is unknown")
            elif not is_finite([received, returned]):
                notes.append(f"{where}: its model is not finite")
            else:
                of_client = messages.setdefault(name, ClientMessages(name))
                of_client.add(round_.number, reply, state, received, returned)
                if of_client.drop_first(most) and short not in notes:
                    notes.append(short)
        seen.progress(done + 1, len(seen.record))
    return messages


def fit_maps(messages: Iterable[ClientMessages]) -> Iterator[tuple[str, UpdateMap]]:
    """Fit the update maps of all clients, those that received the same models together."""

    def received_models(of_client: ClientMessages) -> tuple[bool, tuple[int, ...], str]:
        name = ""
        if of_client.alone:
            name = of_client.name
        return of_client.alone, tuple(of_client.rounds), name

    # Clients that took part in the same rounds received the same models, unless the server singled them out.
    for _, group in itertools.groupby(sorted(messages, key=received_models), received_models):
        members = list(group)
        moves = np.stack([*map(ClientMessages.moves, members)])
        precision = max(of_client.precision for of_client in members)
        fits = fit_update_maps(np.stack(members[0].received), moves, precision)
        for of_client, fit in zip(members, fits, strict=True):
            yield of_client.name, fit
