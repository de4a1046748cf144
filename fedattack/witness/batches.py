"""What becomes of the batches that one model takes in a call of a client: it is trained on them, or it is not.

A batch is pending until that is known. A gradient that came back through the model's outputs makes it *differentiated*.
A step of an optimizer then makes its examples trained ones, unless gradients were thrown away before. What is still
pending when the call ends was evaluated.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.base.structured import fields
from fedattack.witness.repeated import RepeatedInputs
from fedattack.witness.sample import Examples, Label, hash_rows

_PENDING = 1024
"""Batches up to which one is pending; of what waits longer no order is kept."""

_SMALL = 2**16
"""Bytes of a batch up to which it is copied, and hashed together with others: much of the time is spent once a call."""

_LATER = 64
"""Batches that are hashed together; with :data:`_SMALL` a bound of their memory."""


@dataclass(eq=False, slots=True)
class TakenBatch:
    """One batch that a model took, and what became of it.

    Attributes
    ----------
    count
        Number of its examples.
    trains
        Whether it may lead to a step of an optimizer.
    labels
        (n,), as soon as a loss shows them.
    differentiated
        Whether a gradient came back, and was not thrown away since.
    discarded
        Whether one was ever thrown away. Another may come: ghost clipping goes back twice, the first time for norms.
    hashes
        (n,) of its examples; ``None`` until they are hashed, together with those of other small batches.
    held_out
        (n,): which of them others took the place of; ``None`` where none.
    places
        (n,): where they stand in the dataset that a loader took them from; ``None`` where that is not known.
    """

    count: int
    trains: bool
    labels: Sequence[Label] | None = None
    differentiated: bool = False
    discarded: bool = False
    hashes: Sequence[bytes] | None = None
    held_out: NDArray[np.bool_] | None = None
    places: Sequence[int] | None = None

    @property
    def used(self) -> int:
        """How many of its examples are not held out."""
        return self.count if self.held_out is None else self.count - int(self.held_out.sum())


class SmallBatches:
    """Small batches of float32 that wait to be hashed together; most of a hash's time is spent once a call.

    Parameters
    ----------
    seed
        Key of the hashes.
    keep_rows
        Called with hashes and rows of batches that train, or of batches that do not.
    """

    def __init__(self, seed: int, keep_rows: Callable[[bool, Sequence[bytes], NDArray[Any]], None]) -> None:
        self._seed = seed
        self._keep_rows = keep_rows
        self._shape: tuple[int, ...] = ()
        self._waiting: list[tuple[TakenBatch, bytes]] = []

    @staticmethod
    def takes(rows: NDArray[Any]) -> bool:
        """Say whether these rows are small enough to wait."""
        return rows.dtype == np.float32 and 0 < rows.nbytes <= _SMALL

    def add(self, batch: TakenBatch, rows: NDArray[Any]) -> None:
        """Let one wait."""
        if rows.shape[1:] != self._shape or len(self._waiting) >= _LATER:
            self.hash()
        self._shape = rows.shape[1:]
        # A copy: whoever called the model may write into its input afterwards.
        self._waiting.append((batch, rows.tobytes()))

    def hash(self) -> None:
        """Hash all that wait, and hand over their rows."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        rows = np.frombuffer(b"".join([raw for _, raw in waiting]), np.float32).reshape(-1, *self._shape)
        hashes = hash_rows(rows, self._seed)
        start = 0
        # Runs of batches that train, and of batches that do not, in the order in which they came.
        for trains, run in itertools.groupby(waiting, key=lambda entry: entry[0].trains):
            first = start
            for batch, _ in run:
                batch.hashes = hashes[start : start + batch.count]
                start += batch.count
            self._keep_rows(trains, hashes[first:start], rows[first:start])


class UndecidedBatches:
    """Batches of which it is not yet known whether they train, without their inputs."""

    def __init__(self) -> None:
        # Their inputs are kept elsewhere already.
        self.examples = Examples(1)
        self.sizes: Counter[int] = Counter()
        self.uses = 0

    def join(self, other: "UndecidedBatches") -> None:
        """Take all others in."""
        self.examples.join(other.examples)
        self.examples.count_uses(other.examples.uses)
        self.sizes += other.sizes
        self.uses += other.uses


