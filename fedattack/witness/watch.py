"""One call of a client under watch: which models it called, on what, and what became of it.

Sources such as the hooks in PyTorch tell the watch that is current in their thread. No error of a source may reach the
run: it becomes a note.
"""

import itertools
import logging
import math
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.structured import LABELS, SEPARATOR, fields
from fedattack.witness.sample import Examples, Label, hash_rows
from fedattack.witness.seen import WitnessedModel

KEEP = 1000
"""Examples of each role that are kept of a client."""

MODELS = 32
"""Models that are watched in one call of a client."""

START_BYTES = 2**28
"""Bytes of a model's state up to which it is kept as it was before training."""

_PASSES = 1024

OUTPUTS = 2**20
"""Numbers that a model returned, up to which the latest are kept until the call of the client ends."""

MADE = 2**18
"""Rows that one model made for another, up to which they are known once their outputs are not kept any more."""

_SMALL = 2**16
"""Bytes of a batch up to which it is copied, and hashed together with others: much of the time is spent once a call."""

_LATER = 64
"""Batches that are hashed together; with :data:`_SMALL` a bound of their memory."""

_RECENT = 64

# Batches after which numbers that are the same in all of them are no part of the examples.
_REPEATS = 3

_LOADED = 4

_DRAWN = 4096
"""Batches between two steps of which it is known how they were drawn."""

_log = logging.getLogger("fedattack")

Arrays = list[NDArray[Any]]
State = list[tuple[str, NDArray[Any]]]


def _nothing() -> None:
    """Stand for what is gone."""


@dataclass(frozen=True)
class HoldOut:
    """Which examples a client is kept from training on, so that there are some that nobody trained on.

    Attributes
    ----------
    share
        Of all examples, between 0 and 1.
    seed
        Another seed holds out others.
    """

    share: float
    seed: int = 0

    def choose(self, hashes: Sequence[bytes]) -> NDArray[np.bool_]:
        """Return (n,): which of the examples with these hashes are held out; the same for all clients and rounds."""
        # A witness keeps the examples with the smallest hashes: these must not be the ones that are held out.
        draws = [xxhash.xxh3_64_intdigest(one, self.seed) for one in hashes]
        return np.array(draws, dtype=np.uint64) < np.uint64(int(self.share * 2**64))


@dataclass(eq=False, slots=True)
class Pass:
    """One batch on its way through a model.

    Attributes
    ----------
    model
        Which.
    count
        Number of its examples.
    labels
        (n,), as soon as a loss shows them.
    trains
        Whether it may lead to a step of an optimizer.
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
    output, number
        What gives the model's outputs while they live, and their number in the graph of gradients; -1 without one.
    """

    model: "SeenModel"
    count: int
    trains: bool
    labels: Sequence[Label] | None = None
    differentiated: bool = False
    discarded: bool = False
    hashes: Sequence[bytes] | None = None
    held_out: NDArray[np.bool_] | None = None
    places: Sequence[int] | None = None
    output: Callable[[], object] = _nothing
    number: int = -1

    @property
    def used(self) -> int:
        """How many of its examples are not held out."""
        return self.count if self.held_out is None else self.count - int(self.held_out.sum())

    def come_back(self, gradient: Any) -> None:
        """Note that a gradient came back; as a hook, it leaves the gradient as it is."""
        if not self.differentiated:
            self.differentiated = True
            self.model.note_labels(self.labels)
            if self.discarded:
                self.model.pending.append(self)


@dataclass(frozen=True)
class _Output:
    """What a model returned for a batch: its shape, and what gives the numbers."""

    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]

    @property
    def count(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class FittedEstimator:
    """An estimator that was fitted and is no model, what gives its weights, and the arrays that it has of examples."""

    estimator: object
    weights: Callable[[], State]
    statistics: Callable[[], State]

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self.estimator).__name__


