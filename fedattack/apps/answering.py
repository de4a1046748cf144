"""Ask somebody's app itself for losses, in a process of its own: it runs the app's code.

The app's own train handler is called with the weights that are asked about, up to its first step. Of this step there is
a tape, which is played with each of the targets in the place of the client's examples. Nothing is trained, and no state
of a client is there.
"""

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import load_app
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.replies import replied
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.files import write_npz
from fedattack.learning.importing import one_line
from fedattack.record import Observation, Record
from fedattack.record.format import Arrays
from fedattack.witness.tape import leaves_for, read_tape
from fedattack.witness.watch import same

PROGRESS = "fedattack asked "
"""How a line of the output begins that says how many replies were asked about."""

PLANTING = 1e-3
"""Learning rate of Adam, by which clients are trained further on their own examples."""

LONGEST = "FEDATTACK_ASKING_SECONDS"
"""Environment variable: how long the app's handler may take up to its first step, in seconds; 900 by default."""

_SECONDS = 900.0
_SEED = 0
_BATCH_NORM = nn.modules.batchnorm._NormBase
_TRIED = 3
# Passes over the targets, and Adam's learning rate, by which a part is fitted that clients keep.
_FITTING, _FITTING_RATE = 10, 1e-2
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

# Bytes of the updates of one round that gradients are held against.
_MEMORY = 2**30

Along = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""⟨−∇ℓ, Δ⟩ (k, targets), ‖∇ℓ‖ (targets,) and ‖Δ‖ (k,)."""

Form = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of arrays."""


@dataclass(frozen=True)
class Handler:
    """The app's own training of one client.

    Attributes
    ----------
    app
        Its ClientApp.
    run_config, node_config
        What the app is set to, and what Flower tells the client.
    type, arrays, configs
        As :class:`fedattack.witness.AskedToTrain`.
    """

    app: ClientApp
    run_config: Mapping[str, Any]
    node_config: Mapping[str, Any]
    type: str
    arrays: Mapping[str, Sequence[str]]
    configs: Mapping[str, Mapping[str, Any]]

    def __call__(self, weights: Arrays) -> None:
        """Train with these weights, from one state of all random numbers."""
        random.seed(_SEED)
        np.random.seed(_SEED)  # noqa: NPY002 - what the app draws from
        torch.manual_seed(_SEED)
        records: dict[str, Any] = {}
        for key, names in self.arrays.items():
            prefix = f"{key}." if len(self.arrays) > 1 else ""
            # One record alone holds whatever is sent in this round.
            names = names if prefix else [*weights]
            records[key] = ArrayRecord({name: Array(np.asarray(weights[prefix + name])) for name in names})
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
        context = Context(1, 1, dict(self.node_config), RecordDict(), dict(self.run_config))
        message = Message(content=RecordDict(records), metadata=metadata)  # type: ignore[call-overload]
        with _bounded():
            try:
                self.app(message, context)
            except SystemExit as cause:
                raise DataError(f"the app's handler ended its process: sys.exit({cause.code!r})") from None


