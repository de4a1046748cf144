"""How a server reads what its clients send: as weights, as differences, or not at all."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedattack.attacks.knowledge import Sends
from fedattack.attacks.reply_kinds import find_sparse
from fedattack.base.errors import short
from fedattack.record import Record
from fedattack.record.views import ChangedEntries, FlatVector
from fedattack.witness import SERVER, Witness
from fedattack.witness.comparing import are_changing
from fedattack.witness.seen import DISCRIMINATOR, GENERATOR
from fedattack.witness.sent import (
    AS_DIFFERENCES,
    AS_WEIGHTS,
    CHANGED,
    KEPT,
    OF_ANOTHER,
    OUTPUTS,
    UNCHANGED,
    UNKNOWN,
    ZEROS,
    SentArray,
    summed_up,
)

_STEADY = 0.01

_ADVERSARIES = {
    GENERATOR: (
        "clients send a generator alone: the examples that are asked about are those that the model took that they "
        "keep, such as a discriminator"
    ),
    DISCRIMINATOR: (
        "clients send a discriminator that takes no labels: it is asked how it scores an example; a generator in the "
        "same reply learned of examples through it, and is not asked"
    ),
}


@dataclass(frozen=True)
class Reading:
    """What clients send, and how it is read.

    ``known`` is what the attacker knows of it, ``None`` where replies are the local models, or nothing is known.
    ``rows`` say how many clients send each array as what: ``array``, ``shape``, ``dtype``, ``kind``, ``clients``, and
    ``least`` and ``most`` of factors. ``unread`` says of which arrays of most clients it is not known how they are
    read. ``predictions`` names the arrays of clients that send their model's outputs and no weights, and ``public`` is
    an ``.npz`` of the examples that all predict, if that was seen.
    """

    known: Sends | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    unread: str = ""
    notes: tuple[str, ...] = ()
    predictions: tuple[str, ...] = ()
    public: Path | None = None

    @property
    def is_strange(self) -> bool:
        """Whether what an array is was not understood: the app itself, too, would take it for weights."""
        return any(row["kind"] == UNKNOWN for row in self.rows)


@dataclass(frozen=True)
class _Read:
    """How the replies of one node are read."""

    node: str
    differences: bool
    arrays: tuple[SentArray, ...]
    rest: tuple[SentArray, ...]
    unread: tuple[SentArray, ...]
    factors: tuple[float, ...]

    @property
    def form(self) -> tuple[Any, ...]:
        """What replies must have in common to be read alike."""
        return self.differences, tuple((array.name, array.shape) for array in self.arrays)


def read_sends(witnesses: Sequence[Witness], record: Record | None = None) -> Reading:
    """Find how most clients' replies are read; ``record`` shows what the server makes of them, if it is given."""
    tables: dict[str, tuple[SentArray, ...]] = {}
    for each in witnesses:
        if each.node != SERVER and each.trained.total and each.sends:
            tables[each.node] = each.sends
    rows = tuple(summed_up(list(tables.values())))
    sparse = None
    if record is not None and record.view == "individual":
        sparse = find_sparse(record)
    if sparse is not None:
        # What is sent is entries of the arrays that witnesses miss.
        flat = _find_vector_of(tables.values(), sparse, record)
        rows = tuple(row for row in rows if row["kind"] != KEPT)
        said = [_describe_sparse(sparse)]
        if flat is not None:
            said.append(
                f"the server sends its model as one vector, {short(flat.vector, 60)}, of as many numbers as the "
                f"clients' model has: the attacker takes it for the {len(flat.names)} arrays of the model, one behind "
                "the other"
            )
        return Reading(Sends(sparse=sparse, flat=flat), rows, notes=tuple(said))
    if not tables:
        return Reading()
    if adversary := find_adversary(witnesses):
        return Reading(rows=rows, notes=(_ADVERSARIES[adversary],))
    reads = [_read_table(node, table) for node, table in tables.items()]
    alike = _find_most_alike(reads)
    # More than half must be alike, or it is not known what "the clients" send.
    if 2 * len(alike) <= len(reads):
        predictions = _list_predictions(reads)
        if predictions and (public := _find_public(witnesses, tables)):
            return Reading(Sends(protocol="fedmd"), rows, predictions=predictions, public=public)
        return Reading(rows=rows, unread=_why_unread(reads), predictions=predictions)
    others = [read for read in reads if read not in alike]
    is_changed_by_mods = any(are_changing(each.mods) for each in witnesses)
    notes = _notes_of(alike, others, len(reads), is_changed_by_mods=is_changed_by_mods)
    return Reading(_state_known(alike, record), rows, notes=tuple(notes))


