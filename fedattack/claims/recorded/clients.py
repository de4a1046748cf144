"""Noise that clients say they add, looked for in each of their messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedattack.base.errors import short
from fedattack.claims.finding import TOLERANCE
from fedattack.claims.recorded.looking import ArrayLook, look
from fedattack.claims.recorded.repeats import MOST_UPDATES, UpdateHeads
from fedattack.claims.recorded.replies import (
    LONGEST_NAME,
    Message,
    float_arrays,
    hindrance,
    messages_of,
    pairs_of,
    received_of,
)
from fedattack.claims.recorded.testimony import Expected
from fedattack.claims.recorded.watch import NoiseWatch, RoundNumbers
from fedattack.record import Round

# Flower's clipping, in float32, may leave so much more than C.
_CLIPPED = 1e-3
# Noise can make it negative, so that it is cut at 0.
_NEVER_NEGATIVE = "running_var"


@dataclass
class ClientWatch(NoiseWatch):
    """Looks at each message of each client, in the individual view."""

    carrier = "update"
    lacks = "no round of the record has both a reply and the model that it started from"

    messages: int = 0
    """How many messages can be looked at."""
    kept: int = 0
    """Of how many entries are kept, to look for noise that repeats."""

    @property
    def expected(self) -> Expected:
        """What the claim says of one message."""
        return self.testimony.expected

    def find_rounds(self) -> list[Round]:
        """Take all rounds: also messages that cannot be examined are counted."""
        rounds = list(self.record)
        self.messages = sum(len(messages_of(round_)) for round_ in rounds)
        return rounds

    @property
    def count(self) -> int:
        """How many messages can be looked at."""
        return self.messages

    def look_at(self, round_: Round) -> list[UpdateHeads]:
        """Look at all messages of a round, array by array, and return what is kept of them."""
        messages = {message.index: message for message in messages_of(round_)}
        self._register(round_, messages)
        numbers: dict[int, RoundNumbers] = {}
        for name in float_arrays(self.record):
            for message, seen in self._look_at_array(round_, [*messages.values()], name):
                each = numbers.setdefault(message.index, RoundNumbers())
                each.add(name, seen, self.expected.draws, self.rates.noise)
        self._note_integers(round_, [*messages.values()])
        for index, message in messages.items():
            if index in numbers:
                self._judge(message, round_, numbers[index])
        heads = [UpdateHeads(messages[index].node, round_.number, each.heads) for index, each in numbers.items()]
        if len(heads) > MOST_UPDATES - self.kept:
            self.testimony.note(f"noise that repeats was looked for among the first {MOST_UPDATES:,} updates alone")
            heads = heads[: MOST_UPDATES - self.kept]
        self.kept += len(heads)
        return heads

    def _register(self, round_: Round, messages: Mapping[int, Message]) -> None:
        """Count all messages of a round, and note which of them hold what cannot be examined."""
        for index, observation in enumerate(round_.observations):
            if observation.status not in ("ok", "late"):
                continue
            party = self.testimony.client(self.run, observation.node)
            why = ""
            if observation.status == "late":
                why = "it came late"
            elif index not in messages:
                why = "it has no arrays, or nobody says what model it started from"
            else:
                why = _find_hindrance(round_, messages[index])
            if why:
                party.skip(round_, why)

    def _look_at_array(self, round_: Round, messages: Sequence[Message], name: str) -> list[tuple[Message, ArrayLook]]:
        """Look at one array of all messages; none of an array that nobody trains."""
        found = []
        for message, sent, before in pairs_of(round_, messages, name):
            if name.endswith(_NEVER_NEGATIVE) and not sent.all():
                self.testimony.note(f"{name}: zeros may be negative values that were cut; such updates are left out")
                continue
            seen = look(sent, before, self.expected.draws, self.length)
            if not seen.finite:
                party = self.testimony.client(self.run, message.node)
                party.skip(round_, f"{name} has numbers that are not finite")
                continue
            found.append((message, seen))
        if not any(seen.moved for _, seen in found):
            if found:
                self.testimony.note(f"{name}: no client changed it in round {round_.number}; it counts as not trained")
            return []
        self.testimony.arrays.add(name)
        return found

    def _judge(self, message: Message, round_: Round, numbers: RoundNumbers) -> None:
        """Hold one message against the claim."""
        party = self.testimony.client(self.run, message.node)
        party.expose(numbers.bound, self.expected.reach)
        party.norm_most = max(party.norm_most, math.sqrt(numbers.square))
        self.judge_noise(party, round_, numbers, self.expected)
        self._judge_norm(message, round_, numbers)

    def _judge_norm(self, message: Message, round_: Round, numbers: RoundNumbers) -> None:
        """Hold the length of an update against C and noise: the claimed one, or else the most that can be in it."""
        expected = self.expected
        if expected.clip is None or expected.scale is None:
            return
        test = self.testimony.test("norms", "no update is longer than clipping to C and the noise in it allow")
        test.checked += 1
        norm = math.sqrt(numbers.square) - math.sqrt(numbers.slack)
        most = self._longest(expected.clip, expected.scale * (1 + TOLERANCE), numbers.size)
        if norm <= most:
            return
        party = self.testimony.client(self.run, message.node)
        text = (
            f"an update of norm {norm:.4g}, where clipping to {expected.clip:g} and the claimed noise allow {most:.4g}"
        )
        explained = numbers.bound > expected.scale and norm <= self._longest(expected.clip, numbers.bound, numbers.size)
        if explained:
            party.skip(round_, f"{text}: more noise than claimed would explain it")
            return
        test.failed += 1
        party.fault("norms", f"{text} (round {round_.number}): it is not clipped")

    def _longest(self, clip: float, scale: float, size: int) -> float:
        """Return what the length of a clipped update with noise of this scale hardly exceeds."""
        draws = self.expected.draws
        return scale * math.sqrt(draws.most_square(size, clip * (1 + _CLIPPED) / scale, self.rates.norms))

    def _note_integers(self, round_: Round, messages: Sequence[Message]) -> None:
        """Note arrays of integers that clients change: they carry no noise of real numbers."""
        common = round_.common
        if round_.protocol == "fedsgd" or common is None:
            return
        for parameter in self.record.parameters:
            if parameter.dtype.startswith("float") or parameter.name not in common:
                continue
            before = common[parameter.name]
            sent = [message.sent(parameter.name) for message in messages]
            if any(array is not None and not np.array_equal(array, before) for array in sent):
                self.testimony.note(f"{parameter.name} ({parameter.dtype}) is changed, and sent without noise")


def _find_hindrance(round_: Round, message: Message) -> str:
    """Say why an array of a message cannot be examined, whatever its numbers; empty if all can."""
    table = {parameter.name: parameter for parameter in round_.parameters}
    sent = message.observation.arrays
    if not sent:
        return "it has no arrays"
    for name in sent:
        array = np.asarray(sent[name])
        if name not in table:
            return f"{short(name, LONGEST_NAME)} is no array of the model"
        why = hindrance(round_, table[name], array, received_of(round_, message, name))
        if why:
            return why
    return ""