class ModelBatches:
    """The batches of one model, and the examples that it trained on or evaluated.

    Parameters
    ----------
    seed
        Key of the hashes.
    keep
        Examples to keep of each role.
    known
        Hashes of examples that are kept from earlier calls.

    Attributes
    ----------
    trained, evaluated
        The examples.
    pending
        Batches of which it is not known what became of them.
    uses
        How often an example was trained on.
    sizes
        How many batches of each size were trained on.
    """

    def __init__(self, seed: int, keep: int, known: Collection[bytes]) -> None:
        self._seed = seed
        self.trained = Examples(keep, known=known)
        self.evaluated = Examples(keep, known=known)
        self.pending: list[TakenBatch] = []
        self.uses = 0
        self.sizes: Counter[int] = Counter()
        self._repeated = RepeatedInputs()
        self._small = SmallBatches(seed, lambda trains, hashes, rows: self._role(trains).keep_rows(hashes, rows))
        # What was decided, and is not counted yet: that waits for the hashes.
        self._decided: list[tuple[Examples, TakenBatch]] = []
        # What was differentiated, and waits with too many others for a step.
        self._waiting = UndecidedBatches()
        # What was differentiated and given up while no optimizer had made a step: a step by hand may lie between.
        self._given_up = UndecidedBatches()

    def start(
        self, rows: NDArray[Any], *, trains: bool, inputs: NDArray[Any] | None = None, keep: bool = True
    ) -> TakenBatch:
        """Note a batch that the model takes; ``inputs`` are what an example is known by, if not all of its row."""
        batch = TakenBatch(len(rows), trains)
        if trains and fields(rows):
            self._repeated.note(rows)
        if inputs is None and keep and self._small.takes(rows):
            self._small.add(batch, rows)
        else:
            # First what came before: the sample keeps the row that it was given first.
            self._small.hash()
            batch.hashes = hash_rows(rows if inputs is None else inputs, self._seed)
            if keep:
                self._role(trains).keep_rows(batch.hashes, rows)
        self.pending.append(batch)
        if len(self.pending) > _PENDING:
            self._make_room()
        return batch

    def _role(self, trains: bool) -> Examples:
        """Return where rows are kept before it is known what becomes of them."""
        return self.trained if trains else self.evaluated

    def _make_room(self) -> None:
        """Let go of the batch that is pending for the longest time."""
        oldest = self.pending.pop(0)
        if oldest.differentiated:
            self._add_undecided(self._waiting, oldest)
        else:
            self._settle(oldest, without_steps=False)

    @property
    def are_open(self) -> bool:
        """Whether a step, or gradients that are thrown away, would change what is known of any."""
        return bool(self.pending or self._waiting.sizes)

    @property
    def wait_for_a_step(self) -> bool:
        """Whether some were differentiated that no step of an optimizer followed."""
        undecided = self._given_up.sizes or self._waiting.sizes
        return bool(undecided) or any(batch.differentiated for batch in self.pending)

    def step(self) -> None:
        """Note that what was differentiated has changed the model."""
        if self._given_up.sizes or self._waiting.sizes:
            self._train_undecided(self._waiting)
            # A client that has an optimizer makes no steps by hand: what it gave up before, it gave up.
            self._given_up, self._waiting = UndecidedBatches(), UndecidedBatches()
        for batch in self._take_differentiated():
            self._train(batch)

    def discard(self, *, may_count: bool) -> None:
        """Note that gradients were thrown away; ``may_count``: a step by hand may have come before that."""
        discarded = self._take_differentiated()
        if may_count:
            self._given_up.join(self._waiting)
            for batch in discarded:
                # One that was given up before is among these already.
                if not batch.discarded:
                    self._add_undecided(self._given_up, batch)
        for batch in discarded:
            batch.differentiated, batch.discarded = False, True
        if self._waiting.sizes:
            self._waiting = UndecidedBatches()

    def end(self, *, without_steps: bool) -> None:
        """Settle what is open; ``without_steps``: what was differentiated counts though no optimizer made a step."""
        for batch in self.pending:
            # What was thrown away before is among what was given up.
            if not (batch.discarded and without_steps):
                self._settle(batch, without_steps=without_steps)
        self.pending.clear()
        if without_steps:
            self._train_undecided(self._given_up)
            self._train_undecided(self._waiting)
        self._given_up, self._waiting = UndecidedBatches(), UndecidedBatches()
        self._small.hash()
        self._count()

    def list_repeated(self) -> list[str]:
        """Name inputs that go by the place in a batch; then rows are no examples."""
        names = self._repeated.names()
        # A client of one batch takes the same examples each time, which are no more than its rows.
        return names if names and self.trained.total > self._repeated.rows else []

    def settle_stated(self, batch: TakenBatch) -> None:
        """Settle a batch of which the client itself says what became of it."""
        self.pending.remove(batch)
        self._settle(batch, without_steps=True)

    def _take_differentiated(self) -> list[TakenBatch]:
        # In most training loops it is one, and all: nothing needs to be looked through.
        if len(self.pending) == 1 and self.pending[0].differentiated:
            differentiated, self.pending = self.pending, []
            return differentiated
        differentiated = [batch for batch in self.pending if batch.differentiated]
        self.pending = [batch for batch in self.pending if not batch.differentiated]
        return differentiated

    def _settle(self, batch: TakenBatch, *, without_steps: bool) -> None:
        if not batch.differentiated:
            self._decide(self.evaluated, batch)
        elif without_steps:
            self._train(batch)

    def _train(self, batch: TakenBatch) -> None:
        self._decide(self.trained, batch)
        self.uses += batch.used
        self.sizes[batch.count] += 1

    def _train_undecided(self, batches: UndecidedBatches) -> None:
        if batches.sizes:
            # What was decided before comes first: labels that are known stay when others join.
            self._count()
            self.trained.join(batches.examples)
            self.trained.count_uses(batches.examples.uses)
            self.sizes += batches.sizes
            self.uses += batches.uses

    def _add_undecided(self, batches: UndecidedBatches, batch: TakenBatch) -> None:
        self._add_examples(batches.examples, batch)
        batches.sizes[batch.count] += 1
        batches.uses += batch.used

    def _decide(self, role: Examples, batch: TakenBatch) -> None:
        self._decided.append((role, batch))
        # What is hashed was too large to wait.
        if batch.hashes is not None or len(self._decided) >= _LATER:
            self._count()

    def _count(self) -> None:
        """Count the examples of all batches that are decided."""
        decided, self._decided = self._decided, []
        for role, batch in decided:
            self._add_examples(role, batch)

    def _add_examples(self, role: Examples, batch: TakenBatch) -> None:
        """Add a batch's examples to a role; what is held out was only evaluated on."""
        if batch.hashes is None:
            self._small.hash()
        hashes, labels = batch.hashes or (), batch.labels
        if batch.held_out is None:
            role.add(hashes, labels, batch.places if role is not self.evaluated else None)
            return
        for to, chosen in ((role, ~batch.held_out), (self.evaluated, batch.held_out)):
            rows = np.flatnonzero(chosen).tolist()
            labels_of_rows = None
            if labels is not None:
                labels_of_rows = [labels[row] for row in rows]
            to.add([hashes[row] for row in rows], labels_of_rows)
