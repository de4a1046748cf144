"""An active server of somebody's app: in the first round clients are sent another model than the strategy's.

The strategy itself is as it was. It is given back the model that it had sent, so that the run goes on as an honest one.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.common import FitIns, Parameters, Scalar, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from fedattack.attacks import Knowledge
from fedattack.attacks.departures import make_fishing, make_imprint
from fedattack.base.errors import ConfigError, NeedsError, RunError
from fedattack.learning.departures import FirstLayers, Fishing, Imprint
from fedattack.observe._noticing import call_before
from fedattack.observe._tracker import is_masked, kind_of
from fedattack.observe.grid import PassingGrid
from fedattack.record import Record

_PLAN = "plan"
_ROUND = 1


@dataclass(frozen=True)
class Plan:
    """What is sent in place of a model: the names of its arrays, in their order, and what makes weights by them."""

    names: tuple[str, ...]
    makes: Imprint | Fishing

    @classmethod
    def of(cls, server: str, record: Record, knowledge: Knowledge, seed: int) -> "Plan":
        """Plan it for the clients of a run in which the server was honest.

        Raises
        ------
        ConfigError
            If the model, or what the server knows, does not allow it.
        """
        known = knowledge.model
        try:
            if known is None:
                raise NeedsError("it needs a model that can be built from what the witness saw of clients' training")
            state = known.build().state_dict()
            sent = [parameter.shape for parameter in record.parameters]
            # By shapes and order, as the plan is applied to arrays without names.
            if sent != [tuple(tensor.shape) for tensor in state.values()]:
                raise NeedsError("it needs clients that are sent the whole model, and these are sent other arrays")
            auxiliary = knowledge.auxiliary
            if server == "fishing":
                return cls(tuple(state), make_fishing(known, seed))
            return cls(tuple(state), make_imprint(known, auxiliary.x if auxiliary is not None else np.zeros(0), seed))
        except NeedsError as cause:
            raise ConfigError(f"--server {server}: {cause}") from None

    def write(self, path: Path) -> None:
        """Write it for the server's process."""
        # A file and not a pickle: the server's process reads it.
        plain = asdict(self.makes)
        examples = plain.pop("examples", np.zeros(0, dtype=np.float32))
        entry = json.dumps({"names": self.names, **plain})
        save_file({"examples": np.ascontiguousarray(examples)}, path, metadata={_PLAN: entry})

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Read what :meth:`write` wrote."""
        with safe_open(path, framework="numpy") as file:
            entry, examples = json.loads(file.metadata()[_PLAN]), file.get_tensor("examples")
        names = tuple(entry.pop("names"))
        if "layers" in entry:
            return cls(names, Imprint(FirstLayers(**entry["layers"]), examples, entry["seed"]))
        return cls(names, Fishing(**entry))

    def depart(self, model: Sequence[NDArray[Any]], part: int = 0, parts: int = 1) -> list[NDArray[Any]]:
        """Return what is sent in place of a model; behind sums to one of several clients."""
        named = dict(zip(self.names, model, strict=True))
        made = self.makes(named, _ROUND, part, parts)
        return [np.asarray(made[name], dtype=array.dtype) for name, array in named.items()]


class DepartingServerApp(ServerApp):
    """A ServerApp that runs another one, of which clients are sent what the file ``plan`` says in the first round."""

    def __init__(self, inner: ServerApp, plan: Path | str) -> None:
        super().__init__()
        self._inner = inner
        self._plan = Path(plan)

    def __call__(self, grid: Grid, context: Context) -> None:
        """Run the inner app."""
        plan = Plan.read(self._plan)
        with _departing_from_sums(plan):
            self._inner(DepartingGrid(grid, plan), context)


class DepartingGrid(PassingGrid):
    """A Grid that changes what is sent to clients in the first round of training, and what comes back of it.

    A round is over when a node is asked again, or messages are of another group.
    """

    def __init__(self, inner: Grid, plan: Plan) -> None:
        super().__init__(inner)
        self._plan = plan
        # Flower's legacy server sends from several threads.
        self._lock = threading.Lock()
        self._is_over = False
        self._group: str | None = None
        self._models: dict[int, _Replaced] = {}
        self._asked: set[int] = set()
        self._last: _Replaced | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Change the messages, then push them."""
        return self._inner.push_messages([*map(self._depart, messages)])

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and change them."""
        return [*map(self._give_back, self._inner.pull_messages(message_ids))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Change the messages, send them, change the replies."""
        sent = [*map(self._depart, messages)]
        return [*map(self._give_back, self._inner.send_and_receive(sent, timeout=timeout))]

    def _departs(self, message: Message) -> bool:
        node, group = message.metadata.dst_node_id, message.metadata.group_id
        if self._is_over or not _is_training(message):
            return False
        if self._group is None:
            self._group = group
        # The first round is over when another group begins, or a node is asked again.
        self._is_over = group != self._group or node in self._asked
        self._asked.add(node)
        return not self._is_over

    def _depart(self, message: Message) -> Message:
        with self._lock:
            if self._departs(message):
                arrays = _list_arrays(message)
                # Clients that get one model get one in its place.
                if self._last is None or not self._last.is_of(arrays):
                    self._last = _Replaced.of(arrays, self._plan)
                self._models[message.metadata.dst_node_id] = self._last
                _replace_arrays(message, self._last.sent)
        return message

    def _give_back(self, reply: Message) -> Message:
        """Put the strategy's own model in the place of what a client made of another; a difference becomes none."""
        with self._lock:
            if not (_is_training(reply) and reply.has_content()):
                return reply
            # The lock is not held while arrays are read: replies may be large.
            asked = self._models.pop(reply.metadata.src_node_id, None)
        if asked is not None:
            _replace_arrays(reply, asked.undo(_read(_list_arrays(reply))))
        return reply


