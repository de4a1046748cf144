"""Call somebody's app up to the first step of its training, and play this step under any weights."""

import os
import random
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from torch import Tensor

from fedattack.base.errors import DataError, short
from fedattack.record.format import Arrays
from fedattack.record.views import FlatVector
from fedattack.witness.arrays import same
from fedattack.witness.feeding import feed
from fedattack.witness.step import as_array
from fedattack.witness.tape import BATCH_NORM, leaves_for, read_tape

PLANTING = 1e-3
"""Learning rate of Adam, by which clients are trained further on their own examples."""

STEPPING = 0.1
"""Learning rate of the plain step that is planted."""

LONGEST = "FEDATTACK_ASKING_SECONDS"
"""Environment variable: how long one call of the app's code may take, in seconds; 900 by default."""

UPDATES_MEMORY = 2**30
"""Bytes of the updates that gradients are held against at once."""

ENDED_BY_ALARM = -signal.SIGALRM if hasattr(signal, "SIGALRM") else None
"""Exit status of a process in which the app's code neither ends nor lets a thread end it; ``None`` on Windows."""

_SECONDS = 900.0

# So many seconds later the system itself ends the process.
_LATER = 5.0

_SEED = 0
_TRIED = 3
# Passes over the targets, and Adam's learning rate, by which a part is fitted that clients keep.
_FITTING, _FITTING_RATE = 10, 1e-2
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Along = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""⟨−∇ℓ, Δ⟩ (k, targets), ‖∇ℓ‖ (targets,) and ‖Δ‖ (k,)."""

Form = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of arrays."""


@dataclass(frozen=True)
class Handler:
    """The app's own training of one client, as :class:`fedattack.witness.seen.AskedToTrain` says it was asked to.

    Weights are arrays of the model one by one, also where they are sent in one vector, ``flat``.
    """

    app: ClientApp
    run_config: Mapping[str, Any]
    node_config: Mapping[str, Any]
    type: str
    arrays: Mapping[str, Sequence[str]]
    configs: Mapping[str, Mapping[str, Any]]
    flat: FlatVector | None = None

    def __call__(self, weights: Arrays, seed: int = _SEED, state: RecordDict | None = None) -> Message:
        """Train with these weights, from one state of all random numbers, and return the client's reply.

        The client finds in ``state`` what it kept of earlier rounds, and keeps there what it keeps; ``None`` for a
        client that kept nothing.
        """
        seed_all(seed)
        weights = self._join(weights)
        records: dict[str, Any] = {}
        for key, names in self.arrays.items():
            # One record alone holds whatever is sent in this round.
            sent = {name: f"{key}.{name}" for name in names}
            if len(self.arrays) == 1:
                sent = {name: name for name in weights}
            records[key] = ArrayRecord({name: Array(np.asarray(weights[full])) for name, full in sent.items()})
        for key, config in self.configs.items():
            records[key] = ConfigRecord(dict(config))
        metadata = Metadata(
            run_id=1,
            message_id="asked",
            src_node_id=0,
            dst_node_id=1,
            reply_to_message_id="",
            group_id="",
            created_at=0.0,
            ttl=3600.0,
            message_type=self.type,
        )
        context = Context(1, 1, dict(self.node_config), RecordDict() if state is None else state, dict(self.run_config))
        message = Message(content=RecordDict(records), metadata=metadata)  # type: ignore[call-overload]
        with limit_time("the app's handler"):
            try:
                return self.app(message, context)
            except SystemExit as cause:
                raise DataError(f"the app's handler ended its process: sys.exit({cause.code!r})") from None

    def _join(self, weights: Arrays) -> Arrays:
        """Return weights as clients are sent them: in one vector, or one by one."""
        names = {f"{key}.{name}" for key, of_record in self.arrays.items() for name in of_record}
        if len(self.arrays) == 1:
            names = {name for of_record in self.arrays.values() for name in of_record}
        if self.flat is None or self.flat.vector not in names:
            return weights
        return self.flat.join(weights)

    def read_arrays(self, reply: Message) -> Arrays:
        """Return the arrays of a reply by their names, as a record has them."""
        found: dict[str, NDArray[Any]] = {}
        records: Mapping[str, ArrayRecord] = {}
        if reply.has_content():
            records = reply.content.array_records
        for key, record in records.items():
            prefix = f"{key}." if len(records) > 1 else ""
            for name, array in record.items():
                found[prefix + name] = np.array(array.numpy())
        return found if self.flat is None else self.flat.split(found)


