"""One seed's examples that were read off beside those that clients hold."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.attacks.accidents import count_repeats
from fedattack.audit.clients import ClientsCase, HeldExamples
from fedattack.audit.readoff import BITS, bits_beside, bits_of_repeats
from fedattack.audit.truth import SEVERAL
from fedattack.base.structured import fields
from fedattack.threats.exact.exact import ReadOffExamples

TOLERANCE = 1e-3
"""How far each number of an example that counts as read off may be from it, as a part of its feature's span."""

PRECISE = 1e-4
"""How far each number of an example may be off that is certain: single precision is off by a millionth or so."""

ANY, NOBODY = -1, -1
"""Whose an example is said to be that may be any client's; and the holder of one that nobody holds."""

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Examples that are compared with others at once.
_AT_ONCE = 1_000


@dataclass(frozen=True)
class KnownHolders:
    """Who holds which of all known examples: one entry for each example and each of its holders.

    Attributes
    ----------
    x
        (examples, inputs): different ones.
    rows, holders
        (entries,): which example, and who holds it: an index into the clients that are asked about, a larger number for
        another client, or −1 for nobody.
    """

    x: Floats
    rows: NDArray[np.int64]
    holders: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ExactCase(ClientsCase[ReadOffExamples, HeldExamples]):
    """One seed's examples that were read off, beside its truth."""

    ANSWERS, FORM = "exact", HeldExamples

    def fault_of(self, answers: HeldExamples) -> str:
        """Expect examples as wide as those that were read off."""
        inputs = self.found.examples.shape[1]
        if answers.x.shape[1] != inputs:
            return f"its examples have {answers.x.shape[1]} inputs, and the scores {inputs}"
        return ""

    @property
    def is_sum(self) -> bool:
        """Whether the examples were read off sums."""
        return self.record.view == "aggregate"

    @cached_property
    def asked(self) -> list[str]:
        """The clients of which updates were looked at, and of which all examples are known."""
        if self.answers is None:
            return []
        return self.list_seen({*self.answers.owners.tolist()})

    @cached_property
    def examples(self) -> tuple[Floats, NDArray[np.int64]]:
        """The examples of the clients that are asked about, and whose each is, an index into the clients."""
        whose = np.array([self.places.get(owner, -1) for owner in self.known.owners.tolist()], dtype=np.int64)
        return self.known.x[whose >= 0].astype(np.float64), whose[whose >= 0]

    @cached_property
    def evaluation(self) -> Floats:
        """Examples (n, inputs) that nobody trained on; none where no such are known."""
        return self._flatten(self.truth.evaluation[0])

    @cached_property
    def auxiliary(self) -> Floats:
        """The attacker's own examples (n, inputs); none where it has none."""
        known = self.knowledge.auxiliary
        return self._flatten(None if known is None else known.x)

    @cached_property
    def known_examples(self) -> KnownHolders:
        """All known examples: of the clients that are asked about, of others, and of nobody."""
        x, whose = self.examples
        of_nobody = np.full(len(self.evaluation) + len(self.auxiliary), NOBODY)
        others, of_others = self._list_targets_of_others()
        rows: dict[bytes, int] = {}
        first: list[int] = []
        numbers = []
        # Equal examples are one; 0 and −0 are equal.
        every = np.concatenate([x, self.evaluation, self.auxiliary, others]).astype(np.float32) + np.float32(0)
        for index, example in enumerate(every):
            number = rows.setdefault(example.tobytes(), len(first))
            if number == len(first):
                first.append(index)
            numbers.append(number)
        entries = np.stack([np.array(numbers, dtype=np.int64), np.concatenate([whose, of_nobody, of_others])])
        entries = np.unique(entries, axis=1)
        return KnownHolders(every[first].astype(np.float64), entries[0], entries[1])

    def _list_targets_of_others(self) -> tuple[Floats, NDArray[np.int64]]:
        """Return the targets that clients hold of which not all examples are known, and who holds each."""
        targets, owners = self.knowledge.targets, self.truth.owners
        x = self._flatten(None if targets is None or len(targets) != len(owners) else targets.x)
        rows, holders = [], []
        names = [client for client in self.truth.clients if client not in self.places]
        for row in range(len(x)):
            owner = str(owners[row])
            for name in self.truth.shared[row] if owner == SEVERAL else (owner,):
                if name in names:
                    rows.append(row)
                    holders.append(len(self.asked) + names.index(name))
        return x[np.array(rows, dtype=np.int64)], np.array(holders, dtype=np.int64)

    @cached_property
    def met(self) -> list[tuple[int, int]]:
        """The different pairs of whose example was read off, as the attacker says, and which known example it is.

        The first is an index into the clients that are asked about, or −1 where it may be any client's: of sums. The
        second is a row of :attr:`known_examples`.
        """
        read, whose = self.read
        nearest, apart = self.compare(read, self.known_examples.x)
        if self.is_sum:
            whose = np.full(len(read), ANY)
        is_met = apart.max(axis=1, initial=0) <= TOLERANCE
        return sorted({*zip(whose[is_met].tolist(), nearest[is_met].tolist(), strict=True)})

    @cached_property
    def right_of(self) -> NDArray[np.int64]:
        """(clients,): how many different examples of each client were read off."""
        return np.bincount(self.examples[1][self.is_read], minlength=len(self.asked))

    @cached_property
    def certain_of(self) -> NDArray[np.int64]:
        """(clients,): how many of these are certain: right to all digits, and like no example of anybody else."""
        known, counts = self.known_examples, np.zeros(len(self.asked), dtype=np.int64)
        repeats, pairs = count_repeats(known.rows, known.holders, len(np.unique(known.holders[known.holders >= 0])))
        all_read, whose = self.read
        for client in range(len(self.asked)):
            read = all_read if self.is_sum else all_read[whose == client]
            own = np.isin(np.arange(len(known.x)), known.rows[known.holders == client])
            nearest, apart = self.compare(read, known.x[own])
            exact = np.unique(nearest[apart.max(axis=1, initial=0) <= PRECISE])
            if not len(exact):
                continue
            elsewhere = np.isin(np.arange(len(known.x)), known.rows[known.holders != client])
            scaled = known.x / self.spans
            bits = bits_beside(scaled[own][exact], scaled[elsewhere], scaled, TOLERANCE)
            sure = int((bits >= BITS).sum())
            if bits_of_repeats(sure, len(read), repeats, pairs) >= BITS:
                counts[client] = sure
        return counts

    def _flatten(self, x: NDArray[Any] | None) -> Floats:
        """Return examples as (n, inputs); none where they are of another form."""
        inputs = self.examples[0].shape[1]
        nothing = np.zeros((0, inputs))
        if x is None or fields(x) or not len(x):
            return nothing
        flat = np.asarray(x.reshape(len(x), -1), dtype=np.float64)
        columns = [*self.found.columns]
        # What does not enter the layer is not read.
        if columns and max(columns) < flat.shape[1]:
            flat = flat[:, columns]
        return flat if flat.shape[1] == inputs else nothing

    @property
    def is_image(self) -> bool:
        """Whether examples are images."""
        x = self.truth.evaluation[0]
        return not fields(x) and x.ndim == 4

    @cached_property
    def spans(self) -> Floats:
        """(inputs,): largest less smallest value of each feature among what clients hold; of images of all pixels."""
        x = self.examples[0]
        spans = np.ptp(x, axis=0)
        widest = max(float(np.ptp(x)), 1e-12)
        return np.full(len(spans), widest) if self.is_image else np.where(spans > 0, spans, widest)

    @cached_property
    def _said_of(self) -> NDArray[np.int64]:
        """(found,): whose each example is said to be, an index into the clients that are asked about, or −1."""
        # The last one is whom −1 means: nobody.
        indices = np.array([*(self.places.get(client, -1) for client in self.node_clients), -1])
        return np.asarray(indices[self.found.whose])

    def take_asked(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return what of (found, …) is of examples of clients that are asked about, (read, …); of sums all."""
        return values if self.is_sum else values[self._said_of >= 0]

    @cached_property
    def read(self) -> tuple[Floats, NDArray[np.int64]]:
        """What was read off (read, inputs), and whose it is said to be, an index into the clients asked about or −1."""
        return self.take_asked(self.found.examples).astype(np.float64), self.take_asked(self._said_of)

    def compare(self, x: Floats, others: Floats) -> tuple[NDArray[np.int64], Floats]:
        """Return for each example (n, inputs) the nearest of others, and how far apart their numbers are (n, inputs).

        Distances are parts of the features' spans; infinite where there are no others.
        """
        if not len(others):
            return np.full(len(x), -1), np.full(x.shape, np.inf)
        scaled, of_others = x / self.spans, others / self.spans
        # |a − b|² = |a|² − 2ab + |b|², of which |a|² is the same for all others.
        lengths = np.square(of_others).sum(axis=1)
        nearest = np.zeros(len(x), dtype=np.int64)
        for first in range(0, len(x), _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            nearest[block] = (lengths - 2 * scaled[block] @ of_others.T).argmin(axis=1)
        return nearest, np.abs(scaled - of_others[nearest])

    @cached_property
    def apart(self) -> Floats:
        """(examples, inputs): how far what clients hold is from the nearest that was read off of them."""
        x, whose = self.examples
        read, of_read = self.read
        if self.is_sum:
            return self.compare(x, read)[1]
        apart = np.full(x.shape, np.inf)
        for client in range(len(self.asked)):
            own = whose == client
            apart[own] = self.compare(x[own], read[of_read == client])[1]
        return apart

    @cached_property
    def is_read(self) -> Flags:
        """(examples,): whether an example is among those that were read off."""
        return np.asarray(self.apart.max(axis=1, initial=0) <= TOLERANCE)

    @cached_property
    def others_read(self) -> Flags:
        """(evaluation,): whether an example that nobody trained on is among those that were read off."""
        return np.asarray(self.compare(self.evaluation, self.read[0])[1].max(axis=1, initial=0) <= TOLERANCE)

    @cached_property
    def truly_of(self) -> NDArray[np.int64]:
        """(read,): whose example each that was read off is, an index into the clients asked about; −1 for nobody's."""
        read, of_read = self.read
        x, whose = self.examples
        holders = np.full(len(read), -1)
        if self.is_sum:
            nearest, apart = self.compare(read, x)
            return np.where(apart.max(axis=1, initial=0) <= TOLERANCE, whose[nearest], -1)
        for client in range(len(self.asked)):
            own = of_read == client
            _, apart = self.compare(read[own], x[whose == client])
            holders[own] = np.where(apart.max(axis=1, initial=0) <= TOLERANCE, client, -1)
        return holders

    @cached_property
    def traced(self) -> Floats:
        """(clients, clients): of sums how many examples that are traced to one (rows) are another one's (columns)."""
        table = np.zeros((len(self.asked),) * 2)
        said_of = self.read[1]
        known = (said_of >= 0) & (self.truly_of >= 0)
        np.add.at(table, (said_of[known], self.truly_of[known]), 1)
        return table

    @cached_property
    def is_grouped(self) -> Flags:
        """(read,): whether the attacker says that an example is of the same client as another one."""
        groups = self.take_asked(self.found.groups)
        return np.asarray(np.bincount(groups, minlength=1)[groups] > 1)

    @cached_property
    def is_linked(self) -> Flags:
        """(read,): whether an example is said to be of the same client as others, and all of them truly are."""
        groups = self.take_asked(self.found.groups)
        linked = self.is_grouped.copy()
        for group in np.unique(groups[linked]):
            members = groups == group
            holders = np.unique(self.truly_of[members])
            linked[members] = len(holders) == 1 and holders[0] >= 0
        return linked
