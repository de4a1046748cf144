"""Turn the messages that pass a server into rounds."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from numpy.typing import NDArray

from fedattack.observe._arrays import view_array, view_records
from fedattack.observe._recorder import Recorder
from fedattack.record import Exchange, Reply
from fedattack.record.format import COUNT_KEY, COUNT_KEYS, UNFINISHED, Arrays
from fedattack.record.means import identical
from fedattack.record.others import Others, Way

_LEGACY_CONFIG = "fitins.config"
_LEGACY_STATUS = "res.status"
_TRAIN, _EVALUATE, _GET_PARAMETERS = "train", "evaluate", "get_parameters"

# Models that may be the next common one and are held until that is known.
_HELD = 4
_SECAGG = "secaggplus"
_CLOSED = "no reply before the round was closed"


class _Sent:
    """A training message that the server sent: to which node, with which model."""

    def __init__(self, message: Message, model: Arrays | None) -> None:
        self.message = message
        self.node = message.metadata.dst_node_id
        self.kind = message.metadata.message_type
        self.model = model
        self.reply: Reply | None = None
        self.reply_number = 0


@dataclass
class _TrackedModel:
    """A model beside the training of a round, which is in the record if it is the next common one.

    Attributes
    ----------
    type, way
        Of its messages.
    arrays
        The model.
    named
        The same with the names of their array records.
    messages
        How many messages carried it.
    """

    type: str
    way: Way
    arrays: Arrays
    named: Arrays
    messages: int = 1


class RoundTracker:
    """Collects the training messages of a round and its replies, and hands the round over when it is finished.

    A round is finished when the observer says so, or when the server turns to something else:

    - training messages of another round,
    - an evaluation with nothing pending,
    - the end of the run.

    The recorder gets what all other messages, such as queries, hold in plaintext, and their arrays up to a bound.

    A reply that comes after that is late, and goes into the record with the next round. All methods may be called from
    several threads, as Flower's legacy server does.

    Attributes
    ----------
    aside
        Whether messages of training tell nothing, because they are masked.
    count_keys
        Under which keys clients may send their example count, the first of which comes first.
    """

    def __init__(
        self, recorder: Recorder, names: Sequence[str] | None = None, count_keys: Sequence[str] = COUNT_KEYS
    ) -> None:
        self.recorder = recorder
        # One that its own thread may take again: ``close`` calls ``finish``.
        self.lock = threading.RLock()
        self._names = names
        self.count_keys = count_keys
        self.aside = False
        # Whether messages' groups number the rounds, as Flower's own strategies do; until one says otherwise.
        self._grouped = True
        self._number: int | None = None
        self._last = 0
        self._sent: list[_Sent] = []
        self._unindexed: list[_Sent] = []
        self._asked: dict[int, _Sent] = {}
        self._index: dict[str, _Sent] = {}
        self._replies = 0
        # By the id of a message that nobody answered in time: its node, and the round that is closed.
        self._overdue: dict[str, tuple[int, int]] = {}
        self._late: list[Reply] = []
        self._started = 0.0
        self._config: dict[str, Any] = {}
        self._legacy = False
        # Models of the round, by the memory of a message's arrays: the model of a thousand clients is read once.
        self._models: dict[tuple[int, ...], Arrays] = {}
        self._perhaps: list[_TrackedModel] = []
        self._knows_final = False

    def sent(self, messages: Sequence[Message], number: int | None = None) -> None:
        """Note messages that the server sends, in the round of this number unless they say another."""
        with self.recorder.containing(), self.lock:
            before = len(self._sent)
            self._note_all(messages, number)
            # Flower's legacy server sends one message a call, and how many there are shows when the round is over.
            if len(self._sent) > before + 1:
                self.recorder.foretell(self._sent[-1].model, len(self._sent))

    def _note_all(self, messages: Sequence[Message], number: int | None) -> None:
        for message in messages:
            kind = kind_of(message)
            if kind != _TRAIN:
                # A server evaluates what its round led to. It may also evaluate between, as asynchronous ones do.
                if kind == _EVALUATE and not self._is_waiting():
                    self.finish()
                self._note_other(message)
            elif not self.aside:
                self._note(message, number)

    def _note_other(self, message: Message) -> None:
        """Note a message that the server sends, and that is no training."""
        if not message.has_content():
            return
        kind, content = message.metadata.message_type, message.content
        named, model = _view_arrays(content), None
        if named and kind_of(message) == _EVALUATE:
            model = self._view_model(content)
        values, arrays = _plain_values(content), named
        if model is not None:
            arrays = {}
        if values or arrays:
            self.recorder.note(Others(kind, "sent", (str(message.metadata.dst_node_id),), values, arrays=arrays))
        if model is None:
            return
        if self.aside:
            # The strategy's observer notes the model.
            if self.recorder.final is None or not identical(model, self.recorder.final):
                self.recorder.leave_out(kind, "sent", arrays=named)
            return
        # The strategy's own word counts more: an app may evaluate another model, such as a running mean.
        if not self._knows_final:
            self.recorder.final = model
        self._hold(_TrackedModel(kind, "sent", model, named))

    def _note_answer(self, message: Message) -> None:
        """Note a reply to a message that is no training."""
        kind, nodes = message.metadata.message_type, (str(message.metadata.src_node_id),)
        if message.has_error():
            error = message.error
            reason = f"error {error.code}: {error.reason or 'no reason given'}"
            self.recorder.note(Others(kind, "reply", nodes, reason=reason))
        if not message.has_content():
            return
        content = message.content
        named, model = _view_arrays(content), None
        if named and kind == _GET_PARAMETERS and not self.aside:
            # Flower's legacy server begins with a client's model.
            with suppress(ValueError):
                model = view_records(content.array_records, self._names)
        values, reason, arrays = _plain_values(content), _fault_of(content), named
        if model is not None:
            self._hold(_TrackedModel(kind, "reply", model, named))
            arrays = {}
        if values or reason or arrays:
            self.recorder.note(Others(kind, "reply", nodes, values, reason, arrays=arrays))

    def _hold(self, model: _TrackedModel) -> None:
        """Keep a model until it is known whether it is the next common one."""
        for other in self._perhaps:
            if other.arrays is model.arrays and (other.type, other.way) == (model.type, model.way):
                other.messages += 1
                return
        self._perhaps.append(model)
        while len(self._perhaps) > _HELD:
            self._leave_out(self._perhaps.pop(0))

    def _settle(self, common: Arrays | None) -> None:
        """Name those of the held models that are not the one which the record has."""
        with self.recorder.containing(), self.lock:
            for model in self._perhaps:
                if common is None or not identical(model.arrays, common):
                    self._leave_out(model)
            self._perhaps = []

    def _leave_out(self, model: _TrackedModel) -> None:
        self.recorder.leave_out(model.type, model.way, arrays=model.named, messages=model.messages)

    def _note(self, message: Message, known: int | None) -> None:
        # The number that clients are told; else what the strategy says; else what is counted.
        number = _round_number(message)
        if number is None:
            number = known
        before = self._asked.get(message.metadata.dst_node_id)
        if number is None:
            number = self._next_number(message, again=before is not None)
        if number != self._number:
            self.finish()
            self._open(number, message.content)
        elif before is not None and before.kind != message.metadata.message_type:
            self.recorder.fail(
                f"round {number}: a node was sent both {before.kind} and {message.metadata.message_type}; a record "
                "holds one exchange with each node in a round: give each a number of its own in "
                "config['server-round']"
            )
        values = _plain_values(message.content)
        if values != self._config:
            # The round has what its first message held.
            kind, nodes = message.metadata.message_type, (str(message.metadata.dst_node_id),)
            self.recorder.note(Others(kind, "sent", nodes, values))
        # The message itself, and not its id: Flower gives it one when it is pushed, which is later.
        sent = self._asked[message.metadata.dst_node_id] = _Sent(message, self._view_model(message.content))
        self._sent.append(sent)
        self._unindexed.append(sent)

    def _next_number(self, message: Message, *, again: bool) -> int:
        """Count the rounds of a server that does not number them, but perhaps in its messages' groups."""
        group = message.metadata.group_id
        if self._grouped and group.isascii() and group.isdigit():
            if not again or int(group) != self._number:
                return int(group)
            # The groups are of something else.
            self._grouped = False
        # It goes on to the next round once it asks a node again, or has all replies.
        if self._is_waiting() and not again:
            return self._last
        return self._last + 1

    def _is_waiting(self) -> bool:
        """Say whether a node has not replied yet."""
        return any(sent.reply is None for sent in self._sent)

    def replied(self, messages: Iterable[Message]) -> None:
        """Note replies, errors among them, in the order in which the server took them."""
        with self.recorder.containing(), self.lock:
            for message in messages:
                self._take(message)

    def finish(self, reason: str = _CLOSED) -> None:
        """End the round, if there is one, and hand it over; ``reason`` is why a node without a reply has none."""
        with self.recorder.containing(), self.lock:
            if self._number is None:
                return
            number = self._number
            self._number = None
            # Models that are sent as one object are one; who was sent another one was singled out.
            common = _most_sent([sent.model for sent in self._sent])
            self._settle(common)
            self.recorder.foretell(common, len(self._sent))
            replies: list[Reply] = []
            missing: list[Reply] = []
            # The server averages replies in the order in which it took them.
            for sent in sorted(self._sent, key=lambda sent: sent.reply_number):
                if sent.reply is not None:
                    replies.append(_with_model(sent.reply, sent.model, common))
                    continue
                # Its reply may still come, with a later round.
                self._overdue[sent.message.metadata.message_id] = (sent.node, number)
                reply = Reply(node=str(sent.node), status="missing", reason=reason)
                missing.append(_with_model(reply, sent.model, common))
            self.recorder.put(
                Exchange(
                    number=number,
                    common=common,
                    replies=[*replies, *missing, *self._late],
                    config=self._config,
                    mean="legacy" if self._legacy else "message",
                    started=self._started,
                    ended=time.time(),
                )
            )
            self._late, self._sent, self._unindexed, self._index, self._asked = [], [], [], {}, {}

    def ended_in(self, arrays: ArrayRecord) -> None:
        """Note the common model that the round led to."""
        with self.recorder.containing(), self.lock:
            self._knows_final = True
            self.recorder.final = view_records({"arrays": arrays}, self._names)

    def close(self, error: str | None = None) -> None:
        """End the last round and the record; ``error`` says why the run ended early, if it did."""
        if error:
            # The last model of a run that failed is not recorded.
            self._flush(UNFINISHED)
            self._settle(None)
        else:
            self._flush(_CLOSED)
            self._settle(self.recorder.final)
        self.recorder.close(error)

    def _flush(self, reason: str) -> None:
        with self.recorder.containing(), self.lock:
            self.finish(reason)
            if self._late:
                self.recorder.put(Exchange(number=self._late[-1].of_round or 0, common=None, replies=self._late))
                self._late = []

    def _open(self, number: int, content: RecordDict) -> None:
        if is_masked(content):
            self.recorder.fail(
                "these are SecAgg+ messages, whose arrays are masked; observe the strategy instead: "
                "ObservedLegacyStrategy(strategy, out, view='aggregate')"
            )
        self._number = self._last = number
        self._started = time.time()
        self._legacy = _LEGACY_CONFIG in content.config_records
        self._config = _plain_values(content)
        self._models = {}
        self.recorder.final = None

    def _view_model(self, content: RecordDict) -> Arrays | None:
        """View the sent model; messages that carry the same bytes share one view."""
        arrays = chain.from_iterable(record.values() for record in content.array_records.values())
        # By identity: comparing models by value would take as long as sending them. Views keep the bytes alive for the
        # round, so that no id is used again.
        key = tuple(id(array.data) for array in arrays)
        if key not in self._models:
            self._models[key] = view_records(content.array_records, self._names)
        return self._models[key] or None

    def _take(self, message: Message) -> None:
        if kind_of(message) != _TRAIN:
            self._note_answer(message)
            return
        if self.aside:
            return
        match = self._match(message)
        if match is not None and match.reply is None:
            match.reply = self._read(message, match.node)
            self._replies += 1
            match.reply_number = self._replies
            return
        answers = message.metadata.reply_to_message_id
        if answers in self._overdue:
            node, number = self._overdue.pop(answers)
            reply = self._read(message, node)
            reason = f"came after round {number} was closed"
            if reply.reason:
                reason += f": {reply.reason}"
            self._late.append(replace(reply, status="late", reason=reason, of_round=number))
        else:
            # The server took a reply to what it never sent, or took it twice.
            content = message.content if message.has_content() else RecordDict()
            values, arrays = _plain_values(content), _view_arrays(content)
            self.recorder.leave_out(message.metadata.message_type, "reply", arrays=arrays, metrics=values)

    def _read(self, message: Message, node: int) -> Reply:
        try:
            return read_reply(message, str(node), self._names, self.count_keys)
        except Exception as cause:
            # Whatever it is, it is about this client's reply alone.
            return Reply(str(node), "failed", reason=f"a reply could not be read: {cause}")

    def _match(self, message: Message) -> _Sent | None:
        """Find what a reply answers. Messages get their ids when they are pushed, after they were noted."""
        unindexed = []
        for sent in self._unindexed:
            message_id = sent.message.metadata.message_id
            if message_id:
                self._index[message_id] = sent
            else:
                unindexed.append(sent)
        self._unindexed = unindexed
        answers = message.metadata.reply_to_message_id
        if answers:
            return self._index.get(answers)
        return next((sent for sent in self._sent if sent.node == message.metadata.src_node_id), None)


