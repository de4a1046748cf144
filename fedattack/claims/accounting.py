"""The ε that a claim's numbers really give, between two bounds, each with what it assumes.

Noise is taken to be drawn in real numbers, and by a seed that the adversary does not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedattack.base.errors import ConfigError
from fedattack.claims.claim import DP_SGD, IN_BATCHES, UPDATE, Claim
from fedattack.privacy.epsilon import NONE, Epsilon, gaussian_epsilon, laplace_epsilon, shuffled_epsilon, with_count
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
    unknown
        What the claim does not say, so that the bounds are far apart.
    """

    message: Epsilon | None
    run: Epsilon | None
    stated: float | None
    assumes: tuple[str, ...]
    lacks: str = ""
    unknown: tuple[str, ...] = ()


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
    lacks = _describe_lacking(claim)
    if lacks:
        return Configured(None, None, stated, assumes, lacks)
    message, run = _bound_epsilon(claim, 1), None
    if "rounds" in claim.model_fields_set:
        run = _bound_epsilon(claim, claim.rounds)
    return Configured(message, run, stated, assumes, unknown=_list_unknown(claim))


def _bound_epsilon(claim: Claim, rounds: int) -> Epsilon:
    low, high = (bound_by_multiplier(claim, multiplier, rounds) for multiplier in _bound_multipliers(claim))
    # The least noise gives the upper bound, the most noise the lower one.
    return Epsilon(low.low, high.high)


def bound_by_multiplier(claim: Claim, multiplier: float, rounds: int) -> Epsilon:
    """Bound the ε of so many rounds of a claim, with another noise multiplier than it has."""
    if claim.mechanism == "laplace":
        return laplace_epsilon(multiplier, claim.relation, rounds, claim.delta, claim.entries)
    bounds = _bound_steps(claim, multiplier, claim.uses * rounds)
    if claim.skipped:
        # Whoever sees that a step is missing learns something that no noise hides, however batches are drawn.
        return Epsilon(bounds.low, math.inf)
    return bounds


def _bound_steps(claim: Claim, multiplier: float, count: int) -> Epsilon:
    """Bound the ε of so many uses of Gaussian noise, by the way in which units are drawn."""
    relation, delta, rate = claim.relation, claim.delta, claim.sampling
    if claim.sampling_method == "in-order":
        return gaussian_epsilon(multiplier, relation, count, delta)
    if claim.sampling_method == "shuffled":
        return shuffled_epsilon(multiplier, relation, count, delta, rate=rate)
    if claim.sampling_method == "unknown":
        # A unit may take part in all steps, or in none.
        return Epsilon(0.0, gaussian_epsilon(multiplier, relation, count, delta).high)
    return gaussian_epsilon(multiplier, relation, count, delta, rate=rate, method=claim.sampling_method)


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
    # If nobody states the weights, one client may have all of it: then nothing is averaged away.
    elif claim.weights != "equal":
        worst = math.inf
        if claim.clients is not None:
            worst = float(claim.clients)
    # Noise is added to a mean: a client with the largest share moves it by that share of C.
    most, least = multiplier / best, multiplier / worst
    if claim.mechanism == "central-adaptive":
        if claim.clip_falls is None or claim.count_noise is None:
            # What the claim does not say may be as bad as can be.
            least = 0.0
        else:
            least *= claim.clip_falls
    if claim.count_noise is not None:
        # The noisy count of clipped updates tells something of each client, too: both noises make one multiplier.
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
    # Gaussian noise over k rounds is like one release that is √k times as far apart.
    return epsilon_of(ratio * math.sqrt(count), claim.delta)


def _describe_lacking(claim: Claim) -> str:
    if claim.deviation is None and claim.noise_multiplier is None:
        return "the claim does not state the noise: it lacks sigma or noise-multiplier"
    if claim.mechanism == DP_SGD and claim.steps is None and claim.epochs is None:
        return "the claim lacks steps, the number of DP-SGD steps in a round, each of which reveals more"
    if claim.multiplier is not None:
        return ""
    if claim.clip is None:
        return "the claim has sigma but lacks clip, so nothing bounds how far one unit moves"
    return "the claim has sigma but lacks clients, the number of replies in the mean"


