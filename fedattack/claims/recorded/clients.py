"""Noise that clients say they add, looked for in each of their messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.claims.finding import TOLERANCE
from fedattack.claims.recorded.looking import TESTS, Head, Seen, look, scale_at_most
from fedattack.claims.recorded.repeats import LEAST_OF_UPDATE, Kept, count_tests, kept_of_each, repeats_in
from fedattack.claims.recorded.testimony import ERRORS, Bound, Expected, Testimony, float_arrays
from fedattack.record import Observation, Parameter, Record, Round

# Flower's clipping, in float32, may leave so much more than C.
_CLIPPED = 1e-3
# Noise can make it negative, so that it is cut at 0.
_NEVER_NEGATIVE = "running_var"
_SEED = 21
# Characters of a name that a client may have chosen.
_LONGEST = 60


@dataclass(frozen=True)
class Message:
    """One reply that counts, with the model that it started from."""

    index: int
    observation: Observation

    @property
    def node(self) -> str:
        """The client's."""
        return self.observation.node

    def sent(self, name: str) -> NDArray[Any] | None:
        """Return what was sent under a name; None if nothing was."""
        arrays = self.observation.arrays
        return None if arrays is None or name not in arrays else np.asarray(arrays[name])


def messages_of(round_: Round) -> list[Message]:
    """Return the replies of a round that arrived in time, and that an update can be computed of."""
    messages = []
    for index, observation in enumerate(round_.observations):
        known = round_.protocol == "fedsgd" or observation.received is not None
        if observation.status == "ok" and observation.arrays is not None and known:
            messages.append(Message(index, observation))
    return messages


def pairs_of(round_: Round, messages: Sequence[Message], name: str) -> Iterator[tuple[Message, Any, Any]]:
    """Give what each message has under a name, and what its client had received; None in place of the second in FedSGD.

    A message that lacks the array, or has it in a form that cannot be compared, is left out.
    """
    parameter = next(each for each in round_.parameters if each.name == name)
    for message in messages:
        sent = message.sent(name)
        if sent is None or sent.dtype.kind != "f":
            continue
        before = received_of(round_, message, name)
        if not hindrance(round_, parameter, sent, before):
            yield message, sent, before


def received_of(round_: Round, message: Message, name: str) -> NDArray[Any] | None:
    """Return what a message's client had received under a name; None in FedSGD, and if nobody knows."""
    if round_.protocol == "fedsgd":
        return None
    model = message.observation.received if message.observation.singled_out else round_.common
    return None if model is None or name not in model else model[name]


def hindrance(round_: Round, parameter: Parameter, sent: NDArray[Any], before: NDArray[Any] | None) -> str:
    """Say why an array that was sent cannot be examined; empty if it can."""
    name = short(parameter.name, _LONGEST)
    if parameter.dtype.startswith("float") != (sent.dtype.kind == "f"):
        return f"{name} has {sent.dtype}, and {parameter.dtype} is expected"
    if sent.shape != parameter.shape:
        return f"{name} has shape {sent.shape}, and {parameter.shape} is expected"
    if round_.protocol != "fedsgd" and (
        before is None or before.shape != sent.shape or before.dtype.kind != sent.dtype.kind
    ):
        return f"nobody says what {name} was before"
    return ""


def watch_clients(records: Mapping[str, Record], testimony: Testimony) -> None:
    """Look at each message of each client.

    Parameters
    ----------
    records
        In the individual view, by name of the run.
    testimony
        Gets what was seen.
    """
    messages = 0
    arrays = 1
    for record in records.values():
        messages += sum(len(messages_of(round_)) for round_ in record)
        arrays = max(arrays, len(float_arrays(record)))
    if not messages:
        testimony.lacks = "no round of the record has both a reply and the model that it started from"
        return
    error = ERRORS["noise"] / (messages * arrays * TESTS)
    for run, record in records.items():
        sizes = float_arrays(record)
        updates = sum(len(messages_of(round_)) for round_ in record)
        watch = _Watch(run, record, testimony, error, ERRORS["norms"] / messages)
        watch.length, affordable = kept_of_each([*sizes.values()], max(1, updates))
        watch.chosen = _chosen(record, updates, affordable, testimony)
        kept = [update for round_ in record for update in watch.round(round_)]
        compare(run, kept, testimony, testimony.expected.scale, ERRORS["repeats"] / len(records))