def read_reply(
    message: Message, node: str, names: Sequence[str] | None = None, count_keys: Sequence[str] = COUNT_KEYS
) -> Reply:
    """Read what one reply shows: arrays, example count, everything else in plaintext, or why there is nothing."""
    if message.has_error():
        error = message.error
        return Reply(node, "failed", reason=f"error {error.code}: {error.reason or 'no reason given'}")
    content = message.content
    values = _plain_values(content)
    # A count that is no number is one more metric.
    count, count_key = None, COUNT_KEY
    for key in count_keys:
        if isinstance(values.get(key), int | float):
            count, count_key = values.pop(key), key
            break
    reply = Reply(node, "ok", None, count, values, count_key=count_key)
    try:
        arrays: Mapping[str, NDArray[Any]] | None = view_records(content.array_records, names) or None
    except ValueError as cause:
        return replace(reply, status="failed", reason=f"arrays could not be read: {cause}")
    if fault := _fault_of(content):
        return replace(reply, status="failed", arrays=arrays, reason=fault)
    return replace(reply, arrays=arrays)


def kind_of(message: Message) -> str:
    """Return the first part of a message's type: ``train`` of ``train.warmup``."""
    return message.metadata.message_type.split(".")[0]


def is_masked(content: RecordDict) -> bool:
    """Say whether a message is one of SecAgg+, whose arrays are masked."""
    return any(key.startswith(_SECAGG) for key in content.config_records)


