"""One call of a client under watch: which models it called, on what, and what became of it.

Sources such as the hooks in PyTorch tell the watch that is current in their thread; see
:mod:`fedattack.witness.current`. No error of a source may reach the run: it becomes a note.
"""

import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fedattack.base.errors import FedAttackError, short
from fedattack.witness.arrays import Arrays, State
from fedattack.witness.drawn import DrawnBatch, PrivateTraining
from fedattack.witness.hold_out import HoldOut
from fedattack.witness.sample import Label
from fedattack.witness.seen_model import SeenModel

KEEP = 1000
"""Examples of each role that are kept of a client."""

MODELS = 32
"""Models that are watched in one call of a client."""

_RECENT = 64
_LOADED = 4

_DRAWN = 4096
"""Batches between two steps of which it is known how they were drawn."""

_log = logging.getLogger("fedattack")


@dataclass(frozen=True)
class FittedEstimator:
    """An estimator that is no model, which was fitted or asked.

    ``seen`` holds what it took; ``weights`` and ``statistics`` give its weights, and the arrays that it has of
    examples.
    """

    estimator: object
    weights: Callable[[], State]
    statistics: Callable[[], State]
    seen: SeenModel

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self.estimator).__name__


class Local(threading.local):
    """What is under way in one thread of a client.

    Attributes
    ----------
    open
        The model that is being called, of which other models may be parts.
    call
        What a source notes of that call, as far as a loss inside of the model may show its labels.
    estimator
        The same for scikit-learn, which may itself call a model of PyTorch.
    recent
        What a source notes of the outputs of models that were called before.
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
    call: Any = None
    reader: Any = None
    has_read: bool = False

    # Python calls this once in each thread that looks at the object: each has queues of its own.
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
        What was stated by :func:`fedattack.witness.trained_on` and :func:`fedattack.witness.evaluated_on`.
    private_by
        By the id of an optimizer that a private one calls, what notes its steps.
    by_steps
        By the signature of a model whose labels are not seen, the places of what its training steps take; none yet
        where no step was read. It outlives the call.
    compared
        The signatures of models whose outputs a loss holds against each other. It outlives the call, too.
    labelled
        The signatures of models whose labels were seen: batches of theirs without labels are no reason to read whole
        steps. It outlives the call, too.
    hold_out
        What the client is kept from training on; ``None`` for nothing.
    datasets
        Those that loaders took examples from.
    fitted
        By their ids, estimators that were fitted, or asked, and are no models: without classes and values to predict,
        or without weights.
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
    labelled: set[Any] = field(default_factory=set)
    hold_out: HoldOut | None = None
    datasets: list[Any] = field(default_factory=list)
    fitted: dict[int, FittedEstimator] = field(default_factory=dict)
    # One that its own thread may take again: a source that is guarded may guard a part of what it does.
    lock: threading.RLock = field(default_factory=threading.RLock)
    local: Local = field(default_factory=Local)

    def note_held_out(self) -> None:
        """Note that the run is another than without."""
        if self.hold_out is not None:
            self.note(
                f"--hold-out kept a share of {self.hold_out.share:g} of its examples from its training, so that "
                "there are examples that nobody trained on: this is not the run that the app's owner makes"
            )

    def note(self, text: str) -> None:
        """Note what a reader must know, once."""
        self.notes[short(text)] = None

    def guard(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a source; its error becomes a note."""
        try:
            # One source at a time: threads of one client share what is noted.
            with self.lock:
                return function(self, *arguments)
        except Exception as cause:
            self.note_error(what, cause)
            return None

    def note_error(self, what: str, cause: Exception) -> None:
        """Note that something was not seen, by the kind of the error: its text may hold data of the client's."""
        kind = type(cause).__name__
        is_ours = isinstance(cause, FedAttackError)
        self.note(f"{what} was not seen ({short(f'{kind}: {cause}', 120) if is_ours else kind})")
        _log.info("fedattack.witness: %s was not seen (%s: %s)", what, kind, cause)

    def read_steps(self, model: SeenModel) -> None:
        """Read whole steps of such models from their next call on."""
        self.by_steps.setdefault(model.kind, ())

    def model_of(self, model: object, make: Callable[[], SeenModel]) -> SeenModel | None:
        """Return what was seen of a model, or ``None`` if there are too many."""
        # By its id: it is held from here on, so that no other object gets the same one.
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
        batch = model.start(x, trains=trained)
        batch.labels, batch.differentiated = labels, trained
        model.batches.settle_stated(batch)

    def end(self, *, without_steps: bool) -> None:
        """Settle what is open in all models."""
        models = [*self.models.values()]
        pairs = [(model, maker) for model in models for maker in models if maker is not model]
        for model, maker in pairs:
            self.guard("what one model made for another", _leave_out_both, model, maker)
        for model in [*self.models.values(), *([self.stated] if self.stated else [])]:
            if without_steps and model.batches.wait_for_a_step:
                self.note(
                    f"no optimizer of PyTorch made a step: the examples by whose loss {model.name} was "
                    "differentiated count as trained"
                )
            self.guard("what became of the last batches", _end, model, without_steps)
        for fitted in self.fitted.values():
            self.guard("what became of the last batches", _end, fitted.seen, False)
        # Only now is it known what each took, and that is held against what the others returned.
        for model, maker in pairs:
            if model.input_shape:
                self.guard("what one model made for another", _leave_out_made, model, maker)

    def is_taken(self, width: int, maker: SeenModel) -> bool:
        """Say whether a model besides another one takes rows of so many numbers."""
        return any(model is not maker and width in model.widths for model in self.models.values())


def _note_start(watch: CallWatch, model: SeenModel) -> None:
    model.note_start(watch.received())


def _leave_out_both(watch: CallWatch, model: SeenModel, maker: SeenModel) -> None:
    model.leave_out_both(maker)


def _leave_out_made(watch: CallWatch, model: SeenModel, maker: SeenModel) -> None:
    if made := maker.outputs.hash_rows(math.prod(model.input_shape)):
        model.leave_out_made(maker, made)


def _end(watch: CallWatch, model: SeenModel, without_steps: bool) -> None:
    model.end(without_steps=without_steps)
