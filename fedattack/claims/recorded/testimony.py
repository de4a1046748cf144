"""What the record shows of each client, and of the server, before it is held against the claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fedattack.claims.claim import DP_SGD, LARGE, SMALL, Claim
from fedattack.claims.finding import TOLERANCE
from fedattack.claims.recorded.draws import Draws, GaussianDraws, LaplaceDraws
from fedattack.record import Round

ERRORS = {"noise": 0.025, "repeats": 0.015, "norms": 0.01}
"""Probability of each kind of test to raise any false alarm, over all clients, rounds, arrays and runs together."""

CLEAR = 1.4
"""Noise that is bounded by so many times the claimed scale would be noticed if it were missing: what is beside it in
the update is then smaller than the noise."""


@dataclass(frozen=True)
class Expected:
    """What the claim says of one message.

    Attributes
    ----------
    draws
        The kind of noise.
    scale
        Its scale in units of the update; None if the claim does not say.
    reach
        How far a unit moves the update; None if the claim does not say.
    clip
        The norm that no update exceeds before its noise; None if updates are not clipped as a whole.
    lacks
        Why there is no scale; empty if there is.
    """

    draws: Draws
    scale: float | None
    reach: float | None
    clip: float | None = None
    lacks: str = ""

    def too_small(self, bound: float) -> bool:
        """Whether noise of at most this scale is less than the claimed one; people round σ."""
        return self.scale is not None and bound * (1 + TOLERANCE) < self.scale

    def clear(self, bound: float) -> bool:
        """Whether noise that is missing would be noticed beside an update like this."""
        return self.scale is not None and bound < CLEAR * self.scale


def usable_amount(value: float) -> float | None:
    """Return a product of amounts as it is; None in place of one by which nothing can be divided: 0, or not finite."""
    if SMALL**2 <= value <= LARGE**2:
        return value
    return None


def expected_of(claim: Claim, protocol: str) -> Expected:
    """Say what the noise of a client does to its message, by a claim about noise that clients add."""
    if claim.mechanism == DP_SGD:
        rate = claim.learning_rate
        if protocol == "fedsgd":
            rate = 1.0
        return _expect_last_step(claim, rate)
    draws: Draws = GaussianDraws()
    if claim.mechanism == "laplace":
        draws = LaplaceDraws()
    scale = claim.deviation
    if claim.central and claim.noise_multiplier:
        # The server's noise is worked out round by round, by its number of replies.
        scale = claim.multiplier
    lacks = ""
    if not scale:
        lacks = "the claim says nothing of the noise: it lacks sigma, or noise-multiplier and clip"
    return Expected(draws, scale or None, claim.clip, claim.clip, lacks)


def _expect_last_step(claim: Claim, rate: float | None) -> Expected:
    """Say what DP-SGD does to a message: its last step has noise that is independent of everything before it."""
    draws = GaussianDraws()
    if rate is None or claim.batch_size is None:
        lacks = "a dp-sgd claim is held against updates by learning-rate and batch-size, which it lacks"
        return Expected(draws, None, None, lacks=lacks)
    step = rate / claim.batch_size
    scale = usable_amount((claim.deviation or 0) * step)
    reach = usable_amount((claim.clip or 0) * step)
    if claim.clip is not None and reach is None:
        lacks = f"by learning-rate and batch-size a step of {claim.clip:g} moves an update by {step:g} times that"
        return Expected(draws, None, None, lacks=lacks)
    lacks = ""
    if scale is None:
        lacks = "the claim lacks clip, or the noise: sigma or noise-multiplier"
    return Expected(draws, scale, reach, lacks=lacks)


@dataclass
class Party:
    """A client, or the server (whose ``node`` is empty), as the record shows it.

    Attributes
    ----------
    run
        Name of the run, where there are several.
    bounds
        Of each message the most noise that it can hold, in units of the update, and the array that shows it.
    rms
        Of the server, round by round: the root mean square of what the mean that fits best leaves.
    multipliers
        Of a client's messages, in turn: the most noise, as a share of how far a unit moves what has it.
    norm_most
        Length of its longest update.
    noticed
        Arrays in which noise that is missing would be noticed.
    faults
        What contradicts the claim: the first of each kind, in words.
    unexamined
        Why a message could not be examined wholly: the first reason; empty if all could.
    """

    run: str
    node: str
    bounds: list[tuple[float, str]] = field(default_factory=list)
    rms: list[float] = field(default_factory=list)
    multipliers: list[float] = field(default_factory=list)
    norm_most: float = 0.0
    noticed: set[str] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)
    unexamined: str = ""

    def skip(self, round_: Round, why: str) -> None:
        """Note why a message cannot be examined; of several reasons the first one is kept."""
        self.unexamined = self.unexamined or f"{why} (round {round_.number})"

    def expose(self, scale: float, reach: float | None) -> None:
        """Note the most noise in a message, as a share of how far a unit moves it; nothing if that is not told."""
        if reach is None:
            return
        share = min(scale / reach, LARGE)
        if share < SMALL:
            share = 0.0
        self.multipliers.append(share)

    def fault(self, kind: str, text: str) -> None:
        """Note what contradicts the claim."""
        self.faults.setdefault(kind, text)


@dataclass
class Test:
    """One kind of test, as it was carried out."""

    name: str
    what: str
    error_rate: float
    checked: int = 0
    failed: int = 0


@dataclass
class Testimony:
    """All that a record shows about a claim.

    Attributes
    ----------
    expected
        What the claim says of the noise.
    clients
        By run and node.
    servers
        By run; only where the server adds the noise, or the record shows sums alone.
    arrays
        Names of the arrays that were looked at.
    tests
        By name.
    notes
        What a reader should know besides, a sentence each.
    lacks
        Why there is nothing to look at; empty if there is.
    """

    expected: Expected
    clients: dict[tuple[str, str], Party] = field(default_factory=dict)
    servers: dict[str, Party] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    tests: dict[str, Test] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    lacks: str = ""

    def client(self, run: str, node: str) -> Party:
        """Return what is known of a client."""
        return self.clients.setdefault((run, node), Party(run, node))

    def server(self, run: str) -> Party:
        """Return what is known of a server."""
        return self.servers.setdefault(run, Party(run, ""))

    def test(self, name: str, what: str) -> Test:
        """Return the test of this name."""
        return self.tests.setdefault(name, Test(name, what, ERRORS[name]))

    def note(self, text: str) -> None:
        """Note something once."""
        self.notes[text] = None

    @property
    def parties(self) -> Iterator[Party]:
        """All clients and servers."""
        yield from self.clients.values()
        yield from self.servers.values()
