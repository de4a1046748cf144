"""How a server reads what its clients send: as weights, as differences, or not at all."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedattack.attacks.knowledge import Sends
from fedattack.base.errors import short
from fedattack.witness import SERVER, Witness
from fedattack.witness.sent import (
    AS_DIFFERENCES,
    AS_WEIGHTS,
    CHANGED,
    KEPT,
    UNCHANGED,
    UNKNOWN,
    ZEROS,
    SentArray,
    summed_up,
)

_STEADY = 0.01


@dataclass(frozen=True)
class Reading:
    """What clients send, and how it is read.

    Attributes
    ----------
    known
        What the attacker knows of it; ``None`` where replies are the local models, or nothing is known.
    rows
        How many clients send each array as what: ``array``, ``shape``, ``dtype``, ``kind``, ``clients``, and ``least``
        and ``most`` of factors.
    unread
        Of which arrays of most clients it is not known how they are read; empty if it is.
    notes
        What a reader of the report must know.
    """

    known: Sends | None = None
    rows: tuple[Mapping[str, Any], ...] = ()
    unread: str = ""
    notes: tuple[str, ...] = ()

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
    factors: tuple[float, ...] = field(default=())

    @property
    def form(self) -> tuple[Any, ...]:
        """What replies must have in common to be read alike."""
        return self.differences, tuple((array.name, array.shape) for array in self.arrays)


def read_sends(witnesses: Sequence[Witness]) -> Reading:
    """Find how most clients' replies are read."""
    tables = {each.node: each.sends for each in witnesses if each.node != SERVER and each.trained.total and each.sends}
    if not tables:
        return Reading()
    rows = tuple(summed_up(list(tables.values())))
    reads = [_read(node, table) for node, table in tables.items()]
    readable = [one for one in reads if not one.unread]
    forms = Counter(one.form for one in readable)
    form, count = forms.most_common(1)[0] if forms else ((), 0)
    alike = [one for one in readable if one.form == form]
    others = [one for one in reads if one not in alike]
    if 2 * count <= len(reads):
        return Reading(rows=rows, unread=_why_unread(reads))
    notes = _notes_of(alike, others, len(reads))
    first = alike[0]
    factors = {one.node: _middle(one.factors) for one in alike} if first.differences else None
    known = Sends(tuple(array.name for array in first.arrays) if first.rest else (), factors)
    return Reading(known if known != Sends() else None, rows, notes=tuple(notes))


def _read(node: str, table: Sequence[SentArray]) -> _Read:
    """Take for each entry of the model the first array that is read as most are."""
    sent = [array for array in table if array.kind != KEPT]
    kinds = {array.kind for array in sent}
    differences = not kinds & {*AS_WEIGHTS} and bool(kinds & {*AS_DIFFERENCES})
    understood = {*(AS_DIFFERENCES if differences else AS_WEIGHTS), UNCHANGED, ZEROS}
    chosen: dict[str, SentArray] = {}
    for array in sent:
        before = chosen.get(array.of)
        if array.of and (before is None or (before.kind not in understood and array.kind in understood)):
            chosen[array.of] = array
    unread = [array for array in chosen.values() if array.kind not in understood]
    rest = [array for array in sent if array not in chosen.values()]
    # Entries of the model that nothing was found for may be what is not understood.
    missing = [array for array in table if array.kind == KEPT]
    if not chosen or (missing and any(not array.of for array in rest)):
        unread += [array for array in rest if not array.of]
    factors = [each for array in chosen.values() for each in (array.least, array.most) if each is not None]
    arrays = tuple(chosen.values())
    return _Read(node, differences, arrays, tuple(rest), tuple(unread), tuple(factors) or (1.0,))


def _why_unread(reads: Sequence[_Read]) -> str:
    expected = "the model's weights, or what training changed in them times one factor, with the same shapes from all"
    unread = {array.name: array.kind for one in reads for array in one.unread}
    count = sum(bool(one.unread) for one in reads)
    if not unread:
        sizes = len({one.form for one in reads})
        names = short(", ".join(array.name for array in reads[0].arrays), 200)
        return f"{len(reads)} clients send arrays ({names}) of {sizes} different forms; expected {expected}"
    listed = short(", ".join(f"{name} ({kind})" for name, kind in unread.items()), 300)
    return f"{count} of {len(reads)} clients send {listed}; expected {expected}"


def _notes_of(alike: Sequence[_Read], others: Sequence[_Read], count: int) -> list[str]:
    notes = []
    first = alike[0]
    if first.differences:
        factors = [_middle(one.factors) for one in alike]
        low, high = min(factors), max(factors)
        notes.append(
            f"clients send how far training moved the model, times {_range(low, high)}; the attacker is assumed to "
            "know the factor of each client, and adds what was received"
        )
        if any(max(one.factors) - min(one.factors) > _STEADY * abs(_middle(one.factors)) for one in alike):
            notes.append("that factor changes from round to round; one in the middle is taken for each client")
    if any(array.kind == CHANGED for one in alike for array in one.arrays):
        notes.append("clients change their weights before they send them, as noise and compression do")
    if first.rest:
        rest = short(", ".join(f"{array.name} ({array.kind})" for array in first.rest), 200)
        notes.append(f"beside their model clients send {rest}, which no attack reads: it may leak, too")
    if others:
        notes.append(
            f"{len(others)} of {count} clients send something else than the others; whether their replies leak "
            "cannot be told"
        )
    return notes


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if math.isclose(low, high, rel_tol=_STEADY) else f"{low:.4g} … {high:.4g}"


def _middle(factors: Sequence[float]) -> float:
    low, high = min(factors), max(factors)
    # Of factors of either sign there is no middle.
    return high if low * high <= 0 else math.copysign(math.sqrt(low * high), low)
