"""Can runs of this size show anything? Said before the first round, from what is true and what the attacker knows.

A leak needs a p below :data:`~fedattack.audit.finding.ERROR`. The smallest p that a test can give follows from what it
exchanges, and that is known before anything is trained. So it is also known when no outcome can be a leak. The reverse
is no promise: an attack that is always right may still be no better than a guess that is always right.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fedattack.attacks import Knowledge
from fedattack.audit.truth import Truth


@dataclass(frozen=True)
class Prepared:
    """A run before its first round: what is true of it, and what its attacker knows."""

    truth: Truth
    knowledge: Knowledge


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
    # Few steps: counts of clients or targets that could give a leak are small.
    while number < most and not fits(number):
        number += 1
    return number
