"""A model that a client called on its own: what it is, what it took, and what it returned."""

import math
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import short
from fedattack.base.structured import list_searchable, stack_examples
from fedattack.witness.arrays import Arrays, State, same
from fedattack.witness.batches import ModelBatches, TakenBatch
from fedattack.witness.drawn import PrivateTraining
from fedattack.witness.outputs import ModelOutputs
from fedattack.witness.sample import Label, hash_rows
from fedattack.witness.seen import ONLY_APP, WitnessedModel

START_BYTES = 2**28
"""Bytes of a model's state up to which it is kept as it was before training."""


class Watcher(Protocol):
    """What a model needs of the watch in whose call it is seen; see :class:`fedattack.witness.watch.CallWatch`."""

    seed: int
    keep: int
    known: Collection[bytes]
    compared: set[Any]
    labelled: set[Any]

    def note(self, text: str) -> None:
        """Note what a reader must know."""

    def read_steps(self, model: "SeenModel") -> None:
        """Read whole steps of such models from their next call on."""

    def is_taken(self, width: int, maker: "SeenModel") -> bool:
        """Say whether a model besides another one takes rows of so many numbers."""


class SeenModel:
    """A model that was called on its own, not by another.

    Attributes
    ----------
    model
        The object itself, held until the call of the client ends.
    name
        Of its class.
    signature
        What models of the same kind have in common.
    batches
        What it took, and what became of that.
    outputs
        What it returned last.
    received
        Whether it was called with the very state that the client had received.
    state, describe
        What gives its state, and the model as a witness notes it; ``None`` where nothing does.
    steps, optimizers
        Steps of optimizers that moved it, and the optimizers' settings: name, learning rate, momentum, weight decay.
    private
        What trains it with differential privacy, by the id of the optimizer that makes the steps.
    moved_by
        What is known to move it, or to throw its gradients away, by its id.
    losses
        The losses that its outputs went into, and what fedattack calls them, if anything.
    takes_labels
        Whether one of them takes labels, and stands first.
    own_loss
        What the loss is that it returns itself; ``None`` if it was not seen to return one.
    learns
        Which entries of its state training may change; all where nothing says so.
    makes_for
        The models that take what it makes beside examples, as a discriminator does.
    is_conditional
        Whether it is one of two models of which one makes, for a label or the like, what the other takes.
    stepwise
        Whether its examples are all that its steps take; see :mod:`fedattack.witness.step`.
    input_shape, widths, classes
        Shape of one example, how many numbers each array of floating-point numbers has in it, and width of the output.
    """

    def __init__(self, watch: Watcher, model: object, name: str, signature: object) -> None:
        self.model = model
        self.name = name
        self.signature = signature
        self.received = False
        self.state: Callable[[], State] | None = None
        self.describe: Callable[[SeenModel], WitnessedModel] | None = None
        self.learns: Callable[[], Collection[str]] | None = None
        self.own_loss: str | None = None
        self.stepwise = False
        self.moved_by: dict[int, weakref.ref[Any]] = {}
        self.steps = 0
        self.private: dict[int, PrivateTraining] = {}
        self.optimizers: dict[tuple[str, float | None, float, float], None] = {}
        self.losses: dict[str, str | None] = {}
        self.makes_for: list[SeenModel] = []
        self.takes_labels = False
        self.is_conditional = False
        self.input_shape: tuple[int, ...] = ()
        self.widths: set[int] = set()
        self.classes = 0
        self._watch = watch
        self._start: State = []
        self.batches = self._make_batches()
        self.outputs = ModelOutputs(watch.seed, lambda width: watch.is_taken(width, self))

    def _make_batches(self) -> ModelBatches:
        return ModelBatches(self._watch.seed, self._watch.keep, self._watch.known)

    @property
    def kind(self) -> Any:
        """What models of the same kind have in common in all calls of a client, each with classes of its own."""
        # In a simulation each call gets another copy of the app, in which the class is another object.
        return repr(self.signature)

    @property
    def are_compared(self) -> bool:
        """Whether a loss holds its outputs against each other, so that an example has no label."""
        return self.kind in self._watch.compared

    def start(
        self, rows: NDArray[Any], *, trains: bool, inputs: NDArray[Any] | None = None, keep: bool = True
    ) -> TakenBatch:
        """Note a batch that the model takes; ``inputs`` are what an example is known by, if not all of its row."""
        batch = self.batches.start(rows, trains=trains, inputs=inputs, keep=keep)
        self.input_shape = rows.shape[1:]
        self.widths = {math.prod(rows.dtype[place].shape) for place in list_searchable(rows)}
        if self.input_shape:
            self.widths = {math.prod(self.input_shape)}
        return batch

    def note_gradient(self, batch: TakenBatch) -> None:
        """Note that a gradient came back through the outputs of a batch."""
        if batch.differentiated:
            return
        batch.differentiated = True
        self.note_labels(batch.labels)
        # What was thrown away is pending no more, and now it may be again.
        if batch.discarded:
            self.batches.pending.append(batch)

    def note_labels(self, labels: Sequence[Label] | None) -> None:
        """Note whether the labels of what is trained are seen; without any, steps are read from now on."""
        if labels is not None:
            self._watch.labelled.add(self.kind)
        elif self.kind not in self._watch.labelled and not self.stepwise:
            self._watch.read_steps(self)

    def forget(self, batch: TakenBatch) -> None:
        """Take a batch for none of examples."""
        if batch in self.batches.pending:
            self.batches.pending.remove(batch)

    def take_steps(self) -> None:
        """Begin anew, with examples that are all that a step takes."""
        self.batches = self._make_batches()
        self.stepwise = True

    def step(self) -> None:
        """Note that what was differentiated has changed the model."""
        self.steps += 1
        self.batches.step()

    def discard(self) -> None:
        """Note that gradients were thrown away."""
        # What precedes the first step of an optimizer may be a step by hand.
        self.batches.discard(may_count=not self.steps)

    def end(self, *, without_steps: bool) -> None:
        """Settle what is open; ``without_steps``: what was differentiated counts though no optimizer made a step."""
        self.batches.end(without_steps=without_steps)
        repeated = self.batches.list_repeated()
        if repeated:
            self._watch.note(
                f"{self.name} takes {short(', '.join(repeated), 80)}, the same in each batch and as long as a "
                "batch: rows are not examples, and are not covered; use another batch size"
            )
            self.batches = self._make_batches()
        # Rows were kept before it was known what would become of them.
        self.batches.evaluated.take_rows(self.batches.trained)

    def leave_out_made(self, maker: "SeenModel", made: Collection[bytes]) -> None:
        """Leave out inputs that another model of the client made, if there are others, which are examples.

        Where all are made, such as features below a head, they stand for examples.
        """
        batches = self.batches
        if not any(key not in made for key in batches.trained.labels):
            return
        count = batches.trained.leave_out(made)
        count += batches.evaluated.leave_out(made)
        if not count:
            return
        # Each is made once and taken once.
        batches.uses = max(0, batches.uses - count)
        self._watch.note(
            f"{self.name} takes what {maker.name} makes, such as a generator's output, along with examples: that "
            "is left out, since nobody holds it"
        )
        maker.note_made_for(self)

    def note_made_for(self, model: "SeenModel") -> None:
        """Note a model that takes what this one makes, as a discriminator takes what a generator makes of noise."""
        if model not in self.makes_for:
            self.makes_for.append(model)
        self.leave_out_noise()

    def leave_out_both(self, maker: "SeenModel") -> None:
        """Leave out all that two models take, if one makes for the other what stands for an example beside a label.

        Of such a pair nobody tells examples from what is made. It is asked before batches are settled.
        """
        if self.input_shape:
            return
        kept = [*self.batches.trained.rows.items.values()]
        # A head that takes features and more has them all of the model below.
        if self.classes > 1 or not kept:
            return
        rows = stack_examples(kept)
        for place in list_searchable(rows):
            made = maker.outputs.hash_rows(math.prod(rows.dtype[place].shape))
            is_made = [key in made for key in hash_rows(rows[place], self._watch.seed)]
            if any(is_made) and not all(is_made):
                self.batches, maker.batches = self._make_batches(), maker._make_batches()
                self.is_conditional = maker.is_conditional = True
                self._watch.note(
                    f"{self.name} takes what {maker.name} makes together with more, such as a label: nobody can tell "
                    "which of that are examples, and what is made for each label is not asked about; state examples by "
                    f"--examples module:function: {ONLY_APP}"
                )
                return

    def leave_out_noise(self) -> None:
        """Leave out what a generator takes, if these are rows of numbers of which none came twice."""
        # Noise is drawn anew each time.
        if len(self.input_shape) == 1 and self.batches.uses <= len(self.batches.trained.labels):
            self.batches = self._make_batches()

    def list_labels(self) -> NDArray[Any]:
        """Return (n,): the labels that were seen of examples since the last step."""
        labels: list[Label] = []
        for batch in self.batches.pending:
            labels += [label for label in batch.labels or () if label is not None]
        return np.array(labels)

    def note_start(self, received: Sequence[Arrays]) -> None:
        """Keep the state as it is now, to which the state after training is compared.

        Arrays that the client received are there already. Others that are larger than :data:`START_BYTES` in all are
        not kept.
        """
        now = self.state() if self.state is not None else []
        arrays = [array for _, array in now]
        for state in received:
            if same(arrays, state):
                self._start = [(name, array) for (name, _), array in zip(now, state, strict=True)]
                return
        if sum(array.nbytes for array in arrays) <= START_BYTES:
            self._start = [(name, array.copy()) for name, array in now]

    def learned(self) -> set[str]:
        """Return what training changes of its state: what it may change now, and what it has changed since the start.

        What is trained first may be frozen when the call ends, such as a head of a client's own.
        """
        now = self.state() if self.state is not None else []
        names, before = {name for name, _ in now}, dict(self._start)
        moved = {name for name, array in now if name in before and not same([before[name]], [array])}
        return moved | (names if self.learns is None else names & {*self.learns()})

    def state_at_start(self) -> State:
        """Return the state before training; nothing if it was not kept."""
        return self._start
