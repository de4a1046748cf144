"""One number about a claim, with its verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from fedattack.claims.claim import Claim
from fedattack.privacy import Epsilon

CONFIGURED = "claim.epsilon-configured"
RECORDED = "claim.epsilon-recorded"
MISSING = "claim.noise-missing"
MEASURED = "claim.epsilon-measured"
CANARIES = "claim.epsilon-canaries"

WHOLE = "claim.verdict"
"""What conditions call the verdict on the whole claim."""

VERDICTS = CONTRADICTED, CONSISTENT, UNCHECKED = "contradicted", "consistent", "cannot be checked"

TOLERANCE = 0.01
"""Share of the declared ε by which a computed one may exceed it: people round σ."""

ERROR = 0.05
"""How often a check that rests on chance contradicts a claim that is true, at most."""

WORTH = 20.0
"""e^20 is half a billion: above it ε promises nothing that matters."""

BREAKS, WEAKENS = "breaks the guarantee", "weakens the guarantee"
"""What a mistake does to a guarantee: nothing that matters is left of it, or less than was promised."""

# Such checks, with their findings; those of a record share its rate.
_BY_CHANCE = {
    "the record": (RECORDED, MISSING),
    "the test of the mechanism": (MEASURED,),
    "canaries": (CANARIES,),
}


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """One number beside the declared ε.

    Attributes
    ----------
    name
        As conditions name it, such as ``claim.epsilon-configured``.
    declared, scope
        The ε that is claimed, and whether it is that of a ``message`` or of the ``run``.
    value
        The number in that scope: of what is configured the upper bound, of what is seen or measured the lower one. Of
        ``claim.noise-missing`` how many are named. None if there is none.
    message, run
        Lower and upper bound in both scopes; infinite where nothing bounds ε.
    verdict, reason
        One of :data:`VERDICTS`, and its grounds.
    notes
        What explains the number, such as mistakes that were found.
    assumes
        What the number rests on.
    clients
        Nodes that are named.
    rounds
        Of the run that `run` is about, where these are more than the claim's; else None.
    """

    name: str
    declared: float
    scope: str
    value: float | None = None
    message: Epsilon | None = None
    run: Epsilon | None = None
    verdict: str
    reason: str
    notes: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    rounds: int | None = None

    # What gates ask of any finding; an ε is no share, and none of them is chosen in advance.
    units: ClassVar[str] = ""
    headline: ClassVar[bool] = False
    asks_nothing: ClassVar[bool] = False

    @property
    def low(self) -> float | None:
        """The lower bound in the scope that is claimed."""
        bounds = self._in_scope
        if bounds is None:
            return None
        return bounds.low

    @property
    def high(self) -> float | None:
        """The upper bound in the scope that is claimed."""
        bounds = self._in_scope
        if bounds is None:
            return None
        return bounds.high

    @property
    def consequence(self) -> str:
        """What a contradiction means for the guarantee; empty where there is none."""
        if self.verdict != CONTRADICTED:
            return ""
        if self.name == MISSING or self.low is None or self.low > WORTH:
            return BREAKS
        if self.name == CONFIGURED:
            return WEAKENS
        # A lower bound does not say how much more there is.
        return f"at least {WEAKENS}"

    @property
    def _in_scope(self) -> Epsilon | None:
        return self.message if self.scope == "message" else self.run


_T = TypeVar("_T")


def choose_scope(claim: Claim, message: _T, run: _T) -> _T:
    """Choose what is about a message, or about the run, by what the declared ε speaks of."""
    return message if claim.epsilon_of == "message" else run


def judge_lower_bound(claim: Claim, bound: float, shown: str, tolerance: float = 0.0) -> tuple[str, str]:
    """Hold a lower bound on ε against the declared one.

    Parameters
    ----------
    claim
        What is declared.
    bound
        In the scope of the claim.
    shown
        What shows it, in words.
    tolerance
        Share of the declared ε by which the bound may exceed it.

    Returns
    -------
    str, str
        The verdict, and its grounds.
    """
    if bound > claim.epsilon * (1 + tolerance):
        return CONTRADICTED, f"{shown}, and {claim.epsilon:g} is claimed"
    return CONSISTENT, f"{shown}, no more than the {claim.epsilon:g} that is claimed"


def verdict_of(verdicts: Sequence[str]) -> str:
    """Contradicted if any finding is; else that of what is configured, the first: a test alone confirms nothing."""
    # The first finding is that of what is configured, in which alone bounds from above stand.
    return CONTRADICTED if CONTRADICTED in verdicts else verdicts[0]


def checks_by_chance(verdicts: Mapping[str, str]) -> list[str]:
    """List the checks that rest on chance and were made, by the verdicts of their findings.

    Each errs by :data:`ERROR` at most. One whose findings all say that nothing can be checked cannot err.
    """
    there = {name for name, verdict in verdicts.items() if verdict != UNCHECKED}
    return [check for check, findings in _BY_CHANCE.items() if there & {*findings}]


def sure_of(verdicts: Mapping[str, str]) -> str:
    """Say in words how far a verdict can be relied on, and how often chance alone contradicts a claim that is true.

    It is empty where arithmetic alone was asked, and decides nothing.

    Parameters
    ----------
    verdicts
        By the name of each finding.
    """
    if verdicts.get(CONFIGURED) == CONTRADICTED:
        return "Arithmetic contradicts the claim, and cannot be wrong by accident."
    checks = checks_by_chance(verdicts)
    # What could not be checked has no number that could be wrong.
    if not checks and verdicts.get(CONFIGURED) == UNCHECKED:
        return ""
    if not checks:
        return "Arithmetic cannot be wrong by accident. It uses only the claim, and no run."
    said = ""
    if CONTRADICTED not in verdicts.values():
        said = "No check proves a claim: it may miss something. "
    said += f"A true claim is contradicted by accident in at most {len(checks) * ERROR:.0%} of runs"
    if len(checks) == 1:
        return f"{said}, by {checks[0]}."
    return f"{said}: {', '.join(f'{ERROR:.0%} by {check}' for check in checks)}."


def scope_of(claim: Claim) -> str:
    """Say in words what the declared ε speaks of."""
    if claim.epsilon_of == "message":
        if claim.central:
            return "a released model"
        return "one message"
    return run_of(claim.rounds)


def run_of(rounds: int) -> str:
    """Name a run by its rounds."""
    if rounds == 1:
        return "the run"
    return f"the run of {rounds} rounds"
