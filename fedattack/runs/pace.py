"""How much longer work takes, said once, from how fast it went so far; nothing is said of work that ends soon."""

import math
import time
from collections.abc import Callable

Say = Callable[[str, str], None]
"""Takes ``note`` or ``warning``, and a line; see :class:`fedattack.runs.watch.Watch`."""

Clock = Callable[[], float]

# Seconds of work that are worth a forecast.
_WORTH_SAYING = 20.0

# From a simulation's last round to its end. With it, what was said of 13 runs on two cores was between 16% too little
# and 14% too much.
_ENDING = 5.0

# Rounds after the first one that are timed. The first has the start of Flower in it.
_TIMED = 2


class TrainingPace:
    """Says how much longer a training takes, after its third round.

    Every start of Flower takes as long as the first one did, and every round is like the ones that were timed.

    Parameters
    ----------
    seeds, rounds
        How many trainings there are, and rounds of each.
    say
        Told once.
    starts
        How often Flower starts: for each seed, or once for all.
    clock
        Seconds.
    """

    def __init__(self, seeds: int, rounds: int, say: Say, *, starts: int, clock: Clock = time.monotonic) -> None:
        self._seeds, self._rounds, self._say, self._starts, self._clock = seeds, rounds, say, starts, clock
        self._started = clock()
        self._before: int | None = None
        self._first: tuple[int, float] | None = None
        self._told = False

    def seen(self, seed: int, done: int) -> None:
        """Take notice of how many rounds a seed has done; the first seed is number 0."""
        if self._told:
            return
        now = self._clock()
        if seed and self._starts > 1:
            # Rounds were too short to be timed one by one.
            self._tell((now - self._started) * (self._seeds - seed) / seed, seed * self._rounds)
            return
        done += seed * self._rounds
        if self._before is None:
            # A resumed run begins with some.
            self._before = done
        if done <= self._before:
            return
        if self._first is None:
            self._first = (done, now)
        first, at = self._first
        if done < first + _TIMED:
            return
        a_round = (now - at) / (done - first)
        start = max(0.0, at - self._started - (first - self._before) * a_round)
        left = (self._seeds * self._rounds - done) * a_round
        left += (self._starts - 1) * start + self._starts * _ENDING
        self._tell(left, done - self._before)

    def _tell(self, left: float, done: int) -> None:
        self._told = True
        if left >= _WORTH_SAYING:
            rounds = f"{done} of {self._seeds * self._rounds} rounds"
            self._say("note", f"training takes {roughly(left)} more, after {rounds}; the attacks come after it")


class AttackPace:
    """Says how much longer an attack on all seeds takes, once it is done with the first of them.

    Within a seed nothing is said: the parts of an attack take unlike times.

    Parameters
    ----------
    name, seeds
        The attack's name, and how many records it is to attack.
    say
        Told once.
    clock
        Seconds.
    """

    def __init__(self, name: str, seeds: int, say: Say, clock: Clock = time.monotonic) -> None:
        self._name, self._seeds, self._say, self._clock = name, seeds, say, clock
        self._started = clock()

    def begins(self, seed: int) -> None:
        """Take notice that the attack on a seed begins, of which the first is number 0."""
        if seed != 1:
            return
        left = (self._clock() - self._started) * (self._seeds - 1)
        if left >= _WORTH_SAYING:
            self._say("note", f"attack {self._name} takes {roughly(left)} more, after 1 of {self._seeds} seeds")


def roughly(seconds: float) -> str:
    """Write a time as a forecast does: ``about 40 seconds``, ``about 4 minutes``."""
    units = (("second", 1, 90), ("minute", 60, 90 * 60), ("hour", 3600, math.inf))
    unit, size, _ = next(one for one in units if seconds < one[2])
    count = max(10, round(seconds, -1)) if unit == "second" else max(1, round(seconds / size))
    return f"about {count:.0f} {unit}{'s' if count != 1 else ''}"
