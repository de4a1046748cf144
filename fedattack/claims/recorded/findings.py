"""What a record shows, held against the claim: two findings, and all of it as JSON can hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedattack.claims.accounting import bound_by_multiplier
from fedattack.claims.claim import DP_SGD, Claim
from fedattack.claims.figures import in_figures
from fedattack.claims.finding import (
    CONSISTENT,
    CONTRADICTED,
    MISSING,
    RECORDED,
    TOLERANCE,
    UNCHECKED,
    ClaimFinding,
    choose_scope,
    judge_lower_bound,
    run_of,
    scope_of,
)
from fedattack.claims.recorded.testimony import Party, Testimony
from fedattack.privacy import Epsilon
from fedattack.privacy.gaussian import epsilon_of
from fedattack.record import Record

NO_ROUND = "the record has no whole round"
"""Why a record was not looked at."""

# Sentences, and names of clients, that a reason has room for.
_NAMED = 5
_MOST_NAMED = 20
_NO_NUMBERS = "no update of the record has only finite numbers and differs from what the client had received"
_NO_REACH = "the claim lacks clip, so it is unknown how far one unit moves an update"


def recorded_findings(claim: Claim, testimony: Testimony) -> list[ClaimFinding]:
    """Hold what a record shows against a claim.

    Returns
    -------
    list of ClaimFinding
        ``claim.epsilon-recorded`` and ``claim.noise-missing``.
    """
    return [_judge_epsilon(claim, testimony), _judge_missing(claim, testimony)]


def recorded_epsilon(claim: Claim, multipliers: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return lower bounds on the ε of a message, and of all messages of a client, where the noise is so much at most.

    Parameters
    ----------
    claim
        Its mechanism, sampling, steps, neighbours and δ.
    multipliers
        Of each client, message by message: the most noise, as a share of how far a unit moves it.
    """
    message = bound_by_multiplier(claim, min(map(min, multipliers)), 1).low
    # With several steps in a message, and with neighbours 2C apart, shifts grow by their root and by 2.
    if claim.mechanism != "laplace" and not claim.draws:
        # Shifts of Gaussians add up in squares.
        apart = math.sqrt(claim.uses)
        if claim.relation == "replace":
            apart *= 2
        run = epsilon_of(apart * max(map(_add_shifts, multipliers)), claim.delta)
        return message, max(message, run)
    # More messages tell more, and so does less noise in the one that has most.
    worst: dict[int, float] = {}
    for each in multipliers:
        # The most noise of a message of the client: the bound must hold for all of its messages.
        worst[len(each)] = min(worst.get(len(each), math.inf), max(each))
    run = max(bound_by_multiplier(claim, multiplier, count).low for count, multiplier in worst.items())
    return message, max(message, run)


def _add_shifts(multipliers: Sequence[float]) -> float:
    if not min(multipliers):
        return math.inf
    # Shifts of independent Gaussians add up by their squares.
    return math.hypot(*[1 / multiplier for multiplier in multipliers])


def _judge_epsilon(claim: Claim, testimony: Testimony) -> ClaimFinding:
    exposed = [party.multipliers for party in testimony.clients.values() if party.multipliers]
    if not exposed:
        lacks = testimony.lacks or testimony.expected.lacks
        if not lacks:
            lacks = _NO_NUMBERS if testimony.expected.reach else _NO_REACH
        return _make_unchecked(claim, RECORDED, lacks)
    message, run = recorded_epsilon(claim, exposed)
    value = choose_scope(claim, message, run)
    count = max(map(len, exposed))
    more: int | None = None
    # More rounds than the claim speaks of: both numbers are told.
    if claim.epsilon_of == "run" and count > claim.rounds:
        more = count
        _, first = recorded_epsilon(claim, [multipliers[: claim.rounds] for multipliers in exposed])
        said = f"{_describe_rounds(claim, more)}; by the record ε of {run_of(more)} is {in_figures(value)} or more"
        said += f" ({in_figures(first)} or more after {claim.rounds})"
    else:
        rounds = "a round" if count == 1 else f"{count:,} rounds"
        said = f"by the record of {rounds} there is so little noise that ε of {scope_of(claim)} is "
        said += f"{in_figures(value)} or more"
    verdict, reason = judge_lower_bound(claim, value, said, TOLERANCE)
    return ClaimFinding(
        name=RECORDED,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=value,
        message=Epsilon(message, math.inf),
        run=Epsilon(run, math.inf),
        verdict=verdict,
        reason=reason,
        assumes=tuple(_list_assumptions(claim, testimony)),
        rounds=more,
    )


