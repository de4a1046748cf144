"""DAGER: which sequences of tokens the gradients of the first two self-attention layers are of."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedattack.attacks.base import Attack, Seen
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.matching import check_model, is_finite
from fedattack.attacks.replies import list_updates, spread_replies, why_left_out
from fedattack.base.errors import FedAttackError, NeedsError
from fedattack.base.stored import Axes, Name, Number
from fedattack.learning.importing import Asked
from fedattack.record import Observation, Record
from fedattack.record.format import Arrays
from fedattack.threats.sequences.layers import Entry, InputReader, ModelReader
from fedattack.threats.sequences.options import SequencesOptions
from fedattack.threats.sequences.search import FoundSequence, Puzzle, build_forward, find_jump, search_whole
from fedattack.threats.sequences.spans import Span, span_of

# Tokens of the table that are put through the model together.
_AT_ONCE = 2**14

# Tokens that are put together at most, for each number of an input. A span that holds a token at two places may hold
# others there, too, so that more are named than were trained on.
_MOST_NAMED = 16

# How far inputs of an exact gradient are from its span at most, and how far by rounding alone.
_EXACT, _ROUNDED = 1e-3, 1e-5

_NO_BLOCKS = (
    "it needs two consecutive blocks of self-attention, in a list of blocks, with trained linear layers; this model "
    "has none"
)
_NO_PLACES = (
    "it needs an encoder that adds positions to words before its first block; in this one any token may stand anywhere"
)


@dataclass(frozen=True, eq=False)
class ReadSequences:
    """Sequences of tokens that were found of clients.

    Attributes
    ----------
    clients
        Nodes of the record.
    layers
        The modules whose inputs were checked, the first one first.
    looks_ahead
        Whether a token's input to the second one depends on the tokens after it.
    rounds, targets
        Numbers of the rounds that were looked at, and the fingerprint of the targets that the attacker knows.
    tokens
        (tokens,): those of all sequences, one after another.
    lengths, whose
        (sequences,): how long each is, and its client.
    named
        (clients,): how many tokens of all places the first layer names.
    rank, width
        (clients, 2): those of the spans of both layers.
    seen
        (clients,): of which clients an update was looked at.
    """

    clients: tuple[Name, ...]
    layers: tuple[Name, ...]
    looks_ahead: bool
    rounds: tuple[Number, ...]
    targets: Name
    tokens: Annotated[NDArray[np.int64], Axes("tokens", low=0)]
    lengths: Annotated[NDArray[np.int64], Axes("sequences", low=1)]
    whose: Annotated[NDArray[np.int64], Axes("sequences", low=0, into="clients")]
    named: Annotated[NDArray[np.int64], Axes("clients", low=0)]
    rank: Annotated[NDArray[np.int64], Axes("clients", "spans", low=0)]
    width: Annotated[NDArray[np.int64], Axes("clients", "spans", low=0)]
    seen: Annotated[NDArray[np.bool_], Axes("clients")]

    def fault(self) -> str:
        """Expect as many tokens as the sequences are long."""
        if sum(self.lengths.tolist()) == len(self.tokens):
            return ""
        return "the sequences are not as long as they say"


class SpanCheck(Attack):
    """Sequences of which each token's input lies in the span of the gradient of an attention layer."""

    options = SequencesOptions()
    found = ReadSequences
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture",
        "what the model takes in addition to tokens, and how long sequences may be",
        "what token an id stands for",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say where a model has no two blocks of attention."""
        known, targets = knowledge.model, knowledge.targets
        if known is None or targets is None or isinstance(known.spec, Asked):
            return []
        try:
            model = known.build()
            trained = {name for name, _ in model.named_parameters()} - {*(knowledge.frozen or {})}
            _find_layers(ModelReader.of(model, targets.x), trained)
        except FedAttackError as cause:
            return [str(cause)]
        return []

    def attack(self, seen: Seen) -> ReadSequences:
        """Check the inputs of two layers in each update."""
        model = seen.model.build()
        check_model(model, seen.record)
        return self.search(seen, ModelReader.of(model, seen.targets.x))

    def search(self, seen: Seen, reader: InputReader) -> ReadSequences:
        """Check the inputs of two layers in each update, which ``reader`` gives.

        Raises
        ------
        NeedsError
            If no update can be used; the message says why.
        """
        record, notes = seen.record, seen.notes
        of_clients = {node: _OfClient() for node in record.nodes}
        chosen = spread_replies(record, self.options.replies)
        rounds: set[int] = set()
        layers: tuple[Entry, Entry] | None = None
        for done, round_ in enumerate(record):
            for replies, start, sent, where in list_updates(round_, chosen.get(round_.seq, set())):
                node = replies[0].node
                update = _read_update(reader, node, start, sent, round_.protocol == "fedsgd", where, notes)
                if update is None:
                    continue
                try:
                    checked = _find_layers(reader, update.moved)
                    count, of_client = _count_of(replies[0]), of_clients[node]
                    _check(self.options, reader, checked, update, count, seen.seed, of_client)
                except FedAttackError as cause:
                    notes.append(f"{where}: {cause}")
                    continue
                layers = checked
                rounds.add(round_.number)
            seen.progress(done + 1, len(record))
        if layers is None or not rounds:
            raise NeedsError(
                f"attack {self.name} needs updates of two blocks of attention, and {record.path} holds none that can "
                f"be used{why_left_out(notes)}"
            )
        results = [*of_clients.values()]
        sequences = [(tokens, client) for client, result in enumerate(results) for tokens in result.sequences]
        return ReadSequences(
            clients=tuple(record.nodes),
            layers=tuple(entry.module for entry in layers),
            looks_ahead=layers[1].looks_ahead,
            rounds=tuple(sorted(rounds)),
            targets=seen.knowledge.asked(),
            tokens=np.array([token for tokens, _ in sequences for token in tokens], dtype=np.int64),
            lengths=np.array([len(tokens) for tokens, _ in sequences], dtype=np.int64),
            whose=np.array([client for _, client in sequences], dtype=np.int64),
            named=np.array([result.named for result in results], dtype=np.int64),
            rank=np.array([result.rank for result in results], dtype=np.int64),
            width=np.array([result.width for result in results], dtype=np.int64),
            seen=np.array([result.seen for result in results], dtype=np.bool_),
        )


@dataclass(frozen=True)
class _MovedMatrices:
    """How far an update moved the matrices of a model."""

    moved: Mapping[str, NDArray[Any]]  # By name, each matrix that moved: its gradient, or how far it went.
    start: Mapping[str, NDArray[Any]]  # The weights from which they went; empty for gradients.


@dataclass
class _OfClient:
    """What was found of one client, in all its updates."""

    sequences: dict[tuple[int, ...], None] = field(default_factory=dict)
    named: int = 0
    rank: tuple[int, int] = (0, 0)
    width: tuple[int, int] = (0, 0)
    seen: bool = False

    def add(self, sequences: Sequence[FoundSequence], named: int, first: Span, second: Span) -> None:
        """Add what was found in another update: sequences, how many tokens the first layer names, and both spans."""
        self.sequences.update(dict.fromkeys(sequence.tokens for sequence in sequences))
        self.named = max(self.named, named)
        self.rank, self.width = (first.rank, second.rank), (first.width, second.width)
        self.seen = True


def _count_of(reply: Observation) -> int | None:
    """Return how many examples a client says that it has, as a whole number; ``None`` if it does not say."""
    if reply.count is None or reply.count != int(reply.count):
        return None
    return int(reply.count)


def _find_layers(reader: InputReader, moved: Collection[str]) -> tuple[Entry, Entry]:
    """Find the layers whose inputs are checked.

    Raises
    ------
    NeedsError
        If the model has none of which an array moved, or is an encoder in which tokens have no places.
    """
    chosen = reader.choose(moved)
    if chosen is None:
        raise NeedsError(_NO_BLOCKS)
    if chosen[1].looks_ahead and not chosen[0].by_place:
        raise NeedsError(_NO_PLACES)
    return chosen


def _read_update(
    reader: InputReader,
    node: str,
    start: Arrays | None,
    sent: Arrays | None,
    is_gradient: bool,
    where: str,
    notes: list[str],
) -> _MovedMatrices | None:
    """Read one update, and give the reader what was sent; ``None``, with a note, if it cannot be."""
    if start is None or sent is None:
        notes.append(f"{where}: what model was sent, or what came back, is not in the record")
        return None
    before = {name: np.array(value) for name, value in start.items()}
    after = {name: np.asarray(value) for name, value in sent.items()}
    if not is_finite([*before.values(), *after.values()]):
        notes.append(f"{where}: it holds numbers that are not finite")
        return None
    if not reader.take(before, node, where, notes):
        return None
    moved = {}
    for name, value in after.items():
        if value.ndim == 2 and name in before:
            if value.shape != before[name].shape or value.dtype.kind != "f":
                expected = f"{before[name].dtype} {before[name].shape}"
                notes.append(f"{where}: {name} is {value.dtype} {value.shape}; expected {expected}")
                return None
            change = value
            if not is_gradient:
                change = value.astype(np.float64) - before[name]
            if change.any():
                moved[name] = change
    if is_gradient:
        before = {}
    return _MovedMatrices(moved, before)


def _check(
    options: SequencesOptions,
    reader: InputReader,
    layers: tuple[Entry, Entry],
    update: _MovedMatrices,
    most: int | None,
    seed: int,
    of_client: _OfClient,
) -> None:
    """Find the sequences of one update, and add them to its client's."""
    first, second = [_make_span(entry, update) for entry in layers]
    allowed, noise = _name_tokens(reader, layers[0], first, options.distance)

    def leave(sequences: Tensor) -> Tensor:
        return second.leave(reader.read(sequences, layers[1].module))

    named = sum(len(tokens) for tokens in allowed)
    if named > _MOST_NAMED * first.width:
        raise NeedsError(f"the first layer names {named:,} tokens, as with noise; no sequences are built")
    puzzle = Puzzle(
        allowed=allowed,
        leave=leave,
        limit=second.limit(max(1, named) ** 2, options.distance),
        noise=noise,
        by_place=layers[0].by_place,
        most=most,
    )
    looks_ahead = layers[1].looks_ahead
    sequences = search_whole(puzzle, seed=seed, tries=options.tries) if looks_ahead else build_forward(puzzle)
    of_client.add(sequences, named, first, second)


