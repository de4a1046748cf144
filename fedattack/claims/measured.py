"""A test of a mechanism by the claim about it, held against the declared ε."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedattack.base.errors import ConfigError
from fedattack.claims.claim import IN_BATCHES, Claim
from fedattack.claims.figures import in_figures
from fedattack.claims.finding import MEASURED, UNCHECKED, ClaimFinding, choose_scope, judge_lower_bound, scope_of
from fedattack.claims.mechanisms import mechanism_of
from fedattack.claims.tester import LEVEL, Measured, Play, measure
from fedattack.privacy import Epsilon

# Draws that a user may be asked for, at most.
_MOST_DRAWS = 10_000_000
# Who draws which units take part, by whether the mechanism does.
_SAMPLED = {
    True: "the mechanism draws whether the update takes part with the rate of the claim",
    False: "who takes part is drawn as the claim says, before the mechanism",
}


@dataclass(frozen=True)
class Trial:
    """How a mechanism is to be tested; see :class:`fedattack.claims.tester.Play`."""

    draws: int = 10_000
    seed: int = 0
    clipped: bool = False
    sampled: bool = False


TEN_THOUSAND = Trial()


def measure_mechanism(claim: Claim, mechanism: object, trial: Trial, name: str) -> Measured:
    """Play updates of the claim's norm against a mechanism.

    Raises
    ------
    ConfigError
        If the claim lacks what a test needs, or the mechanism fails.
    """
    if claim.clip is None:
        raise ConfigError("a test of a mechanism needs clip in the claim: it uses updates of that norm")
    # Which batch of an epoch a unit is in is taken to be known.
    sampling = 1.0 if claim.sampling_method in (*IN_BATCHES, "unknown") else claim.sampling
    if trial.sampled and sampling == 1:
        raise ConfigError("--sampled: the claim has no sampling below 1 that the mechanism could draw with")
    inside, rate = 1.0, sampling
    # The mechanism draws by itself: the rate moves from before it into it.
    if trial.sampled:
        inside, rate = sampling, 1.0
    relation = claim.relation
    if sampling < 1:
        # Zeros are one of the units that may replace another.
        relation = "add-remove"
    play = Play(
        clip=claim.clip,
        relation=relation,
        delta=claim.delta,
        draws=trial.draws,
        clipped=trial.clipped,
        inside=inside,
        rate=rate,
        message=_count_steps(claim, 1),
        run=_count_steps(claim, claim.rounds),
    )
    return measure(mechanism_of(mechanism, name=name, clip=claim.clip), play, seed=trial.seed)


def _count_steps(claim: Claim, rounds: int) -> int:
    """Count the steps that tell something for certain: one where nobody knows how they are drawn."""
    if claim.sampling_method == "unknown" or (claim.sampling < 1 and claim.sampling_method is None):
        return 1
    return claim.uses * rounds


def judge_measured(claim: Claim, measured: Measured) -> ClaimFinding:
    """Hold a test of a mechanism against the claim; the finding is ``claim.epsilon-measured``."""
    bound = choose_scope(claim, measured.bound.message, measured.bound.run)
    shape = "scores that passed the tests of a Gaussian"
    if measured.method == "counting":
        shape = "counts alone"
    said = f"at {LEVEL:.0%}, ε of {scope_of(claim)} is {in_figures(bound)} or more by {shape}"
    verdict, reason = judge_lower_bound(claim, bound, said)
    if bound <= claim.epsilon and measured.method == "counting" and claim.epsilon >= measured.ceiling:
        verdict, reason = UNCHECKED, f"{said}; {_describe_too_few(claim.epsilon, measured)}"
    return ClaimFinding(
        name=MEASURED,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=bound,
        message=Epsilon(measured.bound.message, math.inf),
        run=Epsilon(measured.bound.run, math.inf),
        verdict=verdict,
        reason=reason,
        notes=(f"played: {measured.pair}; told apart by {measured.score}", _count_draws(measured), *measured.notes),
        assumes=_list_assumptions(claim, measured),
    )


def _count_draws(measured: Measured) -> str:
    chosen = measured.draws - measured.tries
    return f"{chosen:,} of {measured.draws:,} draws chose what is played, and how it is told apart; the others count"


def _list_assumptions(claim: Claim, measured: Measured) -> tuple[str, ...]:
    assumes = []
    if measured.method != "counting":
        assumes.append("the tails of the scores, which so few draws do not reach, are also Gaussian")
    if claim.sampling_method in IN_BATCHES:
        assumes.append("which batch of an epoch the unit is in is known")
    elif claim.sampling_method == "unknown":
        assumes.append("the unit takes part in a step")
    elif claim.sampling < 1:
        assumes.append(_SAMPLED[measured.method == "sampled gaussian"])
    return tuple(assumes)


def _describe_too_few(epsilon: float, measured: Measured) -> str:
    shown = f"{measured.draws:,} draws show no more than {measured.ceiling:.2g} by counting"
    # Zero false alarms in n draws leave room for a rate of 4.4/n; four fifths of the draws are for the bound.
    needed = 2.5 * 4.4 * math.exp(min(epsilon, 50.0)) * 1.2
    if needed > _MOST_DRAWS:
        return f"{shown}, and no number of draws is enough"
    return f"{shown}; try --draws {math.ceil(needed / 1000) * 1000}"


def describe_measured(claim: Claim, measured: Measured) -> str:
    """Say for people who are not statisticians what the test showed."""
    bound = choose_scope(claim, measured.bound.message, measured.bound.run)
    apart = f"A test told two updates apart in {measured.told:,} of {measured.tries:,} tries"
    if not bound:
        return f"{apart}, which shows nothing about ε."
    shown = f"{apart}. At {100 * LEVEL:.0f} %, ε of {scope_of(claim)} is {in_figures(bound)} or more"
    if measured.method == "counting":
        return f"{shown} by counting alone."
    steps = _count_steps(claim, 1)
    draws = choose_scope(claim, steps, _count_steps(claim, claim.rounds))
    counting = in_figures(measured.counting)
    if steps > 1:
        counting += " for one step"
    elif draws > 1:
        counting += " for one message"
    return f"{shown} if the noise is Gaussian, as it looks; counting alone shows {counting}."
