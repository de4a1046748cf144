"""The ε that a claim's numbers really give, between two bounds, each with what it assumes.

Noise is taken to be drawn in real numbers, and by a seed that the adversary does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedattack.base.errors import ConfigError
from fedattack.claims.claim import DP_SGD, UPDATE, Claim
from fedattack.privacy.epsilon import NONE, Epsilon, gaussian_epsilon, laplace_epsilon, with_count
from fedattack.privacy.gaussian import epsilon_of


@dataclass(frozen=True)
class Configured:
    """What arithmetic says of a claim.

    Attributes
    ----------
    message, run
        ε of one message (or released model), and of all rounds; None if the claim lacks what they follow from.
    stated
        ε of what is claimed, a message or the run, if the unit moved a message by no more than the sensitivity that the
        claim states; None if it states none, or the noise is not that of an update.
    assumes
        What the numbers rest on, a sentence each.
    lacks
        Why there are none; empty if there are.
    """

    message: Epsilon | None
    run: Epsilon | None
    stated: float | None
    assumes: tuple[str, ...]
    lacks: str = ""


def compute_epsilon(claim: Claim) -> Configured:
    """Work out the ε of what a claim configures; :mod:`fedattack.privacy.epsilon` says how.

    Returns
    -------
    Configured
    """
    assumes = _list_assumptions(claim)
    stated = _compute_stated(claim)
    if claim.central and claim.trusted_server is False:
        reason = "the server sees each update before it adds the noise: towards it there is no guarantee"
        return Configured(NONE, NONE, stated, (reason,))
    if claim.multiplier is None:
        return Configured(None, None, stated, assumes, _describe_lacking(claim))
    message, run = claim.steps, claim.steps * claim.rounds
    return Configured(_bound_epsilon(claim, message), _bound_epsilon(claim, run), stated, assumes)


def _bound_epsilon(claim: Claim, count: int) -> Epsilon:
    if claim.mechanism == "laplace":
        return laplace_epsilon(_require_multiplier(claim), claim.relation, count, claim.delta, claim.entries)
    low, high = (
        gaussian_epsilon(
            multiplier,
            claim.relation,
            count,
            claim.delta,
            rate=claim.sampling,
            method=claim.sampling_method,
        )
        for multiplier in _bound_multipliers(claim)
    )
    return Epsilon(low.low, high.high)


def _require_multiplier(claim: Claim) -> float:
    if claim.multiplier is None:
        raise ConfigError("the claim has no noise multiplier")
    return claim.multiplier


def _bound_multipliers(claim: Claim) -> tuple[float, float]:
    """Return the largest and the smallest noise multiplier that the claim allows for."""
    multiplier = _require_multiplier(claim)
    if not claim.central:
        return multiplier, multiplier
    best, worst = 1.0, 1.0
    if claim.largest_share is not None and claim.clients is not None:
        best = worst = claim.largest_share * claim.clients
    elif claim.weights == "examples":
        worst = math.inf
        if claim.clients is not None:
            worst = float(claim.clients)
    most, least = multiplier / best, multiplier * claim.clip_falls / worst
    if claim.count_noise is not None:
        most, least = (with_count(each, claim.count_noise, claim.relation) for each in (most, least))
    return most, least


def _compute_stated(claim: Claim) -> float | None:
    if claim.sensitivity is None or claim.mechanism not in UPDATE or claim.deviation is None:
        return None
    if not claim.deviation:
        return math.inf
    ratio = claim.sensitivity / claim.deviation
    count = 1
    if claim.epsilon_of == "run":
        count = claim.rounds
    if claim.mechanism == "laplace":
        # By δ, a run has less than the sum.
        if count != 1:
            return None
        return ratio
    return epsilon_of(ratio * math.sqrt(count), claim.delta)


def _describe_lacking(claim: Claim) -> str:
    if claim.deviation is None and claim.noise_multiplier is None:
        return "the claim says nothing of the noise: it lacks sigma or noise-multiplier"
    if claim.clip is None:
        return "the claim has sigma and lacks clip, so that nothing bounds how far one unit moves"
    return "the claim has sigma and lacks clients, the number of replies that the mean is over"


def _list_assumptions(claim: Claim) -> tuple[str, ...]:
    tests: list[tuple[bool, str]] = [
        (True, _describe_distance(claim)),
        (True, "whatever is sent is clipped and gets noise: no buffer, no integer, no metric goes beside it"),
        (True, "the seed of the noise is not known, and no two draws are the same"),
        (claim.rounds > 1, f"the unit takes part in all of {claim.rounds} rounds"),
        (claim.central, "those who see the updates are trusted, the server among them"),
        (claim.central and claim.weights == "equal", "all clients weigh the same in the mean, and none drops out"),
        (
            claim.weights == "examples" and claim.largest_share is None,
            "of the weights only the number of clients is known: at best all weigh the same, at worst one has them all",
        ),
        (
            claim.count_noise is not None,
            "a client's bit moves the count of clipped updates by 1",
        ),
        (
            claim.clip_falls < 1,
            f"the clipping norm falls to no less than {claim.clip_falls:.3g} of itself between clipping and noise",
        ),
        (claim.sampling < 1, _describe_sampler(claim)),
        (
            claim.mechanism == "laplace" and claim.entries is None,
            "how many entries an update has is not known: the bounds hold for any number",
        ),
    ]
    return tuple(text for holds, text in tests if holds)


def _describe_distance(claim: Claim) -> str:
    moved = "an update"
    if claim.mechanism == DP_SGD:
        moved = "an example's gradient"
    if claim.relation == "replace":
        return f"{moved} of norm C may be replaced by any other, which is 2C away at most"
    return f"{moved} of norm C may be missing, which is as zeros, C away; how many there are is known"


def _describe_sampler(claim: Claim) -> str:
    drawn, how = "clients", "a fixed number of them"
    if claim.mechanism == DP_SGD:
        drawn = "examples"
    if claim.sampling_method == "poisson":
        how = "each by a coin of its own"
    return f"{drawn} are drawn {how}, at random and anew in each step, and which is not known"
