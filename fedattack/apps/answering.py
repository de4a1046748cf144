"""Ask somebody's app itself for losses, in a process of its own: it runs the app's code.

The app's own train handler is called with the weights that are asked about, up to its first step. Of this step there is
a tape, which is played with each of the targets in the place of the client's examples. Nothing is trained, and no state
of a client is there.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.object_ref import load_app
from numpy.typing import NDArray
from torch import Tensor, nn

from fedattack.attacks.knowledge import Answers
from fedattack.attacks.replies import replied
from fedattack.base.errors import DataError, FedAttackError, short
from fedattack.base.files import write_npz
from fedattack.learning.importing import one_line
from fedattack.record import Observation, Record
from fedattack.record.format import Arrays
from fedattack.witness.tape import leaves_for, read_tape
from fedattack.witness.watch import same

PROGRESS = "asked "
"""How a line of the output begins that says how many replies were asked about."""

_SEED = 0
_BATCH_NORM = nn.modules.batchnorm._NormBase
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

# Bytes of the updates of one round that gradients are held against.
_MEMORY = 2**30

T = TypeVar("T")

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
        self.app(message, context)


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
        self._places = self._find(weights)

    def _start(self, weights: Arrays) -> None:
        """Read the app's step under these weights."""
        self.tape = read_tape(lambda: self._handler(weights))
        self._leaves = leaves_for(self.tape, self._x, self._y)
        self.tape.prepare(self._leaves)

    def _find(self, weights: Arrays) -> list[Tensor] | None:
        """Return where in the models' states these weights stand; ``None`` if they do not stand there as they are."""
        state = self.tape.state()
        found: list[Tensor] = []
        left = [tensor for _, tensor in state]
        for array in weights.values():
            place = next((one for one in left if same([one.numpy(force=True)], [array])), None)
            if place is None:
                self.missing: list[str] = []
                return None
            # By identity: tensors compare entry by entry.
            left = [one for one in left if one is not place]
            found.append(place)
        self.missing = [name for name, tensor in state if any(tensor is one for one in left)]
        return found

    def take(self, weights: Arrays) -> None:
        """Put other weights in."""
        if self._places is None:
            self._start(weights)
        else:
            with torch.no_grad():
                for place, array in zip(self._places, weights.values(), strict=True):
                    place.copy_(torch.from_numpy(np.array(array)).reshape(place.shape))
        self._fill_in()

    def _fill_in(self) -> None:
        """Put something in the place of batch statistics that nobody sends."""
        norms = []
        for model in self.tape.models:
            for name, part in model.named_modules():
                own = {f"{name}.{one}".removeprefix(".") for one in _STATISTICS}
                if isinstance(part, _BATCH_NORM) and part.track_running_stats and own & {*self.missing}:
                    norms.append(part)
        if norms:
            self.tape.estimate_statistics(self._leaves, norms)

    def losses(self) -> NDArray[np.float64]:
        """Return the losses (targets,) under the weights that were taken last."""
        return np.array([self.tape.loss_of(self._leaves, row) for row in range(len(self._y))])

    def along(self, updates: Sequence[Arrays]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Hold the targets' gradients, under the weights that were taken last, against updates.

        Parameters
        ----------
        updates
            k updates, by the names of the weights.

        Returns
        -------
        tuple of ndarray
            ⟨−∇ℓ, Δ⟩ (k, targets), ‖∇ℓ‖ (targets,), ‖Δ‖ (k,); NaN where the app hides its parameters.
        """
        count = len(self._y)
        products, norms = np.full((len(updates), count), np.nan), np.full(count, np.nan)
        lengths = np.full(len(updates), np.nan)
        learned = self._learned()
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
        if self._places is None:
            return {}
        parameters: dict[int, Tensor] = {}
        for model in self.tape.models:
            for parameter in model.parameters():
                if parameter.requires_grad and parameter.is_floating_point():
                    parameters[parameter.data_ptr()] = parameter
        found = {}
        for name, place in zip(self._names, self._places, strict=True):
            if place.data_ptr() in parameters:
                found[name] = parameters[place.data_ptr()]
        return found

    @property
    def trained_and_missing(self) -> list[str]:
        """Names of what clients train and keep, without statistics of batches."""
        return [name for name in self.missing if name.rpartition(".")[2] not in _STATISTICS]


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
        self._record = Record(Path(request["record"]))
        with np.load(request["targets"], allow_pickle=False) as file:
            self._x, self._y = file["x"], file["y"]
        self._app = load_app(request["clientapp"], DataError, request["folder"])
        self._players: dict[Form, Player] = {}
        self._reasons: dict[str, str] = {}

    def hold(self, say: Callable[[str], None]) -> dict[str, NDArray[Any]]:
        """Ask, and return the arrays of :class:`~fedattack.attacks.knowledge.Answers` and ``notes``.

        Raises
        ------
        DataError
            If no reply can be asked about.
        """
        found: dict[str, list[Any]] = {name: [] for name in Answers.__dataclass_fields__}
        total, done = sum(1 for _ in _replies(self._record)), 0
        for round_ in self._record:
            losses: dict[str, NDArray[np.float64]] = {}
            for reply in filter(_has_arrays, round_.observations):
                say(f"{PROGRESS}{done} {total}")
                done += 1
                of_reply = self._try(reply, self._losses)
                if of_reply is not None:
                    losses[reply.node] = of_reply
            for group in _sent_alike([one for one in round_.observations if one.node in losses]):
                along = self._try(group[0], lambda reply, group=group: self._along(group))  # type: ignore[misc]
                unknown = np.full((len(group), len(self._y)), np.nan)
                products, norms, lengths = along or (unknown, unknown[0], unknown[:, 0])
                for row, reply in enumerate(group):
                    found["seqs"].append(round_.seq)
                    found["nodes"].append(reply.node)
                    found["losses"].append(losses[reply.node])
                    found["products"].append(products[row])
                    found["norms"].append(norms)
                    found["lengths"].append(lengths[row])
        if not found["losses"]:
            raise DataError("; ".join(self._reasons) or "no reply holds arrays")
        arrays = {name: np.array(values) for name, values in found.items()}
        return {**arrays, "notes": np.array(self._notes(), dtype=np.str_)}

    def _try(self, reply: Observation, ask: Callable[[Observation], T]) -> T | None:
        """Ask; what the app's own code raises is a reason why this reply is left out."""
        try:
            return ask(reply)
        except FedAttackError as cause:
            self._reasons.setdefault(str(cause), reply.node)
        except Exception as cause:
            self._reasons.setdefault(one_line(cause), reply.node)
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

    def _losses(self, reply: Observation) -> NDArray[np.float64]:
        weights = dict(reply.arrays or {})
        _check_form(weights, reply)
        player = self._player(weights, reply.node)
        player.take(weights)
        return player.losses()

    def _along(
        self, replies: Sequence[Observation]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Hold the targets' gradients at the model that all of these were sent against their updates."""
        received = dict(replies[0].received or {})
        player = self._player(received, replies[0].node)
        player.take(received)
        return player.along([_update(reply, received) for reply in replies])

    def _notes(self) -> list[str]:
        notes = [f"client {node} left out: {reason}" for reason, node in self._reasons.items()]
        for player in self._players.values():
            notes += _assumed(player)
        return [*dict.fromkeys(notes)]


def _update(reply: Observation, received: Arrays) -> Arrays:
    """Return Δ = sent − received, in float32."""
    update = {}
    for name, sent in (reply.arrays or {}).items():
        update[name] = (np.asarray(sent, np.float64) - np.asarray(received[name], np.float64)).astype(np.float32)
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
    kept = player.trained_and_missing
    if len(kept) < len(player.missing):
        yield "batch statistics, which no client sends, were estimated on the target records under each client's model"
    if kept:
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
    sys.exit(main())
