"""One number about a claim, with its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedattack.claims.accounting import Epsilon
from fedattack.claims.claim import Claim

VERDICTS = CONTRADICTED, CONSISTENT, UNCHECKED = "contradicted", "consistent", "cannot be checked"

TOLERANCE = 0.01
"""Share of the declared ε by which a computed one may exceed it: people round σ."""


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
    """

    name: str
    declared: float
    scope: str
    value: float | None
    message: Epsilon | None
    run: Epsilon | None
    verdict: str
    reason: str
    notes: tuple[str, ...] = ()
    assumes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()

    # What gates ask of any finding; an ε is no share, and none of them is chosen in advance.
    units: ClassVar[str] = ""
    headline: ClassVar[bool] = False

    @property
    def low(self) -> float | None:
        """The lower bound in the scope that is claimed."""
        bounds = self._in_scope
        return None if bounds is None else bounds.low

    @property
    def high(self) -> float | None:
        """The upper bound in the scope that is claimed."""
        bounds = self._in_scope
        return None if bounds is None else bounds.high

    @property
    def _in_scope(self) -> Epsilon | None:
        return self.message if self.scope == "message" else self.run


def verdict_of(verdicts: Sequence[str]) -> str:
    """Contradicted if any finding is; else that of what is configured, the first: a test alone confirms nothing."""
    return CONTRADICTED if CONTRADICTED in verdicts else verdicts[0]


def scope_of(claim: Claim) -> str:
    """Say in words what the declared ε speaks of."""
    if claim.epsilon_of == "message":
        return "a released model" if claim.central else "one message"
    return "the run" if claim.rounds == 1 else f"the run of {claim.rounds} rounds"
