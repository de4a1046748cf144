"""What arithmetic says of a claim, held against the declared ε, with the usual mistakes that explain it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedattack.claims.accounting import Configured, compute_epsilon
from fedattack.claims.claim import IN_BATCHES, UPDATE, Claim
from fedattack.claims.figures import equation, in_figures
from fedattack.claims.finding import (
    CONFIGURED,
    CONSISTENT,
    CONTRADICTED,
    TOLERANCE,
    UNCHECKED,
    ClaimFinding,
    choose_scope,
    scope_of,
)
from fedattack.privacy import Epsilon

# How far a stated sensitivity may be below what clipping allows for; C and 2C are both in use.
_FAR_BELOW = 0.99
_FORMULA = "the classical formula is for one message, and is proved for ε up to 1"


def judge_configured(claim: Claim, found: Configured) -> ClaimFinding:
    """Hold what is configured against the claim; the finding is ``claim.epsilon-configured``."""
    bounds = choose_scope(claim, found.message, found.run)
    verdict, reason = UNCHECKED, found.lacks
    if bounds is not None:
        verdict, reason = judge_bounds(claim, bounds, found.unknown)
    notes = find_mistakes(claim, found)
    if verdict != UNCHECKED:
        # Else they are the reason.
        notes += found.unknown
    return ClaimFinding(
        name=CONFIGURED,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=None if bounds is None else bounds.high,
        message=found.message,
        run=found.run,
        verdict=verdict,
        reason=reason,
        notes=tuple(notes),
        assumes=() if bounds is None else found.assumes,
    )


def judge_bounds(claim: Claim, bounds: Epsilon, unknown: Sequence[str]) -> tuple[str, str]:
    """Hold both bounds on ε against the declared one: the verdict, and its grounds.

    Parameters
    ----------
    claim
        What is declared.
    bounds
        In the scope of the claim.
    unknown
        What the claim does not say, by which the bounds are far apart.
    """
    most = claim.epsilon * (1 + TOLERANCE)
    of = scope_of(claim)
    # An infinite lower bound: no noise at all, or a server that sees the updates.
    if math.isinf(bounds.low):
        return CONTRADICTED, f"nothing bounds the ε of {of}"
    if bounds.low > most:
        return CONTRADICTED, f"ε of {of} is {in_figures(bounds.low)} or more, and {claim.epsilon:g} is claimed"
    if bounds.high <= most:
        return CONSISTENT, f"ε of {of} is {in_figures(bounds.high)} at most, and {claim.epsilon:g} is claimed"
    said = f"ε of {of} lies between {in_figures(bounds.low)} and {in_figures(bounds.high)}"
    if math.isinf(bounds.high):
        said = f"ε of {of} is {in_figures(bounds.low)} or more"
    return UNCHECKED, f"{said}: {'; '.join(unknown) or 'no closer bounds are known'}"


def find_mistakes(claim: Claim, found: Configured) -> list[str]:
    """Say which of the usual mistakes explain the number."""
    notes = _find_small_sensitivity(claim, found)
    if not notes and claim.mechanism == "flower-localdp" and _is_above(claim, found.message):
        notes.append(_FORMULA)
    sampler = _find_poisson(claim, choose_scope(claim, found.message, found.run))
    # The number is right for one message, and wrong for the run.
    quoted = claim.epsilon_of == "run" and _is_kept(claim, found.message) and _is_above(claim, found.run)
    if quoted and not sampler:
        notes.append(f"ε is for one message, but is claimed for a run of {claim.rounds} rounds")
    return notes + sampler


def _find_poisson(claim: Claim, bounds: Epsilon | None) -> list[str]:
    """Say that the claim is what Poisson batches would give, where the batches are others."""
    if claim.sampling_method not in IN_BATCHES or claim.steps is None or not _is_above(claim, bounds):
        return []
    drawn = {"sampling_method": "poisson", "epochs": None}
    # As if the same steps were drawn with the same rate, each by a coin.
    would = compute_epsilon(claim.model_copy(update=drawn))
    sampled = choose_scope(claim, would.message, would.run)
    if sampled is None or not _is_kept(claim, sampled):
        return []
    return [
        f"with Poisson sampling ε of {scope_of(claim)} would be {in_figures(sampled.high)}: an accountant of Poisson "
        "batches does not fit these batches, because each example is in one batch of every epoch"
    ]


def _is_above(claim: Claim, bounds: Epsilon | None) -> bool:
    return bounds is not None and bounds.low > claim.epsilon * (1 + TOLERANCE)


def _is_kept(claim: Claim, bounds: Epsilon | None) -> bool:
    return bounds is not None and bounds.high <= claim.epsilon * (1 + TOLERANCE)


def _find_small_sensitivity(claim: Claim, found: Configured) -> list[str]:
    """Say how far the stated sensitivity is below what clipping allows for, and what ε would be with it."""
    if claim.clip is None or claim.sensitivity is None or claim.mechanism not in UPDATE:
        return []
    # How far apart two clipped updates may be.
    apart = claim.clip
    if claim.relation == "replace":
        apart *= 2
    if claim.sensitivity >= _FAR_BELOW * apart:
        return []
    times = _write_ratio(apart / claim.sensitivity)
    notes = [
        f"the sensitivity {claim.sensitivity:g} is {times} times below {apart:g}, the distance that clipped updates "
        "may have"
    ]
    if found.stated is not None and found.stated > claim.epsilon * (1 + TOLERANCE):
        said = f"even with the sensitivity that is stated, ε of {scope_of(claim)} is {in_figures(found.stated)}"
        if claim.mechanism == "flower-localdp":
            said += f": {_FORMULA}"
        notes.append(said)
    return notes


def _write_ratio(ratio: float) -> str:
    if ratio >= 100:
        return f"{ratio:,.0f}"
    return f"{ratio:.3g}"


def describe_configured(claim: Claim, found: Configured) -> str:
    """Say for people who are not statisticians what is configured."""
    message, run = found.message, found.run
    if message is None:
        return f"The configured ε cannot be computed: {found.lacks}."
    if math.isinf(message.low):
        return "The configured mechanism guarantees nothing."
    released = "a message"
    if claim.central:
        released = "a released model"
    text = f"The configured mechanism gives {released} {equation(message)}"
    if claim.rounds > 1 and run is not None:
        text += f", and the run of {claim.rounds} rounds {equation(run)}"
    return f"{text}."
