"""Read a record: lazily, round by round, verified before use.

:class:`Record` is a view (:mod:`fedattack.record.views`) of what lies on disk (:mod:`fedattack.record.storage`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import RecordError, short
from fedattack.record.arrays import StoredArrays, TensorFile
from fedattack.record.format import COUNT_KEY, PROTOCOLS, Arrays, Parameter, Server, Status, View, decode_metric
from fedattack.record.index import IndexedLine
from fedattack.record.others import Others, in_words
from fedattack.record.schema import Protocol
from fedattack.record.singled import Weighing, find_singled, split
from fedattack.record.storage import RecordStorage
from fedattack.record.views import ChangedEntries, FlatVector, RecordView, move


class Observation:
    """What one node's reply, or its absence, showed the server in one round.

    Attributes
    ----------
    node, status, reason, num_examples, count_key, metrics, of_round
        As written; see :class:`fedattack.record.writer.Reply`.
    arrays
        What the client sent (in FedAvg its local model, in FedSGD its gradient, in FedMD its predictions), or ``None``.
    """

    def __init__(self, entry: Mapping[str, Any], index: int, round_: "Round", arrays: Arrays | None = None) -> None:
        self.node: str = entry["node"]
        self.status: Status = entry["status"]
        self.reason: str = entry.get("reason", "")
        # JSON may hold a special object in the place of NaN or infinity.
        self.num_examples: float | None = decode_metric(entry.get("num_examples"))
        self.count_key: str = entry.get("count_key", COUNT_KEY)
        self.metrics = _decode(entry.get("metrics", {}))
        self.of_round: int | None = entry.get("of_round")
        self._entry = entry
        self._index = index
        self._round = round_
        self._received = round_.show_model(f"received/{index}", entry.get("received"))
        self.arrays = arrays
        if arrays is None:
            self.arrays = round_.show_reply(f"reply/{index}", entry.get("arrays"), self)

    def with_arrays(self, arrays: Arrays) -> "Observation":
        """Return the same reply with arrays that were computed from a sum."""
        return Observation(self._entry, self._index, self._round, arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observation) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, int, int]:
        # The place on disk tells replies apart: views make new objects of the same reply.
        return self._round.where, self._round.seq, self._index

    @property
    def plaintext(self) -> Mapping[str, Any]:
        """Everything beside the arrays, by the names that the client gave it: the example count, then the metrics."""
        if self.num_examples is None:
            return self.metrics
        return {self.count_key: self.num_examples, **self.metrics}

    @property
    def count(self) -> float | None:
        """The example count, if it is a number that can weigh: above 0, and no larger than whole numbers are exact."""
        count = self.num_examples
        # 2⁵³: beyond it a float skips whole numbers.
        if isinstance(count, int | float) and not isinstance(count, bool) and 0 < count <= 2**53:
            return count
        return None

    @property
    def received(self) -> Arrays | None:
        """The model that was sent to this node: the round's common one unless the server singled it out."""
        if self._received is not None:
            return self._received
        return self._round.common

    @property
    def singled_out(self) -> bool:
        """Whether the server sent this node another model than the common one."""
        return self._received is not None

    def update(self) -> dict[str, NDArray[np.float32]]:
        """Δ = sent − received in float32, by name, without buffers and integer arrays.

        Raises
        ------
        RecordError
            If there is no reply, if what was sent to the node is unknown, if the shapes differ, or if replies of the
            record's protocol are no models.
        """
        if not PROTOCOLS[self._round.protocol].sends_back:
            raise RecordError(
                f"{self._round.where}: an update is sent − received in fedavg; this is {self._round.protocol}"
            )
        if self.arrays is None or self.received is None:
            why = self.reason or self.status
            if self.status == "ok":
                why = "the record does not keep its arrays, or what was sent to it"
            raise RecordError(f"{self._round.where}, node {self.node}: no update, because {why}")
        roles = {parameter.name: parameter.role for parameter in self._round.parameters}
        update: dict[str, NDArray[np.float32]] = {}
        for name, before in self.received.items():
            # Δ is of parameters that are trained: buffers are counted, integers are not moved by a gradient.
            if roles.get(name) == "buffer" or not np.issubdtype(before.dtype, np.floating):
                continue
            after = self.arrays.get(name)
            if after is None or after.shape != before.shape:
                got = "nothing"
                if after is not None:
                    got = f"shape {after.shape}"
                raise RecordError(
                    f"{self._round.where}, node {self.node}, {name}: expected shape {before.shape}, got {got}"
                )
            # Weights are large and updates small: their difference is rounded once, at the end.
            update[name] = (after.astype(np.float64) - before.astype(np.float64)).astype(np.float32)
        return update


