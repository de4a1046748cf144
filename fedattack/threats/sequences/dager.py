"""DAGER: which sequences of tokens the gradients of the first two self-attention layers are of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import TypeAdapter
from torch import Tensor, nn
from typing_extensions import TypedDict

from fedattack.attacks.base import Attack, Progress, Scores
from fedattack.attacks.form import ArrayForm, Form, Name, Number
from fedattack.attacks.knowledge import Knowledge
from fedattack.attacks.matching import check_model, fits_model, is_finite
from fedattack.attacks.replies import list_updates, spread_replies, why_left_out
from fedattack.base.errors import FedAttackError, NeedsError
from fedattack.learning.importing import Asked
from fedattack.record import Observation, Record
from fedattack.record.format import Arrays
from fedattack.threats.sequences.layers import Entry, InputReader, choose_entries
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
    "it needs two blocks of self-attention, one after the other in a list of blocks, of which linear layers are "
    "trained, and none were found in this model"
)
_NO_PLACES = (
    "it needs an encoder that adds places to words before its first block; of this one any token may stand anywhere"
)


class _SequencesFacts(TypedDict):
    clients: list[Name]
    layers: list[Name]
    looks_ahead: bool
    rounds: list[Number]
    targets: Name


class SpanCheck(Attack):
    """Sequences of which each token's input lies in the span of the gradient of an attention layer.

    Scores hold the sequences: ``tokens`` (tokens,), all of them one after another; ``lengths`` (sequences,) and
    ``whose`` (sequences,), an index into the clients. ``named`` (clients,) counts the tokens of all places that the
    first layer names. ``rank`` (clients, 2) and ``width`` (clients, 2) are those of the spans of both layers. ``seen``
    (clients,) says of which clients an update was looked at.
    """

    options = SequencesOptions()
    form: ClassVar[Form] = Form(
        TypeAdapter(_SequencesFacts),
        {
            "tokens": ArrayForm("i", ("tokens",), low=0),
            "lengths": ArrayForm("i", ("sequences",), low=1),
            "whose": ArrayForm("i", ("sequences",), low=0),
            "named": ArrayForm("i", ("clients",), low=0),
            "rank": ArrayForm("i", ("clients", "spans"), low=0),
            "width": ArrayForm("i", ("clients", "spans"), low=0),
            "seen": ArrayForm("b", ("clients",)),
        },
        {"clients": "clients"},
    )
    knows: ClassVar[tuple[str, ...]] = (
        "the model's architecture",
        "what else it takes beside tokens, and how long sequences may be",
        "what token an id stands for",
    )

    def unfit(self, record: Record, knowledge: Knowledge) -> list[str]:
        """Say besides where a model has no two blocks of attention."""
        found, known, targets = self.needs.unfit(record, knowledge), knowledge.model, knowledge.targets
        if known is None or targets is None or isinstance(known.spec, Asked):
            return found
        try:
            model = known.build()
            trained = {name for name, _ in model.named_parameters()} - {*(knowledge.frozen or {})}
            _find_layers(model, InputReader.of(model, targets.x), trained)
        except FedAttackError as cause:
            return [*found, str(cause)]
        return found

    def _run(self, record: Record, knowledge: Knowledge, seed: int, device: str, progress: Progress) -> Scores:
        if knowledge.model is None or knowledge.targets is None:
            raise AssertionError("checked by run")
        model = knowledge.model.build()
        check_model(model, record)
        reader, notes = InputReader.of(model, knowledge.targets.x), list[str]()
        nodes = {node: place for place, node in enumerate(record.nodes)}
        results = [_OfClient() for _ in nodes]
        chosen = spread_replies(record, self.options.replies)
        rounds: set[int] = set()
        layers: tuple[Entry, Entry] | None = None
        for done, round_ in enumerate(record):
            for replies, start, sent, where in list_updates(round_, chosen.get(round_.seq, set())):
                update = _read_update(model, start, sent, round_.protocol == "fedsgd", where, notes)
                if update is None:
                    continue
                try:
                    found = _find_layers(model, reader, {*update.moved})
                    result = results[nodes[replies[0].node]]
                    _check(self.options, reader, found, update, _count_of(replies[0]), seed, result)
                except FedAttackError as cause:
                    notes.append(f"{where}: {cause}")
                    continue
                layers = found
                rounds.add(round_.number)
            progress(done + 1, len(record))
        if layers is None or not rounds:
            raise NeedsError(
                f"attack {self.name} needs updates of two blocks of attention, and {record.path} holds none that can "
                f"be used{why_left_out(notes)}"
            )
        return Scores(
            attack=self.name,
            arrays=_make_arrays(results),
            facts={
                "clients": list(record.nodes),
                "layers": [entry.module for entry in layers],
                "looks_ahead": layers[1].looks_ahead,
                "rounds": sorted(rounds),
                "targets": knowledge.asked(),
            },
            notes=tuple(notes),
        )


@dataclass(frozen=True)
class _MovedMatrices:
    """How far an update moved the matrices of a model."""

    moved: Mapping[str, NDArray[Any]]  # By name, each matrix that moved: its gradient, or how far it went.
    start: Mapping[str, NDArray[Any]]  # The weights from which they went; empty for gradients.


@dataclass
class _OfClient:
    """What was found of one client, in all its updates."""

    found: dict[tuple[int, ...], None] = field(default_factory=dict)
    named: int = 0
    rank: tuple[int, int] = (0, 0)
    width: tuple[int, int] = (0, 0)
    seen: bool = False

    def add(self, found: Sequence[FoundSequence], named: int, first: Span, second: Span) -> None:
        """Add what was found in another update: sequences, how many tokens the first layer names, and both spans."""
        self.found.update(dict.fromkeys(each.tokens for each in found))
        self.named = max(self.named, named)
        self.rank, self.width = (first.rank, second.rank), (first.width, second.width)
        self.seen = True


def _make_arrays(results: Sequence[_OfClient]) -> dict[str, NDArray[Any]]:
    columns: dict[str, list[Any]] = {"tokens": [], "lengths": [], "whose": [], "named": [], "rank": [], "width": []}
    for client, result in enumerate(results):
        for found in result.found:
            columns["tokens"] += found
            columns["lengths"].append(len(found))
            columns["whose"].append(client)
        for name in ("named", "rank", "width"):
            columns[name].append(getattr(result, name))
    arrays: dict[str, NDArray[Any]] = {name: np.array(column, dtype=np.int64) for name, column in columns.items()}
    return arrays | {"seen": np.array([result.seen for result in results], dtype=np.bool_)}


def _count_of(reply: Observation) -> int | None:
    """Return how many examples a client says that it has, as a whole number; ``None`` if it does not say."""
    if reply.count is None or reply.count != int(reply.count):
        return None
    return int(reply.count)


def _find_layers(model: nn.Module, reader: InputReader, moved: set[str]) -> tuple[Entry, Entry]:
    """Find the layers whose inputs are checked.

    Raises
    ------
    NeedsError
        If the model has none of which an array moved, or is an encoder in which tokens have no places.
    """
    chosen = choose_entries(model, reader.entries(), moved)
    if chosen is None:
        raise NeedsError(_NO_BLOCKS)
    if chosen[1].looks_ahead and not chosen[0].by_place:
        raise NeedsError(_NO_PLACES)
    return chosen


def _read_update(
    model: nn.Module, start: Arrays | None, sent: Arrays | None, is_gradient: bool, where: str, notes: list[str]
) -> _MovedMatrices | None:
    """Read one update, and put the model at the parameters that were sent; ``None``, with a note, if it cannot be."""
    if start is None or sent is None:
        notes.append(f"{where}: what model was sent, or what came back, is not in the record")
        return None
    before = {name: np.array(value) for name, value in start.items()}
    after = {name: np.asarray(value) for name, value in sent.items()}
    if not fits_model(model, before, where, notes):
        return None
    if not is_finite([*before.values(), *after.values()]):
        notes.append(f"{where}: it holds numbers that are not finite")
        return None
    model.load_state_dict({name: torch.from_numpy(value) for name, value in before.items()})
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
    result: _OfClient,
) -> None:
    """Find the sequences of one update, and add them to its client's."""
    first, second = [_make_span(entry, update) for entry in layers]
    allowed, noise = _name_tokens(reader, layers[0], first, options.distance)

    def leave(sequences: Tensor) -> Tensor:
        return second.leave(reader.read(sequences, layers[1].module))

    named = sum(len(tokens) for tokens in allowed)
    if named > _MOST_NAMED * first.width:
        raise NeedsError(f"the first layer names {named:,} tokens, as behind noise; nothing is put together of them")
    puzzle = Puzzle(
        allowed=allowed,
        leave=leave,
        limit=second.limit(max(1, named) ** 2, options.distance),
        noise=noise,
        by_place=layers[0].by_place,
        most=most,
    )
    looks_ahead = layers[1].looks_ahead
    found = search_whole(puzzle, seed=seed, tries=options.tries) if looks_ahead else build_forward(puzzle)
    result.add(found, named, first, second)


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
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    step = max(1, _AT_ONCE // places)
    for start in range(0, reader.words, step):
        tokens = torch.arange(start, min(start + step, reader.words))
        distances = span.measure(reader.read(tokens[:, None].expand(-1, places), entry.module))
        rows, columns = (distances <= limit).nonzero(as_tuple=True)
        found.append((tokens[rows], columns, distances[rows, columns]))
    tokens, columns, distances = (torch.cat(parts) for parts in zip(*found, strict=True))
    if not len(tokens):
        return [], 0.0
    least = max(_EXACT, float(distances.min()))
    farthest = find_jump(distances, least, limit)
    allowed = []
    for place in range(reader.longest):
        own = tokens[(columns == min(place, places - 1)) & (distances <= farthest)]
        if not len(own):
            break
        allowed.append(own)
    near = distances[distances <= farthest]
    return allowed, max(_ROUNDED, float(near.max()))
