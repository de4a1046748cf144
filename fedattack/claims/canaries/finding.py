"""What canaries show, held against the claim."""

from __future__ import annotations

import math

from fedattack.claims.canaries.result import CanaryResult
from fedattack.claims.claim import Claim
from fedattack.claims.figures import in_figures
from fedattack.claims.finding import CANARIES, UNCHECKED, ClaimFinding, choose_scope, judge_lower_bound, scope_of
from fedattack.privacy import Epsilon

_ASSUMES = {
    "client": "the scores of canaries are independent draws of one distribution; who is no canary may send anything",
    "record": "the coins of the canaries were fair, and nobody but the auditor knew them",
}


def canary_finding(claim: Claim, result: CanaryResult) -> ClaimFinding:
    """Hold the bound of canaries against the declared ε; the finding is ``claim.epsilon-canaries``."""
    value = choose_scope(claim, result.bound_message, result.bound_run)
    said = f"at {result.confidence:.0%}, {result.count:,} canaries show"
    if value is None:
        verdict, reason = UNCHECKED, f"{said} nothing of {scope_of(claim)} by itself, whose ε is claimed"
    else:
        shown = f"{said} that ε of {scope_of(claim)} is {in_figures(value)} or more"
        verdict, reason = judge_lower_bound(claim, value, shown)
    message = None if result.bound_message is None else Epsilon(result.bound_message, math.inf)
    return ClaimFinding(
        name=CANARIES,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=value,
        message=message,
        run=Epsilon(result.bound_run, math.inf),
        verdict=verdict,
        reason=reason,
        notes=result.notes,
        assumes=(_ASSUMES[result.kind],),
    )


def canary_sentence(claim: Claim, finding: ClaimFinding, result: CanaryResult) -> str:
    """Say for people who are not statisticians what the canaries show."""
    if finding.value is None:
        return f"The canaries cannot show it: {finding.reason}."
    if not finding.value:
        return "Canaries in the run were not told apart."
    said = f"Canaries in the run were told apart. At {100 * result.confidence:.0f} %, ε of {scope_of(claim)} is "
    said += f"{in_figures(finding.value)} or more"
    if result.by_order is None:
        return f"{said}."
    said += " if their scores are Gaussian, as they look"
    if claim.epsilon_of == "run":
        said += f"; their order alone shows {in_figures(result.by_order)}"
    return f"{said}."
