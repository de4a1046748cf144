"""Read examples off the first fully connected layer: of single neurons, of whole batches, and of sums."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.first_layer import (
    FirstLayer,
    count_known_outputs,
    find_known_first_layer,
    find_layers_by_form,
    find_own_neurons,
)
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.local_models import readable
from fedattack.attacks.matching import check_model, is_finite
from fedattack.attacks.replies import list_updates, spread_replies, why_left_out
from fedattack.attacks.roles import choose_form, list_forms
from fedattack.base.errors import FedAttackError, NeedsError, RecordError
from fedattack.base.stored import OPTIONAL, Axes, Name, Number
from fedattack.learning.importing import Asked
from fedattack.record import Observation, Record, Round
from fedattack.record.format import Arrays
from fedattack.record.means import mean_of
from fedattack.record.singled import Weighing
from fedattack.threats.exact.activations import MovedNeuron, ReadExamples, group_examples
from fedattack.threats.exact.known_values import KnownValues, read_known_values
from fedattack.threats.exact.low_rank import TakenApart, refuse, take_apart
from fedattack.threats.exact.options import ExactOptions
from fedattack.threats.exact.rows import Candidates, choose, divide, find_bins, join, subtract_neighbours

Floats = NDArray[np.float64]

RULES = ("two neurons", "known values", "whole batch")
"""How an example was told from a mixture."""

# Numbers of candidates that are kept at once.
_MOST_NUMBERS = 2**26

# Rounding of an entry, in units of its last place.
_ROUNDINGS = 4.0

# Examples that differ by less, as a part of a feature's span, are one.
_SAME = 1e-3


@dataclass(frozen=True)
class ReadUpdate:
    """An update that was looked at.

    Attributes
    ----------
    round, client
        The number of its round, and its node; ``all`` for a sum.
    batch
        How many examples it is of; 0 where that is not known.
    found, why
        How many examples its batch was taken apart into, and why into none.
    """

    round: Number
    client: Name
    batch: Number
    found: Number
    why: Name


@dataclass(frozen=True, eq=False)
class ReadOffExamples:
    """Examples that were read off a first layer.

    Attributes
    ----------
    clients
        Nodes of the record.
    rules
        :data:`RULES`.
    layer, columns
        The name of the layer's weights, and which of an example's numbers enter it; empty for all.
    updates
        Those that were looked at.
    targets
        The fingerprint of the targets that the attacker knows.
    examples
        (found, inputs): what was read off.
    errors
        (found,): how far an entry may be off.
    told_by
        (found,): the rule that told an example from a mixture.
    whose
        (found,): whose an example is, an index into the clients, or −1 where a sum does not tell.
    groups
        (found,): a number that examples of sums share if they are of one client.
    first
        (found,): the first update that gave an example.
    seen
        (clients,): of which clients an update was looked at.
    """

    clients: tuple[Name, ...]
    rules: Annotated[tuple[Name, ...], Field(min_length=1)]
    layer: Name
    updates: Annotated[tuple[ReadUpdate, ...], Field(min_length=1)]
    targets: Name
    examples: Annotated[NDArray[np.floating], Axes("found", "inputs")]
    errors: Annotated[NDArray[np.floating], Axes("found", low=0)]
    told_by: Annotated[NDArray[np.int64], Axes("found", low=0, high=len(RULES) - 1, called="rules", into="rules")]
    whose: Annotated[NDArray[np.int64], Axes("found", low=-1, into="clients")]
    groups: Annotated[NDArray[np.int64], Axes("found", low=0)]
    first: Annotated[NDArray[np.int64], Axes("found", low=0, into="updates")]
    seen: Annotated[NDArray[np.bool_], Axes("clients")]
    columns: Annotated[tuple[Number, ...], OPTIONAL] = ()


class FirstLayerReading(Attack):
    """Which training examples the first fully connected layer gives away, number by number."""

    options = ExactOptions()
    found = ReadOffExamples
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture",
        "which values features have, where it has examples of its own",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where the model's first layer is none that gives examples away."""
        known = knowledge.model
        # Examples of several arrays are refused already: they have no first layer that is one array's.
        if not knowledge.has("layers") or knowledge.structure() or (known and isinstance(known.spec, Asked)):
            return []
        try:
            layer = find_known_first_layer(knowledge)
        except FedAttackError as cause:
            return [str(cause)]
        frozen = [name for name in (layer.weight, layer.bias) if name in (knowledge.frozen or {})]
        if frozen:
            return [f"it reads how the first layer moves, and {frozen[0]} is frozen"]
        return []

    def attack(self, seen: Seen) -> ReadOffExamples:
        """Read one update after the other, and put together what each gives."""
        if seen.knowledge.model is not None:
            check_model(seen.knowledge.model.build(), seen.record)
        reader = _UpdateReader(self.options, find_known_first_layer(seen.knowledge), seen)
        for done, update in enumerate(reader.read_updates(seen.notes)):
            reader.look(update)
            seen.progress(done, done + 1)
        if not reader.updates:
            raise NeedsError(
                f"attack {self.name} needs updates of a first layer, and {seen.record.path} holds none that can be used"
                f"{why_left_out(seen.notes)}"
            )
        return reader.gather(seen.knowledge.asked())