def find_adversary(witnesses: Sequence[Witness]) -> str:
    """Return what clients were seen to send of two models that are trained against each other; empty for none.

    That is :data:`fedattack.witness.seen.GENERATOR`, where they keep the model that takes examples, or
    :data:`fedattack.witness.seen.DISCRIMINATOR`.
    """
    reasons = {each.model.why for each in witnesses if each.model is not None and each.node != SERVER}
    return next((adversary for adversary in _ADVERSARIES if adversary in reasons), "")


def _find_vector_of(
    tables: Iterable[Sequence[SentArray]], sparse: ChangedEntries, record: Record | None
) -> FlatVector | None:
    """Say which arrays stand in the one vector whose entries are sent; ``None`` if these are not all of the model."""
    common = next((round_.common for round_ in record or () if round_.common), None)
    models = {tuple((array.of, array.shape) for array in table if array.kind == KEPT) for table in tables}
    # All clients must have one model.
    if common is None or len(sparse.into) != 1 or len(common) != 1 or len(models) != 1:
        return None
    missed = models.pop()
    if len(missed) < 2:
        return None
    flat = FlatVector(sparse.into[0], tuple(name for name, _ in missed), tuple(shape for _, shape in missed))
    if common[flat.vector].shape != (flat.size,):
        return None
    return flat


def _describe_sparse(sparse: ChangedEntries) -> str:
    """Say how replies of indices and values are read."""
    how = "writes the values over these entries"
    if sparse.step is not None:
        how = f"adds {sparse.step:.4g} times the values to these entries"
    return (
        f"clients send a part of their model, {short(sparse.values, 60)}, with the indices of its entries, "
        f"{short(sparse.indices, 60)}; the attacker {how} of the model that was sent, as the server does, and "
        "takes the result as the client's model: entries that were not sent stay unchanged"
    )


def _list_predictions(reads: Sequence[_Read]) -> tuple[str, ...]:
    """Name the arrays, with their shapes, of clients that all send outputs of their models and nothing else."""
    named: dict[str, None] = {}
    for read in reads:
        for array in (*read.arrays, *read.rest):
            if array.kind != OUTPUTS:
                return ()
            shape = " × ".join(map(str, array.shape))
            named[f"{array.name} ({shape})"] = None
    return tuple(named)


def _find_public(witnesses: Sequence[Witness], senders: Collection[str]) -> Path | None:
    """Return the examples of which all clients send predictions, one for each class; ``None`` if nobody saw them."""
    files: dict[str, Path] = {}
    for each in witnesses:
        if each.node not in senders:
            continue
        outputs = [array for array in each.sends if array.kind == OUTPUTS]
        # Classes alone teach no student.
        if each.public is None or len(outputs) != 1 or len(outputs[0].shape) != 2:
            return None
        # A file is named by what it holds, and each machine has its own.
        files[each.public.name] = each.public
    return next(iter(files.values())) if len(files) == 1 else None


def _find_most_alike(reads: Sequence[_Read]) -> list[_Read]:
    """Return the replies of the form that most have, of those that can be read."""
    readable = [read for read in reads if not read.unread]
    forms = Counter(read.form for read in readable).most_common(1)
    # `forms[0]` is not looked at where `readable` is empty.
    return [read for read in readable if read.form == forms[0][0]]


def _state_known(alike: Sequence[_Read], record: Record | None) -> Sends | None:
    """Return what the attacker knows of replies of one form; ``None`` where these are the local models."""
    known = Sends()
    if flat := _find_flat(alike[0].arrays, record):
        known = replace(known, flat=flat)
        if alike[0].rest:
            known = replace(known, arrays=flat.names)
    elif alike[0].rest:
        known = replace(known, arrays=tuple(array.name for array in alike[0].arrays))
    if alike[0].differences:
        known = replace(known, factors={read.node: _middle(read.factors) for read in alike})
    if known == Sends():
        return None
    return known


def _find_flat(arrays: Sequence[SentArray], record: Record | None) -> FlatVector | None:
    """Say which arrays of the model stand in the one vector that is sent; ``None`` where it is sent otherwise.

    They have the names of the arrays that the server sends, if it sends them one by one.
    """
    if len(arrays) != 1 or not arrays[0].parts:
        return None
    (vector,) = arrays
    flat = FlatVector(vector.name, vector.parts, vector.shapes)
    common = next((round_.common for round_ in record or () if round_.common), None)
    if common is None or vector.name in common:
        return flat
    if [array.shape for array in common.values()] != [*flat.shapes]:
        return None
    return replace(flat, names=tuple(common))