def _describe_rounds(claim: Claim, rounds: int) -> str:
    claimed = "1 round" if claim.rounds == 1 else f"{claim.rounds} rounds"
    return f"the claim is about {claimed}, but a client of the record takes part in {rounds}"


def _list_assumptions(claim: Claim, testimony: Testimony) -> list[str]:
    kind = "Laplace" if claim.mechanism == "laplace" else "Gaussian"
    assumes = [f"at 97.5 %; the noise is {kind}, as large in all entries of an array, and independent of the update"]
    if claim.mechanism == DP_SGD:
        assumes.append("the optimizer is SGD, with momentum or without, and all steps have the noise of the last one")
    if claim.draws:
        assumes.append("who takes part is drawn as the claim says, and not known")
    if testimony.sums:
        assumes.append("ε holds towards somebody who sees only the sums, and knows the other clients' updates")
    return assumes


def _judge_missing(claim: Claim, testimony: Testimony) -> ClaimFinding:
    if testimony.lacks:
        return _make_unchecked(claim, MISSING, testimony.lacks)
    named = _list_faulty(testimony)
    verdict, reason = _find_missing(testimony, named)
    return ClaimFinding(
        name=MISSING,
        declared=claim.epsilon,
        scope=claim.epsilon_of,
        value=None if verdict == UNCHECKED else float(len(named)),
        verdict=verdict,
        reason=reason,
        notes=tuple(_describe_noticed(testimony)),
        clients=tuple(party.name for party in named if party.node),
    )


def _list_faulty(testimony: Testimony) -> list[Party]:
    faulty = [party for party in testimony.parties if party.faults]
    # Shorter names first: 2 stands before 10.
    return sorted(faulty, key=lambda party: (not party.node, party.run, len(party.name), party.name))


def _find_missing(testimony: Testimony, named: Sequence[Party]) -> tuple[str, str]:
    """Say whether noise is missing, and in what: the verdict, and its grounds."""
    unexamined = [party for party in testimony.parties if party.unexamined]
    hidden = _join([f"{_name_party(party)} cannot be examined: {party.unexamined}" for party in unexamined])
    if named:
        faults = _describe_faults(testimony, named)
        return CONTRADICTED, f"{faults}; {hidden}" if hidden else faults
    if testimony.expected.scale is None:
        return UNCHECKED, testimony.expected.lacks
    if hidden:
        return UNCHECKED, hidden
    if not testimony.tests:
        return UNCHECKED, _NO_NUMBERS
    unseen = _describe_unseen(testimony)
    if unseen:
        return UNCHECKED, unseen
    return CONSISTENT, "each message can contain noise of the claimed size, and missing noise would be noticed"


def _describe_faults(testimony: Testimony, named: Sequence[Party]) -> str:
    """Say once which clients lack the claimed noise; of all other faults, in words, whose they are."""
    silent = [party for party in named if party.node and "noise" in party.faults]
    texts = [_describe_missing(testimony, silent)] if silent else []
    texts.append(
        _join([f"{_name_party(party)}: {next(iter(party.faults.values()))}" for party in named if party not in silent])
    )
    return "; ".join(filter(None, texts))


def _describe_missing(testimony: Testimony, silent: Sequence[Party]) -> str:
    """Say in one sentence how little noise several clients sent: the most that one of them may have sent."""
    expected = testimony.expected
    most, where = max(min(party.bounds) for party in silent)
    names = [_name_party(party).removeprefix("client ") for party in silent[:_MOST_NAMED]]
    if len(silent) > _MOST_NAMED:
        names.append(f"{len(silent) - _MOST_NAMED:,} more")
    noise = f"at most {expected.draws.word} = {most:.3g} in {where}, where {expected.scale:.3g} is claimed"
    if len(silent) == 1:
        return f"client {names[0]} did not send the claimed noise: {noise}"
    who = f"{len(silent):,} of {len(testimony.clients):,} clients did not send"
    if len(silent) == len(testimony.clients):
        who = "no client sent"
    return f"{who} the claimed noise: {noise}. Clients: {', '.join(names)}"