class Batches:
    """Batches of which it is not yet known whether they train, without their inputs."""

    def __init__(self) -> None:
        self.examples = Examples(1)
        self.sizes: Counter[int] = Counter()
        self.uses = 0

    def add(self, one: Pass) -> None:
        """Take one in."""
        one.model.add_to(self.examples, one)
        self.sizes[one.count] += 1
        self.uses += one.used

    def join(self, other: "Batches") -> None:
        """Take all others in."""
        self.examples.join(other.examples)
        self.sizes += other.sizes
        self.uses += other.uses


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
    received
        Whether it was called with the very state that the client had received.
    state, describe
        What gives its state, and the model as a witness notes it; ``None`` where nothing does.
    private
        What trains it with differential privacy, by the id of the optimizer that makes the steps.
    own_loss
        What the loss is that it returns itself; ``None`` if it was not seen to return one.
    learns
        Which entries of its state training may change; all where nothing says so.
    stepwise
        Whether its examples are all that its steps take; see :mod:`fedattack.witness.step`.
    """

    def __init__(self, watch: "CallWatch", model: object, name: str, signature: object) -> None:
        self.model = model
        self.name = name
        self.signature = signature
        self.received = False
        self.state: Callable[[], State] | None = None
        self.describe: Callable[[SeenModel], WitnessedModel] | None = None
        self.learns: Callable[[], Collection[str]] | None = None
        # Its last outputs, the latest last, and how many numbers they have; by width, hashes of rows of earlier ones.
        self._outputs: deque[_Output] = deque()
        self._count_of_outputs = 0
        self._let_go: dict[int, set[bytes]] = {}
        self.own_loss: str | None = None
        self.stepwise = False
        self._watch = watch
        self._has_labels = False
        self._start: State = []
        # What is known to move it, or to throw its gradients away.
        self.moved_by: dict[int, weakref.ref[Any]] = {}
        self._empty()
        self._seed = watch.seed
        self.steps = 0
        self.private: dict[int, PrivateTraining] = {}
        self.optimizers: dict[tuple[str, float | None, float, float], None] = {}
        self.losses: dict[str, str | None] = {}
        self.input_shape: tuple[int, ...] = ()
        self.classes = 0

    @property
    def kind(self) -> Any:
        """What models of the same kind have in common in all calls of a client, each with classes of its own."""
        return repr(self.signature)

    @property
    def are_compared(self) -> bool:
        """Whether a loss holds its outputs against each other, so that an example has no label."""
        return self.kind in self._watch.compared

    def _empty(self) -> None:
        """Begin without any example."""
        self.trained = Examples(self._watch.keep, known=self._watch.known)
        self.evaluated = Examples(self._watch.keep, known=self._watch.known)
        self.pending: list[Pass] = []
        # Inputs of one number a row that are the same in all batches of one size, and how many batches there were.
        self._repeated: dict[str, bytes] = {}
        self._batches, self._width = 0, 0
        # Small batches that are not hashed yet, as float32; and passes that are decided, but not counted yet.
        self._unhashed: list[tuple[Pass, bytes]] = []
        self._decided: list[tuple[Examples, Pass]] = []
        # What was differentiated, and waits with too many others for a step.
        self.waiting = Batches()
        # What was differentiated and given up while no optimizer had made a step: a step by hand may lie between.
        self.given_up = Batches()
        self.uses = 0
        self.batch_sizes: Counter[int] = Counter()

    def note_labels(self, labels: Sequence[Label] | None) -> None:
        """Note whether the labels of what is trained are seen; without any, steps are read from now on."""
        if labels is not None:
            self._has_labels = True
        elif not self._has_labels and not self.stepwise:
            self._watch.read_steps(self)

    def note_output(self, shape: tuple[int, ...], read: Callable[[], NDArray[Any]]) -> None:
        """Keep what it returned, and let go of what it returned long ago."""
        output = _Output(shape, read)
        self._outputs.append(output)
        self._count_of_outputs += output.count
        while self._count_of_outputs > OUTPUTS:
            oldest = self._outputs.popleft()
            self._count_of_outputs -= oldest.count
            made = self._let_go.setdefault(oldest.width, set())
            if len(made) < MADE and self._watch.is_taken(oldest.width, self):
                made.update(hash_rows(oldest.read(), self._seed))

    def outputs(self) -> Arrays:
        """Return what it returned last, batch by batch."""
        return [output.read() for output in self._outputs]

    def hash_outputs(self, width: int) -> set[bytes]:
        """Return the hashes of the rows that it returned of so many numbers."""
        hashes = set(self._let_go.get(width, ()))
        for output in self._outputs:
            if output.width == width:
                hashes.update(hash_rows(output.read(), self._seed))
        return hashes

    def leave_out_made(self, maker: "SeenModel", made: Collection[bytes]) -> None:
        """Leave out inputs that another model of the client made, if there are others, which are examples.

        Where all are made, such as features below a head, they stand for examples.
        """
        if not any(key not in made for key in self.trained.labels):
            return
        count = self.trained.leave_out(made)
        count += self.evaluated.leave_out(made)
        if not count:
            return
        # Each is made once and taken once.
        self.uses = max(0, self.uses - count)
        self._watch.note(
            f"{self.name} takes what {maker.name} makes beside examples, as of a generator: that is left out, since "
            "nobody holds it"
        )
        maker.leave_out_noise()

    def leave_out_noise(self) -> None:
        """Leave out what a generator takes, if these are rows of numbers of which none came twice."""
        if len(self.input_shape) == 1 and self.uses <= len(self.trained.labels):
            self._empty()

    def list_labels(self) -> NDArray[Any]:
        """Return (n,): the labels that were seen of examples since the last step."""
        labels: list[Label] = []
        for one in self.pending:
            labels += [label for label in one.labels or () if label is not None]
        return np.array(labels)

    def take_steps(self) -> None:
        """Begin anew, with examples that are all that a step takes."""
        self._empty()
        self.stepwise = True

    def note_start(self, received: Sequence[Arrays]) -> None:
        """Keep the state as it is now, to which the state after training is compared.

        Arrays that the client received are there already. Of others, what is larger than :data:`START_BYTES` in all is
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

    def start(self, rows: NDArray[Any], *, trains: bool, inputs: NDArray[Any] | None = None, keep: bool = True) -> Pass:
        """Note a batch that the model takes; ``inputs`` are what an example is known by, if not all of its row."""
        begun = Pass(self, len(rows), trains)
        shape = rows.shape[1:]
        if trains and fields(rows):
            self._note_repeated(rows)
        if inputs is None and keep and rows.dtype == np.float32 and 0 < rows.nbytes <= _SMALL:
            if shape != self.input_shape or len(self._unhashed) >= _LATER:
                self._hash()
            # A copy: whoever called the model may write into its input afterwards.
            self._unhashed.append((begun, rows.tobytes()))
        else:
            self._hash()
            begun.hashes = hash_rows(rows if inputs is None else inputs, self._seed)
            if keep:
                self._role(begun).keep_rows(begun.hashes, rows)
        self.input_shape = shape
        self.pending.append(begun)
        if len(self.pending) > _PASSES:
            oldest = self.pending.pop(0)
            if oldest.differentiated:
                self.waiting.add(oldest)
            else:
                self._settle(oldest, False)
        return begun

    def _note_repeated(self, rows: NDArray[Any]) -> None:
        """Note which inputs of one number a row are the same in all batches, row by row, while others differ."""
        now = {}
        for name in fields(rows):
            numbers = rows[name]
            is_label = name.split(SEPARATOR)[-1] in LABELS or name.startswith("met")
            if numbers.ndim == 1 and not is_label and (numbers != numbers[0]).any():
                now[name] = numbers.tobytes()
        if not self._batches:
            self._repeated, self._width = now, len(rows)
        if len(rows) == self._width:
            self._repeated = {name: numbers for name, numbers in self._repeated.items() if now.get(name) == numbers}
            self._batches += 1

    def _refuse_repeated(self) -> None:
        """Take no rows for examples where an input goes by the place in a batch, such as a list of classes."""
        if self._repeated and self._batches >= _REPEATS and self.trained.total > self._width:
            names = short(", ".join(self._repeated), 80)
            self._watch.note(
                f"{self.name} takes {names}, the same in each batch and as long as one: rows are no examples, and are "
                "not covered; take batches of another size"
            )
            self._empty()

    def hashes_of(self, one: Pass) -> Sequence[bytes]:
        """Return the hashes (n,) of a batch's examples."""
        if one.hashes is None:
            self._hash()
        return one.hashes or ()

    def _role(self, one: Pass) -> Examples:
        return self.trained if one.trains else self.evaluated

    def _hash(self) -> None:
        """Hash the small batches together, and keep those inputs that belong to the sample."""
        batches, self._unhashed = self._unhashed, []
        if not batches:
            return
        rows = np.frombuffer(b"".join([raw for _, raw in batches]), np.float32).reshape(-1, *self.input_shape)
        hashes = hash_rows(rows, self._seed)
        start = 0
        for _, group in itertools.groupby(batches, key=lambda batch: batch[0].trains):
            first = start
            for one, _ in group:
                one.hashes = hashes[start : start + one.count]
                start += one.count
            self._role(one).keep_rows(hashes[first:start], rows[first:start])

    def _count(self) -> None:
        """Count the examples of all passes that are decided."""
        decided, self._decided = self._decided, []
        for role, one in decided:
            self.add_to(role, one)

    def add_to(self, role: Examples, one: Pass) -> None:
        """Add a batch's examples to a role; what is held out was only evaluated on."""
        hashes, labels = self.hashes_of(one), one.labels
        if one.held_out is None:
            role.add(hashes, labels, one.places if role is not self.evaluated else None)
            return
        for to, chosen in ((role, ~one.held_out), (self.evaluated, one.held_out)):
            rows = np.flatnonzero(chosen).tolist()
            own = None
            if labels is not None:
                own = [labels[row] for row in rows]
            to.add([hashes[row] for row in rows], own)

    def step(self) -> None:
        """Note that what was differentiated has changed the model."""
        self.steps += 1
        if self.given_up.sizes or self.waiting.sizes:
            self._train_all(self.waiting)
            self.given_up, self.waiting = Batches(), Batches()
        for one in self._take_differentiated():
            self._train(one)

    def discard(self) -> None:
        """Note that gradients were thrown away."""
        done = self._take_differentiated()
        # What precedes the first step may be a step by hand.
        if not self.steps:
            self.given_up.join(self.waiting)
            for one in done:
                if not one.discarded:
                    self.given_up.add(one)
        for one in done:
            one.differentiated, one.discarded = False, True
        if self.waiting.sizes:
            self.waiting = Batches()

    def end(self, *, without_steps: bool) -> None:
        """Settle what is open; ``without_steps``: what was differentiated counts though no optimizer made a step."""
        for one in self.pending:
            # What was thrown away before is among what was given up.
            if not (one.discarded and without_steps):
                self._settle(one, without_steps)
        self.pending.clear()
        if without_steps:
            self._train_all(self.given_up)
            self._train_all(self.waiting)
        self.given_up, self.waiting = Batches(), Batches()
        self._hash()
        self._count()
        self._refuse_repeated()
        # Rows were kept before it was known what would become of them.
        self.evaluated.take_rows(self.trained)

    def _take_differentiated(self) -> list[Pass]:
        if len(self.pending) == 1 and self.pending[0].differentiated:
            done, self.pending = self.pending, []
            return done
        done = [one for one in self.pending if one.differentiated]
        self.pending = [one for one in self.pending if not one.differentiated]
        return done

    def _settle(self, one: Pass, without_steps: bool) -> None:
        if not one.differentiated:
            self._decide(self.evaluated, one)
        elif without_steps:
            self._train(one)

    def _train(self, one: Pass) -> None:
        self._decide(self.trained, one)
        self.uses += one.used
        self.batch_sizes[one.count] += 1

    def _decide(self, role: Examples, one: Pass) -> None:
        self._decided.append((role, one))
        # What is hashed was too large to wait.
        if one.hashes is not None or len(self._decided) >= _LATER:
            self._count()

    def _train_all(self, batches: "Batches") -> None:
        if batches.sizes:
            self._count()
            self.trained.join(batches.examples)
            self.batch_sizes += batches.sizes
            self.uses += batches.uses