@contextmanager
def _bounded() -> Iterator[None]:
    """End the process where what the app does takes too long: nothing else ends a handler that waits."""
    seconds = float(os.environ.get(LONGEST, _SECONDS))

    def end() -> None:
        print(
            f"the app's handler made no step within {seconds:g} s; if it takes longer, set {LONGEST}",
            file=sys.__stderr__,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Player:
    """Plays one step of the app under any weights of one form.

    Attributes
    ----------
    missing
        Names of what its models have and nobody sends.
    """

    def __init__(self, handler: Handler, weights: Arrays, x: NDArray[Any], y: NDArray[Any]) -> None:
        self._handler, self._x, self._y = handler, x, y
        self._names = [*weights]
        self._start(weights)
        self._check_used(weights)

    def _start(self, weights: Arrays) -> None:
        """Read the app's step under these weights."""
        self.tape = read_tape(lambda: self._handler(weights))
        self._leaves = leaves_for(self.tape, self._x, self._y)
        self.tape.prepare(self._leaves)
        self._weights = weights
        self.missing, self._places = self._find(weights)
        self._kept = self._find_kept()

    def _find(self, weights: Arrays) -> tuple[list[str], dict[str, Tensor]]:
        """Return what of the models' states no weight stands for as it is, and by name where the weights stand."""
        left, places = self.tape.state(), {}
        for name, array in weights.items():
            found = next((one for one in left if same([_numbers_of(one[1], array)], [array])), None)
            if found is not None:
                places[name] = found[1]
                left = [one for one in left if one is not found]
        return [name for name, _ in left], places

    def _find_kept(self) -> list[tuple[Tensor, Tensor]]:
        """Return the parameters that clients train and keep, each with the numbers that the app begins with."""
        sent = {place.data_ptr() for place in self._places.values()}
        kept: list[tuple[Tensor, Tensor]] = []
        for model in self.tape.models:
            for parameter in model.parameters():
                if self._is_sent_whole and parameter.requires_grad and parameter.data_ptr() not in sent:
                    kept.append((parameter, parameter.detach().clone()))
        return kept

    @property
    def _is_sent_whole(self) -> bool:
        """Whether everything that is sent stands in the models' states as it is."""
        return len(self._places) == len(self._names)

    def _check_used(self, weights: Arrays) -> None:
        """Refuse weights that the app's models do not take, such as those of layers that were fused for sending.

        Raises
        ------
        DataError
            If there are such.
        """
        strange = [name for name in weights if name not in self._places]
        if not strange or self._is_whole:
            return
        before = [self.tape.loss_of(self._leaves, row) for row in range(min(_TRIED, len(self._y)))]
        unused = []
        for name in strange[:_TRIED]:
            changed = np.zeros_like(weights[name]) if np.any(weights[name]) else np.ones_like(weights[name])
            self._start({**weights, name: changed})
            if before == [self.tape.loss_of(self._leaves, row) for row in range(len(before))]:
                unused.append(name)
        self._start(weights)
        if unused:
            raise DataError(f"the app's model takes nothing of {short(', '.join(unused), 80)}, which clients send")

    @property
    def _is_whole(self) -> bool:
        """Whether all of the models' states stand among the weights; what is sent besides is no part of them."""
        return not [name for name in self.missing if name.rpartition(".")[2] not in _STATISTICS]

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        if not self._is_sent_whole and not self._is_whole:
            # The app makes its model of them in a way of its own.
            self._start(weights)
        else:
            self._weights = weights
            with torch.no_grad():
                for name, place in self._places.items():
                    _viewed(place, weights[name]).copy_(torch.from_numpy(np.array(weights[name])).reshape(place.shape))
        self._fill_in()

    def _fill_in(self) -> None:
        """Put something in the place of what nobody sends."""
        if self._kept:
            self._fit_kept()
        norms = []
        for model in self.tape.models:
            for name, part in model.named_modules():
                own = {f"{name}.{one}".removeprefix(".") for one in _STATISTICS}
                if isinstance(part, _BATCH_NORM) and part.track_running_stats and own & {*self.missing}:
                    norms.append(part)
        if norms:
            self.tape.estimate_statistics(self._leaves, norms)

    def _fit_kept(self) -> None:
        """Fit what clients train and keep to the targets, from where the app begins with it."""
        with torch.no_grad():
            for parameter, first in self._kept:
                parameter.copy_(first)
        for _ in self._train(
            [parameter for parameter, _ in self._kept], range(len(self._y)), [_FITTING], _FITTING_RATE
        ):
            pass

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
                    self.tape.play({place: array[chosen] for place, array in self._leaves.items()}).backward()
                    optimizer.step()
            done = until
            yield

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (targets,) under the weights that were taken last."""
        return self.tape.losses_of(self._leaves)

    def train(self, rows: Sequence[int], passes: Sequence[int]) -> Iterator[Arrays]:
        """Train on some of the targets, and yield the weights after each of these numbers of passes in all.

        Raises
        ------
        DataError
            If the app hides its parameters.
        """
        learned = [*self._learned().values()]
        if not learned:
            raise DataError(
                "the weights do not stand in the app's models as they are sent: none can be trained further"
            )
        for _ in self._train(learned, rows, passes, PLANTING):
            trained = {name: _numbers_of(place, self._weights[name]) for name, place in self._places.items()}
            yield {**self._weights, **trained}

    def along(self, updates: Sequence[Arrays]) -> Along:
        """Hold the targets' gradients, under the weights that were taken last, against updates.

        Parameters
        ----------
        updates
            k updates, by the names of the weights.

        Returns
        -------
        Along
            NaN where the app hides its parameters.
        """
        count = len(self._y)
        products, norms = np.full((len(updates), count), np.nan), np.full(count, np.nan)
        lengths = np.full(len(updates), np.nan)
        # Of what travels as the bytes of another type there is no difference.
        learned = {name: one for name, one in self._learned().items() if all(name in update for update in updates)}
        if not learned or 4 * len(updates) * sum(value.numel() for value in learned.values()) > _MEMORY:
            return products, norms, lengths
        flat = np.stack([np.concatenate([np.ravel(update[name]) for name in learned]) for update in updates])
        lengths[:] = np.linalg.norm(flat, axis=1)
        directions = torch.from_numpy(flat)
        for row in range(count):
            gradient = self.tape.gradient_of(self._leaves, row, [*learned.values()])
            products[:, row] = -(directions @ gradient).numpy()
            norms[row] = float(gradient.norm())
        return products, norms, lengths

    def _learned(self) -> dict[str, Tensor]:
        """Return by the names of the weights the parameters that the app trains."""
        parameters: dict[int, Tensor] = {}
        for model in self.tape.models:
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.is_floating_point():
                    parameters[parameter.data_ptr()] = parameter
        found = {}
        for name, place in self._places.items():
            if place.data_ptr() in parameters:
                found[name] = parameters[place.data_ptr()]
        return found

    @property
    def fits(self) -> bool:
        """Whether clients keep something that they train."""
        return bool(self._kept)

    @property
    def without_statistics(self) -> list[str]:
        """Names of what nobody sends, without statistics of batches; none where the app hides the weights."""
        if not self._is_sent_whole:
            return []
        return [name for name in self.missing if name.rpartition(".")[2] not in _STATISTICS]


def _viewed(tensor: Tensor, array: NDArray[Any]) -> Tensor:
    """View bfloat16, which NumPy has not, as the integers that some apps send in its place."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 and array.dtype == np.int16 else tensor


def _numbers_of(tensor: Tensor, array: NDArray[Any]) -> NDArray[Any]:
    """Copy a tensor to an array of the kind that another is."""
    viewed = _viewed(tensor, array)
    return np.array((viewed.float() if viewed.dtype == torch.bfloat16 else viewed).numpy(force=True))


def form_of(arrays: Arrays) -> Form:
    """Return names and shapes of arrays."""
    return tuple((name, np.shape(array)) for name, array in arrays.items())


class Interview:
    """Asks an app about all replies of a record.

    Parameters
    ----------
    request
        As :func:`fedattack.apps.asking.ask` writes it.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._record = Record(Path(request["record"])).read_as((), request["factors"])
        with np.load(request["targets"], allow_pickle=False) as file:
            self._x, self._y = file["x"], file["y"]
        self._app = load_app(request["clientapp"], DataError, request["folder"])
        self._players: dict[Form, Player] = {}
        self._reasons: dict[str, str] = {}
        self._without_gradients = ""

    def hold(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Ask, and return the arrays of :class:`~fedattack.attacks.knowledge.Answers` and ``notes``.

        Where something is planted, the names of the arrays of each strength end in ``@`` and the number of passes.

        Raises
        ------
        DataError
            If no reply can be asked about.
        """
        found = [_Found() for _ in self._request["passes"] or [0]]
        total, done = sum(1 for _ in _replies(self._record)), 0
        for round_ in self._record:
            asked: dict[str, list[tuple[Arrays, NDArray[np.float64]]]] = {}
            for reply in filter(_has_arrays, round_.observations):
                say(f"{PROGRESS}{done} {total}")
                done += 1
                of_reply = self._try(reply)
                if of_reply is not None:
                    asked[reply.node] = of_reply
            for group in _sent_alike([one for one in round_.observations if one.node in asked]):
                nodes = [reply.node for reply in group]
                models = [[asked[node][at][0] for node in nodes] for at in range(len(found))]
                along = self._try_along(group[0], models)
                for at, one in enumerate(found):
                    losses = np.stack([asked[node][at][1] for node in nodes])
                    one.add(round_.seq, nodes, losses, None if along is None else along[at])
        if not found[0].losses:
            raise DataError("; ".join(self._reasons) or "no reply holds arrays")
        if len(self._players) > 1:
            for one in found:
                one.calibrate()
        arrays: dict[str, NDArray[Any]] = {"notes": np.array(self._notes(), dtype=np.str_)}
        for passes, one in zip(self._request["passes"] or [""], found, strict=True):
            for name, values in vars(one).items():
                arrays[f"{name}@{passes}" if passes else name] = np.array(values)
        return arrays

    def _try(self, reply: Observation) -> list[tuple[Arrays, NDArray[np.float64]]] | None:
        """Ask about a reply; what the app's own code raises is a reason why it is left out."""
        try:
            return self._ask(reply)
        except FedAttackError as cause:
            self._reasons.setdefault(str(cause), reply.node)
        except Exception as cause:
            self._reasons.setdefault(one_line(cause), reply.node)
        return None

    def _try_along(self, reply: Observation, models: Sequence[Sequence[Arrays]]) -> list[Along] | None:
        """Take gradients; where the app's own code raises, there are losses alone."""
        try:
            return self._along(reply, models)
        except Exception as cause:
            self._without_gradients = one_line(cause)
            return None

    def _player(self, weights: Arrays, node: str) -> Player:
        """Return what plays weights of this form: a step of the client's own, or of the first that has such."""
        form = form_of(weights)
        if form not in self._players:
            handlers = self._request["handlers"]
            asked = handlers.get(node) or next(iter(handlers.values()))
            handler = Handler(self._app, self._request["run_config"], **asked)
            self._players[form] = Player(handler, weights, self._x, self._y)
        return self._players[form]

    def _ask(self, reply: Observation) -> list[tuple[Arrays, NDArray[np.float64]]]:
        """Return weights and losses (targets,): of the client's own model, or after each number of passes more."""
        weights = dict(reply.arrays or {})
        _check_form(weights, reply)
        player = self._player(weights, reply.node)
        player.take(weights)
        if not self._request["passes"]:
            return [(weights, player.losses())]
        rows = self._request["owned"].get(reply.node, [])
        return [(trained, player.losses()) for trained in player.train(rows, self._request["passes"])]

    def _along(self, reply: Observation, models: Sequence[Sequence[Arrays]]) -> list[Along]:
        """Hold the targets' gradients at the model that clients were sent against what became of it, in each case."""
        received = dict(reply.received or {})
        player = self._player(received, reply.node)
        player.take(received)
        updates = [_update(weights, received) for of_case in models for weights in of_case]
        products, norms, lengths = player.along(updates)
        count = len(models[0])
        return [(products[at : at + count], norms, lengths[at : at + count]) for at in range(0, len(updates), count)]

    def _notes(self) -> list[str]:
        notes = [f"client {node} left out: {reason}" for reason, node in self._reasons.items()]
        if self._without_gradients:
            notes.append(
                f"the app's step gives no gradients of single examples ({self._without_gradients}): losses alone"
            )
        if len(self._players) > 1:
            notes.append(
                f"clients send models of {len(self._players)} forms; the losses of each client's model were scaled to "
                "one median over the targets, so that they can be compared"
            )
        for player in self._players.values():
            notes += _assumed(player)
        return [*dict.fromkeys(notes)]


@dataclass
class _Found:
    """The arrays of :class:`~fedattack.attacks.knowledge.Answers`, reply by reply."""

    seqs: list[int] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    losses: list[NDArray[np.float64]] = field(default_factory=list)
    products: list[NDArray[np.float64]] = field(default_factory=list)
    norms: list[NDArray[np.float64]] = field(default_factory=list)
    lengths: list[float] = field(default_factory=list)

    def add(self, seq: int, nodes: Sequence[str], losses: NDArray[np.float64], along: Along | None) -> None:
        """Add replies to one model."""
        unknown = np.full(losses.shape, np.nan)
        products, norms, lengths = along or (unknown, unknown[0], unknown[:, 0])
        for row, node in enumerate(nodes):
            self.seqs.append(seq)
            self.nodes.append(node)
            self.losses.append(losses[row])
            self.products.append(products[row])
            self.norms.append(norms)
            self.lengths.append(float(lengths[row]))

    def calibrate(self) -> None:
        """Bring the losses of all models to one median: those of a small model are larger for all examples."""
        medians = [float(np.median(losses)) for losses in self.losses]
        common = float(np.median(medians))
        if min(medians) > 0:
            self.losses = [losses * common / median for losses, median in zip(self.losses, medians, strict=True)]


def _update(sent: Arrays, received: Arrays) -> Arrays:
    """Return Δ = sent − received, in float32, of what are numbers with a point."""
    update = {}
    for name, after in sent.items():
        if np.asarray(after).dtype.kind != "f":
            continue
        update[name] = (np.asarray(after, np.float64) - np.asarray(received[name], np.float64)).astype(np.float32)
    return update


def _sent_alike(replies: Sequence[Observation]) -> Iterator[list[Observation]]:
    """Yield the replies to one model together."""
    together = [reply for reply in replies if not reply.singled_out]
    if together:
        yield together
    for reply in replies:
        if reply.singled_out:
            yield [reply]


def _assumed(player: Player) -> Iterator[str]:
    """Say what was put in the place of what nobody sends."""
    kept = player.without_statistics
    if any(name.rpartition(".")[2] in _STATISTICS for name in player.missing):
        yield "batch statistics, which no client sends, were estimated on the target records under each client's model"
    if kept and player.fits:
        yield f"{short(', '.join(kept), 80)}, which clients keep, were fitted to the target records under each model"
    elif kept:
        yield f"{short(', '.join(kept), 80)}, which clients do not send, are as the app makes them anew"


def _has_arrays(reply: Observation) -> bool:
    return replied(reply) and reply.arrays is not None


def _replies(record: Record) -> Iterator[Observation]:
    for round_ in record:
        yield from filter(_has_arrays, round_.observations)


def _check_form(weights: Arrays, reply: Observation) -> None:
    """Refuse a reply that is not of the form of what the client was sent.

    Raises
    ------
    DataError
        If it is not.
    """
    received = reply.received
    if received is None:
        raise DataError("what model it was sent is not in the record")
    sent, before = dict(form_of(weights)), dict(form_of(received))
    appeared = [name for name in sent if name not in before]
    vanished = [name for name in before if name not in sent]
    reshaped = [name for name in sent if name in before and sent[name] != before[name]]
    if appeared or vanished or reshaped:
        parts = (("appeared", appeared), ("vanished", vanished), ("are of another shape", reshaped))
        faults = [f"{short(', '.join(names), 80)} {how}" for how, names in parts if names]
        raise DataError(f"it replied other arrays than it was sent: {'; '.join(faults)}")


def main() -> int:
    """Read a request, answer it, and write the answers where it says."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        found = Interview(request).hold(lambda line: print(line, file=sys.__stdout__, flush=True))
    except FedAttackError as cause:
        print(short(str(cause), 500), file=sys.stderr)
        return 2
    write_npz(Path(request["answers"]), found)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the app began would keep the process.
    os._exit(code)