def _make_span(entry: Entry, update: _MovedMatrices) -> Span:
    names = {weight.name for weight in entry.weights} & update.moved.keys()
    start = None
    if update.start:
        start = entry.stack({name: update.start[name] for name in names})
    return span_of(entry.stack({name: update.moved[name] for name in names}), start)


def _name_tokens(reader: InputReader, entry: Entry, span: Span, most: float) -> tuple[list[Tensor], float]:
    """Return which tokens stand at each place up to the first where none does, and how far the farthest input is."""
    limit = span.limit(reader.words * reader.longest, most)
    # Where places do not matter, one place stands for all.
    places = 1
    if entry.by_place:
        places = reader.longest
    near: list[tuple[Tensor, Tensor, Tensor]] = []
    step = max(1, _AT_ONCE // places)
    for start in range(0, reader.words, step):
        tokens = torch.arange(start, min(start + step, reader.words))
        distances = span.measure(reader.read(tokens[:, None].expand(-1, places), entry.module))
        rows, columns = (distances <= limit).nonzero(as_tuple=True)
        near.append((tokens[rows], columns, distances[rows, columns]))
    tokens, columns, distances = (torch.cat(blocks) for blocks in zip(*near, strict=True))
    if not len(tokens):
        return [], 0.0
    # The inputs of the client's tokens are in the span but for rounding or noise, and all others are farther off.
    least = max(_EXACT, float(distances.min()))
    farthest = find_jump(distances, least, limit)
    allowed = []
    for place in range(reader.longest):
        own = tokens[(columns == min(place, places - 1)) & (distances <= farthest)]
        if not len(own):
            break
        allowed.append(own)
    return allowed, max(_ROUNDED, float(distances[distances <= farthest].max()))