@dataclass(frozen=True)
class _Replaced:
    """What the strategy sends, and what clients get in its place."""

    own: Sequence[Array]
    sent: Sequence[Array]

    @classmethod
    def of(cls, own: Sequence[Array], plan: Plan) -> "_Replaced":
        departed = plan.depart(_read(own))
        return cls(own, [Array(array) for array in departed])

    def is_of(self, arrays: Sequence[Array]) -> bool:
        """Say whether this is what the strategy sends, by its bytes' identity."""
        # Identity and not content: comparing whole models for each client would take longer than sending them.
        return [id(array.data) for array in arrays] == [id(array.data) for array in self.own]

    def undo(self, replied: Sequence[NDArray[Any]]) -> list[Array]:
        """Return what a client would have replied that does not train."""
        own, sent = _read(self.own), _read(self.sent)
        if [array.shape for array in replied] != [array.shape for array in own]:
            raise RunError(
                "an active server must return to its strategy the model that it had sent; here clients reply with "
                f"{len(replied)} arrays to a model of {len(own)}, or with other shapes, so this server cannot be "
                "tried on this app"
            )
        # A model that was made of another is nearer to it than to nothing; a difference is not.
        moved = sum(_square(array - before) for array, before in zip(replied, sent, strict=True))
        kept = own
        if moved >= sum(map(_square, replied)):
            kept = [*map(np.zeros_like, own)]
        return [Array(array.astype(old.dtype)) for array, old in zip(kept, replied, strict=True)]


def _read(arrays: Iterable[Array]) -> list[NDArray[Any]]:
    return [array.numpy() for array in arrays]


def _square(array: NDArray[Any]) -> float:
    return float(np.square(array.astype(np.float64)).sum())


def _is_training(message: Message) -> bool:
    """Say whether a message is one of training, and not masked."""
    return kind_of(message) == "train" and not (message.has_content() and is_masked(message.content))


def _list_arrays(message: Message) -> list[Array]:
    # A message may hold several records of arrays: they are taken in their order.
    return list(chain.from_iterable(record.values() for record in message.content.array_records.values()))


def _replace_arrays(message: Message, arrays: Sequence[Array]) -> None:
    """Put arrays in the places of a message's own."""
    left, content = iter(arrays), RecordDict()
    for key, record in message.content.items():
        if isinstance(record, ArrayRecord):
            record = ArrayRecord({name: next(left) for name in record})
        content[key] = record
    message.content = content


class _DepartingStrategy:
    """A strategy behind SecAgg+ that sends each client weights of its own in the first round."""

    def __init__(self, inner: Strategy, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan
        self._first: int | None = None
        self._parameters: Parameters | None = None

    def __getattr__(self, name: str) -> Any:
        # By __dict__: while the object is unpickled, `self._inner` is not there yet and would recurse.
        return getattr(self.__dict__["_inner"], name)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        instructions = self._inner.configure_fit(server_round, parameters, client_manager)
        if self._first is not None or not instructions:
            return instructions
        # The first round of training is not always number 1.
        self._first, self._parameters = server_round, parameters
        sent = []
        for index, (proxy, asked) in enumerate(instructions):
            # Behind sums no reply is seen alone: each client is sent another part, so that the sum can be taken apart.
            arrays = self._plan.depart(parameters_to_ndarrays(asked.parameters), index, len(instructions))
            sent.append((proxy, FitIns(ndarrays_to_parameters(arrays), asked.config)))
        return sent

    def aggregate_fit(self, server_round: int, *args: Any) -> tuple[Parameters | None, dict[str, Scalar]]:
        if server_round == self._first:
            # The sum is the attacker's; the strategy goes on with the model that it had.
            return self._parameters, {}
        return self._inner.aggregate_fit(server_round, *args)


@contextmanager
def _departing_from_sums(plan: Plan) -> Iterator[None]:
    """Change what a strategy behind SecAgg+ sends: in the messages of the Grid models are masked."""
    met: list[Any] = []

    def depart(workflow: Any, grid: Grid, context: Any) -> None:
        # Each round has a call, and an observer comes between.
        if not met:
            met.append(workflow)
            context.strategy = _DepartingStrategy(context.strategy, plan)

    # Flower's workflow masks models before the Grid sees them: the change must come before.
    with call_before(SecAggPlusWorkflow, "__call__", depart):
        yield
