"""Can runs of this size show anything? Said before the first round, from what is true and what the attacker knows.

A leak needs a p below :data:`~fedattack.audit.finding.ERROR`. The smallest p that a test can give follows from what it
exchanges, and that is known before anything is trained. So it is known, too, when no outcome can be a leak. The reverse
is no promise: an attack that is always right may still be no better than a guess that is always right.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.truth import NOBODY, SEVERAL, ClientAttribute, HeldRecords, Truth
from fedattack.threats import Knowledge


@dataclass(frozen=True)
class Prepared:
    """A run before its first round: what is true of it, and what its attacker knows."""

    truth: Truth
    knowledge: Knowledge

    def seen(self, taking_part: NDArray[np.bool_]) -> "Prepared":
        """Return what is left of it for a server that saw some clients alone.

        Parameters
        ----------
        taking_part
            (clients,): whether a client takes part in any round.
        """
        truth = self.truth
        names = {name for name, seen in zip(truth.clients, taking_part, strict=True) if seen}
        known = np.isin(truth.owners, [*names, NOBODY])
        # A target of a client that was never seen is neither held by one client nor by nobody.
        left = replace(truth, owners=np.where(known, truth.owners, SEVERAL))
        if truth.positives is not None:
            left = replace(left, positives=truth.positives[:, taking_part])
        private = {}
        for name, attribute in truth.private.items():
            values = np.array(attribute.values)[taking_part]
            private[name] = ClientAttribute(tuple(values.tolist()), attribute.names)
        left = replace(left, private=private)
        if truth.attributes is not None:
            asked = truth.attributes
            kept = np.isin(asked.owners, [*names])
            owners = tuple(np.array(asked.owners)[kept].tolist())
            left = replace(left, attributes=replace(asked, values=asked.values[kept], owners=owners))
        if truth.records is not None:
            held = truth.records
            kept = np.isin(held.owners, [*names])
            owners = tuple(np.array(held.owners)[kept].tolist())
            left = replace(left, records=HeldRecords(held.x[kept], held.y[kept], owners))
        return Prepared(left, self.knowledge)


@dataclass(frozen=True)
class Reach:
    """The best that an attack's headline can come to, however well the attack does.

    Attributes
    ----------
    least
        The smallest p that it can have, before the correction for other findings; 1 where nothing can be tested.
    size
        What there is of what the test exchanges, in words: ``3 clients that hold targets``.
    enough
        What would be enough in a single run, in words.
    setting
        The reference system's setting that does that, such as ``clients=5``; empty if there is none.
    """

    least: float
    size: str
    enough: str
    setting: str = ""


def smallest(fits: Callable[[int], bool], start: int = 1, most: int = 100_000) -> int:
    """Return the smallest whole number from ``start`` on that fits; ``most`` if none below it does."""
    number = start
    while number < most and not fits(number):
        number += 1
    return number