def _chosen(record: Record, updates: int, affordable: int, testimony: Testimony) -> set[str]:
    """Choose the clients whose updates are compared, if they are too many for all."""
    nodes = list(record.nodes)
    if affordable >= updates:
        return set(nodes)
    count = max(2, len(nodes) * affordable // updates)
    rng = np.random.default_rng(_SEED)
    testimony.note(
        f"noise that repeats was looked for among {count:,} of {len(nodes):,} clients, drawn with seed {_SEED}: "
        f"{LEAST_OF_UPDATE:,} numbers are kept of an update at least"
    )
    return set(rng.choice(nodes, min(count, len(nodes)), replace=False).tolist())


@dataclass
class _Watch:
    run: str
    record: Record
    testimony: Testimony
    error: float
    norm_error: float
    length: int = 1
    chosen: set[str] = None  # type: ignore[assignment]

    @property
    def expected(self) -> Expected:
        return self.testimony.expected

    def round(self, round_: Round) -> list[Kept]:
        """Look at all messages of a round, array by array, and return what is kept of them."""
        messages = messages_of(round_)
        self._register(round_, {message.index: message for message in messages})
        lowest: dict[int, tuple[float, str]] = {}
        lengths: dict[int, tuple[float, float, int]] = {}
        heads: dict[int, dict[str, Head]] = {}
        for name in float_arrays(self.record):
            for message, seen in self._array(round_, messages, name):
                bound = scale_at_most(seen, self.expected.draws, self.error)
                if self.expected.clear(bound):
                    self.testimony.client(self.run, message.node).noticed.add(name)
                lowest[message.index] = min(lowest.get(message.index, (math.inf, "")), (bound, name))
                square, slack, size = lengths.get(message.index, (0.0, 0.0, 0))
                lengths[message.index] = (square + seen.square, slack + seen.slack, size + seen.size)
                if message.node in self.chosen:
                    heads.setdefault(message.index, {})[name] = seen.head
        self._integers(round_, messages)
        for message in messages:
            if message.index in lowest:
                self._judge(message, round_, lowest[message.index], lengths[message.index])
        of = {message.index: message.node for message in messages}
        return [Kept(of[index], round_.number, each) for index, each in heads.items()]

    def _register(self, round_: Round, messages: Mapping[int, Message]) -> None:
        """Count all messages of a round, and note which of them hold what cannot be examined."""
        for index, observation in enumerate(round_.observations):
            if observation.status not in ("ok", "late"):
                continue
            party = self.testimony.client(self.run, observation.node)
            party.messages += 1
            why = ""
            if observation.status == "late":
                why = "it came late"
            elif index not in messages:
                why = "it has no arrays, or nobody says what model it started from"
            else:
                why = self._hindrance(round_, messages[index])
            if why:
                party.skip(round_, index, why)

    def _hindrance(self, round_: Round, message: Message) -> str:
        """Say why an array of a message cannot be examined, whatever its numbers; empty if all can."""
        table = {parameter.name: parameter for parameter in round_.parameters}
        sent = message.observation.arrays
        if not sent:
            return "it has no arrays"
        for name in sent:
            array = np.asarray(sent[name])
            if name not in table:
                return f"{short(name, _LONGEST)} is no array of the model"
            why = hindrance(round_, table[name], array, received_of(round_, message, name))
            if why:
                return why
        return ""

    def _array(self, round_: Round, messages: Sequence[Message], name: str) -> list[tuple[Message, Seen]]:
        """Look at one array of all messages; none of an array that nobody trains."""
        found = []
        for message, sent, before in pairs_of(round_, messages, name):
            if name.endswith(_NEVER_NEGATIVE) and not sent.all():
                self.testimony.note(f"{name}: zeros may be negative values that were cut; such updates are left out")
                continue
            seen = look(sent, before, self.expected.draws, self.length)
            if not seen.finite:
                party = self.testimony.client(self.run, message.node)
                party.skip(round_, message.index, f"{name} has numbers that are not finite")
                continue
            found.append((message, seen))
        if not any(seen.moved for _, seen in found):
            if found:
                self.testimony.note(f"{name}: no client changed it in round {round_.number}; it counts as not trained")
            return []
        self.testimony.arrays.add(name)
        return found

    def _judge(
        self,
        message: Message,
        round_: Round,
        lowest: tuple[float, str],
        lengths: tuple[float, float, int],
    ) -> None:
        party = self.testimony.client(self.run, message.node)
        scale, where = lowest
        square, slack, size = lengths
        party.bounds.append(Bound(round_.number, scale, where))
        party.expose(scale, self.expected.reach)
        norm = math.sqrt(square)
        party.norm_most = max(party.norm_most, norm)
        test = self.testimony.test("noise", "the noise in each array of each update is no less than claimed")
        test.checked += 1
        if self.expected.too_small(scale):
            test.failed += 1
            word = self.expected.draws.word
            party.fault(
                "noise",
                f"noise of {word} = {scale:.3g} at most in {where}, round {round_.number}, where "
                f"{self.expected.scale:.3g} is claimed",
            )
        self._judge_norm(message, round_, norm - math.sqrt(slack), size, scale)

    def _judge_norm(self, message: Message, round_: Round, norm: float, size: int, bound: float) -> None:
        """Hold the length of an update against C and noise: the claimed one, or else the most that can be in it."""
        expected = self.expected
        if expected.clip is None or expected.scale is None:
            return
        test = self.testimony.test("norms", "no update is longer than clipping to C and the noise in it allow")
        test.checked += 1
        most = self._longest(expected.clip, expected.scale * (1 + TOLERANCE), size)
        if norm <= most:
            return
        party = self.testimony.client(self.run, message.node)
        text = (
            f"an update of norm {norm:.4g}, where clipping to {expected.clip:g} and the claimed noise allow {most:.4g}"
        )
        if bound > expected.scale and norm <= self._longest(expected.clip, bound, size):
            party.skip(round_, message.index, f"{text}: more noise than claimed would explain it")
            return
        test.failed += 1
        party.fault("norms", f"{text} (round {round_.number}): it is not clipped")

    def _longest(self, clip: float, scale: float, size: int) -> float:
        """Return what the length of a clipped update with noise of this scale hardly exceeds."""
        draws = self.expected.draws
        return scale * math.sqrt(draws.most_square(size, clip * (1 + _CLIPPED) / scale, self.norm_error))

    def _integers(self, round_: Round, messages: Sequence[Message]) -> None:
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


def compare(run: str, kept: Sequence[Kept], testimony: Testimony, scale: float | None, error: float) -> None:
    """Look for noise that is there twice.

    Parameters
    ----------
    run
        Name of the run.
    kept
        Its updates, or what its server added; the node of the server is empty.
    testimony
        Gets what was seen.
    scale
        Of the noise, as claimed; None if the claim does not say.
    error
        Probability of any false alarm among them.
    """
    number = count_tests(kept)
    if scale is None or not number:
        return
    test = testimony.test(
        "repeats", "the noise of no update is that of another client, round, or array (of each client's first update)"
    )
    test.checked += number
    for repeat in repeats_in(kept, testimony.expected.draws, scale, error / number):
        first, second = repeat.first, repeat.second
        party = testimony.client(run, second.node) if second.node else testimony.server(run)
        if "noise" in party.faults:
            # What is too short by itself is too short across any direction.
            continue
        test.failed += 1
        if first.node != second.node:
            text = f"in round {second.round} its noise is that of client {first.node} ({repeat.other})"
        elif first.round != second.round:
            text = f"in round {second.round} its noise is that of round {first.round} ({repeat.other})"
        else:
            text = f"in round {second.round} the noise of {repeat.other} is that of {repeat.name}"
        party.fault("repeats", text)
