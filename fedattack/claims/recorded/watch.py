"""Noise that clients say they add, looked for in each of their messages, or in the mean of these.

In a record of sums the mean of a round has the noise of all clients together. Too little of it does not tell whose is
missing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedattack.claims.finding import TOLERANCE
from fedattack.claims.recorded.looking import ArrayLook, UpdateLook, look
from fedattack.claims.recorded.messages import (
    Message,
    expect_mean,
    find_hindrance,
    float_parameters,
    hindrance_of,
    messages_of,
    rounding_of,
    shares_of,
)
from fedattack.claims.recorded.testimony import Expected, Party, Testimony, usable_amount
from fedattack.record import Parameter, Record, Round

# Flower's clipping, in float32, may leave so much more than C.
_CLIPPED = 1e-3
# Noise can make it negative, so that it is cut at 0.
_NEVER_NEGATIVE = "running_var"


def look_at_records(records: Mapping[str, Record], testimony: Testimony) -> None:
    """Look at each message of each client, or at the mean of each round in the aggregate view."""
    rounds = [(run, record, round_) for run, record in records.items() for round_ in record]
    messages = sum(len(messages_of(record, round_)) for _, record, round_ in rounds)
    sums = any(record.view == "aggregate" for record in records.values())
    if not messages:
        testimony.lacks = "no round of the record has both a reply and the model that it started from"
        if sums:
            testimony.lacks = "no round of the record has a sum, and the model before it"
        return
    if sums:
        testimony.note("the record shows only sums: no client can be named, and no single update can be checked")
    # Before any test: each is held to its share of the error.
    testimony.share_errors(messages, max(1, *(len(float_parameters(record)) for record in records.values())))
    for run, record, round_ in rounds:
        _look_at_round(run, record, round_, testimony)


def _look_at_round(run: str, record: Record, round_: Round, testimony: Testimony) -> None:
    """Look at all messages of a round, array by array, and hold each against the claim."""
    messages = messages_of(record, round_)
    _note_unexamined(run, record, round_, messages, testimony)
    updates: dict[int, UpdateLook] = {}
    for parameter in float_parameters(record):
        for message, seen in _look_at_array(run, record, round_, parameter, messages, testimony):
            updates.setdefault(message.index, UpdateLook())[parameter.name] = seen
    _note_integers(record, round_, messages, testimony)
    for message in messages:
        update = updates.get(message.index)
        if update is None:
            continue
        party = testimony.party(run, message.node)
        if message.node:
            _judge_update(party, round_, update, testimony)
        else:
            _judge_mean(party, round_, update, testimony)


def _note_unexamined(
    run: str, record: Record, round_: Round, messages: Sequence[Message], testimony: Testimony
) -> None:
    """Count all messages of a round, and note which of them hold what cannot be examined."""
    by_index = {message.index: message for message in messages}
    for index, observation in enumerate(round_.observations):
        if record.view == "aggregate" or observation.status not in ("ok", "late"):
            continue
        party = testimony.party(run, observation.node)
        if observation.status == "late":
            party.skip(round_, "it came late")
        elif index not in by_index:
            party.skip(round_, "it has no arrays, or it is not known from which model it started")
    for message in messages:
        why = find_hindrance(round_, message)
        if why:
            testimony.party(run, message.node).skip(round_, why)


def _look_at_array(
    run: str, record: Record, round_: Round, parameter: Parameter, messages: Sequence[Message], testimony: Testimony
) -> list[tuple[Message, ArrayLook]]:
    """Look at one array of all messages; none of an array that nobody trains."""
    name, slack = parameter.name, rounding_of(record, round_)
    looks = []
    for message in messages:
        sent = message.get_sent(name)
        if sent is None or hindrance_of(round_, parameter, message):
            continue
        if name.endswith(_NEVER_NEGATIVE) and not sent.all():
            testimony.note(f"{name}: zeros may be negative values that were cut; such updates are left out")
            continue
        draws, error = testimony.expected.draws, testimony.noise_error
        seen = look(sent, message.received.get(name), draws, error, slack=slack)
        if seen.finite:
            looks.append((message, seen))
        else:
            testimony.party(run, message.node).skip(round_, f"{name} has numbers that are not finite")
    # An array that nobody moved, such as one that is frozen, tells nothing of noise.
    if any(seen.moved for _, seen in looks):
        testimony.arrays.add(name)
        return looks
    if looks:
        testimony.note(f"{name}: no client changed it in round {round_.number}; it counts as not trained")
    return []


def _note_integers(record: Record, round_: Round, messages: Sequence[Message], testimony: Testimony) -> None:
    """Note arrays of integers that clients change: they carry no noise of real numbers."""
    for parameter in record.parameters:
        if parameter.dtype.startswith("float"):
            continue
        for message in messages:
            sent, before = message.get_sent(parameter.name), message.received.get(parameter.name)
            if sent is not None and before is not None and not np.array_equal(sent, before):
                testimony.note(f"{parameter.name} ({parameter.dtype}) changes, and is sent without noise")


def _judge_mean(party: Party, round_: Round, mean: UpdateLook, testimony: Testimony) -> None:
    """Hold the noise of a mean against the claim, which is that of each client by its share."""
    shares = shares_of(round_)
    expected = expect_mean(testimony.expected, shares)
    for node, share in zip(round_.participants, shares.tolist(), strict=True):
        reach = None if expected.reach is None else usable_amount(expected.reach * share)
        # A client moves the mean by its share of its reach.
        testimony.party(party.run, node).add_multiplier(mean.bound, reach)
    testimony.judge_noise(party, round_, mean, expected)


def _judge_update(party: Party, round_: Round, update: UpdateLook, testimony: Testimony) -> None:
    """Hold one message against the claim."""
    party.add_multiplier(update.bound, testimony.expected.reach)
    party.norm_most = max(party.norm_most, math.sqrt(update.square))
    testimony.judge_noise(party, round_, update, testimony.expected)
    _judge_norm(party, round_, update, testimony)


def _judge_norm(party: Party, round_: Round, update: UpdateLook, testimony: Testimony) -> None:
    """Hold the length of an update against C and noise: the claimed one, or else the most that can be in it."""
    expected, error = testimony.expected, testimony.norm_error
    if expected.clip is None or expected.scale is None:
        return
    test = testimony.test("norms", "no update is longer than clipping to C and the noise in it allow")
    test.checked += 1
    # Rounding may have made the update longer, by the length of the allowances at most.
    norm = math.sqrt(update.square) - math.sqrt(update.slack)
    most = _find_longest(expected, expected.scale * (1 + TOLERANCE), update.size, error)
    if norm <= most:
        return
    text = f"an update of norm {norm:.4g}, where clipping to {expected.clip:g} and the claimed noise allow {most:.4g}"
    # If larger noise than claimed explains the length, clipping need not be missing.
    if update.bound > expected.scale and norm <= _find_longest(expected, update.bound, update.size, error):
        party.skip(round_, f"{text}: more noise than claimed would explain it")
        return
    test.failed += 1
    party.fault("norms", f"{text} (round {round_.number}): it is not clipped")


def _find_longest(expected: Expected, scale: float, size: int, error: float) -> float:
    """Return what the length of a clipped update with noise of this scale hardly exceeds."""
    clip = (expected.clip or 0.0) * (1 + _CLIPPED)
    return scale * math.sqrt(expected.draws.most_square(size, clip / scale, error))
