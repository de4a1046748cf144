"""How a server reads what its clients send: as weights, as differences, or not at all."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
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
    tables = _find_tables(witnesses)
    if not tables:
        return Reading()
    rows = tuple(summed_up(list(tables.values())))
    reads = [_read_table(node, table) for node, table in tables.items()]
    alike = _find_most_alike(reads)
    if 2 * len(alike) <= len(reads):
        return Reading(rows=rows, unread=_why_unread(reads))
    others = [one for one in reads if one not in alike]
    notes = _notes_of(alike, others, len(reads))
    return Reading(_state_known(alike), rows, notes=tuple(notes))


def _find_tables(witnesses: Sequence[Witness]) -> dict[str, tuple[SentArray, ...]]:
    """Return by node what each client that trained sends."""
    tables: dict[str, tuple[SentArray, ...]] = {}
    for each in witnesses:
        if each.node != SERVER and each.trained.total and each.sends:
            tables[each.node] = each.sends
    return tables


def _find_most_alike(reads: Sequence[_Read]) -> list[_Read]:
    """Return the replies of the form that most have, of those that can be read."""
    readable = [one for one in reads if not one.unread]
    if not readable:
        return []
    forms = Counter(one.form for one in readable)
    form, _ = forms.most_common(1)[0]
    return [one for one in readable if one.form == form]


def _state_known(alike: Sequence[_Read]) -> Sends | None:
    """Return what the attacker knows of replies of one form; ``None`` where these are the local models."""
    first = alike[0]
    arrays: tuple[str, ...] = ()
    if first.rest:
        arrays = tuple(array.name for array in first.arrays)
    factors = None
    if first.differences:
        factors = {one.node: _middle(one.factors) for one in alike}
    known = Sends(arrays, factors)
    return known if known != Sends() else None


def _read_table(node: str, table: Sequence[SentArray]) -> _Read:
    """Find what of the arrays that a node sends is its model."""
    sent = [array for array in table if array.kind != KEPT]
    differences = _are_differences(sent)
    model = AS_DIFFERENCES if differences else AS_WEIGHTS
    understood = {*model, UNCHANGED, ZEROS}
    chosen = _choose_arrays(sent, understood)
    rest = [array for array in sent if array not in chosen]
    unread = [array for array in chosen if array.kind not in understood]
    # Entries of the model that nothing was found for may be what is not understood.
    has_missing = len(sent) < len(table)
    if has_missing or not chosen:
        unread += _find_nameless(rest)
    return _Read(node, differences, tuple(chosen), tuple(rest), tuple(unread), _list_factors(chosen) or (1.0,))


def _find_nameless(arrays: Sequence[SentArray]) -> list[SentArray]:
    """Return arrays that are of no entry of the model."""
    return [array for array in arrays if not array.of]


def _are_differences(sent: Sequence[SentArray]) -> bool:
    kinds = {array.kind for array in sent}
    return not kinds & {*AS_WEIGHTS} and bool(kinds & {*AS_DIFFERENCES})


def _choose_arrays(sent: Sequence[SentArray], understood: Collection[str]) -> list[SentArray]:
    """Take for each entry of the model the first array that is read as most are."""
    chosen: dict[str, SentArray] = {}
    for array in sent:
        if not array.of:
            continue
        before = chosen.get(array.of)
        if before is None or (before.kind not in understood and array.kind in understood):
            chosen[array.of] = array
    return list(chosen.values())


def _list_factors(arrays: Sequence[SentArray]) -> tuple[float, ...]:
    factors: list[float] = []
    for array in arrays:
        if array.least is not None:
            factors.append(array.least)
        if array.most is not None:
            factors.append(array.most)
    return tuple(factors)


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
    shaped = [one for one in others if not one.unread and one.differences == first.differences]
    if shaped:
        notes.append(
            f"{len(shaped)} of {count} clients send models of another form: where the app is not asked, whether their "
            "replies leak cannot be told"
        )
    if strange := len(others) - len(shaped):
        notes.append(
            f"{strange} of {count} clients send something else than the others; whether their replies leak cannot be "
            "told"
        )
    return notes


def _range(low: float, high: float) -> str:
    return f"{low:.4g}" if math.isclose(low, high, rel_tol=_STEADY) else f"{low:.4g} … {high:.4g}"


def _middle(factors: Sequence[float]) -> float:
    low, high = min(factors), max(factors)
    # Of factors of either sign there is no middle.
    return high if low * high <= 0 else math.copysign(math.sqrt(low * high), low)
