"""The attack: the client whose updates are the largest."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks import Attack, Seen
from fedattack.attacks.replies import replied
from fedattack.base.stored import Axes, Name
from toy_threat.options import ToyOptions


@dataclass(frozen=True, eq=False)
class UpdateNorms:
    """Norms (clients,): of each client the mean of a power of the norm of its updates."""

    clients: tuple[Name, ...]
    targets: Name
    norms: Annotated[NDArray[np.float64], Axes("clients", low=0)]


class LargestUpdate(Attack):
    """Measures how large the updates of each client are."""

    options = ToyOptions()
    found = UpdateNorms
    knows = ("nothing but the record",)

    def attack(self, seen: Seen) -> UpdateNorms:
        norms: dict[str, list[float]] = {}
        for round_ in seen.record:
            for reply in filter(replied, round_.observations):
                squares = [float(np.square(part).sum()) for part in reply.update().values()]
                norms.setdefault(reply.node, []).append(sum(squares) ** (self.options.power / 2))
        means = np.array([np.mean(values) for values in norms.values()])
        return UpdateNorms(tuple(norms), seen.knowledge.asked(), means)