@dataclass(frozen=True, eq=False, slots=True)
class DrawnBatch:
    """A batch that a loader gave.

    Attributes
    ----------
    number
        In the order in which batches came.
    dataset, sampler
        What it is of, and what draws its indices.
    turn
        The pass over the data; another object for another one.
    count
        Number of its examples.
    """

    number: int
    dataset: object
    sampler: object
    turn: object
    count: int


class PrivateTraining(Protocol):
    """What a source knows of training with differential privacy, by one optimizer in one call of a client."""

    def note_step(self, drawn: Sequence[DrawnBatch]) -> None:
        """Note a step; ``drawn`` are the batches that came last."""

    def keeps_gradients(self) -> bool:
        """Whether gradients stay where the client throws them away, until its next step."""

    def read_claim(self) -> dict[str, Any]:
        """Return the keys of a privacy claim about one round; none where no step was made."""


class Local(threading.local):
    """What is under way in one thread of a client.

    Attributes
    ----------
    open
        The model that is being called, of which other models may be parts.
    taken
        What a source notes of that call, if it waits for its end.
    estimator
        The same for scikit-learn, which may itself call a model of PyTorch.
    recent
        What a source notes of models that were called before.
    loaded
        What loaders gave last: places in their datasets, and the tensors of a batch.
    drawn
        The same batches, as a privacy claim asks about them.
    reader
        What reads the steps of this thread, while it may be needed.
    has_read
        Whether there was one.
    """

    open: object = None
    estimator: object = None
    taken: Any = None
    reader: Any = None
    has_read: bool = False

    def __init__(self) -> None:
        self.recent: deque[Any] = deque(maxlen=_RECENT)
        self.loaded: deque[tuple[Sequence[int], Sequence[Any]]] = deque(maxlen=_LOADED)
        self.drawn: deque[DrawnBatch] = deque(maxlen=_DRAWN)
        self.batches = itertools.count()


