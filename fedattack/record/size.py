"""How many bytes a record will take, from the first model and what is kept."""

import math
from dataclasses import dataclass

import numpy as np

from fedattack.record.format import PROTOCOLS, Arrays, View
from fedattack.record.keep import Keep
from fedattack.record.schema import Protocol


@dataclass(frozen=True)
class Size:
    """What a run will write, as far as it is known before its first round.

    A server of FedAvg is taken to average: the next model is then in the record already. One that does something else
    writes a model more in each round. What is no array is left out, a few hundred bytes a reply.

    Attributes
    ----------
    messages
        Messages of a round that are kept: replies, or 1 for a sum.
    message
        Bytes of each.
    models
        Bytes of the common models that are kept with a round.
    once
        Bytes of the models that a run has beside.
    every
        Of how many rounds one is kept.
    """

    messages: int
    message: int
    models: int
    once: int
    every: int = 1

    @classmethod
    def of(cls, model: Arrays, sampled: int, keep: Keep, *, view: View, protocol: Protocol) -> "Size":
        """Look at a model that is sent to ``sampled`` clients."""
        whole = sum(array.nbytes for array in model.values())
        summed = view == "aggregate"
        message = whole
        if summed:
            # A sum is stored in double precision.
            message = np.dtype(np.float64).itemsize * sum(array.size for array in model.values())
        averages = PROTOCOLS[protocol].sends_back and not summed
        # The model before a kept round is no mean that is there, unless the round before is kept; the one after may be.
        models = 1
        if averages and not keep.some_clients:
            models = 0
        if keep.every > 1:
            models += 1
        # An aggregate is one message, however many clients it sums up.
        return cls(1 if summed else keep.count(sampled), message, models * whole, whole, keep.every)

    @property
    def round(self) -> int:
        """Bytes of a round that is kept."""
        return self.messages * self.message + self.models

    def run(self, rounds: int) -> int:
        """Bytes of so many rounds of the server."""
        # ceil: the first of `every` rounds is kept, also where the run ends soon after.
        return math.ceil(rounds / self.every) * self.round + self.once

    def describe(self, rounds: int | None, free: int) -> tuple[str, bool]:
        """Say it in a line; and whether it fits, as far as the number of rounds is known."""
        each = f"{self.messages} x {in_bytes(self.message)}"
        if self.models:
            each += f" + {in_bytes(self.models)}"
        of_rounds = "each round"
        if self.every > 1:
            of_rounds = f"1 of {self.every} rounds"
        room = f"{in_bytes(free)} are free"
        if rounds is None:
            return f"{of_rounds} will write about {in_bytes(self.round)} ({each}); {room}, {self._enough(free)}", True
        size, kept = self.run(rounds), math.ceil(rounds / self.every)
        line = f"this run will write about {in_bytes(size)} ({kept} rounds of {each}); {room}"
        if size <= free:
            return line, True
        return (
            f"{line}, {self._enough(free)}: the recording will end there, and the training go on; keep less by every= "
            "or clients="
        ), False

    def _enough(self, free: int) -> str:
        rounds = max(0, free - self.once) // max(self.round, 1) * self.every
        return f"enough for {rounds:,} rounds"


def in_bytes(size: float) -> str:
    """Write a number of bytes as people do: ``24 MB``."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    if size < 10:
        return f"{size:.2g} {units[0]}"
    return f"{size:.0f} {units[0]}"