def seed_all(seed: int) -> None:
    """Set the state of all random numbers that an app may draw."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what the app draws from
    torch.manual_seed(seed)


def read_longest() -> float:
    """Return how many seconds one call of the app's code may take."""
    return float(os.environ.get(LONGEST, _SECONDS))


@contextmanager
def limit_time(what: str) -> Iterator[None]:
    """End the process where ``what`` the app does takes too long: nothing else ends code that waits."""
    seconds = read_longest()

    def end() -> None:
        # The app may have left a line without an end.
        print(
            f"\n{what} did not end within {seconds:g} s; if it takes longer, set {LONGEST}",
            file=sys.__stderr__,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    _set_alarm(seconds + _LATER)
    try:
        yield
    finally:
        timer.cancel()
        _set_alarm(0)


def _set_alarm(seconds: float) -> None:
    """Let the system end this process after so many seconds, 0 for never, also where no thread of Python can run."""
    # There is none on every system (Windows).
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


class WeightsPlayer(Protocol):
    """What gives losses of the targets under any weights, and trains these: a witnessed step, or the owner's functions.

    What of it cannot be done raises a :class:`~fedattack.base.errors.DataError`.
    """

    gives_gradients: bool

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (targets,) under the weights that were taken last."""

    def train(self, rows: Sequence[int], passes: Sequence[int]) -> Iterator[Arrays]:
        """Train on some of the targets, and yield the weights after each of these numbers of passes in all."""

    def step(self, rows: Sequence[int]) -> Arrays:
        """Return the weights after one plain step on some of the targets."""

    def update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> Arrays:
        """Return what the client would reply had it these examples (n, …) with these labels (n,)."""

    def along(self, updates: Sequence[Arrays]) -> Along:
        """Hold the targets' gradients against updates, where there are gradients."""

    def list_assumptions(self) -> Iterator[str]:
        """Say what a reader must know of it."""


class UpdatesPlayer(ABC):
    """Plays what is trained by whole updates of a client alone, as no gradient is known.

    Parameters
    ----------
    x, y
        (n, …), (n,): the targets.
    """

    def __init__(self, x: NDArray[Any], y: NDArray[Any]) -> None:
        self._x, self._y = x, y
        self._weights: Arrays = {}

    @abstractmethod
    def take(self, weights: Arrays) -> None:
        """Put other weights in."""

    @abstractmethod
    def update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> Arrays:
        """Return what the client would reply had it these examples (n, …) with these labels (n,)."""

    def train(self, rows: Sequence[int], passes: Sequence[int]) -> Iterator[Arrays]:
        """Update on some of the targets again and again, and yield the weights after each of these numbers of times."""
        done = 0
        for until in passes:
            for turn in range(done, until if len(rows) else done):
                self.take(self.update(self._weights, self._x[rows, ...], self._y[rows], turn))
            done = until
            yield self._weights

    def step(self, rows: Sequence[int]) -> Arrays:
        """Refuse: a plain step needs gradients, which nothing gives."""
        raise DataError("a plain step needs gradients, and here only losses and updates are known")


class Player:
    """Plays one step of the app under any weights of one form; ``missing`` is what its models have and nobody sends."""

    gives_gradients = True

    def __init__(self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> None:
        self._handler, self._x, self._y = handler, x, y
        # Whether the loss of a batch is one of its examples, which is found out once.
        self._adds_up: bool | None = None
        self._start(weights)
        self._check_used(weights)

    def _start(self, weights: Arrays) -> None:
        """Read the app's step under these weights, and find where in its models they stand."""
        self.tape = read_tape(lambda: self._handler(weights))
        self.leaves = leaves_for(self.tape, self._x, self._y)
        self.tape.prepare(self.leaves, self._adds_up)
        self._adds_up = self.tape.adds_up
        self._weights = weights
        self._places, left = self._find_places(weights)
        sent = {place.data_ptr() for place in self._places.values()}
        copies = self._find_copies(weights, sent)
        self._has_copies = bool(copies)
        self.missing = [name for name, value in left if value.data_ptr() not in copies]
        parameters = {one.data_ptr(): one for model in self.tape.models for one in model.parameters()}
        own = [one for pointer, one in parameters.items() if pointer in sent]
        if not any(one.requires_grad for one in own):
            # Where the first step trains nothing of what is sent, as where a head comes first.
            for one in own:
                one.requires_grad_(one.is_floating_point())
        # What the app trains, by where it lies in memory.
        self._trained = {pointer: one for pointer, one in parameters.items() if one.requires_grad}
        # What clients train and keep, each with the numbers that the app begins with.
        self._kept: list[tuple[Tensor, Tensor]] = []
        if self._is_sent_whole:
            for pointer, one in self._trained.items():
                if pointer not in sent | copies:
                    self._kept.append((one, one.detach().clone()))

    def _find_places(self, weights: Arrays) -> tuple[dict[str, Tensor], list[tuple[str, Tensor]]]:
        """Return where weights stand, by name, and what of the models' states none stands for as it is."""
        left, places = list(self.tape.state()), {}
        for name, array in weights.items():
            for at, (_, value) in enumerate(left):
                if same([_numbers_of(value, array)], [array]):
                    places[name] = value
                    del left[at]
                    break
        return places, left

    def _find_copies(self, weights: Arrays, sent: Collection[int]) -> set[int]:
        """Return where further models lie that begin as what was sent, such as those that MOON compares with."""
        copies: set[int] = set()
        for model in self.tape.models:
            values = [value for value in model.state_dict().values() if isinstance(value, Tensor)]
            pointers = {value.data_ptr() for value in values}
            if pointers.isdisjoint(sent) and all(_is_sent(value, weights) for value in values):
                copies |= pointers
        return copies

    @property
    def _is_sent_whole(self) -> bool:
        """Whether everything that is sent stands in the models' states as it is."""
        return len(self._places) == len(self._weights)

    def _check_used(self, weights: Arrays) -> None:
        """Refuse weights that the app's models do not take, such as those of layers that were fused for sending."""
        strange = [name for name in weights if name not in self._places]
        if not strange or self._is_whole:
            return
        before = self._try_losses()
        unused = []
        for name in strange[:_TRIED]:
            changed = np.zeros_like(weights[name])
            if not np.any(weights[name]):
                changed = np.ones_like(weights[name])
            self._start({**weights, name: changed})
            if before == self._try_losses():
                unused.append(name)
        self._start(weights)
        if unused:
            raise DataError(f"the app's model does not use {short(', '.join(unused), 80)}, which clients send")

    def _try_losses(self) -> list[float]:
        return [self.tape.loss_of(self.leaves, row) for row in range(min(_TRIED, len(self._y)))]

    @property
    def _is_whole(self) -> bool:
        """Whether all of the models' states stand among the weights; what is sent besides is no part of them."""
        return all(map(_is_statistic, self.missing))

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        if not self._is_sent_whole and not self._is_whole:
            # The app makes its model of them in a way of its own.
            self._start(weights)
        else:
            self._weights = weights
            with torch.no_grad():
                for name, place in self._places.items():
                    put_in(place, weights[name])
        self._fill_in()

    def _fill_in(self) -> None:
        """Put something in the place of what nobody sends."""
        if self._kept:
            # To the targets, from where the app begins with it.
            with torch.no_grad():
                for parameter, first in self._kept:
                    parameter.copy_(first)
            kept = [parameter for parameter, _ in self._kept]
            next(self._train(kept, range(len(self._y)), [_FITTING], _FITTING_RATE))
        norms = []
        for model in self.tape.models:
            for name, part in model.named_modules():
                own = {f"{name}.{one}".removeprefix(".") for one in _STATISTICS}
                if isinstance(part, BATCH_NORM) and part.track_running_stats and own & {*self.missing}:
                    norms.append(part)
        if norms:
            self.tape.estimate_statistics(self.leaves, norms)

    def _train(
        self, parameters: Sequence[Tensor], rows: Sequence[int], passes: Sequence[int], lr: float
    ) -> Iterator[None]:
        """Train on some of the targets, and stop after each of these numbers of passes in all."""
        optimizer = torch.optim.Adam(parameters, lr=lr)
        rng, size, done = np.random.default_rng(_SEED), self.tape.step.count, 0
        for until in passes:
            for _ in range(until - done if len(rows) else 0):
                order = rng.permutation(np.asarray(rows))
                for start in range(0, len(order), size):
                    # Each batch has as many rows as the app's own.
                    chosen = np.resize(order[start : start + size], size)
                    optimizer.zero_grad()
                    loss = self.tape.play({place: array[chosen] for place, array in self.leaves.items()})
                    # What else could learn costs no time.
                    loss.backward(inputs=[*parameters])
                    optimizer.step()
            done = until
            yield

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (targets,) under the weights that were taken last."""
        return self.tape.losses_of(self.leaves)

    def train(self, rows: Sequence[int], passes: Sequence[int]) -> Iterator[Arrays]:
        """Train on some of the targets, and yield the weights after each of these numbers of passes in all."""
        for _ in self._train(self._require_learned(), rows, passes, PLANTING):
            yield self._read_weights()

    def step(self, rows: Sequence[int]) -> Arrays:
        """Return the weights after one step of gradient descent on some of the targets.

        They are one batch. Where they are more than a batch of the client, the step is the mean over several batches.
        """
        learned = self._require_learned()
        size = self.tape.step.count
        batches = -(-len(rows) // size)
        total: list[Tensor | None] = [None] * len(learned)
        for chosen in np.resize(np.asarray(rows), (batches, size)):
            loss = self.tape.play({place: array[chosen] for place, array in self.leaves.items()})
            for index, gradient in enumerate(torch.autograd.grad(loss, learned, allow_unused=True)):
                before = total[index]
                if before is None:
                    total[index] = gradient
                elif gradient is not None:
                    total[index] = before + gradient
        with torch.no_grad():
            for parameter, added in zip(learned, total, strict=True):
                if added is not None:
                    parameter.sub_(added, alpha=STEPPING / batches)
        return self._read_weights()

    def _require_learned(self) -> list[Tensor]:
        learned = [*self.find_learned().values()]
        if not learned:
            raise DataError(
                "the app's models do not hold the weights as clients send them, so no model can be trained further"
            )
        return learned

    def _read_weights(self) -> Arrays:
        """Return the weights as the app's models have them now."""
        trained = {name: _numbers_of(place, self._weights[name]) for name, place in self._places.items()}
        return {**self._weights, **trained}

    def update(self, weights: Arrays, x: NDArray[Any], y: NDArray[Any], seed: int) -> Arrays:
        """Return what the client would reply had it these examples: the app itself trains on them.

        It makes as many steps, of batches as large, as with the client's own examples, by its own optimizer.

        Parameters
        ----------
        weights
            What it is sent.
        x, y
            (n, …), (n,): the examples, of the form of the targets.
        """
        reply = feed(lambda: self._handler(weights, seed), leaves_for(self.tape, x, y), seed)
        found = self._handler.read_arrays(reply)
        if form_of(found) != form_of(weights):
            raise DataError("when it trains on other examples, the app does not reply with the arrays that it was sent")
        return found

    def along(self, updates: Sequence[Arrays]) -> Along:
        """Hold the targets' gradients, under the weights that were taken last, against k updates by the weights' names.

        Numbers are NaN where the app hides its parameters.
        """
        count = len(self._y)
        products, norms = np.full((len(updates), count), np.nan), np.full(count, np.nan)
        lengths = np.full(len(updates), np.nan)
        # What travels as the bytes of another type has no difference.
        learned = self.find_learned()
        for name in [*learned]:
            if any(name not in update for update in updates):
                del learned[name]
        if not learned or 4 * len(updates) * sum(value.numel() for value in learned.values()) > UPDATES_MEMORY:
            return products, norms, lengths
        flat = np.zeros((len(updates), sum(value.numel() for value in learned.values())), dtype=np.float32)
        for row, update in enumerate(updates):
            flat[row] = np.concatenate([np.ravel(update[name]) for name in learned])
        lengths[:] = np.linalg.norm(flat, axis=1)
        directions = torch.from_numpy(flat)
        pieces = directions.split([value.numel() for value in learned.values()], dim=1)
        start = 0
        for gradients in self.tape.gradients_of(self.leaves, [*learned.values()]):
            rows = slice(start, start + len(gradients[0]))
            along = torch.stack([piece @ gradient.T for piece, gradient in zip(pieces, gradients, strict=True)])
            products[:, rows] = -along.sum(dim=0).numpy()
            # The length of a vector is that of the lengths of its pieces.
            norms[rows] = torch.stack([gradient.norm(dim=1) for gradient in gradients]).norm(dim=0).numpy()
            start = rows.stop
        return products, norms, lengths

    def gradients(
        self, x: NDArray[Any], y: NDArray[Any], names: Collection[str] | None = None
    ) -> Iterator[Mapping[str, NDArray[np.float32]]]:
        """Yield the gradients of examples' losses, some examples at a time, by the weights' names: (m, *shape).

        They are those under the weights that were taken last, of what the app trains; or of some ``names`` of that.
        """
        learned = self.find_learned()
        if names is not None:
            learned = {name: parameter for name, parameter in learned.items() if name in names}
        shapes = [np.shape(self._weights[name]) for name in learned]
        for gradients in self.tape.gradients_of(leaves_for(self.tape, x, y), [*learned.values()]):
            found = {}
            for name, shape, gradient in zip(learned, shapes, gradients, strict=True):
                found[name] = gradient.reshape(-1, *shape).numpy()
            yield found

    def losses_of(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.float64]:
        """Return the losses (n,) of examples under the weights that were taken last."""
        return self.tape.losses_of(leaves_for(self.tape, x, y))

    def batch_gradients(
        self, x: NDArray[Any], y: NDArray[Any], names: Collection[str]
    ) -> Iterator[Mapping[str, NDArray[np.float32]]]:
        """Yield the gradients of some of the weights, of one batch of examples after the other.

        Each batch has as many rows as the app's own; the last one holds some examples twice.
        """
        learned = {name: parameter for name, parameter in self.find_learned().items() if name in names}
        leaves = leaves_for(self.tape, x, y)
        size = self.tape.step.count
        for rows in np.resize(np.arange(len(y)), (-(-len(y) // size), size)):
            loss = self.tape.play({place: array[rows] for place, array in leaves.items()})
            gradients = torch.autograd.grad(loss, [*learned.values()], allow_unused=True)
            found = {}
            for name, gradient in zip(learned, gradients, strict=True):
                if gradient is not None and gradient.is_sparse:
                    gradient = gradient.to_dense()
                if gradient is not None:
                    found[name] = gradient.float().numpy(force=True).reshape(np.shape(self._weights[name]))
            yield found

    def find_learned(self) -> dict[str, Tensor]:
        """Return by the names of the weights the parameters that the app trains."""
        found: dict[str, Tensor] = {}
        for name, place in self._places.items():
            parameter = self._trained.get(place.data_ptr())
            if parameter is not None and parameter.is_floating_point():
                found[name] = parameter
        return found

    def list_assumptions(self) -> Iterator[str]:
        """Say what was put in the place of what nobody sends, and what of the loss is not asked for."""
        if not self.tape.is_whole:
            yield (
                "a step of the app asks for gradients several times; only the losses of the first time are used, "
                "since the others take labels that the witness did not see"
            )
        if not self.tape.adds_up:
            yield (
                "the loss of a batch is not exactly a sum of its examples' losses; the loss of an example is that "
                "of a batch of copies of it"
            )
        if self.tape.why_alone:
            yield f"the gradients of the targets were computed one by one, which takes longer: {self.tape.why_alone}"
        if self._has_copies:
            yield (
                "another model that starts with the weights that clients are sent keeps the weights of the first "
                "reply of its form"
            )
        if any(map(_is_statistic, self.missing)):
            yield "batch statistics, which no client sends, were estimated on the target records under each model"
        if not self._is_sent_whole:
            return
        kept = short(", ".join(name for name in self.missing if not _is_statistic(name)), 80)
        if kept and self._kept:
            yield f"{kept}, which clients keep, were fitted to the target records under each model"
        elif kept:
            yield f"{kept}, which clients do not send, have the values that the app gives them when it starts"


def _is_statistic(name: str) -> bool:
    """Say whether an entry of a model's state is one of batch norm's statistics."""
    return name.rpartition(".")[2] in _STATISTICS


def put_in(place: Tensor, array: NDArray[Any]) -> None:
    """Write an array into a part of a model's state, in the shape and kind that this has."""
    _view_as(place, array).copy_(torch.from_numpy(np.array(array)).reshape(place.shape))


def _view_as(tensor: Tensor, array: NDArray[Any]) -> Tensor:
    """View bfloat16, which NumPy has not, as the integers that some apps send in its place."""
    if tensor.dtype == torch.bfloat16 and array.dtype == np.int16:
        return tensor.view(torch.int16)
    return tensor


def _is_sent(value: Tensor, weights: Arrays) -> bool:
    """Say whether a part of a model begins as one of the arrays that were sent."""
    return any(same([_numbers_of(value, array)], [array]) for array in weights.values())


def _numbers_of(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Copy a tensor to an array of the kind that another is."""
    return np.array(as_array(_view_as(tensor, array)))


def form_of(arrays: Arrays) -> Form:
    """Return names and shapes of arrays."""
    return tuple((name, np.shape(array)) for name, array in arrays.items())