def _plain_values(content: RecordDict) -> dict[str, Any]:
    """Return all metrics and configs; of several with one name the later ones with the names of their records."""
    values: dict[str, Any] = {}
    records: list[tuple[str, Mapping[str, Any]]] = [*content.metric_records.items(), *content.config_records.items()]
    for key, record in records:
        if key.endswith(_LEGACY_STATUS):
            # A status of success says nothing, unless the client wrote into it.
            if record.get("message") and record.get("code", 0) == 0:
                values[f"{key}.message"] = record["message"]
            continue
        for name, value in record.items():
            if name in values:
                name = f"{key}.{name}"
            values[name] = value
    return values


def _fault_of(content: RecordDict) -> str:
    """Say why a legacy client could not do what it was asked; empty if it could."""
    records: Mapping[str, Mapping[str, Any]] = content.config_records
    for key, record in records.items():
        if key.endswith(_LEGACY_STATUS) and record.get("code", 0) != 0:
            return f"status {record['code']}: {record.get('message', '')}"
    return ""


def _view_arrays(content: RecordDict) -> dict[str, NDArray[Any]]:
    """View all arrays by their records' names and their own; those that cannot be read have no shape and are bytes."""
    arrays = {}
    for key, record in content.array_records.items():
        for name, array in record.items():
            try:
                arrays[f"{key}.{name}"] = view_array(array)
            except ValueError:
                arrays[f"{key}.{name}"] = np.frombuffer(array.data, dtype=np.uint8)
    return arrays


def count_keys_of(strategy: Any) -> tuple[str, ...]:
    """Return the metric by which a strategy weights its clients, inside Flower's wrappers too; then other keys."""
    # Wrappers, such as those of central differential privacy, have the strategy as ``strategy``.
    while not hasattr(strategy, "weighted_by_key") and hasattr(strategy, "strategy"):
        strategy = strategy.strategy
    weighted_by = getattr(strategy, "weighted_by_key", None)
    if weighted_by is None:
        return COUNT_KEYS
    return (weighted_by, *COUNT_KEYS)


def _most_sent(models: Sequence[Arrays | None]) -> Arrays | None:
    """Pick the model that most clients were sent: a server may single one out, and not only the last."""
    counts = Counter(id(model) for model in models)
    return max(models, key=lambda model: counts[id(model)], default=None)


def _with_model(reply: Reply, model: Arrays | None, common: Arrays | None) -> Reply:
    if model is common or model is None:
        return reply
    return replace(reply, received=model)


def _round_number(message: Message) -> int | None:
    for record in message.content.config_records.values():
        for key in ("server-round", "server_round"):
            number = record.get(key)
            if isinstance(number, int):
                return number
    return None
