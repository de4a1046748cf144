"""Replies of a round, and the arrays in them that can be compared with what their clients had received."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.record import Observation, Parameter, Record, Round

LONGEST_NAME = 60
"""Characters of a name that a client may have chosen."""


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
        if arrays is None or name not in arrays:
            return None
        return np.asarray(arrays[name])


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
    model = round_.common
    if message.observation.singled_out:
        model = message.observation.received
    if model is None or name not in model:
        return None
    return model[name]


def hindrance(round_: Round, parameter: Parameter, sent: NDArray[Any], before: NDArray[Any] | None) -> str:
    """Say why an array that was sent cannot be examined; empty if it can."""
    name = short(parameter.name, LONGEST_NAME)
    if parameter.dtype.startswith("float") != (sent.dtype.kind == "f"):
        return f"{name} has {sent.dtype}, and {parameter.dtype} is expected"
    if sent.shape != parameter.shape:
        return f"{name} has shape {sent.shape}, and {parameter.shape} is expected"
    if round_.protocol != "fedsgd" and (
        before is None or before.shape != sent.shape or before.dtype.kind != sent.dtype.kind
    ):
        return f"nobody says what {name} was before"
    return ""


def alike(record: Record, name: str, *arrays: NDArray[Any]) -> bool:
    """Whether arrays are of floats, and have the shape that the record's table of parameters says."""
    shape = next(each.shape for each in record.parameters if each.name == name)
    return all(array.dtype.kind == "f" and array.shape == shape for array in arrays)


def float_arrays(record: Record) -> dict[str, int]:
    """Return the number of entries of each array of floats, by name."""
    sizes: dict[str, int] = {}
    for parameter in record.parameters:
        size = math.prod(parameter.shape)
        if parameter.dtype.startswith("float") and size:
            sizes[parameter.name] = size
    return sizes