def _read_table(node: str, table: Sequence[SentArray]) -> _Read:
    """Find what of the arrays that a node sends is its model."""
    sent = [array for array in table if array.kind != KEPT]
    kinds = {array.kind for array in sent}
    # Replies are read as differences only if nothing in them is a weight.
    differences = kinds.isdisjoint(AS_WEIGHTS) and not kinds.isdisjoint(AS_DIFFERENCES)
    understood = {UNCHANGED, ZEROS, *AS_WEIGHTS}
    if differences:
        understood = {UNCHANGED, ZEROS, *AS_DIFFERENCES}
    chosen = _choose_arrays(sent, understood)
    rest = [array for array in sent if array not in chosen]
    unread = [array for array in chosen if array.kind not in understood]
    # Entries of the model that nothing was found for may be what is not understood: arrays that are of no entry.
    if len(sent) < len(table) or not chosen:
        unread += [array for array in rest if not array.of and array.kind != OF_ANOTHER]
    factors = [factor for array in chosen for factor in (array.least, array.most) if factor is not None]
    return _Read(node, differences, tuple(chosen), tuple(rest), tuple(unread), tuple(factors) or (1.0,))


def _choose_arrays(sent: Sequence[SentArray], understood: Collection[str]) -> list[SentArray]:
    """Take for each entry of the model the first array that is read as most are."""
    chosen: dict[str, SentArray] = {}
    for array in sent:
        if not array.of:
            continue
        before = chosen.get(array.of)
        # Several arrays of one entry, such as a weight and its momentum: the one that can be read is taken.
        if before is None or (before.kind not in understood and array.kind in understood):
            chosen[array.of] = array
    return list(chosen.values())


def _why_unread(reads: Sequence[_Read]) -> str:
    expected = "the model's weights, or their change in training times one factor, with the same shapes from all"
    unread = {array.name: array.kind for read in reads for array in read.unread}
    if not unread:
        sizes = len({read.form for read in reads})
        names = short(", ".join(array.name for array in reads[0].arrays), 200)
        return f"{len(reads)} clients send arrays ({names}) of {sizes} different forms; expected {expected}"
    count = sum(bool(read.unread) for read in reads)
    return f"{count} of {len(reads)} clients send {_list_kinds(unread.items(), 300)}; expected {expected}"


def _list_kinds(kinds: Iterable[tuple[str, str]], most: int) -> str:
    return short(", ".join(f"{name} ({kind})" for name, kind in kinds), most)


def _notes_of(
    alike: Sequence[_Read], others: Sequence[_Read], count: int, *, is_changed_by_mods: bool
) -> Iterator[str]:
    first = alike[0]
    if first.differences:
        factors = [_middle(read.factors) for read in alike]
        low, high = min(factors), max(factors)
        stated = f"{low:.4g} … {high:.4g}"
        if math.isclose(low, high, rel_tol=_STEADY):
            stated = f"{low:.4g}"
        yield (
            f"clients send the change of the model in training, times {stated}; the attacker is assumed to know "
            "each client's factor, and adds the model that the client received"
        )
        # The spread of one client's factors, relative to their middle.
        if any(max(read.factors) - min(read.factors) > _STEADY * abs(_middle(read.factors)) for read in alike):
            yield "that factor changes from round to round; a value in the middle is used for each client"
    if first.arrays[0].parts:
        yield (
            f"clients send their model as one vector, {short(first.arrays[0].name, 60)}: the attacker takes it for "
            f"the {len(first.arrays[0].parts)} arrays of the model, one behind the other"
        )
    if any(array.kind == CHANGED for read in alike for array in read.arrays):
        cause = "a mean, a moving average, noise or compression would do so, and the witness did not see which"
        if is_changed_by_mods:
            cause = "the mods that their messages pass through change them"
        yield f"clients send arrays that are similar to their weights after training, but not equal: {cause}"
    if models := [array.name for array in first.rest if array.kind == OF_ANOTHER]:
        yield (
            f"clients send several models in a reply; {short(', '.join(models), 200)} belong to a model that does "
            "not take their examples, and are used only if the app itself computes the losses"
        )
    if extra := [array for array in first.rest if array.kind != OF_ANOTHER]:
        rest = _list_kinds([(array.name, array.kind) for array in extra], 200)
        yield f"clients also send {rest}, which no attack reads and which may leak as well"
    if others:
        yield (
            f"{len(others)} of {count} clients send something different from the rest, such as models of another "
            "form: unless the app is asked, it is not known whether their replies leak"
        )


def _middle(factors: Sequence[float]) -> float:
    low, high = min(factors), max(factors)
    if low * high <= 0:
        # Factors of both signs have no middle.
        return high
    # Factors multiply: the middle is the geometric one, with their sign.
    return math.copysign(math.sqrt(low * high), low)