def _list_unknown(claim: Claim) -> tuple[str, ...]:
    """Say what the claim leaves open that decides how large ε is."""
    tests: list[tuple[bool, str]] = [
        (
            claim.sampling < 1 and claim.sampling_method is None,
            "the claim does not say how units are sampled, so amplification by sampling is not certain; add "
            "sampling-method",
        ),
        (
            claim.sampling_method == "unknown",
            "it is not known how units are sampled, so amplification by sampling is not certain",
        ),
        (
            bool(claim.skipped),
            f"batches of a round that were drawn and made no step: {claim.skipped}; no noise hides that they are "
            "missing, and an accountant that counts the steps that were made is not that of this mechanism",
        ),
        (
            claim.central and claim.weights is None and claim.largest_share is None,
            "the claim does not state the weights of the mean; add weights and largest-share",
        ),
        (
            claim.mechanism == "central-adaptive" and claim.count_noise is None,
            "the claim does not say how much noise the count of clipped updates has; add count-noise",
        ),
        (
            claim.mechanism == "central-adaptive" and claim.clip_falls is None,
            "the claim does not say how far the norm may fall between clipping and noise; add clip-falls, 1 if both "
            "use the same norm",
        ),
    ]
    return tuple(text for holds, text in tests if holds)


def _list_assumptions(claim: Claim) -> tuple[str, ...]:
    tests: list[tuple[bool, str]] = [
        (True, _describe_distance(claim)),
        (True, "everything that is sent is clipped and gets noise: no buffer, integer or metric is sent without noise"),
        (True, "nobody knows the seed of the noise, and no draw is used twice"),
        (claim.rounds > 1, f"the unit takes part in all of {claim.rounds} rounds"),
        (claim.central, "whoever sees the updates is trusted, including the server"),
        (claim.central and claim.weights == "equal", "all clients weigh the same in the mean, and none drops out"),
        (
            claim.central and claim.weights != "equal" and claim.largest_share is None,
            "only the number of clients is known, not their weights: at best all are equal, at worst one client has "
            "all weight",
        ),
        (
            claim.count_noise is not None,
            "a client's bit moves the count of clipped updates by 1",
        ),
        (
            claim.clip_falls is not None and claim.clip_falls < 1,
            f"the clipping norm falls to no less than {claim.clip_falls or 1:.3g} of itself between clipping and noise",
        ),
        (claim.sampling < 1 and claim.sampling_method not in (None, "unknown"), _describe_sampler(claim)),
        (
            claim.mechanism == "laplace" and claim.entries is None,
            "the number of entries in an update is not known: the bounds hold for any number",
        ),
    ]
    return tuple(text for holds, text in tests if holds)


def _describe_distance(claim: Claim) -> str:
    moved = "an update"
    if claim.mechanism == DP_SGD:
        moved = "an example's gradient"
    if claim.relation == "replace":
        return f"{moved} of norm C may be replaced by any other, which is 2C away at most"
    missing = (
        f"{moved} of norm C may be missing; it then counts as zeros, which are C away; the number of units is known"
    )
    if claim.neighbours is not None:
        return missing
    return f'{missing}; ε is larger if it may be replaced by any other (neighbours = "replace")'


def _describe_sampler(claim: Claim) -> str:
    if claim.sampling_method in IN_BATCHES:
        return (
            f"each example is in one batch of an epoch at most, epochs of a round: {claim.uses}; the upper bound takes "
            "no amplification by sampling"
        )
    drawn, how = "clients", "a fixed number of them"
    if claim.mechanism == DP_SGD:
        drawn = "examples"
    if claim.sampling_method == "poisson":
        how = "independently of each other"
    return f"{drawn} are drawn {how}, at random in each step, and nobody knows which"