@dataclass(eq=False)
class CallWatch:
    """What is seen in one call of a client.

    Attributes
    ----------
    seed
        Key of the hashes; the same for all clients, or else nobody can tell who holds the same example.
    keep
        Examples to keep of each role.
    known
        Hashes of examples that are kept from earlier calls.
    received
        What gives the arrays of each model that the client was sent.
    stated
        What was stated by :func:`trained_on` and :func:`evaluated_on`.
    private_by
        By the id of an optimizer that a private one calls, what notes its steps.
    by_steps
        By the signature of a model whose labels are not seen, the places of what its training steps take; none yet
        where no step was read. It outlives the call.
    compared
        The signatures of models whose outputs a loss holds against each other. It outlives the call, too.
    hold_out
        What the client is kept from training on; ``None`` for nothing.
    datasets
        Those that loaders took examples from.
    fitted
        By their ids, estimators that were fitted and are no models: without weights, classes and values to predict.
    """

    seed: int = 0
    keep: int = KEEP
    known: Collection[bytes] = ()
    received: Callable[[], list[Arrays]] = list
    models: dict[int, SeenModel] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    stated: SeenModel | None = None
    steps: int = 0
    private_by: dict[int, PrivateTraining] = field(default_factory=dict)
    by_steps: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    compared: set[Any] = field(default_factory=set)
    hold_out: HoldOut | None = None
    datasets: list[Any] = field(default_factory=list)
    fitted: dict[int, FittedEstimator] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    local: Local = field(default_factory=Local)

    def note_held_out(self) -> None:
        """Note that the run is another than without."""
        if self.hold_out is not None:
            self.note(
                f"a share of {self.hold_out.share:g} of its examples was kept from its training, as --hold-out says, "
                "so that there are some that nobody trained on: the run is not the one that its owner makes"
            )

    def note(self, text: str) -> None:
        """Note what a reader must know, once."""
        self.notes[short(text)] = None

    def guard(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a source; its error becomes a note."""
        try:
            with self.lock:
                return function(self, *arguments)
        except Exception as cause:
            self.note_error(what, cause)
            return None

    def note_error(self, what: str, cause: Exception) -> None:
        """Note that something was not seen, by the kind of the error: its text may hold data of the client's."""
        kind = type(cause).__name__
        own = isinstance(cause, FedAttackError)
        self.note(f"{what} was not seen ({short(f'{kind}: {cause}', 120) if own else kind})")
        _log.info("fedattack.witness: %s was not seen (%s: %s)", what, kind, cause)

    def read_steps(self, model: SeenModel) -> None:
        """Read whole steps of such models from their next call on."""
        self.by_steps.setdefault(model.kind, ())

    def model_of(self, model: object, make: Callable[[], SeenModel]) -> SeenModel | None:
        """Return what was seen of a model, or ``None`` if there are too many."""
        known = self.models.get(id(model))
        if known is None:
            if len(self.models) >= MODELS:
                self.note(f"the client called more than {MODELS} models; the others were not watched")
                return None
            known = self.models[id(model)] = make()
            self.guard("the state of a model before training", _note_start, known)
        return known

    def state(self, x: NDArray[Any], labels: Sequence[Label] | None, *, trained: bool) -> None:
        """Note examples that the client names itself."""
        if self.hold_out is not None:
            self.hold_out = None
            self.note("the client states what it trains on: nothing of that is held out")
        if self.stated is None:
            self.stated = SeenModel(self, None, "the model", "stated")
        model = self.stated
        model.start(x, trains=trained)
        begun = model.pending.pop()
        begun.labels, begun.differentiated = labels, trained
        model._settle(begun, True)

    def end(self, *, without_steps: bool) -> None:
        """Settle what is open in all models."""
        for model in [*self.models.values(), *([self.stated] if self.stated else [])]:
            open_ones = model.given_up.sizes or model.waiting.sizes
            if without_steps and (open_ones or any(one.differentiated for one in model.pending)):
                self.note(
                    f"no optimizer of PyTorch made a step: examples count as trained whose loss {model.name} was "
                    "differentiated by"
                )
            self.guard("what became of the last batches", _end, model, without_steps)
        models = [*self.models.values()]
        for model in models:
            for maker in models:
                if maker is not model and model.input_shape:
                    self.guard("what one model made for another", _leave_out_made, model, maker)

    def is_taken(self, width: int, maker: SeenModel) -> bool:
        """Say whether a model besides another one takes rows of so many numbers."""
        for model in self.models.values():
            if model is not maker and model.input_shape and math.prod(model.input_shape) == width:
                return True
        return False


def _note_start(watch: CallWatch, model: SeenModel) -> None:
    model.note_start(watch.received())


def _leave_out_made(watch: CallWatch, model: SeenModel, maker: SeenModel) -> None:
    if made := maker.hash_outputs(math.prod(model.input_shape)):
        model.leave_out_made(maker, made)


def _end(watch: CallWatch, model: SeenModel, without_steps: bool) -> None:
    model.end(without_steps=without_steps)


_lock = threading.Lock()
_watches: list[CallWatch] = []


class _Stack(threading.local):
    def __init__(self) -> None:
        self.stack: list[CallWatch | None] = []


_local = _Stack()


def current() -> CallWatch | None:
    """Return the watch that this thread's doings belong to."""
    stack = _local.stack
    if stack:
        return stack[-1]
    # A thread that the client started itself.
    watches = _watches
    if len(watches) == 1:
        return watches[0]
    for watch in watches:
        watch.note("a thread of which client it was is not known did something, which was not watched")
    return None


def is_watched() -> bool:
    """Say whether what this very thread does is watched already."""
    return _local.stack[-1:] not in ([], [None])


@contextmanager
def watching(watch: CallWatch) -> Iterator[CallWatch]:
    """Make a watch the current one of this thread, and of threads that are started meanwhile."""
    with _lock:
        _watches.append(watch)
    try:
        with _stack(watch):
            yield watch
    finally:
        if watch.local.reader is not None:
            watch.guard("the last step", _end_reading)
        with _lock:
            _watches.remove(watch)


def _end_reading(watch: CallWatch) -> None:
    watch.local.reader.end_reading()


@contextmanager
def pause_watching() -> Iterator[None]:
    """Do something in this thread that nobody watches."""
    with _stack(None):
        yield


@contextmanager
def _stack(watch: CallWatch | None) -> Iterator[None]:
    _local.stack.append(watch)
    try:
        yield
    finally:
        _local.stack.pop()


def is_paused() -> bool:
    """Say whether what this thread does is to be noted by nobody."""
    return _local.stack[-1:] == [None]


def _forget() -> None:
    """In a forked process, such as a DataLoader's worker, nobody watches."""
    global _lock
    _lock = threading.Lock()
    _watches.clear()
    _local.stack = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def trained_on(x: Any, y: Any = None) -> None:
    """State on which examples a client trains, where no framework is watched; nothing happens where nobody watches.

    Parameters
    ----------
    x
        (n, …): inputs as the model takes them; whatever ``numpy.asarray`` takes.
    y
        (n,): their labels, whole numbers for classes.
    """
    _note_stated(x, y, True)


def evaluated_on(x: Any, y: Any = None) -> None:
    """State which examples a client only evaluates; see :func:`trained_on`."""
    _note_stated(x, y, False)


def _note_stated(x: Any, y: Any, trained: bool) -> None:
    watch = current()
    if watch is not None:
        watch.guard("what trained_on or evaluated_on was given", _state, x, y, trained)


def _state(watch: CallWatch, x: Any, y: Any, trained: bool) -> None:
    rows = plain(x)
    if rows.ndim < 2:
        raise DataError(f"expected one row an example, got an array of shape {rows.shape}")
    labels = None if y is None else labels_of(plain(y), len(rows))
    if y is not None and labels is None:
        watch.note("the labels that trained_on or evaluated_on was given are not one number an example: left out")
    watch.state(rows, labels, trained=trained)


def plain(values: Any) -> NDArray[Any]:
    """Return numbers as an array.

    Raises
    ------
    DataError
        If they are no dense numbers.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise DataError(f"expected numbers, got {type(values).__name__} of {array.dtype}")
    return array


def labels_of(values: NDArray[Any], count: int, *, classes: bool = False) -> Sequence[Label] | None:
    """Return a label for each example, or ``None`` if there is not one number for each.

    Parameters
    ----------
    values
        Whole numbers are classes, others are what a regression is to predict.
    count
        Number of examples.
    classes
        Whether whole numbers of floating type are classes, too.
    """
    if values.size != count or len(values) != count:
        return None
    flat = values.reshape(-1)
    if flat.dtype.kind in "biu" or (classes and bool((flat == np.floor(flat)).all())):
        labels: list[int] = flat.astype(np.int64).tolist()
        return labels
    if not np.isfinite(flat).all():
        return None
    reals: list[float] = flat.astype(np.float64).tolist()
    return reals


def same(one: Arrays, other: Arrays) -> bool:
    """Say whether a state is another, bit for bit and in the order of its arrays, once that has the types of the first.

    Under SecAgg+ clients are sent float64, which their models round.
    """
    if [array.shape for array in one] != [array.shape for array in other]:
        return False
    return all(a.tobytes() == b.astype(a.dtype, copy=False).tobytes() for a, b in zip(one, other, strict=True))


def places_in(whole: Arrays, part: Arrays) -> list[int] | None:
    """Return where the arrays of a part stand in a state, bit for bit and in their order; ``None`` if they do not.

    What a client exchanges may be a part of its model, such as an adapter.
    """
    found, place = [], 0
    for array in part:
        while place < len(whole) and not same([whole[place]], [array]):
            place += 1
        if place == len(whole):
            return None
        found.append(place)
        place += 1
    return found or None
