"""What all looks at a record have in common: how the numbers of a round are gathered, and how a verdict is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fedattack.claims.claim import Claim
from fedattack.claims.recorded.draws import Draws
from fedattack.claims.recorded.looking import TESTS, ArrayLook, Head, scale_at_most
from fedattack.claims.recorded.repeats import Repeat, UpdateHeads, choose_length, count_tests, repeats_in
from fedattack.claims.recorded.replies import float_arrays
from fedattack.claims.recorded.step import Movement
from fedattack.claims.recorded.testimony import ERRORS, Expected, Party, Testimony
from fedattack.record import Record, Round


@dataclass(frozen=True)
class Rates:
    """How often one test names somebody by accident: the rate of its kind, divided by the number of tests (Bonferroni).

    Attributes
    ----------
    noise
        Of one test of the noise in one array.
    norms
        Of one test of the length of an update.
    repeats
        Of all comparisons in one run together.
    """

    noise: float
    norms: float
    repeats: float

    @classmethod
    def share(cls, looks: int, arrays: int, means: int, runs: int) -> Rates:
        """Share the rates among so many looks at ``arrays`` arrays each, of which ``means`` versions are tried."""
        return cls(
            noise=ERRORS["noise"] / (looks * arrays * TESTS * means),
            norms=ERRORS["norms"] / looks,
            # Which of the means is compared was chosen by what they leave, in this round and in the other one.
            repeats=ERRORS["repeats"] / runs / means**2,
        )


@dataclass
class RoundNumbers:
    """What the arrays of one update, one mean or one new model show of the noise in them.

    Attributes
    ----------
    bounds
        The most noise in each array, by name.
    heads
        First entries of the arrays, by which noise that repeats is looked for.
    square, slack, size
        Sums over all arrays: of squares of the entries, of squares of what rounding took, and of the entries.
    """

    bounds: dict[str, float] = field(default_factory=dict)
    heads: dict[str, Head] = field(default_factory=dict)
    square: float = 0.0
    slack: float = 0.0
    size: int = 0

    def add(self, name: str, look: ArrayLook, draws: Draws, error: float) -> None:
        """Take in one array; ``error`` is that of each test."""
        self.bounds[name] = scale_at_most(look, draws, error)
        self.square += look.square
        self.slack += look.slack
        self.size += look.size
        self.heads[name] = look.head

    @property
    def where(self) -> str:
        """The array with the least noise."""
        return min(self.bounds, key=self.bounds.__getitem__)

    @property
    def bound(self) -> float:
        """The most noise in that array."""
        return self.bounds[self.where]


@dataclass
class NoiseWatch:
    """Looks at all rounds of one run; a subclass says what carries the noise.

    Attributes
    ----------
    run, record
        The run, by name, and its record.
    claim
        What is claimed.
    testimony
        Gets what was seen.
    rates, length
        Of errors, and how many entries of an array are kept; known when all runs have been counted.
    claimed
        The least noise that is claimed of any round that was looked at; None if none is.
    last
        Place of the last round, and how far it moved the model, by the mean that was tried.
    """

    carrier: ClassVar[str]
    """What carries the noise: an update, a mean, a new model."""
    lacks: ClassVar[str]
    """What is said where no round can be looked at."""
    means: ClassVar[int] = 1
    """How many means are tried."""

    run: str
    record: Record
    claim: Claim
    testimony: Testimony
    rates: Rates = field(default=Rates(0.0, 0.0, 0.0))
    length: int = 1
    claimed: float | None = None
    last: tuple[int, Mapping[tuple[str, str], Movement]] | None = None

    def __post_init__(self) -> None:
        self.rounds = self.find_rounds()

    def find_rounds(self) -> list[Round]:
        """Find the rounds that can be looked at."""
        raise NotImplementedError

    def look_at(self, round_: Round) -> list[UpdateHeads]:
        """Look at one round; returns what is kept of it."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How many updates, means or new models there are to look at."""
        return len(self.rounds)

    def last_movements(self, round_: Round) -> Mapping[tuple[str, str], Movement]:
        """Return how far the round right before this one moved the model; empty if that is not known."""
        if self.last is None or self.last[0] + 1 != round_.seq:
            return {}
        return self.last[1]

    def judge_noise(self, party: Party, round_: Round, numbers: RoundNumbers, expected: Expected) -> None:
        """Hold the noise of one update, mean or new model against the claim."""
        bound, where = numbers.bound, numbers.where
        if expected.scale is not None:
            self.claimed = min(self.claimed or expected.scale, expected.scale)
        party.bounds.append((bound, where))
        self.note_noticed(party, numbers, expected)
        test = self.testimony.test("noise", f"the noise in each array of each {self.carrier} is no less than claimed")
        test.checked += 1
        if expected.too_small(bound):
            test.failed += 1
            party.fault(
                "noise",
                f"noise of {expected.draws.word} = {bound:.3g} at most in {where}, round {round_.number}, where "
                f"{expected.scale:.3g} is claimed",
            )

    def note_noticed(self, party: Party, numbers: RoundNumbers, expected: Expected) -> None:
        """Note in which arrays noise would be noticed if it were missing."""
        for name, bound in numbers.bounds.items():
            if expected.clear(bound):
                party.noticed.add(name)

    def compare_noise(self, kept: Sequence[UpdateHeads]) -> None:
        """Look for noise that is there twice among updates, or among what the server added."""
        number = count_tests(kept)
        if self.claimed is None or not number:
            return
        test = self.testimony.test(
            "repeats",
            "the noise of no update is that of another client, round, or array (of each client's first update)",
        )
        test.checked += number
        for repeat in repeats_in(kept, self.testimony.expected.draws, self.claimed, self.rates.repeats / number):
            node = repeat.second.node
            party = self.testimony.client(self.run, node) if node else self.testimony.server(self.run)
            if "noise" in party.faults:
                # What is too short by itself is too short across any direction.
                continue
            test.failed += 1
            party.fault("repeats", _describe_repeat(repeat))


def _describe_repeat(repeat: Repeat) -> str:
    first, second = repeat.first, repeat.second
    if first.node != second.node:
        return f"in round {second.round} its noise is that of client {first.node} ({repeat.other})"
    if first.round != second.round:
        return f"in round {second.round} its noise is that of round {first.round} ({repeat.other})"
    return f"in round {second.round} the noise of {repeat.other} is that of {repeat.name}"


def watch_records(kind: type[NoiseWatch], records: Mapping[str, Record], claim: Claim, testimony: Testimony) -> None:
    """Look at all records in one way.

    Parameters
    ----------
    kind
        What carries the noise.
    records
        By name of the run.
    claim
        What is claimed.
    testimony
        Gets what was seen.
    """
    watches = [kind(run, record, claim, testimony) for run, record in records.items()]
    looks = sum(watch.count for watch in watches)
    if not looks:
        testimony.lacks = kind.lacks
        return
    arrays = max(1, *(len(float_arrays(record)) for record in records.values()))
    rates = Rates.share(looks, arrays, kind.means, len(records))
    for watch in watches:
        watch.rates = rates
        watch.length = choose_length(arrays, max(1, watch.count * kind.means))
        kept = [heads for round_ in watch.rounds for heads in watch.look_at(round_)]
        watch.compare_noise(kept)