class Round:
    """One round of a record.

    Attributes
    ----------
    number
        The round as the server counts it.
    seq
        Its position in the record.
    """

    def __init__(self, line: IndexedLine, record: "Record") -> None:
        self._line = line
        self._record = record
        self.number = line.number
        self.seq = line.seq

    @property
    def file(self) -> TensorFile:
        """Its arrays on disk."""
        return self._record.storage.file_of(self._line)

    @property
    def _entry(self) -> Mapping[str, Any]:
        return self._record.storage.entry(self._line)

    @property
    def source(self) -> Mapping[str, Any] | None:
        """Where the common model is, as FORMAT.md says."""
        return cast(Mapping[str, Any] | None, self._entry["common"])

    @property
    def config(self) -> dict[str, Any]:
        """What the server sent with the model."""
        return _decode(self._entry["config"])

    @property
    def others(self) -> tuple[Others, ...]:
        """Messages that passed since the round before, and are no training: what they hold in plaintext."""
        return self._record.others_in(self._entry.get("others", ()), self.seq)

    @property
    def where(self) -> str:
        """The round's place, for messages."""
        return f"{self._record.path}, round {self.number}"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The record's table of parameters."""
        return self._record.parameters

    @property
    def protocol(self) -> Protocol:
        """The record's protocol."""
        return self._record.protocol

    @property
    def observations(self) -> tuple[Observation, ...]:
        """One per sampled node, and late replies to earlier rounds, in the order in which the server took them."""
        return tuple(seen for seen in self.all_observations if seen.node not in self._record.unseen)

    @property
    def all_observations(self) -> tuple[Observation, ...]:
        """Those of nodes that are left out, too: the next model is made of these."""
        if self._record.exchanges:
            return tuple(self._record.singled_in(self))
        return tuple(Observation(entry, index, self) for index, entry in enumerate(self._entry["replies"]))

    @property
    def sampled(self) -> tuple[str, ...]:
        """Nodes that were asked to take part in this round."""
        return tuple(observation.node for observation in self.observations if observation.status != "late")

    @property
    def participants(self) -> tuple[str, ...]:
        """Nodes whose reply arrived in time."""
        return tuple(observation.node for observation in self.observations if observation.status == "ok")

    @property
    def unfinished(self) -> bool:
        """Whether the run ended before this round did, so that no reply of it was taken."""
        return self._line.unfinished

    @property
    def empty(self) -> bool:
        """Whether no reply of it was usable."""
        # Without some nodes a round may have nobody left who answered.
        return self._line.empty or (bool(self._record.unseen) and not self.participants)

    @property
    def common(self) -> Arrays | None:
        """The model that the server sent at the start of the round."""
        record = self._record
        return record.show_model(record.storage.common_of(self._line.origin))

    @property
    def aggregate(self) -> Arrays | None:
        """What a secure-aggregation server sees; ``None`` in the individual view."""
        # Exchanges of an inconsistent server are shown as single replies; their sums were used up.
        if self._record.exchanges:
            return None
        return self.show_model("aggregate", self._entry["aggregate"])

    @property
    def after(self) -> Arrays | None:
        """The common model after the round, if the server is known to have made one."""
        seq = self.seq
        exchanges = self._record.exchanges.get(self.number)
        # The next round follows the last one of several exchanges.
        if exchanges:
            seq = exchanges[-1].seq
        return self._record.show_model(self._record.storage.common_after(seq))

    def show_model(self, prefix: str, names: Sequence[str] | None) -> Arrays | None:
        """Return a model or a sum of this round's file, as the record is seen; ``names`` are those on disk."""
        return self._record.show_model(self._record.storage.arrays(self._line, prefix, names))

    def show_reply(self, prefix: str, names: Sequence[str] | None, reply: Observation) -> Arrays | None:
        """Return what is in this round's file of a reply, as the record is seen."""
        return self._record.show_reply(self._record.storage.arrays(self._line, prefix, names), reply)


def _decode(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: decode_metric(value) for key, value in values.items()}