@dataclass(frozen=True)
class _FirstLayerUpdate:
    """How the first layer moved, in a reply or in a sum of several."""

    number: int  # Of its round.
    nodes: tuple[str, ...]  # Whose replies are in it.
    batch: int  # How many examples these have; 0 where that is not known.
    start: Floats  # (neurons, inputs + 1): weights and bias as they were sent, and how they moved.
    moved: Floats
    rounding: Floats  # (neurons,): how far an entry may be off.
    layer: FirstLayer  # The layer, of the form of model that the client was sent.
    is_sum: bool  # Whether it is a sum of which no client alone moves the neurons.
    # Whether all examples pull at the first layer in one direction, as of weights that bring out one class.
    one_way: bool = False


@dataclass
class _FoundExamples:
    """Examples that were read off a client's updates, or off sums; see :class:`ReadOffExamples`."""

    x: Floats
    errors: Floats
    rules: NDArray[np.int64]
    seen: list[frozenset[int]]  # For each the updates in which it was seen.
    sure: list[bool]  # For each whether something else than one update of several steps confirms it.

    def keep_sure(self) -> "_FoundExamples":
        """Leave out what nothing confirms."""
        sure = np.array(self.sure, dtype=np.bool_)
        seen = [self.seen[row] for row in np.flatnonzero(sure)]
        return _FoundExamples(self.x[sure], self.errors[sure], self.rules[sure], seen, [True] * len(seen))


