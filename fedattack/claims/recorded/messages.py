"""What of a round is held against a claim: each reply of a client, or in a record of sums the mean of all replies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.claims.recorded.testimony import Expected
from fedattack.record import Parameter, Record, Round

# Characters of a name that a client may have chosen.
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Message:
    """One reply that counts, or the mean of a round, with the model that it started from.

    Attributes
    ----------
    index
        Of the reply in its round.
    node
        The client's; empty for a mean.
    sent, received
        Arrays by name. Nothing is ``received`` in FedSGD, where gradients are the update.
    """

    index: int
    node: str
    sent: Mapping[str, Any]
    received: Mapping[str, Any]

    def get_sent(self, name: str) -> NDArray[Any] | None:
        """Return what was sent under a name; None if nothing was."""
        if name not in self.sent:
            return None
        return np.asarray(self.sent[name])


def messages_of(record: Record, round_: Round) -> list[Message]:
    """Return what an update can be computed of: replies that arrived in time, or their mean."""
    if record.view == "aggregate":
        before = _read_received(round_, round_.common)
        if round_.aggregate is None or before is None:
            return []
        return [Message(0, "", round_.aggregate, before)]
    messages = []
    for index, observation in enumerate(round_.observations):
        before = _read_received(round_, observation.received)
        if observation.status == "ok" and observation.arrays is not None and before is not None:
            messages.append(Message(index, observation.node, observation.arrays, before))
    return messages


def _read_received(round_: Round, received: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    # A gradient starts from nothing.
    return {} if round_.protocol == "fedsgd" else received


def find_hindrance(round_: Round, message: Message) -> str:
    """Say why an array of a message cannot be examined, whatever its numbers; empty if all can."""
    table = {parameter.name: parameter for parameter in round_.parameters}
    if not message.sent:
        return "it has no arrays"
    for name in message.sent:
        if name not in table:
            return f"{short(name, _LONGEST_NAME)} is not an array of the model"
        why = hindrance_of(round_, table[name], message)
        if why:
            return why
    return ""


def hindrance_of(round_: Round, parameter: Parameter, message: Message) -> str:
    """Say why an array that was sent cannot be examined; empty if it can."""
    name = short(parameter.name, _LONGEST_NAME)
    sent, before = np.asarray(message.sent[parameter.name]), message.received.get(parameter.name)
    if parameter.dtype.startswith("float") != (sent.dtype.kind == "f"):
        return f"{name} has {sent.dtype}, and {parameter.dtype} is expected"
    if sent.shape != parameter.shape:
        return f"{name} has shape {sent.shape}, and {parameter.shape} is expected"
    if round_.protocol != "fedsgd" and (
        before is None or before.shape != sent.shape or before.dtype.kind != sent.dtype.kind
    ):
        return f"it is not known what {name} was before"
    return ""


def float_parameters(record: Record) -> list[Parameter]:
    """List the arrays of floats that have any entry."""
    return [each for each in record.parameters if each.dtype.startswith("float") and math.prod(each.shape) > 0]


def shares_of(round_: Round) -> NDArray[np.float64]:
    """Return (replies,) shares in a round's mean; equal ones, at which noise is least, if they are not known."""
    counts = _list_counts(round_)
    if None in counts:
        # By Cauchy-Schwarz equal shares leave the least noise in a mean, which is on the safe side.
        return np.full(len(counts), 1 / len(counts))
    values = np.array(counts, dtype=np.float64)
    return np.asarray(values / values.sum())


def _list_counts(round_: Round) -> Sequence[float | None]:
    return [observation.count for observation in round_.observations if observation.status == "ok"]


def expect_mean(expected: Expected, shares: NDArray[np.float64]) -> Expected:
    """Say what the noise of all clients does to a mean.

    Parameters
    ----------
    expected
        What is claimed of one client's message.
    shares
        (replies,) of the mean.
    """
    if expected.scale is None:
        return expected
    # Variances of independent noise add up, each by the square of its share.
    return replace(expected, scale=expected.scale * math.sqrt(float((shares**2).sum())))


def rounding_of(record: Record, round_: Round) -> float:
    """Return how far SecAgg+'s rounding may move an entry of the mean; 0 for other sums, and for replies."""
    aggregation = record.manifest["aggregation"] or {}
    if record.view != "aggregate" or not {"max_weight", "clipping", "steps"} <= aggregation.keys():
        return 0.0
    counts = [count or 0.0 for count in _list_counts(round_)]
    step = 2 * aggregation["clipping"] / aggregation["steps"]
    # Each reply may be off by a step; divided by the sum of weights, as the mean is.
    return float(len(counts) * step * aggregation["max_weight"] / max(sum(counts), 1e-300))
