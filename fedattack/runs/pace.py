"""How much longer work takes, said once, from how fast it went so far; nothing is said of work that ends soon."""

import math
import time
from collections.abc import Callable

Say = Callable[[str, str], None]
"""Takes ``note`` or ``warning``, and a line; see :class:`fedattack.runs.watch.Watch`."""

# Seconds of work that are worth a forecast.
_WORTH_SAYING = 20.0


class Pace:
    """Says how much longer work takes that is done step by step, once its first steps are timed.

    What comes before the step that is seen first, such as the start of Flower, is not in it.

    Parameters
    ----------
    what, steps, total
        What takes so long, what its steps are called, and how many there are.
    timed
        How many steps are timed.
    say
        Told once.
    clock
        Seconds.
    """

    def __init__(
        self, what: str, steps: str, total: int, timed: int, say: Say, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what, self._steps, self._total, self._timed, self._say = what, steps, total, timed, say
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._told = False

    def seen(self, done: int) -> None:
        """Take notice of how many steps are done."""
        now = self._clock()
        # The first step is where the clock starts: what came before it, such as imports, is no pace.
        if self._first is None:
            self._first = (done, now)
        first, at = self._first
        if self._told or done < first + self._timed:
            return
        self._told = True
        # Seconds a step so far, times the steps that are left.
        left = (now - at) / (done - first) * (self._total - done)
        if left >= _WORTH_SAYING:
            self._say("note", f"{self._what} takes {roughly(left)} more, after {done} of {self._total} {self._steps}")


def roughly(seconds: float) -> str:
    """Write a time as a forecast does: ``about 40 seconds``, ``about 4 minutes``."""
    units = (("second", 1, 90), ("minute", 60, 90 * 60), ("hour", 3600, math.inf))
    unit, size, _ = next(entry for entry in units if seconds < entry[2])
    count: float = max(1, round(seconds / size))
    if unit == "second":
        count = max(10, round(seconds, -1))
    return f"about {count:.0f} {unit}{'s' if count != 1 else ''}"