def _describe_unseen(testimony: Testimony) -> str:
    """Say whose noise could be missing without being noticed; empty if nobody's."""
    watched = list(testimony.sums.values()) or list(testimony.clients.values())
    unseen = [party for party in watched if not party.noticed]
    if not unseen:
        return ""
    bounds = [min(party.bounds)[0] for party in unseen if party.bounds]
    who = "the clients together" if testimony.sums else f"{len(unseen):,} of {len(watched):,} clients"
    return (
        f"what {who} sent moves further than the claimed noise (noise of {max(bounds, default=math.inf):.3g} at "
        "most): missing noise would not be noticed there"
    )


def _join(texts: Sequence[str]) -> str:
    named = [*texts[:_NAMED]]
    if len(texts) > _NAMED:
        named.append(f"and {len(texts) - _NAMED:,} more")
    return "; ".join(named)


def _name_party(party: Party) -> str:
    who = f"client {party.name}" if party.node else "the sums"
    return f"{who} of {party.run}" if party.run else who


def _describe_noticed(testimony: Testimony) -> list[str]:
    """Say in which arrays noise that is missing would not be noticed; nothing if there are none, or no others."""
    noticed = {name for party in testimony.parties for name in party.noticed}
    rest = sorted(testimony.arrays - noticed)
    if not rest or not noticed:
        return []
    shown = ", ".join(rest[:_NAMED])
    if len(rest) > _NAMED:
        shown += " …"
    return [
        f"in {len(noticed):,} of {len(testimony.arrays):,} arrays missing noise would be noticed; the others are too "
        f"small, or move too far: {shown}"
    ]


def _make_unchecked(claim: Claim, name: str, reason: str) -> ClaimFinding:
    return ClaimFinding(name=name, declared=claim.epsilon, scope=claim.epsilon_of, verdict=UNCHECKED, reason=reason)


def recorded_dict(testimony: Testimony, records: Mapping[str, Record]) -> dict[str, Any]:
    """Copy what was seen into what JSON can hold."""
    first = next(iter(records.values()))
    sums = list(testimony.sums.values())
    server = None
    if sums:
        bounds = [scale for party in sums for scale, _ in party.bounds]
        faults = [text for party in sums for text in party.faults.values()]
        server = {"noise_at_most": min(bounds, default=None), "rounds": [], "faults": faults}
    return {
        "view": first.view,
        "protocol": first.protocol,
        "rounds": sum(len(record) for record in records.values()),
        "clients": list(map(_describe_client, testimony.clients.values())),
        "noise_claimed": None if sums else testimony.expected.scale,
        "tests": [asdict(test) for test in testimony.tests.values()],
        "server": server,
        "notes": list(testimony.notes),
    }


def _describe_client(party: Party) -> dict[str, Any]:
    # The array with the least room for noise.
    noise, where = min(party.bounds, default=(None, None))
    return {
        "run": party.run,
        "node": party.node,
        "name": party.name,
        "updates": len(party.bounds) or len(party.multipliers),
        "noise_at_most": noise,
        "where": where,
        "norm_most": party.norm_most or None,
        "faults": list(party.faults.values()),
    }


def sentence_of(claim: Claim, testimony: Testimony, findings: Sequence[ClaimFinding]) -> str:
    """Say for people who are not statisticians what the record shows."""
    epsilon, missing = findings
    sentences = []
    if testimony.lacks == NO_ROUND:
        sentences.append("The record was not checked: it has no whole round.")
    elif epsilon.value is None:
        sentences.append(f"The record cannot show it: {epsilon.reason}.")
    else:
        of = scope_of(claim)
        if epsilon.rounds:
            sentences.append(f"T{_describe_rounds(claim, epsilon.rounds)[1:]}.")
            of = run_of(epsilon.rounds)
        sentences.append(f"The record allows no ε below {in_figures(epsilon.value)} for {of}.")
    named = _list_faulty(testimony)
    if missing.verdict == CONSISTENT:
        sentences.append("Noise of the claimed size can be in each message.")
    elif named:
        who = "The sums contradict"
        if named[0].node:
            who = f"What {len(named):,} of {len(testimony.clients):,} clients sent contradicts"
        sentences.append(f"{who} the claimed noise or clipping.")
    return " ".join(sentences)