class _UpdateReader:
    """What is read of a record, update by update."""

    def __init__(self, options: ExactOptions, layer: FirstLayer, seen: Seen) -> None:
        record, knowledge = seen.record, seen.knowledge
        self.options, self.layer, self.record = options, layer, record
        # Models of one form have one layer, which is known; else it is that of the form that a client was sent.
        self.roles = knowledge.roles if knowledge.model is None and len(list_forms(knowledge.roles)) > 1 else ()
        self.layers = find_layers_by_form(knowledge)
        self.known = read_known_values(knowledge, layer.inputs, layer.columns)
        self.rng = np.random.default_rng(seen.seed)
        self.training = knowledge.training
        self.weighing = Weighing.of(record.manifest["aggregation"])
        # Examples pull at the first layer in more than one direction with more than two outputs.
        self.tells_apart = count_known_outputs(knowledge) > 2
        self.is_sum = record.view == "aggregate"
        self.nodes = {node: index for index, node in enumerate(record.nodes)}
        self.seen = np.zeros(len(self.nodes), dtype=np.bool_)
        self.updates: list[ReadUpdate] = []
        self.participants: list[tuple[str, ...]] = []
        self.candidates: dict[int, list[Candidates]] = {}
        self.batches: dict[int, list[tuple[int, TakenApart, int]]] = {}
        self.numbers = 0
        self.noises: dict[int, float] = {}

    def read_updates(self, notes: list[str]) -> Iterator[_FirstLayerUpdate]:
        """Yield the updates that are looked at; notes say why others cannot be used."""
        chosen = spread_replies(self.record, self.options.replies)
        for round_ in self.record:
            for replies, start, sent, where in list_updates(round_, chosen.get(round_.seq, set())):
                of_each = any(reply.singled_out for reply in replies) and round_.aggregate is not None
                first = self._mean_of_starts(replies) if of_each else readable(start)
                layer = self._layer_of(first or {})
                read = self._read(layer, first, sent, round_)
                if isinstance(read, str):
                    notes.append(f"{where}: {read}")
                elif of_each:
                    yield from self._tell_apart(round_, replies, read)
                else:
                    before, moved, rounding = read
                    batch = _count_examples(replies)
                    if batch and not self.is_sum:
                        # A reply that was taken out of a sum has the rounding of the sum.
                        rounding = np.maximum(rounding, _ROUNDINGS * self.weighing.error([batch]))
                    nodes, one_way = tuple(reply.node for reply in replies), _has_one_output(first or {})
                    of_layer = before, moved, rounding, layer or self.layer
                    yield _FirstLayerUpdate(round_.number, nodes, batch, *of_layer, self.is_sum, one_way)

    def _layer_of(self, arrays: Arrays) -> FirstLayer | None:
        """Return the first layer of the form of model that these arrays have; ``None`` where that has none."""
        if not self.roles:
            return self.layer
        layer = self.layers.get(choose_form(self.roles, arrays)[0].form)
        # What is read of all clients is numbers of the same columns.
        if layer is None or (layer.inputs, layer.columns) != (self.layer.inputs, self.layer.columns):
            return None
        return layer

    def _mean_of_starts(self, replies: Sequence[Observation]) -> Arrays | None:
        """Return the mean of the first layers that clients were sent, weighed as what they sent back."""
        starts, counts = [], []
        for reply in replies:
            start = readable(reply.received) or {}
            if reply.count is None or not self.layer.fits(start):
                return None
            starts.append({name: start[name].astype(np.float64) for name in self.layer.names})
            counts.append(reply.count)
        return mean_of(starts, counts, "message")

    def _tell_apart(
        self, round_: Round, replies: Sequence[Observation], read: tuple[Floats, Floats, Floats]
    ) -> Iterator[_FirstLayerUpdate]:
        """Yield of a sum of clients that were sent different models what neurons tell that are alive in one alone."""
        _, moved, rounding = read
        starts = [self.layer.unscale_weights(self.layer.join(reply.received or {})) for reply in replies]
        counts = [float(reply.count or 0) for reply in replies]
        noise = _ROUNDINGS * self.weighing.error(counts)
        if noise:
            rounding = np.minimum(rounding, noise)
        for reply, start, rows, count in zip(replies, starts, find_own_neurons(starts), counts, strict=True):
            share = count / sum(counts)
            if rows.any() and moved[rows].any():
                own = moved[rows] / share, rounding[rows] / share
                of_layer = start[rows], *own, self.layer
                yield _FirstLayerUpdate(round_.number, (reply.node,), int(count), *of_layer, is_sum=False)

    def _read(
        self, layer: FirstLayer | None, start: Arrays | None, sent: Arrays | None, round_: Round
    ) -> tuple[Floats, Floats, Floats] | str:
        """Return start, movement and rounding of the first layer, or why they cannot be read."""
        if start is None or sent is None:
            return "the record lacks the model that was sent, or the reply"
        if layer is None:
            return "in models of its form, no array is a first layer that takes the same numbers as those of others"
        try:
            before, after = layer.join(start), layer.join(sent)
            # A mean may be stored more finely than the models that are in it.
            epsilon = max(_epsilon(arrays[name]) for arrays in (start, sent) for name in layer.names)
        except (KeyError, RecordError, ValueError):
            return f"{layer.weight} or its bias is not in it, or cannot be read"
        # Clients may have layers of different widths, if no model says how many neurons there are.
        if before.shape != after.shape or before.shape[1] != layer.inputs + 1:
            return f"{layer.weight} has a shape different from the model's"
        if not is_finite([before, after]):
            return f"{layer.weight} or its bias holds numbers that are not finite"
        is_gradient = round_.protocol == "fedsgd"
        moved, largest = after, np.abs(after)
        if not is_gradient:
            moved, largest = after - before, np.maximum(np.abs(before), largest)
        if not moved.any():
            return "its first layer did not move"
        rounding = epsilon * largest.max(axis=1) * layer.coarsening
        rounding = np.maximum(_ROUNDINGS * rounding, 1e-300)
        if self.is_sum:
            # Updates are read twice, and this takes long.
            if round_.seq not in self.noises:
                self.noises[round_.seq] = _find_noise(moved)
            rounding = np.maximum(rounding, self.noises[round_.seq])
        return layer.unscale_weights(before), layer.unscale_movement(moved), rounding

    def look(self, update: _FirstLayerUpdate) -> None:
        """Read one update."""
        number = len(self.updates)
        whose, client = -1, "all"
        if not update.is_sum:
            client = update.nodes[0]
            whose = self.nodes[client]
        steps = self._count_steps(update)
        is_active = update.layer.is_relu and steps == 1
        if self.numbers <= _MOST_NUMBERS:
            candidates = self._divide(update, number, is_active=is_active)
            self.candidates.setdefault(whose, []).append(candidates)
            self.numbers += candidates.x.size
        apart = self._take_apart(update, steps)
        self.batches.setdefault(whose, []).append((number, apart, steps))
        self.seen[[self.nodes[node] for node in update.nodes]] = True
        self.participants.append(update.nodes)
        self.updates.append(ReadUpdate(update.number, client, update.batch, len(apart.examples), apart.why))

    def _divide(self, update: _FirstLayerUpdate, number: int, *, is_active: bool) -> Candidates:
        """Return the quotients of neurons, and of differences of neighbours where they differ by their bias alone."""
        candidates = divide(update.moved, update.start, update.rounding, number, self.known, is_active=is_active)
        bins = find_bins(update.start)
        if update.one_way:
            # Mixtures agree, too: two of these neurons are no more than one.
            candidates = replace(candidates, neurons=np.full(len(candidates.x), -1))
        if not bins:
            return candidates
        rows, moved, rounding = subtract_neighbours(update.moved, update.rounding, bins)
        between = divide(moved, update.start[rows], rounding, number, self.known, is_active=is_active)
        # What moves all neurons from some place on makes them agree, and is a mixture.
        candidates = candidates.take(~np.isin(candidates.neurons, rows))
        return join([candidates, replace(between, neurons=rows[between.neurons])], self.layer.inputs)

    def _count_steps(self, update: _FirstLayerUpdate) -> int:
        """Return how many steps are in an update; several where that is not known."""
        if self.record.protocol == "fedsgd":
            return 1
        if self.training is None or not update.batch:
            return 2
        return self.training.steps(max(update.batch // max(len(update.nodes), 1), 1))

    def _take_apart(self, update: _FirstLayerUpdate, steps: int) -> TakenApart:
        """Take a batch apart, or say why it cannot be."""
        inputs = self.layer.inputs
        if not self.options.draws:
            return refuse(inputs, "draws=0 leaves it out")
        if find_bins(update.start):
            return refuse(inputs, "its neurons look in one direction, so they are read one by one")
        if not update.layer.is_relu:
            return refuse(inputs, "no ReLU follows the first layer: no example leaves a neuron at zero")
        if steps > 1 and len(update.nodes) > 1:
            return refuse(inputs, "several clients took several steps each")
        if not update.batch:
            return refuse(inputs, "its number of examples is not known")
        return take_apart(
            update.moved,
            update.start,
            update.rounding / _ROUNDINGS,
            update.batch,
            draws=self.options.draws,
            steps=steps,
            rng=self.rng,
        )

    def gather(self, targets: str) -> ReadOffExamples:
        """Put together what was read of all updates."""
        read: list[_FoundExamples] = []
        of_whom, all_groups, firsts = list[NDArray[np.int64]](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
        count = 0
        for client in sorted(self.candidates):
            found = self._gather_of(client)
            # Before linking, which adds the other sums in which an example is.
            firsts.append(np.array([min(seen) for seen in found.seen], dtype=np.int64))
            whose = np.full(len(found.x), client)
            groups = np.arange(len(found.x))
            if client < 0:
                groups = self._link(found)
                whose = self._trace(found, groups)
            read.append(found)
            of_whom.append(whose)
            all_groups.append(groups + count)
            count += len(found.x)
        return ReadOffExamples(
            clients=tuple(self.record.nodes),
            rules=RULES,
            layer=self.layer.weight,
            updates=tuple(self.updates),
            targets=targets,
            examples=np.concatenate([found.x for found in read]).astype(np.float32),
            errors=np.concatenate([found.errors for found in read]),
            told_by=np.concatenate([found.rules for found in read]),
            whose=np.concatenate(of_whom),
            groups=np.concatenate(all_groups),
            first=np.concatenate(firsts),
            seen=self.seen,
            columns=self.layer.columns,
        )

    def _gather_of(self, client: int) -> _FoundExamples:
        """Put together what was read of one client, or of sums: each example once."""
        rows = choose(join(self.candidates[client], self.layer.inputs), self.known, tells_apart=self.tells_apart)
        rules = np.where(rows.agree, 0, 1).astype(np.int64)
        found = _FoundExamples(rows.x, rows.errors, rules, [*rows.seen], [True] * len(rows.x))
        for number, apart, steps in self.batches[client]:
            snapped, has_known = self.known.snap(apart.examples, apart.errors)
            examples = np.where(has_known[:, None], snapped, apart.examples)
            for x, error, is_known in zip(examples, apart.errors, has_known.tolist(), strict=True):
                _add(found, x, float(error), number, self.known, is_sure=steps == 1 or is_known)
        return found.keep_sure()

    def _link(self, found: _FoundExamples) -> NDArray[np.int64]:
        """Return which examples of sums are of one client; also note in which other sums they are."""
        if not len(found.x):
            return np.zeros(0, dtype=np.int64)
        known, neurons = ReadExamples(found.x, found.errors), list[MovedNeuron]()
        for number, update in enumerate(self.read_updates([])):
            if not update.is_sum:
                continue
            for neuron in known.explain_neurons(update.moved, update.start, update.rounding):
                neurons.append(neuron)
                for example in np.concatenate([neuron.before, neuron.later]):
                    found.seen[example] |= {number}
        if not self.layer.is_relu:
            neurons = []
        return group_examples(len(found.x), neurons)

    def _trace(self, found: _FoundExamples, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return whose examples of sums are: of whoever took part in all sums that hold one of the group, or −1."""
        whose = np.full(len(groups), -1)
        for group in range(groups.max(initial=-1) + 1):
            members = np.flatnonzero(groups == group)
            numbers = frozenset[int]().union(*(found.seen[member] for member in members))
            possible = set.intersection(*(set(self.participants[number]) for number in numbers))
            if len(possible) == 1:
                whose[members] = self.nodes[possible.pop()]
        return whose


def _add(found: _FoundExamples, x: Floats, error: float, number: int, known: KnownValues, *, is_sure: bool) -> None:
    """Add an example of a whole batch, unless it is there."""
    if len(found.x):
        apart = (np.abs(found.x - x) / known.spans).max(axis=1)
        nearest = int(apart.argmin())
        if apart[nearest] <= _SAME:
            found.seen[nearest] |= {number}
            found.sure[nearest] = True
            return
    found.x = np.concatenate([found.x, x[None]])
    found.errors = np.append(found.errors, error)
    found.rules = np.append(found.rules, RULES.index("whole batch"))
    found.seen.append(frozenset({number}))
    found.sure.append(is_sure)


def _epsilon(array: NDArray[np.generic]) -> float:
    """Return the rounding of an array's numbers."""
    values = np.asarray(array)
    if values.dtype.kind != "f":
        return 0.0
    return float(np.finfo(values.dtype).eps)


def _find_noise(moved: Floats) -> float:
    """Return how far an entry of a sum may be off, as by the rounding of SecAgg+, by what no example explains."""
    values = np.linalg.svd(moved, compute_uv=False)
    return float(_ROUNDINGS * values[-1] / np.sqrt(max(moved.shape)))


def _count_examples(replies: Sequence[Observation]) -> int:
    """Return how many examples an update is of; 0 where a client did not say."""
    total = 0.0
    for reply in replies:
        if reply.count is None:
            return 0
        total += reply.count
    return int(total)


def _has_one_output(start: Arrays) -> bool:
    """Say whether a layer of several outputs has weights for one of them alone."""
    for array in start.values():
        if array.ndim == 2 and len(array) > 2 and np.count_nonzero(array.any(axis=1)) == 1:
            return True
    return False
