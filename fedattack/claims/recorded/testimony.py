"""What the record shows of each client, or of the sums, before it is held against the claim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fedattack.claims.claim import DP_SGD, LARGE, SMALL, Claim
from fedattack.claims.finding import TOLERANCE
from fedattack.claims.recorded.draws import Draws, GaussianDraws, LaplaceDraws
from fedattack.claims.recorded.looking import TESTS, UpdateLook
from fedattack.record import Round

ERRORS = {"noise": 0.025, "norms": 0.01}
"""Probability of each kind of test to raise any false alarm, over all clients, rounds, arrays and runs together."""

CLEAR = 1.4
"""Noise that is bounded by so many times the claimed scale would be noticed if it were missing: what is beside it in
the update is then smaller than the noise."""

_CENTRAL = (
    "the server adds the noise, and a record only shows noise that clients add; test the server's release with "
    "--mechanism, or put canaries into the run"
)


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

    def is_too_small(self, bound: float) -> bool:
        """Whether noise of at most this scale is less than the claimed one; people round σ."""
        return self.scale is not None and bound * (1 + TOLERANCE) < self.scale

    def would_be_noticed(self, bound: float) -> bool:
        """Whether noise that is missing would be noticed in an array with room for so much."""
        return self.scale is not None and bound < CLEAR * self.scale


def usable_amount(value: float) -> float | None:
    """Return a product of amounts as it is; None in place of one by which nothing can be divided: 0, or not finite."""
    if SMALL**2 <= value <= LARGE**2:
        return value
    return None


def expected_of(claim: Claim, protocol: str) -> Expected:
    """Say what the noise of a client does to its message."""
    if claim.central:
        return Expected(GaussianDraws(), None, None, lacks=_CENTRAL)
    if claim.mechanism == DP_SGD:
        return _expect_last_step(claim, 1.0 if protocol == "fedsgd" else claim.learning_rate)
    draws: Draws = GaussianDraws()
    if claim.mechanism == "laplace":
        draws = LaplaceDraws()
    lacks = ""
    if not claim.deviation:
        lacks = "the claim does not state the noise: it lacks sigma, or noise-multiplier and clip"
    return Expected(draws, claim.deviation or None, claim.clip, claim.clip, lacks)


def _expect_last_step(claim: Claim, rate: float | None) -> Expected:
    """Say what DP-SGD does to a message: its last step has noise that is independent of everything before it."""
    draws = GaussianDraws()
    if rate is None or claim.batch_size is None:
        lacks = "to compare a dp-sgd claim with updates, it needs learning-rate and batch-size, which it lacks"
        return Expected(draws, None, None, lacks=lacks)
    # A step moves the update by lr / batch times the noisy sum of gradients.
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
    """A client, or the sums of a run (whose ``node`` is empty), as the record shows it.

    Attributes
    ----------
    run
        Name of the run, where there are several.
    bounds
        Of each message the most noise that it can hold, in units of the update, and the array that shows it.
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
    name
        What the auditor calls the client; its node where that is not known.
    """

    run: str
    node: str
    bounds: list[tuple[float, str]] = field(default_factory=list)
    multipliers: list[float] = field(default_factory=list)
    norm_most: float = 0.0
    noticed: set[str] = field(default_factory=set)
    faults: dict[str, str] = field(default_factory=dict)
    unexamined: str = ""
    name: str = ""

    def skip(self, round_: Round, why: str) -> None:
        """Note why a message cannot be examined; of several reasons the first one is kept."""
        self.unexamined = self.unexamined or f"{why} (round {round_.number})"

    def add_multiplier(self, scale: float, reach: float | None) -> None:
        """Note the most noise in a message, as a share of how far a unit moves it; nothing if that is not told."""
        if reach is None:
            return
        # Beyond these the accounting would not be computable; no noise at all counts as 0.
        share = min(scale / reach, LARGE)
        self.multipliers.append(share if share >= SMALL else 0.0)

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
    clients, sums
        By run and node; sums only where the record shows these alone.
    arrays
        Names of the arrays that were looked at.
    tests
        By name.
    notes
        What a reader should know besides, a sentence each.
    lacks
        Why there is nothing to look at; empty if there is.
    names
        What the auditor calls clients, by run and node, as far as it is known.
    noise_error, norm_error
        How often one test of the noise in one array, or of the length of one update, names somebody by accident.
    """

    expected: Expected
    clients: dict[tuple[str, str], Party] = field(default_factory=dict)
    sums: dict[tuple[str, str], Party] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    tests: dict[str, Test] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    lacks: str = ""
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    noise_error: float = 0.0
    norm_error: float = 0.0

    @property
    def parties(self) -> Iterator[Party]:
        """All clients, then the sums."""
        yield from self.clients.values()
        yield from self.sums.values()

    def share_errors(self, messages: int, arrays: int) -> None:
        """Share the rates of all tests among so many messages of so many arrays (Bonferroni)."""
        # Each array of each message is tested TESTS times.
        self.noise_error = ERRORS["noise"] / (messages * arrays * TESTS)
        self.norm_error = ERRORS["norms"] / messages

    def party(self, run: str, node: str) -> Party:
        """Return what is known of a client, or of the sums of a run, whose node is empty."""
        parties = self.clients if node else self.sums
        if (run, node) not in parties:
            parties[run, node] = Party(run, node, name=self.names.get((run, node), node))
        return parties[run, node]

    def test(self, name: str, what: str) -> Test:
        """Return the test of this name."""
        return self.tests.setdefault(name, Test(name, what, ERRORS[name]))

    def note(self, text: str) -> None:
        """Note something once."""
        self.notes[text] = None

    def judge_noise(self, party: Party, round_: Round, update: UpdateLook, expected: Expected) -> None:
        """Hold the noise of one update, or of one mean, against what is expected of it."""
        bound, where = update.bound, update.where
        party.bounds.append((bound, where))
        party.noticed |= {name for name, array in update.items() if expected.would_be_noticed(array.bound)}
        carrier = "update" if party.node else "mean"
        test = self.test("noise", f"the noise in each array of each {carrier} is no less than claimed")
        test.checked += 1
        if expected.is_too_small(bound):
            test.failed += 1
            party.fault(
                "noise",
                f"noise of {expected.draws.word} = {bound:.3g} at most in {where}, round {round_.number}, where "
                f"{expected.scale:.3g} is claimed",
            )