class Record:
    """A record on disk, read-only.

    Parameters
    ----------
    path
        The record's folder.
    skip_damaged
        Leave out rounds whose index line or file is damaged instead of refusing the record.
    thinned
        Take also a record that does not hold all that the server saw. Without it such a record is refused, so that what
        asks for a whole one never computes with less.

    Attributes
    ----------
    view, protocol, server, status, seed, facts, parameters
        As the manifest says; see FORMAT.md.
    keep
        What of the run is in the record. Its rounds are those that are kept.
    signer
        Fingerprint of the key that the record is signed by; ``None`` where it is not signed.
    damage
        What was left out because of ``skip_damaged``, in words.
    unseen, exchanges
        As :class:`fedattack.record.views.RecordView` says.

    Raises
    ------
    RecordError
        If there is no record, it is of another format, its index is damaged, it is not what was signed, or it was
        thinned and need not be. A half-written last line, as a killed run leaves it, is no damage: that round was never
        whole. A damaged file is refused when it is read.
    """

    def __init__(self, path: Path | str, *, skip_damaged: bool = False, thinned: bool = False) -> None:
        self._see(RecordStorage(Path(path), skip_damaged=skip_damaged, thinned=thinned), RecordView())

    def _see(self, storage: RecordStorage, view: RecordView) -> None:
        """Take all that is known of the record from its storage, as the view shows it."""
        manifest = storage.manifest
        self.storage = storage
        self._view = view
        self.path = storage.path
        self.manifest = manifest
        self.index = storage.index
        self.keep = storage.keep
        self.kept = storage.kept
        self.signer = storage.signer
        self.damage = storage.damage
        # Single replies are known where the server singled them out.
        self.view: View = "individual" if view.exchanges else manifest["view"]
        self.protocol: Protocol = view.protocol or manifest["protocol"]
        self.server: Server = manifest["server"]
        self.status: str = manifest["status"]
        self.seed: int | None = manifest["seed"]
        self.facts = _decode(manifest["facts"])
        self.parameters = view.parameters(storage.parameters)
        self.unseen = view.unseen
        self.exchanges = view.exchanges
        self._lines = storage.rounds
        # The first exchange of a round stands for the round.
        if view.exchanges:
            self._lines = [lines[0] for lines in view.exchanges.values()]

    def _seen_as(self, **changes: Any) -> "Record":
        """Return another view of this record: the one way to make one. ``changes`` are those to the present view."""
        # Past __init__, which would read the folder again.
        record = Record.__new__(Record)
        record._see(self.storage, replace(self._view, **changes))
        return record

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Round]:
        return (Round(line, self) for line in self._lines)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds, in the order in which they were written."""
        return tuple(self)

    @property
    def lines(self) -> tuple[Round, ...]:
        """The rounds, and the models after them where those are no rounds of the record."""
        return tuple(Round(line, self) for line in self.storage.lines)

    @property
    def id(self) -> str:
        """What tells it from every other record."""
        return str(self.manifest["id"])

    @property
    def origin(self) -> str:
        """The id of the record that the server wrote: its own, unless it is a copy that holds less or other."""
        return str(self.manifest.get("origin", self.id))

    @property
    def remarks(self) -> list[str]:
        """What a reader should know, or cannot: what was left out, who wrote the record, whether it was changed."""
        thinned = []
        if self.kept:
            thinned.append(f"the record does not hold all that the server saw: it keeps {self.kept}")
        return [*thinned, *self.storage.say_origins()]

    @property
    def unrecorded(self) -> list[dict[str, Any]]:
        """Messages of which something is not in the record, as FORMAT.md says."""
        return list(self.manifest.get("unrecorded", ()))

    @property
    def gaps(self) -> list[str]:
        """What reached server or clients and is not in the record, a sentence for each kind of message."""
        return [in_words(entry) for entry in self.unrecorded]

    @property
    def others_after(self) -> tuple[Others, ...]:
        """Messages that passed after the last round, and are no training: what they hold in plaintext."""
        return self.others_in(self.manifest.get("others", ()), len(self.index.lines))

    @property
    def others(self) -> Iterator[Others]:
        """All messages that are no training, in their order."""
        for round_ in self.lines:
            yield from round_.others
        yield from self.others_after

    def others_in(self, entries: Iterable[Mapping[str, Any]], line: int) -> tuple[Others, ...]:
        """Read what stands of messages in a line or the manifest, without nodes that are left out."""
        found = (Others.from_entry(entry, line).without(self.unseen) for entry in entries)
        return tuple(others for others in found if others is not None)

    @property
    def has_contents(self) -> bool:
        """Whether any reply, to whatever kind of message, holds numbers or texts."""
        if any(others.way == "reply" and (others.metrics or others.arrays) for others in self.others):
            return True
        return any(seen.arrays or seen.metrics for round_ in self for seen in round_.observations)

    @property
    def silence(self) -> str:
        """A sentence on a record in which no client ever answered, with the first one's reason; empty for others."""
        if not self._lines or not all(round_.empty for round_ in self):
            return ""
        reasons = [observation.reason for observation in self.rounds[0].observations if observation.reason]
        said = f"no client answered a training message in any of {len(self)} rounds"
        if reasons:
            said += f": {reasons[0]}".rstrip(": ")
        return short(said)

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that were ever sampled, sorted."""
        # The index names more than those: all others were taken along in sums.
        if self.exchanges:
            return tuple(sorted({node for round_ in self for node in round_.sampled}))
        return tuple(node for node in self.storage.nodes if node not in self.unseen)

    @property
    def final(self) -> Arrays | None:
        """The common model after the last round, if the server recorded it."""
        return self.show_model(self.storage.final)

    def show_model(self, stored: Arrays | None) -> Arrays | None:
        """Return a model or a sum as this view shows it; ``None`` for none."""
        return self._view.show_model(stored, self.parameters)

    def show_reply(self, stored: Arrays | None, reply: Observation) -> Arrays | None:
        """Return what a client sent as this view shows it: where it is a difference, the model that it tells of."""
        factors = self._view.factors
        if self._view.entries is not None:
            return self._view.show_entries(reply.received, stored)
        # FedAvg's replies are models already; gradients and predictions are shown as they came.
        if factors is None and PROTOCOLS[self.protocol].sends_back:
            return self.show_model(stored)
        change = self._view.show_change(stored, self.parameters)
        if factors is None or change is None:
            return change
        received, factor = reply.received, factors.get(reply.node)
        # A client whose factor nobody knows tells no model.
        if factor is None or received is None:
            return None
        return move(received, change, factor)

    def rename(self, names: Mapping[str, str]) -> "Record":
        """Return a view of this record in which parameters have other names; what is on disk stays as it is.

        Parameters
        ----------
        names
            New names by those on disk; a parameter that is not among them keeps its own.
        """
        return self._seen_as(new_names=dict(names))

    def complete(self, frozen: Mapping[str, NDArray[Any]], order: Sequence[str]) -> "Record":
        """Return a view of this record in which every model has further arrays; what is on disk stays as it is.

        Parameters
        ----------
        frozen
            By name, arrays that no client and no server changed. Where a reply is a gradient, theirs is zero.
        order
            The names of all arrays as the model has them.
        """
        return self._seen_as(frozen=dict(frozen), order=tuple(order))

    def read_as(
        self,
        arrays: Sequence[str],
        factors: Mapping[str, float] | None,
        *,
        entries: ChangedEntries | None = None,
        flat: FlatVector | None = None,
        protocol: Protocol | Literal[""] = "",
    ) -> "Record":
        """Return a view of this record in which replies are local models; what is on disk stays as it is.

        Parameters
        ----------
        arrays
            Names on disk of those arrays that are the model's; empty for all.
        factors
            By node, of replies that are differences: a reply is the factor times (local model − received). Replies of
            other nodes have no arrays then. ``None`` where replies are models.
        entries
            How replies of indices and values change the model that was sent; ``None`` for other replies.
        flat
            Which arrays stand in the one vector that models are sent as; ``None`` for other models. ``arrays`` and new
            names are of these.
        protocol
            The protocol that the replies are of, where it is another than the record says.
        """
        return self._seen_as(chosen=frozenset(arrays), factors=factors, entries=entries, flat=flat, protocol=protocol)

    def without(self, nodes: Iterable[str]) -> "Record":
        """Return a view of this record in which nothing of some nodes is seen; common models and sums stay."""
        return self._seen_as(unseen=self.unseen | {*nodes})

    def singled_out(self) -> "Record":
        """Return a view in which the replies are there that the server of sums singled out; else the record itself.

        Such a server is ``inconsistent``. A round is several exchanges of one number, in each of which all but one
        client were sent a model that does not learn. What these sent is known, and the rest of the sum is one reply.
        """
        if self.server != "inconsistent" or self.view != "aggregate":
            return self
        # A round of such a server is several lines of one number.
        exchanges: dict[int, list[IndexedLine]] = {}
        for line in self._lines:
            exchanges.setdefault(line.number, []).append(line)
        return self._seen_as(exchanges=exchanges)

    def singled_in(self, round_: Round) -> Iterator[Observation]:
        """Yield the replies that the server singled out in the exchanges of a round."""
        # A view without exchanges, so that the lines are shown as sums again.
        sums = self._seen_as(exchanges={})
        weighing = Weighing.of(self.manifest["aggregation"])
        for exchange, seen in find_singled([Round(line, sums) for line in self.exchanges[round_.number]]):
            yield seen.with_arrays(self._rest_of(exchange, seen, weighing))

    def _rest_of(self, exchange: Round, seen: Observation, weighing: Weighing) -> Arrays:
        """Return what one client sent: a sum without what the others did."""
        aggregate, common = exchange.aggregate or {}, seen.received or {}
        _, others = split(exchange.all_observations)

        def read(name: str) -> NDArray[Any]:
            mean, before = aggregate[name], common[name]
            # What the others sent is known: they were sent a model that does not learn, and sent it back.
            known = [((other.received or {}).get(name, np.zeros(0)), other.count or 0) for other in others]
            # All must have one shape before NumPy broadcasts them to something else.
            if {mean.shape, *(sent.shape for sent, _ in known)} != {before.shape} or not weighing.weight(
                seen.count or 0
            ):
                raise RecordError(f"{exchange.where}: {name} of the sum and of what was sent do not fit together")
            return weighing.subtract(mean, known, [seen.count or 0]).astype(before.dtype)

        return StoredArrays(read, {name: name for name in aggregate if name in common})
